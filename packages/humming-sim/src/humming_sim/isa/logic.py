"""Bitwise operations, shifts and byte permutation (PTX ISA 9.0, 9.7.8 and 9.7.9.7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.isa.builder import Builder
from humming_sim.isa.elementwise import apply, read_bits, read_values
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.isa.types import width_of
from humming_sim.isa.warp import pair
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.ptx.model import Immediate, Instruction

Array = npt.NDArray[Any]

_BITS = ("b16", "b32", "b64")
_SHIFTED = (*_BITS, "u16", "u32", "u64", "s16", "s32", "s64")
_BINARY: dict[str, Callable[..., Any]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _kind(item: Instruction, *kinds: str) -> str:
    modifiers = Modifiers(item, item.words[0])
    kind = modifiers.one_of(*kinds)
    modifiers.done()
    return kind


@instruction("and", "or", "xor", manual="9.7.8.1 and, 9.7.8.2 or, 9.7.8.3 xor")
def compile_binary(item: Instruction, b: Builder) -> Step:
    """Bit by bit, also for predicates."""
    kind = _kind(item, "pred", *_BITS)
    target, *sources = b.operands(3)
    operator = _BINARY[item.words[0]]
    return apply(operator, read_values(b, sources, kind), b.write(target, kind))


@instruction("not", manual="9.7.8.4 not")
def compile_not(item: Instruction, b: Builder) -> Step:
    """Every bit inverted."""
    kind = _kind(item, "pred", *_BITS)
    target, source = b.operands(2)
    return apply(np.invert, [b.read(source, kind)], b.write(target, kind))


@instruction("cnot", manual="9.7.8.5 cnot")
def compile_cnot(item: Instruction, b: Builder) -> Step:
    """1 for zero, else 0."""
    kind = _kind(item, *_BITS)
    target, source = b.operands(2)
    dtype = np.dtype(f"u{width_of(kind) // 8}")

    def run(bits: Any) -> Any:
        return np.equal(bits, 0).astype(dtype)

    return apply(run, [b.read(source, kind)], b.write(target, kind))


# ------------------------------------------------------------------------------------- lop3


@instruction("lop3", manual="9.7.8.6 lop3")
def compile_lop3(item: Instruction, b: Builder) -> Step:
    """Any function of three bits, given as the table of its eight values."""
    modifiers = Modifiers(item, "lop3")
    join = modifiers.one_of("or", "and", default="")
    modifiers.one_of("b32")
    modifiers.done()
    operands = b.operands(6 if join else 5)
    table = operands[4]
    if not isinstance(table, Immediate) or not 0 <= table.value <= 0xFF:
        raise b.wrong("the table of lop3 is a number from 0 to 255")
    function = three_inputs(table.value)
    readers = [read_bits(b, operand, "b32") for operand in operands[1:4]]
    if not join:
        return apply(function, readers, b.write(operands[0], "b32"))
    first, second = pair(operands[0])
    write, flag = b.write(first, "b32"), b.write(second, "pred")
    given, operator = b.read(operands[5], "pred"), _BINARY[join]

    def step(frame: Frame) -> None:
        result = function(*(read(frame) for read in readers))
        joined = operator(result != 0, given(frame))
        write(frame, result)
        flag(frame, joined)

    return step


def three_inputs(table: int) -> Callable[[Array, Array, Array], Array]:
    """The function of uint32 arrays whose values for bits (a, b, c) are bits 4a + 2b + c."""
    high, low = _two_inputs(table >> 4), _two_inputs(table & 15)
    if table >> 4 == table & 15:
        return lambda a, b, c: np.broadcast_to(high(b, c), a.shape)
    return lambda a, b, c: (a & high(b, c)) | (~a & low(b, c))


def _two_inputs(table: int) -> Callable[[Array, Array], Array]:
    """The function of two bits (b, c) whose values are bits 2b + c of `table`."""
    return _OF_TWO[table]


_ONES = np.uint32(0xFFFFFFFF)
_OF_TWO: tuple[Callable[[Array, Array], Any], ...] = (
    lambda b, c: np.zeros_like(b),
    lambda b, c: ~(b | c),
    lambda b, c: ~b & c,
    lambda b, c: ~b,
    lambda b, c: b & ~c,
    lambda b, c: ~c,
    lambda b, c: b ^ c,
    lambda b, c: ~(b & c),
    lambda b, c: b & c,
    lambda b, c: ~(b ^ c),
    lambda b, c: c,
    lambda b, c: ~b | c,
    lambda b, c: b,
    lambda b, c: b | ~c,
    lambda b, c: b | c,
    lambda b, c: np.full_like(b, _ONES),
)


# ------------------------------------------------------------------------------------ shifts


@instruction("shl", "shr", manual="9.7.8.8 shl, 9.7.8.9 shr")
def compile_shift(item: Instruction, b: Builder) -> Step:
    """Shifts by an unsigned amount, which beyond the width leaves nothing but the sign."""
    left = item.words[0] == "shl"
    kind = _kind(item, *(_BITS if left else _SHIFTED))
    target, source, amount = b.operands(3)
    width, signed = width_of(kind), kind[0] == "s"
    read, write = b.read(source, kind), b.write(target, kind)
    dtype = np.dtype(f"{'i' if signed else 'u'}{width // 8}")
    operator: Callable[..., Any] = np.left_shift if left else np.right_shift
    last = width - 1
    if isinstance(amount, Immediate):
        places = amount.value & 0xFFFFFFFF
        if places < width or signed:
            constant = dtype.type(min(places, last))
            return lambda frame: write(frame, operator(read(frame), constant))
        return lambda frame: write(frame, dtype.type(0))
    count = b.read(amount, "u32")

    def step(frame: Frame) -> None:
        values, by = read(frame), np.asarray(count(frame))
        shifted = operator(values, np.minimum(by, last).astype(dtype))
        write(frame, shifted if signed else np.where(by > last, dtype.type(0), shifted))

    return step


@instruction("shf", manual="9.7.8.7 shf")
def compile_funnel(item: Instruction, b: Builder) -> Step:
    """One word of two joined words after a shift by 0 to 32."""
    modifiers = Modifiers(item, "shf")
    left = modifiers.one_of("l", "r") == "l"
    clamp = modifiers.one_of("clamp", "wrap") == "clamp"
    modifiers.one_of("b32")
    modifiers.done()
    target, *sources = b.operands(4)
    half = np.uint64(32)

    def run(low: Any, high: Any, amount: Any) -> Any:
        by = np.asarray(amount).astype(np.uint64)
        by = np.minimum(by, half) if clamp else by & np.uint64(31)
        joined = np.asarray(high).astype(np.uint64) << half | np.asarray(low)
        moved = joined << by >> half if left else joined >> by
        return moved.astype(np.uint32)

    return apply(run, read_values(b, sources, "b32"), b.write(target, "b32"))


# -------------------------------------------------------------------------------------- prmt

#: Which source bytes each mode picks for result bytes 0 to 3, by the two low selector bits.
_PICKS = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}
_NIBBLES = np.array([0, 4, 8, 12], np.uint32)


@instruction("prmt", manual="9.7.9.7 prmt")
def compile_prmt(item: Instruction, b: Builder) -> Step:
    """Four of the eight bytes of two words; the generic form can replicate a byte's sign."""
    modifiers = Modifiers(item, "prmt")
    mode = modifiers.one_of(*_PICKS, default="")
    modifiers.one_of("b32")
    modifiers.done()
    target, *sources = b.operands(4)
    write = b.write(target, "b32")
    readers = [read_bits(b, source, "b32") for source in sources]
    selector = sources[2]
    if isinstance(selector, Immediate):
        chosen = _choice(mode, np.array([selector.value & 0xFFFFFFFF], np.uint32))[0]
        return apply(lambda low, high: _pick(low, high, chosen), readers[:2], write)

    def run(low: Array, high: Array, selectors: Array) -> Any:
        return _pick(low, high, _choice(mode, selectors))

    return apply(run, readers, write)


def _choice(mode: str, selectors: Array) -> Any:
    """Nibbles that say what result bytes 0 to 3 take, [n, 4]."""
    if mode:
        return np.array(_PICKS[mode]).take(selectors & np.uint32(3), axis=0)
    nibbles: Array = (selectors[:, None] >> _NIBBLES) & np.uint32(15)
    return nibbles


def _pick(low: Array, high: Array, chosen: Any) -> Any:
    """Result words; `chosen` is [4], or [n, 4] if it differs between threads."""
    octets = np.stack([low, high], axis=-1).view(np.uint8)
    where = (chosen & 7).astype(np.intp)
    if chosen.ndim == 1:
        picked = octets.take(where, axis=1)
    else:
        where += np.arange(0, octets.size, 8)[:, None]
        picked = octets.reshape(-1).take(where)
    if (chosen & 8).any():
        sign = (picked.view(np.int8) >> np.int8(7)).view(np.uint8)
        picked = np.where(chosen & 8, sign, picked)
    return np.ascontiguousarray(picked).view(np.uint32).reshape(-1)
