"""Which way to cut K is the fastest, by counting waves: a small model of given numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from humming.errors import ConfigError
from humming.scheduling.schedule import Partition, Schedule, Split, ceil_div

__all__ = ["Candidate", "Costs", "Plan", "Rates", "estimate", "plan"]

#: The most parts of a tile that are tried: one CTA adds them, one after the other.
MAX_PARTS = 16


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What the work consists of.

    Attributes:
        step_flops: arithmetic of one K step of a tile.
        step_bytes: what a K step reads, in bytes of memory (what L2 holds is not counted).
        tile_bytes: what a tile stores.
        partial_bytes: one fp32 partial, tile_m * tile_n * 4.
    """

    step_flops: float
    step_bytes: float
    tile_bytes: float = 0.0
    partial_bytes: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Rates:
    """How fast the work is done, per microsecond.

    Attributes:
        flops: arithmetic of one CTA.
        bytes: what all CTAs together can move.
        cta_bytes: the most that one CTA can move, if others leave it to it.
        item_us: what an item takes beside all that: filling and draining the pipeline.
    """

    flops: float
    bytes: float
    cta_bytes: float
    item_us: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (value > 0 or (field.name == "item_us" and value == 0)):
                raise ConfigError(field.name, value, "a positive number")

    def move_us(self, nbytes: float, busy: int) -> float:
        """One CTA of `busy` that do the same moves bytes."""
        return nbytes / min(self.cta_bytes, self.bytes / busy)

    def steps_us(self, costs: Costs, steps: int, busy: int) -> float:
        """One CTA of `busy` does K steps: reading and computing overlap, the slower one counts."""
        return steps * max(costs.step_flops / self.flops, self.move_us(costs.step_bytes, busy))


class Candidate(NamedTuple):
    """A way to cut K and how long it would take."""

    partition: Partition
    us: float


class Plan(NamedTuple):
    """What was chosen, and everything that it was chosen from, cheapest first."""

    partition: Partition
    us: float
    considered: tuple[Candidate, ...]


def estimate(schedule: Schedule, costs: Costs, rates: Rates) -> float:
    """Microseconds until the last CTA is done, waves counted one by one.

    - A wave of items takes `item_us`, its steps and its stores; a last wave with fewer CTAs has the
      memory for itself.
    - The stream takes one wave whose items are runs, and two items' `item_us`.
    - A tile in p parts: each CTA stores a partial, then one CTA reads p of them.
    """
    unit, units = schedule.unit, schedule.units
    splits, ctas = schedule.splits, schedule.ctas
    waves, rest = divmod((schedule.tiles - schedule.stream_tiles) * splits, ctas)
    steps = min(ceil_div(units, splits) * unit, schedule.steps)

    def wave(busy: int) -> float:
        stored = costs.tile_bytes if splits == 1 else costs.partial_bytes
        us = rates.item_us + rates.steps_us(costs, steps, busy) + rates.move_us(stored, busy)
        return us + _sum_us(splits, busy, costs, rates)

    total = waves * wave(ctas) + (wave(rest) if rest else 0.0)
    if runs := schedule.runs:
        longest = ceil_div(schedule.stream_tiles * units, runs)
        total += 2 * rates.item_us + rates.steps_us(costs, longest * unit, runs)
        parts = most_parts(schedule)
        stored = costs.tile_bytes if parts == 1 else costs.partial_bytes + costs.tile_bytes
        total += rates.move_us(stored, runs) + _sum_us(parts, runs, costs, rates)
    return total


def most_parts(schedule: Schedule) -> int:
    """Parts of the tile of the stream that has the most of them; of more than two, or one less.

    The longer runs come first and the shorter ones last. If any tile is cut, then one of the first
    two is or one of the last two, and these have the shortest runs.
    """
    tiles = schedule.stream_tiles
    ends = {0, min(1, tiles - 1), max(tiles - 2, 0), tiles - 1}
    return max(schedule.parts(tile) for tile in ends)


def _sum_us(parts: int, busy: int, costs: Costs, rates: Rates) -> float:
    """One CTA in `parts` reads that many partials and stores the tile, the others are done."""
    if parts == 1:
        return 0.0
    return rates.move_us(parts * costs.partial_bytes + costs.tile_bytes, ceil_div(busy, parts))


def plan(
    whole: Schedule,
    costs: Costs,
    rates: Rates,
    *,
    batch_invariant: bool = False,
    fixed_splits: int | None = None,
    max_slots: int | None = None,
) -> Plan:
    """The cheapest way to cut K; the first of equals, and the simpler ways come first.

    Every answer is deterministic: the order of sums follows from the sizes alone.

    Args:
        whole: the problem with its CTAs, of any partition. Where groups are counted on the device,
            the tiles that are expected: the choice holds for every number.
        costs, rates: see :func:`estimate`.
        batch_invariant: cut K in `fixed_splits` parts whatever the number of tiles; 1 if not given.
        fixed_splits: parts of every tile, decided by the caller; nothing else is considered.
        max_slots: partials that there is memory for; what needs more is not considered.

    Raises:
        ConfigError: fixed_splits that need more than max_slots.
    """
    if batch_invariant and fixed_splits is None:
        fixed_splits = 1
    candidates = []
    for partition in _partitions(whole.units, fixed_splits):
        schedule = replace(whole, partition=partition)
        slots = schedule.workspace(1, 1).slots
        if max_slots is None or slots <= max_slots:
            candidates.append(Candidate(partition, estimate(schedule, costs, rates)))
    if not candidates:
        allowed = f"fewer: {whole.tiles} tiles would need more than max_slots={max_slots} partials"
        raise ConfigError("fixed_splits", fixed_splits, allowed)
    candidates.sort(key=lambda candidate: candidate.us)
    return Plan(*candidates[0], tuple(candidates))


def _partitions(units: int, fixed_splits: int | None) -> Iterator[Partition]:
    """What is tried: the simplest first."""
    if fixed_splits is None or fixed_splits == 1:
        yield Partition()
    if fixed_splits is not None:
        if fixed_splits != 1:
            yield Partition(split=Split.SPLIT_K, splits=fixed_splits)
        return
    for splits in range(2, min(units, MAX_PARTS) + 1):
        yield Partition(split=Split.SPLIT_K, splits=splits)
    for min_run in sorted({ceil_div(units, parts) for parts in (1, 2, 4, 8, MAX_PARTS)}):
        yield Partition(split=Split.STREAM_K, min_run=min_run)
