"""Tunings of the wide kernels for experts: what is proposed, and what of a tile is multiplied."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gemm_matrix import Case
from wgmma_layers import config_of
from wide_runs import WideBackend

from humming.backend import Problem
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.errors import ConfigError
from humming_sm75_sm89.layout import layout_of
from humming_sm90.wide_kernel import width, widths
from humming_sm90.wide_tuning import WideTuning

EXPERTS = 64
ZEROS = Case(source="nvidia-h200", weight="u4+zf-g64-f16", dtype="f16", n=4096, k=7168)
FOLDED = Case(source="nvidia-h200", weight="u4-g128-bf16", n=4096, k=7168)
SCALED = Case(source="nvidia-h200", weight="s4-g128-f32", activation="s8-token-f32", n=4096, k=7168)
CONTIGUOUS = GemmKind.GROUPED_CONTIGUOUS


def layer_of(case: Case, kind: GemmKind) -> LayerConfig:
    return replace(config_of(replace(case, kind=kind)), experts=EXPERTS)


def costs(case: Case, rows: int, kind: GemmKind = CONTIGUOUS) -> dict[WideTuning, float]:
    """Estimates of what is proposed for so many rows per expert, the cheapest first."""
    backend, layer, compute = (
        WideBackend(case.profile),
        layer_of(case, kind),
        ComputeConfig(gemm=kind),
    )
    problem = Problem(m=rows * EXPERTS if kind is CONTIGUOUS else rows)
    found = {
        tuning: backend.cost(layer, compute, problem, tuning)
        for tuning in backend.candidates(layer, compute, problem)
    }
    return dict(sorted(found.items(), key=lambda pair: pair[1]))


def of_tile(case: Case, tuning: WideTuning, rows: int) -> int:
    layer, compute = layer_of(case, CONTIGUOUS), ComputeConfig(gemm=CONTIGUOUS)
    return width(layer, compute, layout_of(layer, case.profile), tuning, rows)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (32, (16, 32)),
        (48, (16, 32, 48)),
        (64, (32, 48, 64)),
        (128, (64, 80, 96, 112, 128)),
        (160, tuple(range(80, 161, 8))),
        (192, (96, 112, 128, 144, 160, 176, 192)),
        (256, tuple(range(128, 257, 16))),
        (288, tuple(range(16, 145, 16))),
    ],
)
def test_widths_of_an_mma_that_takes_a_tile(tokens: int, expected: tuple[int, ...]) -> None:
    layer, compute = layer_of(FOLDED, CONTIGUOUS), ComputeConfig(gemm=CONTIGUOUS)
    layout = layout_of(layer, FOLDED.profile)
    tuning = WideTuning(tokens=tokens, fits=True, folds=True)
    assert widths(layer, compute, layout, tuning) == expected
    whole = tokens if tokens <= 256 else tokens // 2
    assert widths(layer, compute, layout, replace(tuning, fits=False)) == (whole,)


def test_tokens_that_are_multiplied_for_a_tile() -> None:
    folded = WideTuning(tokens=160, fits=True, folds=True)
    assert [of_tile(FOLDED, folded, rows) for rows in (1, 80, 81, 128, 160)] == [
        80, 80, 88, 128, 160,
    ]  # fmt: skip
    scaled = WideTuning(tokens=192, fits=True)
    assert [of_tile(SCALED, scaled, rows) for rows in (1, 64, 65, 192)] == [64, 64, 128, 192]
    assert of_tile(SCALED, replace(scaled, fits=False), 1) == 192


def test_tiles_of_experts_fit_those_of_dense_layers_are_whole() -> None:
    assert all(tuning.fits for tuning in costs(FOLDED, 128) if tuning.folds)
    assert {tuning.tokens for tuning in costs(FOLDED, 16) if not tuning.fits} == {16}
    assert not any(tuning.fits for tuning in costs(FOLDED, 128, GemmKind.DENSE))
    assert {tuning.tokens for tuning in costs(SCALED, 128) if tuning.fits} == {64, 128, 192}
    assert {tuning.tokens for tuning in costs(SCALED, 512) if not tuning.fits} == {256}


def test_no_tiles_are_proposed_that_rows_of_an_expert_do_not_fill_by_half() -> None:
    """However many rows there are of all experts."""
    assert {tuning.tokens for tuning in costs(FOLDED, 16)} == {16, 32, 48, 64}
    assert max(tuning.tokens for tuning in costs(FOLDED, 64)) == 128
    assert max(tuning.tokens for tuning in costs(FOLDED, 64, GemmKind.GROUPED_MASKED)) == 128


@pytest.mark.parametrize("case", [FOLDED, SCALED], ids=str)
def test_experts_with_128_rows_on_average_get_tiles_with_room_for_more(case: Case) -> None:
    """Half of them have more: with tiles of 128 those would take two."""
    ranked = costs(case, 128)
    assert next(iter(ranked)).tokens == (160 if case is FOLDED else 192)
    smaller = min(cost for tuning, cost in ranked.items() if tuning.tokens == 128)
    assert smaller > 1.15 * min(ranked.values())


def test_masked_experts_are_thought_to_be_full() -> None:
    """Their number of rows is not known before the launch; it is at most what there is room for."""
    (best, *_) = costs(FOLDED, 128, GemmKind.GROUPED_MASKED)
    assert of_tile(FOLDED, best, 128) == 128


def test_no_tile_of_160_where_64_tokens_at_a_time_are_scaled() -> None:
    backend, layer = WideBackend(SCALED.profile), layer_of(SCALED, CONTIGUOUS)
    with pytest.raises(ConfigError, match="a multiple of 64 where sums"):
        backend.kernel(layer, ComputeConfig(gemm=CONTIGUOUS), WideTuning(tokens=160, fits=True))


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("case", [FOLDED, SCALED, ZEROS], ids=str)
def test_several_ctas_of_an_sm_share_its_memory_and_registers(case: Case, rows: int) -> None:
    limits, layer = case.profile.limits, layer_of(case, CONTIGUOUS)
    assert limits.smem_sm_bytes is not None
    backend, compute = WideBackend(case.profile), ComputeConfig(gemm=CONTIGUOUS)
    several = [tuning for tuning in costs(case, rows) if tuning.ctas > 1]
    assert several
    for tuning in several:
        shape = backend.kernel(layer, compute, tuning).launch(Problem(m=rows * EXPERTS), layer)
        assert tuning.ctas * (shape.shared_bytes + 1024) <= limits.smem_sm_bytes
        assert shape.grid[0] <= tuning.ctas * limits.sm_count
        producer, consumer = tuning.registers
        launched = limits.registers // (shape.block[0] * tuning.ctas) // 8 * 8
        assert 128 * producer + 256 * consumer <= shape.block[0] * launched


def test_tiles_of_few_tokens_are_not_proposed_for_many_rows() -> None:
    """Their weights would be decoded once for each."""
    assert min(tuning.tokens for tuning in costs(FOLDED, 128)) == 64
    assert min(tuning.tokens for tuning in costs(FOLDED, 64)) == 32


def test_what_several_ctas_have_no_room_for_is_refused() -> None:
    backend, layer = WideBackend(FOLDED.profile), layer_of(FOLDED, CONTIGUOUS)
    tuning = WideTuning(tokens=64, stages=8, ctas=2)
    with pytest.raises(ConfigError, match="at most 115712 bytes of shared memory"):
        backend.kernel(layer, ComputeConfig(gemm=CONTIGUOUS), tuning)
    assert replace(tuning, ctas=1).registers == (40, 232)
    with pytest.raises(ConfigError, match="ctas"):
        WideTuning(tokens=64, ctas=4)
    with pytest.raises(ConfigError, match="fits"):
        WideTuning(tokens=16, fits=True)


def test_a_tuning_says_that_it_fits() -> None:
    assert "5 stages, 2 per SM" in str(WideTuning(tokens=64, stages=5, ctas=2))
    assert "wide 128x160 or less, 4 stages" in str(WideTuning(tokens=160, fits=True))
    assert "wide 128x160, 4 stages" in str(WideTuning(tokens=160))
