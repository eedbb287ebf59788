"""The forms of mma.sync and mma.sp: what an opcode says, and which combinations exist.

PTX ISA 9.0, 9.7.14.5.14 mma and 9.7.14.6.3 mma.sp. Besides the manual's element types, "e0m3" and
"e3m4" are understood: no assembler takes them, but the tensor cores of SM120 compute with them, and
a text in which stand-in types are replaced by these names says what a patched binary does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from humming_sim.errors import PtxError
from humming_sim.isa.registry import Modifiers
from humming_sim.ptx.model import Instruction

__all__ = ["Form", "parse"]

_EIGHTS = ("e4m3", "e5m2")
_SMALL = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "e0m3", "e3m4")
_FOURS = ("e2m1", "e0m3")
_BYTES = ("s8", "u8")
_NIBBLES = ("s4", "u4")


@dataclass(frozen=True)
class Form:
    """One instruction.

    Attributes:
        shape: m, n, k.
        layouts: of A and B, "row" or "col".
        types: of D, A, B and C.
        kind: "" or what follows ``.kind::``.
        sparse: "", "sp" or "sp::ordered_metadata".
        scales: block scales per row of A: 0, 1, 2 or 4.
        scale_type: their type.
        operation: "", "xor" or "and".
        saturate, rounding: .satfinite, and the rounding of f64.
        width: bits that a register gives one element of A or B.
    """

    shape: tuple[int, int, int]
    layouts: tuple[str, str]
    types: tuple[str, str, str, str]
    kind: str
    sparse: str
    scales: int
    scale_type: str
    operation: str
    saturate: bool
    rounding: str
    width: int


@dataclass(frozen=True)
class _Row:
    """Shapes that a set of element types has: m and k, dense and sparse."""

    types: tuple[str, ...]
    width: int
    accumulators: tuple[str, ...]
    dense: tuple[tuple[int, int], ...]
    sparse: tuple[int, ...] = ()


#: By kind ("" has several rows).
_ROWS: dict[str, tuple[_Row, ...]] = {
    "": (
        _Row(("f16",), 16, ("f16", "f32"), ((8, 4), (16, 8), (16, 16)), (16, 32)),
        _Row(("bf16",), 16, ("f32",), ((16, 8), (16, 16)), (16, 32)),
        _Row(("tf32",), 32, ("f32",), ((16, 4), (16, 8)), (8, 16)),
        _Row(("f64",), 64, ("f64",), ((8, 4), (16, 4), (16, 8), (16, 16))),
        _Row(_EIGHTS, 8, ("f16", "f32"), ((16, 16), (16, 32)), (64,)),
        _Row(_BYTES, 8, ("s32",), ((8, 16), (16, 16), (16, 32)), (32, 64)),
        _Row(_NIBBLES, 4, ("s32",), ((8, 32), (16, 32), (16, 64)), (64, 128)),
        _Row(("b1",), 1, ("s32",), ((8, 128), (16, 128), (16, 256))),
    ),
    "f8f6f4": (_Row(_SMALL, 8, ("f16", "f32"), ((16, 32),), (64,)),),
    "mxf8f6f4": (_Row(_SMALL, 8, ("f32",), ((16, 32),), (64,)),),
    "mxf4": (_Row(_FOURS, 4, ("f32",), ((16, 64),), (128,)),),
    "mxf4nvf4": (_Row(_FOURS, 4, ("f32",), ((16, 64),), (128,)),),
}

#: .scale_vec sizes of each kind and type of scale; the first is the default if there is one.
_SCALES: dict[tuple[str, str], tuple[int, ...]] = {
    ("mxf8f6f4", "ue8m0"): (1,),
    ("mxf4", "ue8m0"): (2,),
    ("mxf4nvf4", "ue8m0"): (2, 4),
    ("mxf4nvf4", "ue4m3"): (4,),
}
_SHAPES = {
    f"m{m}n8k{k}": (m, 8, k)
    for rows in _ROWS.values()
    for row in rows
    for m, k in (*row.dense, *((16, k) for k in row.sparse))
}


def parse(item: Instruction) -> Form:
    """What an mma or mma.sp opcode says.

    Raises:
        PtxError: if it is not legal.
        UnsupportedInstruction: for words that nobody here knows.
    """
    modifiers = Modifiers(item, "mma")
    sparse = modifiers.one_of("sp", "sp::ordered_metadata", default="")
    modifiers.one_of("sync")
    modifiers.one_of("aligned")
    kind = modifiers.one_of(*(f"kind::{name}" for name in _ROWS if name), default="").partition(
        "::"
    )[2]
    scaled = modifiers.flag("block_scale")
    scales = int(
        modifiers.one_of(*(f"scale_vec::{n}X" for n in (1, 2, 4)), default="scale_vec::0X")[11]
    )
    shape = _SHAPES[modifiers.one_of(*_SHAPES)]
    layouts = _layouts(modifiers)
    saturate = modifiers.flag("satfinite")
    rounding = modifiers.one_of("rn", "rz", "rm", "rp", default="rn")
    operation = modifiers.one_of("xor", "and", default="")
    popc = modifiers.flag("popc")
    scale_type = modifiers.one_of("ue8m0", "ue4m3", default="")
    d, a, b, c = _types(modifiers)
    modifiers.done()
    row = _row(kind, a)
    checks: tuple[tuple[bool, str], ...] = (
        (row is not None and b in row.types, f"there is no mma of {a} by {b} with this kind"),
        (bool(operation) == (a == "b1") == popc, "single bits, and nothing else, have .op.popc"),
        (not saturate or a in _BYTES + _NIBBLES, ".satfinite is for integers"),
        (rounding == "rn" or a == "f64", "a rounding mode is for f64"),
        (scaled == (kind.startswith("mx")), ".block_scale belongs to the .kind::mx* alone"),
    )
    for fine, message in checks:
        if not fine:
            raise PtxError(message)
    if row is None:
        raise PtxError(f"there is no mma of {a}")
    _check_row(row, shape, (d, c), bool(sparse), layouts)
    if scaled:
        scales = _scales(kind, scale_type, scales)
    elif scales or scale_type:
        raise PtxError("a scale size or type needs .block_scale")
    return Form(
        shape, layouts, (d, a, b, c), kind, sparse, scales, scale_type, operation, saturate,
        rounding, row.width,
    )  # fmt: skip


def _layouts(modifiers: Modifiers) -> tuple[str, str]:
    """Take the layouts of A and B, in their order."""
    first = modifiers.one_of("row", "col")
    return first, modifiers.one_of("row", "col")


def _types(modifiers: Modifiers) -> tuple[str, str, str, str]:
    known = {t for rows in _ROWS.values() for row in rows for t in (*row.types, *row.accumulators)}
    take: Callable[[], str] = lambda: modifiers.one_of(*sorted(known))  # noqa: E731
    return take(), take(), take(), take()


def _row(kind: str, a: str) -> _Row | None:
    return next((row for row in _ROWS[kind] if a in row.types), None)


def _check_row(
    row: _Row,
    shape: tuple[int, int, int],
    accumulators: tuple[str, str],
    sparse: bool,
    layouts: tuple[str, str],
) -> None:
    m, n, k = shape
    d, c = accumulators
    exists = m == 16 and k in row.sparse if sparse else (m, k) in row.dense
    if not exists:
        raise PtxError(f"m{m}n{n}k{k} is no shape of {'sparse ' * sparse}{row.types[0]}")
    # Only the f16 shapes of Volta and Turing mix the two: f32 out of an f16 C.
    mixed = row.types == ("f16",) and d == "f32" and c == "f16"
    if d not in row.accumulators or (c != d and not mixed):
        raise PtxError(f"accumulators .{d} and .{c} don't go with .{row.types[0]}")
    if layouts != ("row", "col") and shape != (8, 8, 4):
        raise PtxError(f"m{m}n{n}k{k} takes .row.col alone")
    if layouts != ("row", "col") and row.types != ("f16",):
        raise PtxError("m8n8k4 of f64 takes .row.col alone")


def _scales(kind: str, scale_type: str, asked: int) -> int:
    """Scales per row; mxf4nvf4 has no default size."""
    sizes = _SCALES.get((kind, scale_type))
    if sizes is None:
        raise PtxError(f"scales of .kind::{kind} are never .{scale_type or 'without type'}")
    if asked in sizes:
        return asked
    if asked == 0 and kind != "mxf4nvf4":
        return sizes[0]
    raise PtxError(f".kind::{kind} with .{scale_type} scales has .scale_vec::{sizes[-1]}X")
