"""How long a GEMM of few tokens would take, streamed or by mma.sync; for the order alone.

Constants are fitted to what an H200 took for int4 with groups of 128, N = K = 8192, 14 tunings and
M = 16 to 256 (2026-11-30): 17.0 us for 16, 19.0, 23.2, 32.5 and 53.3 us for 256.
"""

from __future__ import annotations

from humming.backend import Problem
from humming.configs import ComputeConfig, LayerConfig
from humming.profiles import DeviceProfile
from humming.scheduling import Split, ceil_div
from humming_sm75_sm89 import cost
from humming_sm75_sm89.kernel import promotes
from humming_sm75_sm89.layout import MmaLayout
from humming_sm75_sm89.tuning import MmaTuning
from humming_sm90.stream_tuning import StreamTuning

__all__ = ["microseconds", "mma_microseconds"]

#: Products of 16 bits that an SM does per cycle; of 8 bits it does two for each.
_PRODUCTS = 2048
#: Instructions of a warp for a step, 16 rows by 128 of K, beside those that decode: per sum that is
#: promoted; per scale of a row, where there are many and they are folded; the rest.
_PROMOTE, _FOLD, _PER_STEP = 1.5, 9.0, 60.0
#: Bytes per cycle from L2 to an SM.
_L2_BYTES = 64.0
#: Cycles of a tile beside its steps, and what the sums of another CTA take.
_PER_TILE, _PER_PART = 1500.0, 5000.0
#: Of a team, from the barrier of a step to the next, however little there is to do.
_STEP_LATENCY = 900.0
#: How much of the next is not hidden behind what takes longest: in an SM, the less the more teams
#: there are, and in any case; and of memory and SMs.
_NOT_HIDDEN_ALONE, _NOT_HIDDEN, _NOT_HIDDEN_MEMORY = 1.0, 0.05, 0.3
#: What waiting for the sums of each interval costs, where they are promoted.
_WAITING = 1.1
_LAUNCH_US, _CLOCK_MHZ, _SMS = 6.2, 1755.0, 132
#: Of every call, what the model of mma.sync leaves out, by the width of activations. Fitted, so
#: that for 8 bits mma.sync has up to 16 tokens by weights of 8 bits, and wgmma the rest.
_MMA_LAUNCH_US = {16: 2.4, 8: 5.5}


def microseconds(  # budget: what a backend is asked about
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: MmaLayout,
    problem: Problem,
    tuning: StreamTuning,
) -> float:
    """Estimated time of a call on this device."""
    sms = profile.limits.sm_count or _SMS
    clock = min(profile.rates.clock_mhz or _CLOCK_MHZ, _CLOCK_MHZ)
    tiles = cost.expected_tiles(layer, compute, problem, tuning)
    parts = tuning.partition.splits if tuning.partition.split is Split.SPLIT_K else 1
    waves = ceil_div(tiles * parts, sms * tuning.ctas)
    steps = ceil_div(ceil_div(ceil_div(layer.k, 128), parts), tuning.groups_k)
    cycles = steps * _step_cycles(layer, layout, tuning) + _PER_TILE + _PER_PART * (parts - 1)
    compute_us = waves * cycles / clock
    memory = cost.memory_us(profile, layer, layout, problem, compute)
    longer, shorter = max(compute_us, memory), min(compute_us, memory)
    # A wave waits for its weights, though the first has left them in L2.
    return _LAUNCH_US + longer + _NOT_HIDDEN_MEMORY * (shorter + memory * (waves - 1))


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
    return time + _MMA_LAUNCH_US.get(layer.activation.format.bits, 0.0)


def _step_cycles(layer: LayerConfig, layout: MmaLayout, tuning: StreamTuning) -> float:
    """Cycles in which every team of an SM multiplies 128 of K."""
    warpgroups = tuning.groups_n * tuning.groups_k * tuning.ctas
    bits = layer.activation.format.bits
    mma = warpgroups * 64 * 128 * tuning.tokens / (_PRODUCTS * 16 / bits)
    instructions = _PER_STEP + 2 * bits * cost.decode_instructions(layout)
    if tuning.folds and layout.group < 64:
        instructions += _FOLD * (128 // layout.group)
    if promotes(layer, layout, tuning):
        group = 64 if tuning.folds else layout.group or 64
        intervals = 2 * max(1, 64 // group)
        instructions += intervals * tuning.tokens / 2 * _PROMOTE
    fill = tuning.ctas * tuning.groups_k * tuning.tokens * 16 * bits / _L2_BYTES
    *_, longer, longest = sorted((mma, warpgroups * instructions, fill, _STEP_LATENCY))
    hidden = _NOT_HIDDEN + _NOT_HIDDEN_ALONE / tuning.groups_k**2
    cycles = longest + hidden * longer
    return _WAITING * cycles if promotes(layer, layout, tuning) else cycles
