"""The engine on a real device, under a backend of a few lines: numbers, graphs, streams, time.

The kernels are slow and that is no matter here. What is tested does not depend on the backend.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import core_oracle as oracle
import pytest
import torch
from fake_engine import fake, product, routed
from fake_kernels import FakeBackend, FakeTuning

from humming import QuantLinear
from humming.errors import CaptureError
from humming.formats.activation import ActivationScheme
from humming.weight import CanonicalWeight

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.usefixtures("fake"),
    # What torch says of the mode that makes waiting an error.
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
]
__all__ = ["fake"]

N, K, E = 48, 128, 4
F16 = torch.float16
OLDER = ["nvidia-t4", "nvidia-a100", "nvidia-l40s"]


def weight(scheme: str = "u4+z-g32-f16", experts: int = 0, **more: object) -> CanonicalWeight:
    return oracle.random_weight(scheme, N, K, experts, bias=torch.float32, **more)  # type: ignore[arg-type]


def layer(facts: CanonicalWeight, **options: object) -> QuantLinear:
    return QuantLinear(facts.to("cuda"), backend="fake", **options)  # type: ignore[arg-type]


def check(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.is_contiguous()
    skipped = (wanted == 0).all(dim=-1)
    assert not found.cpu()[skipped].any()
    assert oracle.relative_errors(found.cpu(), wanted)[1] <= 3e-3


def calls(m: int = 9) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Keyword to activations and routing; some choices and rows are nobody's."""
    x = torch.randn(m, K).half()
    ids = torch.randint(-1, E + 2, (m, 2))
    return {
        "expert_ids": (x, ids),
        "expert_offsets": (x, torch.tensor([0, 2, 5, 5, m - 1])),
        "expert_counts": (torch.randn(E, m, K).half(), torch.tensor([2, m, 0, 1])),
    }


@pytest.fixture
def waiting_is_an_error() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", [None, *OLDER])
def test_kernels_of_this_and_of_older_devices_give_what_the_formula_says(profile: str) -> None:
    """With the profile of an older device its kernels come as PTX, which the driver translates."""
    facts = weight(act_order=True)
    module = layer(facts, profile=profile)
    for m in (1, 7, 33, 129):
        x = torch.randn(m, K).half()
        check(module(x.cuda()), product(x, facts))
    assert not FakeBackend.packed, "codes are laid out by a kernel"


@pytest.mark.parametrize("name", ["int8", "e4m3fn-g32-e4m3fn-token", "int4"])
def test_quantized_activations(name: str) -> None:
    facts = weight("u3-g64-f16")
    x = oracle.realistic_activations(9, K).half()
    found = layer(facts, activation=name)(x.cuda())
    check(found, product(x, facts, ActivationScheme.parse(name)))


@pytest.mark.parametrize("kind", ["expert_ids", "expert_offsets", "expert_counts"])
def test_experts(kind: str) -> None:
    facts = weight("mxfp4", E)
    x, numbers = calls()[kind]
    found = layer(facts)(x.cuda(), **{kind: numbers.cuda()})
    check(found, routed(x, facts, **{kind: numbers}))


# -- waiting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [None, "int8", "e4m3fn-g32-f32"])
@pytest.mark.parametrize("kind", ["dense", "expert_ids", "expert_offsets", "expert_counts"])
def test_no_call_waits_for_the_device(
    kind: str, activation: str | None, waiting_is_an_error: None
) -> None:
    torch.cuda.set_sync_debug_mode("default")
    facts = weight("u4-g32-f16", 0 if kind == "dense" else E)
    module = layer(facts, activation=activation)
    x, numbers = calls().get(kind, (torch.randn(9, K).half(), torch.zeros(0)))
    x, routing = x.cuda(), {} if kind == "dense" else {kind: numbers.cuda()}
    module(x, **routing)
    torch.cuda.set_sync_debug_mode("error")
    module(x, **routing)


# -- graphs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dense", "expert_ids", "expert_offsets", "expert_counts"])
@pytest.mark.parametrize("activation", [None, "int8"])
def test_a_graph_replays_what_eager_computes(kind: str, activation: str | None) -> None:
    facts = weight("u4-g32-f16", 0 if kind == "dense" else E)
    module = layer(facts, activation=activation, tuning=FakeTuning(splits=2))
    x, numbers = calls().get(kind, (torch.randn(9, K).half(), torch.zeros(0)))
    x, routing = x.cuda(), {} if kind == "dense" else {kind: numbers.cuda()}
    module(x, **routing)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = module(x, **routing)
        out = module(x, **routing)
    for seed in range(50):
        x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)))
        out.fill_(1e4)
        graph.replay()
        assert torch.equal(out, module(x, **routing))


def test_a_warmed_range_can_be_captured_at_every_size() -> None:
    module = layer(weight())
    module.warm_up(F16, range(1, 65))
    for m in (1, 5, 33, 64):
        x, graph = torch.randn(m, K).half().cuda(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = module(x)
        graph.replay()
        assert torch.equal(out, module(x))


def captured(module: QuantLinear, x: torch.Tensor) -> None:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.clone()  # something is in the graph already
        module(x)


def test_a_capture_without_warming_up_names_the_kernel_and_leaves_cuda_usable() -> None:
    module = layer(weight("u5-g32-f16"), tuning=FakeTuning(threads=96, splits=4))
    x = torch.randn(3, K).half().cuda()
    module.prepare(F16)
    with pytest.raises(CaptureError, match=r"fake\.gemm\.dense\.f16_f16_4.*warm up first"):
        captured(module, x)
    check(module(x), product(x.cpu(), module.weight.to("cpu")))
    captured(module, x)


def test_graphs_of_inductor_hold_the_layer_that_was_called() -> None:
    """Equal layers share what is compiled; CUDA graphs are told apart by their handles."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # inductor's, of this device and its settings
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda part, x: part(x) * 2, fullgraph=True, mode="reduce-overhead"
        )
        parts, x = [layer(weight(seed=seed)) for seed in range(3)], torch.randn(9, K).half().cuda()
        wanted = [part(x) * 2 for part in parts]
        for turn in range(4):  # runs, records, and replays
            for part, expected in zip(parts, wanted, strict=True):
                torch.compiler.cudagraph_mark_step_begin()
                assert torch.equal(compiled(part, x), expected), turn


# -- streams ---------------------------------------------------------------------------------------


def test_one_layer_on_two_streams() -> None:
    facts = weight()
    module = layer(facts, tuning=FakeTuning(splits=2))
    inputs = [torch.randn(9, K).half().cuda() for _ in range(2)]
    wanted = [module(x) for x in inputs]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    results: list[list[torch.Tensor]] = [[], []]
    for _ in range(1000):
        for stream, x, found in zip(streams, inputs, results, strict=True):
            with torch.cuda.stream(stream):
                found.append(module(x))
    torch.cuda.synchronize()
    for expected, found in zip(wanted, results, strict=True):
        assert all(torch.equal(result, expected) for result in found)
