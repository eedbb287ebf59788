"""Structured sparse A of mma.sp: stored elements and metadata to a dense A.

PTX ISA 9.0, 9.7.14.6.1 (sparse matrix storage) and 9.7.14.6.2 (metadata fragments). Four bits of
metadata describe a chunk: two of four elements; one of two tf32; two pairs of eight 4-bit elements.
A chunk's row and place in the row give the lane of its quad and the bits of that lane's word.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Sparsity", "expand", "lint_selector", "sparsity", "unusable_chunks"]

_ROWS = 16
#: Metadata of 1:2 tf32 chunks and where the stored element goes.
_ONE_OF_TWO = {0b0100: 0, 0b1110: 1}


@dataclass(frozen=True)
class Sparsity:
    """How the metadata of one instruction is spread.

    Attributes:
        k: elements of a row of A, zeros included.
        bits: width of a stored element.
        chunk: elements that one nibble of metadata describes.
        lanes: lanes of a quad that contribute metadata.
        selectors: values that the sparsity selector may have.
    """

    k: int
    bits: int
    chunk: int
    lanes: int

    @property
    def selectors(self) -> range:
        """Values that the sparsity selector may have."""
        return range(4 // self.lanes)


@cache
def sparsity(k: int, bits: int) -> Sparsity:
    """The metadata of an mma.sp of depth k over stored elements of `bits` (4, 8, 16, 32) bits."""
    chunk = {4: 8, 8: 4, 16: 4, 32: 2}[bits]
    return Sparsity(k, bits, chunk, lanes=_ROWS * (k // chunk) * 4 // (8 * 32))


def lint_selector(spec: Sparsity, selector: int) -> list[str]:
    """What is wrong with a sparsity selector, a sentence each."""
    if selector in spec.selectors:
        return []
    return [f"sparsity selector is {selector}, expected {spec.selectors.stop - 1} at most"]


def _nibbles(
    spec: Sparsity, metadata: npt.NDArray[np.uint32], selector: int
) -> npt.NDArray[np.uint32]:
    """Four bits per chunk: [W, 16, k / chunk]."""
    row = np.arange(_ROWS)[:, None]
    chunk = np.arange(spec.k // spec.chunk)[None, :]
    first = 4 * (row % 8) + selector * spec.lanes
    if spec.bits >= 16:  # A word holds four chunks of row g and below them four of row g + 8.
        lane, shift = first + chunk // 4, 16 * (row // 8) + 4 * (chunk % 4)
    else:  # A word holds eight chunks of one row; odd lanes have row g + 8.
        lane, shift = first + row // 8 + 2 * (chunk // 8), 4 * (chunk % 8) + 0 * row
    nibbles: npt.NDArray[np.uint32] = metadata[:, lane] >> shift.astype(np.uint32) & np.uint32(15)
    return nibbles


def expand(
    spec: Sparsity, stored: npt.NDArray[Any], metadata: npt.NDArray[np.uint32], selector: int
) -> npt.NDArray[Any]:
    """Dense A with zeros between the stored elements.

    Args:
        spec: how metadata is spread.
        stored: elements [W, 16, k / 2], bits or values.
        metadata: operand e [W, 32].
        selector: operand f.

    Returns:
        [W, 16, k] of the dtype of `stored`.
    """
    nibbles = _nibbles(spec, metadata, selector).astype(np.int64)
    if spec.chunk == 2:
        places = (nibbles >> 1 & 1)[..., None]
    else:
        places = np.stack([nibbles & 3, nibbles >> 2], axis=-1)
    if spec.chunk == 8:
        places = (2 * places[..., None] + np.arange(2)).reshape(*nibbles.shape, 4)
    shape = (*nibbles.shape, spec.chunk)
    dense = np.zeros(shape, stored.dtype)
    np.put_along_axis(dense, places, stored.reshape(*nibbles.shape, spec.chunk // 2), axis=-1)
    return dense.reshape(*stored.shape[:-1], spec.k)


def unusable_chunks(
    spec: Sparsity, metadata: npt.NDArray[np.uint32], selector: int, ordered: bool
) -> npt.NDArray[np.bool_]:
    """Chunks whose metadata the manual leaves undefined: bool [W, 16, k / chunk].

    With `ordered` (::ordered_metadata) the two indices must also increase.
    """
    nibbles = _nibbles(spec, metadata, selector)
    if spec.chunk == 2:
        return ~np.isin(nibbles, list(_ONE_OF_TWO))
    low, high = nibbles & 3, nibbles >> 2
    return low >= high if ordered else low == high
