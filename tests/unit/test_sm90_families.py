"""The backend sm90 before anything runs: families of layers, pipelines, tunings, estimates."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
from gemm_data import weight_of
from gemm_matrix import Case
from wgmma_layers import H100, config_of

from humming import plugins
from humming.backend import KernelSpec, Problem
from humming.configs import ComputeConfig, GemmKind, LayerConfig, TuningConfig
from humming.engine.choice import Planner
from humming.engine.measured import tuning_of
from humming.errors import ConfigError
from humming.formats.table import number_format
from humming.profiles import TuningRow
from humming_sm75_sm89.backend import Sm75Sm89Backend
from humming_sm75_sm89.tuning import MmaTuning
from humming_sm90.backend import Sm90Backend
from humming_sm90.families import FAMILIES, Narrow, SameWidth
from humming_sm90.stream_tuning import StreamTuning
from humming_sm90.tuning import WgmmaTuning
from humming_sm90.wide_tuning import WideTuning

PROFILE = plugins.profiles()["nvidia-h200"]
NARROW = Case(source=H100, weight="u4-g128-bf16", n=8192, k=8192)
SAME = Case(source=H100, weight="s8-g128-f32", activation="s8-token-f32", n=8192, k=8192)
DENSE = ComputeConfig()


def backend() -> Sm90Backend:
    return Sm90Backend(PROFILE)


def kinds(case: Case, m: int = 16, **promises: Any) -> Counter[str]:
    """How many tunings of each kind are proposed."""
    compute = dataclasses.replace(case.compute, **promises)
    found = backend().candidates(config_of(case), compute, Problem(m=m))
    return Counter(type(tuning).__name__ for tuning in found)


@pytest.mark.parametrize(
    ("weight", "activation", "family"),
    [
        ("s8-g128-f32", "s8-token-f32", SameWidth),
        ("s8-channel-f32", "s8-token-f32", Narrow),
        ("e5m2-b128x128-f32", "e4m3fn-g128-f32", SameWidth),
        ("e4m3fn-channel-f32", "e4m3fn-g128-f32", SameWidth),
        ("e4m3fn-g64-f32", "e4m3fn-token-f32", Narrow),
        ("s8-channel-f32", "", Narrow),
        ("u8+z-g64-f32", "", Narrow),
        ("u4-g128-f32", "s8-token-f32", Narrow),
        ("e2m1-g32-e8m0", "e4m3fn-token-f32", Narrow),
        ("s4-channel-f32", "s4-token-f32", Narrow),
    ],
)
def test_formats_alone_decide_the_family(weight: str, activation: str, family: type) -> None:
    layer = config_of(dataclasses.replace(NARROW, weight=weight, activation=activation))
    assert [one for one in FAMILIES if one.has(layer)] == [family]


def test_narrow_layers_are_packed_as_on_older_devices() -> None:
    case = dataclasses.replace(NARROW, n=200, k=392, bias=True)
    weight, layer = weight_of(case, "cpu"), config_of(case)
    older = Sm75Sm89Backend(PROFILE)
    assert backend().layout(layer) == older.layout(layer)
    assert backend().fit(weight, layer) == older.fit(weight, layer)
    ours, theirs = backend().pack(weight, layer), older.pack(weight, layer)
    assert ours.layout == theirs.layout == backend().layout(layer)
    assert all(ours.tensors[name].equal(theirs.tensors[name]) for name in theirs.tensors)
    assert ours.tensors.keys() == theirs.tensors.keys()
    repack = backend().repack(weight, layer)
    assert repack is not None
    assert repack.kernel.arch == "sm_90a"
    assert backend().repack(weight_of(dataclasses.replace(SAME, n=64, k=128), "cpu"),
                            config_of(SAME)) is None  # fmt: skip


def test_narrow_layers_are_refused_for_what_mma_sync_does_not_multiply() -> None:
    older = Sm75Sm89Backend(PROFILE)
    for changes in ({"weight": "e5m1-channel-f32", "dtype": "f16"}, {"activation": "s4-token-f32"}):
        layer = config_of(dataclasses.replace(NARROW, **changes))
        assert backend().refuse(layer, DENSE) == older.refuse(layer, DENSE)
    assert backend().refuse(config_of(NARROW), DENSE) is None
    wgmma = dataclasses.replace(PROFILE.features, mma=("wgmma",))
    alone = Sm90Backend(dataclasses.replace(PROFILE, features=wgmma))
    assert "for devices with mma" in str(alone.refuse(config_of(NARROW), DENSE))


def test_pipelines_propose_what_they_can_multiply() -> None:
    assert set(kinds(NARROW)) == {"MmaTuning", "StreamTuning", "WideTuning"}
    indexed = dataclasses.replace(NARROW, kind=GemmKind.INDEXED)
    assert set(kinds(indexed)) == {"MmaTuning", "StreamTuning", "WideTuning"}
    assert set(kinds(SAME)) == {"WgmmaTuning"}
    integers = dataclasses.replace(NARROW, activation="s8-token-f32")
    half = dataclasses.replace(NARROW, dtype="f16", weight="u4-g128-f16", accumulate="f16")
    assert set(kinds(integers)) == {"MmaTuning", "StreamTuning", "WideTuning"}
    assert set(kinds(half)) == {"MmaTuning"}


def test_a_promise_of_bits_is_kept_by_one_pipeline_alone() -> None:
    assert set(kinds(NARROW, batch_invariant=True)) == {"MmaTuning"}


@pytest.mark.parametrize("kind", GemmKind)
def test_proposals_are_kernels_that_fit_the_device(kind: GemmKind) -> None:
    case = dataclasses.replace(NARROW, kind=kind, weight="u4+z-g64-f16", dtype="f16")
    layer, most = config_of(case), PROFILE.limits.smem_block_bytes
    assert most is not None
    for m in (1, 64, 300):
        problem = Problem(m=m)
        for tuning in backend().candidates(layer, case.compute, problem):
            spec = backend().kernel(layer, case.compute, tuning)
            assert backend().cost(layer, case.compute, problem, tuning) > 0
            shape = spec.launch(problem, layer)
            assert shape.shared_bytes <= most
            assert shape.block[0] <= 1024


def chosen(m: int, **changes: Any) -> TuningConfig:
    case = dataclasses.replace(NARROW, **changes)
    return Planner(backend(), config_of(case), case.compute).tuning(Problem(m=m))


def test_a_single_token_takes_mma_sync_few_are_streamed_and_many_go_wide() -> None:
    assert isinstance(chosen(1), MmaTuning)
    assert isinstance(chosen(2048), WideTuning)
    for m in (32, 64):
        tuning = chosen(m)
        assert isinstance(tuning, StreamTuning)
        assert tuning.tokens == m


# -- tunings ---------------------------------------------------------------------------------------


def test_a_measured_row_names_the_pipeline() -> None:
    def meant(**use: Any) -> TuningConfig:
        return tuning_of(Sm90Backend, TuningRow(when={}, use=use, source=""))

    assert meant(pipeline="stream", tokens=32) == StreamTuning(tokens=32)
    assert meant(pipeline="mma", tokens=8) == MmaTuning(tokens=8)
    assert meant(pipeline="wide", tokens=128) == WideTuning(tokens=128)
    assert meant(pipeline="wgmma", tile_n=64) == WgmmaTuning(tile_n=64)
    with pytest.raises(ConfigError, match="one of wgmma, mma, stream, wide"):
        meant(tokens=32)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("groups_n", 3), ("groups_k", 9), ("tokens", 8), ("stages", 1), ("stages", 7), ("ctas", 0),
        ("ctas", 5), ("splits", 0), ("min_run", -1), ("raster", 0),
    ],
)  # fmt: skip
def test_a_tuning_that_means_nothing_is_refused(field: str, value: int) -> None:
    with pytest.raises(ConfigError):
        StreamTuning(**{field: value})  # type: ignore[arg-type]


def test_what_a_tuning_needs() -> None:
    tuning = StreamTuning(groups_n=2, groups_k=2, tokens=64, stages=3, splits=2)
    assert (tuning.threads, tuning.tile_n, tuning.tile_m) == (512, 128, 64)
    assert tuning.partial_bytes == 4 * 128 * 64
    assert tuning.shared_bytes(16, 16) == 1024 + 2 * 3 * 64 * 256
    assert str(tuning) == "stream, 2x2 warpgroups of 64x64, 3 stages, 1 per SM, split_k(2)"
    folded = StreamTuning(min_run=2, folds=True)
    assert str(folded).endswith("4 stages, 1 per SM, stream_k(min_run=2), folded")
    with pytest.raises(ConfigError, match="no runs with more than 1"):
        StreamTuning(splits=2, min_run=1)


def refused(layer: LayerConfig, tuning: TuningConfig, compute: ComputeConfig = DENSE) -> str:
    with pytest.raises(ConfigError) as caught:
        backend().kernel(layer, compute, tuning)
    return str(caught.value)


def test_a_tuning_is_refused_where_its_kernel_would_not_be_right() -> None:
    half = dataclasses.replace(NARROW, dtype="f16", weight="u4-g128-f16")
    assert "folds" in refused(config_of(half), StreamTuning(folds=True))
    wide = StreamTuning(groups_n=2, groups_k=4, tokens=128, stages=6)
    assert "shared memory" in refused(config_of(NARROW), wide)
    assert "a MmaTuning or StreamTuning or WideTuning for such a layer" in refused(
        config_of(NARROW), WgmmaTuning()
    )
    assert "a WgmmaTuning for such a layer" in refused(config_of(SAME), StreamTuning())
    sums = ComputeConfig(accumulate=number_format("f16"))
    assert "not in f16" in refused(config_of(half), StreamTuning(), sums)
    groups = config_of(dataclasses.replace(NARROW, activation="s8-g128-f32"))
    assert "not by groups" in refused(groups, StreamTuning())
    with pytest.raises(ConfigError, match="or WideTuning, for sm90"):
        Planner(backend(), config_of(NARROW), DENSE, TuningConfig())


def test_the_kernel_says_what_it_is() -> None:
    spec: KernelSpec = backend().kernel(config_of(NARROW), DENSE, StreamTuning())
    assert spec.name == "sm90.stream.dense.bf16_u4-g128-bf16_bf16"
    assert spec.name == spec.context.name  # type: ignore[attr-defined]
    assert spec.packages == ("humming_sm75_sm89",)
    assert spec.row_tile == 16
