"""Layers whose activations and weights get a Hadamard transform: the product stays what it was."""

from __future__ import annotations

import copy

import pytest
import torch
from moe_cases import Oracle, hidden_of, router

import humming
from humming import ConfigError, QuantLinear, QuantMoE, UnsupportedError
from humming.activations import hadamard, quantize_activation
from humming.formats.activation import ActivationScheme


def outliers(m: int, k: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows with a few numbers that are a hundred times as large as the others."""
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(1))
    x[:, 5::37] *= 100
    return x.to(dtype)


def matrix(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2)) * shape[-1] ** -0.5


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


# -- the text --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("int8-h32", "s8-token-f32-h32"),
        ("s4-h512", "s4-token-f32-h512"),
        ("nvfp4-h16", "e2m1-g16-e4m3fn-tensor-static-h16"),
        ("e4m3fn-g128-f32-h128", "e4m3fn-g128-f32-h128"),
    ],
)
def test_the_text_of_a_scheme_ends_in_its_block(text: str, spelled: str) -> None:
    scheme = ActivationScheme.parse(text)
    assert str(scheme) == spelled
    assert ActivationScheme.parse(spelled) == scheme
    assert scheme.hadamard == int(spelled.rpartition("h")[2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int8-h24", "hadamard=24: expected a power of two from 2 to 512"),
        ("int8-h1024", "hadamard=1024"),
        ("int8-h1", "hadamard=1:"),
        ("bf16-h32", "a granularity and a scale format"),
        ("int8-h0", "activation"),
    ],
)
def test_other_blocks_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ActivationScheme.parse(text)


# -- layers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "activation"),
    [
        ("s8-channel-f32", "s8-token-f32"),
        ("s8-channel-f32", "s8-g32-f32"),
        ("e4m3fn-channel-f32", "e4m3fn-token-f32"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_product_is_that_of_both_transformed(
    scheme: str, activation: str, dtype: torch.dtype
) -> None:
    x, dense = outliers(7, 256, dtype), matrix(48, 256)
    layer = QuantLinear.from_float(dense, scheme, activation=f"{activation}-h64")
    rows = quantize_activation(hadamard(x, 64), ActivationScheme.parse(activation))
    inside = rows.dequantize(torch.float64) @ layer.weight.dequantize(torch.float64).T
    assert error(layer(x), inside) < (1e-6 if dtype is torch.float32 else 5e-3)
    assert error(layer(x), x.double() @ dense.double().T) < 0.05


def test_outliers_cost_less_than_without() -> None:
    """In four bits, of a number that matters to no output: all others are rounded to nothing."""
    x, dense = torch.randn(64, 128, generator=torch.Generator().manual_seed(3)), matrix(96, 128)
    x[:, 5], dense[:, 5] = 20.0, 0.0
    errors = []
    for text, rows in (("int4", x), ("int4-h128", hadamard(x, 128))):
        layer = QuantLinear.from_float(dense, "u4-g32-f16", activation=text)
        exact = rows.double() @ layer.weight.dequantize(torch.float64).T  # as it is stored
        errors.append(error(layer(x), exact))
    assert errors[1] < errors[0] / 2


def test_a_weight_that_was_transformed_before_is_the_same() -> None:
    x, dense = outliers(3, 128), matrix(40, 128)
    weight = humming.quantize(dense, "u4-g32-f16", hadamard=32)
    layers = (
        QuantLinear(weight, activation="int8-h32"),
        QuantLinear.from_float(dense, "u4-g32-f16", activation="int8-h32"),
    )
    first, second = (layer(x) for layer in layers)
    assert torch.equal(first, second)
    assert torch.equal(weight.packed, humming.quantize(hadamard(dense, 32), "u4-g32-f16").packed)


def test_experts_get_it_before_both_products() -> None:
    dense = [matrix(4, 2 * 64, 128), matrix(4, 128, 64)]
    x, (ids, weights) = hidden_of(9, 128, torch.float32), router(9, 2, 4)
    pair = [humming.quantize(values, "s8-channel-f32", hadamard=32) for values in dense]
    plain = [humming.quantize(values, "s8-channel-f32") for values in dense]
    layer = QuantMoE(*pair, activation="int8-h32")
    wanted = Oracle(*plain)(x, ids, weights)
    assert error(layer(x, ids, weights), wanted) < 0.03
    assert error(QuantMoE(*pair, activation="int8")(x, ids, weights), wanted) > 0.5
    assert torch.equal(copy.deepcopy(layer)(x, ids, weights), layer(x, ids, weights))


# -- what can't be ---------------------------------------------------------------------------------


def test_rows_that_are_no_whole_blocks_are_refused() -> None:
    weight = humming.quantize(matrix(16, 96), "s8-channel-f32")
    with pytest.raises(ConfigError, match="blocks of which k=96 is a multiple"):
        QuantLinear(weight, activation="int8-h64")(torch.zeros(1, 96))


def test_nothing_unquantized_stands_in_for_it() -> None:
    """A T4 has no FP8, and f16 rows that are not transformed would meet weights that are."""
    weight = humming.quantize(matrix(16, 64), "u4-g32-f16", hadamard=32)
    options = {"profile": "nvidia-t4", "backend": "reference", "allow_fallback": True}
    x = torch.zeros(1, 64, dtype=torch.float16)
    assert QuantLinear(weight, activation="fp8", **options)(x).shape == (1, 16)
    with pytest.raises(UnsupportedError, match="no wider type would work"):
        QuantLinear(weight, activation="fp8-h32", **options)(x)


def test_it_is_not_applied_twice() -> None:
    x = outliers(2, 64)
    once = humming.quantize_input(x, "int8-h32")
    assert torch.equal(once.codes, humming.quantize_input(x, "int8", hadamard=32).codes)
    with pytest.raises(ConfigError, match="none beside that of s8-token-f32-h32"):
        humming.quantize_input(x, "int8-h32", hadamard=32)
