"""How long a GEMM would take: waves of tiles, or bytes; for the order alone.

Constants are fitted to an H200 on 2026-11-30, FP8 with scales of blocks. N = K = 8192, microseconds
by rows of weights of a tile: 64 took 30.0 for 128 tokens and 49.6 for 256, 128 took 36 for 256 and
63.7 for 300, 256 took 54.0 for 512, 102.2 for 1024 and 198.7 for 2048. 256 x (4096 x 7168), 8
choices of a token, tiles of 128 x 256: 1480 for 64 tokens, 1790 for 1024, 2540 for 4096, 4110 for
8192.
"""

from __future__ import annotations

from math import ceil

from humming.backend import Problem
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.profiles import DeviceProfile
from humming.scheduling import ceil_div
from humming_sm75_sm89.spread import spread
from humming_sm90.layout import WgmmaLayout
from humming_sm90.tuning import STEP, TILE_M, WgmmaTuning

__all__ = ["GATHER_CYCLES", "find_us", "microseconds"]

#: Cycles of a step per row of weights: 128 tokens by 128 of K, 4096 products per cycle. How much
#: longer it takes if sums are promoted, and what is between steps.
_MMA_CYCLES_PER_ROW = 4.0
_PROMOTION, _STEP_CYCLES = 1.22, 12.0
#: Bytes per cycle that an SM gets of L2, which bound narrow tiles.
_FILL_BYTES = 46.0
#: Of a tile: the last stores, and where rows are grouped finding the next one.
_TILE_CYCLES, _FIND_CYCLES = 700.0, 800.0
#: Of a step, per row of activations that is chosen by index, which threads copy and TMA does not:
#: 128 rows of an expert take 9 to 22 % longer, 16 take 1 to 5 % (H200, 2026-11-30).
GATHER_CYCLES = 1.0
#: To find the tiles of 32 experts whose rows lie together, or are sorted: with 256 of them and 1
#: token int4 products by mma.sync took 46 and 30 us, and 43 and 27 where tiles are given (H200,
#: 2026-11-30).
_FIND_US = 0.37
#: How much of the shorter of copying and multiplying is not hidden behind the longer.
_NOT_HIDDEN = 0.05
#: Of the bandwidth of memory, what a long and a short call get.
_LONG, _SHORT = 0.9, 0.85
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
    dense = compute.gemm is GemmKind.DENSE
    per_tile = _TILE_CYCLES + _FIND_CYCLES * (not dense)
    gathered = 0.0
    tiles, cycles, rows = 0.0, 0.0, 0.0
    for experts, count in spread(layer, compute, problem):
        whole, rest = divmod(count, TILE_M)
        for number, size in ((whole, TILE_M), (rest > 0, rest)):
            tiles += experts * number
            step = _step_cycles(tuning, size, alone=not whole)
            gathered += experts * number * layout.groups * size * GATHER_CYCLES
            cycles += experts * number * (layout.groups * step + per_tile)
        rows += experts * count
    columns = ceil_div(layer.n, tuning.tile_n)
    waves = ceil(tiles * columns / sms) if dense else max(tiles * columns / sms, 1.0)
    compute_us = waves * cycles / tiles / clock
    # As if each row of tiles of an expert read the weights from memory: why is not known.
    weights = (1.0 if dense else tiles) * layer.n * layer.k
    moved = weights + rows * (layer.k + layer.n * layer.output.bits / 8)
    share = _SHORT if dense else _LONG
    memory_us = moved / ((profile.rates.dram_gbps or _DRAM_GBPS) * share * 1e3)
    longer, shorter = max(compute_us, memory_us), min(compute_us, memory_us)
    indexed = compute.gemm is GemmKind.INDEXED
    gather_us = indexed * waves * gathered / tiles / clock
    return _LAUNCH_US + longer + _NOT_HIDDEN * shorter + gather_us


def find_us(layer: LayerConfig) -> float:
    """What a kernel takes to find the tiles of a layer's experts, in microseconds."""
    return _FIND_US * ceil_div(layer.experts, 32)


def _step_cycles(tuning: WgmmaTuning, rows: int, *, alone: bool) -> float:
    """Of 128 of K: both warpgroups share the weights where one has no rows in an expert's tile."""
    shared = alone and tuning.tile_n > TILE_M and rows <= TILE_M // 2
    mma = tuning.tile_n * _MMA_CYCLES_PER_ROW * _PROMOTION / (1 + shared)
    fill = (8 * ceil_div(rows, 8) + tuning.tile_n) * STEP / _FILL_BYTES
    return max(mma, fill) + _STEP_CYCLES
