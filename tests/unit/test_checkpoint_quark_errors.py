"""What QuarkLoader refuses, and what it says."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import quark_files as qf
import torch
from memory_checkpoint import memory_loader

from humming.checkpoints.checkpoint import Checkpoint
from humming.checkpoints.quark import QuarkLoader
from humming.errors import CheckpointError

UP = "model.layers.1.mlp.up_proj"
Tensors = dict[str, torch.Tensor]
INT8 = qf.spec("int8", "per_channel")
INT4 = qf.spec("int4", "per_group", group_size=16)


def refusal(tensors: Tensors, config: dict[str, Any]) -> str:
    """The message; nothing may have been read before it."""
    loader = memory_loader(QuarkLoader, tensors, config)
    with pytest.raises(CheckpointError) as error:
        list(loader.plan())
    assert loader.store.read == []  # type: ignore[attr-defined]
    return str(error.value)


def changed(tensors: Tensors, changes: dict[str, torch.Tensor | None]) -> Tensors:
    """A layer with some of its tensors replaced, added or removed."""
    result = dict(tensors)
    for suffix, tensor in changes.items():
        result.pop(f"{UP}.{suffix}", None)
        if tensor is not None:
            result[f"{UP}.{suffix}"] = tensor
    return result


def int8(**changes: torch.Tensor | None) -> Tensors:
    sound = {
        f"{UP}.weight": torch.zeros(8, 64, dtype=torch.int8),
        f"{UP}.weight_scale": torch.ones(8),
        f"{UP}.weight_zero_point": torch.zeros(8, dtype=torch.int8),
    }
    return changed(sound, changes)


def int4(n: int = 24, k: int = 64, **changes: torch.Tensor | None) -> Tensors:
    rng = np.random.default_rng(0)
    sound = {
        f"{UP}.weight": qf.words(rng.integers(-8, 8, (k, n)), True),
        f"{UP}.weight_scale": torch.ones(k // 16, n),
        f"{UP}.weight_zero_point": qf.words(np.zeros((k // 16, n), dtype=int), True),
    }
    return changed(sound, changes)


@pytest.mark.parametrize(("config", "expected"), [
    (qf.config(INT8, export={"weight_format": "fake_quantized"}),
     "export.weight_format='fake_quantized', expected real_quantized"),
    (qf.config(INT8, quant_mode="fx_graph_mode"), "quant_mode='fx_graph_mode', expected eager"),
    (qf.config(INT8, exclude="lm_head"), "exclude='lm_head', expected a list of strings"),
    (qf.config(INT8, layer_quant_config=[1]), "layer_quant_config=[1], expected an object"),
    (qf.config(INT8, layer_quant_config={"*": 3}), "layer_quant_config.*=3, expected an object"),
    (qf.config([INT8, INT8, INT8]), "'3 stages', expected one or two"),
    (qf.config([INT8, 7]), "global_quant_config.weight[1]=7, expected an object"),
    (qf.config(qf.spec("int5", "per_channel")), "weight.dtype='int5', expected one of fp4"),
    (qf.config(qf.spec("uint2", "per_group", group_size=16)), "weight.dtype='uint2', expected one"),
    (qf.config(qf.spec("mx6", "per_group", group_size=16)), "weight.dtype='mx6', expected one"),
    (qf.config(qf.spec("int8", "per_token")), "weight.qscheme='per_token', expected one of"),
    (qf.config(qf.spec("int8", "per_channel", scale_format="e4m3")), "weight.scale_format='e4m3'"),
    (qf.config(qf.spec("int8", "per_channel", zero_point_type="float32")),
     "weight.zero_point_type='float32', expected int32"),
    (qf.config(qf.spec("int8", "per_group")), "weight.group_size=None, expected a positive"),
    (qf.config(qf.spec("int8", "per_group", group_size=True)), "weight.group_size=True, expected"),
    (qf.config(qf.spec("fp8_e4m3", "per_block", block_size=[128])), "weight.block_size=[128], exp"),
    (qf.config(qf.spec("fp8_e4m3", "per_block", block_size=[0, 8])), "weight.block_size=0, exp"),
    (qf.config(qf.spec("int8", "per_channel", ch_axis=1)), "weight.ch_axis=1, expected 0"),
    (qf.config(qf.spec("int8", "per_group", group_size=8, ch_axis=0)), "weight.ch_axis=0, expect"),
    (qf.config(qf.spec("int8", "per_channel", is_dynamic=True)), "weight is dynamic, expected"),
    (qf.config(qf.spec("fp8_e4m3", "per_tensor", is_scale_quant=True)), "about scales, expected"),
])  # fmt: skip
def test_a_config_that_cant_be_read_names_the_key(config: dict[str, Any], expected: str) -> None:
    assert expected in refusal(int8(), config)


@pytest.mark.parametrize("part", ["bias", "output_tensors"])
def test_quantized_biases_and_outputs_are_refused_by_name(part: str) -> None:
    fp8 = qf.spec("fp8_e4m3", "per_tensor")
    config = qf.config(INT8)
    config["global_quant_config"][part] = fp8
    assert f"global_quant_config.{part}=" in refusal(int8(), config)
    # An entry for the cache of k_proj excuses k_proj only.
    config["kv_cache_quant_config"] = {"*k_proj": {}}
    assert f"global_quant_config.{part}=" in refusal(int8(), config)


@pytest.mark.parametrize(("inputs", "expected"), [
    (qf.spec("uint8", "per_tensor", is_dynamic=True), "is uint8 with zero points"),
    (qf.spec("int8", "per_tensor", is_dynamic=True, symmetric=False), "int8 with zero points"),
    (qf.spec("int8", "per_channel"), "is static per_channel; expected static per_tensor"),
    (qf.spec("int8", "per_group", group_size=32), "is static per_group"),
    (qf.spec("int8", "per_channel", ch_axis=-1, is_dynamic=True), "per_channel with ch_axis=-1"),
    (qf.spec("int8", "per_group", ch_axis=0, group_size=32, is_dynamic=True), "with ch_axis=0"),
    (qf.spec("fp8_e4m3", "per_block", block_size=[1, 32], is_dynamic=True), "is per_block"),
    (qf.spec("fp8_e4m3", "per_tensor", is_scale_quant=True), "is about scales"),
    ([qf.spec("fp8_e4m3", "per_tensor"), qf.spec("int4", "per_channel")], "has two stages"),
    ([qf.spec("fp4", "per_group", group_size=16), qf.spec("fp8_e4m3", "per_tensor",
                                                          is_scale_quant=True)], "has two stages"),
])  # fmt: skip
def test_activations_that_no_scheme_describes_are_refused(inputs: Any, expected: str) -> None:
    message = refusal(int8(), qf.config(INT8, inputs))
    assert "global_quant_config.input_tensors" in message
    assert expected in message


@pytest.mark.parametrize(("changes", "expected"), [
    ({"weight": None}, f"'{UP}.weight': missing"),
    ({"weight": torch.zeros(8, 64)}, "expected I8, found F32 [8, 64]"),
    ({"weight": torch.zeros(2, 8, 64, dtype=torch.int8)}, "expected 2 dimensions"),
    ({"weight_scale": None}, f"'{UP}.weight_scale': missing; global_quant_config.weight is"),
    ({"weight_scale": torch.ones(64)}, "expected per_channel scales [8, 1] or [8] for codes I8"),
    ({"weight_scale": torch.ones(8, dtype=torch.uint8)}, "expected scales in f32 or bf16 or f16"),
    ({"weight_zero_point": torch.zeros(8)}, "expected I8, found F32 [8]"),
    ({"weight_zero_point": torch.zeros(1, dtype=torch.int8)}, "expected shape [8], found I8 [1]"),
    ({"bias": torch.ones(64)}, "expected shape [8], found F32 [64]"),
    ({"bias": torch.ones(8, dtype=torch.int8)}, "expected F16 or BF16 or F32, found I8 [8]"),
    ({"weight_scale_2": torch.ones(1)}, "present, but global_quant_config.weight has no use"),
    ({"input_scale": torch.ones(1)}, "present, but global_quant_config.weight has no use"),
    ({"weight_scale_inv": torch.ones(8)}, "mean the same; expected one"),
    ({"input_rotation": torch.ones(64, 64)}, f"'{UP}.input_rotation': inputs that are transformed"),
])  # fmt: skip
def test_tensors_that_disagree_with_the_spec_are_named(
    changes: dict[str, torch.Tensor | None], expected: str
) -> None:
    assert expected in refusal(int8(**changes), qf.config(INT8))


@pytest.mark.parametrize("role", ["weight_scale_inv", "input_quantizer.scale", "weight_scale_2"])
def test_scales_without_codes_are_refused(role: str) -> None:
    assert f"'{UP}.weight': missing" in refusal({f"{UP}.{role}": torch.ones(1)}, qf.config(INT8))


def test_static_activations_without_their_scale_are_refused() -> None:
    config = qf.config(INT8, qf.spec("int8", "per_tensor"))
    assert f"'{UP}.input_scale': missing" in refusal(int8(), config)
    wrong = int8(input_scale=torch.ones(8))
    assert "input_scale': expected shape [] or [1], found F32 [8]" in refusal(wrong, config)
    stages = [
        qf.spec("fp4", "per_group", group_size=16, is_dynamic=True),
        qf.spec("fp8_e4m3", "per_tensor", is_scale_quant=True),
    ]
    message = refusal(int8(input_scale=torch.ones(())), qf.config(INT8, stages))
    assert f"'{UP}.input_scale_2': missing" in message


def test_unsigned_codes_need_their_zero_points() -> None:
    tensors = int8(weight=torch.zeros(8, 64, dtype=torch.uint8), weight_zero_point=None)
    message = refusal(tensors, qf.config(qf.spec("uint8", "per_channel")))
    assert f"'{UP}.weight_zero_point': missing" in message


@pytest.mark.parametrize("pack", [None, "shuffle"])
def test_the_order_of_nibbles_is_never_guessed(pack: str | None) -> None:
    assert f"export.pack_method={pack!r}, expected reorder" in refusal(
        int4(), qf.config(INT4, pack=pack)
    )
    # It matters to words only.
    assert list(memory_loader(QuarkLoader, int8(), qf.config(INT8, pack=pack)).plan())


def test_scales_that_may_lie_either_way_need_a_version() -> None:
    """Before 0.7 scales were [N, K/g], since then [K/g, N]; since 0.9 the version is written."""
    tensors = int4(n=8, k=128)
    tensors[f"{UP}.weight_scale"] = torch.arange(64.0).reshape(8, 8)
    new = memory_loader(QuarkLoader, tensors, qf.config(INT4))
    (plan,) = new.plan()
    assert torch.equal(new.load(plan).scales, torch.arange(64.0).reshape(8, 8).t())
    message = refusal(tensors, qf.config(INT4, version=None))
    assert "F32 [8, 8] may be [K/g, N] or [N, K/g]" in message
    int3 = {
        f"{UP}.weight": torch.zeros(8, 24, dtype=torch.uint8),
        f"{UP}.weight_scale": torch.ones(8, 8),
    }
    message = refusal(int3, qf.config(qf.spec("int3", "per_group", group_size=8)))
    assert "may be [K/g, N] or [N, K/g]" in message  # versions 0.10 to 0.13 differ


@pytest.mark.parametrize(("spec", "tensors", "expected"), [
    (INT4, int4(weight_scale=torch.ones(4, 32)), "expected per_group scales [24, 4] or [4, 24]"),
    (INT4, int4(weight_scale=torch.ones(24)), "expected per_group scales"),
    (INT4, int4(weight_scale=torch.ones(8, 24)), "expected per_group scales"),
    (qf.spec("int4", "per_group", group_size=48), int4(), "(none fit)"),
    (qf.spec("int3", "per_channel"), int8(weight=torch.zeros(8, 25, dtype=torch.uint8)),
     "no whole number of 3-bit codes"),
    (qf.spec("mx", "per_group", group_size=32, mx_element_dtype="fp4"),
     {f"{UP}.weight": torch.zeros(8, 32, dtype=torch.uint8)}, "expected rows of 17-byte blocks"),
    (qf.spec("mx", "per_group", group_size=32, mx_element_dtype="fp6_e2m3"),
     {f"{UP}.weight": torch.zeros(8, 34, dtype=torch.uint8)}, "mx of fp6_e2m3 per 32, expected"),
    ([INT8, qf.spec("int8", "per_tensor", is_scale_quant=True)], int8(),
     "weight[1].dtype='int8', expected one of fp8_e4m3"),
    ([qf.spec("fp8_e4m3", "per_tensor", symmetric=False), INT8],
     int8(weight_scale_2=torch.ones(8)), "expected a symmetric float per tensor or per channel"),
    ([qf.spec("int8", "per_tensor"), INT8], int8(weight_scale_2=torch.ones(8)),
     "weight[0] is per_tensor int8, expected a symmetric float"),
    ([INT8, qf.spec("fp8_e4m3", "per_tensor", is_scale_quant=True)],
     int8(weight_scale=torch.ones(8).to(torch.float8_e4m3fn)), "weight_scale_2': missing"),
])  # fmt: skip
def test_shapes_and_stages_that_do_not_fit_are_refused(
    spec: Any, tensors: Tensors, expected: str
) -> None:
    assert expected in refusal(tensors, qf.config(spec))


@pytest.mark.parametrize("pattern", ["lm_head", "lm_*", "re:lm_head"])
def test_an_excluded_layer_with_scales_is_refused(pattern: str) -> None:
    tensors = {name.replace(UP, "lm_head"): tensor for name, tensor in int8().items()}
    message = refusal(tensors, qf.config(INT8, exclude=[pattern]))
    assert "'lm_head.weight_scale'" in message
    assert f"the config excludes it ({pattern!r})" in message


def test_a_layer_whose_weight_has_no_spec_is_refused_if_it_is_coded() -> None:
    config = qf.config(INT8, layer_quant_config={"*.up_proj": {"weight": None}})
    assert "the config has no spec" in refusal(int8(), config)


@pytest.mark.parametrize(("spec", "tensors", "expected"), [
    (INT8, int8(weight_zero_point=torch.ones(8, dtype=torch.int8)),
     "weight_zero_point': not all 0, though global_quant_config.weight is symmetric"),
    (qf.spec("int2", "per_channel"),
     int8(weight=torch.full((8, 64), 2, dtype=torch.int32), weight_zero_point=None),
     "weight': expected integers from -2 to 1, found 2 to 2"),
    (qf.spec("uint4", "per_tensor"),
     {f"{UP}.weight": torch.zeros(8, 8, dtype=torch.int32), f"{UP}.weight_scale": torch.ones(()),
      f"{UP}.weight_zero_point": torch.tensor(16, dtype=torch.int32)},
     "weight_zero_point': expected integers from 0 to 15, found 16 to 16"),
    (INT8, int8(weight_scale=torch.full((8,), torch.nan)), "scale at [0, 0] is NaN or infinite"),
    (qf.spec("mx", "per_group", group_size=32, mx_element_dtype="fp4"),
     {f"{UP}.weight": torch.full((8, 17), 0x80, dtype=torch.uint8)}, "a scale of 2^-128"),
])  # fmt: skip
def test_values_that_the_spec_rules_out_are_refused_when_read(
    spec: Any, tensors: Tensors, expected: str
) -> None:
    loader = memory_loader(QuarkLoader, tensors, qf.config(spec))
    with pytest.raises(CheckpointError, match=re.escape(expected)):
        loader.load(next(iter(loader.plan())))


def test_asymmetric_static_activations_are_refused_when_read() -> None:
    tensors = int8(input_scale=torch.ones(()), input_zero_point=torch.tensor(3, dtype=torch.int8))
    loader = memory_loader(QuarkLoader, tensors, qf.config(INT8, qf.spec("int8", "per_tensor")))
    (plan,) = loader.plan()
    assert f"{UP}.input_zero_point" in plan.tensors
    with pytest.raises(CheckpointError, match="input_zero_point': not 0"):
        loader.load(plan)


def test_the_checkpoint_leaves_the_cache_alone_and_nothing_else() -> None:
    key = "model.k_proj"
    tensors = {name.replace(UP, key): tensor for name, tensor in int8().items()}
    tensors |= {f"{key}.k_scale": torch.ones(()), f"{key}.output_scale": torch.ones(())}
    loader = memory_loader(QuarkLoader, tensors, qf.config(INT8))
    checkpoint = Checkpoint(loader.source, loader, "quark")
    assert set(checkpoint.tensor_names()) == {f"{key}.k_scale", f"{key}.output_scale"}
