"""How long a GEMM would take: waves of tiles, or bytes; for the order alone.

Constants are those of the experiments on an H200 with the same pipeline, N = K = 8192; this kernel
itself has not been measured.
"""

from __future__ import annotations

from humming.backend import Problem
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.profiles import DeviceProfile
from humming.scheduling import ceil_div
from humming_sm90.layout import WgmmaLayout
from humming_sm90.tuning import TILE_M, WgmmaTuning

__all__ = ["microseconds"]

#: Cycles of a step per row of weights: 128 tokens by 128 of K, 4096 products per cycle. How much
#: longer it takes if sums are promoted, and what is between steps.
_MMA_CYCLES_PER_ROW = 4.0
_PROMOTION, _STEP_CYCLES = 1.09, 12.0
#: Bytes per cycle that an SM gets of L2, which bound narrow tiles.
_FILL_BYTES = 64.0
#: Of a tile: first copies, last stores.
_TILE_CYCLES = 4500.0
#: How much of the shorter of copying and multiplying is not hidden behind the longer.
_NOT_HIDDEN = 0.05
_LAUNCH_US, _CLOCK_MHZ, _LOAD_CLOCK, _DRAM_GBPS, _SMS = 5.4, 1980.0, 0.85, 3350.0, 132


def microseconds(  # budget: what a backend is asked about
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: WgmmaLayout,
    problem: Problem,
    tuning: WgmmaTuning,
) -> float:
    """Estimated time of a call on this device."""
    sms = profile.limits.sm_count or _SMS
    clock = (profile.rates.clock_mhz or _CLOCK_MHZ) * _LOAD_CLOCK
    experts, rows = _busy_experts(layer, compute, problem)
    tiles = experts * ceil_div(rows, TILE_M) * ceil_div(layer.n, tuning.tile_n)
    mma = tuning.tile_n * _MMA_CYCLES_PER_ROW * _PROMOTION
    fill = (TILE_M + tuning.tile_n) * 128 / _FILL_BYTES
    cycles = layout.groups * (max(mma, fill) + _STEP_CYCLES)
    compute_us = (ceil_div(tiles, sms) * cycles + _TILE_CYCLES) / clock
    moved = experts * layer.n * layer.k + problem.m * (layer.k + layer.n * layer.output.bits / 8)
    memory_us = moved / ((profile.rates.dram_gbps or _DRAM_GBPS) * 0.85e3)
    longer, shorter = max(compute_us, memory_us), min(compute_us, memory_us)
    return _LAUNCH_US + longer + _NOT_HIDDEN * shorter


def _busy_experts(layer: LayerConfig, compute: ComputeConfig, problem: Problem) -> tuple[int, int]:
    """Weights that have rows, and how many each, evenly spread."""
    if compute.gemm is GemmKind.DENSE:
        return 1, problem.m
    if compute.gemm is GemmKind.GROUPED_MASKED:
        return layer.experts, problem.m
    experts = max(min(layer.experts, problem.m), 1)
    return experts, ceil_div(problem.m, experts)
