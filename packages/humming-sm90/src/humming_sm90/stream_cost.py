"""How long a GEMM of few tokens would take, streamed or by mma.sync; for the order alone.

Constants are fitted to what an H200 took for int4 with groups of 128, N = K = 8192, 14 tunings and
M = 16 to 256 (2026-11-30): 17.0 us for 16, 19.0, 23.2, 32.5 and 53.3 us for 256.
"""

from __future__ import annotations

from math import ceil

from humming.backend import Problem
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.profiles import DeviceProfile
from humming.scheduling import Split, ceil_div
from humming_sm75_sm89 import cost
from humming_sm75_sm89.layout import MmaLayout
from humming_sm75_sm89.spread import spread
from humming_sm75_sm89.tuning import MmaTuning
from humming_sm90.cost import find_us
from humming_sm90.stream_kernel import promotes, widths
from humming_sm90.stream_tuning import StreamTuning
from humming_sm90.wide_candidates import decode_instructions

__all__ = ["microseconds", "mma_microseconds"]

#: Products of 16 bits that an SM does per cycle; of 8 bits it does two for each.
_PRODUCTS = 2048
#: Instructions of a warp for a step, 16 rows by 128 of K, beside those that decode: per sum that is
#: promoted; per scale of a row, where there are many and they are folded; the rest.
_PROMOTE, _FOLD, _PER_STEP = 1.5, 9.0, 60.0
#: Bytes per cycle from L2 to an SM.
_L2_BYTES = 64.0
#: Cycles of a tile beside its steps.
_PER_TILE = 1500.0
#: Of sums that go through memory: in any case, for each CTA, and for each sum of a tile. N = 1280
#: and K = 8192, int4 by bf16, by parts of K 1, 2, 3 and 4: 1x6 warpgroups of 64x16 took 13.5 11.6
#: 10.1 10.2, 2x2 of 64x128 47.5 30.8 24.9 21.7 (H200, 2026-11-30).
_PARTS, _PER_PART, _PER_SUM = 200.0, 600.0, 0.2
#: How much longer memory takes for each part: FP8 with 2112 x 7168 takes 12.3 us in one, 13.3 in 4.
_PART_MEMORY = 0.05
#: Of a team, from the barrier of a step to the next, however little there is to do.
_STEP_LATENCY = 900.0
#: How much of the next is not hidden behind what takes longest: in an SM, the less the more teams
#: there are, and in any case; and of memory and SMs.
_NOT_HIDDEN_ALONE, _NOT_HIDDEN, _NOT_HIDDEN_MEMORY = 1.0, 0.05, 0.3
#: What waiting for the sums of each interval costs, where they are promoted.
_WAITING = 1.1
#: Of more than one wave: 256 tokens took 71.4 us by FP8 and 67.5 by NVFP4, not 63.7 and 59.4.
_WAVES = 1.15
_LAUNCH_US, _CLOCK_MHZ, _SMS = 6.2, 1755.0, 132
#: Of every call, what the model of mma.sync leaves out, by the width of activations. Fitted, so
#: that for 8 bits mma.sync has up to 16 tokens by weights of 8 bits, and wgmma the rest.
_MMA_LAUNCH_US = {16: 2.4, 8: 5.5}
#: What it has too much of dense layers with codes of up to 3 bits, of which warps have whole units
#: under way: 8192 x 8192, int2 and int3, took 12.0 and 13.6 us for up to 8 tokens, 14.4 and 15.3
#: for 16 (H200, 2026-11-30).
_BY_UNITS_BITS, _BY_UNITS_US = 3, 3.0
#: mma.sync of 8-bit floats is done by that of f16 on sm_90: with experts, MXFP4 by FP8, 1222 us.
_BY_HALVES = 1.4

# Of tiles of experts, 256 x (4096 x 7168), 8 choices of a token (H200, 2026-11-30, microseconds; in
# brackets the model): int4 by bf16 1355 for 512 and 1665 for 1024 tokens (1497, 1815), MXFP4 by
# FP8 1036 for 64, 1376 for 512 and 1499 for 1024 (1073, 1345, 1504).

#: Instructions of a warp for 16 rows by 128 of K beside those that decode, and cycles for each:
#: most are of a pipe that takes two. Of a tile beside that: 128 x (2048 x 768), int4 and 8 tokens,
#: took 25 us, 22.9 by mma.sync.
_EXPERT_UNIT, _EXPERT_CYCLES, _EXPERT_TILE = 95.0, 1.45, 3000.0
#: What finding rows by index costs, here and with mma.sync: MXFP4 by bf16 took 2248 us, not 1803,
#: for 1024 tokens; by mma.sync 1 % more for 64.
_INDEXED, _INDEXED_MMA = 1.25, 1.01
#: And what rows that lie together cost with mma.sync: 128 x (1536 x 2048) and (2048 x 768), int4
#: and 8 tokens, took 40.1 and 22.9 us, by index 36.8 and 20.7; 32 x (5760 x 2880) and
#: (2880 x 2880), MXFP4, 72.8 and 36.3, by index 70.9 and 35.3.
_GROUPED_MMA_US = 1.0
#: How much of the shorter of memory and SMs is not hidden.
_EXPERT_NOT_HIDDEN = 0.08


def microseconds(  # budget: what a backend is asked about
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: MmaLayout,
    problem: Problem,
    tuning: StreamTuning,
) -> float:
    """Estimated time of a call on this device."""
    if compute.gemm is not GemmKind.DENSE or tuning.ctas > 1 or _is_crowded(profile, layer, tuning):
        return _expert_us(profile, layer, compute, layout, problem, tuning)
    sms = profile.limits.sm_count or _SMS
    clock = min(profile.rates.clock_mhz or _CLOCK_MHZ, _CLOCK_MHZ)
    tiles = ceil(cost.expected_tiles(layer, compute, problem, tuning))
    parts = tuning.partition.splits if tuning.partition.split is Split.SPLIT_K else 1
    waves = ceil_div(tiles * parts, sms * tuning.ctas)
    steps = ceil_div(ceil_div(ceil_div(layer.k, 128), parts), tuning.groups_k)
    cycles = steps * _step_cycles(layer, compute, layout, tuning) + _PER_TILE
    if parts > 1:
        cycles += _PARTS + _PER_PART * parts + _PER_SUM * tuning.tile_n * tuning.tile_m
    compute_us = waves * cycles / clock * (_WAVES if waves > 1 else 1.0)
    memory = cost.memory_us(profile, layer, layout, problem, compute)
    memory *= 1 + _PART_MEMORY * (parts - 1)
    longer, shorter = max(compute_us, memory), min(compute_us, memory)
    # A wave waits for its weights, though the first has left them in L2; as tiles beside it do.
    again = max(waves, ceil_div(problem.m, tuning.tile_m)) - 1
    return _LAUNCH_US + longer + _NOT_HIDDEN_MEMORY * (shorter + memory * again)


def _is_crowded(profile: DeviceProfile, layer: LayerConfig, tuning: StreamTuning) -> bool:
    """Whether SMs have tiles one after the other, and no teams that wait for one another."""
    sms = profile.limits.sm_count or _SMS
    return tuning.groups_k == 1 and ceil_div(layer.n, tuning.tile_n) > sms


def mma_microseconds(  # budget: what a backend is asked about
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: MmaLayout,
    problem: Problem,
    tuning: MmaTuning,
) -> float:
    """The estimate of humming-sm75-sm89, as a time that can be compared with others."""
    time = cost.microseconds(profile, layer, compute, layout, problem, tuning)
    if layout.target.name in ("e4m3fn", "e5m2"):
        time *= _BY_HALVES
    if compute.gemm is GemmKind.INDEXED:
        time *= _INDEXED_MMA
    elif compute.gemm is not GemmKind.DENSE:
        time += find_us(layer) + _GROUPED_MMA_US
    dense, bits = compute.gemm is GemmKind.DENSE, layer.activation.format.bits
    if dense and bits == 16 and layer.weight.code.bits <= _BY_UNITS_BITS:
        time -= _BY_UNITS_US
    return time + _MMA_LAUNCH_US.get(bits, 0.0)


def _step_cycles(
    layer: LayerConfig, compute: ComputeConfig, layout: MmaLayout, tuning: StreamTuning
) -> float:
    """Cycles in which every team of an SM multiplies 128 of K."""
    warpgroups = tuning.groups_n * tuning.groups_k * tuning.ctas
    bits = layer.activation.format.bits
    mma = warpgroups * 64 * 128 * tuning.tokens / (_PRODUCTS * 16 / bits)
    instructions = _PER_STEP + 2 * bits * cost.decode_instructions(layout)
    if tuning.folds and layout.group < 64:
        instructions += _FOLD * (128 // layout.group)
    if promotes(layer, compute, layout, tuning):
        group = 64 if tuning.folds else layout.group or 64
        intervals = 2 * max(1, 64 // group)
        instructions += intervals * tuning.tokens / 2 * _PROMOTE
    fill = tuning.ctas * tuning.groups_k * tuning.tokens * 16 * bits / _L2_BYTES
    *_, longer, longest = sorted((mma, warpgroups * instructions, fill, _STEP_LATENCY))
    hidden = _NOT_HIDDEN + _NOT_HIDDEN_ALONE / tuning.groups_k**2
    cycles = longest + hidden * longer
    return _WAITING * cycles if promotes(layer, compute, layout, tuning) else cycles


def _expert_us(  # budget: what a backend is asked about
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: MmaLayout,
    problem: Problem,
    tuning: StreamTuning,
) -> float:
    """Of the tiles of experts, whose MMAs are as wide as they have rows; or of many dense ones."""
    sms = profile.limits.sm_count or _SMS
    clock = min(profile.rates.clock_mhz or _CLOCK_MHZ, _CLOCK_MHZ)
    bits = layer.activation.format.bits
    fixed = _EXPERT_CYCLES * _expert_instructions(layer, compute, layout, tuning)
    per_token = 64 * 128 * bits / (16 * _PRODUCTS)
    step = widths(layer, compute, layout, tuning)[0]
    cycles, tiles = 0.0, 0.0
    for experts, rows in spread(layer, compute, problem):
        whole, rest = divmod(rows, tuning.tokens)
        width = whole * tuning.tokens + ceil_div(rest, step) * step
        count = whole + (rest > 0)
        cycles += experts * (count * fixed + width * per_token)
        tiles += experts * count
    cycles *= ceil_div(layer.k, 128) * ceil_div(layer.n, 64)
    tiles *= ceil_div(layer.n, tuning.tile_n)
    cycles += tiles * _EXPERT_TILE / tuning.ctas
    slots = sms * tuning.ctas
    compute_us = cycles / (sms * clock) * cost.expected_waves(tiles, slots) * slots / tiles
    if compute.gemm is GemmKind.INDEXED:
        compute_us *= _INDEXED
    memory = cost.memory_us(profile, layer, layout, problem, compute)
    longer, shorter = max(compute_us, memory), min(compute_us, memory)
    find = 0.0 if compute.gemm is GemmKind.INDEXED else find_us(layer)
    return _LAUNCH_US + longer + _EXPERT_NOT_HIDDEN * shorter + find


def _expert_instructions(
    layer: LayerConfig, compute: ComputeConfig, layout: MmaLayout, tuning: StreamTuning
) -> float:
    """Of a warp, for 16 rows of weights by 128 of K."""
    registers = 2 * layer.activation.format.bits
    instructions = _EXPERT_UNIT + registers * decode_instructions(layout, tuning)
    if tuning.folds and layout.group < 64:
        instructions += _FOLD * (128 // layout.group)
    if promotes(layer, compute, layout, tuning):
        group = 64 if tuning.folds else layout.group or 64
        instructions += 2 * max(1, 64 // group) * tuning.tokens / 2 * _PROMOTE
    return instructions
