"""Values that stand for blocks of positions, written out for each position."""

from __future__ import annotations

import torch

__all__ = ["spread"]


def spread(blocks: torch.Tensor, dim: int, size: int, count: int, first: int = 0) -> torch.Tensor:
    """Repeat every value along `dim` over the `size` positions of its block.

    Args:
        blocks: one value per block along `dim`.
        dim: dimension to spread.
        size: positions per block; may be far larger than what is asked for.
        count: how many positions to return.
        first: the first of them, counted from the start of the first block.
    """
    repeated = blocks.repeat_interleave(min(size, first + count), dim=dim)
    return repeated.narrow(dim, first, count)
