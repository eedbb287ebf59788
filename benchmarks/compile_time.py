"""How long kernels take to be ready in a process that has none: each case in a fresh process.

Run: PYTHONPATH=$(echo packages/*/src | tr ' ' :) python benchmarks/compile_time.py [--profile NAME]

With a GPU the kernels of `--profile` are compiled and loaded, without one they are compiled alone.
The goals: one W4A16 kernel in 0.5 s, all that a layer needs for 1 to 8192 rows in 2.5 s. What is
not counted: starting Python, importing torch and humming, and opening the GPU.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
import time

import torch
from measure import row

import humming
from humming.backend import KernelBackend
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.engine.choice import Planner
from humming.engine.workshop import workshop

#: Name: (weight, activation, kind of GEMM, rows; None is 1 to 8192).
CASES = {
    "one_kernel_w4a16": ("u4-g128-bf16", "", GemmKind.DENSE, (16,)),
    "one_kernel_w8a8": ("s8-channel-f32", "s8-token-f32", GemmKind.DENSE, (16,)),
    "layer_w4a16": ("u4-g128-bf16", "", GemmKind.DENSE, None),
    "layer_w8a8": ("s8-channel-f32", "s8-token-f32", GemmKind.DENSE, None),
    "experts_w4a16": ("u4-g128-bf16", "", GemmKind.INDEXED, None),
}


def seconds(name: str, profile: str) -> tuple[float, int]:
    """Of one case in this process, and how many kernels it is."""
    weight, activation, gemm, ms = CASES[name]
    experts = 0 if gemm is GemmKind.DENSE else 8
    if not torch.cuda.is_available():
        return _compile_alone(name, profile)
    generator = torch.Generator("cuda").manual_seed(0)
    shape = (experts, 4096, 4096) if experts else (4096, 4096)
    values = torch.randn(shape, device="cuda", generator=generator)
    layer = humming.QuantLinear.from_float(values, weight, activation=activation or None)
    layer = humming.QuantLinear(
        layer.weight,
        activation=activation or None,
        backend="sm75_sm89",
        profile=profile or None,
    )
    prepared = layer.prepare(torch.bfloat16, gemm)  # packs the weight, which may take a kernel too
    assert prepared.kernels is not None, "the backend has kernels"
    torch.cuda.synchronize()
    start = time.perf_counter()
    layer.warm_up(torch.bfloat16, ms, gemm=gemm, top_k=2 if experts else 1)
    torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    return elapsed, len(prepared.kernels.planner.tunings(ms))


def _compile_alone(name: str, profile: str) -> tuple[float, int]:
    weight, activation, gemm, ms = CASES[name]
    bf16 = humming.number_format("bf16")
    layer = LayerConfig(
        n=4096,
        k=4096,
        experts=0 if gemm is GemmKind.DENSE else 8,
        weight=humming.WeightScheme.parse(weight),
        activation=humming.ActivationScheme.parse(activation or "bf16"),
        output=bf16,
    )
    compute = ComputeConfig(gemm=gemm)
    backend = humming.select_backend("sm75_sm89", profile=profile, layer=layer, compute=compute)
    assert isinstance(backend, KernelBackend), "it describes kernels"
    start = time.perf_counter()
    planner = Planner(backend, layer, compute)
    specs = [planner.spec(tuning) for tuning in planner.tunings(ms)]
    workshop().library.get_many([workshop().program(spec, "cubin") for spec in specs])
    return time.perf_counter() - start, len(specs)


def main() -> None:
    """Print a row for each case, or (in a child) one case's numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="nvidia-a100")
    parser.add_argument("--case", choices=CASES, help="run this one here, with the cache as it is")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.case:
        print("RESULT", *seconds(options.case, options.profile))
        return
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    print(
        f"# {where}, {os.cpu_count()} cores, {datetime.date.today()}, python {' '.join(sys.argv)}"
    )
    for name in CASES:
        times = []
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory() as folder:
                run = subprocess.run(
                    [sys.executable, __file__, "--profile", options.profile, "--case", name],
                    env={**os.environ, "HUMMING_CACHE_DIR": folder, "CUDA_CACHE_DISABLE": "1"},
                    capture_output=True,
                    text=True,
                    check=False,
                )
            if run.returncode:
                raise SystemExit(run.stderr)
            line = next(line for line in run.stdout.splitlines() if line.startswith("RESULT"))
            times.append(float(line.split()[1]))
            kernels = int(line.split()[2])
        median = sorted(times)[len(times) // 2]
        row(peer="humming", kind="compile", case=name, kernels=kernels, seconds=median, all=times)


if __name__ == "__main__":
    main()
