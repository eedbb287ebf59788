"""Tunings of the streaming kernel worth considering: a short list, less what does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd

from humming.backend import Problem
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.formats.scheme import Zero
from humming.profiles import DeviceProfile
from humming_sm75_sm89.folding import can_fold
from humming_sm75_sm89.launches import routing_bytes, splits_of
from humming_sm75_sm89.layout import MmaLayout
from humming_sm90.stream_kernel import promotes, refuse_stream
from humming_sm90.stream_tuning import StreamTuning
from humming_sm90.wide_candidates import is_crowded

__all__ = ["SHAPES", "estimated_registers", "proposals"]

#: Warpgroups along N, teams, tokens, stages: those that experiments on an H200 found best, and with
#: fewer threads for what needs more registers. With as many of the stages as there is room for.
SHAPES = (
    (1, 6, 16, 4), (1, 4, 16, 4), (1, 3, 16, 4), (1, 5, 32, 3), (1, 4, 32, 4), (2, 2, 32, 4),
    (1, 3, 32, 4), (1, 4, 64, 3), (2, 2, 64, 3), (1, 3, 64, 4), (2, 1, 64, 4), (1, 3, 128, 2),
    (2, 2, 128, 3), (2, 1, 128, 5),
)  # fmt: skip
#: The same, and CTAs of an SM, for tiles of experts, of which there are many: some CTAs load while
#: others start or store, and no team waits for another.
EXPERT_SHAPES = (
    (2, 1, 16, 4, 3), (2, 1, 16, 4, 2), (2, 1, 32, 4, 3), (2, 1, 32, 3, 2),
    (1, 2, 32, 3, 2), (2, 1, 64, 3, 2), (2, 1, 128, 4, 1),
)  # fmt: skip
#: Those of them for dense layers with more tiles than SMs.
CROWDED_SHAPES = ((2, 1, 16, 4, 3), (2, 1, 32, 4, 3), (2, 1, 64, 3, 2), (2, 1, 128, 4, 1))
#: With activations of 8 bits more were slower than the wide kernels (28 instead of 32 us), where
#: there are no more tiles than SMs.
_MOST_BYTE_TOKENS = 64
#: Gathered activations pass through registers, one stage ahead.
_GATHERED_STAGES = 2
#: Shared memory of a device whose profile does not say, and what the system keeps of every CTA.
_SOME_SHARED_BYTES, _RESERVED_BYTES = 227 * 1024, 1024
_SM_REGISTERS, _MOST_REGISTERS = 65536, 255
#: Registers beside the sums, and what takes more of them: rows that routing finds, the more with
#: codes of 8 bits; zero points; larger batches, or two units in one; scales per few columns, in
#: operands or for sums. Fitted, on the safe side, to where ptxas 13.5 spills.
_REGISTERS = 64
_ROUTED, _ROUTED_BYTES = 20, 13
#: Codes of 8 bits decoded to 16 where several CTAs of a dense layer share an SM.
_CROWDED_BYTES = 8
#: With rows that routing finds, MMAs of several widths and several CTAs in an SM; the last is what
#: less is enough for 16 tokens and activations of 8 bits.
_WIDTHS, _WIDTHS_ZERO, _WIDTHS_FEW = {"zero": 24, "code": 14, "scales": 24}, 4, 29
_ZERO_POINT = 8
_BATCH = {2: 4, 8: 4}
_FOLDED = {32: 4, 16: 12}
_PROMOTED = {16: 24}
#: Scales of 8 bits per 16 columns are few enough to be loaded ahead, and all of them are.
_SMALL_SCALES = 130
#: Of a chunk of 16 bytes that a thread gathers, and with activations of 8 bits.
_CHUNK, _ORDERED_BYTES = 13, 3
#: Codes of more than one plane, or floats, decoded to 8 bits: with so many tokens; with rows found
#: by routing.
_PLANES, _ROUTED_PLANES = {32: 4, 64: 8}, 21


def proposals(
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: MmaLayout,
    problem: Problem,
) -> Iterator[StreamTuning]:
    """Tunings that fit the device and keep the promises.

    None where the bits of a row may not depend on the batch: those of wgmma and mma.sync differ,
    and few rows want mma.sync.
    """
    if compute.batch_invariant or refuse_stream(layer, compute, layout):
        return
    shapes = [(*shape, 1) for shape in SHAPES]
    if layer.activation.format.bits == 8:
        shapes = [shape for shape in shapes if shape[2] <= _MOST_BYTE_TOKENS]
    if compute.gemm is not GemmKind.DENSE:
        shapes += EXPERT_SHAPES
    elif is_crowded(profile, layer):
        shapes += CROWDED_SHAPES
    for n, k, tokens, stages, ctas in shapes:
        for folds in (False, True) if can_fold(layer, layout) else (False,):
            shape = StreamTuning(
                groups_n=n,
                groups_k=k,
                tokens=tokens,
                stages=_GATHERED_STAGES if layout.has_order else stages,
                ctas=ctas,
                folds=folds,
            )
            if not _has_registers(layer, compute, layout, shape):
                continue
            tuning = _that_fits(profile, layer, shape)
            if tuning is not None:
                for splits in splits_of(profile, layer, compute, problem, tuning):
                    yield replace(tuning, splits=splits)


def estimated_registers(
    layer: LayerConfig, compute: ComputeConfig, layout: MmaLayout, tuning: StreamTuning
) -> int:
    """Registers that a thread can't do without."""
    promoted = promotes(layer, compute, layout, tuning)
    registers = _REGISTERS + tuning.tokens // 2 * (2 if promoted else 1)
    registers += _BATCH.get(layer.weight.code.bits, 0)
    if compute.gemm is not GemmKind.DENSE:
        registers += _ROUTED + _ROUTED_BYTES * (layer.weight.code.bits == 8)
        registers += _for_widths(layer, compute, layout, tuning)
    elif tuning.ctas > 1 and layer.activation.format.bits == 16:
        registers += _CROWDED_BYTES * (layer.weight.code.bits == 8)
    if layer.weight.zero is Zero.INTEGER:
        registers += _ZERO_POINT
    if layout.has_scales:
        interval = gcd(64, layout.group)
        registers += (_FOLDED if tuning.folds else _PROMOTED).get(interval, 0)
        if promoted and interval == 16 and layout.scale.bits == 8:
            registers += _SMALL_SCALES
    code = layer.weight.code
    converted = code.is_float and layout.target.is_integer
    if layer.activation.format.bits == 8 and (code.bits in (3, 5, 6, 7) or converted):
        dense = compute.gemm is GemmKind.DENSE
        registers += _PLANES.get(tuning.tokens, 0) if dense else _ROUTED_PLANES
    if layout.has_order:
        registers += _ORDERED_BYTES * (layer.activation.format.bits == 8)
        registers += _CHUNK * (tuning.tile_m * 16 // (128 * tuning.groups_n))
    return registers


def _for_widths(
    layer: LayerConfig, compute: ComputeConfig, layout: MmaLayout, tuning: StreamTuning
) -> int:
    if layer.activation.format.bits == 8:
        indexed = compute.gemm is GemmKind.INDEXED and tuning.folds
        few = tuning.tokens == 16 and tuning.ctas > 1 and not indexed
        return _WIDTHS_ZERO * (layer.weight.zero is Zero.INTEGER) - _WIDTHS_FEW * few
    return (
        _WIDTHS["zero"] * (layer.weight.zero is Zero.INTEGER)
        + _WIDTHS["code"] * (layer.weight.code.bits == 8)
        + _WIDTHS["scales"] * (layout.has_scales and layout.group == 16 and tuning.folds)
    )


def _has_registers(
    layer: LayerConfig, compute: ComputeConfig, layout: MmaLayout, tuning: StreamTuning
) -> bool:
    most = min(_MOST_REGISTERS, _SM_REGISTERS // (tuning.threads * tuning.ctas) // 8 * 8)
    return estimated_registers(layer, compute, layout, tuning) <= most


def _that_fits(
    profile: DeviceProfile, layer: LayerConfig, tuning: StreamTuning
) -> StreamTuning | None:
    """With as many of its stages as there is shared memory for; None if there is none for two."""
    block = profile.limits.smem_block_bytes or _SOME_SHARED_BYTES
    most = min(block, (profile.limits.smem_sm_bytes or block) // tuning.ctas - _RESERVED_BYTES)
    for stages in range(tuning.stages, 1, -1):
        fewer = replace(tuning, stages=stages)
        bits = layer.activation.format.bits, layer.output.bits
        needed = fewer.shared_bytes(*bits, experts=layer.experts > 0)
        if needed + routing_bytes(layer.experts) <= most:
            return fewer
    return None
