"""The number formats that PTX names, and the value of every one of their codes.

PTX ISA 9.0, sections 5.2.1 (fundamental types), 5.2.3 (alternate floating-point formats) and
5.2.4 (fixed point). ``e0m3`` and ``e3m4`` are no PTX types: they are what operand codes 0 of
the 4-bit kinds and 2 of the 8-bit kinds mean to the tensor cores of SM100 and SM120.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["FORMATS", "Format", "Kind", "Specials", "decode", "number_format", "values"]

Bits = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


class Kind(Enum):
    """How a code becomes a value."""

    FLOAT = auto()
    """Sign, exponent, mantissa, with subnormals."""
    POWER = auto()
    """2 ** (code - bias): no sign, no zero."""
    MAGNITUDE = auto()
    """Sign and an integer magnitude."""
    INTEGER = auto()
    """Two's complement or unsigned, times 2 ** -bias."""


class Specials(Enum):
    """Which codes are no finite number."""

    NONE = auto()
    NAN_ONLY = auto()
    """All exponent and mantissa bits set is NaN; there is no infinity."""
    IEEE = auto()
    """The highest exponent holds infinity (mantissa 0) and NaNs."""


@dataclass(frozen=True)
class Format:
    """One number format.

    Attributes:
        name: as PTX spells it, without the dot.
        bits: width of a code. Codes of 6- and 7-bit formats lie in the low bits of a byte.
        exponent, mantissa, bias: field widths and bias; for INTEGER, `bias` counts fraction bits.
        nan: the code that conversions produce for NaN ("canonical NaN"), None if there is none.
            The sign is clear and the mantissa full, as measured on hardware.
        padding: ignored bits below the mantissa (tf32 in a 32-bit register).
    """

    name: str
    bits: int
    kind: Kind
    signed: bool
    exponent: int = 0
    mantissa: int = 0
    bias: int = 0
    specials: Specials = Specials.NONE
    nan: int | None = None
    padding: int = 0

    @property
    def sign(self) -> int:
        """The sign bit of a code, 0 for formats without one."""
        return 1 << (self.bits - 1) if self.signed else 0

    @property
    def infinity(self) -> int | None:
        """The code of +infinity, None if there is none."""
        full = ((1 << self.exponent) - 1) << (self.mantissa + self.padding)
        return full if self.specials is Specials.IEEE else None

    @property
    def largest(self) -> int:
        """The code of the largest finite value."""
        top = (1 << (self.bits - int(self.signed))) - 1
        if self.infinity is not None:
            return self.infinity - (1 << self.padding)
        return top - int(self.specials is Specials.NAN_ONLY)

    @property
    def storage(self) -> type[np.unsignedinteger[Any]]:
        """The unsigned NumPy type that holds one code."""
        for width, kind in ((8, np.uint8), (16, np.uint16), (32, np.uint32)):
            if self.bits <= width:
                return kind
        return np.uint64


def _float(  # budget: the columns of a row
    name: str,
    exponent: int,
    mantissa: int,
    specials: Specials = Specials.NONE,
    nan: int | None = None,
    signed: bool = True,
) -> Format:
    return Format(
        name=name,
        bits=exponent + mantissa + int(signed),
        kind=Kind.FLOAT,
        signed=signed,
        exponent=exponent,
        mantissa=mantissa,
        bias=(1 << (exponent - 1)) - 1,
        specials=specials,
        nan=nan,
    )


def _integer(bits: int, signed: bool) -> Format:
    name = f"{'s' if signed else 'u'}{bits}"
    return Format(name=name, bits=bits, kind=Kind.INTEGER, signed=signed)


_ROWS = (
    _float("f16", 5, 10, Specials.IEEE, 0x7FFF),
    _float("bf16", 8, 7, Specials.IEEE, 0x7FFF),
    _float("f32", 8, 23, Specials.IEEE, 0x7FFFFFFF),
    _float("f64", 11, 52, Specials.IEEE, 0x7FFFFFFFFFFFFFFF),
    Format("tf32", 32, Kind.FLOAT, True, 8, 10, 127, Specials.IEEE, 0x7FFFE000, padding=13),
    _float("e4m3", 4, 3, Specials.NAN_ONLY, 0x7F),
    _float("e5m2", 5, 2, Specials.IEEE, 0x7F),
    _float("e3m2", 3, 2),
    _float("e2m3", 2, 3),
    _float("e2m1", 2, 1),
    _float("ue4m3", 4, 3, Specials.NAN_ONLY, 0x7F, signed=False),
    _float("e3m4", 3, 4, Specials.NAN_ONLY, 0x7F),
    Format("ue8m0", 8, Kind.POWER, False, 8, 0, 127, Specials.NAN_ONLY, 0xFF),
    Format("e0m3", 4, Kind.MAGNITUDE, True, mantissa=3),
    Format("s2f6", 8, Kind.INTEGER, True, bias=6),
    *(_integer(bits, signed) for bits in (2, 4, 8, 16, 32, 64) for signed in (True, False)),
)

#: Every format by its PTX name.
FORMATS: dict[str, Format] = {row.name: row for row in _ROWS}


def number_format(name: str) -> Format:
    """The format that PTX calls `name`.

    Raises:
        ValueError: there is none.
    """
    try:
        return FORMATS[name]
    except KeyError:
        raise ValueError(f"no number format is called {name!r}") from None


@cache
def values(name: str) -> Float64:
    """The value of every code of a format of at most 16 bits: float64 ``[2 ** bits]``.

    The array is shared and read-only. NaN codes hold NaN, infinities hold infinities.

    Raises:
        ValueError: no such format, or it is wider.
    """
    fmt = number_format(name)
    if fmt.bits > 16:
        raise ValueError(f"{name} has too many codes for a table")
    codes = np.arange(1 << fmt.bits, dtype=np.int64)
    table = _TABLES[fmt.kind](fmt, codes)
    table.setflags(write=False)
    return table


def _float_table(fmt: Format, codes: npt.NDArray[np.int64]) -> Float64:
    magnitude = codes & ~fmt.sign
    field, fraction = magnitude >> fmt.mantissa, magnitude & ((1 << fmt.mantissa) - 1)
    significand = np.where(field > 0, fraction + (1 << fmt.mantissa), fraction)
    scale = np.maximum(field, 1) - fmt.bias - fmt.mantissa
    table: Float64 = np.ldexp(significand.astype(np.float64), scale.astype(np.int32))
    if fmt.infinity is not None:
        table[magnitude == fmt.infinity] = np.inf
        table[magnitude > fmt.infinity] = np.nan
    elif fmt.nan is not None:
        table[magnitude == fmt.nan] = np.nan
    return np.where(codes & fmt.sign, -table, table)


def _power_table(fmt: Format, codes: npt.NDArray[np.int64]) -> Float64:
    table: Float64 = np.ldexp(1.0, (codes - fmt.bias).astype(np.int32))
    table[fmt.nan] = np.nan
    return table


def _magnitude_table(fmt: Format, codes: npt.NDArray[np.int64]) -> Float64:
    table = (codes & ~fmt.sign).astype(np.float64)
    return np.where(codes & fmt.sign, -table, table)


def _integer_table(fmt: Format, codes: npt.NDArray[np.int64]) -> Float64:
    whole = np.where(codes & fmt.sign, codes - (1 << fmt.bits), codes)
    return np.ldexp(whole.astype(np.float64), -fmt.bias)


_TABLES = {
    Kind.FLOAT: _float_table,
    Kind.POWER: _power_table,
    Kind.MAGNITUDE: _magnitude_table,
    Kind.INTEGER: _integer_table,
}


def decode(name: str, bits: Bits) -> Float64:
    """The values of `bits`, an array of unsigned codes of any integer dtype, as float64.

    Bits above the format's width (the padding of 6- and 7-bit formats) are ignored, and so are
    the low 13 bits of tf32. 64-bit integers round to float64.

    Raises:
        ValueError: no such format.
    """
    fmt = number_format(name)
    if fmt.bits <= 16:
        if bits.dtype.itemsize * 8 != fmt.bits:
            bits = (bits & ((1 << fmt.bits) - 1)).astype(fmt.storage)
        return values(name).take(bits)
    codes = np.asarray(bits).astype(fmt.storage, copy=False)
    if fmt.kind is Kind.INTEGER:
        signed = np.dtype(f"{'i' if fmt.signed else 'u'}{fmt.bits // 8}")
        return codes.view(signed).astype(np.float64)
    if fmt.padding:
        codes = codes & fmt.storage(-(1 << fmt.padding) & ((1 << fmt.bits) - 1))
    return codes.view(np.float64 if name == "f64" else np.float32).astype(np.float64)
