"""How long activations take to be quantized on a GPU, and what that costs the host.

Run: PYTHONPATH=$(echo packages/*/src | tr ' ' :) python benchmarks/quantize.py
The goals: 85 % of a copy's bandwidth from 16 MB on, one launch, 10 us of host time. Medians of 30
launches with a cold L2; `copy` moves as many bytes by torch, half of them read, half written. Codes
and scales are compared with those of humming.activations in the same run; `torch_us` is that.
"""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable
from functools import cache

import torch
from measure import cold_us, device_arch, row

from humming.activations import quantize_rows
from humming.backend import Problem
from humming.engine.workshop import workshop
from humming.formats.activation import ActivationScheme
from humming.formats.table import number_format
from humming.formats.tensors import decode
from humming.jit import compile_program
from humming.launching import CudaRuntime
from humming.quantizer import quantize_spec, row_sizes

SCHEMES = (
    "e4m3fn-token-f32", "e4m3fn-tensor-f32-static", "e4m3fn-g128-f32", "e4m3fn-g32-e8m0",
    "s8-token-f32", "s8-g128-f32", "s4-token-f32", "e2m1-g32-e8m0", "e2m1-g16-e4m3fn-tensor-static",
)  # fmt: skip
#: source, rows, k
SIZES = (
    ("bf16", 1, 4096), ("bf16", 64, 4096), ("bf16", 2048, 4096), ("bf16", 8192, 2048),
    ("bf16", 8192, 4096), ("bf16", 4096, 7168), ("bf16", 2048, 14336), ("bf16", 1024, 53248),
    ("f16", 8192, 4096), ("f32", 4096, 4096),
)  # fmt: skip
_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
_CALLS = 200
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


def measure(text: str, source: str, rows: int, k: int) -> None:
    """Print one figure."""
    scheme = ActivationScheme.parse(text)
    spec = quantize_spec(scheme, number_format(source), k, device_arch())
    runtime = CudaRuntime()
    handle = runtime.load(compile_program(workshop().program(spec, "cubin")).data, spec.entry)
    x = torch.randn(rows, k, device="cuda").to(_DTYPES[source])
    scale = torch.tensor([_STORED], device="cuda") if scheme.static else None
    sizes = row_sizes(scheme, k)
    codes = torch.empty(rows, sizes.code_bytes, dtype=torch.uint8, device="cuda")
    scales = torch.empty(rows, device="cuda")
    groups = torch.empty(rows, sizes.groups, device="cuda")
    values = [x, k, scale, 0, codes, scales, groups, rows, k]
    run = runtime.prepare(handle, [arg.kind for arg in spec.args], values, {})
    shape = spec.launch(Problem(m=rows), None)
    time_us = cold_us(lambda: run(shape))
    found = quantize_rows(x, scheme, scale)
    wanted = found.codes
    if scheme.format.bits <= 4:
        wanted = wanted[:, 0::2] | wanted[:, 1::2] << 4
    is_equal = torch.equal(codes[:, : wanted.shape[1]], wanted)
    if scheme.group_size and scheme.scale is not None:
        is_equal &= torch.equal(groups, decode(found.scales, scheme.scale))
    nbytes = sum(t.numel() * t.element_size() for t in (x, codes, scales, groups))
    copied = copy_us(nbytes)
    row(
        scheme=text, source=source, rows=rows, k=k, kernel=spec.name, us=round(time_us, 2),
        mb=round(nbytes / 1e6, 1), gbps=round(nbytes / time_us / 1e3),
        of_copy=round(copied / time_us, 3), launch_us=round(host_us(lambda: run(shape)), 2),
        torch_us=round(cold_us(lambda: quantize_rows(x, scheme, scale), 10), 1), equal=is_equal,
    )  # fmt: skip


def main() -> None:
    """Print all figures."""
    properties = torch.cuda.get_device_properties(0)
    print(f"# {properties.name}, torch {torch.__version__}, {datetime.date.today()}")
    print(f"# python {' '.join(sys.argv)}")
    for text in SCHEMES:
        for source, rows, k in SIZES:
            measure(text, source, rows, k)


if __name__ == "__main__":
    main()
