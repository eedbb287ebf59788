"""Where the scales of A and B lie in tensor memory (PTX ISA 9.0, 9.7.16.10.7.2 and 9.7.16.10.7.3).

Row r of A (column r of B) has its scales in lane r % 32 of column r / 32, four codes to a word, and
again in the same lane of the other 32-lane partitions. Codes beyond the word of the first are in
the next group of columns: four columns for each 128 rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

__all__ = ["ScaleCells", "read_scales", "scale_cells"]

_PARTITION = 32
_PARTITIONS = 4
_WORD = 4

Ints = npt.NDArray[np.intp]


@dataclass(frozen=True)
class ScaleCells:
    """Cells counted from the scales' tensor memory address.

    Attributes:
        lanes: [rows, copies, 1].
        columns: [rows, 1, count].
        shifts: first bit of each code in its word, [count].
        width: columns that are read.
    """

    lanes: Ints
    columns: Ints
    shifts: npt.NDArray[np.uint32]
    width: int


@lru_cache(maxsize=512)
def scale_cells(rows: int, count: int, scale_id: int, halves: bool = False) -> ScaleCells:
    """Cells of the scales of one operand.

    Args:
        rows: rows of A in one CTA, or all columns of B.
        count: scales of a row.
        scale_id: byte of the first in its word.
        halves: B of an M = 128 pair: columns [0, N/2) in the first two partitions, [N/2, N) in
            the other two.
    """
    row = np.arange(rows)
    copies = _PARTITIONS // 2 if halves else _PARTITIONS
    partition = np.arange(copies)[None, :]
    if halves:
        partition = partition + (row >= rows // 2)[:, None] * copies
        row = row % (rows // 2)
    byte = scale_id + np.arange(count)
    step = -(-rows // 128) * _WORD
    columns = row[:, None, None] // _PARTITION + byte // _WORD * step
    return ScaleCells(
        lanes=(row[:, None] % _PARTITION + partition * _PARTITION)[:, :, None],
        columns=columns,
        shifts=(byte % _WORD * 8).astype(np.uint32),
        width=int(columns.max()) + 1,
    )


def read_scales(
    words: npt.NDArray[np.uint32], cells: ScaleCells
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Codes from the words at the cells.

    Args:
        words: [rows, copies, count].
        cells: where they are from.

    Returns:
        codes [rows, count], those of the first partition that has them; and where copies differ.
    """
    codes = (words >> cells.shifts).astype(np.uint8)
    first = codes[:, 0]
    return first, (codes != first[:, None]).any(axis=1)
