"""Tunings of the wide kernels worth considering for a problem, and how long each would take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, gcd

from humming.backend import Problem
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.formats.scheme import Zero
from humming.profiles import DeviceProfile
from humming.scheduling import ceil_div
from humming_sm75_sm89.folding import can_fold
from humming_sm75_sm89.layout import MmaLayout
from humming_sm75_sm89.spread import spread
from humming_sm75_sm89.tuning import COUNTER_BYTES
from humming_sm90.cost import find_us, order_us
from humming_sm90.stream_tuning import StreamTuning
from humming_sm90.wide_kernel import (
    chunk,
    promotes,
    refuse_wide,
    shared_bytes,
    shared_limit,
    tile_count,
    width,
)
from humming_sm90.wide_tuning import (
    FEWEST_STAGES,
    FEWEST_THAT_FIT,
    SPLIT_TOKENS,
    TILE_N,
    WideTuning,
    step_of,
)

__all__ = ["decode_instructions", "microseconds", "proposals"]

#: Tokens of a tile, the most stages, CTAs of an SM: more were no faster where they were measured.
_SHAPES = ((256, 5, 1), (192, 6, 1), (160, 7, 1), (128, 8, 1), (64, 8, 1))
#: Those of experts, which often have a few rows more than the mean: 160 in the place of 128, or 288
#: in that of 256. If they have few, two CTAs of an SM read more of memory than one.
_GROUPED_SHAPES = (
    (288, 5, 1), (256, 5, 1), (192, 6, 1), (160, 7, 1), (128, 8, 1), (64, 8, 1),
    (16, 9, 2), (32, 8, 2), (48, 8, 2), (64, 8, 2),
)  # fmt: skip
#: Those of dense layers with few tokens, where there are more tiles than SMs.
_CROWDED_SHAPES = ((16, 9, 2), (32, 8, 2))
#: Halves of the smallest tiles that rows may fill.
_MOST_FEW_TILES = 4
#: Registers of sums that a thread has room for where an SM has two CTAs, and that integer zero
#: points take. As the compilers spill.
_SHARED_SUMS, _SHARED_ZEROS = 48, 16
_SPLITS = (2, 3, 4, 6, 8)
#: The fewest 128s of K that are worth a CTA of their own.
_FEWEST_UNITS = 4
#: Of a device whose profile does not say.
_SOME_SHARED_BYTES, _SOME_SMS, _SOME_CLOCK, _SOME_GBPS = 227 * 1024, 132, 1980.0, 3350.0

# Of the model: cycles of a step, fitted to earlier runs of one H200 (N = K = 8192, M = 128 to 4096,
# int4 and other weights, 2026-11-30), not to those that follow. The clock falls where tensor cores
# are busy; that is in _MMA_CYCLES.
#
# Measured since, on an H200, 2026-11-30: N = K = 8192, int4 g128, bf16, folded, in microseconds.
#
#   M                128 (K in 2 parts)   256   512   1024   2048   4096
#   took                           33.1  50.2  88.1  171.6    337    672
#   the model says                 33.5  50.5  89.3  170.0  331.5  654.6

# and of 8 bits (f: FP8 of channels by tokens; i: INT8; 4: int4 of channels by FP8; g: int4 g128 by
# INT8), M = 2048, tiles of 256 tokens: f 191, i 180, 4 199, g 275; of 64: 253, 242, 418, 330.

#: Per token: 128 rows by 128 bytes of K, 2048 products of 16 bits per cycle, and 22 % and more for
#: the clock.
_MMA_CYCLES = {"f16": 4.88, "bf16": 4.88, "s8": 5.2, "e4m3fn": 5.5, "e5m2": 5.5}
#: Of a warp that decodes: of a step, and per instruction for each register; and for each further
#: scale. So much of its MMAs' time it can't decode in.
_STEP_CYCLES, _DECODE_CYCLES, _SCALE_CYCLES, _BLOCKED = 90.0, 65.0, 20.0, 0.6
#: Of sums of an interval, which are waited for; of so many tokens, that are scaled; those of
#: integers are converted.
_WAITING_CYCLES, _PROMOTED = 65.0, 64
_PROMOTION_CYCLES, _CONVERSION_CYCLES = 65.0, 140.0
#: Instructions of a decoder per register of 8-bit operands, where codes are integers and floats;
#: the former for s8 without zero points.
_TO_HALVES_FROM_FP4 = 3.2
_TO_FLOAT8, _TO_INTEGER8 = (5.5, 3.5), (0.8, 10.5)

# Of tiles of experts, 256 x (4096 x 7168), 8 choices of a token (H200, 2026-11-30, microseconds; in
# brackets the model). MXFP4 by FP8, two CTAs of 16 tokens: 803 for 64 tokens (868), 2113 for 1024
# (2014); of 64 tokens 1135 (1087), or one of these 1211 (1172). 7168 x 2048, the same four: 476
# (441), 1241 (1222), 647 (626), 705 (671). int4 by bf16, two of 32 tokens 1290 for 512 (1376), of
# 64 tokens 1494 for 1024 (1646). For 4096 int4 by bf16 3044 (3385), MXFP4 by FP8 2170 (2070).

#: How much more MMAs take, and how much of their time is no time to decode in; and of decoding,
#: what remains where an SM has two CTAs.
_GROUPED, _GROUPED_BLOCKED, _SHARED_DECODE = 1.35, 0.95, 0.85
#: What a tile takes beside its steps, and how much of the shorter of memory and SMs is not hidden.
_EACH_TILE_US, _NOT_HIDDEN = 1.1, 0.05
#: Bytes per cycle that an SM gets of L2; and what a row costs that is copied and not multiplied:
#: 256 x (4096 x 7168) by 128, 144 and 160 rows each, int4 by bf16, took 2791, 3035 and 3117 us with
#: tiles of 160 tokens, 3054, 3164 and 3189 with 192.
_FILL_BYTES, _COPIED_CYCLES = 45.0, 1.2
#: Of a launch; of a CTA's first copies and last stores.
_LAUNCH_US, _TILE_US = 5.4, 3.1
#: Of sums that go through memory, and of those of each CTA; and how these grow with tokens.
_PARTS_US, _PARTS_TOKEN_US, _PART_US, _PART_TOKEN_US = 0.6, 0.0055, 0.15, 0.002
# N = 1280, K = 8192 on an H200, 2026-11-30, microseconds. M = 128, tiles of 64 tokens, by parts of
# K 1, 2, 4 and 6: int4 by bf16 32.0 20.9 15.7 14.1, MXFP4 by FP8 25.0 18.3 14.3 13.5. M = 2048,
# tiles of 128, 160, 192 and 256 tokens: int4 by bf16 89.9 57.1 64.8 82.9, FP8 49.3 34.4 37.8 46.8.

#: Of the bandwidth of memory, what experts get, dense layers, and these if sums go through memory
#: too: N = K = 8192, FP8, M = 64 and 128 took 23.7 and 24.1 us, in 2 parts of 128 tokens 29.4
#: (H200, 2026-12-01).
_SHARE, _DENSE_SHARE, _PARTS_SHARE = 0.87, 0.9, 0.75
#: Rows that copies may lack for nothing, and what each further one costs: there, tiles of 64 tokens
#: took 27.9 us for M = 1, 26.2 for 16 and 23.9 for 32, tiles of 16 the same for 1 as for 8.
_LACKING, _OUTSIDE_US = 32, 0.13
#: Of a dense layer: what a step takes more, and less per token; how long it takes where most SMs
#: have nothing to do, and the clock is higher.
_DENSE_STEP, _DENSE_LESS, _IDLE = 85.0, 0.45, 0.8
#: Of its tiles but the first, in any case and per token.
_NEXT_US, _NEXT_TOKEN_US = 0.1, 0.006


def proposals(
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: MmaLayout,
    problem: Problem,
) -> Iterator[WideTuning]:
    """Tunings that fit the device and the promises; none where other kernels are meant.

    A row's bits would not be those of kernels for fewer tokens, so there is none if they are
    promised to be.
    """
    if refuse_wide(layer, compute, layout) is not None or compute.batch_invariant:
        return
    grouped = compute.gemm is not GemmKind.DENSE
    shapes: tuple[tuple[int, int, int], ...] = _GROUPED_SHAPES if grouped else _SHAPES
    if not grouped and is_crowded(profile, layer):
        shapes += _CROWDED_SHAPES
    # A larger tile than holds all rows of a dense layer has copies of rows that are not there.
    holds = min((tokens for tokens, _, _ in shapes if tokens >= problem.m), default=problem.m)
    for tokens, most, ctas in shapes:
        if not grouped and tokens > holds:
            continue
        filled = 2 * _mean_rows(layer, compute, problem) / tokens
        if tokens > TILE_N // 2 and (filled < 1 if grouped else filled <= 1):
            continue  # half of what is multiplied would be nothing
        if tokens < TILE_N // 2 and filled > _MOST_FEW_TILES:
            continue  # weights would be decoded again and again
        for folds in (False, True) if can_fold(layer, layout) else (False,):
            tuning = WideTuning(tokens=tokens, stages=FEWEST_STAGES, ctas=ctas, folds=folds)
            if not _has_registers(layer, compute, layout, tuning):
                continue
            fits = grouped and _can_fit(layer, compute, layout, tuning)
            tuning = replace(tuning, stages=most, fits=fits)
            found = _with_stages(profile, layer, compute, layout, tuning)
            if found is not None:
                yield found
                yield from _split(profile, layer, compute, problem, found)


def is_crowded(profile: DeviceProfile, layer: LayerConfig) -> bool:
    """Whether a dense layer with few tokens has more tiles than there are SMs."""
    return ceil_div(layer.n, TILE_N) > (profile.limits.sm_count or _SOME_SMS)


def _has_registers(
    layer: LayerConfig, compute: ComputeConfig, layout: MmaLayout, tuning: WideTuning
) -> bool:
    """Whether there are enough beside totals of so many tokens; as the compilers spill."""
    promoted, zeros = promotes(layer, compute, layout, tuning), layout.weight.zero is Zero.FLOAT
    if tuning.ctas > 1:
        room = _SHARED_SUMS - _SHARED_ZEROS * (layout.weight.zero is Zero.INTEGER)
        if compute.gemm is GemmKind.DENSE and room < _SHARED_SUMS and _intervals(layout) > 2:
            return False
        return tuning.tokens // 2 * (1 + promoted + 2 * zeros) <= room
    if not promoted:
        return True
    many = _intervals(layout) > 1 or zeros
    whole = tuning.tokens % chunk(layer, compute, layout, tuning) == 0
    return whole and not (many and tuning.tokens > TILE_N)


def _can_fit(
    layer: LayerConfig, compute: ComputeConfig, layout: MmaLayout, tuning: WideTuning
) -> bool:
    """Whether a register is left for the number of tokens; as the compilers spill."""
    if tuning.tokens < FEWEST_THAT_FIT:
        return False
    return tuning.tokens < 256 or not promotes(layer, compute, layout, tuning)


def _with_stages(
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: MmaLayout,
    tuning: WideTuning,
) -> WideTuning | None:
    """With as many stages as there is shared memory for; None if there is none for the fewest."""
    most = shared_limit(profile, tuning) or _SOME_SHARED_BYTES
    for stages in range(tuning.stages, FEWEST_STAGES - 1, -1):
        fewer = replace(tuning, stages=stages)
        if shared_bytes(layer, compute, layout, fewer) <= most:
            return fewer
    return None


def _split(
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    problem: Problem,
    tuning: WideTuning,
) -> Iterator[WideTuning]:
    """Parts of K for other CTAs, as long as they find an SM, or a part of one, each."""
    if compute.gemm is not GemmKind.DENSE or tuning.tokens > SPLIT_TOKENS:
        return
    tiles = tile_count(compute.gemm, layer, problem, tuning)
    slots = tuning.ctas * (profile.limits.sm_count or _SOME_SMS)
    units = ceil_div(layer.k, 128)
    for splits in _SPLITS:
        enough = units >= _FEWEST_UNITS * splits and tiles * 4 <= COUNTER_BYTES
        if enough and tiles * splits <= slots:
            yield replace(tuning, splits=splits)


def microseconds(  # budget: what a backend is asked about
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: MmaLayout,
    problem: Problem,
    tuning: WideTuning,
) -> float:
    """Estimated time of a call on this device."""
    grouped = compute.gemm is not GemmKind.DENSE
    sms = profile.limits.sm_count or _SOME_SMS
    clock = profile.rates.clock_mhz or _SOME_CLOCK
    found = spread(layer, compute, problem)
    row_tiles, cycles = 0.0, 0.0
    for experts, rows in found:
        tiles = ceil_div(rows, tuning.tile_m)
        tokens = width(layer, compute, layout, tuning, ceil_div(rows, tiles))
        row_tiles += experts * tiles
        cycles += experts * tiles * _step_cycles(layer, compute, layout, tuning, tokens)
    items = row_tiles * ceil_div(layer.n, TILE_N) * tuning.splits
    waves = ceil(items / (sms * tuning.ctas)) * tuning.ctas
    steps = 128 // step_of(layout) * ceil_div(ceil_div(layer.k, 128), tuning.splits)
    compute_us = waves * steps * cycles / row_tiles / clock
    if grouped:
        compute_us += _TILE_US + waves * _EACH_TILE_US
    else:
        busy = min(items / (sms * tuning.ctas), 1.0)
        compute_us *= _IDLE + (1 - _IDLE) * busy
        compute_us += _TILE_US + (waves - 1) * (_NEXT_US + _NEXT_TOKEN_US * tuning.tokens)
    bits = layer.weight.bits_per_weight(layer.n, layer.k)
    moved = sum(experts for experts, _ in found) * layer.n * layer.k * bits
    every = sum(experts * rows for experts, rows in found)
    moved += every * (layer.k * layer.activation.format.bits + layer.n * layer.output.bits)
    share = _SHARE if grouped else _DENSE_SHARE if tuning.splits == 1 else _PARTS_SHARE
    memory_us = moved / 8 / ((profile.rates.dram_gbps or _SOME_GBPS) * share * 1e3)
    if not grouped:
        if items > sms * tuning.ctas:  # in the last wave some have nothing to do
            memory_us *= (waves * sms / items) ** 0.5
        memory_us += _TILE_US + _OUTSIDE_US * max(tuning.tokens - problem.m - _LACKING, 0)
    parts_us = 0.0
    if tuning.splits > 1:
        parts_us = _PARTS_US + _PARTS_TOKEN_US * tuning.tokens
        parts_us += tuning.splits * (_PART_US + _PART_TOKEN_US * tuning.tokens)
    rest_us = _NOT_HIDDEN * grouped * min(compute_us, memory_us)
    find = find_us(layer) if grouped else 0.0
    order = order_us(profile, layer, compute, problem)
    return _LAUNCH_US + max(compute_us, memory_us) + rest_us + parts_us + find + order


def _step_cycles(  # budget: what decides it, and tokens
    layer: LayerConfig, compute: ComputeConfig, layout: MmaLayout, tuning: WideTuning, tokens: int
) -> float:
    """Cycles of an SM for a step of one of its CTAs, and so many tokens."""
    mma = tokens * _MMA_CYCLES[layout.target.name]
    further = _intervals(layout) - 1
    decode = (
        _STEP_CYCLES
        + _DECODE_CYCLES * decode_instructions(layout, tuning)
        + _SCALE_CYCLES * further
    )
    grouped = compute.gemm is not GemmKind.DENSE
    if not grouped:
        mma += _DENSE_STEP - _DENSE_LESS * tokens
    blocked = _GROUPED_BLOCKED if grouped else _BLOCKED
    if promotes(layer, compute, layout, tuning):
        blocked = _BLOCKED
        chunks = tokens / _PROMOTED
        mma *= 1 + (layout.weight.zero is Zero.FLOAT)
        promotion = _PROMOTION_CYCLES + _CONVERSION_CYCLES * layout.target.is_integer
        decode += (_WAITING_CYCLES + promotion * chunks) * (1 + further)
    copied = ceil_div(tokens, tuning.box) * tuning.box
    left_out = (tuning.tokens - copied) * 128
    fill = (tuning.stage_bytes(layout) - left_out) / _FILL_BYTES
    if tuning.ctas > 1:
        decode *= _SHARED_DECODE
    longest = max(mma * _GROUPED if grouped else mma, decode + blocked * mma, fill)
    return longest + _COPIED_CYCLES * (copied - tokens)


def decode_instructions(layout: MmaLayout, tuning: WideTuning | StreamTuning) -> float:
    """Of a decoder, for each register of weights; see ``decode/`` of core."""
    code = layout.weight.code
    if code == layout.target:
        return 0.0
    if layout.target.bits == 8:
        of_integer, of_float = _TO_INTEGER8 if layout.target.is_integer else _TO_FLOAT8
        return of_integer if code.is_integer else of_float
    planes = bin(code.bits).count("1")
    field = 1.5 if layout.planes.fives else 1.25 * planes + planes - 1
    if code.name == "e2m1":
        return _TO_HALVES_FROM_FP4  # scales are in the factor that it is multiplied by anyway
    of_float = 2.25 if code.bits < 8 else 5.0 if layout.code.has_nan else 2.0
    made = field + 1 if code.is_integer else 2 * field + of_float
    return made + tuning.folds * (1.0 if layout.weight.zero is Zero.INTEGER else 0.6)


def _intervals(layout: MmaLayout) -> int:
    """Scales that a row has in a step."""
    step = step_of(layout)
    return step // gcd(step, layout.group) if layout.has_scales else 1


def _mean_rows(layer: LayerConfig, compute: ComputeConfig, problem: Problem) -> float:
    """Of an expert. Where they are masked, the largest number that it may have."""
    if compute.gemm in (GemmKind.GROUPED_CONTIGUOUS, GemmKind.INDEXED):
        return problem.m / max(layer.experts, 1)
    return problem.m
