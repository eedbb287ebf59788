"""Rows of activations in groups, one weight each, and as tiles; twin of ``scheduler.cuh``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from humming.configs import GemmKind
from humming.errors import ConfigError
from humming.scheduling.schedule import ceil_div

__all__ = ["IndexedRows", "RowGroups", "align_rows", "max_row_tiles", "source_row"]


@dataclass(frozen=True)
class RowGroups:
    """Where the rows of each group begin in the operand, and how many there are.

    Make one with :meth:`dense`, :meth:`contiguous` or :meth:`masked`. A kernel that reads offsets
    or counts on the device makes the same of them, and clamps what these refuse.
    """

    begins: tuple[int, ...]
    rows: tuple[int, ...]

    @classmethod
    def dense(cls, m: int) -> RowGroups:
        """One group of `m` rows, 0 or more."""
        if m < 0:
            raise ConfigError("m", m, "0 or more rows")
        return cls((0,), (m,))

    @classmethod
    def contiguous(cls, offsets: Sequence[int]) -> RowGroups:
        """Rows sorted by group: group e has rows offsets[e] up to offsets[e + 1].

        Raises:
            ConfigError: fewer than two offsets, or they do not ascend from 0.
        """
        if len(offsets) < 2 or offsets[0] != 0 or any(a > b for a, b in pairwise(offsets)):
            raise ConfigError("offsets", tuple(offsets), "0 and then an ascending number per group")
        return cls(tuple(offsets[:-1]), tuple(b - a for a, b in pairwise(offsets)))

    @classmethod
    def masked(cls, counts: Sequence[int], capacity: int) -> RowGroups:
        """Group e has the first counts[e] of its `capacity` rows, which begin at e * capacity.

        Raises:
            ConfigError: a count below 0 or above the capacity.
        """
        if not counts or any(not 0 <= count <= capacity for count in counts):
            raise ConfigError("counts", tuple(counts), f"numbers from 0 to {capacity}")
        return cls(tuple(e * capacity for e in range(len(counts))), tuple(counts))

    def row_tiles(self, tile_m: int) -> tuple[int, ...]:
        """Rows of tiles before each group and of all, for :class:`TileMap`: [groups + 1]."""
        return tuple(accumulate((ceil_div(rows, tile_m) for rows in self.rows), initial=0))

    def tile_rows(self, group: int, row: int, tile_m: int) -> tuple[int, int]:
        """First row in the operand, and end, of the tiles in row `row` of a group."""
        begin, end = self.begins[group], self.begins[group] + self.rows[group]
        return begin + row * tile_m, min(begin + (row + 1) * tile_m, end)


@dataclass(frozen=True)
class IndexedRows:
    """An indexed problem: slots of rows, tile by tile, each tile with one expert.

    As tiles it is one group of len(experts) rows, whose weight is that of the row's expert. A tile
    whose expert is -1 is skipped by every CTA that meets it: nothing is stored or counted.

    Attributes:
        slots: per slot the number of a (token, choice), token * top_k + choice; a padded slot has a
            number that does not exist (see :func:`source_row`).
        experts: per row of tiles the expert, or -1.
    """

    slots: tuple[int, ...]
    experts: tuple[int, ...]


def align_rows(chosen: Sequence[int], experts: int, tile_m: int) -> IndexedRows:
    """Sort choices by expert and pad each expert's to whole tiles.

    Args:
        chosen: expert of each (token, choice), flat: token * top_k + choice. Anything that is no
            expert of this layer (-1, remote) gets no slot.
        experts: number of experts.
        tile_m: rows of a tile.

    Returns:
        Slots in ascending order per expert, padded with len(chosen); experts without rows have no
        tiles.
    """
    slots: list[int] = []
    tiles: list[int] = []
    lists: list[list[int]] = [[] for _ in range(experts)]
    for number, expert in enumerate(chosen):
        if 0 <= expert < experts:
            lists[expert].append(number)
    for expert, numbers in enumerate(lists):
        count = ceil_div(len(numbers), tile_m)
        tiles += [expert] * count
        slots += numbers + [len(chosen)] * (count * tile_m - len(numbers))
    return IndexedRows(tuple(slots), tuple(tiles))


def source_row(slot: int, choices: int, top_k: int) -> int:
    """The row of activations that a slot's number names; -1 for padding and sentinels.

    Args:
        slot: what :attr:`IndexedRows.slots` holds.
        choices: how many (token, choice) there are: rows x top_k.
        top_k: choices of a token; 1 where activations have a row per choice.
    """
    return slot // top_k if 0 <= slot < choices else -1


def max_row_tiles(kind: GemmKind, rows: int, tile_m: int, groups: int = 1) -> int:
    """The most rows of tiles that a problem can have, whatever its groups: what to allocate for.

    Args:
        kind: how rows find their weight.
        rows: all rows (DENSE, GROUPED_CONTIGUOUS), choices (INDEXED), or rows that a group has room
            for (GROUPED_MASKED).
        tile_m: rows of a tile.
        groups: number of weights.
    """
    if kind is GemmKind.DENSE:
        return ceil_div(rows, tile_m)
    if kind is GemmKind.GROUPED_MASKED:
        return groups * ceil_div(rows, tile_m)
    return (rows + min(groups, rows) * (tile_m - 1)) // tile_m
