"""Which lane and register holds which matrix element, for every mma.sync and wgmma shape.

PTX ISA 9.0, 9.7.14.5.1 to 9.7.14.5.13 (mma), 9.7.14.6.2 (sparse mma) and 9.7.15.5.1.1 (wgmma). All
but mma.m8n8k4.f16 follow one rule. With g = lane / 4, t = lane % 4 and E elements per register:

- A: a register holds E neighbouring k of one row; successive registers go down by 8 rows first,
  then right by 4 * E.
- B: the same for columns, with one block of 8.
- C and D: element i lies in row g + 8 * (i / 2 % 2) and column 8 * (i / 4) + 2 * t + i % 2.

One warp's part of a wgmma is the same with 16 rows; N may be up to 256.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.matrices.packing import pack, unpack

__all__ = [
    "LANES",
    "FragmentMap",
    "a_map",
    "accumulator_map",
    "b_map",
    "quad_pair_maps",
]

LANES = 32


@dataclass(frozen=True, eq=False)
class FragmentMap:
    """A bijection between the elements in one warp's registers and those of its matrices.

    Attributes:
        bits: width of an element.
        registers: registers per lane, of 32 bits (64 for 64-bit elements).
        shape: rows and columns of one matrix.
        source: for each element of the warp's matrices, row by row, where it is in [lane, register,
            element of the register] flattened; int64 [matrices * rows * columns].
        target: the inverse.
    """

    bits: int
    registers: int
    shape: tuple[int, int]
    source: npt.NDArray[np.int64]
    target: npt.NDArray[np.int64]

    @property
    def word(self) -> type[np.unsignedinteger[Any]]:
        """Type of a register."""
        return np.uint64 if self.bits == 64 else np.uint32

    def matrices(self, fragments: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Registers [W, 32, R] to element bits [W * matrices, rows, columns]."""
        flat = unpack(fragments, self.bits).reshape(len(fragments), -1)
        return np.take(flat, self.source, axis=1).reshape(-1, *self.shape)

    def fragments(self, matrices: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Element bits [W * matrices, rows, columns] to registers [W, 32, R]."""
        flat = np.take(matrices.reshape(-1, len(self.target)), self.target, axis=1)
        return pack(flat.reshape(len(flat), LANES, -1), self.bits, self.word)


def _map(bits: int, shape: tuple[int, int], matrix: Any, row: Any, column: Any) -> FragmentMap:
    """A map from coordinates of each [lane, element] (arrays that broadcast)."""
    rows, columns = shape
    target = np.asarray((matrix * rows + row) * columns + column, np.int64)
    per_lane = target.shape[1]
    flat = target.ravel()
    registers = per_lane * bits // (64 if bits == 64 else 32)
    return FragmentMap(bits, registers, shape, np.argsort(flat), flat)


def _lanes(elements: int) -> tuple[npt.NDArray[np.int64], ...]:
    """g, t and the element's index, as arrays that broadcast to [32, elements]."""
    lane = np.arange(LANES)[:, None]
    return lane // 4, lane % 4, np.arange(elements)[None, :]


def _per_register(bits: int) -> int:
    return 1 if bits == 64 else 32 // bits


@cache
def a_map(m: int, k: int, bits: int) -> FragmentMap:
    """Row-major A of m (8 or 16) by k elements; a sparse A by its k / 2 stored ones."""
    each = _per_register(bits)
    g, t, i = _lanes(m * k // LANES)
    register, inside = i // each, i % each
    blocks = m // 8
    row = g + 8 * (register % blocks)
    column = t * each + inside + 4 * each * (register // blocks)
    return _map(bits, (m, k), 0, row, column)


@cache
def b_map(k: int, n: int, bits: int) -> FragmentMap:
    """Column-major B of k by n = 8 elements."""
    each = _per_register(bits)
    g, t, i = _lanes(k * n // LANES)
    row = t * each + i % each + 4 * each * (i // each)
    return _map(bits, (k, n), 0, row, g)


@cache
def accumulator_map(m: int, n: int, bits: int) -> FragmentMap:
    """C or D of m (8 or 16) by n elements; `bits` is 16, 32 or 64."""
    g, t, i = _lanes(m * n // LANES)
    blocks = m // 8
    row = g + 8 * (i // 2 % blocks)
    column = 8 * (i // (2 * blocks)) + 2 * t + i % 2
    return _map(bits, (m, n), 0, row, column)


@cache
def quad_pair_maps(
    a_layout: str, b_layout: str, bits: int
) -> tuple[FragmentMap, FragmentMap, FragmentMap]:
    """A, B and accumulator of mma.m8n8k4.f16 (9.7.14.5.1): four 8x8x4 products per warp.

    Product q belongs to lanes 4q to 4q + 3 and 16 + 4q to 16 + 4q + 3.

    Args:
        a_layout: "row" or "col".
        b_layout: "row" or "col".
        bits: 16 or 32, of an accumulator element.
    """
    lane = np.arange(LANES)[:, None]
    product, high = lane % 16 // 4, lane // 16 * 4
    i = np.arange(4)[None, :]
    own, others = lane % 4 + high + 0 * i, i + high
    across, along = lane % 4 + 0 * i, i + 0 * lane
    a_row, a_column = (own, along) if a_layout == "row" else (others, across)
    b_row, b_column = (along, own) if b_layout == "col" else (across, others)
    i = np.arange(8)[None, :]
    if bits == 16:
        row, column = lane % 4 + high + 0 * i, i + 0 * lane
    else:
        row, column = (lane & 1) + (i & 2) + high, (i & 4) + (lane & 2) + (i & 1)
    return (
        _map(16, (8, 4), product, a_row, a_column),
        _map(16, (4, 8), product, b_row, b_column),
        _map(bits, (8, 8), product, row, column),
    )
