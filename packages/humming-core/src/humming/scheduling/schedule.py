"""Tiles and K steps to CTAs: data-parallel, split-K and stream-K; twin of ``scheduler.cuh``.

Everything here is a pure function of a few integers, so a kernel that has learned the number of
tiles on the device (expert counts) gets the schedule that Python would have made of it.

*Step*: one tile_k of K. *Unit*: the fewest steps that are never split apart (the steps of one scale
group, say). *Item*: a run of units of one tile in one CTA. *Part*: the place of an item among those
that complete a tile, in the order of ascending K.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from humming.errors import ConfigError

__all__ = [
    "Partition",
    "Schedule",
    "Split",
    "WorkItem",
    "Workspace",
    "ceil_div",
    "k_order",
    "refuse_batch_invariant",
]

#: What a kernel keeps in an int: steps, units, CTAs, splits, rows and columns of tiles.
INT_LIMIT = 2**31
#: What it keeps in a long long: tiles, units of all tiles, slots.
INDEX_LIMIT = 2**63

PARTIAL_BYTES = 4  # fp32
COUNTER_BYTES = 4
PARTIALS_ALIGNMENT = 256


def ceil_div(a: int, b: int) -> int:
    """The smallest integer not below a / b, for b > 0."""
    return -(-a // b)


class Split(str, Enum):
    """How the K steps of tiles are shared among CTAs."""

    DATA_PARALLEL = "data_parallel"  # not at all: one CTA computes a tile
    SPLIT_K = "split_k"  # every tile in the same number of equal parts
    STREAM_K = "stream_k"  # each CTA an equal run of units, across tiles; whole tiles in full waves


@dataclass(frozen=True, kw_only=True)
class Partition:
    """How K is cut. It holds no size of a problem, so one kernel serves every number of rows.

    Attributes:
        split: the way.
        splits: SPLIT_K: parts of every tile; less where a tile has fewer units.
        min_run: STREAM_K: the fewest units that are worth a CTA, where there are that many in a
            tile. A tile then has at most ceil(units / min_run) + 1 parts.

    Raises:
        ConfigError: a number below 1, or one that `split` does not use.
    """

    split: Split = Split.DATA_PARALLEL
    splits: int = 1
    min_run: int = 1

    def __post_init__(self) -> None:
        for name, owner in (("splits", Split.SPLIT_K), ("min_run", Split.STREAM_K)):
            value = getattr(self, name)
            if not 1 <= value < INT_LIMIT:
                raise ConfigError(name, value, "a positive 32-bit number")
            if value != 1 and self.split is not owner:
                raise ConfigError(name, value, f"1 with {self.split.value}")

    def __str__(self) -> str:
        if self.split is Split.SPLIT_K:
            return f"split_k({self.splits})"
        if self.split is Split.STREAM_K:
            return f"stream_k(min_run={self.min_run})"
        return str(self.split.value)


class WorkItem(NamedTuple):
    """A run of K steps of one tile.

    Attributes:
        tile: which one, for :meth:`TileMap.place`.
        k_begin, k_end: its K steps, in units of tile_k.
        part, parts: it is number `part` of the `parts` that complete the tile, by ascending K.
        slot: where its fp32 partial goes in the workspace, -1 if it is the whole tile.
        counter: the counter that the parts of the tile share, -1 if it is the whole tile.
    """

    tile: int
    k_begin: int
    k_end: int
    part: int
    parts: int
    slot: int
    counter: int

    @property
    def is_first(self) -> bool:
        """Whether it begins at K = 0."""
        return self.part == 0

    @property
    def is_last(self) -> bool:
        """Whether it ends at the end of K."""
        return self.part == self.parts - 1


class Workspace(NamedTuple):
    """Memory for parts of tiles: counters first, then slots of fp32 partials.

    The counters must be zero before the first launch; each launch leaves them zero. Launches that
    may run at the same time (streams) need a workspace each.

    Attributes:
        counters: 32-bit counters.
        slots: partials of tile_m x tile_n numbers each.
        partials_offset: bytes from the start to slot 0.
        nbytes: size of all of it.
    """

    counters: int
    slots: int
    partials_offset: int
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The work items of every CTA.

    Attributes:
        tiles: number of tiles, 0 or more.
        steps: K steps of each, ceil(K / tile_k).
        ctas: CTAs of the launch; those without work have no items.
        unit: steps that are never split apart; the last unit may have fewer.
        partition: how K is cut.

    Raises:
        ConfigError: a size that is not positive or does not fit the kernels' integers.
    """

    tiles: int
    steps: int
    ctas: int
    unit: int = 1
    partition: Partition = Partition()

    def __post_init__(self) -> None:
        for name in ("steps", "ctas", "unit"):
            if not 1 <= getattr(self, name) < INT_LIMIT:
                raise ConfigError(name, getattr(self, name), "a positive 32-bit number")
        # The last item of a CTA plus one wave must not overflow either.
        bound = INDEX_LIMIT // max(self.steps, self.partition.splits) - 2 * self.ctas
        if not 0 <= self.tiles < bound:
            allowed = "0 or more, and a 64-bit number when multiplied by the steps of a tile"
            raise ConfigError("tiles", self.tiles, allowed)

    @property
    def units(self) -> int:
        """Units of one tile."""
        return ceil_div(self.steps, self.unit)

    @property
    def splits(self) -> int:
        """Parts of a tile that is not in the stream."""
        return min(self.partition.splits, self.units)

    @property
    def stream_tiles(self) -> int:
        """Tiles shared in runs: number 0 up to this. The others fill whole waves.

        None if the tiles fill waves exactly; else one to two waves of them (all, if there are
        fewer), so that a run is never shorter than a tile when there is a full wave.
        """
        rest = self.tiles % self.ctas
        if self.partition.split is not Split.STREAM_K or rest == 0:
            return 0
        return rest if self.tiles < self.ctas else rest + self.ctas

    @property
    def runs(self) -> int:
        """CTAs that have a run of the stream: CTA r has number r."""
        longest = min(self.partition.min_run, self.units)
        return min(self.stream_tiles * self.units // longest, self.ctas)

    def run_begin(self, run: int) -> int:
        """First unit of a run, counted over the tiles of the stream; runs differ by one at most."""
        length, longer = divmod(self.stream_tiles * self.units, self.runs)
        return run * length + min(run, longer)

    def run_of(self, unit: int) -> int:
        """The run that holds a unit of the stream."""
        length, longer = divmod(self.stream_tiles * self.units, self.runs)
        border = longer * (length + 1)
        if unit < border:
            return unit // (length + 1)
        return longer + (unit - border) // length

    def item_count(self, cta: int) -> int:
        """Items of a CTA."""
        return self._stream_count(cta) + self._wave_count(cta)

    def item(self, cta: int, index: int) -> WorkItem:
        """Item number `index` of a CTA, of :meth:`item_count`; tiles of the stream come first."""
        stream = self._stream_count(cta)
        if index < stream:
            return self._stream_item(cta, index)
        return self._wave_item(cta + (index - stream) * self.ctas)

    def items(self, cta: int) -> Iterator[WorkItem]:
        """All items of a CTA in its order."""
        return (self.item(cta, index) for index in range(self.item_count(cta)))

    def parts(self, tile: int) -> int:
        """How many items complete a tile."""
        if tile >= self.stream_tiles:
            return self.splits
        first = self.run_of(tile * self.units)
        return self.run_of((tile + 1) * self.units - 1) - first + 1

    def slot(self, tile: int, part: int) -> int:
        """Where the partial of a tile's part lies; -1 if the tile has one part.

        To sum a tile, add the slots of parts 0, 1, 2, ... in this order.
        """
        if self.parts(tile) == 1:
            return -1
        if tile >= self.stream_tiles:
            return tile * self.splits + part
        begin = tile * self.units
        run = self.run_of(begin) + part
        return 2 * run + (self.run_begin(run) < begin)

    def workspace(self, tile_m: int, tile_n: int) -> Workspace:
        """Memory for the partials; enough for every smaller number of tiles, too.

        So where the number is known on the device alone, ask with the largest that is possible.
        """
        if self.partition.split is Split.STREAM_K:
            counters = min(self.tiles, 2 * self.ctas)
            slots = 2 * self.ctas if self.tiles else 0
        else:
            counters = self.tiles if self.splits > 1 else 0
            slots = counters * self.splits
        whole = ceil_div(counters * COUNTER_BYTES, PARTIALS_ALIGNMENT) * PARTIALS_ALIGNMENT
        nbytes = whole + slots * tile_m * tile_n * PARTIAL_BYTES
        return Workspace(counters, slots, whole, nbytes)

    def _stream_count(self, cta: int) -> int:
        if cta >= self.runs:
            return 0
        begin, end = self.run_begin(cta), self.run_begin(cta + 1)
        return (end - 1) // self.units - begin // self.units + 1

    def _wave_count(self, cta: int) -> int:
        count = (self.tiles - self.stream_tiles) * self.splits
        return ceil_div(count - cta, self.ctas) if cta < count else 0

    def _stream_item(self, cta: int, index: int) -> WorkItem:
        begin, end = self.run_begin(cta), self.run_begin(cta + 1)
        tile = begin // self.units + index
        start = tile * self.units
        parts, part = self.parts(tile), cta - self.run_of(start)
        k = self._steps(max(begin - start, 0), min(end - start, self.units))
        if parts == 1:
            return WorkItem(tile, *k, part, parts, -1, -1)
        return WorkItem(tile, *k, part, parts, 2 * cta + (index > 0), tile)

    def _wave_item(self, number: int) -> WorkItem:
        tile, part = divmod(number, self.splits)
        length, longer = divmod(self.units, self.splits)
        begin = part * length + min(part, longer)
        k = self._steps(begin, begin + length + (part < longer))
        tile += self.stream_tiles
        if self.splits == 1:
            return WorkItem(tile, *k, part, 1, -1, -1)
        return WorkItem(tile, *k, part, self.splits, number, tile)

    def _steps(self, begin: int, end: int) -> tuple[int, int]:
        return begin * self.unit, min(end * self.unit, self.steps)


def refuse_batch_invariant(partition: Partition) -> str | None:
    """None if a row's bits can't depend on the other rows, or a sentence that says why they do.

    It is what the schedule can promise: the kernel must also keep tile_k, `unit`, its MMA
    instruction and its own split of K over warps the same for every number of rows.
    """
    if partition.split is Split.STREAM_K:
        return (
            "stream_k cuts K where the runs of CTAs end, which depends on the number of tiles and"
            " so on the other rows; use data_parallel, or split_k with a fixed number of splits"
        )
    return None


def k_order(partition: Partition, steps: int, unit: int = 1) -> tuple[int, ...]:
    """Where K is cut, in steps, from 0 to `steps`: sums of two kernels agree if these do.

    There is no number of tiles among the arguments, which is what makes it batch-invariant.

    Raises:
        ConfigError: the partition is not batch-invariant.
    """
    if (reason := refuse_batch_invariant(partition)) is not None:
        raise ConfigError("partition", str(partition), f"a batch-invariant one: {reason}")
    schedule = Schedule(tiles=1, steps=steps, ctas=1, unit=unit, partition=partition)
    return (0, *(item.k_end for item in schedule.items(0)))
