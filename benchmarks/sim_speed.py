"""How long the simulator takes for a GEMM of 256 x 256 x 512 on each generation.

Run: PYTHONPATH=packages/humming-sim/src:tests/helpers python benchmarks/sim_speed.py [NAME ...]
The goal: 0.5 s with all threads together, 5 s in random order, without NVRTC's time.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time

from sim_gemm_variants import VARIANTS
from sim_gemms import Case, Problem
from sim_launch import simulate

PROBLEM = Problem(256, 256, 512)
GOALS = (0.5, 5.0)
BY_GENERATION = {
    "sm_75": ("sync-f16", "sync-s8"),
    "sm_80": ("cp-async-f16", "cp-async-s8", "w4a16", "w4a16-split"),
    "sm_89": ("cp-async-e4m3",),
    "sm_90a": ("wgmma-f16", "wgmma-e4m3", "wgmma-cluster", "wgmma-registers"),
    "sm_100a": (
        "tcgen05-f16",
        "tcgen05-f16-pair",
        "tcgen05-a-tmem",
        "tcgen05-e4m3",
        "tcgen05-mxf8",
        "tcgen05-nvf4",
    ),
    "sm_103a": ("tcgen05-nvf4-k96",),
    "sm_120a": ("cp-async-f8f6f4-e2m1", "cp-async-mxf8", "cp-async-nvf4"),
}


def seconds(case: Case, ptx: str, seed: int | None, repeats: int) -> float:
    """The shortest of some runs; raises AssertionError if one is wrong."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        after = simulate(case, ptx, seed=seed)
        best = min(best, time.perf_counter() - start)
        faults = case.faults(after)
        if faults:
            raise AssertionError(f"{case.program}: {faults}")
    return best


def main() -> None:
    """Print the table, or the profile of one variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="variants; all of the table if left out")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--seed", type=int, help="with --profile: profile a run in random order")
    options = parser.parse_args()
    print(f"{'':8} {'variant':24} {'together':>10} {'random order':>14}")
    for generation, names in BY_GENERATION.items():
        for name in names:
            if options.names and name not in options.names:
                continue
            case = VARIANTS[name](PROBLEM)
            ptx = case.program.ptx()
            if options.profile:
                profile(case, ptx, options.seed)
                continue
            together, shuffled = seconds(case, ptx, None, 3), seconds(case, ptx, 0, 1)
            over = "  over" if together > GOALS[0] or shuffled > GOALS[1] else ""
            line = f"{generation:8} {name:24} {together:8.2f} s {shuffled:12.2f} s{over}"
            print(line, flush=True)


def profile(case: Case, ptx: str, seed: int | None) -> None:
    """Print the functions that take most of a run's time."""
    simulate(case, ptx, seed=seed)
    profiler = cProfile.Profile()
    profiler.runcall(simulate, case, ptx, seed=seed)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
