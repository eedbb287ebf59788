"""Codes of f16, bf16, f32 and f64: widening, flushing, clamping, and NaN.

PTX ISA 9.0, the notes on ``.ftz``, ``.sat``, ``.relu`` and ``.oob`` in 9.7.3 and 9.7.4. Functions
are made once for an instruction; executing them costs only NumPy calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.numbers.formats import number_format
from humming_sim.numbers.rounding import Rounding, encode

__all__ = [
    "OUT_OF_BOUNDS",
    "PACKED",
    "Operation",
    "bf16_from_float32",
    "canonical",
    "flusher",
    "packed",
    "rectifier",
    "saturator",
    "tiny_results",
    "widen",
    "with_canonical_nan",
    "zero_out_of_bounds",
]

Bits = npt.NDArray[Any]
Operation = Callable[..., Bits]

#: Packed types, and the type of one element.
PACKED = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32"}


def packed(element: Operation, kind: str) -> Operation:
    """`element`, an operation on type `kind`, applied to both halves of packed operands."""
    storage = number_format(kind).storage

    def both(*operands: Bits) -> Bits:
        halves = (np.ascontiguousarray(operand).view(storage) for operand in operands)
        result: Bits = element(*halves).view(operands[0].dtype)
        return result

    return both


@dataclass(frozen=True)
class _Masks:
    """The fields of a format as NumPy scalars, so that masking keeps the array's dtype."""

    sign: Any
    magnitude: Any
    infinity: Any
    one: Any
    nan: Any
    zero: Any


@cache
def _masks(kind: str) -> _Masks:
    fmt = number_format(kind)
    numbers = (
        fmt.sign,
        (1 << (fmt.bits - 1)) - 1,
        fmt.infinity or 0,
        fmt.bias << fmt.mantissa,
        fmt.nan or 0,
        0,
    )
    return _Masks(*map(fmt.storage, numbers))


def flusher(kind: str) -> Callable[[Bits], Bits]:
    """A function that replaces subnormal codes by zeros of the same sign (``.ftz``)."""
    masks = _masks(kind)
    return lambda bits: np.where(bits & masks.infinity, bits, bits & masks.sign)


def tiny_results(kind: str, mode: str) -> Callable[[Bits, Callable[[Any], Bits]], Bits]:
    """A function that flushes the results that only rounding made normal.

    Devices call a result tiny if rounding it with an unbounded exponent leaves it below the
    smallest normal number. That differs from looking at the result only where it is that number.
    The function takes result codes and, for some of them, their exact values as float64.
    """
    masks = _masks(kind)
    smallest = masks.sign.dtype.type(1 << number_format(kind).mantissa)
    rounding = Rounding(mode)

    def run(bits: Bits, exact: Callable[[Any], Bits]) -> Bits:
        at = np.flatnonzero((bits & masks.magnitude) == smallest)
        if not len(at):
            return bits
        # Twice the value has the binade's full precision below twice the smallest number.
        doubled = encode(kind, exact(at) * 2.0, rounding) & masks.magnitude
        lost = at[doubled < 2 * smallest]
        bits = bits.copy()
        bits[lost] &= masks.sign
        return bits

    return run


def widen(kind: str, bits: Bits) -> npt.NDArray[np.float32]:
    """f16 or bf16 codes as float32, exactly."""
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    wide: npt.NDArray[np.uint32] = bits.astype(np.uint32) << np.uint32(16)
    return wide.view(np.float32)


def bf16_from_float32(x: npt.NDArray[np.float32]) -> Bits:
    """bf16 codes of float32 values, rounded to nearest even."""
    raw = x.view(np.uint32)
    odd = (raw >> np.uint32(16)) & np.uint32(1)
    codes = ((raw + (odd + np.uint32(0x7FFF))) >> np.uint32(16)).astype(np.uint16)
    return with_canonical_nan("bf16", codes, x)


def canonical(kind: str) -> Callable[[Bits], Bits]:
    """A function that makes every NaN code the canonical one."""
    masks = _masks(kind)

    def run(bits: Bits) -> Bits:
        nan = (bits & masks.magnitude) > masks.infinity
        return np.where(nan, masks.nan, bits) if nan.any() else bits

    return run


def with_canonical_nan(kind: str, codes: Bits, x: Bits) -> Bits:
    """`codes` of the floating-point results `x`, with every NaN the canonical one."""
    nan = x != x
    if nan.any():
        codes = np.where(nan, _masks(kind).nan, codes)
    return codes


def rectifier(kind: str) -> Callable[[Bits], Bits]:
    """A function that makes negative codes, but no NaN, +0 (``.relu``)."""
    masks = _masks(kind)

    def relu(bits: Bits) -> Bits:
        number = (bits & masks.magnitude) <= masks.infinity
        return np.where(number & ((bits & masks.sign) != 0), masks.zero, bits)

    return relu


def saturator(kind: str) -> Callable[[Bits], Bits]:
    """A function that clamps codes to [0, 1]; NaN gives +0 (``.sat``)."""
    masks = _masks(kind)

    def saturate(bits: Bits) -> Bits:
        # Codes above +infinity are NaN or negative.
        clamped: Bits = np.where(bits > masks.infinity, masks.zero, np.minimum(bits, masks.one))
        return clamped

    return saturate


#: The NaN that marks out-of-bounds data, without its sign, in f16 and bf16: what tensor copies
#: fill with on an H200, and what makes its fma.oob give zero.
OUT_OF_BOUNDS = 0x7FF7


def zero_out_of_bounds(kind: str, factors: tuple[Bits, ...], result: Bits) -> Bits:
    """`result`, and +0 where a factor is the NaN :data:`OUT_OF_BOUNDS` (``.oob``)."""
    masks = _masks(kind)
    marked = np.zeros(result.shape, np.bool_)
    for factor in factors:
        marked |= (factor & masks.magnitude) == OUT_OF_BOUNDS
    return np.where(marked, masks.zero, result)
