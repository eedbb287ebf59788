"""Schedules: every K step of every tile once, and partials that are summed in one order."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humming.errors import ConfigError
from humming.scheduling import (
    Partition,
    Schedule,
    Split,
    WorkItem,
    ceil_div,
    k_order,
    refuse_batch_invariant,
)

PARTITIONS = st.one_of(
    st.just(Partition()),
    st.integers(1, 20).map(lambda n: Partition(split=Split.SPLIT_K, splits=n)),
    st.integers(1, 40).map(lambda n: Partition(split=Split.STREAM_K, min_run=n)),
)
SMALL = st.builds(
    Schedule,
    tiles=st.integers(0, 60),
    steps=st.integers(1, 40),
    ctas=st.integers(1, 40),
    unit=st.integers(1, 5),
    partition=PARTITIONS,
)
HUGE = st.builds(
    Schedule,
    tiles=st.integers(0, 2**34),
    steps=st.integers(1, 2**26),
    ctas=st.sampled_from([1, 7, 132, 148, 1056]),
    unit=st.integers(1, 8),
    partition=PARTITIONS,
)


def all_items(schedule: Schedule) -> list[WorkItem]:
    return [item for cta in range(schedule.ctas) for item in schedule.items(cta)]


def by_tile(schedule: Schedule) -> dict[int, list[WorkItem]]:
    tiles = defaultdict(list)
    for item in all_items(schedule):
        tiles[item.tile].append(item)
    return {tile: sorted(items, key=lambda item: item.k_begin) for tile, items in tiles.items()}


@given(SMALL)
@settings(max_examples=400, deadline=None)
def test_every_step_of_every_tile_is_computed_once(schedule: Schedule) -> None:
    tiles = by_tile(schedule)
    assert sorted(tiles) == list(range(schedule.tiles))
    for items in tiles.values():
        borders = [0, *(item.k_end for item in items)]
        assert [item.k_begin for item in items] == borders[:-1]
        assert borders[-1] == schedule.steps
        assert all(a < b for a, b in pairwise(borders))
        assert all(border % schedule.unit == 0 for border in borders[:-1])


@given(SMALL)
@settings(max_examples=400, deadline=None)
def test_parts_ascend_with_k_and_their_slots_are_unique_and_inside(schedule: Schedule) -> None:
    workspace = schedule.workspace(16, 32)
    used = []
    for tile, items in by_tile(schedule).items():
        assert [item.part for item in items] == list(range(len(items)))
        assert {item.parts for item in items} == {len(items)} == {schedule.parts(tile)}
        assert [item.is_first for item in items] == [i == 0 for i in range(len(items))]
        assert [item.is_last for item in items] == [i == len(items) - 1 for i in range(len(items))]
        assert [schedule.slot(tile, item.part) for item in items] == [item.slot for item in items]
        if len(items) == 1:
            assert (items[0].slot, items[0].counter) == (-1, -1)
            continue
        assert {item.counter for item in items} == {tile}
        assert tile < workspace.counters
        used += [item.slot for item in items]
    assert len(set(used)) == len(used)
    assert all(0 <= slot < workspace.slots for slot in used)
    assert workspace.nbytes == workspace.partials_offset + workspace.slots * 16 * 32 * 4
    assert workspace.partials_offset % 256 == 0
    assert workspace.partials_offset >= 4 * workspace.counters


@given(SMALL)
@settings(max_examples=200, deadline=None)
def test_a_workspace_is_enough_for_fewer_tiles(schedule: Schedule) -> None:
    sizes = [
        Schedule(
            tiles=tiles,
            steps=schedule.steps,
            ctas=schedule.ctas,
            unit=schedule.unit,
            partition=schedule.partition,
        ).workspace(8, 8)
        for tiles in range(schedule.tiles + 1)
    ]
    assert all(s.nbytes <= sizes[-1].nbytes and s.counters <= sizes[-1].counters for s in sizes)
    assert sizes[0].nbytes == 0


@given(SMALL)
@settings(max_examples=300, deadline=None)
def test_work_is_shared_equally(schedule: Schedule) -> None:
    counts = [schedule.item_count(cta) for cta in range(schedule.ctas)]
    if schedule.partition.split is not Split.STREAM_K:
        assert max(counts) - min(counts) <= 1
        return
    units = [
        sum(ceil_div(item.k_end - item.k_begin, schedule.unit) for item in schedule.items(cta))
        for cta in range(schedule.ctas)
    ]
    working = [count for count in units if count]
    if schedule.tiles >= schedule.ctas:
        assert len(working) == schedule.ctas
    assert not working or max(working) - min(working) <= 1
    for cta in range(schedule.ctas):
        shared = [i for i, item in enumerate(schedule.items(cta)) if item.parts > 1]
        assert len(shared) <= 2  # the first and the last of its run
    shortest = min(schedule.partition.min_run, schedule.units)
    assert all(count >= shortest for count in working)
    for tile in range(schedule.tiles):
        assert schedule.parts(tile) <= ceil_div(schedule.units, shortest) + 1


@given(HUGE, st.data())
@settings(max_examples=200, deadline=None)
def test_huge_schedules_hold_together_at_any_place(schedule: Schedule, data: st.DataObject) -> None:
    ctas = range(schedule.ctas)
    total = sum(schedule.item_count(cta) for cta in ctas)
    if schedule.partition.split is not Split.STREAM_K:
        assert total == schedule.tiles * schedule.splits
    cta = data.draw(st.sampled_from(ctas))
    if (count := schedule.item_count(cta)) == 0:
        return
    for index in {0, count - 1, data.draw(st.integers(0, count - 1))}:
        item = schedule.item(cta, index)
        assert 0 <= item.tile < schedule.tiles
        assert 0 <= item.k_begin < item.k_end <= schedule.steps
        assert item.slot == schedule.slot(item.tile, item.part)
        assert item.slot < schedule.workspace(1, 1).slots
        assert (item.k_begin == 0, item.k_end == schedule.steps) == (item.is_first, item.is_last)


def test_no_tiles_no_items() -> None:
    for split in Split:
        schedule = Schedule(tiles=0, steps=9, ctas=4, partition=Partition(split=split))
        assert all_items(schedule) == []
        assert schedule.workspace(64, 64) == (0, 0, 0, 0)


def test_whole_tiles_fill_waves_and_the_rest_is_streamed() -> None:
    stream = Partition(split=Split.STREAM_K)
    assert Schedule(tiles=12, steps=8, ctas=4, partition=stream).stream_tiles == 0
    assert Schedule(tiles=13, steps=8, ctas=4, partition=stream).stream_tiles == 5
    assert Schedule(tiles=3, steps=8, ctas=4, partition=stream).stream_tiles == 3
    schedule = Schedule(tiles=5, steps=8, ctas=4, partition=stream)
    assert list(schedule.items(1)) == [
        WorkItem(1, 2, 8, 1, 2, 2, 1),
        WorkItem(2, 0, 4, 0, 2, 3, 2),
    ]


@given(PARTITIONS, st.integers(1, 60), st.integers(1, 6), st.integers(1, 50), st.integers(1, 40))
@settings(max_examples=300, deadline=None)
def test_where_k_is_cut_does_not_depend_on_tiles_or_ctas(
    partition: Partition, steps: int, unit: int, tiles: int, ctas: int
) -> None:
    reason = refuse_batch_invariant(partition)
    assert (reason is not None) == (partition.split is Split.STREAM_K)
    if reason is not None:
        with pytest.raises(ConfigError, match="depends on the number of tiles"):
            k_order(partition, steps, unit)
        return
    order = k_order(partition, steps, unit)
    schedule = Schedule(tiles=tiles, steps=steps, ctas=ctas, unit=unit, partition=partition)
    for items in by_tile(schedule).values():
        assert (0, *(item.k_end for item in items)) == order


def test_stream_k_is_refused_for_a_reason() -> None:
    cuts = set()
    for tiles in (1, 2, 3):
        partition = Partition(split=Split.STREAM_K)
        schedule = Schedule(tiles=tiles, steps=12, ctas=4, partition=partition)
        cuts.add(tuple(item.k_end for item in by_tile(schedule)[0]))
    assert len(cuts) == 3


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("steps", lambda: Schedule(tiles=1, steps=0, ctas=1)),
        ("steps", lambda: Schedule(tiles=1, steps=2**31, ctas=1)),
        ("ctas", lambda: Schedule(tiles=1, steps=1, ctas=0)),
        ("unit", lambda: Schedule(tiles=1, steps=1, ctas=1, unit=0)),
        ("tiles", lambda: Schedule(tiles=-1, steps=1, ctas=1)),
        ("tiles", lambda: Schedule(tiles=2**40, steps=2**23, ctas=1)),
        ("splits", lambda: Partition(split=Split.SPLIT_K, splits=0)),
        ("splits", lambda: Partition(splits=2)),
        ("min_run", lambda: Partition(split=Split.SPLIT_K, splits=2, min_run=2)),
    ],
)
def test_what_no_kernel_could_do_is_refused(field: str, make: object) -> None:
    with pytest.raises(ConfigError, match=f"^{field}="):
        make()  # type: ignore[operator]


def test_a_partition_says_what_it_is() -> None:
    assert str(Partition()) == "data_parallel"
    assert str(Partition(split=Split.SPLIT_K, splits=3)) == "split_k(3)"
    assert str(Partition(split=Split.STREAM_K, min_run=8)) == "stream_k(min_run=8)"
