"""How a GEMM kernel for many tokens with decoded weights is cut, and what that needs of an SM."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from humming.configs import TuningConfig
from humming.errors import ConfigError
from humming.formats.scheme import Zero
from humming.scheduling import Partition
from humming_sm75_sm89.layout import MmaLayout
from humming_sm90.parts import partition_of

__all__ = ["FEWEST_STAGES", "FEWEST_THAT_FIT", "SPLIT_TOKENS", "TILE_N", "WideTuning", "step_of"]

#: Rows of weights of a tile: two panels.
TILE_N = 128
_TOKENS = (16, 32, 48, 64, 128, 160, 192, 256, 288)
#: Tiles of fewer tokens are one copy and one MMA wide.
FEWEST_THAT_FIT = 32
_WARPGROUPS = 3
#: The most tokens of a tile whose sums there are registers to add parts to.
SPLIT_TOKENS = 128
#: Of a ring: one is multiplied, one was, one is decoded.
FEWEST_STAGES = 3
_MOST_STAGES = 16
#: Of the results of a warpgroup at a time: at most, and of a token in f32; twin of
#: ``Plan::kResultBytes``. Then of a token where rows are chosen by index, or that has a scale, for
#: both warpgroups.
_RESULT_BYTES, _TOKEN_BYTES = 8192, 4 * 64
_FLAG_BYTES, _PLACE_BYTES = 16, 2 * 4
#: Of a stage: both barriers, and what is told of a tile that begins there.
_STAGE_BYTES = 2 * 8 + 16
#: Registers of a thread that copies and of one that multiplies, by the CTAs of an SM: 168 and 80 a
#: thread are what they are launched with.
_REGISTERS = {1: (40, 232), 2: (32, 104)}


def step_of(layout: MmaLayout) -> int:
    """K of a stage: 128 bytes of operands."""
    return 8 * 128 // layout.target.bits


@dataclass(frozen=True, kw_only=True)
class WideTuning(TuningConfig):
    """A CTA computes 128 rows of weights by `tokens` tokens at a time.

    Attributes:
        tokens: of a tile: 16, 32, 48, 64, 128, 160, 192, 256 or 288.
        fits: where there are fewer rows for a tile, fewer tokens are copied and multiplied, and the
            tiles of an expert have as many rows each. There are more instructions to compile.
        stages: of the ring, each of 128 bytes of K.
        ctas: of an SM, which wait for different things: 1, or 2 for tiles of few tokens, which
            leave them the registers.
        folds: scales are multiplied into bf16 operands, at the price of one rounding to bf16, and
            not into f32 sums of a group.
        splits: parts of K of a tile, each for another CTA; of tiles of 128 tokens at most.
        raster: tiles of tokens that are computed with the same weights, one after the other.
    """

    tokens: int = 256
    fits: bool = False
    stages: int = 4
    ctas: int = 1
    folds: bool = False
    splits: int = 1
    raster: int = 8

    def __post_init__(self) -> None:
        if self.tokens not in _TOKENS:
            raise ConfigError("tokens", self.tokens, ", ".join(map(str, _TOKENS)))
        if self.fits and self.tokens < FEWEST_THAT_FIT:
            raise ConfigError("fits", True, f"False for tiles of {self.tokens} tokens")
        if self.ctas not in _REGISTERS:
            raise ConfigError("ctas", self.ctas, " or ".join(map(str, _REGISTERS)))
        if not FEWEST_STAGES <= self.stages <= _MOST_STAGES:
            raise ConfigError("stages", self.stages, f"{FEWEST_STAGES} to {_MOST_STAGES}")
        for name in ("splits", "raster"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "a positive number")
        if self.splits > 1 and self.tokens > SPLIT_TOKENS:
            raise ConfigError("splits", self.splits, f"1 for tiles of {self.tokens} tokens")

    def __str__(self) -> str:
        fitting = " or less" * self.fits
        per_sm = f", {self.ctas} per SM" * (self.ctas > 1)
        tile = f"wide {TILE_N}x{self.tokens}{fitting}, {self.stages} stages{per_sm}"
        return f"{tile}, {self.partition}, bands of {self.raster}" + ", folded" * self.folds

    @property
    def partition(self) -> Partition:
        """How K is cut among CTAs."""
        return partition_of(self.splits)

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

    @property
    def registers(self) -> tuple[int, int]:
        """Of a thread that copies, and of one that multiplies."""
        return _REGISTERS[self.ctas]

    def shared_bytes(
        self, layout: MmaLayout, *, indexed: bool = False, scaled: bool = False
    ) -> int:
        """Dynamic shared memory without the table of experts; twin of ``Plan::kSharedBytes``.

        Args:
            layout: of the weight.
            indexed: rows of activations are chosen by index.
            scaled: each of them has a scale.
        """
        results = 2 * min(_RESULT_BYTES, _TOKEN_BYTES * self.tokens)
        places = self.tokens * _PLACE_BYTES * (indexed + scaled)
        return self.stages * self.stage_bytes(layout) + results + places + _FLAG_BYTES

    def stage_bytes(self, layout: MmaLayout) -> int:
        """Of the ring, and what else a stage has."""
        return self.tokens * 128 + TILE_N * _row_bytes(layout) + _STAGE_BYTES


def _row_bytes(layout: MmaLayout) -> int:
    """Codes, scales and zero points that a row of weights has in a step."""
    step, scale = step_of(layout), layout.scale.bits // 8
    zero = scale if layout.weight.zero is Zero.FLOAT else 1
    scales = scale * (step // gcd(step, layout.group)) if layout.has_scales else 0
    zeros = zero * (step // gcd(step, layout.zero_group)) if layout.has_zeros else 0
    return step * layout.weight.code.bits // 8 + scales + zeros
