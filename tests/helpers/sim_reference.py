"""Slow, obvious arithmetic on codes: the second opinion on humming_sim's numbers.

Every value is a Fraction, rounding looks at its two neighbours, and nothing here is shared with
the code under test.
"""

from __future__ import annotations

import math
from fractions import Fraction

#: Exponent bits, mantissa bits, and whether the format has infinities.
LAYOUT = {
    "f16": (5, 10, True),
    "bf16": (8, 7, True),
    "f32": (8, 23, True),
    "f64": (11, 52, True),
    "e5m2": (5, 2, True),
    "e4m3": (4, 3, False),
    "e3m4": (3, 4, False),
}
#: What hardware returns for NaN.
CANONICAL = {
    "f16": 0x7FFF,
    "bf16": 0x7FFF,
    "f32": 0x7FFFFFFF,
    "e5m2": 0x7F,
    "e4m3": 0x7F,
    "e3m4": 0x7F,
}


def fields(name: str, code: int) -> tuple[int, int, int]:
    exponent, mantissa, _ = LAYOUT[name]
    return (
        code >> (exponent + mantissa) & 1,
        code >> mantissa & ((1 << exponent) - 1),
        code & ((1 << mantissa) - 1),
    )


def value(name: str, code: int) -> Fraction | float:
    """A Fraction for finite codes, else a float infinity or NaN. Zeros lose their sign."""
    exponent, mantissa, infinite = LAYOUT[name]
    sign, field, fraction = fields(name, code)
    bias = 2 ** (exponent - 1) - 1
    top = field == (1 << exponent) - 1
    if top and infinite:
        return math.nan if fraction else (-math.inf if sign else math.inf)
    if top and fraction == (1 << mantissa) - 1:
        return math.nan
    magnitude = (
        (1 + Fraction(fraction, 1 << mantissa)) * Fraction(2) ** (field - bias)
        if field
        else Fraction(fraction, 1 << mantissa) * Fraction(2) ** (1 - bias)
    )
    return -magnitude if sign else magnitude


def finite(name: str, code: int) -> Fraction:
    result = value(name, code)
    assert isinstance(result, Fraction), f"{code:#x} of {name} is not finite"
    return result


def magnitude_code(name: str, size: Fraction) -> tuple[int, Fraction]:
    """The code of the largest value not above `size`, and what is left, in units of its step."""
    exponent, mantissa, _ = LAYOUT[name]
    bias = 2 ** (exponent - 1) - 1
    binade = 1 - bias
    if size >= Fraction(2) ** binade:
        binade = math.floor(math.log2(size.numerator) - math.log2(size.denominator))
        binade += (size >= Fraction(2) ** (binade + 1)) - (size < Fraction(2) ** binade)
    steps = size / Fraction(2) ** (binade - mantissa)
    whole = int(steps)
    return whole + ((binade + bias - 1) << mantissa), steps - whole


def rounded(name: str, exact: Fraction, mode: str = "rn") -> int:
    """The code that `exact`, not zero, rounds to."""
    exponent, mantissa, infinite = LAYOUT[name]
    code, rest = magnitude_code(name, abs(exact))
    negative = exact < 0
    half = Fraction(1, 2)
    if mode == "rn":
        code += rest > half or (rest == half and code % 2 == 1)
    elif mode == "rna":
        code += rest >= half
    elif mode in ("rp", "rm"):
        code += rest > 0 and negative == (mode == "rm")
    top = ((1 << exponent) - 1) << mantissa if infinite else (1 << (exponent + mantissa)) - 1
    if code >= top:
        towards_zero = mode == "rz" or (mode == "rp" and negative)
        towards_zero = towards_zero or (mode == "rm" and not negative)
        code = top - 1 if towards_zero else top
    return code | negative << (exponent + mantissa)


def zero(name: str, negative: bool) -> int:
    exponent, mantissa, _ = LAYOUT[name]
    return int(negative) << (exponent + mantissa)


def fma(name: str, a: int, b: int, c: int, mode: str = "rn") -> int:
    """One rounding of ``a * b + c``, all operands finite codes."""
    x, y, z = (finite(name, code) for code in (a, b, c))
    exact = x * y + z
    if exact:
        return rounded(name, exact, mode)
    product = fields(name, a)[0] ^ fields(name, b)[0]
    addend = fields(name, c)[0]
    return zero(name, bool(product | addend if mode == "rm" else product & addend))


def add(name: str, a: int, b: int, mode: str = "rn") -> int:
    """One rounding of ``a + b``, finite codes."""
    x, y = finite(name, a), finite(name, b)
    if x + y:
        return rounded(name, x + y, mode)
    first, second = fields(name, a)[0], fields(name, b)[0]
    return zero(name, bool(first | second if mode == "rm" else first & second))


def multiply(name: str, a: int, b: int, mode: str = "rn") -> int:
    """One rounding of ``a * b``, finite codes."""
    x, y = finite(name, a), finite(name, b)
    sign = fields(name, a)[0] ^ fields(name, b)[0]
    return rounded(name, x * y, mode) if x * y else zero(name, bool(sign))


def divide(name: str, a: int, b: int, mode: str = "rn") -> int:
    """One rounding of ``a / b``, finite codes, `b` not zero."""
    x, y = finite(name, a), finite(name, b)
    sign = fields(name, a)[0] ^ fields(name, b)[0]
    return rounded(name, x / y, mode) if x else zero(name, bool(sign))


def square_root(name: str, a: int, mode: str = "rn") -> int:
    """One rounding of the root of a positive finite code: the code whose square brackets it."""
    x = finite(name, a)
    # A root to 200 bits, moved off every tie by the sign of its error.
    scaled = math.isqrt((x.numerator << 2600) // x.denominator)
    exact = Fraction(scaled, 1 << 1300)
    if exact * exact != x:
        exact += Fraction(1, 1 << 1301)
    return rounded(name, exact, mode)
