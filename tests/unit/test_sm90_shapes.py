"""Which tunings layers of other shapes than 8192 x 8192 get: what an H200 was fastest with.

Measured on 2026-11-30, 400 tunings of these products; see ``cost.py``, ``stream_cost.py`` and
``wide_candidates.py`` of humming-sm90.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from gemm_matrix import Case
from wgmma_layers import config_of

from humming.backend import Problem
from humming.configs import ComputeConfig, TuningConfig
from humming.engine.choice import Planner
from humming_sm90.backend import Sm90Backend
from humming_sm90.stream_tuning import StreamTuning
from humming_sm90.tuning import WgmmaTuning
from humming_sm90.wide_tuning import WideTuning

INT4 = Case(source="nvidia-h200", weight="u4-g128-bf16")
MXFP4 = Case(source="nvidia-h200", weight="e2m1-g32-e8m0", activation="e4m3fn-token-f32")
FP8 = Case(source="nvidia-h200", weight="e4m3fn-channel-f32", activation="e4m3fn-token-f32")
BLOCKS = Case(source="nvidia-h200", weight="e4m3fn-b128x128-f32", activation="e4m3fn-g128-f32")
SHORT, ODD, LONG, WIDE = (1280, 8192), (2112, 7168), (4096, 14336), (28672, 4096)


def chosen(case: Case, shape: tuple[int, int], m: int) -> TuningConfig:
    layer = config_of(replace(case, n=shape[0], k=shape[1]))
    return Planner(Sm90Backend(case.profile), layer, case.compute).tuning(Problem(m=m))


@pytest.mark.parametrize("m", [1, 16, 128])
@pytest.mark.parametrize("shape", [SHORT, ODD, LONG], ids=str)
@pytest.mark.parametrize("case", [INT4, MXFP4, BLOCKS], ids=lambda case: case.weight)
def test_few_tiles_are_shared_by_ctas(case: Case, shape: tuple[int, int], m: int) -> None:
    """20 CTAs would read a weight of 1280 x 8192, which keeps 132 busy for a few microseconds."""
    tuning = chosen(case, shape, m)
    assert tuning.splits > 1  # type: ignore[attr-defined]
    assert isinstance(tuning, WgmmaTuning) == (case is BLOCKS)


@pytest.mark.parametrize("case", [INT4, MXFP4, FP8], ids=lambda case: case.weight)
@pytest.mark.parametrize("shape", [SHORT, ODD], ids=str)
def test_many_tokens_get_the_tile_that_makes_the_fewest_waves(
    case: Case, shape: tuple[int, int]
) -> None:
    """13 x 10 and 13 x 17 tiles of 160 tokens, where those of 128 or 256 would take a wave more."""
    tuning = chosen(case, shape, 2048)
    assert isinstance(tuning, WideTuning)
    assert (tuning.tokens, tuning.splits) == (160, 1)


@pytest.mark.parametrize("m", [1024, 2048, 4096, 8192])
@pytest.mark.parametrize("case", [INT4, MXFP4, FP8], ids=lambda case: case.weight)
def test_whole_waves_keep_the_largest_tile(case: Case, m: int) -> None:
    tuning = chosen(case, (8192, 8192), m)
    assert isinstance(tuning, WideTuning)
    assert tuning.tokens == 256


@pytest.mark.parametrize("m", [1, 16])
def test_more_tiles_than_sms_share_these(m: int) -> None:
    """With few tokens: some CTAs of an SM load while others start or store."""
    for case in (MXFP4, FP8):
        tuning = chosen(case, WIDE, m)
        assert isinstance(tuning, WideTuning)
        assert (tuning.tokens, tuning.ctas) == (16, 2)


@pytest.mark.parametrize("m", [1, 16, 32, 33, 64, 65, 128])
def test_no_dense_tile_is_larger_than_one_that_holds_all_rows(m: int) -> None:
    """Copies of rows that are not there take time too."""
    for shape in (WIDE, (8192, 8192)):
        layer = config_of(replace(FP8, n=shape[0], k=shape[1]))
        found = Sm90Backend(FP8.profile).candidates(layer, FP8.compute, Problem(m=m))
        tokens = {tuning.tokens for tuning in found if isinstance(tuning, WideTuning)}
        assert len([one for one in tokens if one >= m]) == 1


def test_tiles_of_64_tokens_stream_when_rows_fill_half_of_them() -> None:
    assert isinstance(chosen(FP8, (8192, 8192), 16), StreamTuning)
    assert isinstance(chosen(FP8, (8192, 8192), 64), WideTuning)


@pytest.mark.parametrize("m", [1, 64, 65])
def test_few_tokens_of_same_width_get_tiles_of_64(m: int) -> None:
    tuning = chosen(BLOCKS, (8192, 8192), m)
    assert isinstance(tuning, WgmmaTuning)
    assert tuning.tokens == (64 if m <= 64 else 128)


def test_a_promise_that_batches_do_not_matter_leaves_whole_tiles() -> None:
    compute = ComputeConfig(batch_invariant=True)
    layer = config_of(replace(BLOCKS, n=1280, k=8192))
    for m in (1, 128, 2048):
        found = list(Sm90Backend(BLOCKS.profile).candidates(layer, compute, Problem(m=m)))
        assert found
        assert all(isinstance(t, WgmmaTuning) and t.splits == 1 for t in found)
