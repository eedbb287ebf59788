"""What is promised about results and calls: the same bits, graphs, streams, torch.compile.

T13 of the project's list, and the promises of ComputeConfig.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gemm_data import random_activations, random_weight
from gemm_oracle import poisoned
from gemm_runs import DEVICE, KERNELS_ALONE, ON_A_GPU, check_calls, make_layer

import humming
from humming.backend import KernelBackend, Problem
from humming.configs import ComputeConfig, GemmKind
from humming.errors import CaptureError
from humming_sm75_sm89.tuning import MmaTuning

pytestmark = [*ON_A_GPU, KERNELS_ALONE]

BF16 = torch.bfloat16
EXPERTS = 4
#: (weight, activation, source)
FAMILIES = [
    ("u4-g128-bf16", "", "sm80"),
    ("u4+z-g32-f16", "", "sm75"),
    ("mxfp4", "", "sm80"),
    ("u4-g64-bf16", "s8-token-f32", "sm80"),
    ("u4-g64-bf16", "s8-g128-f32", "sm75"),
    ("s4-channel-f32", "s4-token-f32", "sm80"),
    ("fp8-block", "e4m3fn-g128-f32", "sm89"),
]
SPLITS = [
    MmaTuning(splits=2),
    MmaTuning(warps_k=2, splits=5),
    MmaTuning(min_run=1),
    MmaTuning(warps_n=2, warps_k=2, tokens=16, min_run=3),
]


def generator(seed: int) -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(seed)


def rows_of(*shape: int, seed: int = 0, source: str = "sm80") -> torch.Tensor:
    dtype = torch.float16 if source == "sm75" else BF16
    return random_activations(shape, generator(seed), dtype, DEVICE)


def layer_with(
    scheme: str, activation: str, source: str, experts: int = 0, **promises: bool
) -> humming.QuantLinear:
    weight = random_weight(scheme, 200, 1312, generator(7), experts=experts, device=DEVICE)
    return make_layer(weight, activation, source=source, compute=ComputeConfig(**promises))


def tunings_of(
    layer: humming.QuantLinear, dtype: torch.dtype, m: int, gemm: GemmKind = GemmKind.DENSE
) -> list[MmaTuning]:
    """Every tuning that the backend proposes for a problem."""
    prepared = layer.prepare(dtype, gemm)
    assert isinstance(prepared.backend, KernelBackend)
    found = prepared.backend.candidates(prepared.layer, prepared.compute, Problem(m=m))
    return [tuning for tuning in found if isinstance(tuning, MmaTuning)]


# -- the same bits ---------------------------------------------------------------------------------

PARTS = [slice(0, 1), slice(3, 10), slice(0, 16), slice(100, 133), slice(64, 128), slice(1, 130)]


@pytest.mark.parametrize(("scheme", "activation", "source"), FAMILIES)
def test_a_row_has_the_same_bits_in_every_batch(scheme: str, activation: str, source: str) -> None:
    layer = layer_with(scheme, activation, source, batch_invariant=True)
    x = rows_of(257, 1312, source=source)
    whole = layer(x)
    for part in PARTS:
        assert torch.equal(layer(x[part]), whole[part]), part
    order = torch.randperm(257, generator=generator(1), device=DEVICE)
    assert torch.equal(layer(x[order]), whole[order])


@pytest.mark.parametrize(("scheme", "activation", "source"), FAMILIES)
def test_a_row_has_the_same_bits_beside_any_experts(
    scheme: str, activation: str, source: str
) -> None:
    layer = layer_with(scheme, activation, source, experts=EXPERTS, batch_invariant=True)
    x = rows_of(257, 1312, source=source)
    ids = torch.randint(-1, EXPERTS, (257, 2), generator=generator(2), device=DEVICE)
    whole = layer(x, expert_ids=ids)
    for part in PARTS:
        assert torch.equal(layer(x[part], expert_ids=ids[part]), whole[part]), part
    one = ids[:, 0].clamp(min=0)
    order = one.argsort(stable=True)
    counts = torch.bincount(one, minlength=EXPERTS)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    grouped = layer(x[order], expert_offsets=offsets)
    lone = layer(x, expert_ids=one[:, None])[:, 0]
    assert torch.equal(grouped, lone[order])
    boxes = torch.zeros(EXPERTS, int(counts.max()) + 9, 1312, dtype=x.dtype, device=DEVICE)
    for e in range(EXPERTS):
        boxes[e, : int(counts[e])] = x[one == e]
    masked = layer(boxes, expert_counts=counts)
    for e in range(EXPERTS):
        assert torch.equal(masked[e, : int(counts[e])], lone[one == e])


@pytest.mark.parametrize("m", [1, 33, 129])
@pytest.mark.parametrize(("scheme", "activation", "source"), FAMILIES)
def test_the_same_call_gives_the_same_bits(
    scheme: str, activation: str, source: str, m: int
) -> None:
    layer = layer_with(scheme, activation, source, deterministic=True)
    x = rows_of(m, 1312, source=source)
    first = layer(x)
    different = torch.stack([(layer(x) != first).any() for _ in range(50)])
    assert not different.any()


@pytest.mark.parametrize(("scheme", "activation", "source"), FAMILIES)
def test_tunings_with_one_order_of_k_give_the_same_bits(
    scheme: str, activation: str, source: str
) -> None:
    weight = random_weight(scheme, 200, 1312, generator(7), device=DEVICE)
    x = rows_of(97, 1312, source=source)
    planned = make_layer(weight, activation, source=source)
    by_order: dict[object, list[MmaTuning]] = {}
    for tuning in tunings_of(planned, x.dtype, len(x)):
        if not tuning.min_run:
            order = tuning.warps_k, tuning.splits, tuning.folds
            by_order.setdefault(order, []).append(tuning)
    compared = 0
    for group in sorted(by_order.values(), key=len, reverse=True)[:2]:
        chosen = group[:: max(1, len(group) // 4)]
        results = [make_layer(weight, activation, source=source, tuning=t)(x) for t in chosen]
        for result, tuning in zip(results, chosen, strict=True):
            assert torch.equal(result, results[0]), f"{tuning} and {chosen[0]}"
        compared += len(results) - 1
    assert compared


@pytest.mark.parametrize("m", [1, 8, 40, 200])
@pytest.mark.parametrize(("scheme", "activation", "source"), FAMILIES[:5:2] + FAMILIES[1:2])
def test_every_tuning_that_is_proposed_is_right(
    scheme: str, activation: str, source: str, m: int
) -> None:
    weight = random_weight(scheme, 200, 1312, generator(7), device=DEVICE)
    x = rows_of(m, 1312, source=source)
    planned = make_layer(weight, activation, source=source)
    name = activation or {torch.float16: "f16", BF16: "bf16"}[x.dtype]
    every = tunings_of(planned, x.dtype, m)
    for tuning in every[:: max(1, len(every) // 12)]:
        layer = make_layer(weight, activation, source=source, tuning=tuning)
        check_calls(layer, weight, name, {str(tuning): (x, {})})


# -- calls -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "activation", "source"), FAMILIES)
def test_no_rows(scheme: str, activation: str, source: str) -> None:
    layer = layer_with(scheme, activation, source)
    empty, some = rows_of(0, 1312, source=source), rows_of(5, 1312, source=source)
    assert layer(empty).shape == (0, 200)
    assert layer(some.view(5, 1, 1312)).shape == (5, 1, 200)
    routed = layer_with(scheme, activation, source, experts=EXPERTS)
    none = torch.zeros(0, 2, dtype=torch.int64, device=DEVICE)
    assert routed(empty, expert_ids=none).shape == (0, 2, 200)
    nobody = torch.full((5, 2), -1, device=DEVICE)
    with poisoned():
        assert not routed(some, expert_ids=nobody).any()
        offsets = torch.zeros(EXPERTS + 1, dtype=torch.int32, device=DEVICE)
        assert not routed(some, expert_offsets=offsets).any()
        boxes = some.expand(EXPERTS, 5, 1312).contiguous()
        counts = torch.zeros(EXPERTS, dtype=torch.int64, device=DEVICE)
        assert not routed(boxes, expert_counts=counts).any()
    assert routed(some, expert_ids=nobody + 1).any()


@pytest.mark.parametrize(("scheme", "activation", "source"), FAMILIES)
def test_rows_may_be_strided_and_unaligned(scheme: str, activation: str, source: str) -> None:
    layer = layer_with(scheme, activation, source)
    wide = rows_of(9, 2 * 1312 + 3, source=source)
    for x in (wide[:, :1312], wide[:, 3:1315], wide[::2, 1312:2624], wide[:, : 2 * 1312 : 2]):
        assert torch.equal(layer(x), layer(x.contiguous()))


@pytest.mark.parametrize(("scheme", "activation", "source"), FAMILIES)
def test_torch_compile_traces_the_whole_graph(scheme: str, activation: str, source: str) -> None:
    layer = layer_with(scheme, activation, source)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for m in (1, 5, 33):
        x = rows_of(m, 1312, source=source)
        assert torch.equal(compiled(x), layer(x))


# -- T13: graphs, streams, first use ---------------------------------------------------------------


def captured(
    layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A graph of one call, and the result that it writes."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.clone()  # something is in the graph already
        out = layer(x)
    return graph, out


def replays_equal_eager(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    layer(x)
    torch.cuda.synchronize()
    graph, out = captured(layer, x)
    wrong = torch.zeros((), dtype=torch.int64, device=DEVICE)
    for turn in range(1000):
        x.normal_(generator=None).mul_(1 + turn % 3)
        out.fill_(1e4)
        graph.replay()
        if turn % 10 == 0:
            wrong += (out != layer(x)).sum()
    assert int(wrong) == 0


@pytest.mark.parametrize("m", [1, 8, 64, 256])
@pytest.mark.parametrize(("scheme", "activation", "source"), FAMILIES[::2])
def test_t13_replays_of_a_graph_equal_eager_calls(
    scheme: str, activation: str, source: str, m: int
) -> None:
    layer = layer_with(scheme, activation, source, deterministic=True)
    replays_equal_eager(layer, rows_of(m, 1312, source=source).clone())


@pytest.mark.parametrize("tuning", SPLITS, ids=str)
def test_t13_replays_with_k_split_among_ctas(tuning: MmaTuning) -> None:
    weight = random_weight("u4-g128-bf16", 200, 4096, generator(7), device=DEVICE)
    layer = make_layer(weight, tuning=tuning)
    x = rows_of(24, 4096).clone()
    check_calls(layer, weight, "bf16", {str(tuning): (x, {})})
    replays_equal_eager(layer, x)


@pytest.mark.parametrize("is_prepared", [True, False])
def test_t13_capture_of_a_kernel_that_is_not_loaded_is_a_named_error(is_prepared: bool) -> None:
    n = 333 + is_prepared  # no other test has such a kernel loaded
    scheme = f"u5-g{64 << is_prepared}-bf16"
    weight = random_weight(scheme, n, 1312, generator(7), device=DEVICE)
    layer, x = make_layer(weight), rows_of(8, 1312)
    if is_prepared:
        layer.prepare(BF16)
    with pytest.raises(CaptureError, match="warm"):
        captured(layer, x)
    assert torch.ones(3, device=DEVICE).sum() == 3
    first = layer(x)
    graph, out = captured(layer, x)
    graph.replay()
    assert torch.equal(out, first)


@pytest.mark.parametrize("tuning", [MmaTuning(), *SPLITS], ids=str)
def test_t13_one_layer_on_two_streams(tuning: MmaTuning) -> None:
    weight = random_weight("u4-g128-bf16", 328, 4096, generator(7), device=DEVICE)
    layer = make_layer(weight, tuning=tuning)
    inputs = [rows_of(17, 4096, seed=seed) for seed in (0, 1)]
    wanted = [layer(x) for x in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    wrong = [torch.zeros((), dtype=torch.int64, device=DEVICE) for _ in inputs]
    torch.cuda.synchronize()
    for _ in range(1000):
        for stream, x, right, count in zip(streams, inputs, wanted, wrong, strict=True):
            with torch.cuda.stream(stream):
                count += (layer(x) != right).sum()
    torch.cuda.synchronize()
    assert [int(count) for count in wrong] == [0, 0]


CHILD = """
import hashlib, sys
import torch
sys.path[:0] = sys.argv[1:]
import test_mma_promises as tests
print("RESULT", tests.digest(float("nan")), tests.digest(1e4))
"""


def digest(filling: float) -> str:
    """Of the bits of a result whose memory held `filling` before."""
    weight = random_weight("u4-g128-bf16", 200, 4096, generator(3), device=DEVICE)
    layer, x = make_layer(weight), rows_of(40, 4096)
    layer(x)
    before = [torch.full((40, 200), filling, dtype=BF16, device=DEVICE) for _ in range(64)]
    del before
    return hashlib.sha256(layer(x).view(torch.int16).cpu().numpy().tobytes()).hexdigest()


def test_t13_another_process_compiles_nothing_and_gets_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = digest(0.0)
    monkeypatch.setenv("HUMMING_NO_JIT", "1")
    here = Path(__file__).parent
    paths = [str(here), str(here.parent / "helpers")]
    run = subprocess.run(
        [sys.executable, "-c", CHILD, *paths], capture_output=True, text=True, timeout=120
    )
    assert run.stdout.split() == ["RESULT", mine, mine], run.stderr
