"""Real numbers to codes of a format, with one rounding.

PTX ISA 9.0, 9.7.9.21 (cvt), "Floating Point Notes". Every input is exact in float64, so rounding
float32 and float64 to any format is one integer computation on the float64 bits and never
rounds twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.numbers.formats import Format, Kind, number_format

__all__ = ["MODES", "Rounding", "encode", "random_width"]

Bits = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

#: Rounding modes by their PTX names.
MODES = ("rn", "rna", "rz", "rm", "rp", "rs")

_FRACTION = 52
_MAGNITUDE = np.uint64((1 << 63) - 1)
_INFINITY = np.int64(0x7FF << _FRACTION)
#: Shifts beyond this leave nothing of a 53-bit significand, and int64 shifts stop at 63.
_FAR = 60


@dataclass(frozen=True)
class Rounding:
    """How a conversion treats what its destination cannot hold.

    Attributes:
        mode: one of :data:`MODES`; ``rs`` adds random bits to the discarded ones and truncates.
        satfinite: overflow and infinity give the largest finite value.
        relu: negative results, and negative zero, give positive zero. NaN stays.
    """

    mode: str = "rn"
    satfinite: bool = False
    relu: bool = False


def random_width(name: str) -> int:
    """How many random bits ``.rs`` adds to the discarded ones: 13 for f16, else 16."""
    return min(16, 23 - number_format(name).mantissa)


def encode(
    name: str, x: Bits, rounding: Rounding | None = None, random: Bits | None = None
) -> Bits:
    """The codes of format `name` for the real numbers `x`, float32 or float64 of any shape.

    NaN gives the canonical NaN, or the largest value where the format has none. Overflow gives
    infinity, or NaN where there is none, unless ``satfinite`` or a mode that rounds towards zero
    keeps it finite; a format without either always saturates.

    Args:
        name: a floating-point format, e0m3 or s2f6.
        x: values, float32 or float64.
        rounding: default: to nearest even.
        random: for mode ``rs``, unsigned values of :func:`random_width` bits, aligned with the
            most significant discarded bits.

    Returns:
        Codes in the format's storage dtype, shaped as `x`.

    Raises:
        ValueError: unknown format or mode, `random` without ``rs`` or the reverse, or a plain
            integer format (humming_sim.numbers.integers converts those).
    """
    fmt, rounding = number_format(name), rounding or Rounding()
    if rounding.mode not in MODES or (random is None) == (rounding.mode == "rs"):
        raise ValueError(f"rounding mode {rounding.mode!r} with random={random!r}")
    if fmt.kind is Kind.INTEGER and not fmt.bias:
        raise ValueError(f"{name} is an integer format")
    raw = np.ascontiguousarray(x, dtype=np.float64).view(np.uint64)
    negative = (raw >> np.uint64(63)).astype(np.bool_)
    magnitude = (raw & _MAGNITUDE).view(np.int64)
    if fmt.kind is Kind.POWER:
        code = _power(fmt, magnitude, rounding)
    else:
        code = _round(fmt, magnitude, negative, rounding, random)
        code = _signed(fmt, code, negative)
        if rounding.relu:
            code = np.where(negative, 0, code)
    code = code << fmt.padding
    nan = magnitude > _INFINITY
    if nan.any():
        code = np.where(nan, fmt.largest if fmt.nan is None else fmt.nan, code)
    # tf32 keeps its sign in bit 31, which the shift of an int64 preserves.
    return code.astype(fmt.storage)


def _round(
    fmt: Format, magnitude: Int64, negative: Bool, rounding: Rounding, random: Bits | None
) -> Int64:
    """Magnitude codes, without sign or padding."""
    field = magnitude >> _FRACTION
    hidden = np.where(field > 0, np.int64(1 << _FRACTION), 0)
    significand = (magnitude & ((1 << _FRACTION) - 1)) | hidden
    exponent = np.maximum(field, 1) - 1023
    if fmt.kind is Kind.FLOAT:
        binade = np.maximum(exponent, 1 - fmt.bias)
        offset = (binade + fmt.bias - 1) << fmt.mantissa
        shift = binade - exponent + (_FRACTION - fmt.mantissa)
    else:
        offset = np.zeros_like(exponent)
        shift = np.maximum(_FRACTION - fmt.bias - exponent, 0)
    near = np.minimum(shift, _FAR)
    kept = significand >> near
    rest = significand - (kept << near)
    if random is None:
        kept = kept + _carry(rounding.mode, kept, rest, near, negative)
    else:
        width = random_width(fmt.name)
        top = rest >> np.minimum(shift - width, _FAR)
        kept = kept + ((top + random.astype(np.int64)) >> width)
    return _overflow(fmt, kept + offset, (magnitude == _INFINITY, negative), rounding)


def _carry(mode: str, kept: Int64, rest: Int64, shift: Int64, negative: Bool) -> Any:
    """Whether the magnitude rounds up: `rest` of ``1 << shift`` is discarded."""
    if mode == "rz":
        return 0
    if mode in ("rp", "rm"):
        return (rest != 0) & (negative == (mode == "rm"))
    twice, unit = rest << 1, np.int64(1) << shift
    if mode == "rna":
        return twice >= unit
    return (twice > unit) | ((twice == unit) & ((kept & 1) == 1))


def _overflow(fmt: Format, code: Int64, what: tuple[Bool, Bool], rounding: Rounding) -> Int64:
    largest = _largest(fmt, what[1])
    over = code > largest
    if not over.any():
        return code
    infinite, negative = what
    beyond = fmt.infinity if fmt.infinity is not None else fmt.nan
    if rounding.satfinite or beyond is None:
        return np.where(over, largest, code)
    towards_zero: Any = {"rz": True, "rp": negative, "rm": ~negative}.get(rounding.mode, False)
    result = np.where(~infinite & towards_zero, largest, beyond >> fmt.padding)
    return np.where(over, result, code)


def _largest(fmt: Format, negative: Bool) -> Int64 | int:
    """Largest magnitude; two's complement reaches one further below zero."""
    largest = fmt.largest >> fmt.padding
    return largest + negative.astype(np.int64) if fmt.kind is Kind.INTEGER else largest


def _signed(fmt: Format, code: Int64, negative: Bool) -> Int64:
    if fmt.kind is Kind.INTEGER:
        return np.where(negative, -code, code) & ((1 << fmt.bits) - 1)
    # Formats without a sign drop it: ue4m3 has only magnitudes.
    sign = fmt.sign >> fmt.padding
    return code | np.where(negative, np.int64(sign - (1 << 64) if sign >> 63 else sign), 0)


def _power(fmt: Format, magnitude: Int64, rounding: Rounding) -> Int64:
    """Codes of a format of powers of two: the sign is dropped, 0 gives the smallest power."""
    if rounding.mode not in ("rz", "rp"):
        raise ValueError(f"{fmt.name} rounds to zero or up, not {rounding.mode}")
    field = magnitude >> _FRACTION
    code: Int64 = field - 1023 + fmt.bias
    if rounding.mode == "rp":
        code += (magnitude & ((1 << _FRACTION) - 1)) != 0
    return np.minimum(np.maximum(code, 0), fmt.largest + int(not rounding.satfinite))
