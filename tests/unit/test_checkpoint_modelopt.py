"""ModelOpt layers written by hand from the description of the format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import modelopt_files as mo
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from memory_checkpoint import memory_loader

from humming.checkpoints.modelopt import ModelOptLoader
from humming.weight import CanonicalWeight

UP = "model.layers.1.mlp.up_proj"


def load(
    tensors: Mapping[str, torch.Tensor],
    config: Mapping[str, Any],
    layer: str = UP,
    model_config: Mapping[str, Any] | None = None,
) -> CanonicalWeight:
    loader = memory_loader(ModelOptLoader, tensors, config, model_config)
    plans = {plan.name: plan for plan in loader.plan()}
    assert loader.store.read == []  # type: ignore[attr-defined]
    weight = loader.load(plans[layer])
    weight.check_values()
    return weight


def equal(weight: CanonicalWeight, expected: np.ndarray) -> bool:
    return np.array_equal(weight.dequantize(torch.float64).numpy(), expected)


@given(
    algo=st.sampled_from(["NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "W4A8_NVFP4_FP8"]),
    n=st.integers(1, 9),
    groups=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_nvfp4_is_code_times_block_scale_times_weight_scale_2(
    algo: str, n: int, groups: int, seed: int
) -> None:
    group = 32 if algo == "W4A8_NVFP4_FP8" else 16
    scale = None if algo.startswith("W4A16") else 0.0123
    tensors, expected = mo.nvfp4(
        UP, n, groups * group, np.random.default_rng(seed), group=group, input_scale=scale
    )
    weight = load(tensors, mo.quantization(algo, group_size=group))
    assert equal(weight, expected)
    assert (weight.input_scale is None) == (scale is None)


def test_the_smallest_and_largest_block_scales_and_zero_survive() -> None:
    tensors, _ = mo.nvfp4(UP, 1, 64, np.random.default_rng(0), second=1.0)
    tensors[f"{UP}.weight"] = torch.full((1, 32), 0x22, dtype=torch.uint8)  # all 1.0
    scales = np.array([[0x01, 0x7E, 0x00, 0x80]])  # 2^-9, 448, 0, -0
    tensors[f"{UP}.weight_scale"] = mo.bytes_of(scales, torch.float8_e4m3fn)
    found = load(tensors, mo.quantization("NVFP4")).dequantize(torch.float64)
    assert found[0, ::16].tolist() == [2.0**-9, 448.0, 0.0, 0.0]


@given(
    algo=st.sampled_from(["W4A16_AWQ", "W4A8_AWQ"]),
    pairs=st.integers(1, 5),
    groups=st.integers(1, 4),
    given_size=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_int4_pairs_rows_in_twos_complement(
    algo: str, pairs: int, groups: int, given_size: bool, seed: int
) -> None:
    tensors, expected = mo.awq(UP, 2 * pairs, groups * 32, np.random.default_rng(seed))
    if algo == "W4A8_AWQ":
        tensors |= {f"{UP}.input_scale": mo.float32(0.5), f"{UP}.weight_scale_2": mo.float32(7)}
    # The twin in config.json leaves out the group size.
    more = {"group_size": 32, "has_zero_point": False} if given_size else {}
    weight = load(tensors, mo.quantization(algo, **more))
    assert str(weight.scheme) == "s4-g32-bf16"
    assert equal(weight, expected)


def test_golden_byte_of_int4_rows() -> None:
    tensors = {
        f"{UP}.weight": torch.tensor([[0x78]], dtype=torch.uint8),  # rows -8 and 7
        f"{UP}.weight_scale": torch.ones(2, 1, dtype=torch.float16),
    }
    weight = load(tensors, mo.quantization("W4A16_AWQ"))
    assert weight.dequantize().flatten().tolist() == [-8.0, 7.0]
    assert weight.pre_quant_scale is None  # ModelOpt folds it into the norm where it can


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_scale_per_tensor_may_have_any_number_of_ones(shape: tuple[int, ...]) -> None:
    tensors, expected = mo.fp8(UP, 3, 5, np.random.default_rng(1))
    for suffix in ("weight_scale", "input_scale"):
        tensors[f"{UP}.{suffix}"] = tensors[f"{UP}.{suffix}"].reshape(shape)
    weight = load(tensors, mo.quantization("FP8"))
    assert equal(weight, expected)
    assert weight.input_scale is not None
    assert weight.input_scale.shape == ()


@pytest.mark.parametrize("algo", ["W8A16", "W8A8_SQ_PER_CHANNEL", "FP8_PER_CHANNEL_PER_TOKEN"])
def test_a_scale_per_channel_multiplies_its_row(algo: str) -> None:
    rng = np.random.default_rng(2)
    codes = rng.choice(mo.E4M3_FINITE, (5, 7))
    scales = torch.from_numpy(rng.uniform(0.01, 1, 5).astype(np.float32))
    is_float = algo.startswith("FP8")
    dtype = torch.float8_e4m3fn if is_float else torch.int8
    tensors = {f"{UP}.weight": mo.bytes_of(codes, dtype), f"{UP}.weight_scale": scales}
    if algo == "W8A8_SQ_PER_CHANNEL":
        tensors[f"{UP}.input_scale"] = mo.float32(0.25)
    weight = load(tensors, mo.quantization(algo))
    table = mo.values("e4m3fn" if is_float else "s8", codes)
    assert equal(weight, table * scales.to(torch.float64).numpy()[:, None])


@pytest.mark.parametrize(("n", "k", "shape"), [
    (300, 200, (3, 1, 2, 1)), (300, 200, (3, 2)), (100, 60, ()), (100, 60, (1, 1)),
    (48, 96, (3, 1, 6, 1)), (48, 96, (3, 6)),
])  # fmt: skip
def test_fp8_blocks_are_128_wide_or_what_the_scales_show(
    n: int, k: int, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(3)
    codes = rng.choice(mo.E4M3_FINITE, (n, k))
    scales = rng.uniform(0.01, 1, shape).astype(np.float32)
    size = 16 if n == 48 else 128
    tensors = {
        f"{UP}.weight": mo.bytes_of(codes, torch.float8_e4m3fn),
        f"{UP}.weight_scale": torch.from_numpy(np.asarray(scales)),
    }
    weight = load(tensors, mo.quantization("fp8_pb_wo"))
    blocks = np.asarray(scales, dtype=np.float64).reshape(-(-n // size), -(-k // size))
    rows, columns = np.arange(n) // size, np.arange(k) // size
    assert equal(weight, mo.values("e4m3fn", codes) * blocks[rows][:, columns])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e8m0fnu])
@pytest.mark.parametrize("algo", ["MXFP8", "W4A8_MXFP4_FP8"])
def test_mx_scales_are_exponents(algo: str, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(4)
    exponents = rng.integers(100, 150, (3, 2), dtype=np.uint8)
    exponents[0, 0] = 0
    if algo == "MXFP8":
        codes = rng.choice(mo.E4M3_FINITE, (3, 64))
        stored, table = mo.bytes_of(codes, torch.float8_e4m3fn), mo.values("e4m3fn", codes)
    else:
        codes = rng.integers(0, 16, (3, 64), dtype=np.uint8)
        stored, table = torch.from_numpy(mo.column_pairs(codes)), mo.values("e2m1", codes)
    tensors = {f"{UP}.weight": stored, f"{UP}.weight_scale": mo.bytes_of(exponents, dtype)}
    weight = load(tensors, mo.quantization(algo, group_size=32))
    assert equal(weight, table * np.repeat(2.0 ** (exponents.astype(float) - 127), 32, axis=1))


def test_w4a8_mxfp4_fp8_is_static_where_an_input_scale_is_stored() -> None:
    tensors = {
        f"{UP}.weight": torch.zeros(2, 16, dtype=torch.uint8),
        f"{UP}.weight_scale": torch.full((2, 1), 127, dtype=torch.uint8),
    }
    config = mo.quantization("W4A8_MXFP4_FP8")
    assert str(load(tensors, config).activation) == "e4m3fn-tensor-f32"
    tensors[f"{UP}.input_scale"] = mo.float32(0.5)
    weight = load(tensors, config)
    assert str(weight.activation) == "e4m3fn-tensor-f32-static"
    assert weight.input_scale == 0.5


def test_scales_with_a_leading_one_and_a_bias_are_read() -> None:
    tensors, expected = mo.nvfp4(UP, 6, 32, np.random.default_rng(5))
    tensors[f"{UP}.weight_scale"] = tensors[f"{UP}.weight_scale"].unsqueeze(0)
    tensors[f"{UP}.bias"] = 0.01 * torch.arange(6, dtype=torch.bfloat16)
    weight = load(tensors, mo.quantization("NVFP4"))
    assert equal(weight, expected)
    assert weight.bias is not None
    assert torch.equal(weight.bias, tensors[f"{UP}.bias"])


def test_experts_keep_their_own_activation_and_smoothing_scales() -> None:
    rng = np.random.default_rng(6)
    names = [f"model.layers.0.mlp.experts.{e}.up_proj" for e in range(3)]
    tensors: dict[str, torch.Tensor] = {}
    wanted = {}
    for e, name in enumerate(names):
        layer, expected = mo.nvfp4(name, 4, 32, rng, second=0.1 * (e + 1), input_scale=0.01 + e)
        smooth = torch.from_numpy(rng.uniform(0.95, 1.05, 32).astype(np.float32))
        tensors |= layer | {f"{name}.pre_quant_scale": smooth}
        wanted[name] = (expected, 0.01 + e, smooth)
    for name, (expected, scale, smooth) in wanted.items():
        weight = load(tensors, mo.quantization("NVFP4_AWQ"), name)
        assert equal(weight, expected)
        assert weight.input_scale is not None
        assert weight.input_scale == np.float32(scale)
        assert weight.pre_quant_scale is not None
        assert torch.equal(weight.pre_quant_scale, smooth)


def test_stacked_modules_have_a_leading_dimension() -> None:
    rng = np.random.default_rng(7)
    parts = [mo.nvfp4(UP, 6, 32, rng, second=0.5 + e) for e in range(3)]
    tensors = {name: torch.stack([p[0][name] for p in parts]) for name in parts[0][0]}
    tensors[f"{UP}.input_scale"] = mo.float32(0.25)  # one for all
    weight = load(tensors, mo.quantization("NVFP4"))
    assert weight.shape == (3, 6, 32)
    assert equal(weight, np.stack([p[1] for p in parts]))
    assert weight.input_scale is not None
    assert weight.input_scale.tolist() == [0.25] * 3


def test_stacked_parameters_are_turned_round() -> None:
    rng = np.random.default_rng(8)
    name = "model.layers.0.feed_forward.experts.down_proj"
    parts = [mo.nvfp4("x", 8, 32, rng, second=0.5) for _ in range(2)]
    tensors = {
        name: torch.stack([p[0]["x.weight"].t() for p in parts]),
        f"{name}_weight_scale": torch.stack([p[0]["x.weight_scale"].t() for p in parts]),
        f"{name}_weight_scale_2": mo.float32(0.5),
        f"{name}_input_scale": mo.float32(0.1),
        f"{name}_bias": torch.arange(16.0).reshape(2, 8),
    }
    weight = load(tensors, mo.quantization("NVFP4"), name)
    assert equal(weight, np.stack([p[1] for p in parts]))
    assert weight.bias is not None
    assert weight.bias.shape == (2, 8)


@pytest.mark.parametrize("stem", ["gate_up_proj", "down_proj"])
@pytest.mark.parametrize("nested", [False, True])
def test_fp8_parameters_are_turned_round_by_the_models_width(stem: str, nested: bool) -> None:
    n, k = (12, 8) if stem == "gate_up_proj" else (8, 12)
    name = f"layers.0.experts.{stem}"
    codes = np.random.default_rng(9).choice(mo.E4M3_FINITE, (2, k, n))
    tensors = {
        name: mo.bytes_of(codes, torch.float8_e4m3fn),
        f"{name}_weight_scale": torch.tensor([0.5, 2.0]),
    }
    config = {"hidden_size": 8}
    model_config = {"text_config": config} if nested else config
    algo = mo.quantization("FP8_PER_CHANNEL_PER_TOKEN")
    weight = load(tensors, algo, name, model_config)
    assert weight.shape == (2, n, k)
    scales = np.array([0.5, 2.0])[:, None, None]
    assert equal(weight, mo.values("e4m3fn", codes).transpose(0, 2, 1) * scales)


def test_a_mix_gives_each_layer_its_algorithm_also_through_its_parent() -> None:
    rng = np.random.default_rng(10)
    a, b, c = "model.layers.0.q_proj", "model.layers.10.experts.3.up_proj", "vision.fc1"
    layers = {
        a: {"quant_algo": "FP8"},
        "model.layers.1": {"quant_algo": None},
        "model.layers.10.experts": {"quant_algo": "NVFP4", "group_size": 16},
        "vision*": {"quant_algo": "W4A16_AWQ", "group_size": 32},
    }
    parts = [mo.fp8(a, 4, 16, rng), mo.nvfp4(b, 4, 32, rng), mo.awq(c, 4, 64, rng)]
    tensors = parts[0][0] | parts[1][0] | parts[2][0]
    config = mo.quantization("MIXED_PRECISION", quantized_layers=layers)
    for name, (_, expected) in zip((a, b, c), parts, strict=True):
        assert equal(load(tensors, config, name), expected)


def test_the_twin_in_config_json_says_the_same() -> None:
    tensors, expected = mo.nvfp4(UP, 4, 64, np.random.default_rng(11), group=32)
    activations = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 32}
    group = {"targets": ["Linear"], "weights": activations, "input_activations": activations}
    twin: dict[str, Any] = {
        "quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }  # fmt: skip
    weight = load(tensors, twin)
    assert equal(weight, expected)
    assert str(weight.activation) == "e2m1-g32-e4m3fn-tensor-static"


def test_dynamic_activations_of_the_twin_need_no_input_scale() -> None:
    tensors, _ = mo.nvfp4(UP, 4, 32, np.random.default_rng(12), input_scale=None)
    group = {"targets": ["Linear"], "input_activations": {"dynamic": True}}
    twin = {"quant_algo": "NVFP4", "config_groups": {"group_0": group}}
    weight = load(tensors, twin)
    assert str(weight.activation) == "e2m1-g16-e4m3fn-tensor"
    assert weight.input_scale is None


def test_excluded_names_are_whole_and_layers_without_scales_are_left_alone() -> None:
    tensors, _ = mo.fp8("model.layers.10.gate_proj", 3, 4, np.random.default_rng(13))
    tensors["model.layers.1.gate.weight"] = torch.zeros(3, 4, dtype=torch.bfloat16)
    tensors["model.layers.10.self_attn.k_proj.k_scale"] = mo.float32(1)
    config = mo.quantization("FP8", exclude_modules=["*.gate", "model.layers.1", "lm_head*"])
    loader = memory_loader(ModelOptLoader, tensors, config)
    assert [plan.name for plan in loader.plan()] == ["model.layers.10.gate_proj"]


def test_nothing_is_quantized_where_only_the_cache_is() -> None:
    config = mo.quantization(None)
    config["quantization"]["kv_cache_quant_algo"] = "FP8"
    tensors = {"a.k_proj.weight": torch.zeros(2, 2), "a.k_proj.k_scale": mo.float32(1)}
    assert list(memory_loader(ModelOptLoader, tensors, config).plan()) == []
