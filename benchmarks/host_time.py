"""What a call costs the host: QuantLinear, eager, with torch.nn.functional.linear beside it.

Run, on a machine with a GPU:

    PYTHONPATH=$(echo packages/*/src | tr ' ' :) python benchmarks/host_time.py

The goal: 15 us for W4A16. Each figure is the median of several runs of calls, enqueued faster than
the device may fall behind.
"""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Callable

import torch
from measure import row

import humming

SIZE = 4096
_CALLS, _RUNS = 200, 30


def host_us(call: Callable[[], object]) -> float:
    """Median microseconds that the host takes for a call."""
    for _ in range(100):
        call()
    times = []
    for _ in range(_RUNS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(_CALLS):
            call()
        times.append((time.perf_counter() - start) / _CALLS * 1e6)
    return sorted(times)[_RUNS // 2]


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="nvidia-a100", help="'' is the device's own")
    options = parser.parse_args()
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, {datetime.date.today()}")
    values = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(1, SIZE, device="cuda", dtype=torch.bfloat16)
    cases: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
    for name, weight, activation in (
        ("w4a16", "u4-g128-bf16", None),
        ("w8a8", "s8-channel-f32", "s8-token-f32"),
    ):
        quantized = humming.quantize(values, weight)
        cases[name] = humming.QuantLinear(
            quantized,
            activation=activation,
            backend="sm75_sm89",
            profile=options.profile or None,
        )
    with torch.no_grad():
        for name, layer in cases.items():
            row(peer="humming", kind="host", case=name, us=host_us(lambda layer=layer: layer(x)))  # type: ignore[misc]
        linear = host_us(lambda: torch.nn.functional.linear(x, values))
        row(peer="torch", kind="host", case="functional.linear", us=linear)
        empty = host_us(lambda: torch.empty(1, SIZE, dtype=torch.bfloat16, device="cuda"))
        row(peer="torch", kind="host", case="empty", us=empty)


if __name__ == "__main__":
    main()
