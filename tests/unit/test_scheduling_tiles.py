"""Tiles and rows of groups: each one once, of one kind after the other, and near each other."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humming.configs import GemmKind
from humming.errors import ConfigError
from humming.scheduling import (
    Axis,
    Raster,
    RowGroups,
    TileMap,
    align_rows,
    ceil_div,
    max_row_tiles,
    source_row,
)

RASTERS = st.builds(Raster, width=st.integers(1, 12), axis=st.sampled_from(Axis))
COUNTS = st.lists(st.one_of(st.just(0), st.integers(0, 50)), min_size=1, max_size=12)


def groups_of(counts: list[int]) -> dict[GemmKind, RowGroups]:
    offsets = [sum(counts[:i]) for i in range(len(counts) + 1)]
    return {
        GemmKind.DENSE: RowGroups.dense(counts[0]),
        GemmKind.GROUPED_CONTIGUOUS: RowGroups.contiguous(offsets),
        GemmKind.GROUPED_MASKED: RowGroups.masked(counts, 50),
    }


@given(RASTERS, st.integers(1, 30), st.integers(1, 30))
@settings(max_examples=300, deadline=None)
def test_a_raster_meets_every_tile_once(raster: Raster, rows: int, columns: int) -> None:
    places = [raster.place(tile, rows, columns) for tile in range(rows * columns)]
    assert sorted(places) == [(r, c) for r in range(rows) for c in range(columns)]


def test_a_raster_walks_across_a_band_and_then_along_it() -> None:
    raster = Raster(width=2, axis=Axis.COLUMNS)
    walk = [raster.place(tile, 2, 3) for tile in range(6)]
    assert walk == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)]
    raster = Raster(width=2, axis=Axis.ROWS)
    walk = [raster.place(tile, 3, 2) for tile in range(6)]
    assert walk == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]


@pytest.mark.parametrize("axis", Axis)
def test_a_wave_of_a_banded_raster_touches_fewer_rows_and_columns(axis: Axis) -> None:
    def touched(width: int) -> int:
        wave = [Raster(width=width, axis=axis).place(tile, 64, 64) for tile in range(128)]
        return len({r for r, _ in wave}) + len({c for _, c in wave})

    assert touched(8) == 8 + 16
    assert touched(64) == 64 + 2


@given(COUNTS, st.integers(1, 20), st.integers(1, 9), RASTERS)
@settings(max_examples=300, deadline=None)
def test_every_row_and_column_of_every_group_is_computed_once(
    counts: list[int], tile_m: int, columns: int, raster: Raster
) -> None:
    for kind, groups in groups_of(counts).items():
        tiles = TileMap(groups.row_tiles(tile_m), columns, raster)
        met = []
        order = []
        for tile in range(tiles.tiles):
            place = tiles.place(tile)
            order.append(place.group)
            begin, end = groups.tile_rows(place.group, place.row, tile_m)
            assert 0 < end - begin <= tile_m
            met += [(row, place.column) for row in range(begin, end)]
        rows = [b + i for b, n in zip(groups.begins, groups.rows, strict=True) for i in range(n)]
        assert sorted(met) == [(row, column) for row in rows for column in range(columns)], kind
        assert order == sorted(order), "tiles of a group are contiguous"


@given(COUNTS, st.integers(1, 20))
@settings(max_examples=300, deadline=None)
def test_the_most_row_tiles_are_enough(counts: list[int], tile_m: int) -> None:
    for kind, groups in groups_of(counts).items():
        rows = {GemmKind.DENSE: counts[0], GemmKind.GROUPED_MASKED: 50}.get(kind, sum(counts))
        most = max_row_tiles(kind, rows, tile_m, len(counts))
        assert groups.row_tiles(tile_m)[-1] <= most
    worst = [1] * (len(counts) - 1) + [3 * tile_m + 1]
    offsets = [sum(worst[:i]) for i in range(len(worst) + 1)]
    most = max_row_tiles(GemmKind.GROUPED_CONTIGUOUS, sum(worst), tile_m, len(worst))
    assert RowGroups.contiguous(offsets).row_tiles(tile_m)[-1] == most


def test_no_rows_no_tiles() -> None:
    for groups in (RowGroups.dense(0), RowGroups.contiguous([0, 0]), RowGroups.masked([0, 0], 9)):
        assert TileMap(groups.row_tiles(16), 7).tiles == 0
    for kind in GemmKind:
        assert max_row_tiles(kind, 0, 16, 8) == 0


@given(
    st.integers(2**31, 2**40),
    st.sampled_from([16, 64, 128, 256]),  # 8 would make 2^31 rows of tiles
    st.sampled_from([64, 128, 7168]),
    RASTERS,
    st.data(),
)
@settings(max_examples=200, deadline=None)
def test_huge_results_have_a_place_for_every_tile(
    elements: int, tile_m: int, n: int, raster: Raster, data: st.DataObject
) -> None:
    groups = RowGroups.contiguous([0, 5, 5, max(elements // n, 5)])
    tiles = TileMap(groups.row_tiles(tile_m), ceil_div(n, 64), raster)
    tile = data.draw(st.integers(0, tiles.tiles - 1))
    group, row, column = tiles.place(tile)
    assert group in (0, 2)
    assert column < tiles.columns
    assert row < tiles.prefix[group + 1] - tiles.prefix[group]
    begin, end = groups.tile_rows(group, row, tile_m)
    assert groups.begins[group] <= begin < end <= groups.begins[group] + groups.rows[group]


@given(st.lists(st.integers(-1, 7), max_size=80), st.integers(1, 17), st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_aligned_rows_hold_every_choice_of_a_local_expert_once(
    chosen: list[int], tile_m: int, top_k: int
) -> None:
    experts = 6  # 6 and 7 are remote
    rows = align_rows(chosen, experts, tile_m)
    assert len(rows.slots) == len(rows.experts) * tile_m
    assert len(rows.experts) <= max_row_tiles(GemmKind.INDEXED, len(chosen), tile_m, experts)
    assert all(a <= b for a, b in pairwise(rows.experts))
    for place, number in enumerate(rows.slots):
        row = source_row(number, len(chosen), top_k)
        if number == len(chosen):
            assert row == -1
        else:
            assert chosen[number] == rows.experts[place // tile_m]
            assert row == number // top_k
    real = [number for number in rows.slots if number < len(chosen)]
    assert sorted(real) == [i for i, expert in enumerate(chosen) if 0 <= expert < experts]
    for tile in range(len(rows.experts)):
        assert rows.slots[tile * tile_m] < len(chosen), "no tile is padding alone"


def test_sentinels_have_no_source() -> None:
    assert [source_row(slot, 8, 2) for slot in (-1, 0, 7, 8, 2**31)] == [-1, 0, 3, -1, -1]


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("m", lambda: RowGroups.dense(-1)),
        ("offsets", lambda: RowGroups.contiguous([0])),
        ("offsets", lambda: RowGroups.contiguous([1, 2])),
        ("offsets", lambda: RowGroups.contiguous([0, 3, 2])),
        ("counts", lambda: RowGroups.masked([], 4)),
        ("counts", lambda: RowGroups.masked([5], 4)),
        ("counts", lambda: RowGroups.masked([-1], 4)),
        ("width", lambda: Raster(width=0)),
        ("prefix", lambda: TileMap((0,), 1)),
        ("prefix", lambda: TileMap((1, 2), 1)),
        ("prefix", lambda: TileMap((0, 2, 1), 1)),
        ("prefix", lambda: TileMap((0, 2**31), 1)),
        ("columns", lambda: TileMap((0, 1), 0)),
    ],
)
def test_malformed_groups_are_refused(field: str, make: object) -> None:
    with pytest.raises(ConfigError, match=f"^{field}="):
        make()  # type: ignore[operator]
