"""The order in which tiles are walked, and the group that a tile lies in; twin of scheduler.cuh."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from humming.errors import ConfigError
from humming.scheduling.schedule import INT_LIMIT

__all__ = ["Axis", "Place", "Raster", "TileMap"]


class Axis(str, Enum):
    """Which side of the result is cut into bands."""

    COLUMNS = "columns"  # bands of tile columns: few weights and all rows of activations at a time
    ROWS = "rows"  # bands of tile rows: few rows of activations and all weights at a time


@dataclass(frozen=True, kw_only=True)
class Raster:
    """The walk through the tiles of a group, band by band, so that L2 holds what a wave reads.

    Inside a band the walk is across it: `width` tiles along `axis`, then one further.

    Attributes:
        width: tiles across a band; the last band may have fewer.
        axis: what is cut into bands.

    Raises:
        ConfigError: a width below 1.
    """

    width: int = 8
    axis: Axis = Axis.COLUMNS

    def __post_init__(self) -> None:
        if not 1 <= self.width < INT_LIMIT:
            raise ConfigError("width", self.width, "a positive 32-bit number of tiles")

    def place(self, tile: int, rows: int, columns: int) -> tuple[int, int]:
        """Row and column of tile number `tile` in a matrix of rows x columns tiles."""
        if self.axis is Axis.COLUMNS:
            row, column = _walk(tile, rows, columns, self.width)
        else:
            column, row = _walk(tile, columns, rows, self.width)
        return row, column


def _walk(tile: int, length: int, across: int, width: int) -> tuple[int, int]:
    """How far along and how far across, in bands of `width`, of which the last may be narrower."""
    band, rest = divmod(tile, width * length)
    along, inside = divmod(rest, min(width, across - band * width))
    return along, band * width + inside


class Place(NamedTuple):
    """Where a tile lies: its group, and its row and column of tiles in the group's matrix."""

    group: int
    row: int
    column: int


@dataclass(frozen=True)
class TileMap:
    """Tiles of all groups: those of a group are contiguous, empty groups have none.

    Attributes:
        prefix: rows of tiles before each group and, last, of all: [groups + 1]. A dense problem is
            one group, (0, rows).
        columns: columns of tiles, ceil(N / tile_n).
        raster: the walk inside a group.

    Raises:
        ConfigError: a prefix that does not ascend from 0, or sizes beyond the kernels' integers.
    """

    prefix: tuple[int, ...]
    columns: int
    raster: Raster = Raster()

    def __post_init__(self) -> None:
        prefix = self.prefix
        if len(prefix) < 2 or prefix[0] != 0 or any(a > b for a, b in pairwise(prefix)):
            raise ConfigError("prefix", prefix, "0 and then an ascending number per group")
        if prefix[-1] >= INT_LIMIT:
            raise ConfigError("prefix", prefix[-1], "a 32-bit number of rows of tiles")
        if not 1 <= self.columns < INT_LIMIT:
            raise ConfigError("columns", self.columns, "a positive 32-bit number")

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return self.prefix[-1] * self.columns

    def place(self, tile: int) -> Place:
        """Where a tile lies. In a kernel: one division and a binary search, O(log groups)."""
        group = bisect_right(self.prefix, tile // self.columns) - 1
        before = self.prefix[group]
        rows = self.prefix[group + 1] - before
        return Place(group, *self.raster.place(tile - before * self.columns, rows, self.columns))
