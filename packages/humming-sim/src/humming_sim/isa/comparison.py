"""Comparison and selection (PTX ISA 9.0, 9.7.6 and 9.7.7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.isa.builder import Builder, Reader
from humming_sim.isa.elementwise import apply, read_bits
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.isa.types import width_of
from humming_sim.isa.warp import pair
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.numbers.codes import flusher, widen
from humming_sim.ptx.model import Instruction, Operand

Array = npt.NDArray[Any]
Compare = Callable[[Any, Any], Any]

_SIZES = (16, 32, 64)
_BITS = tuple(f"b{bits}" for bits in _SIZES)
_SIGNED = tuple(f"s{bits}" for bits in _SIZES)
_UNSIGNED = tuple(f"u{bits}" for bits in _SIZES)
_PAIRS = ("f16x2", "bf16x2")
_FLOATS = ("f16", "bf16", "f32", "f64", *_PAIRS)
_SOURCES = (*_BITS, *_SIGNED, *_UNSIGNED, *_FLOATS)
_SELECTED = (*_BITS, *_SIGNED, *_UNSIGNED, "f32", "f64")

_ORDERED: dict[str, Compare] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_JOINS: dict[str, Compare] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}
_FLUSHED = ("f16", "f16x2", "f32")


def comparison(name: str, kind: str) -> Compare:
    """The function that compares NumPy values of type `kind`.

    Raises:
        KeyError: the type has no such operator.
    """
    if kind in _FLOATS:
        return _float_comparison(name)
    if kind in _BITS:
        return {"eq": np.equal, "ne": np.not_equal}[name]
    if kind in _UNSIGNED:
        name = _UNSIGNED_NAMES.get(name, name)
    return _ORDERED[name]


def _float_comparison(name: str) -> Compare:
    if name in ("num", "nan"):
        either = name == "nan"
        return lambda x, y: ((x != x) | (y != y)) == either
    if name[:-1] in _ORDERED:
        # NaN makes the unordered form true: it is the opposite of the opposite ordered form.
        opposite = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
        inner = _float_comparison(opposite[name[:-1]])
        return lambda x, y: ~inner(x, y)
    if name == "ne":
        return lambda x, y: (x < y) | (x > y)
    return _ORDERED[name]


class _Form:
    """The parts that ``set`` and ``setp`` share: ``.CmpOp{.BoolOp}{.ftz}``, operands, predicate."""

    def __init__(self, item: Instruction, b: Builder, targets: tuple[str, ...] = ()) -> None:
        words = Modifiers(item, item.words[0])
        rest = [word for word in item.words[1:] if word not in (*_JOINS, "ftz")]
        name = words.one_of(rest[0])
        self.join = _JOINS.get(words.one_of(*_JOINS, default=""))
        ftz = words.flag("ftz")
        self.target = words.one_of(*targets) if targets else ""
        self.kind = words.one_of(*_SOURCES)
        words.done()
        if ftz and self.kind not in _FLUSHED:
            raise b.wrong(f".ftz does not go with .{self.kind}")
        try:
            self.compare = comparison(name, self.kind)
        except KeyError:
            raise b.wrong(f".{name} does not compare .{self.kind}") from None
        _, *sources = b.operands(4 if self.join else 3)
        self.readers = [self._reader(b, source, ftz) for source in sources[:2]]
        self.given = b.read(sources[2], "pred") if self.join else None

    def _reader(self, b: Builder, operand: Operand, ftz: bool) -> Reader:
        """Values that NumPy compares; pairs as [n, 2]."""
        kind = self.kind
        if kind not in ("f16", "bf16", *_PAIRS) and not ftz:
            return b.read(operand, kind)
        element = kind.removesuffix("x2")
        read, flush = read_bits(b, operand, kind), flusher(element) if ftz else None

        def values(frame: Frame) -> Array:
            bits = np.ascontiguousarray(read(frame))
            if kind in _PAIRS:
                bits = bits.view(np.uint16).reshape(-1, 2)
            if flush is not None:
                bits = flush(bits)
            return bits.view(np.float32) if kind == "f32" else widen(element, bits)

        return values

    def joined(self, frame: Frame, result: Any) -> Any:
        """`result` combined with the predicate operand, if there is one."""
        if self.given is None or self.join is None:
            return result
        given = np.asarray(self.given(frame))
        return self.join(result, given[:, None] if np.ndim(result) == 2 else given)


@instruction("setp", manual="9.7.6.2, 9.7.7.2 setp")
def compile_setp(item: Instruction, b: Builder) -> Step:
    """Predicates from a comparison: it and its opposite, or one for each half of a pair."""
    form = _Form(item, b)
    first, second = (b.write(operand, "pred") for operand in pair(item.operands[0]))
    one, (left, right), compare = pair(item.operands[0])[1], form.readers, form.compare
    if form.kind not in _PAIRS and form.join is None and type(one).__name__ == "Sink":
        return apply(compare, form.readers, first)

    def step(frame: Frame) -> None:
        result = compare(left(frame), right(frame))
        if form.kind in _PAIRS:
            both = form.joined(frame, result)
            values = both[:, 0], both[:, 1]
        else:
            values = form.joined(frame, result), form.joined(frame, np.logical_not(result))
        first(frame, values[0])
        second(frame, values[1])

    return step


#: What ``set`` writes for true: a number's 1.0, or all bits of the type.
_TRUE = {
    "f16": 0x3C00,
    "bf16": 0x3F80,
    "f32": 0x3F800000,
    "u16": 0xFFFF,
    "s16": 0xFFFF,
    "u32": 0xFFFFFFFF,
    "s32": 0xFFFFFFFF,
    "f16x2": 0x3C00,
    "bf16x2": 0x3F80,
}


@instruction("set", manual="9.7.6.1, 9.7.7.1 set")
def compile_set(item: Instruction, b: Builder) -> Step:
    """A number that says whether a comparison holds, for each half of a pair."""
    form = _Form(item, b, tuple(_TRUE))
    halves = form.kind in _PAIRS
    if form.target in _PAIRS or halves:
        fits = form.target in (form.kind, "u32", "s32") and halves
    else:
        fits = True
    if not fits:
        raise b.wrong(f"{item.opcode} compares .{form.kind}, which does not give .{form.target}")
    true = 0xFFFF if halves and form.target not in _PAIRS else _TRUE[form.target]
    width = 16 if halves else width_of(form.target)
    dtype = np.dtype(f"u{width // 8}")
    yes, no = dtype.type(true), dtype.type(0)
    write = b.write(item.operands[0], f"b{width_of(form.target)}")
    left, right = form.readers

    def step(frame: Frame) -> None:
        result = form.joined(frame, form.compare(left(frame), right(frame)))
        numbers = np.where(result, yes, no)
        write(frame, numbers.view(np.uint32).reshape(-1) if halves else numbers)

    return step


@instruction("selp", manual="9.7.6.3 selp")
def compile_selp(item: Instruction, b: Builder) -> Step:
    """One of two operands, by a predicate."""
    modifiers = Modifiers(item, "selp")
    kind = modifiers.one_of(*_SELECTED)
    modifiers.done()
    target, first, second, flag = b.operands(4)
    readers = [b.read(flag, "pred"), b.read(first, kind), b.read(second, kind)]
    return apply(np.where, readers, b.write(target, kind))


@instruction("slct", manual="9.7.6.4 slct")
def compile_slct(item: Instruction, b: Builder) -> Step:
    """The first of two operands where a third is not negative; NaN chooses the second."""
    modifiers = Modifiers(item, "slct")
    ftz = modifiers.flag("ftz")
    kind = modifiers.one_of(*_SELECTED)
    tested = modifiers.one_of("f32") if ftz else modifiers.one_of("s32", "f32")
    modifiers.done()
    target, first, second, third = b.operands(4)
    flush = flusher("f32")
    if tested == "s32":
        test = b.read(third, "s32")
    else:
        read = read_bits(b, third, "f32")
        flushed: Callable[[Array], Array] = flush if ftz else lambda bits: bits
        test = lambda frame: flushed(read(frame)).view(np.float32)  # noqa: E731
    readers = [test, b.read(first, kind), b.read(second, kind)]
    return apply(lambda t, x, y: np.where(t >= 0, x, y), readers, b.write(target, kind))
