"""What ModelOptLoader refuses, and what it says."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import modelopt_files as mo
import numpy as np
import pytest
import torch
from memory_checkpoint import memory_loader

from humming.checkpoints.checkpoint import Checkpoint
from humming.checkpoints.modelopt import ModelOptLoader
from humming.errors import CheckpointError

UP = "model.layers.1.mlp.up_proj"
Tensors = dict[str, torch.Tensor]


def refusal(
    tensors: Tensors, config: dict[str, Any], model_config: dict[str, Any] | None = None
) -> str:
    """The message; nothing may have been read before it."""
    loader = memory_loader(ModelOptLoader, tensors, config, model_config)
    with pytest.raises(CheckpointError) as error:
        list(loader.plan())
    assert loader.store.read == []  # type: ignore[attr-defined]
    return str(error.value)


def nvfp4(**changes: torch.Tensor | None) -> Tensors:
    """A sound layer of [8, 64] with some of its tensors replaced or removed."""
    tensors, _ = mo.nvfp4(UP, 8, 64, np.random.default_rng(0))
    for suffix, tensor in changes.items():
        tensors.pop(f"{UP}.{suffix}", None)
        if tensor is not None:
            tensors[f"{UP}.{suffix}"] = tensor
    return tensors


def test_an_unknown_algorithm_is_refused_by_name_with_the_known_ones() -> None:
    message = refusal(nvfp4(), mo.quantization("INT5_MAGIC"))
    assert "quant_algo='INT5_MAGIC'" in message
    for known in ("FP8", "FP8_PB_WO", "NVFP4", "W4A8_AWQ", "MXFP8", "MIXED_PRECISION"):
        assert known in message


@pytest.mark.parametrize(("algo", "reason"), [
    ("NVFP4_SVD", "low-rank product (svdquant_lora_a"),
    ("mxfp4", "do not say whether activations are quantized"),
])  # fmt: skip
def test_an_algorithm_that_cant_be_read_is_refused_with_the_reason(algo: str, reason: str) -> None:
    message = refusal(nvfp4(), mo.quantization(algo))
    assert algo.upper() in message
    assert reason in message


@pytest.mark.parametrize(("config", "expected"), [
    ({}, "quant_algo=None, expected the name"),
    ({"quantization": []}, "quantization=[], expected an object"),
    (mo.quantization("FP8", exclude_modules="lm_head"), "exclude_modules='lm_head', expected"),
    (mo.quantization("FP8", exclude_modules=[1]), "exclude_modules=[1], expected a list"),
    ({"quant_algo": 8}, "quant_algo=8, expected a string"),
    (mo.quantization("NVFP4", group_size="16"), "group_size='16', expected a positive integer"),
    (mo.quantization("NVFP4", group_size=True), "group_size=True, expected a positive integer"),
    (mo.quantization("NVFP4", has_zero_point=True), "has_zero_point=True, expected false"),
    (mo.quantization("NVFP4", group_size=48), "groups of 48 do not divide K=64"),
    (mo.quantization("MIXED_PRECISION"), "quantized_layers=None, expected an object"),
    (mo.quantization("MIXED_PRECISION", quantized_layers={UP: "FP8"}), "expected an object with"),
    (mo.quantization("MIXED_PRECISION", quantized_layers={UP: {"quant_algo": "X9"}}), "'X9'"),
    ({"quant_algo": "NVFP4", "config_groups": [1]}, "config_groups=[1], expected an object"),
])  # fmt: skip
def test_a_malformed_config_names_the_key(config: dict[str, Any], expected: str) -> None:
    assert expected in refusal(nvfp4(), config)


@pytest.mark.parametrize(("changes", "expected"), [
    ({"weight_scale": None}, f"'{UP}.weight_scale': missing"),
    ({"weight_scale_2": None}, f"'{UP}.weight_scale_2': missing"),
    ({"input_scale": None}, f"'{UP}.input_scale': missing; NVFP4 activations are static"),
    ({"weight": None}, f"'{UP}.weight': missing"),
    ({"weight": torch.zeros(8, 64, dtype=torch.bfloat16)}, "expected U8, found BF16 [8, 64]"),
    ({"weight": torch.zeros(64, dtype=torch.uint8)}, "expected 2 or 3 dimensions, found U8 [64]"),
    ({"weight": torch.zeros(0, 8, 32, dtype=torch.uint8)}, "expected experts"),
    ({"weight_scale": torch.zeros(8, 4)}, "expected scales in e4m3fn, found F32 [8, 4]"),
    ({"weight_scale": torch.zeros(4, 8, dtype=torch.float8_e4m3fn)}, "expected [8, 4]"),
    ({"weight_scale": torch.zeros(128, 4, dtype=torch.float8_e4m3fn)}, "found F8_E4M3 [128, 4]"),
    ({"weight_scale_2": torch.zeros(2)}, "expected shape [] or [1] or [1, 1], found F32 [2]"),
    ({"weight_scale_2": torch.tensor(1)}, "expected F32 or BF16 or F16, found I64 []"),
    ({"input_scale": torch.zeros(8)}, "expected shape [] or [1] or [1, 1], found F32 [8]"),
    ({"pre_quant_scale": torch.zeros(8)}, "expected shape [64]"),
    ({"bias": torch.zeros(64)}, "expected shape [8], found F32 [64]"),
    ({"bias": torch.zeros(8, dtype=torch.int32)}, "expected F16 or BF16 or F32, found I32"),
    ({"svdquant_lora_a": torch.zeros(2, 64)}, "low-rank products can't be read"),
])  # fmt: skip
def test_tensors_that_disagree_with_the_algorithm_are_named(
    changes: dict[str, torch.Tensor | None], expected: str
) -> None:
    assert expected in refusal(nvfp4(**changes), mo.quantization("NVFP4"))


def test_an_input_scale_contradicts_activations_that_are_not_static() -> None:
    group = {"targets": ["Linear"], "input_activations": {"dynamic": True}}
    twin = {"quant_algo": "NVFP4", "config_groups": {"g": group}}
    assert "present, but NVFP4 activations are dynamic" in refusal(nvfp4(), twin)
    message = refusal(nvfp4(), mo.quantization("W4A16_NVFP4"))
    assert "present, but W4A16_NVFP4 activations are not quantized" in message


def test_a_second_scale_that_the_algorithm_lacks_is_refused() -> None:
    tensors, _ = mo.fp8(UP, 4, 8, np.random.default_rng(0))
    tensors[f"{UP}.weight_scale_2"] = mo.float32(2)
    assert "present, though FP8 has none" in refusal(tensors, mo.quantization("FP8"))


@pytest.mark.parametrize("pattern", ["lm_head", "lm_head*", "*head"])
def test_an_excluded_layer_with_scales_is_refused_not_half_quantized(pattern: str) -> None:
    tensors, _ = mo.nvfp4("lm_head", 8, 64, np.random.default_rng(0))
    message = refusal(tensors, mo.quantization("NVFP4", exclude_modules=[pattern]))
    assert "'lm_head.weight_scale'" in message
    assert f"the config excludes it ({pattern!r})" in message


def test_codes_of_an_excluded_layer_are_refused_too() -> None:
    tensors = {"lm_head.weight": torch.zeros(8, 32, dtype=torch.uint8)}
    message = refusal(tensors, mo.quantization("NVFP4", ignore=["lm_head"]))
    assert "'lm_head.weight': belongs to a quantized layer, but the config excludes it" in message


@pytest.mark.parametrize("omitted", [{}, {UP: {"quant_algo": None}}])
def test_scales_of_a_layer_that_a_mix_omits_are_refused(omitted: dict[str, Any]) -> None:
    layers = {"model.layers.0": {"quant_algo": "NVFP4"}} | omitted
    tensors, _ = mo.nvfp4("model.layers.0.up_proj", 8, 64, np.random.default_rng(1))
    message = refusal(
        nvfp4() | tensors, mo.quantization("MIXED_PRECISION", quantized_layers=layers)
    )
    assert f"'{UP}.weight_scale'" in message
    assert "the config omits it" in message


def test_a_mix_names_layers_and_their_parents_not_parts_of_names() -> None:
    layers = {"up_proj": {"quant_algo": "NVFP4"}}
    message = refusal(nvfp4(), mo.quantization("MIXED_PRECISION", quantized_layers=layers))
    assert "quantized_layers names 'up_proj', which has no quantized tensors" in message


@pytest.mark.parametrize(("algo", "shape", "expected"), [
    ("FP8_PER_CHANNEL_PER_TOKEN", (96,), "expected [48] or [48, 1]"),
    ("FP8_PER_CHANNEL_PER_TOKEN", (), "expected [48] or [48, 1]"),
    ("fp8_pb_wo", (3, 4), "expected [1, 1, 1, 1] or [1, 1] or []"),  # blocks of 16 x 24
    ("fp8_pb_wo", (3, 7), "expected [1, 1, 1, 1] or [1, 1] or []"),
    ("fp8_pb_wo", (3,), "expected [1, 1, 1, 1] or [1, 1] or []"),
])  # fmt: skip
def test_scales_of_another_granularity_are_refused(
    algo: str, shape: tuple[int, ...], expected: str
) -> None:
    tensors = {
        f"{UP}.weight": mo.bytes_of(np.zeros((48, 96)), torch.float8_e4m3fn),
        f"{UP}.weight_scale": torch.ones(shape),
    }
    assert expected in refusal(tensors, mo.quantization(algo))


def test_v_proj_without_tensors_is_refused_where_a_mix_names_it() -> None:
    """Keys that serve as values: v_proj has no tensors of its own (report R107)."""
    key, absent = "model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.v_proj"
    tensors, _ = mo.nvfp4(key, 8, 64, np.random.default_rng(0))
    layers = {key: {"quant_algo": "NVFP4"}, absent: {"quant_algo": "NVFP4"}}
    message = refusal(tensors, mo.quantization("MIXED_PRECISION", quantized_layers=layers))
    assert f"quantized_layers names {absent!r}, which has no quantized tensors" in message


@pytest.mark.parametrize("left", ["input_scale", "weight_scale", "weight_scale_2"])
def test_v_proj_with_some_of_its_tensors_is_refused(left: str) -> None:
    value = "model.layers.0.self_attn.v_proj"
    tensors, _ = mo.nvfp4(value, 8, 64, np.random.default_rng(0))
    tensors = {f"{value}.{left}": tensors[f"{value}.{left}"]}
    assert f"'{value}.weight': missing" in refusal(tensors, mo.quantization("NVFP4"))


def test_stacked_parameters_of_unknown_direction_are_refused() -> None:
    name = "layers.0.experts.gate_up_proj"
    tensors = {
        name: mo.bytes_of(np.zeros((2, 8, 12)), torch.float8_e4m3fn),
        f"{name}_weight_scale": mo.float32(1),
        f"{name}_input_scale": mo.float32(1),
    }
    config = mo.quantization("FP8")
    assert "hidden_size None" in refusal(tensors, config)
    message = refusal(tensors, config, {"hidden_size": 12})  # stored [E, N, K] after all
    assert "expected [E, K, N] with hidden_size 12" in message
    assert "found K=8, N=12" in message
    tensors[name] = tensors[name][0]
    assert "expected 3 dimensions" in refusal(tensors, config, {"hidden_size": 8})


def test_stacked_int4_parameters_are_refused() -> None:
    name = "layers.0.experts.down_proj"
    tensors = {
        name: torch.zeros(2, 8, 64, dtype=torch.uint8),
        f"{name}_weight_scale": torch.ones(2, 2, 16),
    }
    message = refusal(tensors, mo.quantization("W4A16_AWQ"))
    assert "which way rows are paired is unknown" in message


@pytest.mark.parametrize("change", [
    lambda scales: scales.view(torch.uint8).fill_(0x7F).view(torch.float8_e4m3fn),
    lambda scales: scales.view(torch.uint8).fill_(0xFF).view(torch.float8_e4m3fn),
])  # fmt: skip
def test_a_scale_that_is_no_number_is_refused(
    change: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    tensors = nvfp4()
    tensors[f"{UP}.weight_scale"] = change(tensors[f"{UP}.weight_scale"])
    loader = memory_loader(ModelOptLoader, tensors, mo.quantization("NVFP4"))
    plan = next(iter(loader.plan()))
    with pytest.raises(CheckpointError, match=re.escape(f"'{UP}.weight_scale': e4m3fn scale")):
        loader.load(plan)
    tensors = nvfp4(weight_scale_2=torch.tensor(torch.inf))
    loader = memory_loader(ModelOptLoader, tensors, mo.quantization("NVFP4"))
    with pytest.raises(CheckpointError, match=r"weight_scale_2'.*infinite"):
        loader.load(next(iter(loader.plan())))


def test_the_checkpoint_claims_all_and_leaves_the_cache_alone() -> None:
    key = "model.layers.0.self_attn.k_proj"
    tensors, _ = mo.fp8(key, 4, 8, np.random.default_rng(0))
    cache = {f"{key}.k_scale": mo.float32(1), f"{key}.output_scale": mo.float32(1)}
    loader = memory_loader(ModelOptLoader, tensors | cache, mo.quantization("FP8"))
    checkpoint = Checkpoint(loader.source, loader, "modelopt")
    assert set(checkpoint.tensor_names()) == set(cache)
