"""D = A * B + C of one matrix instruction, for every kind.

PTX ISA 9.0, 9.7.14.5.14 (mma), 9.7.14.6.3 (mma.sp), 9.7.15.5.2 (wgmma). Numerics:

- Floating point to f32 or f16: products are exact; their sum and C are added in float64 and rounded
  once to the type of D. float64 is exact unless the terms of one instruction span more than 53
  bits. An :class:`Accumulation` replaces this by the narrower sums of real hardware.
- f64: a chain of fused multiply-adds along k, in the instruction's rounding mode.
- Integers and single bits: exact, then wrapped to 32 bits or, with .satfinite, clamped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.matrices.accumulation import (
    Accumulation,
    aligned_sum,
    nominal_exponents,
    truncated_float32,
)
from humming_sim.numbers.double import rounded
from humming_sim.numbers.formats import FORMATS, decode

__all__ = ["Operand", "Product", "multiply", "operand"]

Float64 = npt.NDArray[np.float64]

_INTEGERS = ("s8", "u8", "s4", "u4", "b1")


#: Multiplications up to which OpenBLAS uses one thread.
_ONE_THREAD = 1 << 18


@dataclass(frozen=True)
class Product:
    """What one matrix instruction computes, apart from its shape.

    Attributes:
        d: PTX type of D: "f32", "f16", "f64" or "s32".
        c: PTX type of C.
        operation: "" or, for single bits, "xor" or "and".
        saturate: .satfinite of an integer product.
        rounding: "rn", "rz", "rm" or "rp", for f64.
        accumulation: how hardware adds, or None for exact sums.
    """

    d: str
    c: str
    operation: str = ""
    saturate: bool = False
    rounding: str = "rn"
    accumulation: Accumulation | None = None


@dataclass(frozen=True, eq=False)
class Operand:
    """A or B as numbers.

    Attributes:
        values: float64 [W, rows, columns], without block scales.
        number_format: PTX type of the elements.
        scales: the block scale of each value, shaped as `values`, or None.
        scale_format: PTX type of the scales.
    """

    values: Float64
    number_format: str
    scales: Float64 | None = None
    scale_format: str = ""

    def scaled(self) -> Float64:
        """Values times scales, exact."""
        return self.values if self.scales is None else self.values * self.scales


def operand(
    bits: npt.NDArray[Any], number_format: str, width: int, negate: bool = False
) -> Operand:
    """Element bits [W, rows, columns] as numbers.

    Args:
        bits: unsigned integers, `width` bits of each counting.
        number_format: PTX type.
        width: bits that a register or memory gives an element. 4-bit floats in 8 bits lie in bits 2
            to 5 and 6-bit ones in bits 0 to 5 (9.7.14.5.14, packing of .kind::f8f6f4).
        negate: flip every sign (wgmma's imm-scale-a and imm-scale-b).
    """
    if number_format == "b1":
        return Operand(bits.astype(np.float64), number_format)
    if width == 8 and number_format in ("e2m1", "e0m3"):
        bits = bits >> 2
    values = decode(number_format, bits)
    return Operand(-values if negate else values, number_format)


def multiply(product: Product, a: Operand, b: Operand, c: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Element bits of D.

    Args:
        product: what to compute.
        a: [W, M, K].
        b: [W, K, N].
        c: element bits of C [W, M, N].

    Returns:
        unsigned integers [W, M, N]: uint16 for f16, uint64 for f64, else uint32. NaN is 0x7fffffff
        (0x7fff for f16), as tensor cores give it.
    """
    if product.d == "s32":
        return _integers(product, a, b, c)
    with np.errstate(all="ignore"):
        if product.d == "f64":
            return _doubles(product, a, b, c)
        start = decode(product.c, c)
        if product.accumulation is not None:
            return _narrow_sums(product, a, b, start)
        return _nearest(product.d, _matmul(a.scaled(), b.scaled()) + start)


def _matmul(a: Float64, b: Float64) -> Float64:
    """a @ b in pieces small enough that OpenBLAS takes one thread for each.

    It takes all cores for larger ones, which costs a hundred times the work on a busy machine.
    """
    count, rows, k = a.shape
    piece = rows
    while piece % 2 == 0 and piece * k * b.shape[2] > _ONE_THREAD:
        piece //= 2
    parts: Float64 = np.matmul(a.reshape(count, rows // piece, piece, k), b[:, None])
    return parts.reshape(count, rows, -1)


def _integers(product: Product, a: Operand, b: Operand, c: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """float64 holds every sum: |products| of one instruction add up to less than 2**25."""
    sums = _matmul(a.values, b.values)
    if product.operation == "xor":
        sums = a.values.sum(2)[:, :, None] + b.values.sum(1)[:, None, :] - 2 * sums
    total: npt.NDArray[np.int64] = sums.astype(np.int64) + c.view(np.int32)
    if product.saturate:
        total = np.clip(total, -(1 << 31), (1 << 31) - 1)
    wrapped: npt.NDArray[np.int32] = total.astype(np.int32)
    return wrapped.view(np.uint32)


def _doubles(product: Product, a: Operand, b: Operand, c: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """One k after the other: the order of the chain is not documented."""
    fma = rounded("fma", product.rounding)
    left, right = np.ascontiguousarray(a.values), np.ascontiguousarray(b.values)
    total = np.ascontiguousarray(c, np.uint64)
    for k in range(left.shape[2]):
        x, y = np.broadcast_arrays(left[:, :, k : k + 1], right[:, k : k + 1, :])
        factors = (np.ascontiguousarray(f).view(np.uint64).ravel() for f in (x, y))
        total = fma(*factors, total.ravel()).reshape(c.shape)
    return total


def _narrow_sums(product: Product, a: Operand, b: Operand, start: Float64) -> npt.NDArray[Any]:
    """Steps along k, each added as hardware adds and rounded to the type of D."""
    rule = product.accumulation
    if rule is None:
        raise ValueError("exact products have no narrow sums")
    exact = _matmul(a.scaled(), b.scaled()) + start
    special = ~np.isfinite(exact)
    terms, exponents = _terms(a, b, rule)
    terms = np.where(special[..., None], 0.0, terms)
    c_format, bits = product.c, _nearest(product.d, exact)
    value = np.where(special | rule.through_f16, 0.0, start)
    steps = max(1, a.values.shape[-1] // rule.step)
    for part, powers in zip(
        np.split(terms, steps, -1), np.split(exponents, steps, -1), strict=True
    ):
        value = aligned_sum(part, powers, value, nominal_exponents(c_format, value), rule.fraction)
        codes = _rounded(product.d, value, rule)
        value, c_format = decode(product.d, codes), product.d
    if rule.through_f16:
        codes = _nearest(product.d, value + start)
    return np.where(special, bits, codes)


def _rounded(d: str, value: Float64, rule: Accumulation) -> npt.NDArray[Any]:
    """Codes of D as the adder leaves them: its zeros are all positive."""
    bits = truncated_float32(value, rule.mantissa) if d == "f32" else _nearest(d, value)
    return np.where(bits == FORMATS[d].sign, bits.dtype.type(0), bits)


def _nearest(d: str, value: Float64) -> npt.NDArray[Any]:
    """Codes of f32 or f16, to nearest even; NumPy's casts round once."""
    row = FORMATS[d]
    near = value.astype(np.float32 if d == "f32" else np.float16)
    bits = near.view(row.storage)
    nan = near != near
    if nan.any():
        bits[nan] = row.nan
    return bits


def _terms(a: Operand, b: Operand, rule: Accumulation) -> tuple[Float64, npt.NDArray[np.int32]]:
    """Products [W, M, N, T] and the exponents that align them; T is k / group."""
    left, right = a.values[:, :, None, :], b.values.swapaxes(1, 2)[:, None, :, :]
    formats = a.number_format, b.number_format
    if rule.through_f16:
        formats = "f16", "f16"
        order = np.argsort(np.arange(left.shape[3]) % 4 >= 2, kind="stable")
        left, right = left[..., order], right[..., order]
    powers = np.int32(0)
    if rule.group == 1:
        powers = nominal_exponents(formats[0], left) + nominal_exponents(formats[1], right)
    terms = left * right
    if a.scales is not None and b.scales is not None:
        scale_a = a.scales[:, :, None, :]
        scale_b = b.scales.swapaxes(1, 2)[:, None, :, :]
        powers = powers + nominal_exponents(a.scale_format, scale_a)
        powers = powers + nominal_exponents(b.scale_format, scale_b)
        terms = terms * (scale_a * scale_b)
    if rule.group > 1:
        terms = terms.reshape(*terms.shape[:-1], -1, rule.group).sum(-1)
        powers = powers[..., :: rule.group]
    return terms, powers
