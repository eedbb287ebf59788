"""Tunings worth considering: the tiles there are, with as many stages as fit."""

from __future__ import annotations

from collections.abc import Iterator

from humming.backend import Problem
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.profiles import DeviceProfile
from humming_sm90.kernel import shared_bytes
from humming_sm90.layout import WgmmaLayout
from humming_sm90.tuning import WgmmaTuning

__all__ = ["proposals"]

#: Rows of weights of a tile, and the most stages: more were no faster where they were measured. Nor
#: were tiles of 256 tokens by 128 rows of weights (H200: dense 10 % slower, experts up to 26 %,
#: where their rows lie together).
_SHAPES = ((256, 4), (128, 6), (64, 8))
#: Of a device whose profile does not say.
_SOME_SHARED_BYTES = 227 * 1024


def proposals(
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: WgmmaLayout,
    problem: Problem,
) -> Iterator[WgmmaTuning]:
    """Tunings that fit the device. All of them add up K in the same order, whatever M is."""
    most = profile.limits.smem_block_bytes or _SOME_SHARED_BYTES
    table = 0 if compute.gemm is GemmKind.DENSE else 4 * (layer.experts + 1)
    for tile_n, stages in _SHAPES:
        for count in range(stages, 1, -1):
            tuning = WgmmaTuning(tile_n=tile_n, stages=count)
            if shared_bytes(layer, compute, layout, tuning) + table <= most:
                yield tuning
                break
