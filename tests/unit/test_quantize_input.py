"""humming.quantize_input without kernels, and what it refuses anywhere."""

from __future__ import annotations

import pytest
import torch

from humming import ActivationScheme, ConfigError, Gating, quantize_input
from humming.activations import hadamard, quantize_activation

X = torch.randn(6, 64, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("text", ["fp8", "int4", "mxfp4", "s8-tensor-f32", "e2m1-g16-e4m3fn-token"])
def test_it_is_the_reference(text: str) -> None:
    scheme = ActivationScheme.parse(text)
    found, wanted = quantize_input(X, text), quantize_activation(X, scheme)
    assert found.scheme == scheme
    assert torch.equal(found.codes, wanted.codes)
    assert torch.equal(found.scales, wanted.scales)
    assert torch.equal(found.dequantize(), wanted.dequantize())


def test_steps_come_in_order() -> None:
    gating, scheme = Gating.of("swiglu_oai", interleaved=True), ActivationScheme.parse("int8")
    wanted = quantize_activation(hadamard(gating(X), 16), scheme)
    found = quantize_input(X, "int8", gating=gating, hadamard=16)
    assert torch.equal(found.codes, wanted.codes)
    assert found.codes.shape == (6, 32)


def test_rows_that_are_nobodys_are_zeros_whatever_they_hold() -> None:
    x = X.clone()
    x[1] = torch.nan
    found = quantize_input(x, "int8", rows=torch.tensor([0, -1, 6, 5, 0], dtype=torch.int32))
    assert torch.equal(found.codes[[0, 3, 4]], quantize_input(x[[0, 5, 0]], "int8").codes)
    assert not found.codes[1:3].any()
    assert found.dequantize().isfinite().all()
    ids = torch.tensor([0, 9, -1, 1, 2, 2])
    found = quantize_input(x, "int8", expert_ids=ids, experts=2)
    assert found.codes.any(dim=1).tolist() == [True, False, False, True, False, False]
    found = quantize_input(x.view(2, 3, 64), "int8", expert_counts=torch.tensor([1, 7]))
    assert found.codes.any(dim=1).tolist() == [True, False, False, True, True, True]


def test_a_dynamic_scale_of_all_rows_is_that_of_the_chosen_ones() -> None:
    x = X.clone()
    x[2] *= 100
    found = quantize_input(x, "s8-tensor-f32", rows=torch.tensor([0, 1]))
    assert torch.equal(found.scales, quantize_input(x[:2], "s8-tensor-f32").scales)


def test_nothing_is_something() -> None:
    assert quantize_input(X[:0], "int8").codes.shape == (0, 64)
    empty = torch.empty(0, dtype=torch.int32)
    assert quantize_input(X, "int8", rows=empty).codes.shape == (0, 64)
    assert not quantize_input(X[:0], "int8", rows=torch.tensor([0, 1])).codes.any()


@pytest.mark.parametrize(
    ("x", "scheme", "options", "about"),
    [
        (X, "bf16", {}, "scheme"),
        (X, "nonsense", {}, "format"),
        (X.double(), "int8", {}, "x"),
        (X[0], "int8", {}, "x"),
        (X, "int8", {"expert_counts": torch.tensor([1])}, "x"),
        (X[:, :63], "int8", {"gating": "swiglu"}, "x"),
        (X, "int8", {"gating": "nothing"}, "gating"),
        (X, "int8", {"hadamard": 48}, "hadamard"),
        (X[:, :60], "int8", {"hadamard": 32}, "x"),
        (X, "fp8-static", {}, "input_scale"),
        (X, "fp8-static", {"input_scale": torch.ones(2)}, "input_scale"),
        (X, "fp8-static", {"input_scale": torch.ones(1, dtype=torch.int32)}, "input_scale"),
        (X, "int8", {"input_scale": torch.ones(1)}, "input_scale"),
        (X, "int8", {"rows": torch.ones(2)}, "rows"),
        (X, "int8", {"rows": torch.ones(2, 2, dtype=torch.int32)}, "rows"),
        (X, "int8", {"expert_ids": torch.zeros(6, dtype=torch.int64)}, "experts"),
        (X, "int8", {"experts": 3}, "experts"),
        (X, "int8", {"expert_ids": torch.zeros(5, dtype=torch.int64), "experts": 3}, "expert_ids"),
        (
            X.view(2, 3, 64),
            "int8",
            {"expert_counts": torch.tensor([1, 2, 3])},
            "expert_counts",
        ),
        (
            X,
            "int8",
            {"rows": torch.tensor([0]), "expert_ids": torch.zeros(6).int(), "experts": 1},
            "rows",
        ),
        (X, "int8", {"rows": torch.zeros(1, dtype=torch.int32, device="meta")}, "rows"),
        (X, "int8", {"device": "sim:nobody"}, "device"),
    ],
)
def test_what_does_not_fit_is_named(
    x: torch.Tensor, scheme: str, options: dict[str, object], about: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        quantize_input(x, scheme, **options)
    assert caught.value.field == about
