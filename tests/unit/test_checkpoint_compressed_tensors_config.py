"""The config of compressed-tensors: defaults, targets, and everything that is refused."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from ct_cases import ct_config, int_args, packed_layer
from hypothesis import given
from hypothesis import strategies as st
from memory_checkpoint import memory_loader

from humming.checkpoints.compressed_tensors import CompressedTensorsLoader as Loader
from humming.checkpoints.ct_args import QuantArgs
from humming.checkpoints.ct_groups import CtConfig
from humming.checkpoints.ct_schemes import activation_scheme
from humming.errors import CheckpointError


def args(**values: Any) -> QuantArgs:
    return QuantArgs.parse(values, "weights")


def group_names(config: dict[str, Any], *layers: str) -> list[str | None]:
    parsed = CtConfig.parse(config)
    groups = [parsed.group_of(layer) for layer in layers]
    return [None if group is None else group.name for group in groups]


def several(**targets: list[str]) -> dict[str, Any]:
    config = ct_config(int_args(4, 32))
    config["config_groups"] = {
        name: {"targets": wanted, "weights": int_args(4, 32)} for name, wanted in targets.items()
    }
    return config


# -- defaults ---------------------------------------------------------------------------------


def test_what_a_config_leaves_out_has_the_tools_defaults() -> None:
    found = args()
    assert (found.bits, found.is_float, found.symmetric) == (8, False, True)
    assert (found.strategy, found.group, found.block) == ("tensor", 0, (0, 0))
    assert (found.dynamic, found.act_order, found.scale_dtype) == (False, False, "")


@pytest.mark.parametrize(
    ("values", "strategy"),
    [
        ({"group_size": 64}, "group"),
        ({"group_size": -1}, "channel"),
        ({"group_size": None}, "tensor"),
    ],
)
def test_the_strategy_follows_from_the_group_size(values: dict[str, Any], strategy: str) -> None:
    assert args(**values).strategy == strategy


def test_null_is_as_good_as_absent_and_case_does_not_matter() -> None:
    keys = ("num_bits", "type", "symmetric", "strategy", "block_structure", "dynamic", "observer")
    assert args(**dict.fromkeys(keys)) == args()
    assert args(type="FLOAT", strategy="Channel", dynamic=False).code == "float8"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_bits": 9}, "weights.num_bits: 9, expected 1 to 8"),
        ({"num_bits": "4"}, "weights.num_bits: '4', expected an integer"),
        ({"num_bits": True}, "weights.num_bits: True, expected an integer"),
        ({"type": "nf"}, "weights.type: 'nf', expected int, float"),
        ({"symmetric": 1}, "weights.symmetric: 1, expected true or false"),
        ({"strategy": "attn_head"}, "weights.strategy: 'attn_head'"),
        ({"strategy": "group"}, "weights.group_size: 0 with strategy 'group'"),
        ({"strategy": "channel", "group_size": 32}, "weights.group_size: 32 with strategy 'chan"),
        ({"group_size": -2}, "weights.group_size: -2"),
        ({"strategy": "block"}, "weights.block_structure: [0, 0] with strategy 'block'"),
        ({"block_structure": [8, 8]}, "weights.block_structure: [8, 8] with strategy 'tensor'"),
        ({"strategy": "block", "block_structure": "128"}, "expected [rows, columns]"),
        ({"strategy": "block", "block_structure": "12x-8"}, "two positive integers"),
        ({"strategy": "block", "block_structure": [128, 0]}, "two positive integers"),
        ({"strategy": "block", "block_structure": [128, True]}, "two positive integers"),
        ({"actorder": "some"}, "weights.actorder: 'some', expected group, dynamic, weight"),
        ({"actorder": 1}, "weights.actorder: 1"),
        ({"dynamic": "global"}, "weights.dynamic: 'global'"),
        ({"sparsity": 0.5}, "weights: unknown key 'sparsity'"),
    ],
)
def test_malformed_arguments_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        args(**values)
    assert message in str(caught.value)


# -- targets ----------------------------------------------------------------------------------


def test_a_name_wins_over_a_pattern_and_a_pattern_over_a_class() -> None:
    config = several(a=["Linear"], b=["re:.*mlp.*"], c=["layers.1.mlp.up"])
    layers = ("layers.0.attn.q", "layers.0.mlp.up", "layers.1.mlp.up")
    assert group_names(config, *layers) == ["a", "b", "c"]


def test_names_are_exact_and_patterns_start_at_the_start() -> None:
    config = several(a=["layers.1"], b=["re:layers\\.2"])
    layers = ("layers.1", "layers.10", "layers.1.mlp", "layers.2.mlp", "model.layers.2")
    assert group_names(config, *layers) == ["a", None, None, "b", None]


def test_the_first_pattern_in_alphabetical_order_wins() -> None:
    config = several(z=["re:.*up"], a=["re:.*mlp.*"])
    assert group_names(config, "layers.0.mlp.up") == ["a"]


def test_embeddings_are_their_own_class_where_a_group_names_it() -> None:
    layers = ("model.embed_tokens", "model.layers.0.up", "lm_head")
    both = several(linear=["Linear"], table=["Embedding"])
    assert group_names(both, *layers) == ["table", "linear", "linear"]
    assert group_names(several(linear=["Linear"]), *layers) == ["linear"] * 3


def test_classes_that_a_file_does_not_tell_apart_are_refused() -> None:
    assert group_names(several(a=["Conv1D"]), "layers.0.up") == ["a"]
    with pytest.raises(CheckpointError, match="which of the classes Conv1D, Linear it is"):
        group_names(several(a=["Linear"], b=["Conv1D"]), "layers.0.up")


def test_one_target_in_two_groups_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"config_groups\.b\.targets.*also a target of a"):
        CtConfig.parse(several(a=["Linear"], b=["Linear"]))


def test_ignore_lists_take_names_and_patterns() -> None:
    config = CtConfig.parse({**several(a=["Linear"]), "ignore": ["lm_head", "re:.*router"]})
    assert config.ignored_by("lm_head") == "lm_head"
    assert config.ignored_by("model.layers.3.router") == "re:.*router"
    assert config.ignored_by("model.lm_head") is None


def test_groups_without_weights_are_nobodys() -> None:
    config = several(a=["Linear"])
    config["config_groups"]["attn"] = {
        "targets": ["LlamaAttention"],
        "input_activations": {"num_bits": 8, "type": "float"},
    }
    assert group_names(config, "layers.0.up") == ["a"]


@pytest.mark.parametrize("groups", [None, {}])
def test_a_config_of_the_cache_alone_quantizes_nothing(groups: object) -> None:
    config = {"quant_method": "compressed-tensors", "config_groups": groups, "format": "dense"}
    tensors = {"attn.k_scale": torch.ones(1), "attn.k_proj.weight": torch.ones(2, 2)}
    assert list(memory_loader(Loader, tensors, config).plan()) == []


# -- formats ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "marlin-24"}, "format: 'marlin-24' is a legacy sparse format"),
        ({"format": "sparse-24-bitmask"}, "'sparse-24-bitmask' is a legacy sparse format"),
        ({"format": "zip"}, "format: 'zip', expected one of pack-quantized"),
        ({"format": "int-quantized-2"}, "expected one of"),
        ({"format": ["pack-quantized"]}, "expected one of"),
        ({"format": "mixed-precision"}, "group_0.format: missing, and the overall format is mixed"),
        ({"format": "float-quantized"}, "int4 in format 'float-quantized', which holds float8"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse weights are not supported"),
        ({"sparsity_config": [1]}, "sparse weights are not supported"),
        ({"transform_config": {"config_groups": {"u": {}}}}, "transformed activations are not"),
        ({"config_groups": [1]}, "config_groups: [1], expected an object"),
        ({"config_groups": {"W4A16": ["Linear"]}}, "config_groups.W4A16: a preset by name"),
        ({"config_groups": {"g": 3}}, "config_groups.g: 3, expected an object"),
        ({"config_groups": {"g": {"target": []}}}, "config_groups.g: unknown key 'target'"),
        ({"config_groups": {"g": {"targets": "Linear"}}}, "'Linear', expected a list of names"),
        ({"ignore": "lm_head"}, "ignore: 'lm_head', expected a list of names"),
        ({"ignore": [3]}, "ignore: [3], expected a list of names"),
    ],
)
def test_malformed_configs_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        CtConfig.parse({**ct_config(int_args(4, 32)), **change})
    assert message in str(caught.value)


@pytest.mark.parametrize("harmless", [{}, None, {"format": "dense", "ignore": []}])
def test_a_sparsity_config_of_dense_weights_changes_nothing(harmless: object) -> None:
    config = {**ct_config(int_args(4, 32)), "sparsity_config": harmless, "transform_config": {}}
    assert len(CtConfig.parse(config).groups) == 1


@pytest.mark.parametrize(
    ("form", "weights", "message"),
    [
        ("nvfp4-pack-quantized", {"group_size": 32}, "group_size: 32 in format 'nvfp4"),
        ("mxfp4-pack-quantized", {"group_size": 16}, "group_size: 16 in format 'mxfp4"),
        ("mxfp4-pack-quantized", {"strategy": "channel"}, "group_size: channel in format 'mxfp4"),
        ("mxfp4-pack-quantized", {"group_size": 32, "symmetric": False}, "symmetric: false with"),
        ("mxfp4-pack-quantized", {"group_size": 32, "dynamic": True}, "weights are stored"),
        ("naive-quantized", {"num_bits": 8, "strategy": "token"}, "'token' is for activations"),
        (
            "naive-quantized",
            {"num_bits": 8, "strategy": "tensor_group", "group_size": 16},
            "'tensor_group' is for float4 weights",
        ),
    ],
)
def test_float_formats_have_one_group_size(
    form: str, weights: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        CtConfig.parse(ct_config({"num_bits": 4, "type": "float", **weights}, form))
    assert message in str(caught.value)


def test_a_pattern_that_is_none_is_refused_by_name() -> None:
    config = CtConfig.parse(several(a=["re:("]))
    with pytest.raises(CheckpointError, match=r"pattern 're:\('"):
        config.group_of("layers.0.up")


def test_quantized_outputs_and_asymmetric_inputs_are_refused() -> None:
    config = ct_config(int_args(4, 32))
    config["config_groups"]["group_0"]["output_activations"] = {"num_bits": 8}
    with pytest.raises(CheckpointError, match="quantized outputs are not supported"):
        CtConfig.parse(config)
    dynamic = args(num_bits=8, strategy="token", dynamic=True, symmetric=False)
    with pytest.raises(CheckpointError, match="zero points of activations"):
        activation_scheme(dynamic)


# -- activations ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "scheme"),
    [
        ({"strategy": "token", "dynamic": True}, "s8-token-f32"),
        ({"num_bits": 4, "strategy": "token", "dynamic": True}, "s4-token-f32"),
        ({"type": "float", "strategy": "token", "dynamic": True}, "e4m3fn-token-f32"),
        ({"type": "float", "dynamic": True}, "e4m3fn-tensor-f32"),
        ({"type": "float"}, "e4m3fn-tensor-f32-static"),
        ({"type": "float", "group_size": 128, "dynamic": True}, "e4m3fn-g128-f32"),
        (
            {"type": "float", "group_size": 32, "dynamic": True, "scale_dtype": "torch.uint8"},
            "e4m3fn-g32-e8m0",
        ),
        (
            {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
             "dynamic": "local", "scale_dtype": "torch.float8_e4m3fn"},
            "e2m1-g16-e4m3fn-tensor-static",
        ),
        (
            {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
             "dynamic": True, "scale_dtype": "torch.float8_e4m3fn"},
            "e2m1-g16-e4m3fn",
        ),
    ],
)  # fmt: skip
def test_activation_arguments_become_schemes(values: dict[str, Any], scheme: str) -> None:
    assert str(activation_scheme(args(**values))) == scheme


@pytest.mark.parametrize(
    "values",
    [
        {"strategy": "token"},
        {"group_size": 32},
        {"strategy": "channel"},
        {"strategy": "tensor_group", "group_size": 16},
        {"group_size": 64, "dynamic": True, "type": "float", "scale_dtype": "torch.uint8"},
        {"strategy": "token", "dynamic": True, "scale_dtype": "torch.int8"},
        {"num_bits": 5, "type": "float", "dynamic": True},
    ],
)
def test_activations_without_a_form_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="not supported"):
        activation_scheme(args(**values))


def test_local_scales_are_e4m3_even_if_the_config_leaves_their_dtype_out() -> None:
    values = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    found = activation_scheme(args(**values, dynamic="local"))
    assert str(found) == "e2m1-g16-e4m3fn-tensor-static"


# -- anything at all --------------------------------------------------------------------------

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 200) | st.sampled_from(["group", "x", "re:("]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)


def _paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [prefix] if prefix else []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += _paths(inner, (*prefix, key))
    return found


@given(st.data())
def test_a_mutated_config_loads_or_raises_checkpoint_error(data: st.DataObject) -> None:
    tensors, _ = packed_layer(np.random.default_rng(0), (4, 24, 64), 32, asym=True)
    weights = {**int_args(4, 32, symmetric=False), "actorder": None, "dynamic": False}
    config = ct_config(weights, input_activations={"strategy": "token", "dynamic": True})
    config = copy.deepcopy(config)
    path = data.draw(st.sampled_from(_paths(config)))
    inner: Any = config
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = data.draw(_JSON)
    loader = memory_loader(Loader, tensors, config)
    try:
        for plan in loader.plan():
            loader.load(plan)
    except CheckpointError:
        pass
