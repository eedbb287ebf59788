"""How a GEMM kernel with operands in shared memory is cut, and what that needs of an SM."""

from __future__ import annotations

from dataclasses import dataclass

from humming.configs import TuningConfig
from humming.errors import ConfigError

__all__ = ["STEP", "TILE_M", "WgmmaTuning"]

#: Tokens of a tile: two warpgroups of 64.
TILE_M = 128
#: K of a stage, in elements of 8 bits.
STEP = 128
_TILES_N = (64, 128, 256)
_WARPS = 8  # that multiply
_MOST_STAGES = 16


@dataclass(frozen=True, kw_only=True)
class WgmmaTuning(TuningConfig):
    """A CTA computes 128 tokens by `tile_n` rows of weights at a time.

    Attributes:
        tile_n: rows of weights of a tile: 64, 128 or 256.
        stages: of the ring, each of 128 of K.
        raster: tiles of tokens that are computed with the same weights, one after the other.
    """

    tile_n: int = 256
    stages: int = 4
    raster: int = 8

    def __post_init__(self) -> None:
        if self.tile_n not in _TILES_N:
            raise ConfigError("tile_n", self.tile_n, "64, 128 or 256")
        if not 2 <= self.stages <= _MOST_STAGES:
            raise ConfigError("stages", self.stages, f"2 to {_MOST_STAGES}")
        if self.raster < 1:
            raise ConfigError("raster", self.raster, "a positive number")

    def __str__(self) -> str:
        return f"{TILE_M}x{self.tile_n}, {self.stages} stages of {STEP}, bands of {self.raster}"

    @property
    def threads(self) -> int:
        """Of a CTA: one warpgroup copies, two multiply."""
        return 3 * 128

    def shared_bytes(self, *, row_groups: bool, scales: bool, indexed: bool = False) -> int:
        """Dynamic shared memory without the table of experts; twin of ``Plan::kSharedBytes``.

        Args:
            row_groups: activations have a scale for each step.
            scales: each row of weights has a scale for each step.
            indexed: rows of activations are chosen by index.
        """
        operands = (TILE_M + self.tile_n) * STEP
        stage = operands + 4 * TILE_M * row_groups + 4 * self.tile_n * scales + 16 + 2 * 8
        return self.stages * stage + _WARPS * 16 * STEP + 4 * TILE_M * indexed
