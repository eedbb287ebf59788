"""`humming compile` and layers of experts: which layers are one, and with what between them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from cli_runner import invoke, random_weight, save
from fake_engine import fake

from humming import Checkpoint, CheckpointError, Gating, UnsupportedError, load_checkpoint
from humming.cli.expert_layers import (
    expert_layers,
    gating_argument,
    gating_of,
    loose_experts,
    read_product,
    top_k_of,
)

__all__ = ["fake"]

STACKED = {"gate_up_proj": (3, 64, 64), "down_proj": (3, 64, 32)}
SINGLE = {"w1": (32, 64), "w3": (32, 64), "w2": (64, 32)}


def checkpoint_of(folder: Path, shapes: dict[str, tuple[int, ...]], **config: object) -> Checkpoint:
    folder.mkdir()
    layers = {name: random_weight("u4-g32-bf16", *shape) for name, shape in shapes.items()}
    save(folder / "model.safetensors", layers)
    (folder / "config.json").write_text(json.dumps(config))
    return load_checkpoint(folder)


def of_layer(prefix: str, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def test_stacks_and_single_experts_are_found_with_their_shared_ones(tmp_path: Path) -> None:
    shapes = of_layer("layers.0.mlp.experts", STACKED)
    for i in range(3):
        shapes |= of_layer(f"layers.1.mlp.experts.{i}", SINGLE)
    shapes |= of_layer("layers.1.mlp.shared_expert", SINGLE)
    shapes["layers.1.mlp.gate_proj"] = (32, 64)
    shapes["layers.2.experts.up_proj"] = (3, 32, 64)
    checkpoint = checkpoint_of(tmp_path / "m", shapes)
    stacked, single = expert_layers(checkpoint, list(checkpoint))
    assert (stacked.name, stacked.experts, stacked.shared) == ("layers.0.mlp.experts", 3, None)
    assert stacked.first == (("layers.0.mlp.experts.gate_up_proj",),)
    assert (single.name, single.experts) == ("layers.1.mlp.experts", 3)
    numbers = [f"layers.1.mlp.experts.{i}" for i in range(3)]
    assert single.first == tuple(tuple(f"{e}.{w}" for e in numbers) for w in ("w1", "w3"))
    shared = [f"layers.1.mlp.shared_expert.{name}" for name in SINGLE]
    assert single.shared == (((shared[0],), (shared[1],)), (shared[2],))
    loose = loose_experts(checkpoint, list(checkpoint), [stacked, single])
    assert loose == ["layers.2.experts.up_proj"]
    assert read_product(checkpoint, single.first, 3).shape == (2, 64, 64)
    assert read_product(checkpoint, single.shared[0], 0).shape == (64, 64)
    # Part of them is not the layer.
    some = [name for name in checkpoint if not name.endswith("experts.2.w3")]
    assert [layer.name for layer in expert_layers(checkpoint, some)] == [stacked.name]


def test_a_single_expert_is_a_stack_of_one_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path / "a", of_layer("experts.0", SINGLE))
    (layer,) = expert_layers(checkpoint, list(checkpoint))
    assert read_product(checkpoint, layer.first, 1).shape == (1, 64, 64)
    holes = of_layer("experts.0", SINGLE) | of_layer("experts.2", SINGLE)
    checkpoint = checkpoint_of(tmp_path / "b", holes)
    with pytest.raises(CheckpointError, match=r"experts\.1\.w1 is missing"):
        expert_layers(checkpoint, list(checkpoint))


@pytest.mark.parametrize(
    ("config", "gated", "found"),
    [
        ({}, True, "swiglu"),
        ({"hidden_act": "silu"}, True, "swiglu"),
        ({"hidden_act": "silu"}, False, "silu"),
        ({"text_config": {"hidden_activation": "gelu_pytorch_tanh"}}, True, "geglu_tanh"),
        ({"mlp_hidden_act": "relu2", "hidden_act": "silu"}, False, "relu2"),
        ({"model_type": "gpt_oss", "hidden_act": "silu"}, True,
         "swiglu_oai(alpha=1.702, limit=7, interleaved)"),
        ({"model_type": "gpt_oss", "swiglu_limit": 6}, True,
         "swiglu_oai(alpha=1.702, limit=6, interleaved)"),
        ({"model_type": "deepseek_v4", "swiglu_limit": 9.5}, True, "swiglu_clamped(limit=9.5)"),
    ],
)  # fmt: skip
def test_the_function_is_what_the_config_says(
    tmp_path: Path, config: dict[str, object], gated: bool, found: str
) -> None:
    checkpoint = checkpoint_of(tmp_path / "m", of_layer("experts", STACKED), **config)
    (layer,) = expert_layers(checkpoint, list(checkpoint))
    assert str(gating_of(checkpoint, layer, gated)) == found


@pytest.mark.parametrize(
    ("config", "gated", "why"),
    [
        ({"hidden_act": "mystery"}, True, "'mystery', and with a gate"),
        ({"hidden_act": "relu2"}, True, "with a gate none of that name"),
        ({}, False, "no hidden_act"),
    ],
)
def test_an_unknown_function_is_named(
    tmp_path: Path, config: dict[str, object], gated: bool, why: str
) -> None:
    checkpoint = checkpoint_of(tmp_path / "m", of_layer("experts", STACKED), **config)
    (layer,) = expert_layers(checkpoint, list(checkpoint))
    with pytest.raises(UnsupportedError, match=f"{why}.*--gating"):
        gating_of(checkpoint, layer, gated)


def test_the_config_of_a_language_model_or_of_gguf_says_how_many_experts(tmp_path: Path) -> None:
    for i, (config, found) in enumerate([
        ({"text_config": {"num_experts_per_tok": 6}}, 6),
        ({"qwen3moe.expert_used_count": 8}, 8),
        ({"moe_topk": [1, 2]}, 1),
    ]):  # fmt: skip
        assert top_k_of(checkpoint_of(tmp_path / str(i), {"a": (32, 32)}, **config)) == found


def test_a_function_can_be_given() -> None:
    assert gating_argument("geglu") == Gating.of("geglu")
    given = gating_argument("swiglu_oai,interleaved, limit=5")
    assert given == Gating.of("swiglu_oai", interleaved=True, limit=5)
    for text in ("nothing", "swiglu,limit=2", "swiglu_oai,limit", "relu2,interleaved"):
        with pytest.raises(argparse.ArgumentTypeError, match=text):
            gating_argument(text)


@pytest.mark.compile
@pytest.mark.usefixtures("fake")
def test_what_fails_and_what_is_no_layer_is_said(tmp_path: Path) -> None:
    shapes = of_layer("experts", STACKED) | {"other.up_proj": (3, 32, 64)}
    checkpoint_of(tmp_path / "m", shapes, hidden_act="mystery")

    def run(*more: str) -> tuple[int, str]:
        result = invoke("compile", tmp_path / "m", "--profile", "nvidia-a100", "--backend", "fake",
                        "--out", tmp_path / "o", "--m", "1", *more)  # fmt: skip
        return result.status, result.out

    status, out = run()
    assert status == 1
    assert "no kernels: experts (1 layer): config.json names" in out
    assert "no whole layer of experts, so each is compiled alone: other.up_proj" in out
    status, out = run("--gating", "reglu")
    assert status == 0, out
    assert "experts: experts (1 layer): reglu" in out
    assert run("--gating", "relu2")[0] == 1  # its inputs are no [2 I, H]
