"""How long activations take to be quantized on a GPU, and what that costs the host.

Run: PYTHONPATH=$(echo packages/*/src | tr ' ' :) python benchmarks/quantize.py
--sweep times every tuning of a few forms instead, --fused the kernel with an activation function in
it beside the two kernels that it replaces, --rows-in-order rows in the order of experts.
The goals: 85 % of a copy's bandwidth from 16 MB on, one launch, 10 us of host time. Medians of 30
launches with a cold L2; `copy` moves as many bytes by torch, half of them read, half written. Codes
and scales are compared with those of humming.activations in the same run; `torch_us` is that.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from types import SimpleNamespace

import torch
from measure import cold_us, device_arch, row

from humming.activations import quantize_rows
from humming.backend import KernelSpec, Problem
from humming.engine.workshop import workshop
from humming.expert_kernels import RowMask, gate_spec
from humming.formats.activation import ActivationScheme
from humming.formats.table import number_format
from humming.formats.tensors import decode
from humming.gating import Gating
from humming.jit import compile_program
from humming.launching import CudaRuntime
from humming.quantizer import (
    QuantizeOptions,
    RowSource,
    quantize_spec,
    quantize_tunings,
    row_sizes,
)

SCHEMES = (
    "e4m3fn-token-f32", "e4m3fn-tensor-f32-static", "e4m3fn-g128-f32", "e4m3fn-g32-e8m0",
    "s8-token-f32", "s8-g128-f32", "s4-token-f32", "e2m1-g32-e8m0", "e2m1-g16-e4m3fn-tensor-static",
)  # fmt: skip
Size = tuple[str, int, int]
#: source, rows, k
SIZES = (
    ("bf16", 1, 4096), ("bf16", 64, 4096), ("bf16", 2048, 4096), ("bf16", 8192, 2048),
    ("bf16", 8192, 4096), ("bf16", 4096, 7168), ("bf16", 2048, 14336), ("bf16", 1024, 53248),
    ("f16", 8192, 4096), ("f32", 4096, 4096),
)  # fmt: skip
SWEPT_SCHEMES = (
    "e4m3fn-token-f32", "e4m3fn-g128-f32", "s8-token-f32", "e4m3fn-tensor-f32-static",
)  # fmt: skip
SWEPT_SIZES = (
    ("bf16", 1, 8192), ("bf16", 64, 7168), ("bf16", 8192, 2048), ("bf16", 8192, 4096),
    ("bf16", 4096, 7168), ("bf16", 2048, 14336), ("bf16", 1024, 53248), ("f32", 4096, 4096),
)  # fmt: skip
FUSED_SCHEMES = ("e4m3fn-token-f32", "e4m3fn-g128-f32", "s8-token-f32")
#: function, rows, outputs
FUSED_SIZES = (("swiglu", 64, 2048), ("swiglu", 32768, 2048), ("swiglu_oai", 16384, 2880))
#: Output rows of each row of x, in a row map.
TOP_K = 8
_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
_CALLS = 200
_BINARIES: dict[str, bytes] = {}
#: Scale of static schemes.
_STORED = 0.0371


@cache
def copy_us(nbytes: int) -> float:
    """Of a copy that reads half of the bytes and writes the other half."""
    source = torch.zeros(max(nbytes // 8, 1), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    return cold_us(lambda: target.copy_(source))


def host_us(call: Callable[[], object]) -> float:
    """Median of ten runs of calls."""
    samples = []
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(_CALLS):
            call()
        samples.append((time.perf_counter() - start) / _CALLS * 1e6)
    return sorted(samples)[5]


def compiled(spec: KernelSpec) -> bytes:
    """Its machine code, compiled once."""
    if spec.name not in _BINARIES:
        _BINARIES[spec.name] = compile_program(workshop().program(spec, "cubin")).data
    return _BINARIES[spec.name]


def compile_all(specs: Iterable[KernelSpec]) -> None:
    """Compile many kernels, several at a time."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(compiled, {spec.name: spec for spec in specs}.values()))


class Kernel:
    """One kernel with its outputs, ready to run."""

    def __init__(self, text: str, x: torch.Tensor, k: int, options: QuantizeOptions) -> None:
        self.scheme, self.x, rows = ActivationScheme.parse(text), x, x.shape[0]
        if options.rows is RowSource.MAP:
            rows *= TOP_K
        source = number_format(x.dtype)
        self.spec = quantize_spec(self.scheme, source, k, device_arch(), options)
        runtime = CudaRuntime()
        handle = runtime.load(compiled(self.spec), self.spec.entry)
        self.stored = torch.tensor([_STORED], device="cuda") if self.scheme.static else None
        sizes = row_sizes(self.scheme, k)
        self.codes = torch.empty(rows, sizes.code_bytes, dtype=torch.uint8, device="cuda")
        self.scales = torch.empty(rows, device="cuda")
        self.groups = torch.empty(rows, sizes.groups, device="cuda")
        table = None
        if options.rows is RowSource.MAP:
            table = torch.arange(rows, dtype=torch.int32, device="cuda") % x.shape[0]
            table = table[torch.randperm(rows, device="cuda")].contiguous()
        self.table = table
        values = [x, x.stride(0), self.stored, 0, self.codes, self.scales, self.groups, rows, k]
        values += [table, x.shape[0] if table is not None else 0]
        run = runtime.prepare(handle, [arg.kind for arg in self.spec.args], values, {})
        shape = self.spec.launch(Problem(m=rows), None)
        self.run = lambda: run(shape)

    @property
    def nbytes(self) -> int:
        """What it reads and writes."""
        parts = (self.x, self.codes, self.scales, self.groups)
        return sum(part.numel() * part.element_size() for part in parts)

    def is_equal(self, x: torch.Tensor) -> bool:
        """Whether the outputs are what humming.activations makes of x."""
        self.run()
        if self.table is not None:
            x = x[self.table.long()]
        found = quantize_rows(x, self.scheme, self.stored)
        wanted = found.codes
        if self.scheme.format.bits <= 4:
            wanted = wanted[:, 0::2] | wanted[:, 1::2] << 4
        is_equal = torch.equal(self.codes[:, : wanted.shape[1]], wanted)
        if self.scheme.group_size and self.scheme.scale is not None:
            is_equal &= torch.equal(self.groups, decode(found.scales, self.scheme.scale))
        return is_equal


@cache
def native() -> bool:
    """Whether this device converts to formats of eight bits."""
    return torch.cuda.get_device_capability() >= (8, 9)


def fields(kernel: Kernel, time_us: float) -> dict[str, object]:
    """What is printed of every kernel."""
    return {
        "scheme": str(kernel.scheme),
        "kernel": kernel.spec.name.split(".")[-1],
        "us": round(time_us, 2),
        "mb": round(kernel.nbytes / 1e6, 1),
        "gbps": round(kernel.nbytes / time_us / 1e3),
        "of_copy": round(copy_us(kernel.nbytes) / time_us, 3),
    }


def numbers(source: str, rows: int, k: int) -> torch.Tensor:
    """Random rows."""
    return torch.randn(rows, k, device="cuda").to(_DTYPES[source])


def measure(text: str, source: str, rows: int, k: int) -> None:
    """Print one figure."""
    kernel = Kernel(text, numbers(source, rows, k), k, QuantizeOptions(native=native()))
    torch_us = cold_us(lambda: quantize_rows(kernel.x, kernel.scheme, kernel.stored), 10)
    row(
        **fields(kernel, cold_us(kernel.run)), source=source, rows=rows, k=k,
        launch_us=round(host_us(kernel.run), 2), torch_us=round(torch_us, 1),
        equal=kernel.is_equal(kernel.x),
    )  # fmt: skip


def specs_of(texts: Iterable[str], sizes: Iterable[Size], tuned: bool) -> list[KernelSpec]:
    """Kernels of all schemes and sizes, with the default tuning or with each."""
    found = []
    for text in texts:
        scheme = ActivationScheme.parse(text)
        for source, _, k in sizes:
            fmt = number_format(source)
            for tuning in quantize_tunings(scheme, fmt, k)[: None if tuned else 1]:
                options = QuantizeOptions(native=native(), tuning=tuning)
                found.append(quantize_spec(scheme, fmt, k, device_arch(), options))
    return found


def sweep(texts: Iterable[str]) -> None:
    """Print the figures of all tunings; those that come to the same kernel once."""
    compile_all(specs_of(texts, SWEPT_SIZES, True))
    for text in texts:
        for source, rows, k in SWEPT_SIZES:
            x = numbers(source, rows, k)
            tunings = quantize_tunings(ActivationScheme.parse(text), number_format(source), k)
            timed: set[str] = set()
            for place, tuning in enumerate(tunings):
                options = QuantizeOptions(native=native(), tuning=tuning)
                kernel = Kernel(text, x, k, options)
                if kernel.spec.name in timed:
                    continue
                timed.add(kernel.spec.name)
                row(
                    **fields(kernel, cold_us(kernel.run, 15)), source=source, rows=rows, k=k,
                    tuning=list(tuning), default=place == 0, equal=kernel.is_equal(x),
                )  # fmt: skip


def fused() -> None:
    """Print figures of activation function and quantization in one kernel, and in two."""
    for text in FUSED_SCHEMES:
        for name, rows, k in FUSED_SIZES:
            gating = Gating.of(name)
            x = numbers("bf16", rows, gating.inputs(k))
            kernel = Kernel(text, x, k, QuantizeOptions(native=native(), gating=gating))
            middle, run = gate(gating, x, k)
            apart = Kernel(text, middle, k, QuantizeOptions(native=native()))
            time_us = cold_us(kernel.run)
            apart_us = cold_us(partial(in_turn, run, apart.run))
            row(
                **fields(kernel, time_us), rows=rows, k=k, apart_us=round(apart_us, 2),
                equal=kernel.is_equal(middle),
            )  # fmt: skip


def in_turn(*calls: Callable[[], object]) -> None:
    """One call after the other."""
    for call in calls:
        call()


def rows_in_order() -> None:
    """Print figures of rows that are written in the order of experts, each of them TOP_K times."""
    for text in FUSED_SCHEMES:
        for _, rows, k in FUSED_SIZES:
            x = numbers("bf16", rows // TOP_K, k)
            kernel = Kernel(text, x, k, QuantizeOptions(native=native(), rows=RowSource.MAP))
            row(**fields(kernel, cold_us(kernel.run)), rows=rows, k=k, equal=kernel.is_equal(x))


def gate(gating: Gating, x: torch.Tensor, k: int) -> tuple[torch.Tensor, Callable[[], object]]:
    """What the kernel of an activation function alone writes, and the call that does it."""
    spec = gate_spec(gating, number_format(x.dtype), RowMask.EVERY, k % 8 == 0, device_arch())
    runtime = CudaRuntime()
    out = torch.empty(x.shape[0], k, dtype=x.dtype, device="cuda")
    values = [x, x.stride(0) * x.element_size(), out, None, 0, x.shape[0], k]
    handle = runtime.load(compiled(spec), spec.entry)
    run = runtime.prepare(handle, [arg.kind for arg in spec.args], values, {})
    shape = spec.launch(Problem(m=x.shape[0]), SimpleNamespace(n=k))
    return out, lambda: run(shape)


def main() -> None:
    """Print all figures that the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for option in ("sweep", "fused", "rows-in-order"):
        parser.add_argument(f"--{option}", action="store_true")
    parser.add_argument("--schemes", nargs="*", help="of activations, instead of the usual ones")
    options = parser.parse_args()
    properties = torch.cuda.get_device_properties(0)
    print(f"# {properties.name}, torch {torch.__version__}, {datetime.date.today()}")
    print(f"# python {' '.join(sys.argv)}")
    if options.sweep:
        sweep(options.schemes or SWEPT_SCHEMES)
    if options.fused:
        fused()
    if options.rows_in_order:
        rows_in_order()
    if not (options.sweep or options.fused or options.rows_in_order):
        compile_all(specs_of(options.schemes or SCHEMES, SIZES, False))
        for text in options.schemes or SCHEMES:
            for source, rows, k in SIZES:
                measure(text, source, rows, k)


if __name__ == "__main__":
    main()
