"""Dense products of many kinds of numbers on a GPU, beside what torch has for some of them.

Run, on the machine with the GPU:

    export PYTHONPATH=$(echo packages/*/src | tr ' ' :)
    python benchmarks/formats.py                      # every pair below, on the device's backend
    python benchmarks/formats.py --pairs fp8 int8 --ms 1 128 4096 --backend sm75_sm89

`us` is the product alone, with activations that are quantized already, as for the peers; `call_us`
is a call of the layer, quantization included. Times are medians with a cold L2. Some rows of every
result are compared with float64, multiplied with the same quantized activations; what is wrong has
no time. Peers: torch's bf16 product, and cuBLAS's FP8 product with scales of rows (_scaled_mm).
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Callable

import torch
from measure import cold_us, errors, row, sampled_rows

import humming
from humming.activations import quantize_activation
from humming.backend import Problem
from humming.engine.kernel_layer import KernelLayer

#: Name: (weight, activation).
PAIRS = {
    "fp8": ("e4m3fn-channel-f32", "e4m3fn-token-f32"),
    "fp8_block": ("e4m3fn-b128x128-f32", "e4m3fn-g128-f32"),
    "int8": ("s8-channel-f32", "s8-token-f32"),
    "mxfp4_fp8": ("e2m1-g32-e8m0", "e4m3fn-token-f32"),
    "int4_int8": ("s4-g128-f32", "s8-token-f32"),
    "int4": ("u4-g128-bf16", ""),
    "int4_zero": ("u4+z-g128-bf16", ""),
    "mxfp4": ("e2m1-g32-e8m0", ""),
    "nvfp4": ("nvfp4", ""),
    "int2": ("u2-g128-bf16", ""),
    "int3": ("u3-g128-bf16", ""),
    "int8_bf16": ("s8-channel-f32", ""),
    "fp8_bf16": ("e4m3fn-channel-f32", ""),
}
LIMIT = 4e-3


def product(kernels: KernelLayer, x: torch.Tensor, n: int) -> Callable[[], torch.Tensor]:
    """The launch of the product, with its operand made."""
    m = x.shape[0]
    operand, plan = kernels.operand(x), kernels.plan(Problem(m=m))
    out = torch.empty(m, n, dtype=x.dtype, device=x.device)

    def run() -> torch.Tensor:
        kernels._launch(plan, operand, out, m, {})
        return out

    return run


def measured(name: str, options: argparse.Namespace, generator: torch.Generator) -> None:
    """Print a row for each M of a pair."""
    weight_scheme, activation = PAIRS[name]
    n, k = options.n, options.k
    values = torch.randn(n, k, device="cuda", generator=generator) * 0.02
    weight = humming.quantize(values, weight_scheme)
    exact = weight.dequantize(torch.float64)
    layer = humming.QuantLinear(
        weight, activation=activation or None, backend=options.backend or None
    )
    prepared = layer.prepare(torch.bfloat16)
    kernels = prepared.kernels
    assert kernels is not None, "a device with kernels"
    layer.warm_up(torch.bfloat16, options.ms)
    for m in options.ms:
        x = torch.randn(m, k, device="cuda", generator=generator).to(torch.bfloat16)
        run, some = product(kernels, x, n), sampled_rows(m)
        rows = x[some].double()
        if activation:
            scheme = humming.ActivationScheme.parse(activation)
            rows = quantize_activation(x[some], scheme).dequantize(torch.float64)
        whole, worst = errors(run()[some], rows @ exact.T)
        facts = {"peer": "humming", "kind": "dense", "fmt": name, "n": n, "k": k, "m": m}
        tuning = str(kernels.planner.tuning(Problem(m=m)))
        if whole > LIMIT or worst > 3 * LIMIT:
            row(**facts, error=f"wrong result: relative error {whole:.2e}", tuning=tuning)
            continue
        us, called = cold_us(run, options.repeats), cold_us(lambda: layer(x), options.repeats)  # noqa: B023
        tflops = 2e-6 * m * n * k / us
        row(**facts, us=us, call_us=called, tflops=tflops, relative_error=whole, tuning=tuning)


def peers(options: argparse.Namespace) -> None:
    """Print rows of torch."""
    n, k = options.n, options.k
    w = torch.randn(n, k, device="cuda").to(torch.bfloat16)
    w8, ones = w.to(torch.float8_e4m3fn), torch.ones(1, n, device="cuda")
    for m in options.ms:
        x = torch.randn(m, k, device="cuda").to(torch.bfloat16)
        us = cold_us(lambda: torch.nn.functional.linear(x, w), options.repeats)  # noqa: B023
        facts = {"kind": "dense", "n": n, "k": k, "m": m}
        row(peer="cublas", fmt="bf16", **facts, us=us, tflops=2e-6 * m * n * k / us)
        x8, scales = x.to(torch.float8_e4m3fn), torch.ones(m, 1, device="cuda")

        def fp8() -> torch.Tensor:
            return torch._scaled_mm(  # type: ignore[no-any-return]
                x8,  # noqa: B023
                w8.t(),
                scale_a=scales,  # noqa: B023
                scale_b=ones,
                out_dtype=torch.bfloat16,
                use_fast_accum=True,
            )

        try:
            us = cold_us(fp8, options.repeats)
        except RuntimeError as error:
            row(peer="cublas", fmt="fp8", **facts, error=str(error)[:80])
            continue
        row(peer="cublas", fmt="fp8", **facts, us=us, tflops=2e-6 * m * n * k / us)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=8192)
    parser.add_argument("--k", type=int, default=8192)
    parser.add_argument("--ms", type=int, nargs="+", default=[1, 16, 64, 128, 512, 2048, 8192])
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--backend", default="", help="'' is what the device gets")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    device = torch.cuda.get_device_properties(0)
    print(f"# {device.name}, torch {torch.__version__}, {datetime.date.today()}, {vars(options)}")
    if not options.no_peers:
        peers(options)
    for name in options.pairs:
        measured(name, options, torch.Generator("cuda").manual_seed(1))


if __name__ == "__main__":
    main()
