"""float64 operations that NumPy lacks: fma, and the directed rounding modes.

PTX ISA 9.0, 9.7.3. Kernels use them rarely, so they compute with Python's integers, element by
element: a finite float64 is an integer times a power of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["rounded"]

Bits = npt.NDArray[Any]

_PRECISION = 53
_SMALLEST = -1074
_LARGEST = math.ldexp(2.0 - 2.0**-52, 1023)


def rounded(op: str, mode: str) -> Callable[..., Bits]:
    """`op` in rounding mode `mode`, on uint64 bit patterns ``[n]``.

    Args:
        op: add, sub, mul, fma, div, rcp or sqrt.
        mode: rn, rz, rm or rp.

    Raises:
        KeyError: no such operation.
    """
    compute = _OPERATIONS[op]
    ieee = _IEEE[op]

    def element(*operands: float) -> float:
        if all(map(math.isfinite, operands)):
            exact = compute(*operands)
            if exact:
                return _round(exact, mode)
            if exact is not None:
                return _zero(op, mode, operands)
        # Infinities, NaN and division by zero do not depend on the mode.
        return float(ieee(*map(np.float64, operands)))

    def run(*operands: Bits) -> Bits:
        columns = np.broadcast_arrays(*operands)
        rows = zip(*(column.view(np.float64).tolist() for column in columns), strict=True)
        result = np.array([element(*row) for row in rows], dtype=np.float64)
        return result.view(np.uint64)

    return run


def _round(exact: Fraction, mode: str) -> float:
    """The float64 that `exact`, not zero, rounds to."""
    negative, size = exact < 0, abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    ulp = max(exponent - _PRECISION + 1, _SMALLEST)
    kept, rest = divmod(size / Fraction(2) ** ulp, 1)
    up = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and kept % 2 == 1),
        "rz": False,
        "rp": rest > 0 and not negative,
        "rm": rest > 0 and negative,
    }[mode]
    try:
        result = math.ldexp(kept + up, ulp)
    except OverflowError:
        outwards = mode == "rn" or mode == ("rm" if negative else "rp")
        result = math.inf if outwards else _LARGEST
    return -result if negative else result


def _zero(op: str, mode: str, operands: tuple[float, ...]) -> float:
    """The sign of an exact zero result (IEEE 754, 6.3)."""
    if op in ("add", "sub", "fma"):
        signs = [math.copysign(1.0, value) for value in operands]
        terms = {
            "add": signs,
            "sub": [signs[0], -signs[-1]],
            "fma": [signs[0] * signs[1], signs[-1]],
        }[op]
        negative = (max if mode == "rm" else min)(x < 0 for x in terms)
        return -0.0 if negative else 0.0
    return float(_IEEE[op](*map(np.float64, operands)))


def _divide(x: float, y: float) -> Fraction | None:
    return Fraction(x) / Fraction(y) if y else None


def _root(x: float) -> Fraction | None:
    """A fraction that rounds as the square root does: its integer part, and a sticky bit."""
    if x < 0:
        return None
    value = Fraction(x)
    shift = 4 * _PRECISION + 2 * 1074
    scaled = (value.numerator << shift) // value.denominator
    root = math.isqrt(scaled)
    return Fraction(2 * root + (root * root != scaled), 1 << (shift // 2 + 1))


_OPERATIONS: dict[str, Callable[..., Fraction | None]] = {
    "add": lambda x, y: Fraction(x) + Fraction(y),
    "sub": lambda x, y: Fraction(x) - Fraction(y),
    "mul": lambda x, y: Fraction(x) * Fraction(y),
    "fma": lambda x, y, z: Fraction(x) * Fraction(y) + Fraction(z),
    "div": _divide,
    "rcp": lambda x: _divide(1.0, x),
    "sqrt": _root,
}

_IEEE: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "fma": lambda x, y, z: x * y + z,
    "div": np.divide,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
}
