"""Scales that would leave bf16 on the way become f32, which is not folded; all others stay."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import humming
from humming.configs import LayerConfig
from humming.formats.tensors import decode
from humming.plugins import load
from humming_sm75_sm89.folding import LARGEST, SMALLEST, can_fold
from humming_sm75_sm89.layout import layout_of
from humming_sm75_sm89.order import fitted

PROFILE = load().profiles["nvidia-a100"]


def weight_and_layer(scheme: str, scale: float) -> tuple[humming.CanonicalWeight, LayerConfig]:
    """A weight in which one scale is another."""
    weight = humming.quantize(torch.randn(64, 256), scheme)
    scales = weight.scales.clone()
    is_exponent = scales.dtype == torch.uint8
    scales[3, 1] = int(torch.tensor(scale).log2()) + 127 if is_exponent else scale
    layer = LayerConfig(
        n=64,
        k=256,
        weight=weight.scheme,
        activation=humming.ActivationScheme.parse("bf16"),
        output=humming.number_format("bf16"),
    )
    return weight.replace(scales=scales), layer


POSITIVE = [
    (LARGEST, True),
    (2 * LARGEST, False),
    (SMALLEST, True),
    (SMALLEST / 2, False),
]
#: e8m0 has none of these.
OTHERS = [(-LARGEST, True), (-2 * LARGEST, False), (0.0, True), (torch.nan, True)]
CASES = [("e2m1-g32-e8m0", *case) for case in POSITIVE]
CASES += [(s, *case) for s in ("u4-g64-bf16", "u4+z-g64-bf16") for case in POSITIVE + OTHERS]


@pytest.mark.parametrize(("scheme", "scale", "is_folded"), CASES)
def test_scales_out_of_range_are_not_folded(scheme: str, scale: float, is_folded: bool) -> None:
    weight, layer = weight_and_layer(scheme, scale)
    fit, fit_layer = fitted(weight, layer, PROFILE)
    assert can_fold(fit_layer, layout_of(fit_layer, PROFILE)) == is_folded
    if is_folded:
        assert fit is weight
        assert fit_layer == layer
        return
    assert fit_layer == replace(layer, weight=fit.scheme)
    assert fit.scheme.scale is not None
    assert fit.scheme.scale.name == "f32"
    before = decode(weight.scales, weight.scheme.scale, torch.float64)
    assert torch.equal(fit.scales.double(), before)
    wanted = weight.dequantize(torch.float64)
    assert torch.equal(fit.dequantize(torch.float64).nan_to_num(), wanted.nan_to_num())


def test_other_operands_and_scales_are_left_alone() -> None:
    weight, layer = weight_and_layer("u4-g64-bf16", 2 * LARGEST)
    for activation in ("f16", "s8-token-f32"):
        other = replace(layer, activation=humming.ActivationScheme.parse(activation))
        assert fitted(weight, other, PROFILE) == (weight, other)
