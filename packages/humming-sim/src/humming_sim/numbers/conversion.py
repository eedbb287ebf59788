"""Conversions between floating-point formats, as functions on bit patterns.

PTX ISA 9.0, 9.7.9.21 (cvt). :func:`converter` picks the cheapest exact method for a pair of
formats: a table of every code for sources of at most 16 bits, a table over the leading 17 bits for
float32 to formats of at most 8 bits, else integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.numbers.codes import bf16_from_float32
from humming_sim.numbers.formats import decode, number_format, values
from humming_sim.numbers.rounding import Rounding, encode

__all__ = ["Conversion", "converter", "stochastic"]

Bits = npt.NDArray[Any]
Conversion = Callable[[Bits], Bits]

#: float32 bits that a table over its leading 17 bits folds into the last of them.
_FOLDED = 15


def converter(source: str, target: str, rounding: Rounding | None = None) -> Conversion:
    """A function from unsigned codes of `source` to codes of `target`, any shape.

    Args:
        source, target: floating-point formats, e0m3 or s2f6.
        rounding: default: to nearest even. Mode ``rs`` is :func:`stochastic`'s.

    Raises:
        ValueError: unknown format, or a mode that `target` does not have.
    """
    rounding = rounding or Rounding()
    if number_format(source).bits <= 16:
        table = _small_source(source, target, rounding)
        mask = number_format(source).storage(len(table) - 1)
        return lambda bits: table.take(bits & mask)
    if source == "f32" and number_format(target).bits <= 8:
        return _small_target(target, rounding)
    fast = _FAST.get((source, target, rounding))
    if fast is None and source == "f64":
        return _from_double(target, rounding)
    return fast or (lambda bits: encode(target, decode(source, bits), rounding))


@cache
def _small_source(source: str, target: str, rounding: Rounding) -> Bits:
    if (source, target, rounding) == ("bf16", "f32", Rounding()):
        # A shift, as devices do it: NaN keeps its payload.
        shifted: Bits = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
        return shifted
    table = encode(target, values(source), rounding)
    if target == "f64" and number_format(source).infinity is not None:
        return _payloads(source, table)
    return table


def _payloads(source: str, table: Bits) -> Bits:
    """float64 codes of every code of `source`, with the NaNs that devices give: quiet ones."""
    fmt = number_format(source)
    codes = np.arange(len(table), dtype=np.uint64)
    nan = (codes & np.uint64(fmt.sign - 1)) > np.uint64(fmt.infinity or 0)
    payload = codes & np.uint64((1 << fmt.mantissa) - 1)
    quiet = np.uint64(0x7FF8 << 48) | payload << np.uint64(52 - fmt.mantissa)
    return np.where(nan, quiet | (codes >> np.uint64(fmt.bits - 1)) << np.uint64(63), table)


def _small_target(target: str, rounding: Rounding) -> Conversion:
    table = _leading_bits_table(target, rounding)
    low, place = np.uint32((1 << _FOLDED) - 1), np.uint32(_FOLDED)

    def run(bits: Bits) -> Bits:
        leading: Bits = (bits >> place) | ((bits & low) != 0)
        return table.take(leading)

    return run


@cache
def _leading_bits_table(target: str, rounding: Rounding) -> Bits:
    """Codes by sign, exponent, 7 mantissa bits, and one bit for "something follows".

    Every value and every midpoint of the formats of at most 8 bits has at most 7 mantissa bits,
    so all float32 numbers with one index round alike.
    """
    leading = np.arange(1 << (32 - _FOLDED), dtype=np.uint32) << np.uint32(_FOLDED)
    return encode(target, leading.view(np.float32), rounding)


def stochastic(target: str, rounding: Rounding) -> Callable[[Bits, Bits], Bits]:
    """A function from float32 codes and aligned random bits to codes of `target` (``.rs``)."""

    def run(bits: Bits, random: Bits) -> Bits:
        return encode(target, bits.view(np.float32), rounding, random)

    return run


def _f16_from_f32(bits: Bits) -> Bits:
    codes = bits.view(np.float32).astype(np.float16).view(np.uint16)
    nan = (codes & np.uint16(0x7FFF)) > np.uint16(0x7C00)
    return np.where(nan, np.uint16(0x7FFF), codes) if nan.any() else codes


def _bf16_from_f32(bits: Bits) -> Bits:
    return bf16_from_float32(bits.view(np.float32))


def _f32_from_f64(bits: Bits) -> Bits:
    return _keep_nan("f32", bits, bits.view(np.float64).astype(np.float32).view(np.uint32))


def _from_double(target: str, rounding: Rounding) -> Conversion:
    def run(bits: Bits) -> Bits:
        return _keep_nan(target, bits, encode(target, bits.view(np.float64), rounding))

    return run


def _keep_nan(target: str, bits: Bits, codes: Bits) -> Bits:
    """float64 NaNs keep their sign and leading payload and become quiet, as devices do it."""
    nan = np.flatnonzero((bits & np.uint64((1 << 63) - 1)) > np.uint64(0x7FF << 52))
    fmt = number_format(target)
    if len(nan) and fmt.infinity is not None:
        sources = bits[nan]
        payload = (sources >> np.uint64(52 - fmt.mantissa)) & np.uint64((1 << fmt.mantissa) - 1)
        sign = (sources >> np.uint64(63)) << np.uint64(fmt.bits - 1)
        quiet = np.uint64(fmt.infinity | 1 << (fmt.mantissa - 1))
        codes[nan] = (sign | quiet | payload).astype(codes.dtype)
    return codes


def _f64_from_f32(bits: Bits) -> Bits:
    return bits.view(np.float32).astype(np.float64).view(np.uint64)


def _tf32_from_f32_away(bits: Bits) -> Any:
    """``cvt.rna.tf32.f32``: devices treat NaN like a number whose sum stops at all ones."""
    return (bits & np.uint32(1 << 31)) | _away(bits)


def _tf32_from_f32_away_finite(bits: Bits) -> Any:
    """``.satfinite`` too: what has the highest exponent goes one step down, NaN as well."""
    rounded = _away(bits)
    finite = np.where(rounded >= np.uint32(0x7F800000), rounded - np.uint32(0x2000), rounded)
    return (bits & np.uint32(1 << 31)) | finite


def _away(bits: Bits) -> Any:
    magnitude = bits & np.uint32((1 << 31) - 1)
    rounded = (magnitude + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.minimum(rounded, np.uint32(0x7FFFE000))


_FAST: dict[tuple[str, str, Rounding], Conversion] = {
    ("f32", "f16", Rounding()): _f16_from_f32,
    ("f32", "bf16", Rounding()): _bf16_from_f32,
    ("f64", "f32", Rounding()): _f32_from_f64,
    ("f32", "f64", Rounding()): _f64_from_f32,
    ("f32", "tf32", Rounding("rna")): _tf32_from_f32_away,
    ("f32", "tf32", Rounding("rna", satfinite=True)): _tf32_from_f32_away_finite,
}
