"""How a GEMM kernel is cut into warps, teams and CTAs, and what that needs of an SM."""

from __future__ import annotations

from dataclasses import dataclass

from humming.configs import TuningConfig
from humming.errors import ConfigError
from humming.scheduling import Partition, Split

__all__ = ["COUNTER_BYTES", "MmaTuning", "table_bytes"]

#: Where partials begin in a workspace; counters of the tiles that CTAs share lie before.
COUNTER_BYTES = 64 * 1024
_MOST_THREADS = 1024
_MOST_BARRIERS = 15


def table_bytes(tile_m: int, *, experts: bool) -> int:
    """Shared memory of what is known of tiles; twin of ``Sizes::kTableBytes``."""
    return 16 + (2 * (48 + 8 * tile_m) if experts else 8 * tile_m)


@dataclass(frozen=True, kw_only=True)
class MmaTuning(TuningConfig):
    """A warp multiplies 64 rows of weights by `tokens` tokens.

    Attributes:
        warps_n: warps of a CTA along the rows of weights.
        warps_m: along the tokens.
        warps_k: teams, which take turns in K; a team is warps_n * warps_m warps.
        tokens: of a warp: 8, 16, 32 or 64.
        stages: of a team's ring of activations; 2 where there is no cp.async.
        stage_blocks: K of a stage in blocks of 64: 1 or 2. Fewer make more room, more need fewer
            barriers.
        ctas: that an SM shall have room for, as far as registers go.
        folds: scales are multiplied into bf16 operands, at the price of one rounding to bf16, and
            not into f32 sums of a group.
        splits: parts of K of a tile, each for another CTA.
        min_run: stream-K with at least so many steps of K in a run, where it is not 0.
        raster: tiles across a band.
    """

    warps_n: int = 1
    warps_m: int = 1
    warps_k: int = 4
    tokens: int = 8
    stages: int = 3
    stage_blocks: int = 2
    ctas: int = 1
    folds: bool = False
    splits: int = 1
    min_run: int = 0
    raster: int = 8

    def __post_init__(self) -> None:
        for name in ("warps_n", "warps_m", "warps_k", "ctas", "raster"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "a positive number")
        if self.tokens not in (8, 16, 32, 64):
            raise ConfigError("tokens", self.tokens, "8, 16, 32 or 64")
        if self.stage_blocks not in (1, 2):
            raise ConfigError("stage_blocks", self.stage_blocks, "1 or 2")
        if self.splits < 1 or self.min_run < 0 or (self.splits > 1 and self.min_run):
            found = f"{self.splits} splits, runs of {self.min_run}"
            raise ConfigError("splits", found, "a positive number, and no runs with more than 1")
        if self.stages < 2:
            raise ConfigError("stages", self.stages, "at least 2")
        if self.threads > _MOST_THREADS:
            raise ConfigError("warps", self.threads // 32, f"{_MOST_THREADS // 32} in all at most")
        if self.team_warps > 1 and self.warps_k > _MOST_BARRIERS:
            raise ConfigError("warps_k", self.warps_k, f"{_MOST_BARRIERS} teams of several warps")

    def __str__(self) -> str:
        shape = f"{self.warps_n}x{self.warps_m}x{self.warps_k} warps of 64x{self.tokens}"
        stages = f"{self.stages} stages of {64 * self.stage_blocks}"
        where = f"{stages}, {self.ctas} per SM, {self.partition}"
        return f"{shape}, {where}{', folded' * self.folds}"

    @property
    def partition(self) -> Partition:
        """How K is cut among CTAs."""
        if self.min_run:
            return Partition(split=Split.STREAM_K, min_run=self.min_run)
        if self.splits > 1:
            return Partition(split=Split.SPLIT_K, splits=self.splits)
        return Partition()

    @property
    def team_warps(self) -> int:
        """Warps of a team."""
        return self.warps_n * self.warps_m

    @property
    def threads(self) -> int:
        """Of a CTA."""
        return 32 * self.team_warps * self.warps_k

    @property
    def tile_n(self) -> int:
        """Rows of weights of a tile."""
        return 64 * self.warps_n

    @property
    def tile_m(self) -> int:
        """Tokens of a tile."""
        return self.tokens * self.warps_m

    @property
    def partial_bytes(self) -> int:
        """One CTA's part of a tile in the workspace."""
        return 4 * self.tile_n * self.tile_m

    def shared_bytes(self, activation_bits: int, output_bits: int, *, experts: bool = False) -> int:
        """Dynamic shared memory without the table of experts; twin of ``Sizes::kSharedBytes``."""
        table = -(-table_bytes(self.tile_m, experts=experts) // 128) * 128
        ring = (
            self.warps_k
            * self.stages
            * self.tile_m
            * (64 * self.stage_blocks * activation_bits // 8)
        )
        teams = self.warps_k * self.partial_bytes if self.warps_k > 1 else 0
        result = self.tile_m * (self.tile_n * output_bits // 8 + 16)
        return table + max(ring, teams, result)
