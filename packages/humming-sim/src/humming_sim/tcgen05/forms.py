"""What a tcgen05.mma spells out, and the shapes and types that each kind takes.

PTX ISA 9.0, 9.7.16.2.1 (shapes, Table 39), 9.7.16.10.1 (transpose and negate) and 9.7.16.10.7.1
(scale vector sizes). Element types without a PTX name (e3m4, e0m3) are this project's finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["HIDDEN_TARGETS", "KINDS", "ROW_BYTES", "Kind", "MmaForm"]

#: Bytes along K that one instruction takes from each row of packed A or B (48 if K = 96).
ROW_BYTES = 32

#: Targets whose tensor cores take e3m4 and e0m3 (seen on 100 and 103 only).
HIDDEN_TARGETS = frozenset({100, 103})

_F8F6F4 = MappingProxyType({0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"})
_E3M4 = MappingProxyType({2: "e3m4"})
_NONE: MappingProxyType[int, str] = MappingProxyType({})


@dataclass(frozen=True)
class Kind:
    """One `.kind::` of tcgen05.mma.

    Attributes:
        results: D's type by its code in bits 4-5; empty if the descriptor has no such field.
        elements: A's and B's type by code.
        hidden: codes without a PTX name.
        k: K of one dense instruction.
        slot: elements in 16 bytes of shared memory, with padding where narrow types have it.
        scales: `.scale_vec` or `.block` words that the kind takes; the first is the default, an
            empty first word means that one must be written.
        transposes: MN-major operands are allowed.
        negates: the operands can be negated.
    """

    results: MappingProxyType[int, str]
    elements: MappingProxyType[int, str]
    hidden: MappingProxyType[int, str]
    k: int
    slot: int
    scales: tuple[str, ...] = ()
    transposes: bool = True
    negates: bool = True

    @property
    def scaled(self) -> bool:
        """Whether blocks of A and B have scales."""
        return bool(self.scales)


def _types(**codes: int) -> MappingProxyType[int, str]:
    return MappingProxyType({code: name for name, code in codes.items()})


_E2M1 = _types(e2m1=1)
KINDS = MappingProxyType(
    {
        "f16": Kind(_types(f16=0, f32=1), _types(f16=0, bf16=1), _NONE, 16, 8),
        "tf32": Kind(_types(f32=1), _types(tf32=2), _NONE, 8, 4),
        "f8f6f4": Kind(_types(f16=0, f32=1), _F8F6F4, _E3M4, 32, 16),
        "i8": Kind(_types(s32=2), _types(u8=0, s8=1), _NONE, 32, 16, negates=False),
        "mxf8f6f4": Kind(_NONE, _F8F6F4, _E3M4, 32, 16, ("block32", "1X")),
        "mxf4": Kind(_NONE, _E2M1, _NONE, 64, 32, ("block32", "2X"), transposes=False),
        "mxf4nvf4": Kind(
            _NONE,
            _E2M1,
            _types(e0m3=0),
            64,
            32,
            ("", "block16", "block32", "4X", "2X"),
            transposes=False,
        ),
    }
)

_BLOCK = {"": 0, "block16": 16, "block32": 32, "1X": 32, "2X": 32, "4X": 16}


@dataclass(frozen=True)
class MmaForm:
    """What the opcode says: kind, CTA group, `.ws`, scale words, and the target's number.

    Attributes:
        kind: key of :data:`KINDS`.
        cta_group: 1 or 2.
        ws: weight stationary.
        scale: "block16", "block32", "1X", "2X", "4X", or "" for the default.
        target: 100, 103, 107, 110.
        hidden: accept the element types that PTX has no name for.
    """

    kind: str
    cta_group: int = 1
    ws: bool = False
    scale: str = ""
    target: int = 100
    hidden: bool = True

    @property
    def row(self) -> Kind:
        """The kind's facts."""
        return KINDS[self.kind]

    @property
    def block(self) -> int:
        """Elements along K that share a scale; 0 without scales."""
        return _BLOCK[self.scale or next(iter(self.row.scales), "")]

    @property
    def ms(self) -> tuple[int, ...]:
        """The M that the form takes."""
        if self.ws:
            return () if self.row.scaled or self.cta_group == 2 else (32, 64, 128)
        if self.cta_group == 2:
            return (128, 256)
        return (128,) if self.row.scaled else (64, 128)

    def ns(self, mn_major_bytes: bool = False) -> tuple[int, ...]:
        """The N that the form takes; `mn_major_bytes`: B is MN-major in 8-bit slots."""
        if self.ws:
            return (64, 128, 256)
        step = 8 * self.cta_group
        if mn_major_bytes:
            return tuple(range(2 * step, 257, 2 * step))
        if self.kind != "i8":
            return tuple(range(step, 257, step))
        return (
            tuple(range(32, 257, 32)) if self.cta_group == 2 else (8, 16, 24, *range(32, 257, 16))
        )

    def problems(self) -> tuple[str, ...]:
        """Sentences on what no descriptor can make right: combinations of the opcode's words."""
        found = []
        if self.scale and self.scale not in self.row.scales:
            allowed = ", ".join(word for word in self.row.scales if word) or "no scales"
            found.append(f"kind::{self.kind} takes {allowed}, not {self.scale}")
        elif self.row.scaled and not self.block:
            found.append(f"kind::{self.kind} needs .block16 or .block32")
        if not self.ms:
            found.append(f".ws doesn't go with kind::{self.kind}.cta_group::{self.cta_group}")
        if self.kind == "i8" and self.target not in (100, 110):
            found.append(f"kind::i8 exists on sm_100a and sm_110a, not on sm_{self.target}")
        return tuple(found)
