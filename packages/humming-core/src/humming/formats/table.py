"""The rows: every number format by name, and every spelling it goes by.

A format is added by adding a row here, or by a plugin through ``humming_register_formats``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from humming.errors import ConfigError
from humming.formats.number import Kind, NumberFormat, Specials

__all__ = ["SCALE_FORMATS", "all_formats", "number_format", "register_format"]


def _float(  # budget: the columns of a row
    name: str,
    exponent: int,
    mantissa: int,
    specials: Specials,
    *aliases: str,
    signed: bool = True,
    bias: int | None = None,
) -> NumberFormat:
    return NumberFormat(
        name=name,
        kind=Kind.FLOAT,
        signed=signed,
        exponent=exponent,
        mantissa=mantissa,
        bias=(1 << (exponent - 1)) - 1 if bias is None else bias,
        specials=specials,
        aliases=aliases,
    )


def _integer(name: str, bits: int, signed: bool) -> NumberFormat:
    long = f"{'int' if signed else 'uint'}{bits}"
    aliases = (long, f"torch.{long}")
    return NumberFormat(
        name=name,
        kind=Kind.INTEGER,
        signed=signed,
        mantissa=bits - int(signed),
        aliases=aliases,
    )


def _magnitude(mantissa: int) -> NumberFormat:
    # The peer's spelling, float4e0m3, is kept as an alias: its checkpoints carry it.
    return NumberFormat(
        name=f"e0m{mantissa}",
        kind=Kind.MAGNITUDE,
        signed=True,
        mantissa=mantissa,
        aliases=(f"float{mantissa + 1}e0m{mantissa}", f"float{mantissa + 1}_e0m{mantissa}"),
    )


_ROWS: tuple[NumberFormat, ...] = (
    *(_integer(f"s{bits}", bits, True) for bits in range(1, 9)),
    *(_integer(f"u{bits}", bits, False) for bits in range(1, 9)),
    *(_magnitude(mantissa) for mantissa in range(1, 8)),
    # OCP Microscaling Formats 1.0, section 5.3: the FP4 and FP6 elements have no specials.
    _float("e2m1", 2, 1, Specials.NONE, "fp4", "fp4_e2m1", "float4", "float4_e2m1",
           "float4e2m1", "float4_e2m1fn", "float4_e2m1fn_x2", "f4"),
    _float("e2m3", 2, 3, Specials.NONE, "fp6_e2m3", "float6_e2m3", "float6e2m3",
           "float6_e2m3fn", "f6_e2m3"),
    _float("e3m2", 3, 2, Specials.NONE, "fp6_e3m2", "float6_e3m2", "float6e3m2",
           "float6_e3m2fn", "f6_e3m2"),
    # Undocumented e3m4 of tensor cores: finite up to 30, so only all-ones is NaN. ml_dtypes'
    # float8_e3m4 is another format (IEEE specials, up to 15.5) and is no alias.
    _float("e3m4", 3, 4, Specials.NAN_ONLY, "float8e3m4"),
    # OCP 8-bit Floating Point 1.0. Checkpoints that write "e4m3" mean this one.
    _float("e4m3fn", 4, 3, Specials.NAN_ONLY, "e4m3", "fp8", "fp8_e4m3", "float8", "float8_e4m3",
           "float8e4m3", "float8_e4m3fn", "f8_e4m3"),
    _float("e5m2", 5, 2, Specials.IEEE, "fp8_e5m2", "float8_e5m2", "float8e5m2", "f8_e5m2"),
    _float("e4m3fnuz", 4, 3, Specials.FNUZ, "float8_e4m3fnuz", "fp8_e4m3fnuz", bias=8),
    _float("e5m2fnuz", 5, 2, Specials.FNUZ, "float8_e5m2fnuz", "fp8_e5m2fnuz", bias=16),
    # Scale formats without a sign. OCP MX 1.0 section 5.4.1: 255 is NaN, there is no zero.
    _float("e8m0", 8, 0, Specials.NAN_ONLY, "ue8m0", "float8_e8m0fnu", "float8e8m0", "f8_e8m0",
           signed=False),
    _float("e5m3", 5, 3, Specials.NAN_ONLY, "ue5m3", "float8e5m3", signed=False),
    _float("f16", 5, 10, Specials.IEEE, "float16", "half", "fp16"),
    _float("bf16", 8, 7, Specials.IEEE, "bfloat16"),
    _float("f32", 8, 23, Specials.IEEE, "float32", "float", "fp32"),
)  # fmt: skip

#: Names of the formats that weight and activation scales may have.
SCALE_FORMATS = ("e8m0", "e4m3fn", "e5m2", "e5m3", "f16", "bf16", "f32")

_GENERIC = re.compile(r"e([1-7])m([1-7])")
#: dtype objects of ml_dtypes that have their own meaning: IEEE specials, e4m3 up to 240. As a
#: word in a config, float8_e4m3 is an alias of e4m3fn.
_OTHER_DTYPES = ("float8_e4m3", "float8_e3m4")
_BY_NAME: dict[str, NumberFormat] = {}
_FORMATS: dict[str, NumberFormat] = {}


def register_format(fmt: NumberFormat) -> None:
    """Add `fmt` under its name and aliases; the identical row again does nothing.

    Raises:
        ConfigError: a name or alias is taken by another row.
    """
    spellings = (fmt.name, *fmt.aliases)
    for spelling in spellings:
        if _BY_NAME.get(spelling.lower(), fmt) != fmt:
            taken = _BY_NAME[spelling.lower()]
            raise ConfigError("format", spelling, f"a name not taken by {taken!r}")
    _FORMATS[fmt.name] = fmt
    _BY_NAME.update({spelling.lower(): fmt for spelling in spellings})


def all_formats() -> Iterator[NumberFormat]:
    """Every registered format, in table order."""
    return iter(tuple(_FORMATS.values()))


def number_format(spelling: object) -> NumberFormat:
    """The format that `spelling` names.

    Accepts a NumberFormat, a canonical name, an alias, a torch or NumPy dtype, and any signed
    ``eXmY`` of up to 8 bits: such a generic format has no NaN and no Inf, and bias 2^(X-1) - 1.

    Raises:
        ConfigError: no format has that name.
    """
    if isinstance(spelling, NumberFormat):
        return spelling
    text = str(spelling).strip().lower().removeprefix("torch.")
    if text in _BY_NAME and not (isinstance(spelling, np.dtype) and text in _OTHER_DTYPES):
        return _BY_NAME[text]
    match = _GENERIC.fullmatch(text)
    if match:
        exponent, mantissa = int(match[1]), int(match[2])
        if 1 + exponent + mantissa <= 8:
            return _float(text, exponent, mantissa, Specials.NONE)
    raise ConfigError(
        "format", str(spelling), "a name that `humming formats` lists, or eXmY of up to 8 bits"
    )


for _row in _ROWS:
    register_format(_row)
