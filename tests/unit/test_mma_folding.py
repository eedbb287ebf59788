"""Scales that an operand format can't take become f32, which is not folded; all others stay."""

from __future__ import annotations

from dataclasses import replace

import core_oracle as oracle
import pytest
import torch

import humming
from humming.backend import PackedWeight
from humming.configs import LayerConfig
from humming.errors import ConfigError
from humming.formats.scheme import Second
from humming.formats.tensors import decode, encode
from humming.plugins import load
from humming_sm75_sm89.folding import LARGEST, SMALLEST, can_fold
from humming_sm75_sm89.layout import MmaLayout, layout_of
from humming_sm75_sm89.order import fitted
from humming_sm75_sm89.packing import pack_weight
from humming_sm75_sm89.powers import LARGEST_POWER, SMALLEST_POWER
from humming_sm75_sm89.unpacking import dequantize

PROFILE = load().profiles["nvidia-a100"]


def layer_of(weight: humming.CanonicalWeight, activation: str = "bf16") -> LayerConfig:
    return LayerConfig(
        n=weight.n,
        k=weight.k,
        experts=weight.experts,
        weight=weight.scheme,
        activation=humming.ActivationScheme.parse(activation),
        output=humming.number_format("bf16"),
    )


def weight_and_layer(scheme: str, scale: float) -> tuple[humming.CanonicalWeight, LayerConfig]:
    """A weight in which one scale is another."""
    weight = humming.quantize(torch.randn(64, 256), scheme)
    scales = weight.scales.clone()
    if weight.scheme.scale.bits == 8:
        scales[3, 1] = int(encode(torch.tensor(scale), weight.scheme.scale))
    else:
        scales[3, 1] = scale
    return weight.replace(scales=scales), layer_of(weight)


POSITIVE = [
    (LARGEST, True),
    (2 * LARGEST, False),
    (SMALLEST, True),
    (SMALLEST / 2, False),
]
#: e8m0 has none of these.
OTHERS = [(-LARGEST, True), (-2 * LARGEST, False), (0.0, True), (torch.nan, True)]
CASES = [("e2m1-g32-e8m0", *case) for case in [*POSITIVE, (torch.nan, False)]]
CASES += [("e2m1-g16-e4m3fn", *case) for case in [(448.0, True), (2.0**-9, True)]]
CASES += [("e2m1-g16-e4m3fn", *case) for case in [(-0.5, False), (torch.nan, False)]]
CASES += [("u4-g64-e4m3fn", 0.0, True)]
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
    assert torch.equal(fit.scales.double().nan_to_num(), before.nan_to_num())
    wanted = weight.dequantize(torch.float64)
    assert torch.equal(fit.dequantize(torch.float64).nan_to_num(), wanted.nan_to_num())


def test_other_operands_and_scales_are_left_alone() -> None:
    weight, layer = weight_and_layer("u4-g64-bf16", 2 * LARGEST)
    for activation in ("f16", "s8-token-f32"):
        other = replace(layer, activation=humming.ActivationScheme.parse(activation))
        assert fitted(weight, other, PROFILE) == (weight, other)


@pytest.mark.parametrize(
    ("scheme", "scale", "one"),
    [("e2m1-g32-e8m0", SMALLEST / 2, 127), ("e2m1-g16-e4m3fn", -1.0, 0x38)],
)
def test_blocks_of_zeros_may_have_any_scale(scheme: str, scale: float, one: int) -> None:
    weight, layer = weight_and_layer(scheme, scale)
    group = weight.scheme.granularity.k
    packed = weight.packed.clone()
    packed[3, group // 2 : group] = 0x80  # +0 and -0
    weight = weight.replace(packed=packed)
    fit, fit_layer = fitted(weight, layer, PROFILE)
    assert fit_layer == layer
    assert int(fit.scales[3, 1]) == one
    assert torch.equal(fit.dequantize(torch.float64), weight.dequantize(torch.float64))


@pytest.mark.parametrize("experts", [0, 2])
@pytest.mark.parametrize("scheme", ["e2m1-g16-e4m3fn", "e2m1-b16x32-e4m3fn"])
def test_codes_are_zero_where_a_scale_is(scheme: str, experts: int) -> None:
    weight = humming.quantize(torch.randn(*([experts] if experts else []), 64, 256), scheme)
    scales = weight.scales.clone()
    scales[..., 1, 2:4] = 0
    weight = weight.replace(scales=scales)
    fit, layer = fitted(weight, layer_of(weight), PROFILE)
    assert fit.scheme == weight.scheme
    assert torch.equal(fit.scales, scales)
    assert torch.equal(fit.dequantize(torch.float64), weight.dequantize(torch.float64))
    codes, before = fit.codes(), weight.codes()
    group = weight.scheme.granularity
    rows = slice(16, 32) if group.is_block else slice(1, 2)
    columns = slice(2 * group.k, 4 * group.k)
    assert not codes[..., rows, columns].any()
    before[..., rows, columns] = 0
    assert torch.equal(codes, before)
    assert can_fold(layer, layout_of(layer, PROFILE))


@pytest.mark.parametrize("scheme", ["e2m1-g16-e4m3fn-tensor", "e2m1-g32-e4m3fn"])
def test_positive_scales_of_fp4_are_normal_numbers_of_a_format_with_more_exponents(
    scheme: str,
) -> None:
    weight = humming.quantize(torch.randn(64, 256), scheme)
    codes = torch.arange(1, 0x7F, dtype=torch.uint8).repeat(9)  # all finite ones
    scales = codes[: weight.scales.numel()].view(weight.scales.shape)
    weight = weight.replace(scales=scales)
    fit, layer = fitted(weight, layer_of(weight), PROFILE)
    layout = layout_of(layer, PROFILE)
    assert fit is weight
    assert layout.scale.name == "e5m3"
    packed = pack_weight(fit, layer, layout)
    assert "-e5m3" in packed.layout
    assert int(packed.tensors["scales"].min()) >= 1 << 3
    assert torch.equal(dequantize(packed, layout), weight.dequantize(torch.float64))
    for activation in ("f16", "s8-token-f32"):
        assert layout_of(layer_of(weight, activation), PROFILE).scale.name == "e4m3fn"


# ------------------------------------------------------------------- powers of two for e4m3fn

ADA = load().profiles["family-sm89"]


def exponents_weight(
    *shape: int, scheme: str = "e2m1-g32-e8m0", **changes: torch.Tensor
) -> humming.CanonicalWeight:
    """Random codes; in each row scales that are up to 2^11 apart, anywhere."""
    torch.manual_seed(7)
    weight = humming.quantize(torch.randn(*shape), scheme)
    rows = torch.randint(1, 243, (*weight.scales.shape[:-1], 1))
    scales = (rows + torch.randint(0, 12, weight.scales.shape)).to(torch.uint8)
    scales[..., 0] = rows[..., 0]
    scales[..., -1] = rows[..., 0] + 11
    return weight.replace(scales=scales, **changes)


def packed_case(weight: humming.CanonicalWeight) -> tuple[PackedWeight, MmaLayout, LayerConfig]:
    fit, layer = fitted(weight, layer_of(weight, "e4m3fn-token-f32"), ADA)
    layout = layout_of(layer, ADA)
    return pack_weight(fit, layer, layout), layout, layer


@pytest.mark.parametrize("experts", [0, 2])
@pytest.mark.parametrize("scheme", ["e2m1-g32-e8m0", "e2m1-g32-e8m0-tensor", "e2m1-b16x32-e8m0"])
def test_a_row_is_divided_by_a_power_of_two(scheme: str, experts: int) -> None:
    shape = (experts, 70, 300) if experts else (70, 300)
    weight = exponents_weight(*shape, scheme=scheme)
    packed, layout, layer = packed_case(weight)
    assert layer.weight == weight.scheme
    assert layout.has_powers
    assert can_fold(layer, layout)
    assert "-powers" in packed.layout
    exponents = packed.tensors["scales"].int() - 127
    padding = packed.tensors["scales"] == 0
    assert bool(((exponents >= SMALLEST_POWER) & (exponents <= LARGEST_POWER) | padding).all())
    assert torch.equal(dequantize(packed, layout), weight.dequantize(torch.float64))


def test_powers_that_need_no_division_are_left_alone() -> None:
    weight = humming.quantize(torch.randn(64, 128), "e2m1-g32-e8m0")
    packed, layout, _ = packed_case(weight)
    assert bool((packed.tensors["channel"] == 1).all())
    assert torch.equal(dequantize(packed, layout), weight.dequantize(torch.float64))


def test_powers_of_a_shard_under_act_order() -> None:
    weight = oracle.random_weight("e2m1-g32-e8m0", 40, 256, act_order=True).columns(0, 128)
    torch.manual_seed(8)
    scales = torch.randint(100, 112, weight.scales.shape, dtype=torch.uint8)
    weight = weight.replace(scales=scales)
    packed, layout, _ = packed_case(weight)
    assert layout.has_powers
    assert layout.has_order
    assert torch.equal(dequantize(packed, layout), weight.dequantize(torch.float64))


def spoiled(how: str) -> humming.CanonicalWeight:
    weight = exponents_weight(64, 128)
    scales = weight.scales.clone()
    if how == "12 apart":
        scales[5] = torch.tensor([100, 112, 105, 104])
    elif how == "nan":
        scales[5, 1] = 255
    else:
        scheme = replace(weight.scheme, second=Second.TENSOR)
        weight = weight.replace(scheme=scheme, second=torch.full((1, 1), 1e-44))
        scales[5] = 20
    return weight.replace(scales=scales)


@pytest.mark.parametrize("how", ["12 apart", "nan", "no room"])
def test_powers_too_far_apart_are_not_folded(how: str) -> None:
    weight = spoiled(how)
    packed, layout, layer = packed_case(weight)
    assert layer.weight == replace(weight.scheme, scale=humming.number_format("f32"))
    assert not layout.has_powers
    assert not can_fold(layer, layout)
    found, wanted = dequantize(packed, layout), weight.dequantize(torch.float64)
    assert torch.equal(found.nan_to_num(), wanted.nan_to_num())
    unfitted = layer_of(weight, "e4m3fn-token-f32")
    with pytest.raises(ConfigError, match="far apart"):
        pack_weight(weight, unfitted, layout_of(unfitted, ADA))


def test_blocks_of_zeros_do_not_count() -> None:
    weight = spoiled("12 apart")
    packed = weight.packed.clone()
    packed[5, :16] = 0x08
    weight = weight.replace(packed=packed)
    found, layout, _ = packed_case(weight)
    assert layout.has_powers
    assert torch.equal(dequantize(found, layout), weight.dequantize(torch.float64))


@pytest.mark.parametrize(
    ("scheme", "activation"),
    [("e2m1-g32-e8m0", "e5m2-token-f32"), ("e2m1-g32-f32", "e4m3fn-token-f32"),
     ("e2m1-channel-e8m0", "e4m3fn-token-f32"), ("u4-g32-e8m0", "e4m3fn-token-f32")],
)  # fmt: skip
def test_others_have_no_powers(scheme: str, activation: str) -> None:
    layer = layer_of(humming.quantize(torch.randn(64, 128), scheme), activation)
    layout = layout_of(layer, ADA)
    assert not layout.has_powers
    assert not can_fold(layer, layout)
