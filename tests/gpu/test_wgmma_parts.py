"""Parts of K on a Hopper: the same bits whoever comes last, odd tails, and graphs of such calls."""

from __future__ import annotations

import pytest
import torch
from gemm_data import random_activations, random_weight
from gemm_runs import DEVICE, KERNELS_ALONE, ON_A_GPU, check_calls

import humming
from humming.configs import TuningConfig
from humming_sm90.stream_tuning import StreamTuning
from humming_sm90.tuning import WgmmaTuning
from humming_sm90.wide_tuning import WideTuning

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [
    *ON_A_GPU,
    KERNELS_ALONE,
    pytest.mark.skipif(not HOPPER, reason="no CUDA device of capability 9.0"),
]

N, K = 1304, 2120
BLOCKS = ("e4m3fn-b128x128-f32", "e4m3fn-g128-f32")
CUTS: tuple[tuple[tuple[str, str], TuningConfig], ...] = (
    (BLOCKS, WgmmaTuning(tile_n=64, tokens=64, stages=12, splits=4)),
    (BLOCKS, WgmmaTuning(tile_n=128, tokens=64, stages=8, splits=3)),
    (("s8-g128-f32", "s8-g128-f32"), WgmmaTuning(tile_n=64, stages=8, splits=6)),
    (("e5m2-channel-f16", "e4m3fn-g128-f32"), WgmmaTuning(tile_n=128, stages=6, splits=2)),
    (("s8-g128-f32", "s8-token-f32"), WgmmaTuning(tile_n=256, stages=3, splits=2)),
    (("e2m1-g32-e8m0", "e4m3fn-token-f32"), WideTuning(tokens=128, folds=True, splits=4)),
    (("e2m1-g32-e8m0", "e4m3fn-token-f32"), StreamTuning(tokens=64, stages=3, splits=3)),
)


@pytest.mark.parametrize(("numbers", "tuning"), CUTS, ids=str)
def test_parts_of_k_are_right_and_the_same_bits_every_time(
    numbers: tuple[str, str], tuning: TuningConfig
) -> None:
    generator = torch.Generator(DEVICE).manual_seed(7)
    weight = random_weight(numbers[0], N, K, generator, device=DEVICE)
    layer = humming.QuantLinear(weight, activation=numbers[1], backend="sm90", tuning=tuning)
    x = random_activations((1100, K), generator, torch.bfloat16, DEVICE)
    calls: dict[object, tuple[torch.Tensor, dict[str, torch.Tensor]]] = {
        f"M={m}": (x[:m], {}) for m in (1, 33, 64, 130, 700, 1100)
    }
    first = check_calls(layer, weight, numbers[1], calls)
    for name, (rows, _) in calls.items():
        different = torch.stack([(layer(rows) != first[name]).any() for _ in range(30)])
        assert not different.any(), name


def test_replays_of_a_graph_of_parts() -> None:
    """Counters are zero again after each."""
    numbers, tuning = CUTS[0]
    generator = torch.Generator(DEVICE).manual_seed(7)
    weight = random_weight(numbers[0], N, K, generator, device=DEVICE)
    layer = humming.QuantLinear(weight, activation=numbers[1], backend="sm90", tuning=tuning)
    x = random_activations((17, K), generator, torch.bfloat16, DEVICE)
    expected = layer(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(x)
    for _ in range(20):
        out.zero_()
        graph.replay()
        assert torch.equal(out, expected)
