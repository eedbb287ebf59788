"""How a GEMM kernel for many tokens with decoded weights is cut, and what that needs of an SM."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from humming.configs import TuningConfig
from humming.errors import ConfigError
from humming.formats.scheme import Zero
from humming.scheduling import Partition, Split
from humming_sm75_sm89.layout import MmaLayout

__all__ = ["FEWEST_STAGES", "SPLIT_TOKENS", "TILE_N", "WideTuning", "step_of"]

#: Rows of weights of a tile: two panels.
TILE_N = 128
_TOKENS = (64, 128, 160, 192, 256, 288)
_WARPGROUPS = 3
#: The most tokens of a tile whose sums there are registers to add parts to.
SPLIT_TOKENS = 128
#: Of a ring: one is multiplied, one was, one is decoded.
FEWEST_STAGES = 3
_MOST_STAGES = 16
#: Of both warpgroups; of a token where rows are chosen by index, for both and for those who copy.
_RESULT_BYTES, _FLAG_BYTES, _PLACE_BYTES = 2 * 8192, 16, 2 * 8 + 4


def step_of(layout: MmaLayout) -> int:
    """K of a stage: 128 bytes of operands."""
    return 8 * 128 // layout.target.bits


@dataclass(frozen=True, kw_only=True)
class WideTuning(TuningConfig):
    """A CTA computes 128 rows of weights by `tokens` tokens at a time.

    Attributes:
        tokens: of a tile: 64, 128, 160, 192, 256 or 288.
        fits: where there are fewer rows for a tile, fewer tokens are copied and multiplied, and the
            tiles of an expert have as many rows each. There are more instructions to compile.
        stages: of the ring, each of 128 bytes of K.
        folds: scales are multiplied into bf16 operands, at the price of one rounding to bf16, and
            not into f32 sums of a group.
        splits: parts of K of a tile, each for another CTA; of tiles of 128 tokens at most.
        raster: tiles of tokens that are computed with the same weights, one after the other.
    """

    tokens: int = 256
    fits: bool = False
    stages: int = 4
    folds: bool = False
    splits: int = 1
    raster: int = 8

    def __post_init__(self) -> None:
        if self.tokens not in _TOKENS:
            raise ConfigError("tokens", self.tokens, ", ".join(map(str, _TOKENS)))
        if not FEWEST_STAGES <= self.stages <= _MOST_STAGES:
            raise ConfigError("stages", self.stages, f"{FEWEST_STAGES} to {_MOST_STAGES}")
        for name in ("splits", "raster"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "a positive number")
        if self.splits > 1 and self.tokens > SPLIT_TOKENS:
            raise ConfigError("splits", self.splits, f"1 for tiles of {self.tokens} tokens")

    def __str__(self) -> str:
        fitting = " or less" * self.fits
        tile = f"wide {TILE_N}x{self.tokens}{fitting}, {self.stages} stages"
        return f"{tile}, {self.partition}, bands of {self.raster}" + ", folded" * self.folds

    @property
    def partition(self) -> Partition:
        """How K is cut among CTAs."""
        if self.splits > 1:
            return Partition(split=Split.SPLIT_K, splits=self.splits)
        return Partition()

    @property
    def partial_bytes(self) -> int:
        """One CTA's part of a tile in the workspace."""
        return 4 * self.tile_n * self.tile_m

    @property
    def threads(self) -> int:
        """Of a CTA: one warpgroup copies, two multiply."""
        return 128 * _WARPGROUPS

    @property
    def tile_n(self) -> int:
        """Rows of weights of a tile."""
        return TILE_N

    @property
    def tile_m(self) -> int:
        """Tokens of a tile."""
        return self.tokens

    @property
    def box(self) -> int:
        """Tokens that a copy brings; twin of ``Plan::kBox``."""
        return self.tokens // 2 if self.fits else self.tokens

    def shared_bytes(self, layout: MmaLayout, *, indexed: bool = False) -> int:
        """Dynamic shared memory without the table of experts; twin of ``Plan::kSharedBytes``.

        Args:
            layout: of the weight.
            indexed: rows of activations are chosen by index.
        """
        places = _PLACE_BYTES * self.tokens * indexed
        return self.stages * self.stage_bytes(layout) + _RESULT_BYTES + places + _FLAG_BYTES

    def stage_bytes(self, layout: MmaLayout) -> int:
        """Of the ring, both barriers of a stage included."""
        return self.tokens * 128 + TILE_N * _row_bytes(layout) + 2 * 8


def _row_bytes(layout: MmaLayout) -> int:
    """Codes, scales and zero points that a row of weights has in a step."""
    step, scale = step_of(layout), layout.scale.bits // 8
    zero = scale if layout.weight.zero is Zero.FLOAT else 1
    scales = scale * (step // gcd(step, layout.group)) if layout.has_scales else 0
    zeros = zero * (step // gcd(step, layout.zero_group)) if layout.has_zeros else 0
    return step * layout.weight.code.bits // 8 + scales + zeros
