"""How long kernels take to be ready in a process that has none: each case in a fresh process.

Run: PYTHONPATH=$(echo packages/*/src | tr ' ' :) python benchmarks/compile_time.py [--profile NAME]

With a GPU the kernels of `--profile` are compiled and loaded. If it is another device's profile,
they are PTX, which the driver has to translate as well; `--alone` compiles what that device would
load, as happens without a GPU. `--each` compiles one kernel after another and says how long each
took.

The goals: one W4A16 kernel in 0.5 s, all that a layer needs for 1 to 8192 rows in 2.5 s. What is
not counted: starting Python, importing torch and humming, and opening the GPU. A case's process is
a fork of one that has imported everything and opened nothing, so that starting it takes no time.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

import torch
from measure import row

import humming
from humming.backend import KernelBackend
from humming.configs import ComputeConfig, GemmKind, LayerConfig, TuningConfig
from humming.engine.choice import Planner
from humming.engine.workshop import workshop
from humming.jit import Program, compile_program

#: Name: (weight, activation, kind of GEMM, rows; None is 1 to 8192).
CASES = {
    "one_kernel_w4a16": ("u4-g128-bf16", "", GemmKind.DENSE, (16,)),
    "one_kernel_w8a8": ("s8-channel-f32", "s8-token-f32", GemmKind.DENSE, (16,)),
    "layer_w4a16": ("u4-g128-bf16", "", GemmKind.DENSE, None),
    "layer_w8a8": ("s8-channel-f32", "s8-token-f32", GemmKind.DENSE, None),
    "experts_w4a16": ("u4-g128-bf16", "", GemmKind.INDEXED, None),
}


_EXPERTS, _TOP_K = 8, 2

Result = TypeVar("Result")


def compile_and_load(name: str, profile: str) -> tuple[float, int]:
    """Seconds of one case in this process, and how many kernels it is."""
    weight, activation, gemm, ms = CASES[name]
    experts, top_k = (0, 1) if gemm is GemmKind.DENSE else (_EXPERTS, _TOP_K)
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
    layer.warm_up(torch.bfloat16, ms, gemm=gemm, top_k=top_k)
    torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    return elapsed, len(prepared.kernels.planner.tunings(ms, top_k))


def compile_alone(name: str, profile: str) -> tuple[float, int]:
    """The same without a GPU, for the device of the profile."""
    planner = _planner(name, profile)
    start = time.perf_counter()
    programs = [program for _, program in _programs(name, planner)]
    workshop().library.get_many(programs[::-1])
    return time.perf_counter() - start, len(programs)


def compile_each(name: str, profile: str) -> None:
    """A row for each kernel of a case, compiled after a first that is not counted."""
    pairs = _programs(name, _planner(name, profile))
    compile_program(pairs[0][1])  # loads the compiler
    for tuning, program in pairs:
        start = time.perf_counter(), time.process_time()
        usage = compile_program(program).usage[0]
        wall, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
        row(case=name, seconds=round(wall, 3), cpu_seconds=round(cpu, 3),
            registers=usage.registers, tuning=str(tuning))  # fmt: skip


def _planner(name: str, profile: str) -> Planner:
    weight, activation, gemm, _ = CASES[name]
    layer = LayerConfig(
        n=4096,
        k=4096,
        experts=0 if gemm is GemmKind.DENSE else _EXPERTS,
        weight=humming.WeightScheme.parse(weight),
        activation=humming.ActivationScheme.parse(activation or "bf16"),
        output=humming.number_format("bf16"),
    )
    compute = ComputeConfig(gemm=gemm)
    backend = humming.select_backend("sm75_sm89", profile=profile, layer=layer, compute=compute)
    assert isinstance(backend, KernelBackend), "it describes kernels"
    return Planner(backend, layer, compute)


def _programs(name: str, planner: Planner) -> list[tuple[TuningConfig, Program]]:
    _, _, gemm, ms = CASES[name]
    tunings = planner.tunings(ms, 1 if gemm is GemmKind.DENSE else _TOP_K)
    return [(tuning, workshop().program(planner.spec(tuning), "cubin")) for tuning in tunings]


def _start(folder: str) -> None:
    os.environ |= {"HUMMING_CACHE_DIR": folder, "CUDA_CACHE_DISABLE": "1"}


def _where() -> str:
    """Of this process, which may open the GPU; its parent may not."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


def in_a_fresh_process(call: Callable[..., Result], *args: object) -> Result:
    """The result of a call in a fork of this process, with an empty cache."""
    context = multiprocessing.get_context("fork")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(1, context, initializer=_start, initargs=(folder,)) as pool,
    ):
        return pool.submit(call, *args).result()


def main() -> None:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="nvidia-a100")
    parser.add_argument("--case", choices=CASES, help="this one alone")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="compile for the profile's device")
    parser.add_argument("--each", action="store_true", help="the kernels one after another")
    options = parser.parse_args()
    where = in_a_fresh_process(_where)
    print(
        f"# {where}, {os.cpu_count()} cores, {datetime.date.today()}, python {' '.join(sys.argv)}"
    )
    alone = options.alone or where == "no GPU"
    measure = compile_alone if alone else compile_and_load
    for name in [options.case] if options.case else CASES:
        if options.each:
            in_a_fresh_process(compile_each, name, options.profile)
            continue
        runs = [in_a_fresh_process(measure, name, options.profile) for _ in range(options.repeats)]
        times = [round(elapsed, 3) for elapsed, _ in runs]
        row(peer="humming", kind="compile", case=name, loads=not alone, kernels=runs[0][1],
            seconds=sorted(times)[len(times) // 2], all=times)  # fmt: skip


if __name__ == "__main__":
    main()
