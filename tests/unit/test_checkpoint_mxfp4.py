"""MXFP4 checkpoints: plain layers, gpt-oss in both spellings, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from core_oracle import value
from ct_cases import ct_config
from memory_checkpoint import fixture_expected, fixture_loader, memory_loader

from humming.checkpoints.compressed_tensors import CompressedTensorsLoader
from humming.checkpoints.mxfp4 import Mxfp4Loader as Loader
from humming.checkpoints.mxfp4 import deinterleave_gate_up, rows_interleaved
from humming.errors import CheckpointError, ConfigError
from humming.formats.scheme import WeightScheme
from humming.quantizing import quantize

PREFIX = "model.layers.0.mlp.experts"
CONFIG: dict[str, Any] = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
}
Tensors = dict[str, torch.Tensor]


def blocks(*shape: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, shape).astype(np.uint8))


def exponents(*shape: int, seed: int = 1) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(100, 140, shape).astype(np.uint8))


def plain(codes: torch.Tensor, scales: torch.Tensor) -> np.ndarray:
    """Weights in float64: byte j of a row holds inputs 2j (low nibble) and 2j + 1."""
    flat = codes.reshape(*scales.shape[:-1], -1).numpy()
    fp4 = np.array([value("e2m1", code) for code in range(16)])
    pairs = np.stack([fp4[flat & 15], fp4[flat >> 4]], axis=-1)
    weights = pairs.reshape(*flat.shape[:-1], -1)
    return weights * np.exp2(np.repeat(scales.numpy(), 32, axis=-1).astype(np.float64) - 127)


def refusal(tensors: Tensors, config: dict[str, Any] = CONFIG) -> str:
    loader = memory_loader(Loader, tensors, config)
    with pytest.raises(CheckpointError) as caught:
        [loader.load(plan) for plan in loader.plan()]
    return str(caught.value)


def gpt_oss(spelled: str, n: int = 12, k: int = 64) -> tuple[Tensors, str]:
    """One stack of 3 experts; `spelled` is the layer's name."""
    layer, ends = spelled, ("_blocks", "_scales", "_bias")
    if "mlp1" in spelled or "mlp2" in spelled:
        ends = ("_weight.blocks", "_weight.scales", "_bias")
    tensors = {
        layer + ends[0]: blocks(3, n, k // 32, 16),
        layer + ends[1]: exponents(3, n, k // 32),
        layer + ends[2]: torch.arange(3 * n).view(3, n).to(torch.bfloat16),
    }
    return tensors, layer


# -- files of the real tool -------------------------------------------------------------------


def test_weights_equal_those_that_transformers_reads() -> None:
    loader, expected = fixture_loader(Loader, "mxfp4/gpt_oss"), fixture_expected("mxfp4/gpt_oss")
    plans = {plan.name: plan for plan in loader.plan()}
    assert set(plans) == set(expected)
    for name, wanted in expected.items():
        weight = loader.load(plans[name])
        assert weight.scheme == WeightScheme.parse("mxfp4")
        assert weight.activation is None
        assert torch.equal(weight.dequantize(), wanted)
        bias = loader.store.get(f"{name}_bias")
        assert weight.bias is not None
        assert torch.equal(weight.bias, bias)
    claimed = {name for plan in plans.values() for name in plan.tensors}
    assert set(loader.store) - claimed == {"model.layers.0.mlp.router.weight"}


# -- spellings --------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [32, 2880])
@pytest.mark.parametrize(
    ("layer", "interleaved"),
    [
        (f"{PREFIX}.gate_up_proj", True),
        (f"{PREFIX}.down_proj", False),
        ("block.3.mlp.mlp1", True),
        ("block.3.mlp.mlp2", False),
    ],
)
def test_both_spellings_of_gpt_oss_are_read(layer: str, interleaved: bool, k: int) -> None:
    tensors, _ = gpt_oss(layer, k=k)
    loader = memory_loader(Loader, tensors, CONFIG)
    (plan,) = loader.plan()
    assert (plan.name, plan.n, plan.k, plan.experts, plan.bias) == (layer, 12, k, 3, True)
    assert set(plan.tensors) == set(tensors)
    assert rows_interleaved(plan) == interleaved
    weight = loader.load(plan)
    codes, scales, bias = tensors.values()
    assert np.array_equal(weight.dequantize(torch.float64).numpy(), plain(codes, scales))
    assert weight.bias is bias
    assert weight.packed.data_ptr() == codes.data_ptr()  # a view, whatever the size


@pytest.mark.parametrize("method", ["mxfp4", "gpt_oss_mxfp4"])
@pytest.mark.parametrize("scale", [torch.uint8, torch.float8_e8m0fnu])
def test_plain_layers_are_read(method: str, scale: torch.dtype) -> None:
    assert method in Loader.quant_methods
    name = "layers.0.up"
    tensors = {
        f"{name}.weight": blocks(10, 48),
        f"{name}.weight_scale": exponents(10, 3).view(scale),
        f"{name}.bias": torch.ones(10),
        "norm.weight": torch.ones(4),
    }
    loader = memory_loader(Loader, tensors, {"quant_method": method})
    (plan,) = loader.plan()
    weight = loader.load(plan)
    wanted = plain(tensors[f"{name}.weight"], exponents(10, 3))
    assert np.array_equal(weight.dequantize(torch.float64).numpy(), wanted)
    assert not rows_interleaved(plan)
    assert not plan.experts


def test_the_same_bytes_under_compressed_tensors_are_the_same_weight() -> None:
    codes, scales = blocks(10, 48), exponents(10, 3)
    loader = memory_loader(Loader, {"up.weight": codes, "up.weight_scale": scales}, CONFIG)
    args = {"num_bits": 4, "type": "float", "group_size": 32}
    other = memory_loader(
        CompressedTensorsLoader,
        {"up.weight_packed": codes, "up.weight_scale": scales},
        ct_config(args, "mxfp4-pack-quantized"),
    )
    (plan,), (twin,) = loader.plan(), other.plan()
    weight, same = loader.load(plan), other.load(twin)
    assert weight.scheme == same.scheme
    assert torch.equal(weight.packed, same.packed)
    assert torch.equal(weight.scales, same.scales)


# -- gate and up ------------------------------------------------------------------------------


def test_deinterleaving_puts_gate_above_up_weights_and_bias_alike() -> None:
    tensors, _ = gpt_oss(f"{PREFIX}.gate_up_proj")
    loader = memory_loader(Loader, tensors, CONFIG)
    (plan,) = loader.plan()
    weight = loader.load(plan)
    apart = deinterleave_gate_up(weight)
    before, after = weight.dequantize(), apart.dequantize()
    assert weight.bias is not None
    assert apart.bias is not None
    for j in range(6):
        for row, found in ((2 * j, j), (2 * j + 1, 6 + j)):
            assert torch.equal(after[:, found], before[:, row])
            assert torch.equal(apart.bias[:, found], weight.bias[:, row])


@pytest.mark.parametrize(
    "scheme", ["u4+z-g16-bf16", "e2m1-g16-e4m3fn-channel", "s8-tensor-f32", "e4m3fn-channel-f32"]
)
def test_deinterleaving_moves_whatever_belongs_to_a_row(scheme: str) -> None:
    weight = quantize(torch.randn(8, 32) * torch.arange(1.0, 9.0)[:, None], scheme)
    found = deinterleave_gate_up(weight).dequantize()
    assert torch.equal(found, weight.dequantize()[[0, 2, 4, 6, 1, 3, 5, 7]])


def test_deinterleaving_refuses_what_has_no_halves() -> None:
    with pytest.raises(ConfigError, match="n=7: expected an even number of rows"):
        deinterleave_gate_up(quantize(torch.randn(7, 32), "mxfp4"))
    with pytest.raises(ConfigError, match="granularity='b2x32'"):
        deinterleave_gate_up(quantize(torch.randn(8, 32), "e4m3fn-b2x32-f32"))


# -- what is not as promised --------------------------------------------------------------------


def test_nan_exponents_are_refused_by_name() -> None:
    tensors, layer = gpt_oss(f"{PREFIX}.down_proj")
    tensors[f"{layer}_scales"][2, 11, 1] = 255
    assert f"'{layer}_scales': e8m0 scale at [2, 11, 1] is NaN" in refusal(tensors)


@pytest.mark.parametrize(
    ("suffix", "shape", "message"),
    [
        ("_blocks", (3, 12, 2, 8), "expected [3, 12, 2, 16] beside scales [3, 12, 2], found U8"),
        ("_blocks", (3, 12, 16, 2), "found U8 [3, 12, 16, 2]"),
        ("_blocks", (2, 12, 2, 16), "found U8 [2, 12, 2, 16]"),
        ("_scales", (3, 2, 12), "beside scales [3, 2, 12]"),
        ("_scales", (3, 12, 2, 1), "expected 2 or 3 dimensions"),
    ],
)
def test_shapes_that_disagree_are_named(suffix: str, shape: tuple[int, ...], message: str) -> None:
    tensors, layer = gpt_oss(f"{PREFIX}.down_proj")
    tensors[layer + suffix] = torch.zeros(shape, dtype=torch.uint8)
    assert message in refusal(tensors)


def test_a_bias_of_another_shape_is_named() -> None:
    tensors, layer = gpt_oss(f"{PREFIX}.down_proj")
    tensors[f"{layer}_bias"] = torch.ones(3, 11)
    assert f"'{layer}_bias': expected shape [3, 12], found" in refusal(tensors)
    tensors[f"{layer}_bias"] = torch.ones(12)
    assert "expected 2 dimensions, found F32 [12]" in refusal(tensors)


def test_types_that_disagree_are_named() -> None:
    tensors, layer = gpt_oss(f"{PREFIX}.down_proj")
    tensors[f"{layer}_scales"] = torch.ones(3, 12, 2)
    assert "expected scales in e8m0, found F32 [3, 12, 2]" in refusal(tensors)
    tensors, layer = gpt_oss(f"{PREFIX}.down_proj")
    tensors[f"{layer}_blocks"] = tensors[f"{layer}_blocks"].to(torch.int32)
    assert f"'{layer}_blocks': expected U8, found I32" in refusal(tensors)
    assert "expected U8, found I8" in refusal(
        {"up.weight": torch.zeros(4, 16, dtype=torch.int8), "up.weight_scale": exponents(4, 1)}
    )


@pytest.mark.parametrize("layer", [f"{PREFIX}.down_proj", "block.0.mlp.mlp2"])
def test_half_a_layer_is_refused(layer: str) -> None:
    tensors, _ = gpt_oss(layer)
    codes, scales, _ = tensors
    assert f"'{scales}': missing" in refusal({codes: tensors[codes]})
    assert f"'{scales}': scales without codes" in refusal({scales: tensors[scales]})


def test_excluded_layers_with_blocks_are_refused() -> None:
    tensors, _ = gpt_oss("model.layers.7.mlp.router")
    message = refusal(tensors)
    assert "'model.layers.*.mlp.router' in the config spares it" in message
    config = {**CONFIG, "modules_to_not_convert": [""]}
    assert "modules_to_not_convert=[''], expected a list of names" in refusal(tensors, config)
