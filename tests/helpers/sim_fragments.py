"""Where matrix elements lie in a warp's registers, as the PTX manual's formulas say it per shape.

Written from the manual (PTX ISA 9.0, 9.7.14.3, 9.7.14.5 and 9.7.14.6), apart from the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Formula = Callable[[int, int, int], tuple[int, int]]

# Each formula takes (g, t, i): %laneid >> 2, %laneid % 4 and the element's index in the thread, and
# gives (row, column), written as the manual does (PTX ISA 9.0, 9.7.14.5.2 to 9.7.14.5.13).
A_FORMULAS: dict[tuple[int, int, int], Formula] = {
    (8, 4, 64): lambda g, t, i: (g, t),
    (8, 16, 8): lambda g, t, i: (g, t * 4 + i),
    (8, 32, 4): lambda g, t, i: (g, t * 8 + i),
    (8, 128, 1): lambda g, t, i: (g, t * 32 + i),
    (16, 4, 32): lambda g, t, i: (g if i == 0 else g + 8, t),
    (16, 4, 64): lambda g, t, i: (g if i == 0 else g + 8, t),
    (16, 8, 16): lambda g, t, i: (g if i in (0, 1) else g + 8, t * 2 + (i & 1)),
    (16, 8, 32): lambda g, t, i: (g if i in (0, 2) else g + 8, t if i in (0, 1) else t + 4),
    (16, 8, 64): lambda g, t, i: (g if i in (0, 2) else g + 8, t if i in (0, 1) else t + 4),
    (16, 16, 16): lambda g, t, i: (
        g if 0 <= i < 2 or 4 <= i < 6 else g + 8,
        t * 2 + (i & 1) + (0 if i < 4 else 8),
    ),
    (16, 16, 64): lambda g, t, i: (
        g if i % 2 == 0 else g + 8,
        i * 2 + t if i % 2 == 0 else i * 2 - 2 + t,
    ),
    (16, 16, 8): lambda g, t, i: (g if i < 4 else g + 8, t * 4 + (i & 3)),
    (16, 32, 4): lambda g, t, i: (g if i < 8 else g + 8, t * 8 + (i & 7)),
    (16, 32, 8): lambda g, t, i: (
        g if 0 <= i < 4 or 8 <= i < 12 else g + 8,
        t * 4 + (i & 3) + (0 if i < 8 else 16),
    ),
    (16, 64, 4): lambda g, t, i: (
        g if 0 <= i < 8 or 16 <= i < 24 else g + 8,
        t * 8 + (i & 7) + (0 if i < 16 else 32),
    ),
    (16, 128, 1): lambda g, t, i: (g if i < 32 else g + 8, t * 32 + (i & 31)),
    (16, 256, 1): lambda g, t, i: (
        g if i < 32 or 64 <= i < 96 else g + 8,
        t * 32 + (i & 31) + (0 if i < 64 else 128),
    ),
}

B_FORMULAS: dict[tuple[int, int], Formula] = {
    (4, 64): lambda g, t, i: (t, g),
    (8, 64): lambda g, t, i: (t if i == 0 else t + 4, g),
    (16, 64): lambda g, t, i: (t + i * 4, g),
    (4, 32): lambda g, t, i: (t, g),
    (8, 32): lambda g, t, i: (t if i == 0 else t + 4, g),
    (8, 16): lambda g, t, i: (t * 2 + i, g),
    (16, 16): lambda g, t, i: (t * 2 + (i & 1) + (0 if i < 2 else 8), g),
    (16, 8): lambda g, t, i: (t * 4 + i, g),
    (32, 8): lambda g, t, i: (t * 4 + (i & 3) + (0 if i < 4 else 16), g),
    (32, 4): lambda g, t, i: (t * 8 + (i & 7), g),
    (64, 4): lambda g, t, i: (t * 8 + (i & 7) + (0 if i < 8 else 32), g),
    (128, 1): lambda g, t, i: (t * 32 + i, g),
    (256, 1): lambda g, t, i: (t * 32 + (i & 31) + (0 if i < 32 else 128), g),
    # Sparse shapes have twice the k: figures 121, 124, 132 to 135 and 142 to 145.
    (32, 16): lambda g, t, i: (t * 2 + (i & 1) + 8 * (i // 2), g),
    (16, 32): lambda g, t, i: (t + 4 * i, g),
    (64, 8): lambda g, t, i: (t * 4 + (i & 3) + 16 * (i // 4), g),
    (128, 4): lambda g, t, i: (t * 8 + (i & 7) + 32 * (i // 8), g),
}

ACCUMULATOR_FORMULAS: dict[tuple[int, int], Formula] = {
    (8, 8): lambda g, t, i: (g, t * 2 + i),
    (16, 8): lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    # wgmma, figure 149: four elements per 8 columns.
    (16, 256): lambda g, t, i: (g if i % 4 < 2 else g + 8, 8 * (i // 4) + t * 2 + (i & 1)),
    (16, 24): lambda g, t, i: (g if i % 4 < 2 else g + 8, 8 * (i // 4) + t * 2 + (i & 1)),
}


def element(registers: Any, index: int, bits: int) -> int:
    """Element `index` of one lane's registers, low bits first."""
    per_register = (64 if bits == 64 else 32) // bits
    word = int(registers[index // per_register])
    return word >> index % per_register * bits & (1 << bits) - 1


def quad_pair(lane: int) -> tuple[int, int]:
    """Which of the four products of m8n8k4 a lane works on, and 4 if it is in the high group."""
    for product in range(4):
        low = range(4 * product, 4 * product + 4)
        high = range(16 + 4 * product, 20 + 4 * product)
        if lane in low or lane in high:
            return product, 4 * (lane in high)
    raise AssertionError(lane)


def quad_pair_element(operand: str, layout: str, lane: int, i: int) -> tuple[int, int]:
    """Row and column by the formulas of 9.7.14.5.1."""
    _, high = quad_pair(lane)
    if operand == "a":
        return (lane % 4 + high, i) if layout == "row" else (i % 4 + high, lane % 4)
    if operand == "b":
        return (lane % 4, i + high) if layout == "row" else (i, lane % 4 + high)
    if layout == "f16":
        return lane % 4 + high, i
    return (lane & 1) + (i & 2) + high, (i & 4) + (lane & 2) + (i & 1)


def metadata_place(k: int, bits: int, row: int, chunk: int, selector: int) -> tuple[int, int]:
    """Lane and lowest bit of a chunk's nibble: figures 119, 122, 125, 127, 129, 136 to 147."""
    g, below = row % 8, row >= 8
    if (k, bits) in ((16, 16), (8, 32)):
        return 4 * g + selector, 16 * below + 4 * chunk
    if (k, bits) in ((32, 16), (16, 32)):
        return 4 * g + 2 * selector + (chunk >= 4), 16 * below + 4 * (chunk % 4)
    if (k, bits) in ((32, 8), (64, 4)):
        return 4 * g + 2 * selector + below, 4 * chunk
    return 4 * g + below + 2 * (chunk >= 8), 4 * (chunk % 8)
