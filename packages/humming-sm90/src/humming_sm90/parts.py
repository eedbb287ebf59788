"""Parts of K of a tile, each for another CTA: how they are written down, and where sums lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from humming.backend import Problem
from humming.configs import LayerConfig
from humming.errors import ConfigError
from humming.scheduling import Partition, Split
from humming_sm75_sm89.tuning import COUNTER_BYTES

__all__ = ["InParts", "partition_of", "parts_workspace"]


class InParts(Protocol):
    """What a tuning says of parts."""

    @property
    def splits(self) -> int:
        """Of a tile."""
        ...

    @property
    def partial_bytes(self) -> int:
        """One CTA's part of a tile in the workspace."""
        ...


def partition_of(splits: int) -> Partition:
    """How K is cut among CTAs."""
    return Partition(split=Split.SPLIT_K, splits=splits) if splits > 1 else Partition()


def parts_workspace(
    tuning: InParts, tiles: Callable[[Problem, LayerConfig], int]
) -> Callable[[Problem, LayerConfig], int]:
    """The workspace of a problem, in bytes: counters of tiles, and sums of all parts.

    Args:
        tuning: of the kernel.
        tiles: the most that a problem can have.
    """

    def nbytes(problem: Problem, layer: LayerConfig) -> int:
        if tuning.splits == 1:
            return 0
        count = tiles(problem, layer)
        if count * 4 > COUNTER_BYTES:
            allowed = f"no parts of K with more than {COUNTER_BYTES // 4} tiles"
            raise ConfigError("tuning", f"{tuning}, with {count} tiles", allowed)
        return COUNTER_BYTES + count * tuning.splits * tuning.partial_bytes

    return nbytes
