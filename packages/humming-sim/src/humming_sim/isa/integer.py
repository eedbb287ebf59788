"""Integer arithmetic (PTX ISA 9.0, 9.7.1), carry chains (9.7.2) and dot products.

Registers are two's complement words, so sums and low products are the same for both signs; what
depends on the sign reads its operands as signed or unsigned NumPy types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.isa.builder import Builder
from humming_sim.isa.elementwise import apply, read_bits, read_values
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.isa.types import width_of
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.ptx.model import Instruction

_INTEGERS = tuple(f"{sign}{bits}" for sign in "us" for bits in (16, 32, 64))
_WORDS = tuple(f"{sign}{bits}" for sign in "us" for bits in (32, 64))
_SIGNED = ("s16", "s32", "s64")
_PAIRS = ("u16x2", "s16x2")

Array = npt.NDArray[Any]


def wider(kind: str) -> str:
    """The integer type of twice the width: "s32" to "s64"."""
    return f"{kind[0]}{2 * int(kind[1:])}"


def high_product(kind: str, a: Any, b: Any) -> Any:
    """The upper half of the product of two values of `kind`, as that type."""
    if kind[1:] != "64":
        wide = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 4}")
        product = np.asarray(a).astype(wide) * np.asarray(b).astype(wide)
        return (product >> wide.type(int(kind[1:]))).astype(np.asarray(a).dtype)
    x, y = np.asarray(a).view(np.uint64), np.asarray(b).view(np.uint64)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    x0, x1, y0, y1 = x & low, x >> half, y & low, y >> half
    middle = x1 * y0 + (x0 * y0 >> half)
    other = x0 * y1 + (middle & low)
    high = x1 * y1 + (middle >> half) + (other >> half)
    if kind == "u64":
        return high
    # Each negative factor adds 2**64 times the other one to its unsigned reading.
    high = high - np.where(np.asarray(a) < 0, y, np.uint64(0))
    return (high - np.where(np.asarray(b) < 0, x, np.uint64(0))).view(np.int64)


def saturated(wide: Any) -> Any:
    """int64 numbers limited to the range of s32."""
    return np.minimum(np.maximum(wide, -(1 << 31)), (1 << 31) - 1).astype(np.int32)


# ---------------------------------------------------------------------------------- sums


def compile_sum(item: Instruction, b: Builder) -> Step:
    """``add`` and ``sub``, 9.7.1.1-2; with ``.cc``, 9.7.2.1 and 9.7.2.3."""
    modifiers = Modifiers(item, item.words[0])
    add = item.words[0] == "add"
    if modifiers.flag("cc"):
        return _carrying(item, b, modifiers)
    sat = modifiers.flag("sat")
    kind = modifiers.one_of("s32") if sat else modifiers.one_of(*_INTEGERS, *_PAIRS)
    modifiers.done()
    target, *sources = b.operands(3)
    operator: Callable[..., Any] = np.add if add else np.subtract
    if kind in _PAIRS:
        return apply(_on_halves(operator), [read_bits(b, s, kind) for s in sources],
                     b.write(target, "b32"))  # fmt: skip
    readers, write = read_values(b, sources, kind), b.write(target, kind)
    if sat:
        return apply(lambda x, y: saturated(operator(np.asarray(x).astype(np.int64), y)),
                     readers, write)  # fmt: skip
    return apply(operator, readers, write)


def _on_halves(operator: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Array, y: Array) -> Array:
        result: Array = operator(*(np.ascontiguousarray(v).view(np.uint16) for v in (x, y)))
        return result.view(np.uint32)

    return run


# ------------------------------------------------------------------------------ products


def _product(kind: str, half: str) -> Callable[[Any, Any], Any]:
    if half == "lo":
        return np.multiply
    if half == "hi":
        return lambda x, y: high_product(kind, x, y)
    wide = np.dtype(f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 4}")
    return lambda x, y: np.multiply(x, y, dtype=wide, casting="unsafe")


def compile_mul(item: Instruction, b: Builder) -> Step:
    """``mul``, 9.7.1.3."""
    modifiers = Modifiers(item, "mul")
    half = modifiers.one_of("lo", "hi", "wide")
    kind = modifiers.one_of(*_INTEGERS)
    modifiers.done()
    target, *sources = b.operands(3)
    write = b.write(target, wider(kind) if half == "wide" else kind)
    return apply(_product(kind, half), read_values(b, sources, kind), write)


def compile_mad(item: Instruction, b: Builder) -> Step:
    """``mad``, 9.7.1.4; with ``.cc``, 9.7.2.5."""
    modifiers = Modifiers(item, item.words[0])
    if modifiers.flag("cc"):
        return _carrying(item, b, modifiers)
    half = modifiers.one_of("lo", "hi", "wide")
    sat = modifiers.flag("sat")
    kind = modifiers.one_of("s32") if sat else modifiers.one_of(*_INTEGERS)
    if sat and half != "hi":
        raise b.wrong("mad.sat needs .hi")
    modifiers.done()
    target, x, y, z = b.operands(4)
    result = wider(kind) if half == "wide" else kind
    readers = [*read_values(b, [x, y], kind), b.read(z, result)]
    return apply(_fused(_product(kind, half), sat), readers, b.write(target, result))


def _fused(product: Callable[[Any, Any], Any], sat: bool) -> Callable[..., Any]:
    if sat:
        return lambda x, y, z: saturated(product(x, y).astype(np.int64) + z)
    return lambda x, y, z: product(x, y) + z


@instruction("mul24", "mad24", manual="9.7.1.5 mul24, 9.7.1.6 mad24")
def compile_24(item: Instruction, b: Builder) -> Step:
    """Products of the low 24 bits of words."""
    modifiers = Modifiers(item, item.words[0])
    mad = item.words[0] == "mad24"
    half = modifiers.one_of("lo", "hi")
    sat = mad and modifiers.flag("sat")
    kind = modifiers.one_of("s32") if sat else modifiers.one_of("u32", "s32")
    if sat and half != "hi":
        raise b.wrong("mad24.sat needs .hi")
    modifiers.done()
    target, *sources = b.operands(4 if mad else 3)
    dtype = np.int32 if kind == "s32" else np.uint32
    eight, shift = dtype(8), np.int64(16 if half == "hi" else 0)

    def product(x: Any, y: Any) -> Any:
        # Shifting up and down again extends the sign of bit 23.
        low = [(np.asarray(v) << eight >> eight).astype(np.int64) for v in (x, y)]
        return (low[0] * low[1] >> shift).astype(dtype)

    function = _fused(product, sat) if mad else product
    return apply(function, read_values(b, sources, kind), b.write(target, kind))


@instruction("sad", manual="9.7.1.7 sad")
def compile_sad(item: Instruction, b: Builder) -> Step:
    """The absolute difference plus a third operand."""
    modifiers = Modifiers(item, "sad")
    kind = modifiers.one_of(*_INTEGERS)
    modifiers.done()
    target, *sources = b.operands(4)

    def run(x: Any, y: Any, z: Any) -> Any:
        return z + (np.maximum(x, y) - np.minimum(x, y))

    return apply(run, read_values(b, sources, kind), b.write(target, kind))


# ----------------------------------------------------------------------------- quotients


def compile_div(item: Instruction, b: Builder) -> Step:
    """``div``, 9.7.1.8: rounds towards zero."""
    return _divide(item, b)


@instruction("rem", manual="9.7.1.9 rem")
def compile_rem(item: Instruction, b: Builder) -> Step:
    """The remainder, with the sign of the dividend."""
    return _divide(item, b)


def _divide(item: Instruction, b: Builder) -> Step:
    modifiers = Modifiers(item, item.words[0])
    kind = modifiers.one_of(*_INTEGERS)
    modifiers.done()
    target, *sources = b.operands(3)
    (dividend, divisor), write = read_values(b, sources, kind), b.write(target, kind)
    remainder = item.words[0] == "rem"

    def step(frame: Frame) -> None:
        x, y = frame.expand(dividend(frame)), frame.expand(divisor(frame))
        zero = y == 0
        if zero.any():
            frame.machine.report(
                frame, "numeric", "an integer is divided by zero, which gives an unspecified value",
                index=int(zero.argmax()),
            )  # fmt: skip
            y = np.where(zero, y.dtype.type(1), y)
        rest = np.fmod(x, y)
        write(frame, rest if remainder else (x - rest) // y)

    return step


# --------------------------------------------------------------------------------- signs


def compile_sign(item: Instruction, b: Builder) -> Step:
    """``abs`` and ``neg``, 9.7.1.10-11; the most negative number stays itself."""
    modifiers = Modifiers(item, item.words[0])
    kind = modifiers.one_of(*_SIGNED)
    modifiers.done()
    target, source = b.operands(2)
    operator = np.absolute if item.words[0] == "abs" else np.negative
    return apply(operator, [b.read(source, kind)], b.write(target, kind))


# ----------------------------------------------------------------------------------- carry


@instruction("addc", "subc", "madc", manual="9.7.2.2 addc, 9.7.2.4 subc, 9.7.2.6 madc")
def compile_carry_in(item: Instruction, b: Builder) -> Step:
    """Sums, differences and products that take the carry, and with .cc give one."""
    return _carrying(item, b, Modifiers(item, item.words[0]))


def _carrying(item: Instruction, b: Builder, modifiers: Modifiers) -> Step:
    """With the thread's carry flag, CC.CF, which is no register of the program."""
    name, takes = item.words[0].removesuffix("c"), item.words[0].endswith("c")
    gives = modifiers.flag("cc") or not takes
    half = modifiers.one_of("lo", "hi") if name == "mad" else ""
    kind = modifiers.one_of(*_WORDS)
    modifiers.done()
    target, *sources = b.operands(4 if half else 3)
    flag = carry_flag(b)
    readers, write = read_values(b, sources, kind), b.write(target, kind)
    unsigned = np.dtype(f"u{width_of(kind) // 8}")
    product = _product(kind, half) if half else None

    def step(frame: Frame) -> None:
        values = [frame.expand(read(frame)) for read in readers]
        if product is not None:
            values = [product(values[0], values[1]), values[2]]
        x, y = (np.ascontiguousarray(value).view(unsigned) for value in values)
        carry = flag[frame.sel] if takes else np.bool_(False)
        total, out = _subtract(x, y, carry) if name == "sub" else _add(x, y, carry)
        if gives:
            flag[frame.sel] = out
        write(frame, total.view(values[0].dtype))

    return step


def carry_flag(b: Builder) -> npt.NDArray[np.bool_]:
    """CC.CF of every thread of the machine, [threads]."""
    made = np.zeros(b.machine.geometry.threads, np.bool_)
    flag: npt.NDArray[np.bool_] = b.machine.extra.setdefault("CC.CF", made)
    return flag


def _add(x: Array, y: Array, carry: Any) -> tuple[Array, Array]:
    total = x + y + carry
    return total, (total < x) | (carry & (total == x))


def _subtract(x: Array, y: Array, borrow: Any) -> tuple[Array, Array]:
    return x - y - borrow, (x < y) | (borrow & (x == y))


# ------------------------------------------------------------------------------ dot products


@instruction("dp4a", "dp2a", manual="9.7.1.23 dp4a, 9.7.1.24 dp2a")
def compile_dot(item: Instruction, b: Builder) -> Step:
    """Sums of products of bytes with bytes, or of half words with two of four bytes."""
    modifiers = Modifiers(item, item.words[0])
    four = item.words[0] == "dp4a"
    first = 0 if four or modifiers.one_of("lo", "hi") == "lo" else 2
    kinds = [modifiers.one_of("u32", "s32") for _ in range(2)]
    modifiers.done()
    target, *sources = b.operands(4)
    dtypes = [
        np.dtype(f"{'i' if kind == 's32' else 'u'}{size}")
        for kind, size in zip(kinds, (1 if four else 2, 1), strict=True)
    ]
    count = 4 if four else 2

    def run(x: Array, y: Array, z: Any) -> Any:
        left = np.ascontiguousarray(x).view(dtypes[0]).reshape(-1, count)
        right = np.ascontiguousarray(y).view(dtypes[1]).reshape(-1, 4)[:, first : first + count]
        total = (left.astype(np.int64) * right).sum(1) + z
        return total.astype(np.uint32)

    readers = [read_bits(b, source, "b32") for source in sources]
    return apply(run, readers, b.write(target, "b32"))
