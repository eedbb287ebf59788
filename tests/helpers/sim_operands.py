"""Canonical layouts of matrix operands, written from the CuTe expressions of the manual.

PTX ISA 9.0, 9.7.15.5.1.2; apart from the simulator's own formulas.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class LayoutLike(Protocol):
    """What the formulas need of a layout."""

    swizzle: str
    major: str
    leading: int
    stride: int


#: Swizzle<B, M, S> of each mode (PTX ISA 9.0, 9.7.15.5.1.2.1.3; CUTLASS for the 32-byte atoms).
CUTE = {
    "none": (0, 4, 3),
    "32B": (1, 4, 3),
    "64B": (2, 4, 3),
    "128B": (3, 4, 3),
    "128B_32B": (2, 5, 2),
}
SPAN = {"none": 16, "32B": 32, "64B": 64, "128B": 128, "128B_32B": 128}


def cute_swizzle(address: int, bits: int, base: int, shift: int) -> int:
    """XOR bits [base + shift, + bits) of an address into bits [base, + bits)."""
    for bit in range(bits):
        address ^= (address >> base + shift + bit & 1) << base + bit
    return address


def cute_offset(layout: LayoutLike, row: int, k: int, size: int) -> int:
    """Byte offset of one element by the manual's table of canonical layouts; `size` in bytes.

    T is the elements of 16 bytes; LBO and SBO are bytes.
    """
    each = 16 // size
    lbo, sbo = layout.leading, layout.stride
    wide = SPAN[layout.swizzle] // 16
    if layout.major == "K":
        # ((8, m), (T, 2k)) : ((wide T, SBO), (1, T or LBO))
        step = lbo if layout.swizzle == "none" else 16
        return row % 8 * wide * 16 + row // 8 * sbo + k % each * size + k // each * step
    group = 4 if layout.swizzle == "128B_32B" else 8
    inner = row % each * size
    if layout.swizzle == "none":
        # ((T, 1, m), (8, k)) : ((1, T, SBO), (1T, LBO))
        return inner + row // each * sbo + k % 8 * 16 + k // 8 * lbo
    # ((T, wide, m), (8, k)) : ((1, T, LBO), (wide T, SBO))
    chunk = row // each
    outer = chunk % wide * 16 + chunk // wide * lbo
    return inner + outer + k % group * wide * 16 + k // group * sbo


def write(memory: Any, start: int, layout: LayoutLike, matrix: Any, bits: int) -> None:
    """Put element bits [rows, k] of 8, 16 or 32 bits into bytes, at address `start` of them."""
    size = bits // 8
    for row, k in np.ndindex(matrix.shape):
        linear = start + cute_offset(layout, row, k, size)
        address = cute_swizzle(linear, *CUTE[layout.swizzle])
        memory[address : address + size] = list(int(matrix[row, k]).to_bytes(size, "little"))
