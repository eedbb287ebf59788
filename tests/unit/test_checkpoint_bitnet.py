"""BitNet checkpoints: files of transformers, and layers packed from the description."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from memory_checkpoint import FIXTURES, fixture_expected, fixture_loader, memory_loader

from humming.checkpoints.bitnet import BitnetLoader
from humming.errors import CheckpointError

CASES = sorted(path.parent.name for path in FIXTURES.glob("bitnet/*/config.json"))


def layer(n: int = 8, k: int = 5, scale: float = 0.75) -> tuple[dict[str, torch.Tensor], Any]:
    """Packed tensors of a random ternary layer, and the ternary matrix."""
    ternary = np.random.default_rng(n).integers(-1, 2, (n, k))
    stored = np.zeros((n // 4, k), dtype=np.uint8)
    for row in range(n):
        for column in range(k):
            part, place = divmod(row, n // 4)
            stored[place, column] |= (ternary[row, column] + 1) << (2 * part)
    tensors = {
        "layer.weight": torch.from_numpy(stored),
        "layer.weight_scale": torch.tensor([scale], dtype=torch.bfloat16),
    }
    return tensors, ternary


def loader_of(tensors: dict[str, torch.Tensor], **config: Any) -> BitnetLoader:
    return memory_loader(BitnetLoader, tensors, {"quant_method": "bitnet", **config})


@pytest.mark.parametrize("case", CASES)
def test_multiplies_as_transformers_does(case: str) -> None:
    loader = fixture_loader(BitnetLoader, f"bitnet/{case}")
    expected = fixture_expected(f"bitnet/{case}")
    (plan,) = loader.plan()
    weight = loader.load(plan)
    assert str(plan.scheme) == "s2-tensor-f32"
    ternary = weight.replace(scales=torch.ones(1, 1), bias=None).dequantize()
    assert torch.equal(ternary, expected["ternary"].float())
    # transformers' activations: 127 steps of the largest of each row, partly in float32.
    assert str(plan.activation) == str(weight.activation) == "s8-token-f32"
    x = expected["input"]
    steps = 127 / x.abs().amax(dim=1, keepdim=True)
    assert weight.bias is not None
    output = ((x * steps).round() / steps) @ weight.dequantize(torch.float64).T
    torch.testing.assert_close(
        output + weight.bias.double(), expected["output"], rtol=1e-5, atol=1e-6
    )


def test_there_are_fixtures_of_both_classes() -> None:
    assert CASES == ["autobitlinear", "bitlinear"]


def test_the_golden_bytes_hold_rows_a_quarter_apart() -> None:
    tensors = {
        "layer.weight": torch.tensor([[0x18], [0x61]], dtype=torch.uint8),
        "layer.weight_scale": torch.ones(1),
    }
    loader = loader_of(tensors)
    weight = loader.load(loader.plan()[0])
    assert weight.dequantize().flatten().tolist() == [-1, 0, 1, -1, 0, 1, -1, 0]


@pytest.mark.parametrize(
    ("kind", "factor"), [("bitlinear", 1 / 0.6875), ("autobitlinear", 0.6875), (None, 1 / 0.6875)]
)
def test_the_scale_divides_or_multiplies_by_class(kind: str | None, factor: float) -> None:
    tensors, ternary = layer(24, 7, 0.6875)
    loader = loader_of(tensors, linear_class=kind, quantization_mode="offline")
    weight = loader.load(loader.plan()[0])
    assert float(weight.scales) == np.float32(factor)
    expected = torch.from_numpy(ternary * float(np.float32(factor)))
    assert torch.equal(weight.dequantize(torch.float64), expected)


def test_planning_reads_nothing() -> None:
    loader = loader_of(layer()[0])
    (plan,) = loader.plan()
    assert (plan.n, plan.k, plan.bias) == (8, 5, False)
    assert set(plan.tensors) == {"layer.weight", "layer.weight_scale"}
    assert loader.store.read == []  # type: ignore[attr-defined]


def test_online_files_hold_float_weights_only() -> None:
    online = {"linear_class": "autobitlinear", "quantization_mode": "online"}
    assert loader_of({"layer.weight": torch.zeros(4, 4)}, **online).plan() == []
    with pytest.raises(CheckpointError, match=r"layer.weight.*mode is online, but .* packed"):
        loader_of(layer()[0], **online).plan()


def test_an_excluded_layer_that_is_packed_is_refused() -> None:
    plain = {**layer()[0], "lm_head.weight": torch.zeros(4, 4)}
    assert len(loader_of(plain, modules_to_not_convert=["lm_head"]).plan()) == 1
    with pytest.raises(CheckpointError, match=r"layer.weight.*modules_to_not_convert has 'layer'"):
        loader_of(plain, modules_to_not_convert=["layer"]).plan()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"linear_class": "linear"}, "linear_class='linear', expected bitlinear or autobitlinear"),
        ({"quantization_mode": "later"}, "quantization_mode='later', expected offline or online"),
        ({"use_rms_norm": True}, "use_rms_norm=True is not supported"),
        ({"modules_to_not_convert": {}}, "modules_to_not_convert={}, expected list"),
    ],
)
def test_a_setting_that_is_not_understood_is_refused(config: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        loader_of(layer()[0], **config).plan()


@pytest.mark.parametrize(
    ("tensor", "replacement", "message"),
    [
        ("weight_scale", None, "layer.weight_scale.*missing"),
        ("weight_scale", torch.ones(2), r"layer.weight_scale.*expected \[1\]"),
        ("weight_scale", torch.ones(1, dtype=torch.int32), "expected F16 or BF16 or F32"),
        ("weight", torch.zeros(8, dtype=torch.uint8), "layer.weight.*expected 2 dimensions"),
        ("bias", torch.ones(7), r"layer.bias.*expected \[8\]"),
    ],
)
def test_a_tensor_of_the_wrong_kind_is_named(
    tensor: str, replacement: torch.Tensor | None, message: str
) -> None:
    tensors, _ = layer()
    tensors.pop(f"layer.{tensor}", None)
    if replacement is not None:
        tensors[f"layer.{tensor}"] = replacement
    with pytest.raises(CheckpointError, match=message):
        loader_of(tensors).plan()


def test_a_code_that_is_no_ternary_value_is_refused() -> None:
    tensors, _ = layer()
    tensors["layer.weight"][1, 2] |= 0b11000000
    loader = loader_of(tensors)
    with pytest.raises(CheckpointError, match=r"layer.weight.*a field holds 3"):
        loader.load(loader.plan()[0])


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_no_positive_number_is_refused(scale: float) -> None:
    loader = loader_of(layer(scale=scale)[0])
    with pytest.raises(CheckpointError, match=r"layer.weight_scale.*expected a positive number"):
        loader.load(loader.plan()[0])
