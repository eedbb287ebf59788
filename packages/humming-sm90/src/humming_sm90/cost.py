"""How long a GEMM would take: waves of tiles, or bytes; for the order alone.

Constants are fitted to an H200 on 2026-11-30, FP8 with scales of blocks. N = K = 8192, microseconds
by rows of weights of a tile: 64 took 30.0 for 128 tokens and 49.6 for 256, 128 took 36 for 256 and
63.7 for 300, 256 took 54.0 for 512, 102.2 for 1024 and 198.7 for 2048. N = 1280, K = 8192, by parts
of K 1, 2, 4 and 6: 64 tokens by 64 rows 18.1 14.3 12.4 12.7, 128 by 64 24.9 18.2 15.1 14.3, 128 by
128 30.6 22.3 17.7 17.5, 128 by 256 46.3 33.1 25.7 25.4. 256 x (4096 x 7168), 8
choices of a token, tiles of 128 x 256: 1480 for 64 tokens, 1790 for 1024, 2540 for 4096, 4110 for
8192.
"""

from __future__ import annotations

from humming.backend import Problem
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.profiles import DeviceProfile
from humming.scheduling import ceil_div
from humming_sm75_sm89.spread import spread
from humming_sm90.layout import WgmmaLayout
from humming_sm90.tuning import STEP, WgmmaTuning

__all__ = ["find_us", "microseconds", "order_us"]

#: Cycles of a step per row of weights: 128 tokens by 128 of K, 4096 products per cycle. How much
#: longer it takes if sums are promoted, and what is between steps.
_MMA_CYCLES_PER_ROW = 4.0
_PROMOTION, _STEP_CYCLES = 1.22, 12.0
#: Bytes per cycle that an SM gets of L2, which bound narrow tiles; and the least that a step takes.
_FILL_BYTES, _LEAST_CYCLES = 46.0, 300.0
#: Of a tile of experts: the last stores, and what is known of the next one; and how much of that
#: memory waits for: with tiles of 64 rows of weights 0.6 us, with 2048 of K (H200, 2026-11-30).
_TILE_CYCLES, _TILE_NOT_HIDDEN = 1000.0, 0.5
#: Waves of a call whose last is broken: how many experts have rows is not known.
_LAST_WAVE = 0.5
#: Of bringing rows of activations into the order of sorted choices: a launch, and how much of the
#: bandwidth of memory it gets.
_ORDER_US, _ORDER_SHARE = 2.0, 0.75
#: To find the tiles of 32 experts whose rows lie together, or are sorted: with 256 of them and 1
#: token int4 products by mma.sync took 41.9 and 27.2 us, and 42.1 and 26.4 where tiles are given
#: (H200, 2026-11-30).
_FIND_US = 0.06
#: How much of the shorter of copying and multiplying is not hidden behind the longer.
_NOT_HIDDEN = 0.05
#: Of the bandwidth of memory, what a long and a short call get. Since weights of few tiles leave L2
#: first, short ones take 2.6 us less than this says, whatever the tile (H200, 2026-12-01).
_LONG, _SHORT = 0.9, 0.73
#: Of a dense layer: the first copies; and for 64 rows by 128 tokens, the last stores.
_FIRST_US, _STORE_US = 2.0, 0.25
#: Of sums that go through memory: in any case; for 64 rows by 128 tokens, in any case and for each
#: part.
_PARTS_US, _PARTS_TILE_US, _PART_TILE_US = 0.6, 0.2, 0.5
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
    if compute.gemm is GemmKind.DENSE:
        return _dense_us(profile, layer, layout, problem, tuning)
    sms = profile.limits.sm_count or _SMS
    clock = (profile.rates.clock_mhz or _CLOCK_MHZ) * _LOAD_CLOCK
    steps = layout.groups
    tiles, cycles, rows = 0.0, 0.0, 0.0
    for experts, count in spread(layer, compute, problem):
        whole, rest = divmod(count, tuning.tokens)
        for number, size in ((whole, tuning.tokens), (rest > 0, rest)):
            tiles += experts * number
            step = _step_cycles(tuning, size, alone=not whole)
            cycles += experts * number * (steps * step + _TILE_CYCLES)
        rows += experts * count
    waves = tiles * ceil_div(layer.n, tuning.tile_n) / sms
    waves = waves + _LAST_WAVE if waves > 1.0 else 1.0
    compute_us = waves * cycles / tiles / clock
    # As if each row of tiles of an expert read the weights from memory: why is not known.
    moved = tiles * layer.n * layer.k + rows * (layer.k + layer.n * layer.output.bits / 8)
    memory_us = moved / ((profile.rates.dram_gbps or _DRAM_GBPS) * _LONG * 1e3)
    memory_us *= waves / max(waves - _LAST_WAVE, 1.0)
    memory_us += waves * _TILE_NOT_HIDDEN * _TILE_CYCLES / clock
    longer, shorter = max(compute_us, memory_us), min(compute_us, memory_us)
    order = order_us(profile, layer, compute, problem)
    return _LAUNCH_US + longer + _NOT_HIDDEN * shorter + order


def _dense_us(
    profile: DeviceProfile,
    layer: LayerConfig,
    layout: WgmmaLayout,
    problem: Problem,
    tuning: WgmmaTuning,
) -> float:
    """Of whole tiles, or of parts of K that find an SM each."""
    sms = profile.limits.sm_count or _SMS
    row_tiles = ceil_div(problem.m, tuning.tokens)
    items = row_tiles * ceil_div(layer.n, tuning.tile_n) * tuning.splits
    # Where most SMs have nothing to do the clock is higher.
    load = 1.0 - (1.0 - _LOAD_CLOCK) * min(items / sms, 1.0)
    clock = (profile.rates.clock_mhz or _CLOCK_MHZ) * load
    waves, size = ceil_div(items, sms), tuning.tile_n * tuning.tokens / (64 * 128)
    rows = min(problem.m, tuning.tokens)
    step = max(_step_cycles(tuning, rows, alone=row_tiles == 1), _LEAST_CYCLES)
    steps = ceil_div(layout.groups, tuning.splits)
    compute_us = waves * (steps * step / clock + _STORE_US * size)
    moved = layer.n * layer.k + problem.m * (layer.k + layer.n * layer.output.bits / 8)
    memory_us = moved / ((profile.rates.dram_gbps or _DRAM_GBPS) * _SHORT * 1e3)
    if waves > 1:  # in the last some have nothing to do
        memory_us *= (waves * sms / items) ** 0.5
    longer, shorter = max(compute_us, memory_us), min(compute_us, memory_us)
    parts_us = 0.0
    if tuning.splits > 1:
        parts_us = _PARTS_US + (_PARTS_TILE_US + _PART_TILE_US * tuning.splits) * size
    return _LAUNCH_US + _FIRST_US + longer + _NOT_HIDDEN * shorter + parts_us


def order_us(
    profile: DeviceProfile, layer: LayerConfig, compute: ComputeConfig, problem: Problem
) -> float:
    """What it takes to bring rows that are chosen by index into order before, in microseconds."""
    if compute.gemm is not GemmKind.INDEXED:
        return 0.0
    written = problem.m * layer.k * layer.activation.format.bits / 8
    speed = (profile.rates.dram_gbps or _DRAM_GBPS) * _ORDER_SHARE * 1e3
    return _ORDER_US + written * (1 + 1 / problem.top_k) / speed


def find_us(layer: LayerConfig) -> float:
    """What a kernel takes to find the tiles of a layer's experts, in microseconds."""
    return _FIND_US * ceil_div(layer.experts, 32)


def _step_cycles(tuning: WgmmaTuning, rows: int, *, alone: bool) -> float:
    """Of 128 of K: both warpgroups share the weights where one has no rows in an expert's tile."""
    shared = tuning.tokens == 64 or (alone and tuning.tile_n > 128 and rows <= 64)
    mma = tuning.tile_n * _MMA_CYCLES_PER_ROW * _PROMOTION / (1 + shared)
    fill = (8 * ceil_div(rows, 8) + tuning.tile_n) * STEP / _FILL_BYTES
    return max(mma, fill) + _STEP_CYCLES
