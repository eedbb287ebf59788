"""Scales that kernels may multiply into operands, and what becomes of others."""

from __future__ import annotations

import dataclasses

import torch

from humming.configs import LayerConfig
from humming.formats.scheme import Zero
from humming.formats.table import number_format
from humming.formats.tensors import decode
from humming.weight import CanonicalWeight
from humming_sm75_sm89.layout import MmaLayout

__all__ = ["LARGEST", "SMALLEST", "can_fold", "with_range"]

# Formats whose scales go into bf16 operands without more than that one rounding.
_FOLDED = ("bf16", "e8m0", "e4m3fn")
#: Sizes of scales whose products stay within the range of bf16 on the way; see decode/folding.cuh.
LARGEST, SMALLEST = 2.0**24, 2.0**-64


def can_fold(layer: LayerConfig, layout: MmaLayout) -> bool:
    """Whether scales may be multiplied into operands: bf16 has the exponents for it."""
    return (
        layout.target.name == "bf16"
        and layout.group > 0
        and layout.scale.name in _FOLDED
        and not layer.activation.group_size
        and layer.weight.zero is not Zero.FLOAT
    )


def with_range(
    weight: CanonicalWeight, layer: LayerConfig, layout: MmaLayout
) -> tuple[CanonicalWeight, LayerConfig]:
    """The same weight; with scales of f32, which are not folded, if some are outside of the range.

    Models have none of these: scales beyond 2^24, or below 2^-64 and not 0.
    """
    if not can_fold(layer, layout) or layout.scale.name == "e4m3fn" or weight.scales.is_meta:
        return weight, layer
    scales = decode(weight.scales, layout.scale, torch.float32)
    sizes = scales.abs()
    # Infinity is no smaller than anything; NaN stays NaN either way.
    is_outside = (sizes > LARGEST) | ((sizes < SMALLEST) & (sizes > 0))
    if not bool(is_outside.any()):
        return weight, layer
    scheme = dataclasses.replace(weight.scheme, scale=number_format("f32"))
    return (
        weight.replace(scheme=scheme, scales=scales),
        dataclasses.replace(layer, weight=scheme),
    )
