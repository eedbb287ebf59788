"""How every benchmark here times: cold L2, medians, and one JSON row per figure.

Before each sample a buffer several times larger than the L2 is overwritten. That evicts what the
last sample left, and it keeps the stream busy while the host enqueues the next call, so the
host's latency is outside of the two events.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from functools import cache, partial

import torch

from humming.backend import LaunchShape
from humming.jit import Program, compile_program
from humming.launching import CudaRuntime

__all__ = [
    "chosen_experts",
    "cold_us",
    "device_arch",
    "errors",
    "read_floor_us",
    "row",
    "sampled_rows",
]

_FLUSH_BYTES = 512 << 20

#: Reads a buffer once with 16-byte loads and stores nothing that anybody could predict away.
_READER = r"""
extern "C" __global__ void read_once(const int4* from, long long count, int* sink) {
  const long long step = (long long)gridDim.x * blockDim.x;
  int sum = 0;
  const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (long long i = first; i < count; i += UNROLL * step) {
    int4 part[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      part[u] = make_int4(0, 0, 0, 0);
      if (i + u * step < count)
        asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.s32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(part[u].x), "=r"(part[u].y), "=r"(part[u].z), "=r"(part[u].w)
                     : "l"(from + i + u * step));
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) sum ^= part[u].x ^ part[u].y ^ part[u].z ^ part[u].w;
  }
  if (sum == 0x5eed5eed) *sink = sum;
}
"""
#: Blocks per multiprocessor, threads, loads in flight per thread: the best of these is the floor.
_READER_SHAPES = ((1, 1024, 4), (2, 1024, 2), (4, 512, 2), (4, 512, 4), (8, 256, 4), (8, 1024, 2))


def row(**fields: object) -> None:
    """Print one figure as a line that starts with ROW."""
    print("ROW " + json.dumps(fields), flush=True)


def chosen_experts(tokens: int, experts: int, top_k: int, device: str) -> torch.Tensor:
    """Random ids of experts [tokens, top_k], those that peers get for as many tokens."""
    generator = torch.Generator(device).manual_seed(tokens)
    scores = torch.rand(tokens, experts, device=device, generator=generator)
    return scores.topk(top_k).indices.int()


@cache
def _flush_buffer(device: int) -> torch.Tensor:
    return torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=f"cuda:{device}")


def cold_us(call: Callable[[], object], repeats: int = 30, warm_up: int = 5) -> float:
    """Median microseconds of what `call` enqueues, with a cold L2."""
    for _ in range(warm_up):
        call()
    buffer = _flush_buffer(torch.cuda.current_device())
    samples = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        buffer.zero_()
        start.record()
        call()
        end.record()
        samples.append((start, end))
    torch.cuda.synchronize()
    times: list[float] = [start.elapsed_time(end) for start, end in samples]
    return statistics.median(times) * 1e3


def device_arch() -> str:
    """The current device's architecture as a compiler spells it, without suffix."""
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def read_floor_us(nbytes: int, repeats: int = 20) -> float:
    """The shortest time in which this device reads so many bytes once, of several plain kernels."""
    runtime = CudaRuntime()
    data = torch.randint(-(2**31), 2**31 - 1, (nbytes // 16, 4), dtype=torch.int32, device="cuda")
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")
    count = torch.cuda.get_device_properties(0).multi_processor_count
    best = float("inf")
    for blocks, threads, unroll in _READER_SHAPES:
        run = runtime.prepare(
            runtime.load(_reader(unroll), "read_once"), ("ptr", "i64", "ptr"),
            [data, data.shape[0], sink], {},
        )  # fmt: skip
        shape = LaunchShape(grid=(blocks * count, 1, 1), block=(threads, 1, 1))
        best = min(best, cold_us(partial(run, shape), repeats))
    return best


@cache
def _reader(unroll: int) -> bytes:
    program = Program(
        name="bench.read_once",
        source=_READER,
        arch=device_arch(),
        options=(f"-DUNROLL={unroll}",),
    )
    return compile_program(program).data


def sampled_rows(m: int, count: int = 64) -> torch.Tensor:
    """Rows that are compared with float64: all of few, else first, last and some between."""
    if m <= count:
        return torch.arange(m, device="cuda")
    rows: torch.Tensor = torch.linspace(0, m - 1, count, device="cuda").round().long().unique()
    return rows


def errors(result: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """Relative error of all rows together, and of the worst one; float64 [M, N] expected."""
    wrong = (result.double() - expected).norm(dim=1)
    size = expected.norm(dim=1)
    return float(wrong.norm() / size.norm()), float((wrong / size).max())
