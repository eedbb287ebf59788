"""Counting, finding, extracting and inserting bits (PTX ISA 9.0, 9.7.1.14 to 9.7.1.22)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.isa.builder import Builder
from humming_sim.isa.elementwise import apply, read_bits
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.isa.types import width_of
from humming_sim.machine.code import Step
from humming_sim.ptx.model import Immediate, Instruction, Operand

Array = npt.NDArray[Any]

_BIT_TYPES = ("b32", "b64")
_FIELD_TYPES = ("u32", "u64", "s32", "s64")
_NONE = 0xFFFFFFFF
_BYTE = np.uint64(0xFF)
_ONE, _ZERO, _LAST, _ALL = np.uint64(1), np.uint64(0), np.uint64(63), np.uint64((1 << 64) - 1)


def _type(item: Instruction, *kinds: str, flags: tuple[str, ...] = ()) -> tuple[str, list[bool]]:
    modifiers = Modifiers(item, item.words[0])
    found = [modifiers.flag(flag) for flag in flags]
    kind = modifiers.one_of(*kinds)
    modifiers.done()
    return kind, found


def bit_length(bits: Array) -> Any:
    """Position of the most significant one plus 1, 0 for zero; uint32 or uint64 ``[n]``."""
    if bits.dtype.itemsize <= 4:
        exponents: Array = np.frexp(bits.astype(np.float64))[1]
        return exponents
    high, low = bits >> np.uint64(32), bits & np.uint64(_NONE)
    top, bottom = (np.frexp(part.astype(np.float64))[1] for part in (high, low))
    return np.where(high != 0, top + 32, bottom)


@cache
def _counts() -> npt.NDArray[np.uint8]:
    """How many bits each 16-bit number has."""
    table = np.zeros(1 << 16, np.uint8)
    for bit in range(16):
        table += (np.arange(1 << 16) >> bit & 1).astype(np.uint8)
    return table


@cache
def _mirrored() -> npt.NDArray[np.uint8]:
    """Each byte with its bits in reverse."""
    codes = np.arange(256)
    bits = [(codes >> bit & 1) << (7 - bit) for bit in range(8)]
    table: npt.NDArray[np.uint8] = np.sum(bits, axis=0).astype(np.uint8)
    return table


@instruction("popc", manual="9.7.1.14 popc")
def compile_popc(item: Instruction, b: Builder) -> Step:
    """The number of ones."""
    kind, _ = _type(item, *_BIT_TYPES)
    target, source = b.operands(2)
    table, parts = _counts(), width_of(kind) // 16

    def run(bits: Array) -> Any:
        halves = np.ascontiguousarray(bits).view(np.uint16).reshape(-1, parts)
        return table.take(halves).sum(1, dtype=np.uint32)

    return apply(run, [read_bits(b, source, kind)], b.write(target, "u32"))


@instruction("clz", manual="9.7.1.15 clz")
def compile_clz(item: Instruction, b: Builder) -> Step:
    """The number of zeros above the most significant one."""
    kind, _ = _type(item, *_BIT_TYPES)
    target, source = b.operands(2)
    width = width_of(kind)

    def run(bits: Array) -> Any:
        return (width - bit_length(bits)).astype(np.uint32)

    return apply(run, [read_bits(b, source, kind)], b.write(target, "u32"))


@instruction("bfind", manual="9.7.1.16 bfind")
def compile_bfind(item: Instruction, b: Builder) -> Step:
    """The most significant bit that is no sign, as a position or as a shift amount."""
    kind, (shift,) = _type(item, *_FIELD_TYPES, flags=("shiftamt",))
    target, source = b.operands(2)
    width = width_of(kind)

    def run(bits: Array) -> Any:
        if kind[0] == "s":
            signed = bits.view(f"i{width // 8}")
            bits = np.where(signed < 0, ~bits, bits)
        found = bit_length(bits)
        position = width - found if shift else found - 1
        return np.where(found == 0, _NONE, position).astype(np.uint32)

    return apply(run, [read_bits(b, source, kind)], b.write(target, "u32"))


@instruction("fns", manual="9.7.1.17 fns")
def compile_fns(item: Instruction, b: Builder) -> Step:
    """The position of the n-th one from a base, upwards or downwards."""
    _type(item, "b32")
    target, mask, base, offset = b.operands(4)
    readers = [read_bits(b, mask, "b32"), read_bits(b, base, "u32"), read_bits(b, offset, "s32")]
    return apply(find_nth_set, readers, b.write(target, "b32"))


def find_nth_set(mask: Array, base: Array, offset: Array) -> Array:
    """``fns``: uint32 ``[n]`` each; `offset` holds signed numbers."""
    steps = offset.view(np.int32).astype(np.int64)
    start = (base & np.uint32(31)).astype(np.int64)
    wanted = np.maximum(np.abs(steps), 1)
    direction = np.where(steps < 0, -1, 1)
    result = np.full(len(mask), _NONE, np.uint32)
    for distance in range(32):
        position = start + direction * distance
        inside = (position >= 0) & (position < 32)
        if distance:
            inside &= steps != 0
        bit = mask >> np.where(inside, position, 0).astype(np.uint32) & np.uint32(1)
        hit = inside & (bit == 1)
        wanted = wanted - hit
        result[hit & (wanted == 0)] = position[hit & (wanted == 0)]
    return result


@instruction("brev", manual="9.7.1.18 brev")
def compile_brev(item: Instruction, b: Builder) -> Step:
    """The bits in reverse order."""
    kind, _ = _type(item, *_BIT_TYPES)
    target, source = b.operands(2)
    table, size = _mirrored(), width_of(kind) // 8

    def run(bits: Array) -> Any:
        octets = np.ascontiguousarray(bits).view(np.uint8).reshape(-1, size)[:, ::-1]
        mirrored: Array = table.take(octets).reshape(-1).view(bits.dtype)
        return mirrored

    return apply(run, [read_bits(b, source, kind)], b.write(target, kind))


@instruction("bfe", manual="9.7.1.19 bfe")
def compile_bfe(item: Instruction, b: Builder) -> Step:
    """A field of bits, extended with zeros or with the field's sign."""
    kind, _ = _type(item, *_FIELD_TYPES)
    target, source, position, length = b.operands(4)
    wide = np.dtype(np.int64 if kind[0] == "s" else np.uint64)
    narrow = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{width_of(kind) // 8}")
    fixed = _inside(position, length, width_of(kind))
    if fixed is not None:
        left, right = narrow.type(fixed[0]), narrow.type(fixed[1])
        return apply(lambda x: x << left >> right, [b.read(source, kind)], b.write(target, kind))

    def run(bits: Any, start: Any, count: Any) -> Any:
        start, count = _place(start, kind), _place(count, kind)
        # In 64 bits a word carries its own extension, and 63 places reach all of it.
        low = np.minimum(start, _LAST).astype(wide)
        field = np.asarray(bits).astype(wide) >> low
        if kind == "u64":
            field = np.where(start > _LAST, wide.type(0), field)
        unused = (np.uint64(64) - np.clip(count, _ONE, np.uint64(64))).astype(wide)
        extended = (field << unused) >> unused
        return np.where(count == 0, wide.type(0), extended).astype(narrow)

    readers = [b.read(source, kind), b.read(position, "u32"), b.read(length, "u32")]
    return apply(run, readers, b.write(target, kind))


def _inside(position: Operand, length: Operand, width: int) -> tuple[int, int] | None:
    """Shifts left and back right that extract a field of literal place within the word."""
    if isinstance(position, Immediate) and isinstance(length, Immediate):
        above = width - position.value - length.value
        if position.value >= 0 and length.value > 0 and above >= 0:
            return above, width - length.value
    return None


def _place(values: Any, kind: str) -> Any:
    """A position or length: the manual has 0 to 255, of which words take the low 8 bits.

    Devices put 64-bit fields together from several instructions that take the whole number.
    """
    wide = np.asarray(values).astype(np.uint64)
    return wide & _BYTE if width_of(kind) == 32 else wide


@instruction("bfi", manual="9.7.1.20 bfi")
def compile_bfi(item: Instruction, b: Builder) -> Step:
    """The low bits of one operand in place of a field of another."""
    kind, _ = _type(item, *_BIT_TYPES)
    target, inserted, base, position, length = b.operands(5)
    width, dtype = np.uint64(width_of(kind)), np.dtype(f"u{width_of(kind) // 8}")
    readers = [b.read(inserted, kind), b.read(base, kind)]
    write = b.write(target, kind)
    fixed = _inside(position, length, width_of(kind))
    if fixed is not None:
        shift = dtype.type(fixed[1] - fixed[0])
        mask = dtype.type((1 << (width_of(kind) - fixed[1])) - 1) << shift
        return apply(lambda x, y: (x << shift & mask) | (y & ~mask), readers, write)

    def run(field: Any, into: Any, start: Any, count: Any) -> Any:
        start, count = _place(start, kind), _place(count, kind)
        ones = np.where(count > _LAST, _ALL, (_ONE << np.minimum(count, _LAST)) - _ONE)
        shift = np.minimum(start, _LAST)
        mask = np.where(start >= width, _ZERO, ones << shift)
        moved = np.asarray(field).astype(np.uint64) << shift
        kept = np.asarray(into).astype(np.uint64) & ~mask
        return (kept | (moved & mask)).astype(dtype)

    readers += [b.read(position, "u32"), b.read(length, "u32")]
    return apply(run, readers, write)


@instruction("szext", manual="9.7.1.21 szext")
def compile_szext(item: Instruction, b: Builder) -> Step:
    """The low N bits, extended with zeros or their sign."""
    modifiers = Modifiers(item, "szext")
    clamp = modifiers.one_of("clamp", "wrap") == "clamp"
    kind = modifiers.one_of("u32", "s32")
    modifiers.done()
    target, source, count = b.operands(3)
    wide = np.dtype(np.int64 if kind == "s32" else np.uint64)

    def run(bits: Any, number: Any) -> Any:
        kept = _limited(number, clamp)
        unused = (np.uint64(64) - np.maximum(kept, _ONE)).astype(wide)
        extended = (np.asarray(bits).astype(wide) << unused) >> unused
        return np.where(kept == 0, wide.type(0), extended).astype(np.uint32)

    return apply(run, [b.read(source, kind), b.read(count, "u32")], b.write(target, "b32"))


@instruction("bmsk", manual="9.7.1.22 bmsk")
def compile_bmsk(item: Instruction, b: Builder) -> Step:
    """Ones from a position on, as many as asked for."""
    modifiers = Modifiers(item, "bmsk")
    clamp = modifiers.one_of("clamp", "wrap") == "clamp"
    modifiers.one_of("b32")
    modifiers.done()
    target, *sources = b.operands(3)

    def run(position: Any, count: Any) -> Any:
        start, length = _limited(position, clamp), _limited(count, clamp)
        ones = (_ONE << length) - _ONE
        # A clamped start of 32 moves every one out of the word.
        return (ones << start).astype(np.uint32)

    return apply(run, _words(b, sources), b.write(target, "b32"))


def _words(b: Builder, operands: list[Operand]) -> list[Callable[..., Any]]:
    return [b.read(operand, "u32") for operand in operands]


def _limited(values: Any, clamp: bool) -> Any:
    wide = np.asarray(values).astype(np.uint64)
    return np.minimum(wide, np.uint64(32)) if clamp else wide & np.uint64(31)
