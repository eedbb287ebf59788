"""Tunings that someone asks for: right whatever the sizes are, or refused before anything runs."""

from __future__ import annotations

import pytest
import torch

import humming
from humming.backend import Problem
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.errors import ConfigError
from humming.formats.activation import ActivationScheme
from humming.formats.scheme import WeightScheme
from humming.formats.table import number_format
from humming.plugins import profiles
from humming_sm75_sm89.backend import Sm75Sm89Backend
from humming_sm75_sm89.tuning import MmaTuning


def layer_of(n: int, k: int, weight: str = "u4-g64-bf16", activation: str = "bf16") -> LayerConfig:
    return LayerConfig(
        n=n,
        k=k,
        weight=WeightScheme.parse(weight),
        activation=ActivationScheme.parse(activation),
        output=number_format("bf16"),
    )


@pytest.mark.parametrize(
    ("n", "k", "tuning"),
    [
        (64, 128, MmaTuning(splits=2, warps_k=1)),
        (130, 300, MmaTuning(splits=8, warps_k=2)),
        (130, 300, MmaTuning(min_run=1, warps_k=2)),
        (70, 40, MmaTuning(warps_k=8, stage_blocks=1)),
    ],
    ids=str,
)
def test_more_parts_than_there_is_k_are_right(n: int, k: int, tuning: MmaTuning) -> None:
    torch.manual_seed(n)
    weight = humming.quantize(torch.randn(n, k), "u4-g64-bf16")
    x = torch.randn(11, k, dtype=torch.bfloat16)
    result = humming.QuantLinear(weight, device="sim:nvidia-a100", tuning=tuning)(x)
    expected = x.double() @ weight.dequantize(torch.float64).T
    assert (result.double() - expected).norm() <= 4e-3 * expected.norm()


@pytest.mark.parametrize("kind", [kind for kind in GemmKind if kind is not GemmKind.DENSE])
def test_runs_of_k_cross_the_tiles_of_experts(kind: GemmKind) -> None:
    torch.manual_seed(7)
    m, k = 19, 1000
    weight = humming.quantize(torch.randn(4, 200, k), "u4-g128-bf16")
    x = torch.randn(m, k, dtype=torch.bfloat16)
    groups = {
        GemmKind.INDEXED: {"expert_ids": torch.randint(-1, 4, (m, 2))},
        GemmKind.GROUPED_CONTIGUOUS: {"expert_offsets": torch.tensor([0, 0, 9, 10, m])},
        GemmKind.GROUPED_MASKED: {"expert_counts": torch.tensor([2, 0, m, 1])},
    }[kind]
    rows = torch.randn(4, m, k, dtype=torch.bfloat16) if kind is GemmKind.GROUPED_MASKED else x
    # 528 CTAs for some 20 tiles of 8 steps: most tiles are shared.
    tuning = MmaTuning(warps_k=2, stage_blocks=1, ctas=4, min_run=1)
    result = humming.QuantLinear(
        weight, device="sim:nvidia-h200", backend="sm75_sm89", tuning=tuning
    )
    expected = humming.QuantLinear(weight, backend="reference")(rows, **groups).double()
    assert (result(rows, **groups).double() - expected).norm() <= 4e-3 * expected.norm()


def test_a_tuning_too_large_for_the_device_is_refused_with_both_numbers() -> None:
    backend = Sm75Sm89Backend(profiles()["nvidia-t4"])
    tuning = MmaTuning(warps_k=4, tokens=64, stages=2)
    layer = layer_of(64, 128, "u4-g64-f16", "f16")
    with pytest.raises(ConfigError, match=r"which needs 131712.*at most 65536 bytes"):
        backend.kernel(layer, ComputeConfig(), tuning)


def test_scales_are_folded_only_where_operands_have_their_range() -> None:
    backend = Sm75Sm89Backend(profiles()["nvidia-a100"])
    layer = layer_of(64, 128, "u4-g64-f16", "f16")
    with pytest.raises(ConfigError, match="folds=True"):
        backend.kernel(layer, ComputeConfig(), MmaTuning(folds=True))


def test_more_shared_tiles_than_counters_are_refused() -> None:
    backend = Sm75Sm89Backend(profiles()["nvidia-a100"])
    layer = layer_of(8192, 8192)
    spec = backend.kernel(layer, ComputeConfig(), MmaTuning(splits=2))
    assert spec.workspace is not None
    assert spec.workspace(Problem(m=8), layer) > 0
    with pytest.raises(ConfigError, match="more than 16384 tiles"):
        spec.workspace(Problem(m=8192), layer)


@pytest.mark.parametrize(
    ("field", "value"),
    [("warps_n", 0), ("tokens", 24), ("stages", 1), ("stage_blocks", 3), ("splits", 0)],
)
def test_a_tuning_that_means_nothing_is_refused(field: str, value: int) -> None:
    with pytest.raises(ConfigError, match=field):
        MmaTuning(**{field: value})  # type: ignore[arg-type]


def test_no_more_barriers_and_threads_than_there_are() -> None:
    with pytest.raises(ConfigError, match="15 teams"):
        MmaTuning(warps_n=2, warps_k=16)
    with pytest.raises(ConfigError, match="32 in all"):
        MmaTuning(warps_n=4, warps_m=4, warps_k=4)
    with pytest.raises(ConfigError, match="splits"):
        MmaTuning(splits=2, min_run=1)
