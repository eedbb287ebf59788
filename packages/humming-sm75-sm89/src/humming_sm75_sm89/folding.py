"""Scales that kernels may multiply into operands, and what becomes of others."""

from __future__ import annotations

import dataclasses

import torch

from humming.configs import LayerConfig
from humming.formats.scheme import Zero
from humming.formats.table import number_format
from humming.formats.tensors import decode
from humming.weight import CanonicalWeight
from humming_sm75_sm89.layout import NORMAL_SCALES, MmaLayout
from humming_sm75_sm89.powers import cleared, row_powers, used_blocks

__all__ = ["LARGEST", "SMALLEST", "can_fold", "with_range"]

# Formats whose scales go into bf16 operands without more than that one rounding.
_FOLDED = ("bf16", "e8m0", "e4m3fn", NORMAL_SCALES)
#: Sizes of scales whose products stay within the range of bf16 on the way; see decode/folding.cuh.
LARGEST, SMALLEST = 2.0**24, 2.0**-64
#: 1 as a code.
_ONES = {"e8m0": 127, "e4m3fn": 0x38}


def can_fold(layer: LayerConfig, layout: MmaLayout) -> bool:
    """Whether scales may be multiplied into operands.

    bf16 has the exponents for it, and one rounding; e4m3fn holds e2m1 times powers of two exactly.
    """
    return (
        (layout.target.name == "bf16" or layout.has_powers)
        and layout.group > 0
        and layout.scale.name in _FOLDED
        and not layer.activation.group_size
        and layer.weight.zero is not Zero.FLOAT
    )


def with_range(
    weight: CanonicalWeight, layer: LayerConfig, layout: MmaLayout
) -> tuple[CanonicalWeight, LayerConfig]:
    """The same weight; with scales of f32, which are not folded, if some are outside of the range.

    Models have none of these: scales beyond 2^24, or below 2^-64 and not 0; NaN or negative ones of
    8 bits; for e4m3fn operands, powers of two of a row that are more than 2^11 apart. Scales of
    blocks of e2m1 without anything but zeros may be any; where one is outside, these become 1.
    Where a scale is 0 that kernels take for something else, codes become 0.
    """
    if weight.scales.is_meta or not (can_fold(layer, layout) or layout.has_powers):
        return weight, layer
    if layout.has_powers:
        if row_powers(weight) is not None:
            return weight, layer
    else:
        outside = _outside(weight, layout)
        if not bool(outside.any()):
            return _without_zeros(weight, layout), layer
        one = _ONES.get(weight.scheme.scale.name)
        if weight.scheme.code.name == "e2m1" and one is not None:
            used = used_blocks(weight)
            if not bool((outside & used).any()):
                scales = weight.scales.masked_fill(~used, one)
                return _without_zeros(weight.replace(scales=scales), layout), layer
    scheme = dataclasses.replace(weight.scheme, scale=number_format("f32"))
    scales = decode(weight.scales, weight.scheme.scale, torch.float32)
    return (
        weight.replace(scheme=scheme, scales=scales),
        dataclasses.replace(layer, weight=scheme),
    )


def _outside(weight: CanonicalWeight, layout: MmaLayout) -> torch.Tensor:
    """Which scales are not folded into bf16."""
    values = decode(weight.scales, weight.scheme.scale, torch.float32)
    sizes = values.abs()
    # Infinity is no smaller than anything. bf16's NaN stays NaN either way.
    outside = (sizes > LARGEST) | ((sizes < SMALLEST) & (sizes > 0))
    if layout.scale.bits == 8:
        outside |= values.isnan() | values.signbit()
    return outside


def _without_zeros(weight: CanonicalWeight, layout: MmaLayout) -> CanonicalWeight:
    """The same weight; codes are 0 where a scale is 0 and kernels take it for something else."""
    zeros = weight.scales == 0
    if layout.scale.name != NORMAL_SCALES or not bool(zeros.any()):
        return weight
    return cleared(weight, zeros)
