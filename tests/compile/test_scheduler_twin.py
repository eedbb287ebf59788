"""scheduler.cuh gives the answers of humming.scheduling: to the compiler and in a kernel."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from sim_kernels import CompileError, compile_cubin, compile_ptx

import humming_sim
from humming.configs import GemmKind
from humming.scheduling import (
    Axis,
    Partition,
    Raster,
    RowGroups,
    Schedule,
    Split,
    TileMap,
    WorkItem,
    source_row,
)

pytestmark = pytest.mark.compile

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "packages/humming-core/src/humming/include/humming/scheduler.cuh"
KERNELS = Path(__file__).with_name("kernels") / "scheduler.cu"
INCLUDE = "#include <humming/scheduler.cuh>\n"

SPLITS, AXES, KINDS = list(Split), list(Axis), list(GemmKind)
FIELDS = 12
SEEDS = 8


def header() -> str:
    """The text of the header; the pragma has no meaning in what is not included."""
    return HEADER.read_text(encoding="utf-8").replace("#pragma once\n", "")


def ptx() -> str:
    return compile_ptx(KERNELS.read_text(encoding="utf-8").replace(INCLUDE, header()), "compute_75")


# ----------------------------------------------------------------------------- what a compiler says


def random_partition(rng: random.Random) -> Partition:
    split = rng.choice(SPLITS)
    if split is Split.SPLIT_K:
        return Partition(split=split, splits=rng.randint(1, 9))
    if split is Split.STREAM_K:
        return Partition(split=split, min_run=rng.randint(1, 9))
    return Partition()


def random_schedule(rng: random.Random) -> Schedule:
    huge = rng.random() < 0.4
    return Schedule(
        tiles=rng.randint(0, 2**33 if huge else 50),
        steps=rng.randint(1, 2**25 if huge else 30),
        ctas=rng.choice([1, 2, 5, 16, 132]),
        unit=rng.randint(1, 4),
        partition=random_partition(rng),
    )


def schedule_cxx(schedule: Schedule) -> str:
    cut = schedule.partition
    partition = f"Partition{{Split({SPLITS.index(cut.split)}), {cut.splits}, {cut.min_run}}}"
    sizes = f"{schedule.tiles}ll, {schedule.steps}, {schedule.ctas}, {schedule.unit}"
    return f"make_schedule({sizes}, {partition})"


def schedule_rows(rng: random.Random) -> list[str]:
    """Assertions on one schedule: its number of items, one of them, and the slots of its tile."""
    schedule = random_schedule(rng)
    cxx = schedule_cxx(schedule)
    cta = rng.randrange(schedule.ctas)
    count = schedule.item_count(cta)
    rows = [f"{cxx}.item_count({cta}) == {count}"]
    if count:
        index = rng.choice([0, count - 1, rng.randrange(count)])
        item = schedule.item(cta, index)
        values = ", ".join(map(str, item))
        rows.append(f"same({cxx}.item({cta}, {index}ll), WorkItem{{{values}}})")
        part = rng.randrange(item.parts)
        rows.append(f"{cxx}.slot({item.tile}ll, {part}) == {schedule.slot(item.tile, part)}")
        ends = f"{item.is_first:d} && {cxx}.item({cta}, {index}ll).is_last() == {item.is_last:d}"
        rows.append(f"{cxx}.item({cta}, {index}ll).is_first() == {ends}")
    return rows


def huge_stream_rows() -> list[str]:
    """The last run of a stream whose units don't fit 32 bits."""
    stream = Partition(split=Split.STREAM_K, min_run=2**20)
    schedule = Schedule(tiles=150, steps=2**25 + 1, ctas=148, partition=stream)
    cxx, rows = schedule_cxx(schedule), []
    for index, item in enumerate(schedule.items(147)):
        values = ", ".join(map(str, item))
        rows.append(f"same({cxx}.item(147, {index}), WorkItem{{{values}}})")
        rows.append(f"{cxx}.slot({item.tile}ll, {item.part}) == {item.slot}")
    return rows


def place_row(rng: random.Random) -> str:
    most = rng.choice([3, 60, 2**24])
    counts = [rng.choice([0, rng.randint(0, most)]) for _ in range(rng.randint(1, 9))] + [1]
    groups = RowGroups.masked(counts, most)
    tile_m, width, axis = rng.choice([1, 8, 128]), rng.randint(1, 9), rng.choice(AXES)
    tiles = TileMap(groups.row_tiles(tile_m), rng.randint(1, 500), Raster(width=width, axis=axis))
    tile = rng.choice([0, tiles.tiles - 1, rng.randrange(tiles.tiles)])
    prefix = ", ".join(map(str, tiles.prefix))
    raster = f"Raster{{{width}, Axis({AXES.index(axis)})}}"
    call = f"{raster}, Prefix{{{prefix}}}.rows, {len(counts)}, {tiles.columns}, {tile}ll"
    group, row, column = tiles.place(tile)
    return f"same(place_tile({call}), Place{{{group}, {row}, {column}}})"


def source_rows() -> list[str]:
    cases = [(slot, 8, 2) for slot in (-1, 0, 7, 8, 2**31)] + [(2**33, 2**33 + 1, 8)]
    return [f"source_row({s}ll, {n}ll, {k}) == {source_row(s, n, k)}" for s, n, k in cases]


SAME = """
namespace humming {
struct Prefix { int rows[16]; };
__device__ constexpr bool same(WorkItem a, WorkItem b) {
  return a.tile == b.tile && a.k_begin == b.k_begin && a.k_end == b.k_end && a.part == b.part
    && a.parts == b.parts && a.slot == b.slot && a.counter == b.counter;
}
__device__ constexpr bool same(Place a, Place b) {
  return a.group == b.group && a.row == b.row && a.column == b.column;
}
"""


def assertions(rows: list[str]) -> str:
    lines = [f'static_assert({row}, "row {number}");' for number, row in enumerate(rows)]
    return header() + SAME + "\n".join(lines) + "\n}\n"


def test_the_compiler_agrees_with_a_table_of_answers() -> None:
    rng = random.Random(20)
    rows = [row for _ in range(120) for row in schedule_rows(rng)]
    rows += [place_row(rng) for _ in range(80)]
    rows += huge_stream_rows()
    rows += source_rows()
    compile_ptx(assertions(rows), "compute_75")


def test_a_wrong_answer_is_named() -> None:
    right = Schedule(tiles=5, steps=8, ctas=4, partition=Partition(split=Split.STREAM_K))
    wrong = ", ".join(map(str, WorkItem(1, 2, 8, 1, 2, 3, 1)))  # the slot is 2
    rows = [f"{schedule_cxx(right)}.item_count(1) == 2"]
    rows += [f"same({schedule_cxx(right)}.item(1, 0), WorkItem{{{wrong}}})"]
    with pytest.raises(CompileError, match="row 1") as caught:
        compile_ptx(assertions(rows), "compute_75")
    assert "1 error detected" in str(caught.value)


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a", "sm_120a"])
def test_the_kernels_become_machine_code(arch: str) -> None:
    source = KERNELS.read_text(encoding="utf-8").replace(INCLUDE, header())
    assert compile_cubin(source, arch)[:4] == b"\x7fELF"


# ------------------------------------------------------------------------------- what a kernel does


class Case(NamedTuple):
    """A problem of one kind: what the kernel reads, and what Python makes of it."""

    kind: GemmKind
    counts: list[int]  # what lies on the device
    rows: int
    groups: RowGroups
    tile_m: int
    columns: int
    raster: Raster
    ctas: int
    steps: int
    unit: int
    partition: Partition


def random_case(rng: random.Random, kind: GemmKind) -> Case:
    experts = rng.choice([1, 3, 31, 32, 33, 65, 128])
    rows = [rng.choice([0, rng.randint(0, 40)]) for _ in range(experts)]
    offsets = [sum(rows[:e]) for e in range(experts + 1)]
    counts, total, groups = {
        GemmKind.DENSE: ([], rows[0], RowGroups.dense(rows[0])),
        GemmKind.GROUPED_CONTIGUOUS: (offsets, offsets[-1], RowGroups.contiguous(offsets)),
        GemmKind.GROUPED_MASKED: (rows, 40, RowGroups.masked(rows, 40)),
    }[kind]
    raster = Raster(width=rng.randint(1, 5), axis=rng.choice(AXES))
    return Case(
        kind, counts, total, groups, rng.choice([8, 16]), rng.randint(1, 4), raster,
        rng.choice([1, 4, 7, 12]), rng.randint(1, 12), rng.randint(1, 3), random_partition(rng),
    )  # fmt: skip


def kernel_items(
    case: Case, code: str, bits: int, seed: int | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """How many items each CTA says it has, and the items [CTAs, most, FIELDS]."""
    cut = case.partition
    numbers = (
        KINDS.index(case.kind), len(case.groups.rows), case.tile_m, case.columns,
        case.steps, case.unit, SPLITS.index(cut.split), cut.splits,
        cut.min_run, case.raster.width, AXES.index(case.raster.axis), 0,
    )  # fmt: skip
    problem = struct.pack("12iq", *numbers, case.rows)
    tiles = case.groups.row_tiles(case.tile_m)[-1] * case.columns
    most = tiles * cut.splits // case.ctas + 4
    written = np.full(case.ctas, -7, np.int64)
    items = np.full((case.ctas, most, FIELDS), -7, np.int64)
    counts = np.array(case.counts or [0], np.int64 if bits == 64 else np.int32)
    arguments = [problem, counts, written, items, most]
    entry = f"write_items_{bits}"
    humming_sim.launch(code, entry, grid=case.ctas, block=64, args=arguments, seed=seed)
    return written, items


def expected_items(case: Case) -> list[list[tuple[int, ...]]]:
    tiles = TileMap(case.groups.row_tiles(case.tile_m), case.columns, case.raster)
    schedule = Schedule(
        tiles=tiles.tiles,
        steps=case.steps,
        ctas=case.ctas,
        unit=case.unit,
        partition=case.partition,
    )
    expected = []
    for cta in range(case.ctas):
        mine = []
        for item in schedule.items(cta):
            place = tiles.place(item.tile)
            rows = case.groups.tile_rows(place.group, place.row, case.tile_m)
            mine.append((*item, *place, *rows))
        expected.append(mine)
    return expected


def check(case: Case, code: str, bits: int, seed: int | None = None) -> None:
    written, items = kernel_items(case, code, bits, seed)
    expected = expected_items(case)
    assert written.tolist() == [len(mine) for mine in expected], case
    for cta, mine in enumerate(expected):
        assert [tuple(row) for row in items[cta, : len(mine)].tolist()] == mine, (case, cta)


GROUPED = [GemmKind.DENSE, GemmKind.GROUPED_CONTIGUOUS, GemmKind.GROUPED_MASKED]


@pytest.mark.parametrize("kind", GROUPED)
def test_a_kernel_that_counts_its_groups_walks_the_same_items(kind: GemmKind) -> None:
    code, rng = ptx(), random.Random(kind.value)
    for number in range(12):
        check(random_case(rng, kind), code, bits=32 if number % 2 else 64)


def test_threads_in_any_order_walk_the_same_items() -> None:
    code, rng = ptx(), random.Random(3)
    case = random_case(rng, GemmKind.GROUPED_MASKED)._replace(ctas=3)
    check(case, code, bits=32, seed=1)


@pytest.mark.parametrize("kind", GROUPED)
def test_a_kernel_has_no_items_without_rows(kind: GemmKind) -> None:
    code = ptx()
    case = random_case(random.Random(1), kind)._replace(counts=[0] * 4, rows=0)
    groups = {
        GemmKind.DENSE: RowGroups.dense(0),
        GemmKind.GROUPED_CONTIGUOUS: RowGroups.contiguous([0] * 4),
        GemmKind.GROUPED_MASKED: RowGroups.masked([0] * 4, 0),
    }[kind]
    for split in Split:
        check(case._replace(groups=groups, partition=Partition(split=split)), code, bits=32)


def test_a_kernel_stays_inside_of_rows_that_counts_would_leave() -> None:
    code, rng = ptx(), random.Random(5)
    case = random_case(rng, GemmKind.GROUPED_MASKED)
    bad = case._replace(counts=[-3, 41, 9], groups=RowGroups.masked([0, 40, 9], 40))
    check(bad, code, bits=32)
    case = random_case(rng, GemmKind.GROUPED_CONTIGUOUS)._replace(rows=30)
    bad = case._replace(counts=[0, 20, 10, 99], groups=RowGroups((0, 20, 10), (20, 0, 20)))
    check(bad, code, bits=64)


# --------------------------------------------------------------------------- partials and their sum


def expected_sums(schedule: Schedule, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """fp32 sums, part by part and then over the parts by ascending K, as one thread would."""
    sums = np.zeros((schedule.tiles, 64), np.float32)
    items = sorted(item for cta in range(schedule.ctas) for item in schedule.items(cta))
    for item in items:
        partial = np.zeros(64, np.float32)
        for step in range(item.k_begin, item.k_end):
            partial += values[item.tile, step]
        sums[item.tile] = partial if item.is_first else sums[item.tile] + partial
    return sums


@pytest.mark.parametrize(
    ("partition", "tiles", "ctas"),
    [
        (Partition(), 5, 3),
        (Partition(split=Split.SPLIT_K, splits=4), 5, 3),
        (Partition(split=Split.STREAM_K), 7, 3),
        (Partition(split=Split.STREAM_K), 2, 7),
    ],
    ids=str,
)
def test_partials_are_summed_in_the_same_order_whoever_is_last(
    partition: Partition, tiles: int, ctas: int
) -> None:
    schedule = Schedule(tiles=tiles, steps=9, ctas=ctas, unit=2, partition=partition)
    size = schedule.workspace(1, 64)
    rng = np.random.default_rng(4)
    values = (rng.normal(size=(tiles, 9, 64)) * 10.0 ** rng.integers(-4, 5, (tiles, 9, 64))).astype(
        np.float32
    )
    expected = expected_sums(schedule, values)
    experts = np.arange(tiles, dtype=np.int32)
    experts[1] = -1  # an indexed problem's tile without an expert: nothing is stored or counted
    expected[1] = np.nan
    code = ptx()
    counters = np.zeros(max(size.counters, 1), np.uint32)
    numbers = (SPLITS.index(partition.split), partition.splits, partition.min_run)
    for seed in (None, *range(1, SEEDS + 1)):  # on the counters that the launch before has left
        partials = np.full((max(size.slots, 1), 64), np.nan, np.float32)
        sums = np.full((tiles, 64), np.nan, np.float32)
        stores = np.zeros(tiles, np.int32)
        arguments = [tiles, 9, 2, *numbers, experts, values, counters, partials, sums, stores]
        humming_sim.launch(code, "sum_tiles", grid=ctas, block=64, args=arguments, seed=seed)
        assert (sums.view(np.uint32) == expected.view(np.uint32)).all(), seed
        assert stores.tolist() == [0 if expert < 0 else 64 for expert in experts]
        assert not counters.any()
