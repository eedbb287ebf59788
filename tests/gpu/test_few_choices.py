"""Products that sort few choices by themselves, on a device: bits of sorted ones, and graphs."""

from __future__ import annotations

import pytest
import torch
from gemm_oracle import poisoned
from moe_cases import hidden_of, router, weights_of

from humming import GemmKind, QuantMoE
from humming_sm75_sm89 import kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

BF16 = torch.bfloat16
CUDA = "cuda"
#: Experts of sizes for which mma.sync is chosen everywhere.
E, H, WIDTH = 32, 2048, 768
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def inputs(m: int, seed: int) -> Inputs:
    """Some choices are nobody's, and some tokens choose an expert twice."""
    ids, weights = router(m, 4, E, seed=seed, device=CUDA)
    ids[0, 1], ids[-1, 0], ids[m // 2 :, 3] = -1, E, ids[m // 2, 2]
    return hidden_of(m, H, BF16, seed=seed, device=CUDA), ids, weights


def layer_of(scheme: str, activation: str | None = None) -> QuantMoE:
    pair = weights_of(scheme, E, H, WIDTH, device=CUDA)
    return QuantMoE(*pair, activation=activation, layout=GemmKind.INDEXED)


@pytest.mark.parametrize(
    ("scheme", "activation"),
    [("u4-g128-bf16", None), ("mxfp4", None), ("u4-g128-f16", "s8-token-f32")],
)
def test_bits_are_those_of_sorted_choices(
    monkeypatch: pytest.MonkeyPatch, scheme: str, activation: str | None
) -> None:
    calls = [inputs(m, seed=m) for m in (1, 2, 8, 9)]
    with monkeypatch.context() as patched:
        patched.setattr(kernel, "FEW_CHOICES", 0)
        aligned = layer_of(scheme, activation)
        wanted = [aligned(*call) for call in calls]
    layer = layer_of(scheme, activation)
    for (x, ids, weights), expected in zip(calls, wanted, strict=True):
        for given in (ids, ids.int()):
            with poisoned():
                assert torch.equal(layer(x, given, weights), expected)
    if activation is None:
        counts = [[call.launches for call in part._calls.values()] for part in (aligned, layer)]
        assert counts == [[4, 4, 4, 4], [3, 3, 3, 3, 3, 3, 4, 4]]


def test_a_graph_sorts_the_ids_that_are_there_when_it_is_replayed() -> None:
    """They come from the launch before, as a router's do."""
    layer = layer_of("u4-g128-bf16")
    layer.warm_up(BF16, [1], top_k=4)
    x, ids, weights = inputs(1, seed=1)
    written = torch.full_like(ids, -1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        written.copy_(ids)
        found = layer(x, written, weights)
    for seed in range(2, 12):
        other = inputs(1, seed)
        for old, new in zip((x, ids, weights), other, strict=True):
            old.copy_(new)
        graph.replay()
        assert torch.equal(found, layer(*other)), seed
