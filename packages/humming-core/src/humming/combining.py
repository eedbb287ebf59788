"""The weighted sum of what a token's experts gave: the exact semantics, in torch, on any device."""

from __future__ import annotations

import torch

__all__ = ["combine"]


def combine(
    rows: torch.Tensor,
    ids: torch.Tensor,
    experts: int,
    weights: torch.Tensor | None = None,
    shared: torch.Tensor | None = None,
) -> torch.Tensor:
    """Add up the choices of each token in float32, first to last, and round once.

    Choices whose id is no expert of this layer (-1, remote) contribute nothing, whatever their rows
    and weights hold. Each product and each sum is rounded by itself, so that the order alone
    decides the bits.

    Args:
        rows: [M, top_k, H], what experts gave.
        ids: [M, top_k].
        experts: how many there are.
        weights: [M, top_k]; None is 1 everywhere.
        shared: [M, H], added last.

    Returns:
        [M, H] in the dtype of `rows`.
    """
    sums = torch.zeros(rows.shape[0], rows.shape[2], dtype=torch.float32, device=rows.device)
    here = (ids >= 0) & (ids < experts)
    for choice in range(rows.shape[1]):
        term = rows[:, choice].to(torch.float32)
        if weights is not None:
            term = weights[:, choice, None].to(torch.float32) * term
        sums = torch.where(here[:, choice, None], sums + term, sums)
    if shared is not None:
        sums = sums + shared.to(torch.float32)
    return sums.to(rows.dtype)
