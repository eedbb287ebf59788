"""How long a GEMM would take: instructions, MMAs and bytes, counted; for the order alone.

The model is of one SM: warps take turns at its schedulers, and what is slowest counts. Constants
marked *fitted* put the tunings of a 16-bit product with int4 weights in the order that was seen on
one H200 (2026-11-29); for other devices and numbers they are a guess.
"""

from __future__ import annotations

from math import ceil

from humming.backend import Problem
from humming.configs import ComputeConfig, LayerConfig
from humming.profiles import DeviceProfile
from humming.scheduling import Split, ceil_div
from humming_sm75_sm89.kernel import generation, promotes
from humming_sm75_sm89.launches import Cut
from humming_sm75_sm89.layout import MmaLayout
from humming_sm75_sm89.spread import spread
from humming_sm75_sm89.tuning import MmaTuning

__all__ = ["decode_instructions", "expected_tiles", "expected_waves", "memory_us", "microseconds"]

_SCHEDULERS = 4
#: Cycles from one instruction of a warp to its next, alone on its scheduler (fitted).
_LATENCY = 5.0
#: Cycles of a scheduler per instruction where warps take turns (fitted).
_ISSUE = 1.7
#: Cycles of an m16n8k16 for a scheduler where nothing is known of the device, and how much of the
#: rate of the newest instructions mma.sync has on devices that have others (fitted).
_MMA_CYCLES, _LEGACY = 8.0, 0.62
#: Instructions per register of decoded weights, scales folded in or not, and per unit.
_DECODE, _FOLD, _PER_UNIT = 2.5, 1.0, 120
#: Of codes of 8 bits as f16 or bf16: integers; FP8, NaN and Inf included.
_DECODE_BYTE, _DECODE_FLOAT8 = 4.0, 7.5
#: Cycles of a tile beside its units, and what the sums of another CTA take (fitted).
_PER_TILE, _PER_PART = 4000.0, 1500.0
#: Bytes per cycle from L2 to an SM (fitted).
_L2_BYTES = 40.0
_LAUNCH_US = 3.3
#: What is hidden behind something longer, and costs a little all the same.
_HIDDEN = 0.02
#: Waves from which on a broken one counts for what it is.
_MANY_WAVES = 2
_CLOCK_MHZ, _DRAM_GBPS, _SMS = 1500.0, 500.0, 64


def microseconds(  # budget: what a backend is asked about
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: MmaLayout,
    problem: Problem,
    tuning: MmaTuning,
) -> float:
    """Estimated time of a call on this device."""
    sms = profile.limits.sm_count or _SMS
    clock = (profile.rates.clock_mhz or _CLOCK_MHZ) / 1.1  # what it keeps under load
    tiles = expected_tiles(layer, compute, problem, tuning)
    parts = tuning.partition.splits if tuning.partition.split is Split.SPLIT_K else 1
    per_sm = min(tuning.ctas, max(ceil(tiles * parts / sms), 1))
    waves = expected_waves(tiles * parts, sms * per_sm)
    units = ceil_div(ceil_div(ceil_div(layer.k, 128), parts), tuning.warps_k)
    cycles = units * _unit_cycles(profile, layer, layout, tuning, per_sm) + _PER_TILE
    cycles += _PER_PART * (parts - 1)
    compute_us = waves * cycles / clock
    memory = memory_us(profile, layer, layout, problem, compute)
    return _LAUNCH_US + max(compute_us, memory) + _HIDDEN * min(compute_us, memory)


def _unit_cycles(
    profile: DeviceProfile,
    layer: LayerConfig,
    layout: MmaLayout,
    tuning: MmaTuning,
    per_sm: int,
) -> float:
    """Cycles in which all warps of an SM multiply a unit of K each."""
    token_tiles = tuning.tokens // 8
    registers = 2 * 16 * layout.steps
    mmas = 2 * 4 * layout.steps * token_tiles
    decode = registers * (decode_instructions(layout) + _FOLD * tuning.folds)
    scaling = 2 * 16 * token_tiles * _intervals(layer, layout) * promotes(layer, layout, tuning)
    instructions = mmas + decode + scaling + 4 * layout.steps * token_tiles / 2 + _PER_UNIT
    warps = per_sm * tuning.threads / 32 / _SCHEDULERS
    mma = mmas * _mma_cycles(profile, layer)
    bytes_in = (
        per_sm
        * tuning.warps_k
        * (
            tuning.tile_m * 16 * layer.activation.format.bits
            + tuning.tile_n * 16 * layer.weight.code.bits
        )
    )
    return max(
        instructions * _LATENCY, warps * instructions * _ISSUE, warps * mma, bytes_in / _L2_BYTES
    )


def decode_instructions(layout: MmaLayout) -> float:
    """Instructions per register of decoded weights."""
    code = layout.weight.code
    if code == layout.target:
        return 0.0
    if code.bits < 8:
        return _DECODE
    return _DECODE_FLOAT8 if code.is_float else _DECODE_BYTE


def _intervals(layer: LayerConfig, layout: MmaLayout) -> int:
    """How often scales are applied in a block."""
    smallest = min(layout.group or 64, layer.activation.group_size or 64, 64)
    return 64 // smallest


def _mma_cycles(profile: DeviceProfile, layer: LayerConfig) -> float:
    """Of one MMA, for a scheduler: 16 x 8 x (256 / bits) products."""
    rate = profile.rates.tensor_tflops.get(layer.activation.format.name)
    sms, clock = profile.limits.sm_count, profile.rates.clock_mhz
    if not rate or not sms or not clock:
        return _MMA_CYCLES
    operations = 2 * 16 * 8 * 256 / layer.activation.format.bits
    per_cycle = rate * 1e12 / (sms * _SCHEDULERS * clock * 1e6)
    modern = any(name != "mma" for name in profile.mma) and generation(profile) >= 89
    return operations / per_cycle / (_LEGACY if modern else 1.0)


def expected_tiles(
    layer: LayerConfig, compute: ComputeConfig, problem: Problem, tuning: Cut
) -> float:
    """Tiles of a call."""
    rows = spread(layer, compute, problem)
    tiles = sum(experts * ceil_div(count, tuning.tile_m) for experts, count in rows)
    return tiles * ceil_div(layer.n, tuning.tile_n)


def expected_waves(tiles: float, slots: int) -> float:
    """How often all CTAs get a tile; the last of many tiles has memory and the SM for itself."""
    return tiles / slots if tiles > _MANY_WAVES * slots else ceil(tiles / slots)


def memory_us(
    profile: DeviceProfile,
    layer: LayerConfig,
    layout: MmaLayout,
    problem: Problem,
    compute: ComputeConfig,
) -> float:
    """Weights and activations from memory once, results back once."""
    touched = sum(experts for experts, _ in spread(layer, compute, problem))
    weights = touched * layer.n * layer.k
    bits = layer.weight.bits_per_weight(layer.n, layer.k)
    rows = problem.m * (layer.k * layer.activation.format.bits + layer.n * layer.output.bits)
    gbps = profile.rates.dram_gbps or _DRAM_GBPS
    return (weights * bits + rows) / 8 / (0.85 * gbps * 1e3)
