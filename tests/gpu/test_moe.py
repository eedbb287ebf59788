"""QuantMoE on a real device: blocks of real models, expert parallelism, graphs, big indices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from gemm_oracle import check, poisoned
from moe_cases import GPT_OSS, Function, Oracle, activated, folds_of, hidden_of, router, weights_of

from humming import Gating, QuantMoE
from humming.combining import combine
from humming.engine import Site
from humming.engine.experts import ExpertKernels
from humming.engine.prepared import prepare
from humming.selection import find_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    # What torch says of the mode that no_waiting() turns on.
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
]

BF16 = torch.bfloat16
CUDA = "cuda"
QUANTIZED = 1.5e-2
#: Against a reference that rounds where kernels store or fold: the rounding of the result remains,
#: 1.6e-3 to 1.7e-3 in the simulator.
SAME_ROUNDINGS = 2.5e-3
#: Against one that rounds nothing. Both products are of rounded weights if kernels fold, and each
#: may be stored, as are the function's results and the sum: seven roundings of 1.7e-3, those of
#: gates and ups twice over since the function multiplies them. With few rows, whose largest numbers
#: count most, they come to 4.2e-3 in the median of 80 emulated layers and to 9.6e-3 in the worst.
EXACT = 1.5e-2


def moe(oracle: Oracle, **options: object) -> QuantMoE:
    function = oracle.function
    gating = Gating.of(function.name, interleaved=function.interleaved, **function.parameters)
    layer = QuantMoE(
        oracle.gate_up,
        oracle.down,
        gating=gating,
        shared=oracle.shared,
        activation=oracle.activation or None,
        **options,
    )
    assert all(part.kernels is not None for part in layer.prepare(BF16))
    return layer


def compare(
    layer: QuantMoE, oracle: Oracle, m: int, ids: torch.Tensor, weights: torch.Tensor
) -> None:
    """All rows are finite, and up to 16 of them right, the first and the last among them."""
    x = hidden_of(m, oracle.gate_up.k, BF16, device=CUDA)
    with poisoned():
        found = layer(x, ids, weights)
    assert bool(found.isfinite().all())
    rows = torch.linspace(0, m - 1, min(m, 16), device=CUDA).round().long()
    folding = folding_of(layer, oracle, ids)
    check_rows(found[rows], folding, (x[rows], ids[rows], weights[rows]), m)


def folding_of(layer: QuantMoE, oracle: Oracle, ids: torch.Tensor) -> Oracle:
    """The oracle, folding and rounding what the layer's kernels do in a call with these ids."""
    return replace(activated(oracle, layer, BF16), folds=folds_of(layer, BF16, *ids.shape))


def check_rows(
    found: torch.Tensor, oracle: Oracle, inputs: tuple[torch.Tensor, ...], name: object = ""
) -> None:
    """Rows are those of the oracle, and not far from exact ones."""
    check(found, oracle(*inputs), QUANTIZED if oracle.activation else SAME_ROUNDINGS, name)
    if not oracle.activation:
        check(found, oracle.exact(*inputs), EXACT, (name, "exact"))


@contextmanager
def no_waiting() -> Iterator[None]:
    """Any wait for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


#: scheme, activation, experts, top_k, hidden and intermediate size, function, bias.
BLOCKS = {
    "gpt-oss-20b": ("mxfp4", "", 32, 4, 2880, 2880, GPT_OSS, 0.0005),
    "DeepSeek-V3, 64 experts": ("fp8-block", "", 64, 8, 7168, 2048, Function(), 0.0),
    "DeepSeek-V3, FP8": ("fp8-block", "fp8", 64, 8, 7168, 2048, Function(), 0.0),
    "Qwen3-30B-A3B": ("int4-g128", "", 128, 8, 2048, 768, Function(), 0.0),
    "Qwen3-30B-A3B, NVFP4": ("nvfp4", "", 128, 8, 2048, 768, Function(), 0.0),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_real_models(name: str) -> None:
    scheme, activation, experts, top_k, hidden, width, function, bias = BLOCKS[name]
    pair = weights_of(scheme, experts, hidden, width, function, bias=bias, device=CUDA)
    oracle = Oracle(*pair, function=function, activation=activation)
    layer = moe(oracle)
    for m in (1, 8, 64, 512, 4096):
        ids, weights = router(m, top_k, experts, device=CUDA)
        compare(layer, oracle, m, ids, weights)
    compare(layer, oracle, 64, torch.full_like(ids[:64], experts - 1), weights[:64])


@pytest.mark.parametrize("experts", [1, 8, 32, 128, 256, 384])
@pytest.mark.parametrize("top_k", [1, 2, 4, 8, 16])
def test_numbers_of_experts_and_choices(experts: int, top_k: int) -> None:
    oracle = Oracle(*weights_of("u4-g32-bf16", experts, 256, 128, device=CUDA))
    layer, generator = moe(oracle), torch.Generator(CUDA).manual_seed(top_k)
    for m in (1, 33, 600):
        ids = torch.randint(-1, experts, (m, top_k), generator=generator, device=CUDA)
        weights = torch.rand(m, top_k, generator=generator, device=CUDA)
        compare(layer, oracle, m, ids.int() if m == 33 else ids, weights)


@pytest.mark.parametrize("scheme", ["u4-g32-bf16", "mxfp4"])
@pytest.mark.parametrize("m", [0, 1, 32, 4096])
def test_t02_ids_that_are_elsewhere(scheme: str, m: int) -> None:
    oracle = Oracle(*weights_of(scheme, 8, 512, 256, device=CUDA))
    ids, weights = router(m, 8, 16, device=CUDA)
    ids[torch.rand(m, 8, device=CUDA) < 0.3] = -1
    ids[ids == 6] = -1
    ids[3:4] = -1
    x = hidden_of(m, 512, BF16, device=CUDA)
    table = torch.full((16,), -1, device=CUDA)
    table[4:12] = torch.arange(8, device=CUDA)
    for options in ({"expert_range": (4, 12)}, {"expert_map": table}):
        layer = moe(oracle, **options)
        layer.warm_up(BF16, [max(m, 1)], top_k=8)
        with poisoned(), no_waiting():
            found = layer(x, ids, weights)
        assert found.shape == (m, 512)
        assert bool(found.isfinite().all())
        rows = torch.arange(m, device=CUDA)[:: max(m // 32, 1)]
        if m:
            folding = folding_of(layer, oracle, ids)
            check_rows(found[rows], folding, (x[rows], ids[rows] - 4, weights[rows]))
        if m > 3:
            assert not bool(found[3].any())
        torch.cuda.synchronize()


def test_a_captured_layer_does_what_an_eager_one_does() -> None:
    shared = weights_of("u4-g32-bf16", 0, 256, 384, seed=4, device=CUDA)
    oracle = Oracle(*weights_of("u4-g32-bf16", 16, 256, 128, device=CUDA), shared=shared)
    layer = moe(oracle)
    sizes = (1, 8, 64, 256)
    layer.warm_up(BF16, sizes, top_k=4)
    for m in sizes:
        x = hidden_of(m, 256, BF16, device=CUDA)
        ids, weights = router(m, 4, 16, device=CUDA)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = layer(x, ids, weights)
        for seed in range(50):
            x.copy_(hidden_of(m, 256, BF16, seed, device=CUDA))
            new_ids, new_weights = router(m, 4, 16, seed, device=CUDA)
            ids.copy_(torch.where(new_ids == seed % 16, -1, new_ids))
            weights.copy_(new_weights)
            found.fill_(torch.nan)
            graph.replay()
            check(found, layer(x, ids, weights).double(), 1e-3, (m, seed))
        check_rows(found, folding_of(layer, oracle, ids), (x, ids, weights), m)


def test_two_streams_at_once() -> None:
    oracle = Oracle(*weights_of("u4-g32-bf16", 8, 256, 128, device=CUDA))
    layer, x = moe(oracle), hidden_of(64, 256, BF16, device=CUDA)
    ids, weights = router(64, 2, 8, device=CUDA)
    wanted = layer(x, ids, weights)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for _ in range(200):
        results = []
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(layer(x, ids, weights))
        torch.cuda.synchronize()
        for result in results:
            check(result, wanted.double(), 1e-3)


# -- T14: big indices --------------------------------------------------------------------------


def kernels(experts: int) -> ExpertKernels:
    _, down = weights_of("u4-g32-bf16", experts, 64, 64, device=CUDA)
    prepared = prepare(down, BF16)
    assert prepared.kernels is not None
    site = Site.of(find_device(CUDA, None))
    arch = prepared.kernels.planner.backend.profile.target.arch
    return ExpertKernels(site, arch, prepared.layer, Gating.of("swiglu"))


def test_t14_activation_of_more_than_2_to_the_31_numbers() -> None:
    rows, width = 65_536, 17_408
    x = torch.randn(64, 2 * width, device=CUDA, dtype=BF16).repeat(rows // 64, 1)
    found = kernels(8).gate(x)
    wanted = Gating.of("swiglu")(x[:64])
    for first in (0, rows // 2, rows - 64):
        assert torch.allclose(found[first : first + 64].float(), wanted.float(), rtol=8e-3)


def test_t14_sums_of_more_than_2_to_the_31_numbers() -> None:
    tokens, top_k, width = 75_000, 4, 7168
    y = torch.randn(75, top_k, width, device=CUDA, dtype=BF16).repeat(tokens // 75, 1, 1)
    ids = torch.randint(-1, 8, (75, top_k), device=CUDA).repeat(tokens // 75, 1)
    weights = torch.rand(75, top_k, device=CUDA).repeat(tokens // 75, 1)
    found = kernels(8).combine(y, ids, weights, None)
    wanted = combine(y[:75], ids[:75], 8, weights[:75])
    for first in (0, tokens // 2, tokens - 75):
        assert torch.equal(found[first : first + 75], wanted)


def test_t14_one_call_is_four_smaller_ones() -> None:
    """R05, T14 (iv), with fewer experts."""
    pair = weights_of("u4-g32-bf16", 16, 2048, 512, device=CUDA)
    layer = moe(Oracle(*pair))
    x = hidden_of(65_536, 2048, BF16, device=CUDA)
    ids, weights = router(65_536, 8, 16, device=CUDA)
    whole = layer(x, ids, weights)
    step = 16_384
    for first in range(0, 65_536, step):
        part = slice(first, first + step)
        check(whole[part], layer(x[part], ids[part], weights[part]).double(), 1e-3)


def test_t14_the_last_of_many_experts() -> None:
    pair = weights_of("u4-g128-bf16", 384, 7168, 1536, device=CUDA)
    oracle = Oracle(*pair)
    layer = moe(oracle)
    x = hidden_of(384, 7168, BF16, device=CUDA)
    ids = torch.arange(384, device=CUDA).view(-1, 1)
    weights = torch.ones(384, 1, device=CUDA)
    found = layer(x, ids, weights)
    rows = torch.tensor([0, 191, 300, 383], device=CUDA)
    check_rows(found[rows], folding_of(layer, oracle, ids), (x[rows], ids[rows], weights[rows]))
