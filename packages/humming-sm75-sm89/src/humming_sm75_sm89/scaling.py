"""Which scale each row and column of a weight has."""

from __future__ import annotations

import torch

from humming.weight import CanonicalWeight

__all__ = ["scale_columns", "scale_rows"]


def scale_rows(weight: CanonicalWeight) -> torch.Tensor | None:
    """int64 [N]: the scale row of each row; None if each row has its own."""
    size = weight.scheme.granularity.n
    if size == 1:
        return None
    rows = torch.arange(weight.n, device=weight.device) + weight.offset[0]
    return rows // size if size else torch.zeros_like(rows)


def scale_columns(weight: CanonicalWeight) -> torch.Tensor:
    """int64 [E, K]: the scale column of each column, of a weight with groups."""
    if weight.group_index is not None:
        return weight.group_index.reshape(-1, weight.k).long()
    size = weight.scheme.granularity.k
    index = (torch.arange(weight.k, device=weight.device) + weight.offset[1]) // size
    return index.expand(max(weight.experts, 1), -1)
