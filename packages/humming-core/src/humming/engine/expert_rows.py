"""What a call of a layer of experts is made of: its sizes, rows, and scratch memory."""

from __future__ import annotations

from typing import NamedTuple

import torch

from humming.engine.expert_products import ExpertProducts
from humming.engine.kernel_layer import KernelLayer, Plan
from humming.engine.launches import Given, Part, Value
from humming.expert_kernels import RowMask

__all__ = ["CallSizes", "Counted", "Rows", "scratch_of"]


class CallSizes(NamedTuple):
    """What decides how a call is computed.

    Attributes:
        dtype: of hidden states.
        tokens: M.
        top_k: choices of a token.
        per_row: choices that share a row of activations: `top_k`, or 1.
        ids: dtype of what chooses experts.
        capacity: rows of each expert, where they are masked.
    """

    dtype: torch.dtype
    tokens: int
    top_k: int
    per_row: int
    ids: torch.dtype
    capacity: int = 0

    @property
    def choices(self) -> int:
        """(token, choice) pairs."""
        return self.tokens * self.top_k


class Rows(NamedTuple):
    """What a product reads: numbers or codes, their shape, bytes from one row to the next, and
    scales."""

    x: Given | Part
    shape: tuple[int, ...]
    stride: int
    scales: Part | None = None
    groups: Part | None = None


class Counted(NamedTuple):
    """Which rows between the products count: a table and how to read it."""

    mask: RowMask
    table: Value
    limit: int


def scratch_of(
    products: ExpertProducts, plans: tuple[Plan, Plan], given: int
) -> tuple[list[tuple[KernelLayer, int]], tuple[Given | None, Given | None]]:
    """Products to ask for scratch memory and how much, and which of it each product gets.

    Kernels of one backend leave it as they find it, so both products can have the same.

    Args:
        products: both of them.
        plans: theirs.
        given: what a call gives comes before it.
    """
    (up, down), (first, second) = (
        (plan.nbytes for plan in plans),
        (Given(given), Given(given + 1)),
    )
    if not up:
        return ([(products.down, down)], (None, first)) if down else ([], (None, None))
    if not down:
        return [(products.up, up)], (first, None)
    if products.up.planner.backend.name == products.down.planner.backend.name:
        return [(products.up, max(up, down))], (first, first)
    return [(products.up, up), (products.down, down)], (first, second)
