"""Tunings worth considering for a problem: a short list of shapes, less what does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd

from humming.backend import Problem
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.formats.scheme import Zero
from humming.profiles import DeviceProfile
from humming.scheduling import ceil_div
from humming_sm75_sm89.folding import can_fold
from humming_sm75_sm89.kernel import generation, promotes
from humming_sm75_sm89.launches import routing_bytes, splits_of
from humming_sm75_sm89.layout import MmaLayout
from humming_sm75_sm89.tuning import MmaTuning

__all__ = ["SHAPES", "estimated_registers", "proposals"]

#: warps along N, along M, teams, tokens of a warp, blocks of a stage, CTAs per SM. Few tokens:
#: memory is the limit, so many teams stream weights. Many: large tiles, and no more than 8 warps,
#: for their registers. The smallest is the first.
SHAPES = (
    (1, 1, 4, 8, 1, 1), (1, 1, 16, 8, 1, 1), (1, 1, 12, 8, 1, 1), (1, 1, 8, 8, 2, 1),
    (1, 1, 16, 8, 2, 1),
    (2, 1, 4, 8, 2, 1), (1, 1, 4, 8, 2, 2), (1, 1, 2, 8, 2, 1),
    (1, 1, 16, 16, 1, 1), (1, 1, 12, 16, 1, 1), (1, 1, 8, 16, 2, 1), (2, 1, 4, 16, 2, 1),
    (1, 1, 4, 16, 1, 1), (2, 2, 1, 16, 2, 1), (2, 1, 1, 16, 2, 1),
    (1, 1, 12, 32, 1, 1), (1, 1, 8, 32, 2, 1), (1, 1, 8, 32, 1, 1), (2, 1, 4, 32, 1, 1),
    (1, 1, 4, 32, 1, 1), (2, 1, 2, 32, 2, 1), (2, 2, 2, 32, 2, 1), (2, 2, 1, 32, 2, 2),
    (4, 1, 1, 32, 2, 2), (1, 2, 4, 32, 1, 1),
    (1, 1, 8, 64, 1, 1), (2, 1, 4, 64, 1, 1), (4, 1, 2, 64, 2, 1), (2, 1, 2, 64, 2, 2),
    (2, 2, 2, 64, 1, 1), (4, 1, 1, 64, 2, 2),
)  # fmt: skip
#: The same for tiles of experts, of which there are many: several CTAs, so that some load while
#: others start or store.
EXPERT_SHAPES = (
    (1, 1, 2, 8, 1, 8), (1, 1, 4, 8, 1, 4), (2, 1, 2, 8, 1, 4), (1, 1, 8, 8, 1, 2),
    (1, 1, 4, 16, 1, 4), (1, 1, 2, 16, 1, 8), (2, 1, 4, 16, 1, 2), (2, 1, 2, 16, 1, 4),
    (1, 1, 4, 32, 1, 2),
)  # fmt: skip
#: What keeps a row's bits the same in every batch: the teams, and where scales are applied.
_INVARIANT_TEAMS = 4
_MOST_STAGES = 4
_MOST_REGISTERS = 255
#: For what is known of the rows of a tile.
_KIND_REGISTERS = {
    GemmKind.DENSE: 0,
    GemmKind.INDEXED: 4,
    GemmKind.GROUPED_CONTIGUOUS: 24,
    GemmKind.GROUPED_MASKED: 24,
}
#: How much less is enough for those shapes with up to so many tokens, where sums stay in MMAs:
#: ptxas 13.5 finds values again that it has no registers for.
_SPARED_TOKENS = 16
_SPARED = {GemmKind.INDEXED: 20, GemmKind.GROUPED_CONTIGUOUS: 40, GemmKind.GROUPED_MASKED: 20}
_SM_REGISTERS = 65536
#: Codes of no more bits are requested by units of two blocks, in dense layers by warps of so many
#: tokens; twin of mainloop.cuh.
_UNIT_TOKENS, _UNIT_BITS = 8, 3
#: Shared memory that the system keeps of every CTA.
_RESERVED_BYTES = 1024


def proposals(
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: MmaLayout,
    problem: Problem,
) -> Iterator[MmaTuning]:
    """Tunings that fit the device and the promises; the same for every M if batch-invariant."""
    shapes = list(_shapes(profile, layer, compute, layout))
    fitting = [shape for shape in shapes if _fits(profile, layer, compute, layout, shape)]
    # Registers are an estimate: where it leaves nothing, the smallest shape may do after all.
    for shape in fitting or shapes[:1]:
        for splits in splits_of(profile, layer, compute, problem, shape):
            yield replace(shape, splits=splits)


def _shapes(
    profile: DeviceProfile, layer: LayerConfig, compute: ComputeConfig, layout: MmaLayout
) -> Iterator[MmaTuning]:
    """All shapes that there is shared memory for, the one with the fewest registers first."""
    shapes = SHAPES if compute.gemm is GemmKind.DENSE else (*SHAPES, *EXPERT_SHAPES)
    for n, m, teams, tokens, blocks, ctas in shapes:
        if compute.batch_invariant and teams != _INVARIANT_TEAMS:
            continue
        shape = MmaTuning(
            warps_n=n,
            warps_m=m,
            warps_k=teams,
            tokens=tokens,
            stages=2,
            stage_blocks=blocks,
            ctas=ctas,
        )
        for folds in _folding(layer, compute, layout, tokens):
            tuning = _with_stages(profile, layer, layout, replace(shape, folds=folds))
            if tuning is not None:
                yield tuning


def _folding(
    layer: LayerConfig, compute: ComputeConfig, layout: MmaLayout, tokens: int
) -> tuple[bool, ...]:
    """Whether scales may go into the operand; with few tokens there are few sums to scale.

    Kernels of experts are short of registers, and such sums take some; so are those that request
    most bits by units.
    """
    many = tokens >= 16 or layout.group < 64 or compute.gemm is not GemmKind.DENSE
    many |= layout.planes.bits == _UNIT_BITS
    worth = can_fold(layer, layout) and many and not compute.batch_invariant
    return (False, True) if worth else (False,)


def estimated_registers(
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: MmaLayout,
    tuning: MmaTuning,
) -> int:
    """Registers of a thread, on the safe side; fitted to what ptxas 13.5 reports for sm_80."""
    tiles = tuning.tokens // 8
    registers = 16 * tiles + _code_registers(layout, compute, tuning) + _scale_registers(layout)
    if promotes(layer, layout, tuning):
        operands = 2 * tiles * layout.steps + 8 * tiles
        registers += operands + 6 * tiles * bool(layer.activation.group_size) + 48 + 8 * tiles
    else:
        registers += (8 if tiles == 1 else 4 * tiles) + 46
    small_float = layout.target.is_float and layout.target.bits == 8
    if (layer.weight.code.is_float or small_float) and layer.weight.code != layout.target:
        registers += 10  # a decoder of many steps
    if layer.weight.zero is Zero.FLOAT:
        registers += 8 * tiles  # sums of activations
    return (
        registers + _KIND_REGISTERS[compute.gemm] + _copy_registers(profile, layer, layout, tuning)
    )


def _code_registers(layout: MmaLayout, compute: ComputeConfig, tuning: MmaTuning) -> int:
    """For the codes that are multiplied, and those that arrive meanwhile: two blocks or units."""
    bits = layout.planes.bits
    few = tuning.tokens == _UNIT_TOKENS and bits <= _UNIT_BITS
    return (16 if few and compute.gemm is GemmKind.DENSE else 8) * bits


def _copy_registers(
    profile: DeviceProfile, layer: LayerConfig, layout: MmaLayout, tuning: MmaTuning
) -> int:
    """What a thread holds of a stage where there is no cp.async, or it can't gather."""
    if _is_asynchronous(profile, layout):
        return 0
    row_bytes = 8 * tuning.stage_blocks * layer.activation.format.bits
    chunks = ceil_div(tuning.tile_m * row_bytes // 16, 32 * tuning.team_warps)
    if not layout.has_order:
        return 4 * chunks + 8
    return 8 * chunks + 128 // layer.activation.format.bits + 20


def _scale_registers(layout: MmaLayout) -> int:
    """For scales and zero points of the blocks under way; twin of ``BlockScales::kWords``."""
    scale = layout.scale.bits // 8
    words = 2 * scale * (64 // gcd(64, layout.group)) if layout.has_scales else 0
    if layout.has_zeros:
        zero = scale if layout.weight.zero is Zero.FLOAT else 1
        words += 2 * zero * (64 // gcd(64, layout.zero_group))
    # Few are loaded a block ahead; many late, and then their addresses are needed late as well.
    return 2 * words if words <= 12 else words + 16


def _fits(
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: MmaLayout,
    tuning: MmaTuning,
) -> bool:
    most = min(_MOST_REGISTERS, _SM_REGISTERS // (tuning.threads * tuning.ctas) // 8 * 8)
    needed = estimated_registers(profile, layer, compute, layout, tuning)
    several = tuning.ctas > 1 and tuning.tokens <= _SPARED_TOKENS
    if several and not promotes(layer, layout, tuning):
        needed -= _SPARED.get(compute.gemm, 0)
    return needed <= most


def _is_asynchronous(profile: DeviceProfile, layout: MmaLayout) -> bool:
    """Whether activations are copied by cp.async."""
    return generation(profile) >= 80 and not layout.has_order


def _with_stages(
    profile: DeviceProfile, layer: LayerConfig, layout: MmaLayout, tuning: MmaTuning
) -> MmaTuning | None:
    """With as many stages as there is shared memory for; None if there is none for two."""
    block = profile.limits.smem_block_bytes or 48 * 1024
    sm = profile.limits.smem_sm_bytes or block
    room = min(block, sm // tuning.ctas - _RESERVED_BYTES) - routing_bytes(layer.experts)
    most = _MOST_STAGES if _is_asynchronous(profile, layout) else 2
    for stages in range(most, 1, -1):
        wider = replace(tuning, stages=stages)
        bits = layer.activation.format.bits, layer.output.bits
        if wider.shared_bytes(*bits, experts=layer.experts > 0) <= room:
            return wider
    return None
