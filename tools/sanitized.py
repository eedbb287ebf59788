"""Runs representative kernels once, for compute-sanitizer to watch; prints their errors.

    export PYTHONPATH=$(echo packages/*/src | tr ' ' :) PYTORCH_NO_CUDA_MEMORY_CACHING=1
    compute-sanitizer --report-api-errors no --tool memcheck python tools/sanitized.py
    compute-sanitizer --tool racecheck python tools/sanitized.py --equal

racecheck loses count of barriers where teams of warps met at named barriers (bar.sync of a part
of the CTA) more or less often than others: it then reports races across a __syncthreads(), also in
tools/racecheck_limit.cu, which is right by construction and has no other code. So with --equal K is
such that teams have equally many units, and no kernel may be reported; without it K has a tail.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch

import humming
from humming.configs import TuningConfig
from humming_sm75_sm89.tuning import MmaTuning as Mma
from humming_sm90.stream_tuning import StreamTuning as Stream
from humming_sm90.tuning import WgmmaTuning as Wgmma
from humming_sm90.wide_tuning import WideTuning as Wide

LIMIT = 4e-3
#: (device profile or "" for the device's own, weight, activation, dtype, M, tuning).
Case = tuple[str, str, str, torch.dtype, int, TuningConfig]
F16, BF16 = torch.float16, torch.bfloat16
FP8, FP8_TOKEN, S8, S8_TOKEN = (
    "e4m3fn-channel-f32",
    "e4m3fn-token-f32",
    "s8-channel-f32",
    "s8-token-f32",
)
INT4, INT4_ZERO = "u4-g128-bf16", "u4+z-g64-f16"
MXFP4, BLOCKS, FP8_GROUPS = "e2m1-g32-e8m0", "e4m3fn-b128x128-f32", "e4m3fn-g128-f32"
A100, T4, L40S = "nvidia-a100", "nvidia-t4", "nvidia-l40s"
OLDER: tuple[Case, ...] = (
    (A100, INT4, "", BF16, 5, Mma(warps_k=16, tokens=8, stage_blocks=1, stages=4)),
    (A100, INT4, "", BF16, 16, Mma(warps_k=12, tokens=16, stage_blocks=1, stages=4, folds=True)),
    (A100, INT4, "", BF16, 70, Mma(warps_n=2, warps_k=4, tokens=64, stages=3, folds=True)),
    (A100, INT4, "", BF16, 40, Mma(warps_n=2, warps_m=2, warps_k=2, tokens=16, splits=3)),
    (A100, INT4_ZERO, "", F16, 40, Mma(warps_m=2, warps_k=1, tokens=16, min_run=1)),
    (T4, "u4-g128-f16", "", F16, 20, Mma(warps_n=2, warps_m=2, warps_k=2, tokens=8, stages=2)),
    (T4, S8, S8_TOKEN, F16, 20, Mma(warps_k=4, tokens=16, stages=2)),
    (L40S, FP8, FP8_TOKEN, BF16, 33, Mma(warps_n=2, warps_k=2, tokens=16, stages=3)),
)
HOPPER: tuple[Case, ...] = (
    ("", INT4, "", BF16, 20, Stream(groups_k=6, tokens=16, stages=4, folds=True)),
    ("", INT4_ZERO, "", F16, 40, Stream(groups_n=2, groups_k=2, tokens=32, stages=3)),
    (
        "",
        "u3-g128-bf16",
        "",
        BF16,
        130,
        Stream(groups_k=3, tokens=128, stages=2, folds=True, splits=2),
    ),
    ("", INT4, "", BF16, 300, Wide(tokens=256, stages=5, folds=True)),
    ("", INT4_ZERO, "", F16, 130, Wide(tokens=64, stages=6)),
    ("", INT4, "", BF16, 130, Wide(tokens=128, stages=6, folds=True, splits=2)),
    ("", FP8, FP8_TOKEN, BF16, 20, Stream(groups_k=4, tokens=32, stages=3)),
    ("", S8, S8_TOKEN, BF16, 130, Wide(tokens=128, stages=6)),
    ("", BLOCKS, FP8_GROUPS, BF16, 20, Wgmma(tile_n=64, tokens=64, stages=12, splits=3)),
    ("", BLOCKS, FP8_GROUPS, BF16, 130, Wgmma(tile_n=128, stages=6, splits=2)),
)
#: With experts: (weight, activation, tuning); None is SM80's kernels.
EXPERTS: tuple[tuple[str, str, TuningConfig | None], ...] = (
    (MXFP4, "", None),
    (MXFP4, "", Stream(groups_n=2, groups_k=1, tokens=32, stages=3, ctas=2, folds=True)),
    (MXFP4, "", Stream(groups_n=2, groups_k=1, tokens=16, stages=4, ctas=2)),
    (MXFP4, "", Wide(tokens=160, fits=True, stages=6, folds=True)),
    (MXFP4, "", Wide(tokens=64, fits=True, stages=6)),
    (MXFP4, FP8_TOKEN, Wide(tokens=16, stages=8, ctas=2, folds=True)),
    (BLOCKS, FP8_GROUPS, Wgmma(tile_n=256, stages=4)),
)


def error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative, of all numbers."""
    difference = (result.double() - expected.double()).norm()
    return float(difference / expected.double().norm().clamp_min(1e-30))


def dense(case: Case, n: int, k: int) -> float:
    """The error of one product."""
    profile, scheme, activation, dtype, m, tuning = case
    weight = humming.quantize(torch.randn(n, k, device="cuda") * 0.02, scheme)
    x = torch.randn(m, k, dtype=dtype, device="cuda")
    backend = "sm75_sm89" if profile else "sm90"
    layer = humming.QuantLinear(
        weight,
        activation=activation or None,
        profile=profile or None,
        backend=backend,
        tuning=tuning,
    )
    reference = humming.QuantLinear(weight, activation=activation or None, backend="reference")
    return error(layer(x), reference(x))


def experts(
    k: int, scheme: str, activation: str, tuning: TuningConfig | None
) -> Iterator[tuple[str, float]]:
    """(kind, error) of products of four experts, by SM80's kernels or Hopper's with a tuning."""
    weight = humming.quantize(torch.randn(4, 136, k, device="cuda") * 0.02, scheme)
    x = torch.randn(19, k, dtype=BF16, device="cuda")
    offsets = torch.tensor([0, 3, 3, 11, 19], device="cuda")
    counts = torch.tensor([3, 0, 5, 9], device="cuda")
    masked = torch.randn(4, 9, k, dtype=BF16, device="cuda")
    ids = torch.randint(-1, 4, (19, 2), device="cuda")
    problems: tuple[tuple[str, torch.Tensor, dict[str, Any]], ...] = (
        ("indexed", x, {"expert_ids": ids}),
        ("contiguous", x, {"expert_offsets": offsets}),
        ("masked", masked, {"expert_counts": counts}),
    )
    for kind, rows, groups in problems:
        plain: dict[str, Any] = {"activation": activation or None}
        expected = humming.QuantLinear(weight, backend="reference", **plain)(rows, **groups)
        if tuning is None:
            layer = humming.QuantLinear(weight, profile=A100, backend="sm75_sm89", **plain)
        else:
            layer = humming.QuantLinear(weight, backend="sm90", tuning=tuning, **plain)
        wrong = error(layer(rows, **groups), expected)
        yield f"{kind}, {scheme} {activation}, {tuning or 'SM80'}", wrong


def main() -> int:
    """0 if every result is right."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--equal", action="store_true", help="as many units of K for every team")
    parser.add_argument("--older", action="store_true", help="without the kernels of Hopper")
    options = parser.parse_args()
    torch.manual_seed(0)
    k = 3072 if options.equal else 1000
    worst = 0.0
    for case in OLDER + (() if options.older else HOPPER):
        # 16 teams share 16 units, 3 and 12 share 12, and so on.
        of_sixteen = getattr(case[-1], "warps_k", 0) == 16
        wrong = dense(case, 136, 2048 if options.equal and of_sixteen else k)
        print(
            f"{case[0] or 'own'} {case[1]} {case[2]} M = {case[4]}, {case[5]}: {wrong:.1e}",
            flush=True,
        )
        worst = max(worst, wrong)
    for of_experts in EXPERTS[: 1 if options.older else None]:
        for kind, wrong in experts(k, *of_experts):
            print(f"{kind}: {wrong:.1e}", flush=True)
            worst = max(worst, wrong)
    torch.cuda.synchronize()
    return int(worst > LIMIT)


if __name__ == "__main__":
    raise SystemExit(main())
