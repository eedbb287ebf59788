"""What calls of a layer of experts need, compiled and loaded before them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from humming.configs import GemmKind
from humming.engine.expert_calls import SOURCES, ExpertCall
from humming.engine.expert_products import ExpertProducts
from humming.engine.experts import ROW_MASKS, ExpertKernels
from humming.engine.kernel_layer import KernelLayer
from humming.engine.workshop import workshop
from humming.expert_kernels import RowMask
from humming.quantizer import RowSource

__all__ = ["warm_up_experts"]


def warm_up_experts(
    products: ExpertProducts,
    around: ExpertKernels,
    dtype: torch.dtype,
    sizes: Sequence[int],
    per_row: int,
    shared: KernelLayer | None,
) -> None:
    """Compile and load every kernel that calls of some sizes can need.

    Args:
        products: both of them.
        around: the kernels around them.
        dtype: of hidden states.
        sizes: (token, choice) pairs; of masked rows, those of an expert.
        per_row: choices that share a row of hidden states.
        shared: second product of shared experts.

    Raises:
        UnsupportedError, CompileError: as :meth:`KernelLayer.warm_up`.
    """
    up, down = products
    for product, choices in zip(products, (per_row, 1), strict=True):
        product.warm_up(sizes, 1)  # rows that are choices already
        if up.gemm is GemmKind.INDEXED and choices > 1:
            product.warm_up([-(-size // choices) for size in sizes], choices)
    sorts, masked = up.gemm is not GemmKind.INDEXED, up.gemm is GemmKind.GROUPED_MASKED
    specs, settled = [], ExpertCall.serves(products, dtype)
    left_out = {"gate"} if products.activates else set()
    if settled and up.operand.in_one_launch(dtype):
        left_out.add("gather")
        specs += up.operand.quantizer.specs(source=RowSource.MAP) if sorts else []
    if settled and down.operand.in_one_launch(dtype):
        left_out.add("gate")
        masks = (RowMask.COUNTS,) if sorts else ROW_MASKS.values()
        for mask in masks:
            specs += down.operand.quantizer.specs(around.gating, SOURCES[mask])
    if shared is not None:
        specs += shared.operand.quantizer.specs(around.gating)
    workshop().load_all(specs, around.site)
    width = 0 if shared is None else shared.layer.k
    around.warm_up(width, indexed=not sorts, sorts=sorts, masked=masked, without=left_out)
