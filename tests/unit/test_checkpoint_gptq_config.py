"""GPTQ configs: rules for single layers, lm_head, and everything that is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from int_packers import gptq_tensors, random_layer
from memory_checkpoint import fixture_loader, memory_loader

from humming.checkpoints.gptq import GptqLoader
from humming.errors import CheckpointError

CONFIG: dict[str, Any] = {
    "quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False,
    "checkpoint_format": "gptq_v2",
}  # fmt: skip


def loader_of(tensors: dict[str, torch.Tensor], **changes: Any) -> GptqLoader:
    return memory_loader(GptqLoader, tensors, {**CONFIG, **changes})


def two_widths() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Tensors of ``model.layers.1.up`` at 4 bits, ``model.layers.10.up`` at 8; their values."""
    up, down = random_layer(32, 64, 32, 4), random_layer(32, 64, 16, 8)
    tensors = {
        **gptq_tensors(up, "model.layers.1.up"),
        **gptq_tensors(down, "model.layers.10.up"),
        "model.layers.2.up.weight": torch.zeros(8, 8),
    }
    return tensors, {"model.layers.1.up": up.values, "model.layers.10.up": down.values}


def test_dynamic_overrides_one_layer() -> None:
    tensors, values = two_widths()
    rules = {
        r"-:model\.layers\.2\.": {},
        r"+:.*layers\.10\.up$": {"bits": 8, "group_size": 16},
        r".*\.10\..*": {"bits": 2},  # too late: the first match decides
    }
    loader = loader_of(tensors, dynamic=rules)
    plans = {plan.name: plan for plan in loader.plan()}
    assert {name: str(plan.scheme) for name, plan in plans.items()} == {
        "model.layers.1.up": "u4+z-g32-f16",
        "model.layers.10.up": "u8+z-g16-f16",
    }
    for name, plan in plans.items():
        assert torch.equal(loader.load(plan).dequantize(torch.float64), values[name])


def test_dynamic_rules_match_from_the_start_of_a_name() -> None:
    tensors, _ = two_widths()
    loader = loader_of(tensors, dynamic={r"layers\.10": {"bits": 8, "group_size": 16}})
    with pytest.raises(CheckpointError, match=r"model\.layers\.10\.up\.qweight"):
        loader.plan()


def test_a_prefix_covers_every_name_that_it_begins() -> None:
    # "model.layers.1" is a regular expression for layers 1, 10, 11, ... and so it is in the tool.
    tensors, _ = two_widths()
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.up\.qweight.*excluded"):
        loader_of(tensors, dynamic={"-:model.layers.1": {}}).plan()


def test_an_excluded_layer_that_is_quantized_is_refused() -> None:
    tensors, _ = two_widths()
    with pytest.raises(CheckpointError, match=r"layers\.10\.up\.qweight.*excluded by `dynamic`"):
        loader_of(tensors, dynamic={r"-:.*layers\.10\..*": {}}).plan()


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"+:(": {"bits": 8}}, r"per-layer rule '\+:\('"),
        ({"+:x": 8}, r"'\+:x': expected an object, found 8"),
        ({".*": {"bits": "8"}}, "bits='8', expected int"),
        (["x"], "dynamic=.*expected dict"),
    ],
)
def test_a_malformed_rule_is_refused(rules: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        loader_of(gptq_tensors(random_layer(32, 64, 32, 4)), dynamic=rules).plan()


def test_auto_rounds_plain_export_has_its_widths_and_exclusions() -> None:
    loader = fixture_loader(GptqLoader, "auto_round/plain_gptq")
    assert {plan.name: str(plan.scheme) for plan in loader.plan()} == {
        "model.layers.0.mlp.down_proj": "u4-g32-f16",
        "model.layers.0.self_attn.q_proj": "u4-g32-f16",
        "model.layers.0.self_attn.k_proj": "u8-g32-f16",
    }


def test_lm_head_is_quantized_if_the_file_says_so() -> None:
    head = gptq_tensors(random_layer(32, 64, 32, 4), "lm_head")
    for said in (True, None):
        (plan,) = loader_of(head, lm_head=said).plan()
        assert plan.name == "lm_head"
    with pytest.raises(CheckpointError, match="lm_head=False, but 'lm_head' is quantized"):
        loader_of(head, lm_head=False).plan()


def test_lm_head_is_left_alone_if_the_file_says_so() -> None:
    tensors = {
        **gptq_tensors(random_layer(32, 64, 32, 4)),
        "model.lm_head.weight": torch.zeros(4, 4),
    }
    for said in (False, None):
        assert len(loader_of(tensors, lm_head=said).plan()) == 1
    with pytest.raises(CheckpointError, match=r"lm_head=True, but 'model.lm_head' is not"):
        loader_of(tensors, lm_head=True).plan()
    del tensors["model.lm_head.weight"]  # tied to the embedding
    assert len(loader_of(tensors, lm_head=True).plan()) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint_format": "marlin"}, "checkpoint_format='marlin', expected gptq or gptq_v2"),
        ({"checkpoint_format": None, "format": "bitblas"}, "format='bitblas'"),
        ({"format": "gptq"}, "format='gptq', expected gptq_v2, as checkpoint_format says"),
        ({"is_marlin_format": True}, "is_marlin_format=True"),
        ({"method": "qqq"}, "method='qqq', expected gptq"),
        ({"pack_dtype": "int8"}, "pack_dtype='int8', expected int32"),
        ({"rotation": "hadamard"}, "rotation='hadamard'.*activations"),
        ({"activation": {"mode": "w4afp8"}}, "activation="),
        ({"bits": 1}, "bits=1, expected 2 or 3"),
        ({"bits": True}, "bits=True, expected int"),
        ({"bits": None}, "bits=None, expected int"),
        ({"group_size": 0}, "group_size=0, expected a positive size"),
        ({"group_size": "32"}, "group_size='32', expected int"),
        ({"sym": 1}, "sym=1, expected bool"),
        ({"desc_act": "yes"}, "desc_act='yes', expected bool"),
        ({"lm_head": "no"}, "lm_head='no', expected bool"),
        ({"meta": []}, r"meta=\[\], expected dict"),
    ],
)
def test_a_setting_that_is_not_understood_is_refused(changes: Any, message: str) -> None:
    changes = {"checkpoint_format": "gptq", **changes} if "meta" in changes else changes
    bits = 3 if "meta" in changes else 4
    loader = loader_of(gptq_tensors(random_layer(32, 64, 32, bits)), **{"bits": bits, **changes})
    with pytest.raises(CheckpointError, match=message):
        loader.plan()


@pytest.mark.parametrize("spelling", ["int32", "torch.int32", None])
@pytest.mark.parametrize("key", ["format", "checkpoint_format"])
def test_spellings_that_files_have_are_read(spelling: str | None, key: str) -> None:
    tensors = gptq_tensors(random_layer(32, 64, 32, 4))
    settings = {"checkpoint_format": None, key: "gptq_v2", "method": "gptq", "pack_dtype": spelling}
    (plan,) = loader_of(tensors, **settings).plan()
    assert plan.detail.offset == 0


def test_no_format_means_version_one() -> None:
    (plan,) = loader_of(
        gptq_tensors(random_layer(32, 64, 32, 4)), checkpoint_format=None, is_marlin_format=False
    ).plan()
    assert plan.detail.offset == 1


@pytest.mark.parametrize(
    ("tensor", "replacement", "message"),
    [
        ("qweight", torch.zeros(8, 32), r"expected I32, found F32"),
        ("qweight", torch.zeros(8, dtype=torch.int32), "expected 2 dimensions"),
        ("qweight", torch.zeros(9, 32, dtype=torch.int32), "9 rows of words, expected 8 for K=64"),
        ("scales", None, "layer.scales.*missing"),
        ("scales", torch.zeros(2, 33), r"expected \[2, 32\] for K=64, group_size 32"),
        ("scales", torch.zeros(3, 32), r"expected \[2, 32\] for K=64"),
        ("scales", torch.zeros(2, 32, dtype=torch.int32), "expected scales in f16 or bf16 or f32"),
        ("qzeros", None, "layer.qzeros.*missing, and the config does not say sym"),
        ("qzeros", torch.zeros(2, 5, dtype=torch.int32), r"expected I32 \[2, 4\] for N=32"),
        ("qzeros", torch.zeros(2, 4), r"expected I32 \[2, 4\]"),
        ("g_idx", torch.zeros(65, dtype=torch.int32), "8 rows of words, expected 9 for K=65"),
        ("g_idx", torch.zeros(64), "expected I32 or I64, found F32"),
        ("bias", torch.zeros(31), r"layer.bias.*expected \[32\]"),
        ("bias", torch.zeros(32, dtype=torch.int32), "expected F16 or BF16 or F32"),
    ],
)
def test_a_tensor_of_the_wrong_kind_is_named(
    tensor: str, replacement: torch.Tensor | None, message: str
) -> None:
    tensors = gptq_tensors(random_layer(32, 64, 32, 4))
    if replacement is None:
        del tensors[f"layer.{tensor}"]
    else:
        tensors[f"layer.{tensor}"] = replacement
    with pytest.raises(CheckpointError, match=message):
        loader_of(tensors).plan()


def test_another_width_than_the_config_says_is_noticed() -> None:
    tensors = gptq_tensors(random_layer(32, 64, 32, 4), g_idx=False)
    with pytest.raises(CheckpointError, match=r"layer.scales.*expected \[1, 32\] for K=32"):
        loader_of(tensors, bits=8).plan()


def test_k_that_words_leave_open_is_refused() -> None:
    tensors = gptq_tensors(random_layer(32, 100, 32, 3), g_idx=False)
    with pytest.raises(CheckpointError, match="10 rows of words, expected a multiple of 3"):
        loader_of(tensors, bits=3).plan()


def test_desc_act_needs_g_idx() -> None:
    tensors = gptq_tensors(random_layer(32, 64, 32, 4), g_idx=False)
    with pytest.raises(CheckpointError, match=r"layer.g_idx.*missing, but desc_act is true"):
        loader_of(tensors, desc_act=True).plan()


def test_planar_codes_need_multiples_of_32() -> None:
    tensors = gptq_tensors(random_layer(32, 64, 32, 5), is_planar=True)
    tensors["layer.g_idx"] = tensors["layer.g_idx"][:63]
    with pytest.raises(CheckpointError, match="multiples of 32, found N=32, K=63"):
        loader_of(tensors, bits=5).plan()


def test_an_infinite_scale_is_refused() -> None:
    tensors = gptq_tensors(random_layer(32, 64, 32, 4))
    tensors["layer.scales"][1, 3] = float("inf")
    loader = loader_of(tensors)
    (plan,) = loader.plan()
    with pytest.raises(CheckpointError, match=r"layer.scales.*NaN or infinite"):
        loader.load(plan)
