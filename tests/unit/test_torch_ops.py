"""Handles: what a traced graph knows a layer by. Equal layers are traced once, whichever they are.

What tracing gives is in test_engine_compiled.py.
"""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Callable, Iterator

import core_oracle as oracle
import pytest
import torch
from fake_engine import A100, fake
from moe_cases import hidden_of, router, weights_of
from torch import nn

import humming.torch_ops as ops
from humming import QuantLinear, QuantMoE
from humming.errors import ConfigError

pytestmark = pytest.mark.usefixtures("fake")
__all__ = ["fake"]

N, K = 16, 64
LAYERS = 12  # Dynamo compiles one function 8 times and no more
BACKENDS = [
    pytest.param("reference", None, id="reference"),
    pytest.param("fake", A100, id="kernels", marks=pytest.mark.compile),
]


@pytest.fixture(autouse=True)
def traced_anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counting:
    """A backend of torch.compile that keeps the graphs, and what it was shown of their inputs."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self.inputs: list[list[torch.Tensor]] = []

    def __call__(
        self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]
    ) -> Callable[..., object]:
        self.graphs.append(graph)
        self.inputs.append(inputs)
        return graph.forward

    def targets(self) -> list[object]:
        (graph,) = self.graphs
        return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def layer(n: int = N, k: int = K, backend: str = "reference", device: object = None) -> QuantLinear:
    weight = oracle.random_weight("u4-g32-f16", n, k, 0, bias=torch.float32)
    return QuantLinear(weight, backend=backend, device=device)


def moe(seed: int = 0) -> QuantMoE:
    return QuantMoE(*weights_of("u4-g32-bf16", 4, 64, 32, seed=seed), backend="reference")


# -- one graph for equal layers --------------------------------------------------------------------


@pytest.mark.parametrize(("backend", "device"), BACKENDS)
def test_one_function_of_many_equal_layers_is_compiled_once(
    backend: str, device: str | None
) -> None:
    counting, x = Counting(), torch.randn(3, K).half()
    compiled = torch.compile(lambda part, x: part(x) * 2, fullgraph=True, backend=counting)
    for _ in range(LAYERS):
        part = layer(backend=backend, device=device)
        assert torch.equal(compiled(part, x), part(x) * 2)
    assert counting.targets()[0] is torch.ops.humming.linear.default


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = layer(N, K), layer(K, N)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


def test_blocks_compiled_one_by_one_share_a_graph() -> None:
    blocks, counting = [Block() for _ in range(LAYERS)], Counting()
    x = torch.randn(3, K)
    wanted = [block(x) for block in blocks]
    for block in blocks:
        block.compile(fullgraph=True, backend=counting)
    assert all(torch.equal(block(x), y) for block, y in zip(blocks, wanted, strict=True))
    assert counting.targets().count(torch.ops.humming.linear.default) == 2


def test_layers_of_experts_share_a_graph() -> None:
    counting, x, (ids, weights) = Counting(), hidden_of(3, 64, torch.bfloat16), router(3, 2, 4)
    compiled = torch.compile(lambda part, *a: part(*a) * 2, fullgraph=True, backend=counting)
    results = []
    for seed in range(LAYERS):
        part = moe(seed)
        results.append(compiled(part, x, ids, weights))
        assert torch.equal(results[-1], part(x, ids, weights) * 2)
    assert counting.targets()[0] is torch.ops.humming.experts.default
    assert not torch.equal(results[0], results[1])


def test_other_shapes_are_other_graphs_and_are_checked() -> None:
    counting, x = Counting(), torch.randn(3, K)
    compiled = torch.compile(lambda part, x: part(x), fullgraph=True, backend=counting)
    for n in (N, 2 * N):
        part = layer(n)
        assert compiled(part, x).shape == (3, n)
    assert len(counting.graphs) == 2
    with pytest.raises(Exception, match=f"a last dimension of k={2 * K}"):
        compiled(layer(N, 2 * K), x)


def test_a_graph_sees_the_handle_as_memory_that_stays() -> None:
    """Else inductor would copy it into a CUDA graph, where nobody can read it."""
    for part, inputs in (
        (layer(), (torch.randn(3, K),)),
        (moe(), (hidden_of(3, 64, torch.bfloat16), *router(3, 2, 4))),
    ):
        counting = Counting()
        torch.compile(part, fullgraph=True, backend=counting)(*inputs)
        handles = [tensor for tensor in counting.inputs[0] if tensor is part._handle]
        assert [tensor._dynamo_static_input_type for tensor in handles] == ["unguarded"]


# -- whose a handle is -----------------------------------------------------------------------------


def linear_by(handle: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.ops.humming.linear(x, handle, (0, N, K), None, None, None)
    return found


@pytest.mark.parametrize("part", [layer, moe])
def test_no_file_holds_a_handle(part: Callable[[], nn.Module]) -> None:
    module = part()
    assert not [name for name in module.state_dict() if "_handle" in name]
    assert not [name for name in module.__getstate__()["_buffers"] if name == "_handle"]
    module.load_state_dict(module.state_dict(), strict=True)


def saved(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    found: nn.Module = torch.load(file, weights_only=False)
    return found


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, saved])
def test_a_copy_has_a_handle_of_its_own(duplicate: Callable[[nn.Module], nn.Module]) -> None:
    module, x = layer(), torch.randn(3, K)
    handle, wanted = module._handle, module(x)
    twin = duplicate(module)
    assert twin._handle.data_ptr() != handle.data_ptr()
    assert module._handle is handle
    twin.get_buffer("packed").zero_()
    assert torch.equal(linear_by(twin._handle, x), twin(x))
    assert torch.equal(linear_by(handle, x), module(x))
    del twin
    gc.collect()
    assert torch.equal(linear_by(handle, x), module(x))
    if duplicate is not copy.copy:  # which shares the weight
        assert torch.equal(module(x), wanted)


def test_two_layers_over_one_weight_are_two() -> None:
    weight = oracle.random_weight("u4-g32-f16", N, K, 0, bias=torch.float32)
    bias = torch.full((N,), 5.0)
    first, second = QuantLinear(weight, backend="reference"), QuantLinear(weight, bias=bias)
    x = torch.randn(3, K)
    assert torch.equal(linear_by(first._handle, x), first(x))
    assert torch.equal(linear_by(second._handle, x), second(x))
    assert not torch.equal(first(x), second(x))


def test_a_copy_of_a_handle_is_as_good_as_that_until_the_layer_dies() -> None:
    module, x = layer(), torch.randn(3, K)
    copies = [module._handle.clone(), module._handle]
    assert all(torch.equal(linear_by(handle, x), module(x)) for handle in copies)
    del module
    gc.collect()
    for handle in (*copies, torch.zeros(1, dtype=torch.int64)):
        with pytest.raises(ConfigError, match="a layer that still exists"):
            linear_by(handle, x)


def test_what_lies_where_a_handle_was_is_not_that_layer() -> None:
    module, other, x = layer(), layer(), torch.randn(3, K)
    former = module._handle
    module.half()
    assert module._handle is not former
    assert torch.equal(linear_by(former, x), module(x))
    former.copy_(other._handle)
    assert torch.equal(linear_by(former, x), other(x))


def test_a_copy_is_not_read_in_the_capture_of_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnDevice:
        is_cuda = True

        def data_ptr(self) -> int:
            return 1

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(ConfigError, match="the handle, in the capture of a graph"):
        ops._find(OnDevice())  # type: ignore[arg-type]


@pytest.mark.parametrize("part", [layer, moe])
def test_a_moved_layer_is_found_and_one_without_memory_only_has_a_shape(
    part: Callable[[], nn.Module],
) -> None:
    module = part()
    inputs = (
        (torch.randn(3, K),)
        if part is layer
        else (hidden_of(3, 64, torch.bfloat16), *router(3, 2, 4))
    )
    counting = Counting()
    compiled = torch.compile(module, fullgraph=True, backend=counting)
    wanted = module(*inputs)
    for change in (lambda: module.half(), lambda: module.to("cpu"), module.share_memory):
        change()
        assert torch.equal(compiled(*inputs), wanted)
    assert len(counting.graphs) == 1
    module.to("meta")
    assert module._handle.is_meta
    found = torch.compile(module, fullgraph=True, backend="eager")(
        *(tensor.to("meta") for tensor in inputs)
    )
    assert found.is_meta
    assert found.shape == wanted.shape


def test_layers_made_and_dropped_never_answer_for_another() -> None:
    """Addresses are used again."""
    x = torch.randn(1, K)
    for turn in range(200):
        part = layer()
        assert torch.equal(linear_by(part._handle, x), part(x)), turn
        del part
