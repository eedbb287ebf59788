"""The forms of wgmma.mma_async (PTX ISA 9.0, 9.7.15.2, 9.7.15.3, 9.7.15.5.2 and 9.7.15.6)."""

from __future__ import annotations

from dataclasses import dataclass

from humming_sim.errors import PtxError
from humming_sim.isa.registry import Modifiers
from humming_sim.ptx.model import Instruction

__all__ = ["Form", "parse"]

_HALVES = ("f16", "bf16")
_EIGHTS = ("e4m3", "e5m2")
_BYTES = ("s8", "u8")
#: Element types: width, which B go with an A, and accumulators.
_TYPES: dict[str, tuple[int, tuple[str, ...], tuple[str, ...]]] = {
    "f16": (16, ("f16",), ("f16", "f32")),
    "bf16": (16, ("bf16",), ("f32",)),
    "tf32": (32, ("tf32",), ("f32",)),
    **dict.fromkeys(_EIGHTS, (8, _EIGHTS, ("f16", "f32"))),
    **dict.fromkeys(_BYTES, (8, _BYTES, ("s32",))),
    "b1": (1, ("b1",), ("s32",)),
}
_K_BITS = 256  # of a dense row; a sparse one has twice as many
_SHAPES = {f"m64n{8 * n}k{k}": (8 * n, k) for n in range(1, 33) for k in (8, 16, 32, 64, 256)}
#: N of integer products: every 8 up to 32, then every 16.
_INTEGER_N = (8, 16, 24, 32, *range(48, 257, 16))


@dataclass(frozen=True)
class Form:
    """One instruction.

    Attributes:
        n, k: shape; m is 64.
        types: of D, A and B.
        width: bits of an element of A or B.
        sparse: whether half of A's elements are stored.
        operation: "" or "and".
        saturate: .satfinite.
    """

    n: int
    k: int
    types: tuple[str, str, str]
    width: int
    sparse: bool
    operation: str
    saturate: bool

    @property
    def signs(self) -> bool:
        """Whether it has imm-scale-a and imm-scale-b."""
        return self.types[0] != "s32"

    @property
    def transposes(self) -> bool:
        """Whether it has imm-trans immediates."""
        return self.types[1] in _HALVES


def parse(item: Instruction) -> Form:
    """What a wgmma.mma_async opcode says.

    Raises:
        PtxError: if it is not legal.
        UnsupportedInstruction: for words that nobody here knows.
    """
    modifiers = Modifiers(item, "wgmma.mma_async")
    sparse = modifiers.flag("sp")
    modifiers.one_of("sync")
    modifiers.one_of("aligned")
    n, k = _SHAPES[modifiers.one_of(*_SHAPES)]
    saturate = modifiers.flag("satfinite")
    operation = modifiers.one_of("and", default="")
    popc = modifiers.flag("popc")
    d = modifiers.one_of("f16", "f32", "s32")
    a, b = modifiers.one_of(*_TYPES), modifiers.one_of(*_TYPES)
    modifiers.done()
    width, partners, accumulators = _TYPES[a]
    checks = (
        (b in partners and d in accumulators, f"there is no wgmma of {a} by {b} into {d}"),
        (k * width == _K_BITS * (1 + sparse), f"k{k} is no depth of {'sparse ' * sparse}{a}"),
        (d != "s32" or n in _INTEGER_N, f"n{n} is no size of integer products"),
        (bool(operation) == popc == (a == "b1"), "single bits, and nothing else, have .and.popc"),
        (not saturate or a in _BYTES, ".satfinite is for integers"),
        (not sparse or a != "b1", "single bits are never sparse"),
    )
    for fine, message in checks:
        if not fine:
            raise PtxError(message)
    return Form(n, k, (d, a, b), width, sparse, operation, saturate)
