"""Approximate functions: rcp, rsqrt, sqrt, div, ex2, lg2, sin, cos and tanh.

PTX ISA 9.0, 9.7.3.8 and 9.7.3.13 to 9.7.3.22, 9.7.4.9 and 9.7.4.10. The manual gives hardware an
error bound, not a value, so this module returns the float64 result rounded once to the type:
within half a unit in the last place (but for about one case in 2 ** 28), hence inside every
bound. The special cases are the manual's tables. Callers switch NumPy's warnings off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.numbers.codes import PACKED, Operation, flusher, packed
from humming_sim.numbers.formats import decode, number_format
from humming_sim.numbers.rounding import encode

__all__ = ["approximation", "gross_float64"]

Bits = npt.NDArray[Any]

_HUGE = 2.0**126


def _rsqrt(x: Bits) -> Bits:
    return 1.0 / np.sqrt(x)


def _rsqrt_double(x: Bits) -> Bits:
    """``1 / sqrt(x)`` with one step of Newton's method, which float64 results need."""
    fraction, exponent = np.frexp(x)
    odd = exponent & 1
    scaled = np.ldexp(fraction, odd)
    root = 1.0 / np.sqrt(scaled)
    # The residual 1 - scaled * root**2, whose products are split into their halves.
    square, rest = _product(root, root)
    whole, low = _product(scaled, square)
    residual = ((1.0 - whole) - low) - scaled * rest
    better = np.ldexp(root + root * residual * 0.5, -((exponent - odd) // 2))
    return np.where(np.isfinite(better) & (x > 0) & (x < np.inf), better, _rsqrt(x))


def _product(x: Bits, y: Bits) -> tuple[Bits, Bits]:
    """The rounded product of moderate numbers, and exactly what rounding lost (Dekker)."""
    split = 134217729.0  # 2 ** 27 + 1
    x1, y1 = (v * split - (v * split - v) for v in (x, y))
    x2, y2 = x - x1, y - y1
    product = x * y
    return product, ((x1 * y1 - product) + x1 * y2 + x2 * y1) + x2 * y2


def _quotient(x: Bits, y: Bits) -> Bits:
    """9.7.3.8: ``x * (1 / y)``, whose reciprocal is flushed for huge `y`."""
    small = np.where(np.abs(y) > _HUGE, np.copysign(0.0, y), 1.0 / y)
    huge = (np.abs(y) > _HUGE) & (np.abs(y) < np.inf)
    return np.where(huge, x * small, x / y)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "rcp": np.reciprocal,
    "rsqrt": _rsqrt,
    "sqrt": np.sqrt,
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "div": _quotient,
    "full": np.divide,
}


def approximation(name: str, kind: str, ftz: bool = False) -> Operation:
    """A function on bit patterns of type `kind`, shape ``[n]``, for one approximate instruction.

    Args:
        name: rcp, rsqrt, sqrt, ex2, lg2, sin, cos, tanh, div (``div.approx``) or full
            (``div.full``).
        kind: f16, bf16, f32, f64 or a packed type.
        ftz: flush subnormal inputs and results.

    Raises:
        KeyError: no such function.
    """
    if kind in PACKED:
        return packed(approximation(name, PACKED[kind], ftz), PACKED[kind])
    compute, flush = _FUNCTIONS[name], flusher(kind) if ftz else None
    if name == "rsqrt" and kind == "f64":
        compute = _rsqrt_double

    def run(*operands: Bits) -> Bits:
        if flush:
            operands = tuple(flush(operand) for operand in operands)
        result = _narrow(kind, compute(*(decode(kind, operand) for operand in operands)))
        return flush(result) if flush else result

    return run


def _narrow(kind: str, x: npt.NDArray[np.float64]) -> Bits:
    if kind != "f32":
        return encode(kind, x)
    bits = x.astype(np.float32).view(np.uint32)
    return np.where(x != x, np.uint32(number_format(kind).nan or 0), bits)


def gross_float64(name: str, bits: Bits) -> Bits:
    """``rcp.approx.ftz.f64`` and ``rsqrt.approx.ftz.f64`` on uint64 bit patterns ``[n]``.

    9.7.3.14 and 9.7.3.17: only the upper 32 bits of operand and result count; NaN becomes
    0x7fffffff00000000; subnormals are flushed.
    """
    upper, flush = np.uint64(0xFFFFFFFF00000000), flusher("f64")
    x = flush(bits & upper).view(np.float64)
    result: Bits = _FUNCTIONS[name](x)
    # 32 bits hold 20 of the mantissa: round to nearest at that place.
    raw = flush((result.view(np.uint64) + np.uint64(1 << 31)) & upper)
    return np.where(result != result, np.uint64(0x7FFFFFFF00000000), raw)
