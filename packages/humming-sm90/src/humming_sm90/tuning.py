"""How a GEMM kernel with operands in shared memory is cut, and what that needs of an SM."""

from __future__ import annotations

from dataclasses import dataclass

from humming.configs import TuningConfig
from humming.errors import ConfigError
from humming.scheduling import Partition
from humming_sm90.parts import partition_of

__all__ = ["STEP", "WgmmaTuning"]

#: Tokens of a tile: two warpgroups with 64 each, or with all 64 and half of the weights each.
_TOKENS = (64, 128)
#: K of a stage, in elements of 8 bits.
STEP = 128
_TILES_N = (64, 128, 256)
#: The widest chunk whose sums fit into registers beside the totals that they are promoted to.
_MOST_CHUNK = 128
#: Where the CTA that comes last says so to its threads.
_FLAG_BYTES = 16
#: Of a stage: scales of blocks, both barriers, and what is told of a tile that begins there.
_STAGE_BYTES = 16 + 2 * 8 + 16
_WARPS = 8  # that multiply
_MOST_STAGES = 16


@dataclass(frozen=True, kw_only=True)
class WgmmaTuning(TuningConfig):
    """A CTA computes `tokens` tokens by `tile_n` rows of weights at a time.

    Attributes:
        tile_n: rows of weights of a tile: 64, 128 or 256.
        tokens: of a tile: 64 or 128. Fewer leave more shared memory to stages.
        stages: of the ring, each of 128 of K.
        splits: parts of K of a tile, each for another CTA; dense layers only.
        raster: tiles of tokens that are computed with the same weights, one after the other.
    """

    tile_n: int = 256
    tokens: int = 128
    stages: int = 4
    splits: int = 1
    raster: int = 8

    def __post_init__(self) -> None:
        if self.tile_n not in _TILES_N:
            raise ConfigError("tile_n", self.tile_n, "64, 128 or 256")
        if self.tokens not in _TOKENS:
            raise ConfigError("tokens", self.tokens, "64 or 128")
        if not 2 <= self.stages <= _MOST_STAGES:
            raise ConfigError("stages", self.stages, f"2 to {_MOST_STAGES}")
        for name in ("splits", "raster"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "a positive number")

    def __str__(self) -> str:
        parts = f", {self.partition}" * (self.splits > 1)
        shape = f"{self.tokens}x{self.tile_n}, {self.stages} stages of {STEP}"
        return f"{shape}{parts}, bands of {self.raster}"

    @property
    def partition(self) -> Partition:
        """How K is cut among CTAs."""
        return partition_of(self.splits)

    @property
    def chunk_n(self) -> int:
        """Rows of weights of an MMA: no more than have room for sums beside totals."""
        return min(self.tile_n * self.tokens // 128, _MOST_CHUNK)

    @property
    def partial_bytes(self) -> int:
        """One CTA's part of a tile in the workspace."""
        return 4 * self.tokens * self.tile_n

    @property
    def threads(self) -> int:
        """Of a CTA: one warpgroup copies, two multiply."""
        return 3 * 128

    def shared_bytes(self, *, row_groups: bool, scales: bool) -> int:
        """Dynamic shared memory without the table of experts; twin of ``Plan::kSharedBytes``.

        Args:
            row_groups: activations have a scale for each step.
            scales: each row of weights has a scale for each step.
        """
        operands = (self.tokens + self.tile_n) * STEP
        stage = operands + 4 * self.tokens * row_groups + 4 * self.tile_n * scales + _STAGE_BYTES
        rest = _FLAG_BYTES * (self.splits > 1)
        return self.stages * stage + _WARPS * 16 * STEP + rest
