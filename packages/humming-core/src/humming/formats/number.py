"""NumberFormat: what the bits of one number mean, and exact decode and encode in NumPy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from humming.errors import ConfigError

__all__ = ["Kind", "NumberFormat", "Specials"]

Codes = npt.NDArray[np.unsignedinteger]
Floats = npt.NDArray[np.float64]


class Kind(str, Enum):
    """How the bits are read."""

    INTEGER = "integer"  # two's complement if signed
    FLOAT = "float"  # sign, exponent, mantissa
    MAGNITUDE = "magnitude"  # sign and integer magnitude: the exponent-free e0mN


class Specials(str, Enum):
    """Which codes are not finite numbers."""

    NONE = "none"  # every code is finite (OCP MX FP4 and FP6)
    NAN_ONLY = "nan_only"  # all ones below the sign is NaN, there is no Inf ("fn")
    IEEE = "ieee"  # all-ones exponent is Inf (mantissa 0) or NaN
    FNUZ = "fnuz"  # the code of -0 is NaN, there is no Inf and no -0


@dataclass(frozen=True, kw_only=True)
class NumberFormat:
    """One number format; a row of :mod:`humming.formats.table`.

    ``eXmY`` names count exponent and mantissa bits. A float value is
    ``(-1)^s * 2^(e - bias) * (1 + m / 2^Y)`` for e > 0 and
    ``(-1)^s * 2^(1 - bias) * (m / 2^Y)`` for e = 0 (OCP Microscaling Formats 1.0, section 5.3;
    IEEE 754-2019, section 3.4). ``e8m0`` has no zero: code c is ``2^(c - 127)``.

    Attributes:
        name: canonical spelling, e.g. ``"e4m3fn"``, ``"u4"``.
        kind: integer, float or sign-magnitude.
        signed: whether there is a sign (bit).
        exponent: exponent bits (0 unless a float).
        mantissa: mantissa bits; for integers all bits below the sign.
        bias: exponent bias.
        specials: which codes are not finite.
        aliases: other spellings met in torch, ml_dtypes and checkpoints.
    """

    name: str
    kind: Kind
    signed: bool
    exponent: int = 0
    mantissa: int = 0
    bias: int = 0
    specials: Specials = Specials.NONE
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ConfigError("name", self.name, "a lower-case identifier")
        if not 1 <= self.bits <= 32:
            raise ConfigError("bits", self.bits, "1 to 32 bits in all")
        if min(self.exponent, self.mantissa) < 0 or bool(self.exponent) != self.is_float:
            sizes = (self.exponent, self.mantissa)
            raise ConfigError(
                "exponent, mantissa", sizes, "exponent bits for floats, and only them"
            )
        if self.kind is not Kind.FLOAT and self.specials is not Specials.NONE:
            raise ConfigError("specials", self.specials.value, "none for an integer format")
        if self.specials is Specials.FNUZ and not self.signed:
            raise ConfigError("specials", self.specials.value, "a signed format")
        if self.bits > 16 and (self.exponent, self.mantissa, self.bias) != (8, 23, 127):
            # Wider than a table of all codes: only float32 is known by its arithmetic.
            raise ConfigError("bits", self.bits, "at most 16 bits, or those of float32")

    def __str__(self) -> str:
        return self.name

    @property
    def bits(self) -> int:
        """Width of one code in bits."""
        return int(self.signed) + self.exponent + self.mantissa

    @property
    def cxx(self) -> str:
        """Its type in kernels; the types are in ``include/humming/format.cuh``."""
        if self.is_integer:
            return f"humming::{'Signed' if self.signed else 'Unsigned'}<{self.bits}>"
        if self.kind is Kind.MAGNITUDE:
            return f"humming::Magnitude<{self.mantissa}>"
        specials = "".join(word.capitalize() for word in self.specials.value.split("_"))
        numbers = f"{self.exponent}, {self.mantissa}, {self.bias}"
        return f"humming::Float<{numbers}, humming::Specials::k{specials}>"

    @property
    def is_integer(self) -> bool:
        """Whether every value is an integer (two's complement or unsigned)."""
        return self.kind is Kind.INTEGER

    @property
    def is_float(self) -> bool:
        """Whether it has an exponent."""
        return self.kind is Kind.FLOAT

    @property
    def code_dtype(self) -> np.dtype[np.unsignedinteger]:
        """Smallest unsigned NumPy dtype that holds one code."""
        return np.dtype(np.uint8 if self.bits <= 8 else np.uint16 if self.bits <= 16 else np.uint32)

    @property
    def max(self) -> float:
        """Largest finite value."""
        if self.bits > 16:  # f32: a table of 2^32 codes is no way to find it
            return float(np.finfo(np.float32).max)
        return float(np.nanmax(_finite(self)))

    @property
    def min(self) -> float:
        """Smallest (most negative) finite value; for unsigned formats the smallest one."""
        if self.bits > 16:
            return float(np.finfo(np.float32).min)
        return float(np.nanmin(_finite(self)))

    @property
    def has_nan(self) -> bool:
        """Whether some code is NaN."""
        return self.specials is not Specials.NONE

    @property
    def max_normal_exponent(self) -> int:
        """Exponent E of the largest finite value: ``2^E <= max < 2^(E+1)``."""
        return int(np.frexp(self.max)[1]) - 1

    def decode(self, codes: npt.ArrayLike) -> Floats:
        """Exact values of `codes` (any shape, unsigned integers) as float64.

        Raises:
            ConfigError: a code needs more than :attr:`bits` bits.
        """
        array = np.asarray(codes)
        if array.dtype.kind not in "ui":
            raise ConfigError("codes", array.dtype, "an integer array")
        if array.size and (int(array.max()) >> self.bits or int(array.min()) < 0):
            raise ConfigError("codes", int(array.max()), f"codes below 2^{self.bits}")
        if self.bits <= 16:
            values: Floats = _values(self)[array]
            return values
        return array.astype(np.uint32).view(np.float32).astype(np.float64)

    def encode(self, values: npt.ArrayLike) -> Codes:
        """Codes of the nearest representable values.

        Round to nearest, ties to the even code (up in e8m0, where no code is even); values
        beyond the largest finite one, Inf included, saturate. In an unsigned format what is
        negative saturates to the smallest value. NaN becomes the format's NaN.

        Args:
            values: floats of any shape, read as float64.

        Returns:
            Unsigned codes of the same shape, in :attr:`code_dtype`.

        Raises:
            ConfigError: a NaN, and the format has none.
        """
        x = np.asarray(values, dtype=np.float64)
        nan = np.isnan(x)
        if nan.any() and not self.has_nan:
            raise ConfigError("values", float("nan"), f"no NaN, which {self.name} can't hold")
        if self.is_integer:
            low, high = int(self.min), int(self.max)
            whole = np.clip(np.rint(x), low, high).astype(np.int64)
            return np.asarray(whole & ((1 << self.bits) - 1), dtype=self.code_dtype)
        if self.bits > 16:
            with np.errstate(over="ignore"):
                clipped = np.clip(x, self.min, self.max)
                single = np.where(nan, 0.0, clipped).astype(np.float32).view(np.uint32)
            return np.where(nan, np.uint32(self.nan_code), single)
        if not self.signed:
            x = np.maximum(x, 0.0)
        magnitude = _nearest(self, np.abs(np.where(nan, 0.0, x)))
        negative = np.signbit(x) & self.signed
        if self.specials is Specials.FNUZ:
            negative = negative & (magnitude != 0)  # that code would be NaN
        codes = magnitude | (negative.astype(np.int64) << (self.bits - 1))
        codes = np.where(nan, self.nan_code if self.has_nan else 0, codes)
        return np.asarray(codes, dtype=self.code_dtype)

    @property
    def nan_code(self) -> int:
        """The NaN that :meth:`encode` writes."""
        if self.specials is Specials.FNUZ:
            return 1 << (self.bits - 1)
        return (1 << (self.bits - int(self.signed))) - 1

    def holds(self, other: NumberFormat) -> bool:
        """Whether every finite value of `other` is a value of this format."""
        if other.bits > 16 or self.bits > 16:
            return self.bits >= other.bits
        theirs = _finite(other)
        return bool(np.isin(theirs[~np.isnan(theirs)], _finite(self)).all())


def _nearest(fmt: NumberFormat, x: Floats) -> npt.NDArray[np.int64]:
    """Index of the magnitude nearest to each x, ties to even; beyond the end, the end.

    Without mantissa bits no significand is even: ties go up (IEEE 754-2019, section 4.3.1).
    Midpoints of neighbours are exact in float64: no format here has more than 11 mantissa bits.
    """
    grid = _magnitudes(fmt)
    middle = (grid[:-1] + grid[1:]) / 2
    low = np.searchsorted(middle, x, side="left")
    high = np.searchsorted(middle, x, side="right")
    return np.where((low % 2 == 0) & (fmt.mantissa > 0), low, high).astype(np.int64)


@lru_cache(maxsize=64)
def _values(fmt: NumberFormat) -> Floats:
    """Value of every code, NaN and Inf included."""
    codes = np.arange(1 << fmt.bits, dtype=np.int64)
    if fmt.kind is Kind.INTEGER:
        wrap = 1 << fmt.bits
        sign_bit = 1 << (fmt.bits - 1)
        return np.where(fmt.signed & (codes >= sign_bit), codes - wrap, codes).astype(np.float64)
    sign_bit = 1 << (fmt.bits - 1) if fmt.signed else 0
    negative = (codes & sign_bit) != 0
    body = codes & ~sign_bit
    if fmt.kind is Kind.MAGNITUDE:
        magnitude = body.astype(np.float64)
        return np.where(negative, -magnitude, magnitude)
    mantissa = body & ((1 << fmt.mantissa) - 1)
    exponent = body >> fmt.mantissa
    fraction = mantissa / (1 << fmt.mantissa)
    if fmt.mantissa == 0:  # no mantissa, so no zero and no subnormals
        magnitude = np.ldexp(1.0, exponent - fmt.bias)
    else:
        normal = np.ldexp(1.0 + fraction, exponent - fmt.bias)
        subnormal = np.ldexp(fraction, 1 - fmt.bias)
        magnitude = np.where(exponent > 0, normal, subnormal)
    ones = (1 << (fmt.exponent + fmt.mantissa)) - 1
    if fmt.specials is Specials.NAN_ONLY:
        magnitude = np.where(body == ones, np.nan, magnitude)
    elif fmt.specials is Specials.IEEE:
        top = exponent == (1 << fmt.exponent) - 1
        magnitude = np.where(top, np.where(mantissa == 0, np.inf, np.nan), magnitude)
    values = np.where(negative, -magnitude, magnitude)
    if fmt.specials is Specials.FNUZ:
        values = np.where(codes == sign_bit, np.nan, values)
    return values


@lru_cache(maxsize=64)
def _finite(fmt: NumberFormat) -> Floats:
    """:func:`_values` with Inf turned into NaN."""
    values = _values(fmt)
    return np.where(np.isfinite(values), values, np.nan)


@lru_cache(maxsize=64)
def _magnitudes(fmt: NumberFormat) -> Floats:
    """Finite non-negative values in code order, which is ascending."""
    half = _finite(fmt)[: 1 << (fmt.bits - int(fmt.signed))]
    return half[~np.isnan(half)]
