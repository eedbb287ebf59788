"""Sums and products with one rounding, in any mode, for f16, bf16 and f32.

PTX ISA 9.0, 9.7.3 to 9.7.5. Values travel as float64, which holds every operand and every product
exactly. A sum that float64 would round is *rounded to odd* instead: its last bit records that
something was lost and on which side, so that rounding it once more, to at most 24 bits and in any
mode, gives what one rounding of the exact sum would have given.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["odd_sum", "to_odd_float32"]

Float64 = npt.NDArray[np.float64]
Array = npt.NDArray[Any]


def odd_sum(x: Array, y: Array) -> Float64:
    """``x + y`` for float64 arrays, rounded to odd: exact, or an odd neighbour of the exact sum.

    Infinities and NaN come out as IEEE addition gives them.
    """
    total = x + y
    rest = _error(x, y, total)
    if rest.any():
        # A NaN error belongs to an infinite or NaN total: not a lost part.
        lost = (rest > 0) | (rest < 0)
        outwards = (rest > 0) == (total > 0)
        _make_odd(total.view(np.int64), lost, outwards)
    return total


def _error(x: Array, y: Array, total: Float64) -> Float64:
    """What rounding lost: exactly ``x + y - total`` (Knuth's two-sum)."""
    virtual = total - x
    return (x - (total - virtual)) + (y - virtual)


def to_odd_float32(x: Float64) -> npt.NDArray[np.float32]:
    """`x` as float32, rounded to odd: good for one more rounding to at most 22 bits."""
    near = x.astype(np.float32)
    back = near.astype(np.float64)
    if (back != x).any():
        lost = (x > back) | (x < back)
        _make_odd(near.view(np.int32), lost, np.abs(x) > np.abs(back))
    return near


def _make_odd(bits: Array, lost: Array, outwards: Array) -> None:
    """Move even codes that lost something to the neighbour on the side of the exact value."""
    even = lost & ((bits & 1) == 0)
    bits += np.where(even, np.where(outwards, 1, -1), 0).astype(bits.dtype)
