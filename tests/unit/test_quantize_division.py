"""Why the quantizing kernel may divide 16-bit numbers with an error of 2^-43; see codes.cuh.

A code of x / d is that of x / d rounded to f32 first. Another quotient leads to the same code if
both lie on the same side of every tie of codes, and are on it together. That fails only where the
exact quotient is next to the middle between a tie and its neighbour in f32, within the error.
"""

from __future__ import annotations

import pytest
import torch

from humming.formats.table import number_format
from humming.formats.tensors import decode

#: A code of eight bits has ties of at most so many significant bits.
_TIE_BITS = 9
#: The error is 2^-43; of integers, as fractions take ten times as long.
_ERROR_BITS = 43
_JUST_BELOW = 2**24 - 1


def middles() -> list[int]:
    """Significands of all numbers half way between a tie and its neighbours in f32."""
    found = []
    for bits in range(1, _TIE_BITS + 1):
        for tie in range(1 << (bits - 1), 1 << bits):
            scaled = tie << (25 - bits)  # a multiple of 2: f32 has 24 bits
            below = 2 * scaled - 1 if tie == 1 << (bits - 1) else 2 * (scaled - 1)
            found += [2 * (scaled + 1), below]
    return sorted(set(found))


def nearest_divisors(dividend: int, middle: int) -> list[tuple[int, int]]:
    """Divisors of 24 bits around dividend / middle, each with its power of two."""
    shift = 0
    while (dividend << shift) // middle < 1 << 23:
        shift += 1
    below = (dividend << shift) // middle
    return [(d, shift) for d in (below, below + 1) if 1 << 23 <= d < 1 << 24]


@pytest.mark.parametrize("bits", [8, 11])
def test_no_quotient_is_near_a_middle_unless_the_divisor_is_just_below_a_power(bits: int) -> None:
    near = set()
    places = middles()
    for dividend in range(1 << (bits - 1), 1 << bits):
        for middle in places:
            for divisor, shift in nearest_divisors(dividend, middle):
                wanted = dividend << shift
                if abs(wanted - divisor * middle) << _ERROR_BITS <= wanted:
                    near.add(divisor)
    assert near == {_JUST_BELOW}  # which the kernel leaves to a real division


def test_ties_of_all_formats_of_codes_have_that_few_bits() -> None:
    for name in ("s8", "s6", "s4", "e4m3fn", "e5m2", "e3m4", "e2m3", "e3m2", "e2m1", "e0m3"):
        fmt = number_format(name)
        grid = decode(torch.arange(1 << fmt.bits, dtype=torch.uint8), fmt, torch.float64)
        grid = grid[grid.isfinite()].abs().unique()
        ties = ((grid[1:] + grid[:-1]) / 2).tolist()
        for tie in ties:
            significand = tie.as_integer_ratio()[0]
            while significand % 2 == 0:
                significand //= 2
            assert significand.bit_length() <= _TIE_BITS, name
