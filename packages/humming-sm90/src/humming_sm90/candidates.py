"""Tunings worth considering: the tiles there are, with as many stages as fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from humming.backend import Problem
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.profiles import DeviceProfile
from humming.scheduling import ceil_div
from humming_sm75_sm89.tuning import COUNTER_BYTES
from humming_sm90.kernel import shared_bytes, tile_count
from humming_sm90.layout import WgmmaLayout
from humming_sm90.tuning import STEP, WgmmaTuning

__all__ = ["proposals"]

#: Rows of weights and tokens of a tile, and the most stages: more were no faster where they were
#: measured. Nor were tiles of 256 tokens by 128 rows of weights (H200: dense 10 % slower, experts
#: up to 26 %, where their rows lie together).
_SHAPES = ((256, 128, 4), (128, 128, 6), (64, 128, 8))
#: Those of dense layers with few tokens.
_FEW_TOKENS, _FEW_SHAPES = 64, ((128, 64, 9), (64, 64, 13))
#: Parts of K, the fewest steps of one, and rows of weights of the widest tile that has some.
_SPLITS, _FEWEST_STEPS, _WIDEST_SPLIT = (2, 3, 4, 6, 8), 4, 128
#: Of a device whose profile does not say.
_SOME_SHARED_BYTES = 227 * 1024


def proposals(
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: WgmmaLayout,
    problem: Problem,
) -> Iterator[WgmmaTuning]:
    """Tunings that fit the device and keep the promises.

    Those of whole tiles add up K in the same order, whatever M is.
    """
    most = profile.limits.smem_block_bytes or _SOME_SHARED_BYTES
    dense = compute.gemm is GemmKind.DENSE
    table = 0 if dense else 4 * (layer.experts + 1)
    for tile_n, tokens, stages in _FEW_SHAPES if dense and problem.m <= _FEW_TOKENS else _SHAPES:
        shape = WgmmaTuning(tile_n=tile_n, tokens=tokens)
        for parts in _splits_of(profile, compute, layer, problem, shape):
            for count in range(stages, 1, -1):
                tuning = replace(shape, stages=count, splits=parts)
                if shared_bytes(layer, compute, layout, tuning) + table <= most:
                    yield tuning
                    break


def _splits_of(
    profile: DeviceProfile,
    compute: ComputeConfig,
    layer: LayerConfig,
    problem: Problem,
    shape: WgmmaTuning,
) -> Iterator[int]:
    """Ways to cut K: whole tiles, and parts as long as they find an SM each.

    None of wide tiles: what their sums take is more than it saves. Nor runs of K across tiles, the
    same for all SMs: for M = 2048 1280 x 8192 took 55.3 us and not 48.2, 2112 x 7168 68.9 and not
    61.5 (H200, 2026-11-30).
    """
    yield 1
    if (
        compute.gemm is not GemmKind.DENSE
        or compute.batch_invariant
        or shape.tile_n > _WIDEST_SPLIT
    ):
        return
    tiles = tile_count(compute.gemm, layer, problem, shape)
    for splits in _SPLITS:
        enough = ceil_div(layer.k, STEP) >= _FEWEST_STEPS * splits and tiles * 4 <= COUNTER_BYTES
        if enough and tiles * splits <= (profile.limits.sm_count or 1):
            yield splits
