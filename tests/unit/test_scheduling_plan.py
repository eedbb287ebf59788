"""The choice of a way to cut K: waves decide, promises restrict."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humming.errors import ConfigError
from humming.scheduling import (
    Costs,
    Partition,
    Rates,
    Schedule,
    Split,
    estimate,
    plan,
    refuse_batch_invariant,
)
from humming.scheduling.planning import most_parts

TILE = 128 * 128
COSTS = Costs(step_flops=2.0 * TILE * 64, step_bytes=0, tile_bytes=TILE * 2, partial_bytes=TILE * 4)
RATES = Rates(flops=5e6, bytes=4e6, cta_bytes=6e4, item_us=1.0)

WHOLES = st.builds(
    Schedule,
    tiles=st.integers(0, 2000),
    steps=st.integers(1, 300),
    ctas=st.integers(1, 200),
    unit=st.integers(1, 3),
)


def whole(tiles: int, steps: int, ctas: int = 132) -> Schedule:
    return Schedule(tiles=tiles, steps=steps, ctas=ctas)


def test_full_waves_are_data_parallel() -> None:
    assert plan(whole(132 * 3, 64), COSTS, RATES).partition == Partition()


def test_a_short_k_is_data_parallel() -> None:
    assert plan(whole(140, 2), COSTS, RATES).partition == Partition()


def test_few_tiles_with_a_long_k_are_split() -> None:
    chosen = plan(whole(16, 256), COSTS, RATES).partition
    assert chosen.split is not Split.DATA_PARALLEL


def test_a_last_wave_of_few_tiles_is_streamed() -> None:
    chosen = plan(whole(132 * 2 + 4, 256), COSTS, RATES)
    assert chosen.partition.split is Split.STREAM_K
    alone = estimate(whole(132 * 2 + 4, 256), COSTS, RATES)
    assert alone / chosen.us == pytest.approx(3 / (2 + 4 / 132), rel=0.1)


def test_a_wave_costs_what_its_items_cost() -> None:
    costs = Costs(step_flops=10, step_bytes=100, tile_bytes=50)
    rates = Rates(flops=1, bytes=400, cta_bytes=80, item_us=3)
    # Eight CTAs share 400 bytes per microsecond; one alone moves 80 of them.
    full = 3 + 5 * max(10 / 1, 100 / 50) + 50 / 50
    alone = 3 + 5 * max(10 / 1, 100 / 80) + 50 / 80
    assert estimate(whole(17, 5, 8), costs, rates) == pytest.approx(2 * full + alone)


def test_partials_cost_their_bytes() -> None:
    split = Partition(split=Split.SPLIT_K, splits=4)
    schedule = Schedule(tiles=2, steps=8, ctas=8, partition=split)
    costs = Costs(step_flops=1, step_bytes=0, tile_bytes=5, partial_bytes=10)
    rates = Rates(flops=1, bytes=8, cta_bytes=4)
    stored, summed = 10 / 1, (4 * 10 + 5) / 4
    assert estimate(schedule, costs, rates) == pytest.approx(2 * 1 + stored + summed)


@given(st.integers(1, 40), st.integers(1, 30), st.integers(1, 30), st.integers(1, 9))
@settings(max_examples=300, deadline=None)
def test_the_parts_that_are_paid_for_are_those_of_the_tile_with_the_most_or_one_less(
    tiles: int, steps: int, ctas: int, min_run: int
) -> None:
    stream = Partition(split=Split.STREAM_K, min_run=min_run)
    schedule = Schedule(tiles=tiles, steps=steps, ctas=ctas, partition=stream)
    if schedule.runs:
        parts = max(schedule.parts(tile) for tile in range(schedule.stream_tiles))
        assert most_parts(schedule) in (parts - (parts > 2), parts)


@given(WHOLES)
@settings(max_examples=150, deadline=None)
def test_the_choice_is_the_cheapest_of_what_was_considered(schedule: Schedule) -> None:
    chosen = plan(schedule, COSTS, RATES)
    prices = [candidate.us for candidate in chosen.considered]
    assert prices == sorted(prices)
    assert chosen.considered[0] == (chosen.partition, chosen.us)
    assert Partition() in [candidate.partition for candidate in chosen.considered]
    assert chosen == plan(schedule, COSTS, RATES)
    if schedule.tiles == 0:
        assert (chosen.partition, chosen.us) == (Partition(), 0)


@given(WHOLES, st.sampled_from([None, 1, 4]))
@settings(max_examples=100, deadline=None)
def test_a_batch_invariant_choice_is_the_same_for_all_rows(
    schedule: Schedule, fixed_splits: int | None
) -> None:
    chosen = plan(schedule, COSTS, RATES, batch_invariant=True, fixed_splits=fixed_splits)
    assert chosen.partition.splits == (fixed_splits or 1)
    assert len(chosen.considered) == 1
    assert refuse_batch_invariant(chosen.partition) is None


def test_memory_for_partials_restricts_the_choice() -> None:
    chosen = plan(whole(16, 256), COSTS, RATES, max_slots=0)
    assert {c.partition.split for c in chosen.considered} == {Split.DATA_PARALLEL}
    chosen = plan(whole(16, 256), COSTS, RATES, max_slots=64)
    assert max(candidate.partition.splits for candidate in chosen.considered) == 4
    with pytest.raises(ConfigError, match="more than max_slots=64 partials"):
        plan(whole(16, 256), COSTS, RATES, fixed_splits=5, max_slots=64)


@pytest.mark.parametrize("field", ["flops", "bytes", "cta_bytes"])
def test_rates_are_positive(field: str) -> None:
    rates = {"flops": 1.0, "bytes": 1.0, "cta_bytes": 1.0, field: 0.0}
    with pytest.raises(ConfigError, match=f"^{field}="):
        Rates(**rates)
