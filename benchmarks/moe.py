"""How long layers of experts take on a GPU: whole ones, and the products of one alone.

Run: PYTHONPATH=$(echo packages/*/src | tr ' ' :) python benchmarks/moe.py
Cold L2, medians. `floor_us` is the time in which the weights of the experts that were chosen can be
read at 4.3 TB/s. `host_us` is what an eager call of one token costs the host; the goal is 60 us.
`launches` are those of a call, none where they are not settled beforehand. --tiny runs small layers
in the simulator, to see that nothing is broken. --apart also times layers whose function takes a
launch of its own, `function` says which. --humming-kernels FOLDER (of `pip install --target
FOLDER humming-kernels`) also times the pieces of a layer that this peer has, in a row.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from measure import chosen_experts, cold_us, errors, row
from peer_process import lines_of_humming_kernels

import humming
from humming import CanonicalWeight, Gating, GemmKind, QuantMoE
from humming.layer import PreparedLayer

BYTES_PER_US = 4.3e6
#: Relative error, of all sampled rows, that is still right.
LIMIT, QUANTIZED = 2e-2, 8e-2


class Block(NamedTuple):
    """A layer of a model."""

    scheme: str
    activation: str | None
    experts: int
    top_k: int
    hidden: int
    width: int
    gating: Gating
    bias: bool = False
    peer: str = ""  # what it is called there; "" is nothing


_SWIGLU = Gating.of("swiglu")
BLOCKS = {
    "gpt-oss-20b": Block(
        "mxfp4",
        None,
        32,
        4,
        2880,
        2880,
        Gating.of("swiglu_oai", interleaved=True),
        True,
        peer="w4a16_mxfp4",
    ),
    "deepseek-v3": Block(
        "fp8-block", "e4m3fn-g128-f32", 256, 8, 7168, 2048, _SWIGLU, peer="w8a8_fp8_block128"
    ),
    "qwen3-int4": Block("int4-g128", None, 128, 8, 2048, 768, _SWIGLU, peer="w4a16_int4_g128"),
    "qwen3-nvfp4": Block("nvfp4", None, 128, 8, 2048, 768, _SWIGLU, peer="w4a16_nvfp4"),
}
#: Both products alone, E = 256, top-8, 7168 x 2048: weight and activation.
GEMMS = {
    "w4a16": ("int4-g128", None),
    "w8a8": ("e4m3fn-channel-f32", "e4m3fn-token-f32"),
    "w4a8": ("u4-g128-f16", "s8-token-f32"),
}


def random_experts(scheme: str, n: int, k: int, experts: int, device: str) -> CanonicalWeight:
    """A weight whose experts are copies of one: which expert a row met is for tests to check."""
    values = torch.randn(1, n, k, device=device, dtype=torch.float32) * k**-0.5
    one = humming.quantize(values, scheme)
    # Other experts are copies: as many bytes to read, and none of it found in a cache.
    tensors = {
        name: tensor.expand(experts, *tensor.shape[1:]).contiguous()
        for name, tensor in one.tensors()
        if tensor.dim() and tensor.shape[0] == 1
    }
    return one.replace(experts=experts, **tensors)


def nbytes(weight: CanonicalWeight) -> float:
    """Of one expert."""
    return sum(t.numel() * t.element_size() for _, t in weight.tensors()) / weight.experts


def routing(m: int, top_k: int, experts: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids, different for a token, and weights that add up to 1."""
    weights = torch.rand(m, top_k, device=device)
    return chosen_experts(m, experts, top_k, device), weights / weights.sum(1, keepdim=True)


def expected(
    block: Block, weights: tuple[CanonicalWeight, CanonicalWeight], x: torch.Tensor
) -> torch.Tensor:
    """In float64. All experts are alike, and a token's weights add up to 1."""
    dense = [
        weight.replace(experts=1, **{name: tensor[:1].clone() for name, tensor in weight.tensors()})
        for weight in weights
    ]
    up, down = (weight.dequantize()[0].double() for weight in dense)
    biases = [0 if w.bias is None else w.bias[0].double() for w in weights]
    middle = block.gating((x.double() @ up.T + biases[0]).float()).double()
    return middle @ down.T + biases[1]


class Apart(QuantMoE):
    """A layer whose first product leaves the function to a launch behind it."""

    def _pair(self, dtype: torch.dtype, kind: GemmKind) -> tuple[PreparedLayer, PreparedLayer]:
        return self.gate_up.prepare(dtype, kind), self.down.prepare(dtype, kind)


def layer_rows(name: str, block: Block, ms: list[int], device: str, *, apart: bool) -> None:
    """Whole layers, eager and in a graph."""
    real, experts = device == "cuda", block.experts
    home = "cuda" if real else "cpu"
    sizes = ((block.gating.inputs(block.width), block.hidden), (block.hidden, block.width))
    pair = [random_experts(block.scheme, n, k, experts, home) for n, k in sizes]
    if block.bias:
        pair = [w.replace(bias=torch.full(w.shape[:2], 0.01, device=home).bfloat16()) for w in pair]
    options = {} if real else {"device": device}
    options |= {"gating": block.gating, "activation": block.activation}
    layers = [kind(*pair, **options) for kind in (QuantMoE, Apart)[: 1 + apart]]
    for m, layer in itertools.product(ms, layers):
        x = torch.randn(m, block.hidden, device=home).bfloat16()
        ids, weights = routing(m, block.top_k, experts, home)
        found = layer(x, ids, weights)
        some = slice(None, None, max(m // 16, 1))
        wrong, worst = errors(found[some], expected(block, (pair[0], pair[1]), x[some]))
        assert wrong < (QUANTIZED if block.activation else LIMIT), (name, m, wrong)
        products = layer._products(x.dtype, ids.numel(), block.top_k)
        call = next(reversed(layer._calls.values()), None)
        touched = int(ids.unique().numel()) * sum(nbytes(w) for w in pair)
        flops = 2 * ids.numel() * sum(n * k for n, k in sizes)
        facts = {
            "what": "layer", "block": name, "m": m, "error": wrong, "worst_row": worst,
            "layout": products.up.gemm.value if products else "eager",
            "function": "applied" if products and products.activates else "apart",
            "launches": call.launches if call else None,
            "floor_us": touched / BYTES_PER_US,
        }  # fmt: skip
        if real:
            facts |= timed(partial(layer, x, ids, weights), flops, host=m == 1)
        row(**facts)


def timed(call: Callable[[], object], flops: float, *, host: bool) -> dict[str, float]:
    """Microseconds of a call, eager and captured, and with `host` what it costs the host."""
    eager = cold_us(call, 15, 3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    captured = cold_us(graph.replay, 15, 3)
    found = {"eager_us": eager, "graph_us": captured, "tflops": flops / captured / 1e6}
    if host:
        times = []
        for _ in range(10):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(50):
                call()
            times.append((time.perf_counter() - start) / 50 * 1e6)
        torch.cuda.synchronize()
        found["host_us"] = sorted(times)[5]
    return found


def gemm_rows(name: str, block: Block, ms: list[int], device: str) -> None:
    """Both products alone, rows in the order of experts."""
    real, experts = device == "cuda", block.experts
    home = "cuda" if real else "cpu"
    options = {} if real else {"device": device}
    for n, k in ((2 * block.width, block.hidden), (block.hidden, block.width)):
        weight = random_experts(block.scheme, n, k, experts, home)
        layer = humming.QuantLinear(weight, activation=block.activation, **options)
        for m in ms:
            ids, _ = routing(m, block.top_k, experts, home)
            offsets = humming.route(ids, experts, GemmKind.GROUPED_CONTIGUOUS).table
            x = torch.randn(ids.numel(), k, device=home).bfloat16()
            found = layer(x, expert_offsets=offsets)
            some = slice(None, None, max(m // 16, 1))
            one = weight.replace(experts=1, **{f: t[:1].clone() for f, t in weight.tensors()})
            wrong, worst = errors(found[some], x[some].double() @ one.dequantize()[0].double().T)
            assert wrong < (QUANTIZED if block.activation else LIMIT), (name, m, wrong)
            facts = {
                "what": "gemm", "block": name, "n": n, "k": k, "m": m, "error": wrong,
                "worst_row": worst,
                "floor_us": int(ids.unique().numel()) * nbytes(weight) / BYTES_PER_US,
            }  # fmt: skip
            if real:
                call = partial(layer, x, expert_offsets=offsets)
                facts |= timed(call, 2 * ids.numel() * n * k, host=False)
            row(**facts)


def peer_rows(names: list[str], ms: list[int], folder: Path, seconds: float) -> None:
    """The peer's rows of whole layers; it has no bias."""
    blocks = {name: BLOCKS[name] for name in names if name in BLOCKS}
    jobs = [
        {"kind": "layer", "fmt": block.peer, "name": name, "hidden": block.hidden,
         "inter": block.width, "experts": block.experts, "topk": block.top_k, "ms": ms,
         "repeats": 15, "gating": block.gating.function.name}
        for name, block in blocks.items()
    ]  # fmt: skip
    for line in lines_of_humming_kernels(folder, jobs, seconds):
        print(line, flush=True)


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", nargs="*", default=[*BLOCKS, *GEMMS])
    parser.add_argument("--ms", nargs="*", type=int, default=[1, 8, 64, 512, 4096])
    parser.add_argument("--only", choices=("gemm", "layer"))
    parser.add_argument("--tiny", action="store_true", help="small layers, in the simulator")
    parser.add_argument("--apart", action="store_true", help="functions as launches, too")
    parser.add_argument("--humming-kernels", type=Path, help="folder where that peer is installed")
    parser.add_argument("--peer-seconds", type=float, default=1e6, help="it begins nothing later")
    options = parser.parse_args()
    device = "sim:nvidia-h100" if options.tiny else "cuda"
    where = device if options.tiny else torch.cuda.get_device_name()
    print(f"# {where}, torch {torch.__version__}, {datetime.date.today()}")
    torch.manual_seed(0)
    shrink = {"experts": 4, "top_k": 2, "hidden": 256, "width": 128} if options.tiny else {}
    ms = [1, 9] if options.tiny else options.ms
    for name in options.blocks:
        if name in BLOCKS and options.only != "gemm":
            block = BLOCKS[name]._replace(**shrink)
            layer_rows(name, block, ms, device, apart=options.apart)
        if name in GEMMS and options.only != "layer":
            scheme, activation = GEMMS[name]
            block = Block(scheme, activation, 256, 8, 7168, 2048, _SWIGLU)
            gemm_rows(name, block._replace(**shrink), ms, device)
        if not options.tiny:
            torch.cuda.empty_cache()
    if options.humming_kernels and options.only != "gemm":
        peer_rows(options.blocks, options.ms, options.humming_kernels, options.peer_seconds)


if __name__ == "__main__":
    main()
