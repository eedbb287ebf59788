"""torch.compile(fullgraph=True) traces layers, of either kind of backend, through one operator."""

from __future__ import annotations

import copy
import gc

import core_oracle as oracle
import pytest
import torch
from fake_engine import A100, fake
from torch import nn

import humming.torch_ops as ops
from humming import QuantLinear
from humming.errors import ConfigError

pytestmark = pytest.mark.usefixtures("fake")
__all__ = ["fake"]

N, K, E = 16, 64, 4
BACKENDS = [
    pytest.param("reference", None, id="reference"),
    pytest.param("fake", A100, id="kernels", marks=pytest.mark.compile),
]


@pytest.fixture(autouse=True)
def traced_anew():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def layer(n, k, backend, device, experts=0) -> QuantLinear:
    weight = oracle.random_weight("u4-g32-f16", n, k, experts, bias=torch.float32)
    return QuantLinear(weight, backend=backend, device=device)


@pytest.mark.parametrize(("backend", "device"), BACKENDS)
def test_a_model_is_one_graph_and_gives_the_same_bits(backend, device):
    model = nn.Sequential(layer(N, K, backend, device), nn.ReLU(), layer(K, N, backend, device))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (3, 5):
        x = torch.randn(2, rows, K).half()
        found = compiled(x)
        assert torch.equal(found, model(x))
        assert found.shape == (2, rows, K)
        assert found.dtype == torch.float16


@pytest.mark.parametrize(("backend", "device"), BACKENDS)
@pytest.mark.parametrize("kind", ["expert_ids", "expert_offsets", "expert_counts"])
def test_every_kind_of_routing_is_traced(kind, backend, device):
    module = layer(N, K, backend, device, E)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x, numbers = {
        "expert_ids": (torch.randn(3, K), torch.tensor([[0, 1], [3, -1], [1, 2]])),
        "expert_offsets": (torch.randn(3, K), torch.tensor([0, 1, 1, 2, 3])),
        "expert_counts": (torch.randn(E, 3, K), torch.tensor([1, 0, 3, 2])),
    }[kind]
    found = compiled(x.half(), **{kind: numbers})
    assert torch.equal(found, module(x.half(), **{kind: numbers}))


def test_the_graph_holds_the_operator_and_nothing_of_the_layer():
    module = layer(N, K, "reference", None)
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compile(module, fullgraph=True, backend=keep)(torch.randn(3, K))
    (graph,) = graphs
    calls = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert calls == [torch.ops.humming.linear.default]


def test_the_operator_is_what_torch_expects_of_one():
    module = layer(N, K, "reference", None)
    x = torch.randn(3, K)
    torch.library.opcheck(
        torch.ops.humming.linear.default,
        (x, module._handle, (0, N, K), None, None, None),
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
    )


def test_arguments_that_do_not_fit_are_refused_while_tracing():
    module = layer(N, K, "reference", None)
    with pytest.raises(Exception, match="a last dimension of k=64"):
        torch.compile(module, fullgraph=True, backend="eager")(torch.randn(3, K + 1))


def test_a_copy_is_a_layer_of_its_own_and_a_dead_one_is_missed():
    module = layer(N, K, "reference", None)
    twin = copy.deepcopy(module)
    twin.packed.zero_()
    x = torch.randn(3, K)
    compiled = torch.compile(twin, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), twin(x))
    assert not torch.equal(compiled(x), module(x))
    handle = module._handle
    del module
    gc.collect()
    with pytest.raises(ConfigError, match="the handle of a layer that still exists"):
        ops.linear(x, handle, (0, N, K), None, None, None)
