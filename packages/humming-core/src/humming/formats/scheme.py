"""WeightScheme: how a matrix of codes becomes numbers, and the one way to spell it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from humming.errors import ConfigError
from humming.formats.number import NumberFormat
from humming.formats.table import SCALE_FORMATS, number_format

__all__ = ["SCHEME_ALIASES", "Granularity", "Second", "WeightScheme", "Zero"]


#: Sizes of a block fit a 32-bit integer everywhere: in kernels, files and tables.
_MAX_BLOCK = 2**31 - 1


class Zero(str, Enum):
    """What is subtracted from, or added to, a code."""

    NONE = ""  # nothing stored; unsigned integer codes are offset by 2^(bits - 1)
    INTEGER = "z"  # an integer per scale: value = (code - zero) * scale
    FLOAT = "zf"  # a float per scale, in the weight's units: value = code * scale + zero


class Second(str, Enum):
    """A second-level scale in f32 that multiplies every value."""

    NONE = ""
    TENSOR = "tensor"  # one
    CHANNEL = "channel"  # one per output row


@dataclass(frozen=True)
class Granularity:
    """How many weights share one scale: `n` rows by `k` columns; 0 means all of them.

    The four named cases: tensor (0, 0), channel (1, 0), group(g) (1, g), block(bn, bk).
    """

    n: int
    k: int

    def __post_init__(self) -> None:
        sizes = (self.n, self.k)
        if min(sizes) < 0 or (self.n != 1 and 0 in sizes and sizes != (0, 0)):
            raise ConfigError("granularity", sizes, "tensor, channel, gG or bNxK with positive G")
        if max(sizes) > _MAX_BLOCK:
            raise ConfigError("granularity", sizes, f"sizes up to {_MAX_BLOCK}")

    @classmethod
    def group(cls, size: int) -> Granularity:
        """One scale per `size` consecutive inputs of a row."""
        return cls(1, _positive("group_size", size))

    @classmethod
    def block(cls, n: int, k: int) -> Granularity:
        """One scale per block of `n` rows by `k` columns; the last blocks may be partial."""
        return cls(_positive("block_n", n), _positive("block_k", k))

    @classmethod
    def parse(cls, text: str) -> Granularity:
        """Inverse of ``str()``: ``tensor``, ``channel``, ``g128``, ``b128x128``."""
        named = {"tensor": cls(0, 0), "channel": cls(1, 0)}
        if text in named:
            return named[text]
        match = re.fullmatch(r"g([0-9]{1,10})|b([0-9]{1,10})x([0-9]{1,10})", text)
        if not match:
            raise ConfigError("granularity", text, "tensor, channel, gG or bNxK")
        if match[1]:
            return cls.group(int(match[1]))
        return cls.block(int(match[2]), int(match[3]))

    def __str__(self) -> str:
        if self.k == 0:
            return "channel" if self.n else "tensor"
        return f"g{self.k}" if self.n == 1 else f"b{self.n}x{self.k}"

    @property
    def is_block(self) -> bool:
        """Whether several rows, but not all, share a scale."""
        return self.n > 1

    @property
    def is_group(self) -> bool:
        """Whether a row has several scales, each its own."""
        return self.n == 1 and self.k > 0

    def extent(self, n: int, k: int) -> tuple[int, int]:
        """Rows and columns of an [n, k] matrix under one scale, at most all of them."""
        return min(self.n or n, max(n, 1)) or 1, min(self.k or k, max(k, 1)) or 1

    def scale_shape(self, n: int, k: int, offset: tuple[int, int] = (0, 0)) -> tuple[int, int]:
        """Shape of the scales of an [n, k] matrix: how many blocks it touches.

        Args:
            n: rows.
            k: columns.
            offset: where the matrix starts inside its first block, in rows and columns; not
                zero after a tensor-parallel cut through a block.
        """
        rows = -(-(n + offset[0]) // self.n) if self.n else 1
        columns = -(-(k + offset[1]) // self.k) if self.k else 1
        return rows, columns


def _positive(field: str, value: int) -> int:
    if value < 1:
        raise ConfigError(field, value, "a positive integer")
    return value


@dataclass(frozen=True, kw_only=True)
class WeightScheme:
    """What the codes, scales and zero points of a weight [N, K] mean.

    The value of a weight is, with c its decoded code, s and z the scale and zero point of its
    block, and t the second-level scale (1 if there is none):

    ============================  ===========================
    zero points                   value
    ============================  ===========================
    none, unsigned integer codes  (c - 2^(bits - 1)) * s * t
    none, any other codes         c * s * t
    integer                       (c - z) * s * t
    float                         (c * s + z) * t
    ============================  ===========================

    A float zero point is additive and in the weight's units, because that form holds both
    GGUF's ``d * q + m`` and ``(q - z) * s`` exactly; the subtractive form holds only the second.

    Its text is ``CODE[+z|+zf]-GRANULARITY-SCALE[-SECOND]``, see :meth:`parse`. Act-order
    permutations, biases and the data itself belong to a :class:`~humming.CanonicalWeight`.

    Attributes:
        code: format of the codes, at most 8 bits.
        granularity: how many weights share a scale.
        scale: format of the scales.
        zero: kind of zero points.
        second: granularity of the second-level scale (f32).
    """

    code: NumberFormat
    granularity: Granularity
    scale: NumberFormat
    zero: Zero = Zero.NONE
    second: Second = Second.NONE

    def __post_init__(self) -> None:
        if self.code.bits > 8 or not (self.code.signed or self.code.is_integer):
            raise ConfigError("code", self.code.name, "an integer or a signed float of <= 8 bits")
        if self.scale.name not in SCALE_FORMATS:
            raise ConfigError("scale", self.scale.name, f"one of {', '.join(SCALE_FORMATS)}")
        if self.zero is Zero.INTEGER and (self.code.signed or not self.code.is_integer):
            raise ConfigError("zero", f"{self.code}+z", "unsigned integer codes with zero points")
        if self.zero is Zero.FLOAT and not self.code.is_integer:
            raise ConfigError("zero", f"{self.code}+zf", "integer codes with float zero points")
        if self.zero is Zero.FLOAT and self.scale.bits < 16:
            raise ConfigError("scale", self.scale.name, "f16, bf16 or f32 with float zero points")

    @classmethod
    def parse(cls, text: str | WeightScheme) -> WeightScheme:
        """Read ``CODE[+z|+zf]-GRANULARITY-SCALE[-SECOND]`` or an alias; inverse of ``str()``.

        CODE and SCALE are number formats, GRANULARITY is ``tensor``, ``channel``, ``gG`` or
        ``bNxK``, SECOND is ``tensor`` or ``channel``. ``+z`` marks integer and ``+zf`` float
        zero points. Examples: ``u4-g128-bf16``, ``u4+z-g64-f16``, ``s8-channel-f32``,
        ``e4m3fn-b128x128-f32``, ``e2m1-g16-e4m3fn-tensor`` (alias ``nvfp4``).

        Raises:
            ConfigError: the text is no scheme.
        """
        if isinstance(text, WeightScheme):
            return text
        spelled = str(text).strip().lower()
        parts = SCHEME_ALIASES.get(spelled, spelled).split("-")
        if len(parts) not in (3, 4):
            raise ConfigError(
                "scheme",
                spelled,
                "CODE[+z|+zf]-GRANULARITY-SCALE[-SECOND] or an alias that `humming formats` lists",
            )
        code, plus, zero = parts[0].partition("+")
        if zero not in ("z", "zf") if plus else False:
            raise ConfigError("zero", f"+{zero}", "+z (integer) or +zf (float)")
        if len(parts) == 4 and parts[3] not in ("tensor", "channel"):
            raise ConfigError("second", parts[3], "tensor or channel")
        return cls(
            code=number_format(code),
            granularity=Granularity.parse(parts[1]),
            scale=number_format(parts[2]),
            zero=Zero(zero),
            second=Second(parts[3] if len(parts) == 4 else ""),
        )

    def __str__(self) -> str:
        zero = f"+{self.zero.value}" if self.zero is not Zero.NONE else ""
        second = f"-{self.second.value}" if self.second is not Second.NONE else ""
        return f"{self.code}{zero}-{self.granularity}-{self.scale}{second}"

    @property
    def alias(self) -> str | None:
        """The well-known name of this scheme, if it has one."""
        return _ALIAS_OF.get(str(self))

    @property
    def midpoint(self) -> int:
        """What is subtracted from a code when no zero points are stored."""
        unsigned = self.code.is_integer and not self.code.signed
        return 1 << (self.code.bits - 1) if unsigned and self.zero is Zero.NONE else 0

    @property
    def zero_bits(self) -> int:
        """Bits of one stored zero point."""
        return {Zero.NONE: 0, Zero.INTEGER: self.code.bits, Zero.FLOAT: self.scale.bits}[self.zero]

    def bits_per_weight(self, n: int, k: int) -> float:
        """Storage of an [n, k] weight divided by n * k: codes, scales and zero points."""
        rows, columns = self.granularity.scale_shape(n, k)
        second = {Second.NONE: 0, Second.TENSOR: 1, Second.CHANNEL: n}[self.second]
        overhead = rows * columns * (self.scale.bits + self.zero_bits) + 32 * second
        return self.code.bits + overhead / max(n * k, 1)


def _integer_aliases() -> Iterable[tuple[str, str]]:
    for bits in range(1, 9):
        code = "s8" if bits == 8 else f"u{bits}"
        yield f"int{bits}-channel", f"{code}-channel-bf16"
        for group in (16, 32, 64, 128, 256):
            yield f"int{bits}-g{group}", f"{code}-g{group}-bf16"


#: Well-known names of schemes. The first name of a scheme is the one shown.
SCHEME_ALIASES: dict[str, str] = {
    "fp8": "e4m3fn-tensor-f32",
    "fp8-channel": "e4m3fn-channel-f32",
    "fp8-block": "e4m3fn-b128x128-f32",
    "mxfp4": "e2m1-g32-e8m0",
    "mxfp6-e2m3": "e2m3-g32-e8m0",
    "mxfp6-e3m2": "e3m2-g32-e8m0",
    "mxfp8": "e4m3fn-g32-e8m0",
    "mxfp8-e5m2": "e5m2-g32-e8m0",
    "mxint4": "u4-g32-bf16",
    "nvfp4": "e2m1-g16-e4m3fn-tensor",
    "q4_0": "u4-g32-f16",
    "q4_1": "u4+zf-g32-f16",
    "q5_0": "u5-g32-f16",
    "q5_1": "u5+zf-g32-f16",
    "q8_0": "s8-g32-f16",
    # K-quants: the product of a 6- or 4-bit sub-scale and an f16 super-scale is exact in f32.
    "q2_k": "u2+zf-g16-f32",
    "q3_k": "u3-g16-f32",
    "q4_k": "u4+zf-g32-f32",
    "q5_k": "u5+zf-g32-f32",
    "q6_k": "u6-g16-f32",
    "bitnet": "s2-tensor-f32",
    **dict(_integer_aliases()),
}

_ALIAS_OF: dict[str, str] = {}
for _alias, _text in SCHEME_ALIASES.items():
    _ALIAS_OF.setdefault(_text, _alias)
