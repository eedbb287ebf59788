"""humming-kernels, the peer whose package has our name: the same cells, in a process of its own.

    python benchmarks/peers/humming_kernels.py FOLDER < JOBS

FOLDER is that of `pip install --target FOLDER humming-kernels`; PYTHONPATH must not lead to our
packages. JOBS is what cells.py and moe.py write: {"jobs": [...], "seconds": ...}. Kernels are those
that its heuristics choose, prepared and launched through its public API; operands are quantized and
ids of experts are sorted before, as for ours.

Jobs of kind "layer" are its pieces of a whole layer in a row: process_input, a product,
process_input with the activation function, the other product, and torch's sum by weight. Only the
tables of rows are made before, since it has no kernel for them; weights are random bits.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

_FLUSH_BYTES = 512 << 20
_WARM_UP = 3
_ANY_ROWS = 1 << 30
#: Sizes that its tiles of experts' weights want multiples of.
_PADDED_N, _PADDED_K = 256, 128
#: Tokens from which rows of a layer lie in the order of experts; what is faster there.
_SORTED_FROM = 512

_FP8, _INT8 = {"dtype": "float8e4m3"}, {"dtype": "int8"}
_MXFP4 = {"dtype": "float4e2m1", "group_size": 32, "scale_dtype": "float8e8m0"}
_NVFP4 = {"dtype": "float4e2m1", "group_size": 16, "scale_dtype": "float8e4m3",
          "scale_2_type": "tensor"}  # fmt: skip


def _int(bits: int) -> dict[str, Any]:
    return {"dtype": f"int{bits}", "group_size": 128}


#: Weight and activation in its own terms, by the names of workloads.py.
CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "w2a16_int2_g128": (_int(2), {}),
    "w3a16_int3_g128": (_int(3), {}),
    "w4a16_int4_g128": (_int(4), {}),
    "w4a16_mxfp4": (_MXFP4, {}),
    "w4a16_nvfp4": (_NVFP4, {}),
    "w8a16_int8_ch": (_INT8, {}),
    "w8a16_fp8_ch": (_FP8, {}),
    "w4a8_int4g128_fp8token": (_int(4), _FP8),
    "w4a8_int4g128_int8token": (_int(4), _INT8),
    "w4a8_int4ch_fp8token": ({"dtype": "int4"}, _FP8),
    "w4a8_int4ch_int8token": ({"dtype": "int4"}, _INT8),
    "w4a8_mxfp4_fp8token": (_MXFP4, _FP8),
    "w8a8_fp8_block128": (
        {**_FP8, "group_size": 128, "group_size_n": 128},
        {**_FP8, "group_size": 128},
    ),
    "w8a8_fp8_ch_token": (_FP8, _FP8),
    "w8a8_int8_ch_token": (_INT8, _INT8),
}
#: Activation functions in its own terms: type, and expression of the gate a and of b.
FUNCTIONS = {
    "swiglu": ("binary_split", "a / (1.0f + expf(-a)) * b"),
    "swiglu_oai": (
        "binary_interleaved",
        "fminf(a, 7.0f) / (1.0f + expf(-1.702f * fminf(a, 7.0f))) "
        "* (fmaxf(fminf(b, 7.0f), -7.0f) + 1.0f)",
    ),
}
_TENSORS = ("weight", "weight_scale", "weight_scale_2", "zero_point", "bias")


def main() -> None:
    """Print the rows of all jobs."""
    order = json.load(sys.stdin)
    deadline = time.monotonic() + order["seconds"]
    peer = Peer(Path(sys.argv[1]))
    for job in order["jobs"]:
        facts = {key: job[key] for key in job if key not in ("ms", "repeats", "name")}
        facts |= {"peer": "humming-kernels", "fmt": job["name"]}
        try:
            rows = peer.layer_rows if job["kind"] == "layer" else peer.rows
            for fields in rows(job, deadline):
                _row(**facts, **fields)
        except Exception as error:  # whatever it raises: the other jobs go on
            where = traceback.extract_tb(error.__traceback__)[-1]
            _row(**facts, error=f"{error!r:.300} in {where.name}, line {where.lineno}")


class Peer:
    """What is used of the package.

    Args:
        folder: where it is installed.
    """

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(folder))
        self.api: dict[str, Any] = {
            name: getattr(importlib.import_module(f"humming.{module}"), name)
            for module, name in (
                ("layer", "HummingLayer"),
                ("config", "ComputeConfig"),
                ("config", "GemmType"),
                ("kernel.humming", "HummingKernel"),
                ("tune", "get_heuristics_config"),
                ("forward", "may_process_input"),
                ("ops", "launch_kernel"),
                ("testing.data", "generate_moe_tensors"),
                ("testing.data", "random_fill_tensor"),
            )
        }
        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")
        self._held: tuple[object, list[Any]] = (None, [])
        self._experts = 0

    def rows(self, job: dict[str, Any], deadline: float) -> Iterator[dict[str, Any]]:
        """Fields of a row for each M: the sum of the job's products."""
        experts, kind, ms = job.get("experts", 0), job["kind"], job["ms"]
        top_k = job.get("topk", 1)
        if experts:
            hidden, inter = job["hidden"], job["inter"]
            shapes = [(2 * inter, hidden), (hidden, inter)]
        else:
            shapes = [(job["n"], job["k"])]
        layers = self._layers(job["fmt"], shapes, experts)
        sizes = [m * top_k for m in ms]
        plans = [self._plans(layer, kind, sizes) for layer in layers]
        for index, m in enumerate(ms):
            if time.monotonic() > deadline:
                return
            times = []
            for place, layer in enumerate(layers):
                plan, kernels = plans[place][0][index], plans[place][1][index]
                # The second product has a row for each choice already.
                choices = top_k if place == 0 else 1
                call = self._call(layer, kind, (m, top_k, choices), (plan, kernels))
                times.append(self._cold_us(call, job["repeats"]))
            us = sum(times)
            operations = 2.0 * m * top_k * sum(n * k for n, k in shapes)
            yield {"m": m, "us": us, "tflops": operations / us / 1e6, "parts_us": times,
                   "tuning": str(plans[0][0][index].get("block_shape"))}  # fmt: skip

    def layer_rows(self, job: dict[str, Any], deadline: float) -> Iterator[dict[str, Any]]:
        """Fields of a row for each M: a whole layer, eager and, if that can be, in a graph."""
        experts, top_k, ms = job["experts"], job["topk"], job["ms"]
        hidden, inter = job["hidden"], job["inter"]
        shapes = [(2 * inter, hidden), (hidden, inter)]
        layers = self._layers(job["fmt"], shapes, experts)
        kinds = {m: "grouped_contiguous" if m >= _SORTED_FROM else "indexed" for m in ms}
        plans: dict[int, list[tuple[Any, Any]]] = {m: [] for m in ms}
        for kind in dict.fromkeys(kinds.values()):
            some = [m for m in ms if kinds[m] == kind]
            for layer in layers:  # all of a kind at once: they are compiled side by side
                found = zip(*self._plans(layer, kind, [m * top_k for m in some]), strict=True)
                for m, plan in zip(some, found, strict=True):
                    plans[m].append(plan)
        for m in ms:
            if time.monotonic() > deadline:
                return
            call = self._whole(layers, kinds[m], (m, top_k), plans[m], job["gating"])
            fields = {"m": m, "layout": kinds[m], "eager_us": self._cold_us(call, job["repeats"])}
            try:
                fields["graph_us"] = self._cold_us(_captured(call), job["repeats"])
            except RuntimeError as error:  # torch's, of what can't be captured
                fields["graph_error"] = repr(error)[:200]
            yield fields

    def _whole(
        self,
        layers: list[Any],
        kind: str,
        size: tuple[int, int],
        chosen: list[tuple[Any, Any]],
        gating: str,
    ) -> Callable[[], torch.Tensor]:
        """Its pieces of a layer, one after another."""
        (m, top_k), (up, down) = size, layers
        process, launch = self.api["may_process_input"], self.api["launch_kernel"]
        experts, hidden = up.humming_config.num_experts, _inputs(up)
        ids = _chosen_experts(m, experts, top_k)
        order = ids.flatten().argsort(stable=True)
        places = order.argsort().int()  # of each choice among the rows in order
        weights = torch.rand(m, 1, top_k, device="cuda", dtype=torch.bfloat16)
        x = torch.randn(m, hidden, device="cuda", dtype=torch.bfloat16)
        tables = [
            self._tables(ids if choices == top_k else ids.reshape(-1, 1), kind, plan, choices)
            for (plan, _), choices in zip(chosen, (top_k, 1), strict=True)
        ]
        is_sorted, (what, function) = kind != "indexed", FUNCTIONS[gating]
        scatter = {"layout": "scatter", "scatter_idx": places.view(m, top_k)} if is_sorted else {}

        def multiply(place: int, layer: Any, rows: Any, groups: Any, tokens: Any) -> torch.Tensor:
            out = torch.empty(m * top_k, _outputs(layer), dtype=torch.bfloat16, device="cuda")
            launch(
                configs=chosen[place][1], inputs=rows, outputs=out, locks=layer.locks,
                input_scale=tokens if groups is None else groups,
                **_tensors(layer), **tables[place],
            )  # fmt: skip
            return out

        def call() -> torch.Tensor:
            rows = multiply(0, up, *process(up.humming_config, inputs=x, **scatter))
            middle = process(
                down.humming_config, inputs=rows, activation_type=what, activation_impl=function
            )
            rows = multiply(1, down, *middle)
            if is_sorted:
                rows = rows[places]
            return torch.bmm(weights, rows.view(m, top_k, hidden)).squeeze(1)

        return call

    def _tables(self, ids: torch.Tensor, kind: str, plan: Any, choices: int) -> dict[str, Any]:
        """Where rows of experts are."""
        _, offsets, slots, experts, padded = self.api["generate_moe_tensors"](
            ids, self._experts, gemm_type=kind, block_size_config=plan["block_shape"][0]
        )
        return {"expert_layout": offsets, "sorted_ids": slots, "expert_ids": experts,
                "num_tokens_padded": padded, "top_k": choices}  # fmt: skip

    def _layers(self, fmt: str, shapes: list[tuple[int, int]], experts: int) -> list[Any]:
        key = fmt, tuple(shapes), experts
        if self._held[0] != key:
            self._held = None, []
            torch.cuda.empty_cache()
            self._held = key, [self._layer(fmt, shape, experts) for shape in shapes]
            self._experts = experts
        return self._held[1]

    def _layer(self, fmt: str, shape: tuple[int, int], experts: int) -> Any:
        weight, activation = CONFIGS[fmt]
        with torch.device("cuda"):  # where it makes its parameters then
            layer = self.api["HummingLayer"](
                shape_n=shape[0], shape_k=shape[1], num_experts=experts or None,
                weight_config=dict(weight), input_config=dict(activation),
                torch_dtype=torch.bfloat16,
                pad_n_to_multiple=_PADDED_N, pad_k_to_multiple=_PADDED_K,
            ).cuda()  # fmt: skip
        if experts:  # too many to quantize
            for parameter in layer.parameters():
                self.api["random_fill_tensor"](parameter.data)
        else:
            values = torch.randn(shape, dtype=torch.bfloat16, device="cuda") * 0.05
            layer.load_from_unquantized(values)
        layer.transform()
        torch.cuda.synchronize()
        return layer

    def _plans(self, layer: Any, kind: str, sizes: list[int]) -> tuple[list[Any], torch.Tensor]:
        config = layer.humming_config
        choose = self.api["get_heuristics_config"]
        plans = [choose(config, shape_m=size, gemm_type=kind) for size in sizes]
        compute = self.api["ComputeConfig"](gemm_type=self.api["GemmType"](kind))
        kernels = self.api["HummingKernel"].prepare_kernels(
            config.to_str(), compute.to_str(), [(0, _ANY_ROWS, plan) for plan in plans], device=0
        )
        return plans, kernels.reshape(-1, 4)

    def _call(
        self, layer: Any, kind: str, size: tuple[int, int, int], chosen: tuple[Any, Any]
    ) -> Callable[[], object]:
        m, top_k, choices = size
        plan, kernel = chosen
        config = layer.humming_config
        arguments = _tensors(layer)
        rows = m * top_k
        if kind != "dense":
            ids = _chosen_experts(m, config.num_experts, top_k)
            ids = ids if choices == top_k else ids.reshape(-1, 1)
            arguments |= self._tables(ids, kind, plan, choices)
        count = rows // choices if kind == "indexed" else rows
        x = torch.randn(count, _inputs(layer), dtype=torch.bfloat16, device="cuda")
        scales = None
        if config.a_dtype.num_bits != 16:
            x, groups, tokens = self.api["may_process_input"](config, inputs=x)
            scales = tokens if groups is None else groups
        out = torch.empty(rows, _outputs(layer), dtype=torch.bfloat16, device="cuda")
        launch = self.api["launch_kernel"]
        return lambda: launch(
            configs=kernel, inputs=x, input_scale=scales, outputs=out, locks=layer.locks,
            **arguments,
        )  # fmt: skip

    def _cold_us(self, call: Callable[[], object], repeats: int) -> float:
        """As measure.py does it, which imports our package."""
        for _ in range(_WARM_UP):
            call()
        pairs = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(repeats)
        ]
        for start, end in pairs:
            self._flush.zero_()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        samples: list[float] = [start.elapsed_time(end) for start, end in pairs]
        return statistics.median(samples) * 1e3


def _chosen_experts(m: int, experts: int, top_k: int) -> torch.Tensor:
    """Those that ours get: as chosen_experts() of measure.py, which imports our package."""
    generator = torch.Generator("cuda").manual_seed(m)
    scores = torch.rand(m, experts, device="cuda", generator=generator)
    return scores.topk(top_k).indices.int()


def _tensors(layer: Any) -> dict[str, Any]:
    return {name: getattr(layer, name, None) for name in _TENSORS}


def _inputs(layer: Any) -> int:
    """Of a row, without what pads it."""
    config = layer.humming_config
    return int(config.shape_k - config.pad_shape_k)


def _outputs(layer: Any) -> int:
    config = layer.humming_config
    return int(config.shape_n - config.pad_shape_n)


def _captured(call: Callable[[], object]) -> Callable[[], object]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def _row(**fields: object) -> None:
    print("ROW " + json.dumps(fields), flush=True)


if __name__ == "__main__":
    main()
