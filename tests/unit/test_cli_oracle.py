"""humming.testing.oracle against small examples by hand, and against the library's own answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cli_runner import random_weight

from humming.activations import quantize_activation
from humming.formats.activation import ACTIVATION_ALIASES, ActivationScheme
from humming.formats.scheme import WeightScheme
from humming.formats.table import number_format
from humming.packing import pack
from humming.testing.oracle import (
    Deviation,
    deviation,
    expected_activation,
    expected_products,
    expected_weight,
    tolerance,
)
from humming.weight import CanonicalWeight

SCHEMES = (
    "u4+z-g32-f16", "u3-channel-bf16", "u5+zf-g32-f32", "s8-tensor-f32", "s3-g16-f16",
    "e4m3fn-b32x48-f32", "e2m1-g16-e4m3fn-tensor", "e2m1-g32-e8m0", "e3m2-g32-e8m0",
    "u2+zf-g16-f32", "s4-channel-f32-channel", "e0m3-g16-e5m3", "u1-g32-f16", "u7+z-channel-f16",
)  # fmt: skip
PLAIN = ActivationScheme.parse("f32")


def test_a_weight_by_hand() -> None:
    # Two rows of three 4-bit codes, little end first; groups of two inputs.
    weight = CanonicalWeight(
        scheme=WeightScheme.parse("u4+z-g2-f16"),
        n=2,
        k=3,
        packed=torch.tensor([[0x21, 0x03], [0xF0, 0x08]], dtype=torch.uint8),
        scales=torch.tensor([[0.5, 2.0], [1.0, 4.0]], dtype=torch.float16),
        zeros=torch.tensor([[1, 3], [15, 0]], dtype=torch.uint8),
    )
    # (1-1)/2 (2-1)/2 (3-3)*2 ; (0-15) (15-15) (8-0)*4
    assert expected_weight(weight).tolist() == [[0.0, 0.5, 0.0], [-15.0, 0.0, 32.0]]
    x = torch.tensor([[1.0, 2.0, 3.0]])
    biased = weight.replace(bias=torch.tensor([10.0, 20.0]))
    (product,) = expected_products([x], biased, PLAIN)
    assert product.tolist() == [[11.0, 101.0]]


def test_act_order_by_hand() -> None:
    weight = CanonicalWeight(
        scheme=WeightScheme.parse("s8-channel-f32"),
        n=1,
        k=3,
        packed=torch.tensor([[1, 2, 253]], dtype=torch.uint8),
        scales=torch.tensor([[1.0]]),
        permutation=torch.tensor([2, 0, 1], dtype=torch.int32),
    )
    assert expected_weight(weight).tolist() == [[2.0, -3.0, 1.0]]
    (product,) = expected_products([torch.tensor([[1.0, 10.0, 100.0]])], weight, PLAIN)
    assert product.tolist() == [[2.0 - 30.0 + 100.0]]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_oracle_and_dequantize_agree_on_weights(scheme: str) -> None:
    weight = random_weight(scheme, 70, 96)
    # The last bit may differ: dequantize() multiplies by the second scale in another order.
    np.testing.assert_allclose(
        expected_weight(weight), weight.dequantize(torch.float64).numpy(), rtol=1e-15, atol=0
    )


def test_the_oracle_and_dequantize_agree_on_cuts_and_permutations() -> None:
    block = random_weight("fp8-block", 300, 260)
    for cut in (block.rows(70, 201), block.columns(65, 195), block.rows(3, 5).columns(127, 129)):
        assert (expected_weight(cut) == cut.dequantize(torch.float64).numpy()).all()
    group = random_weight("u4+z-g32-f16", 12, 128)
    permutation = torch.randperm(128, generator=torch.Generator().manual_seed(0))
    shuffled = group.replace(permutation=permutation.to(torch.int32))
    for cut in (shuffled, shuffled.columns(40, 104)):
        assert (expected_weight(cut) == cut.dequantize(torch.float64).numpy()).all()


def test_chunks_of_rows_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random_weight("e4m3fn-b32x48-f32", 70, 96, bias=True)
    x = torch.randn(3, 96, generator=torch.Generator().manual_seed(0))
    whole = expected_products([x], weight, PLAIN)[0]
    monkeypatch.setattr("humming.testing.oracle._CHUNK_ELEMENTS", 96 * 7)
    np.testing.assert_allclose(expected_products([x], weight, PLAIN)[0], whole, rtol=1e-12)


def activations() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(9, 100, generator=generator) * torch.exp2(
        torch.randint(-6, 6, (9, 1), generator=generator)
    )
    x[2] = 0
    x[3, 32:64] = 0
    x[4, 7] = 6e4
    x[5] = -0.0
    return x.to(torch.bfloat16)


@pytest.mark.parametrize(
    "text",
    [*ACTIVATION_ALIASES, "e5m2", "e2m1", "e3m4", "s8-g32-bf16", "s8-tensor-f32", "s4-g32-e8m0",
     "s8-tensor-f32-static",
     "e4m3fn-token-f16", "e0m3", "e2m1-g16-e4m3fn-tensor", "e4m3fn-g64-e4m3fn-token"],
)  # fmt: skip
def test_the_oracle_quantizes_activations_as_documented(text: str) -> None:
    scheme = ActivationScheme.parse(text)
    weight = random_weight("fp8-channel", 4, 100)
    if scheme.static:
        weight = weight.replace(input_scale=torch.tensor(0.013))
    x = activations()
    found = expected_activation(x, weight, scheme)
    library = quantize_activation(x, scheme, weight.input_scale).dequantize(torch.float64)
    assert (found == library.numpy()).all()


def test_unquantized_activations_are_rounded_to_their_format() -> None:
    x = torch.tensor([[1.0, 1.00390625, 3.0, 65504.0]])
    weight = random_weight("fp8-channel", 4, 4)
    found = expected_activation(x, weight, ActivationScheme.parse("bf16"))
    assert found.tolist() == [[1.0, 1.0, 3.0, 65536.0]]


def test_a_pre_quant_scale_rounds_in_the_activations_own_format() -> None:
    weight = random_weight("fp8-channel", 4, 100)
    scale = torch.rand(100, generator=torch.Generator().manual_seed(5)) + 0.5
    scaled = weight.replace(pre_quant_scale=scale)
    x = activations()
    found = expected_activation(x, scaled, ActivationScheme.parse("bf16"))
    assert (found == (x * scale.to(torch.bfloat16)).double().numpy()).all()


# -- deviation -------------------------------------------------------------------------------------


def test_deviation_is_relative_to_the_whole_and_to_each_row() -> None:
    expected = np.array([[3.0, 4.0], [30.0, 40.0]])
    found = deviation(torch.tensor([[3.0, 4.5], [30.0, 40.0]]), expected)
    assert found.worst_row == pytest.approx(0.1)
    assert found.whole == pytest.approx(0.5 / np.hypot(5, 50))


def test_a_row_of_zeros_must_be_zero() -> None:
    expected = np.array([[0.0, 0.0], [3.0, 4.0]])
    assert deviation(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), expected) == Deviation(0.0, 0.0)
    assert deviation(torch.tensor([[1e-9, 0.0], [3.0, 4.0]]), expected).worst_row == np.inf


def test_limits_are_inclusive_and_nan_is_never_within() -> None:
    limit = tolerance(number_format("bf16"))
    assert limit == 4e-3
    assert tolerance(number_format("f16")) == 1e-3
    assert tolerance(number_format("f32")) == 1e-5
    assert Deviation(limit, 3 * limit).within(limit)
    assert not Deviation(limit * 1.01, limit).within(limit)
    assert not Deviation(0.0, limit * 3.01).within(limit)
    assert not Deviation(float("nan"), 0.0).within(limit)
    bad = deviation(torch.tensor([[1.0, float("nan")]]), np.array([[1.0, 1.0]]))
    assert not bad.within(limit)


def test_packed_bits_are_read_lowest_first() -> None:
    for bits in range(1, 9):
        codes = (torch.arange(40).reshape(2, 20) * 37 % (1 << bits)).to(torch.uint8)
        scheme = WeightScheme.parse(f"u{bits}+z-channel-f32")
        weight = CanonicalWeight(
            scheme=scheme, n=2, k=20, packed=pack(codes, bits), scales=torch.ones(2, 1),
            zeros=torch.zeros(2, 1, dtype=torch.uint8),
        )  # fmt: skip
        assert (expected_weight(weight) == codes.numpy()).all()
