"""Minima and maxima (PTX ISA 9.0, 9.7.1.12-13, 9.7.3.11-12, 9.7.4.7-8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.isa.builder import Builder
from humming_sim.isa.elementwise import PACKED_WIDTH, apply, read_bits, read_values
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.isa.types import width_of
from humming_sim.machine.code import Step
from humming_sim.numbers.codes import Operation, flusher, packed, widen
from humming_sim.numbers.formats import number_format
from humming_sim.ptx.model import Instruction

__all__ = ["Extreme", "extreme"]

Array = npt.NDArray[Any]

_INTEGERS = tuple(f"{sign}{bits}" for sign in "us" for bits in (16, 32, 64))
_PAIRS = ("u16x2", "s16x2")
_ELEMENT = {"f16x2": "f16", "bf16x2": "bf16"}


@dataclass(frozen=True)
class Extreme:
    """What min and max may be asked for.

    Attributes:
        maximum: the larger, else the smaller.
        nan: any NaN operand gives the canonical NaN; else the other operand counts.
        absolute: operands without their signs.
        xorsign: the result takes the product of the operands' signs.
        ftz: subnormal operands become zeros.
    """

    maximum: bool
    nan: bool = False
    absolute: bool = False
    xorsign: bool = False
    ftz: bool = False


def compile_integer(item: Instruction, b: Builder) -> Step:
    """``min`` and ``max`` of integers; ``.relu`` makes negative results zero."""
    modifiers = Modifiers(item, item.words[0])
    relu = modifiers.flag("relu")
    kind = modifiers.one_of(*(("s32", "s16x2") if relu else (*_INTEGERS, *_PAIRS)))
    modifiers.done()
    target, *sources = b.operands(3)
    operator: Callable[..., Any] = np.maximum if item.words[0] == "max" else np.minimum

    def clamped(x: Any, y: Any) -> Any:
        found = operator(x, y)
        return np.maximum(found, 0) if relu else found

    if kind not in _PAIRS:
        return apply(clamped, read_values(b, sources, kind), b.write(target, kind))
    half = np.dtype(f"{'i' if kind[0] == 's' else 'u'}2")

    def run(x: Array, y: Array) -> Array:
        pairs = clamped(*(np.ascontiguousarray(v).view(half) for v in (x, y)))
        return np.ascontiguousarray(pairs).view(np.uint32)

    return apply(run, [read_bits(b, source, kind) for source in sources], b.write(target, "b32"))


def compile_float(item: Instruction, b: Builder) -> Step:
    """``min`` and ``max`` of two numbers, or of three for f32."""
    modifiers = Modifiers(item, item.words[0])
    kind = item.words[-1]
    full = kind != "f64"
    what = Extreme(
        maximum=item.words[0] == "max",
        nan=full and modifiers.flag("NaN"),
        xorsign=full and modifiers.flag("xorsign"),
        absolute=full and modifiers.flag("abs"),
        ftz=kind in ("f32", "f16", "f16x2") and modifiers.flag("ftz"),
    )
    modifiers.one_of("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
    modifiers.done()
    target, *sources = b.operands(*((3, 4) if kind == "f32" else (3,)))
    three = len(sources) == 3
    if (what.xorsign and (three or not what.absolute)) or (
        what.absolute and not three and not what.xorsign
    ):
        raise b.wrong(".xorsign.abs goes with two operands, .abs alone with three")
    readers = [read_bits(b, source, kind) for source in sources]
    write = b.write(target, f"b{PACKED_WIDTH.get(kind) or width_of(kind)}")
    operation = extreme(kind, what)
    if three:
        return apply(lambda x, y, z: operation(operation(x, y), z), readers, write)
    return apply(operation, readers, write)


def extreme(kind: str, what: Extreme) -> Operation:
    """The function of two arrays of bit patterns of `kind`."""
    if kind in _ELEMENT:
        return packed(extreme(_ELEMENT[kind], what), _ELEMENT[kind])
    fmt = number_format(kind)
    sign, magnitude = fmt.storage(fmt.sign), fmt.storage(fmt.sign - 1)
    canonical = fmt.storage(fmt.nan or 0)
    flush = flusher(kind) if what.ftz else None
    # Equal numbers are one number, or zeros of which one sign wins.
    same = np.bitwise_and if what.maximum else np.bitwise_or
    beats: Callable[..., Any] = np.greater if what.maximum else np.less

    def run(a: Array, b: Array) -> Array:
        signs = (a ^ b) & sign if what.xorsign else None
        if what.absolute:
            a, b = a & magnitude, b & magnitude
        if flush is not None:
            a, b = flush(a), flush(b)
        x, y = _numbers(kind, a), _numbers(kind, b)
        first, second = x != x, y != y
        result = np.where(beats(x, y) | second, a, np.where(x == y, same(a, b), b))
        nan = first | second if what.nan else first & second
        if signs is not None:
            result = (result & magnitude) | signs
        return np.where(nan, canonical, result) if nan.any() else result

    return run


def _numbers(kind: str, bits: Array) -> Array:
    if kind in ("f16", "bf16"):
        return widen(kind, bits)
    return bits.view(np.float64 if kind == "f64" else np.float32)


@instruction("copysign", manual="9.7.3.2 copysign")
def compile_copysign(item: Instruction, b: Builder) -> Step:
    """The second operand with the sign of the first."""
    modifiers = Modifiers(item, "copysign")
    kind = modifiers.one_of("f32", "f64")
    modifiers.done()
    target, *sources = b.operands(3)
    fmt = number_format(kind)
    sign, magnitude = fmt.storage(fmt.sign), fmt.storage(fmt.sign - 1)

    def run(signed: Array, value: Array) -> Array:
        joined: Array = (signed & sign) | (value & magnitude)
        return joined

    readers = [read_bits(b, source, kind) for source in sources]
    return apply(run, readers, b.write(target, f"b{width_of(kind)}"))


@instruction("testp", manual="9.7.3.1 testp")
def compile_testp(item: Instruction, b: Builder) -> Step:
    """A property of a number; zeros count as normal."""
    modifiers = Modifiers(item, "testp")
    test = _TESTS[modifiers.one_of(*_TESTS)]
    kind = modifiers.one_of("f32", "f64")
    modifiers.done()
    target, source = b.operands(2)
    fmt = number_format(kind)
    magnitude, infinity = fmt.storage(fmt.sign - 1), fmt.storage(fmt.infinity or 0)
    smallest = fmt.storage(1 << fmt.mantissa)

    def run(bits: Array) -> Any:
        return test(bits & magnitude, infinity, smallest)

    return apply(run, [read_bits(b, source, kind)], b.write(target, "pred"))


_TESTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "finite": lambda size, infinity, smallest: size < infinity,
    "infinite": lambda size, infinity, smallest: size == infinity,
    "number": lambda size, infinity, smallest: size <= infinity,
    "notanumber": lambda size, infinity, smallest: size > infinity,
    "normal": lambda size, infinity, smallest: (
        (size < infinity) & ((size >= smallest) | (size == 0))
    ),
    "subnormal": lambda size, infinity, smallest: (size < smallest) & (size != 0),
}
