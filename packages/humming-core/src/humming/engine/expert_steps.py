"""A layer of experts one step after the other, for what :class:`ExpertCall` does not serve."""

from __future__ import annotations

import torch

from humming.configs import GemmKind
from humming.engine.aligning import Alignment
from humming.engine.expert_products import ExpertProducts
from humming.engine.experts import ExpertKernels

__all__ = ["expert_rows"]


def expert_rows(
    products: ExpertProducts,
    around: ExpertKernels,
    x: torch.Tensor,
    ids: torch.Tensor,
    capacity: int,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What experts give, and the row of each choice where rows are in the order of experts.

    Args:
        products: both of them.
        around: the kernels around them.
        x: [M, H], or [M, top_k, H] with a row for each choice.
        ids: int32 or int64 [M, top_k], contiguous; what is no expert is skipped.
        capacity: rows of each expert, if they are masked; else 0.
    """
    if products.up.gemm is not GemmKind.INDEXED:
        blocks = (products.up.layer.experts, capacity) if capacity else (-1,)
        found = around.sort(ids, ids.shape[1] if x.dim() == 2 else 1, capacity)
        rows = around.gather(x.reshape(-1, x.shape[-1]).contiguous(), found)
        rows = products.up.routed(rows.view(*blocks, rows.shape[-1]), found.table, sparse=True)
        if not products.activates:
            rows = rows.view(-1, rows.shape[-1])
            rows = around.gate(rows, count=found.rows, capacity=capacity)
        middle = rows.view(*blocks, rows.shape[-1])
        return products.down.routed(middle, found.table, sparse=True), found.places
    # Both products sort the same choices; they do it once if their tiles are as high.
    alignments: dict[int, Alignment] = {}
    rows = products.up.routed(x, ids, sparse=True, alignments=alignments)
    if not products.activates:
        rows = around.gate(rows.flatten(0, 1), ids, products.down.layer.experts)
    middle = rows.view(*ids.shape, -1)
    return products.down.routed(middle, ids, sparse=True, alignments=alignments), None
