"""Acme's number format."""

from __future__ import annotations

from humming.formats.number import Kind, NumberFormat, Specials

__all__ = ["ACME8"]

#: e4m3 with every code finite and the exponent shifted by 4: 2^-13 up to 30.
ACME8 = NumberFormat(
    name="acme8",
    kind=Kind.FLOAT,
    signed=True,
    exponent=4,
    mantissa=3,
    bias=11,
    specials=Specials.NONE,
    aliases=("acme_float8",),
)
