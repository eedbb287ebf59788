"""Floating-point operations on bit patterns: what add, sub, mul, fma, div, rcp and sqrt compute.

PTX ISA 9.0, 9.7.3 (f32, f64), 9.7.4 (f16, bf16) and their packed forms. :func:`operation`
composes one function per instruction, so that executing it costs only NumPy calls. Callers switch
NumPy's floating-point warnings off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.numbers import double
from humming_sim.numbers.codes import (
    PACKED,
    Operation,
    bf16_from_float32,
    flusher,
    packed,
    rectifier,
    saturator,
    tiny_results,
    widen,
    with_canonical_nan,
    zero_out_of_bounds,
)
from humming_sim.numbers.exact import odd_sum, to_odd_float32
from humming_sim.numbers.formats import decode, values
from humming_sim.numbers.rounding import Rounding, encode

__all__ = ["Modifiers", "operation"]

Bits = npt.NDArray[Any]


@dataclass(frozen=True)
class Modifiers:
    """What may be asked of an arithmetic instruction.

    Attributes:
        mode: rn, rz, rm or rp; f16 and bf16 know only rn.
        ftz: subnormal inputs and results become zeros of the same sign.
        sat: results are clamped to [0, 1], NaN gives +0.
        relu: negative results give +0, NaN gives the canonical NaN.
        oob: a factor that is the out-of-bounds NaN gives +0.
    """

    mode: str = "rn"
    ftz: bool = False
    sat: bool = False
    relu: bool = False
    oob: bool = False


def operation(op: str, kind: str, modifiers: Modifiers | None = None) -> Operation:
    """A function from operands to result, unsigned bit patterns of type `kind`, shape ``[n]``.

    Args:
        op: add, sub, mul, fma, div, rcp or sqrt.
        kind: f16, bf16, f32, f64, f16x2, bf16x2 or f32x2; packed operands are uint32 or uint64.
        modifiers: default: to nearest, nothing else.

    Raises:
        KeyError: `kind` has no such operation.
    """
    modifiers = modifiers or Modifiers()
    if kind in PACKED:
        return packed(operation(op, PACKED[kind], modifiers), PACKED[kind])
    core = _CORES[kind](op, modifiers.mode)
    if modifiers.ftz:
        core = _flushing(op, kind, modifiers.mode, core)
    after: list[Callable[[Bits], Bits]] = []
    if modifiers.relu:
        after.append(rectifier(kind))
    if modifiers.sat:
        after.append(saturator(kind))
    if not after and not modifiers.oob:
        return core

    def composed(*operands: Bits) -> Bits:
        result = core(*operands)
        for step in after:
            result = step(result)
        # As measured, an addend does not count.
        return zero_out_of_bounds(kind, operands[:2], result) if modifiers.oob else result

    return composed


def _flushing(op: str, kind: str, mode: str, core: Operation) -> Operation:
    """`core` with subnormal operands and results flushed."""
    flush, tiny, exact = flusher(kind), tiny_results(kind, mode), _EXACT64[op]

    def run(*operands: Bits) -> Bits:
        inputs = [flush(operand) for operand in operands]
        result = flush(core(*inputs))
        return tiny(result, lambda at: exact(mode, *(decode(kind, x[at]) for x in inputs)))

    return run


# -------------------------------------------------------------------------------- f32


def _f32(op: str, mode: str) -> Operation:
    if op == "fma":
        return _f32_fma_nearest if mode == "rn" else _f32_directed("fma", mode)
    if mode == "rn":
        return _F32_NEAREST[op]
    return _f32_directed(op, mode)


def _native(compute: Callable[..., Any]) -> Operation:
    """float32 operations that NumPy rounds as IEEE 754 does."""

    def run(*operands: Bits) -> Bits:
        result = compute(*(operand.view(np.float32) for operand in operands))
        return with_canonical_nan("f32", result.view(np.uint32), result)

    return run


_F32_NEAREST: dict[str, Operation] = {
    "add": _native(np.add),
    "sub": _native(np.subtract),
    "mul": _native(np.multiply),
    "div": _native(np.divide),
    "rcp": _native(np.reciprocal),
    "sqrt": _native(np.sqrt),
}

_HALF_ULP, _BELOW_F32 = np.uint64(1 << 28), np.uint64((1 << 29) - 1)
_SMALL = 2.0**-125


def _f32_fma_nearest(a: Bits, b: Bits, c: Bits) -> Bits:
    product = a.view(np.float32).astype(np.float64) * b.view(np.float32)
    addend = c.view(np.float32)
    total = product + addend
    # float64's own rounding matters only where it lands midway between two float32s, whose
    # midpoints have other places below the normal range.
    midway = (total.view(np.uint64) & _BELOW_F32) == _HALF_ULP
    midway |= (np.abs(total) < _SMALL) & (total != 0)
    if midway.any():
        total[midway] = odd_sum(product[midway], addend[midway].astype(np.float64))
    result = total.astype(np.float32)
    return with_canonical_nan("f32", result.view(np.uint32), result)


def _f32_directed(op: str, mode: str) -> Operation:
    compute = _EXACT64[op]
    rounding = Rounding(mode)

    def run(*operands: Bits) -> Bits:
        wide = tuple(operand.view(np.float32).astype(np.float64) for operand in operands)
        return encode("f32", compute(mode, *wide), rounding)

    return run


def _sum(mode: str, x: Bits, y: Bits) -> Bits:
    total = odd_sum(x, y)
    if mode == "rm":
        # IEEE 754, 6.3: an exact zero sum is negative unless both terms are positive.
        negative = (total == 0) & (np.signbit(x) | np.signbit(y))
        total = np.where(negative, -0.0, total)
    return total


#: Operations on float64 copies of float32 operands that lose nothing one more rounding would
#: miss. Quotients and roots of 24-bit numbers come closer than 2**-50 to no 25-bit number.
_EXACT64: dict[str, Callable[..., Bits]] = {
    "add": _sum,
    "sub": lambda mode, x, y: _sum(mode, x, -y),
    "mul": lambda mode, x, y: x * y,
    "fma": lambda mode, x, y, z: _sum(mode, x * y, z),
    "div": lambda mode, x, y: x / y,
    "rcp": lambda mode, x: 1.0 / x,
    "sqrt": lambda mode, x: np.sqrt(x),
}


# ------------------------------------------------------------------------- f16 and bf16


def _f16(op: str, mode: str) -> Operation:
    if op == "fma":
        return _f16_fma
    # float32 has the 2 * 11 + 2 bits that make its rounding harmless, and products are exact.
    compute = _HALF[op]

    def run(a: Bits, b: Bits) -> Bits:
        result = compute(widen("f16", a), widen("f16", b)).astype(np.float16)
        return with_canonical_nan("f16", result.view(np.uint16), result)

    return run


def _f16_fma(a: Bits, b: Bits, c: Bits) -> Bits:
    # A float64 sum is inexact only where one term is out of reach of the other's last f16 bit.
    table = values("f16")
    result = (table.take(a) * table.take(b) + table.take(c)).astype(np.float16)
    return with_canonical_nan("f16", result.view(np.uint16), result)


def _bf16(op: str, mode: str) -> Operation:
    if op == "fma":
        return _bf16_fma
    compute = _HALF[op]

    def run(a: Bits, b: Bits) -> Bits:
        return bf16_from_float32(compute(widen("bf16", a), widen("bf16", b)))

    return run


def _bf16_fma(a: Bits, b: Bits, c: Bits) -> Bits:
    table = values("bf16")
    total = odd_sum(table.take(a) * table.take(b), table.take(c))
    return bf16_from_float32(to_odd_float32(total))


_HALF: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
}


# -------------------------------------------------------------------------------- f64


def _f64(op: str, mode: str) -> Operation:
    if mode != "rn" or op == "fma":
        return double.rounded(op, mode)
    compute = _F64_NEAREST[op]

    def run(*operands: Bits) -> Bits:
        result: Bits = compute(*(operand.view(np.float64) for operand in operands))
        return result.view(np.uint64)

    return run


_F64_NEAREST: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
}

_CORES: dict[str, Callable[[str, str], Operation]] = {
    "f16": _f16,
    "bf16": _bf16,
    "f32": _f32,
    "f64": _f64,
}
