"""Integers from and to floating point, and saturation between integer widths.

PTX ISA 9.0, 9.7.9.21 (cvt), "Integer Notes".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.numbers.formats import Kind, number_format
from humming_sim.numbers.rounding import Rounding, encode

__all__ = ["INTEGER_MODES", "clamp", "from_float", "limits", "round_to_integral", "to_float"]

Bits = npt.NDArray[Any]

#: Integer rounding modes by their PTX names.
INTEGER_MODES = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}

#: Bits of a 64-bit magnitude that float64 cannot hold, folded into one sticky bit.
_EXCESS = 11


def limits(name: str) -> tuple[int, int]:
    """The smallest and the largest value of an integer type.

    Raises:
        ValueError: `name` is no integer type.
    """
    fmt = number_format(name)
    if fmt.kind is not Kind.INTEGER or fmt.bias:
        raise ValueError(f"{name} is no integer type")
    largest = (1 << (fmt.bits - int(fmt.signed))) - 1
    return (-largest - 1 if fmt.signed else 0), largest


def round_to_integral(x: Bits, mode: str) -> Bits:
    """`x` rounded to an integral value in its own floating-point dtype; -0.2 gives -0.0."""
    return INTEGER_MODES[mode](x)


def from_float(name: str, x: Bits, mode: str, nan: int = 0) -> Bits:
    """Integer codes of the real numbers `x`, clamped to the range of type `name`.

    Args:
        name: s8 ... u64.
        x: float32 or float64.
        mode: a key of :data:`INTEGER_MODES`.
        nan: the code for NaN; :func:`limits` and the manual say which.

    Returns:
        Codes in the type's unsigned storage dtype.
    """
    low, high = limits(name)
    fmt = number_format(name)
    whole = INTEGER_MODES[mode](x.astype(np.float64))
    mask = (1 << fmt.bits) - 1
    # The bounds are powers of two, exact in float64, also where `high` is not.
    above, below = whole >= float(high + 1), whole < float(low)
    invalid = whole != whole
    inside = np.where(above | below | invalid, 0.0, whole)
    dtype = np.uint64 if name == "u64" else np.int64
    codes: Bits = inside.astype(dtype).view(np.uint64) & np.uint64(mask)
    codes[above], codes[below], codes[invalid] = high & mask, low & mask, nan
    return codes.astype(fmt.storage)


def to_float(name: str, integers: Bits, mode: str = "rn") -> Bits:
    """The codes in format `name` of int64 or uint64 numbers, with one rounding.

    Raises:
        ValueError: unknown format or mode.
    """
    negative = integers < 0 if integers.dtype == np.int64 else np.False_
    # The magnitude of the smallest int64 is right as uint64.
    magnitude = np.where(negative, -integers, integers).astype(np.uint64)
    if name == "f64":
        return _to_float64(magnitude, np.asarray(negative), mode)
    # 53 bits with a sticky last bit: float64 holds them exactly, and no format read from it has
    # more than 24 bits of significand.
    sticky = (magnitude & np.uint64((1 << _EXCESS) - 1)) != 0
    folded = ((magnitude >> np.uint64(_EXCESS)) | sticky).astype(np.float64) * float(1 << _EXCESS)
    exact = np.where(magnitude >> np.uint64(53), folded, magnitude.astype(np.float64))
    return encode(name, np.where(negative, -exact, exact), Rounding(mode))


def _to_float64(magnitude: Bits, negative: Bits, mode: str) -> Bits:
    nearest = magnitude.astype(np.float64)
    top = nearest >= 2.0**64
    back = np.where(top, 0.0, nearest).astype(np.uint64)
    above = top | (back > magnitude)
    below = ~top & (back < magnitude)
    away = {"rn": None, "rz": np.False_, "rp": ~negative, "rm": negative}[mode]
    if away is not None:
        nearest = np.where(above & ~away, np.nextafter(nearest, 0.0), nearest)
        nearest = np.where(below & away, np.nextafter(nearest, np.inf), nearest)
    return np.where(negative, -nearest, nearest).view(np.uint64)


def clamp(name: str, integers: Bits) -> Bits:
    """int64 or uint64 numbers limited to the range of type `name` (``.sat``), same dtype."""
    low, high = limits(name)
    info = np.iinfo(integers.dtype)
    return np.clip(integers, max(low, int(info.min)), min(high, int(info.max)))
