"""How a kernel that streams weights is cut into warpgroups and teams, and what that needs."""

from __future__ import annotations

from dataclasses import dataclass

from humming.configs import TuningConfig
from humming.errors import ConfigError
from humming.scheduling import Partition, Split
from humming_sm75_sm89.tuning import table_bytes

__all__ = ["STAGE_BLOCKS", "StreamTuning"]

#: Blocks of 64 of K in a stage of the ring: both of a unit.
STAGE_BLOCKS = 2
#: Where rings begin, and so the 128-byte swizzle.
_ALIGNMENT = 1024
_MOST_THREADS = 1024
_CHOICES = {
    "groups_n": (1, 2),
    "groups_k": (1, 2, 3, 4, 5, 6, 7, 8),
    "tokens": (16, 32, 64, 128),
    "stages": (2, 3, 4, 5, 6),
}


@dataclass(frozen=True, kw_only=True)
class StreamTuning(TuningConfig):
    """A warpgroup multiplies 64 rows of weights by all tokens of a tile, with wgmma.

    Attributes:
        groups_n: warpgroups of a team, along the rows of weights: 1 or 2.
        groups_k: teams, which take turns in K: 1 to 8.
        tokens: of a tile, and N of wgmma: 16, 32, 64 or 128.
        stages: of a team's ring of activations, each of 128 of K: 2 to 6.
        ctas: that an SM shall have room for, as far as registers go.
        folds: scales are multiplied into bf16 operands, at the price of one rounding to bf16, and
            not into f32 sums of a group.
        splits: parts of K of a tile, each for another CTA.
        min_run: stream-K with at least so many steps of K in a run, where it is not 0.
        raster: tiles across a band.
    """

    groups_n: int = 1
    groups_k: int = 4
    tokens: int = 16
    stages: int = 4
    ctas: int = 1
    folds: bool = False
    splits: int = 1
    min_run: int = 0
    raster: int = 8

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(name, getattr(self, name), f"one of {allowed}")
        for name in ("ctas", "raster"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "a positive number")
        if self.splits < 1 or self.min_run < 0 or (self.splits > 1 and self.min_run):
            found = f"{self.splits} splits, runs of {self.min_run}"
            raise ConfigError("splits", found, "a positive number, and no runs with more than 1")
        if self.threads * self.ctas > 2 * _MOST_THREADS:
            raise ConfigError("ctas", self.ctas, f"no more than {2 * _MOST_THREADS} threads per SM")

    def __str__(self) -> str:
        shape = f"{self.groups_n}x{self.groups_k} warpgroups of 64x{self.tokens}"
        where = f"{self.stages} stages, {self.ctas} per SM, {self.partition}"
        return f"stream, {shape}, {where}{', folded' * self.folds}"

    @property
    def partition(self) -> Partition:
        """How K is cut among CTAs."""
        if self.min_run:
            return Partition(split=Split.STREAM_K, min_run=self.min_run)
        if self.splits > 1:
            return Partition(split=Split.SPLIT_K, splits=self.splits)
        return Partition()

    @property
    def warps_n(self) -> int:
        """Warps of a team, each with 16 rows of weights."""
        return 4 * self.groups_n

    @property
    def warps_m(self) -> int:
        """Warps along the tokens: every one has them all."""
        return 1

    @property
    def warps_k(self) -> int:
        """Teams."""
        return self.groups_k

    @property
    def stage_blocks(self) -> int:
        """K of a stage in blocks of 64."""
        return STAGE_BLOCKS

    @property
    def threads(self) -> int:
        """Of a CTA; never more than 1024."""
        return 128 * self.groups_n * self.groups_k

    @property
    def tile_n(self) -> int:
        """Rows of weights of a tile."""
        return 64 * self.groups_n

    @property
    def tile_m(self) -> int:
        """Tokens of a tile."""
        return self.tokens

    @property
    def partial_bytes(self) -> int:
        """One CTA's part of a tile in the workspace."""
        return 4 * self.tile_n * self.tile_m

    def shared_bytes(self, activation_bits: int, output_bits: int, *, experts: bool = False) -> int:
        """Dynamic shared memory without the table of experts; twin of ``Sizes::kSharedBytes``."""
        table = -(-table_bytes(self.tile_m, experts=experts) // _ALIGNMENT) * _ALIGNMENT
        row = 64 * STAGE_BLOCKS * activation_bits // 8
        ring = self.groups_k * self.stages * self.tile_m * row
        teams = self.groups_k * self.partial_bytes if self.groups_k > 1 else 0
        result = self.tile_m * (self.tile_n * output_bits // 8 + 16)
        return table + max(ring, teams, result)
