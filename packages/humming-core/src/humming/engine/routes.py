"""Rows of activations and their experts, for each kind of GEMM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from humming.backend import Problem
from humming.configs import GemmKind

__all__ = ["ROUTES", "Routed"]


@dataclass(frozen=True)
class Routed:
    """The rows of one call.

    Attributes:
        x: [rows, K].
        problem: its sizes.
        shape: of the result, less N.
        routing: int32: offsets or counts; the ids as they came if indexed.
        experts: int64 [rows], the expert of each row, -1 and the like brought into range.
    """

    x: torch.Tensor
    problem: Problem
    shape: tuple[int, ...]
    routing: torch.Tensor
    experts: Callable[[], torch.Tensor]


def _contiguous(x: torch.Tensor, offsets: torch.Tensor, experts: int) -> Routed:
    rows = x.shape[0]

    def expert_of_row() -> torch.Tensor:
        row = torch.arange(rows, device=x.device, dtype=offsets.dtype)
        found = torch.searchsorted(offsets[1:].contiguous(), row, right=True)
        return found.clamp(max=experts - 1)

    return Routed(x, Problem(m=rows), (rows,), offsets.to(torch.int32).contiguous(), expert_of_row)


def _masked(x: torch.Tensor, counts: torch.Tensor, experts: int) -> Routed:
    blocks, capacity, k = x.shape

    def expert_of_row() -> torch.Tensor:
        numbers = torch.arange(blocks, device=x.device)
        return numbers.unsqueeze(1).expand(blocks, capacity).reshape(-1)

    return Routed(
        x.reshape(-1, k),
        Problem(m=capacity),
        (blocks, capacity),
        counts.to(torch.int32).contiguous(),
        expert_of_row,
    )


def _indexed(x: torch.Tensor, ids: torch.Tensor, experts: int) -> Routed:
    tokens, top_k = ids.shape
    if x.dim() == 3:
        x, per_row = x.flatten(0, 1), 1
    elif experts:  # a row for each choice, since its numbers are its expert's
        x, per_row = x.repeat_interleave(top_k, dim=0), 1
    else:
        per_row = top_k
    return Routed(
        x,
        Problem(m=tokens * top_k, top_k=per_row),
        (tokens, top_k),
        ids.contiguous(),
        lambda: ids.reshape(-1).clamp(0, experts - 1).long(),
    )


#: (activations, routing tensor, number of experts if rows have numbers of theirs, else 0) to rows.
#: Ids of experts that are not here stay for the kernel to skip.
ROUTES: dict[GemmKind, Callable[[torch.Tensor, torch.Tensor, int], Routed]] = {
    GemmKind.GROUPED_CONTIGUOUS: _contiguous,
    GemmKind.GROUPED_MASKED: _masked,
    GemmKind.INDEXED: _indexed,
}
