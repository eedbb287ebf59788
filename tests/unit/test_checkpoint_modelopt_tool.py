"""What ModelOpt wrote reads as ModelOpt reads it: tests/fixtures/modelopt."""

from __future__ import annotations

import json

import pytest
import torch
from memory_checkpoint import FIXTURES, fixture_expected, fixture_loader

from humming.checkpoints.base import LayerPlan, Source
from humming.checkpoints.checkpoint import Checkpoint
from humming.checkpoints.modelopt import ModelOptLoader
from humming.checkpoints.store import SafetensorsStore

#: case → scheme and activation of each layer, by the last component of its name.
CASES = {
    "fp8": {
        "down_proj": ("e4m3fn-tensor-f32", "e4m3fn-tensor-f32-static"),
        "k_proj": ("e4m3fn-tensor-f32", "e4m3fn-tensor-f32-static"),
    },
    "fp8_pc_pt": {"down_proj": ("e4m3fn-channel-f32", "e4m3fn-token-f32")},
    "fp8_pb_wo": {"down_proj": ("e4m3fn-b16x16-f32", "None")},
    "int8_wo": {"down_proj": ("s8-channel-f32", "None")},
    "int8_sq": {"down_proj": ("s8-channel-f32", "s8-tensor-f32-static")},
    "int4_awq": {"down_proj": ("s4-g32-f32", "None")},
    "w4a8_awq": {"down_proj": ("s4-g32-f32", "e4m3fn-tensor-f32-static")},
    "nvfp4": {"down_proj": ("e2m1-g16-e4m3fn-tensor", "e2m1-g16-e4m3fn-tensor-static")},
    "w4a16_nvfp4": {"down_proj": ("e2m1-g16-e4m3fn-tensor", "None")},
    "w4a8_nvfp4_fp8": {"down_proj": ("e2m1-g32-e4m3fn-tensor", "e4m3fn-tensor-f32-static")},
    "w4a8_mxfp4_fp8": {"down_proj": ("e2m1-g32-e8m0", "e4m3fn-tensor-f32")},
    "mxfp8": {"down_proj": ("e4m3fn-g32-e8m0", "e4m3fn-g32-e8m0")},
    "mixed": {
        "down_proj": ("e2m1-g16-e4m3fn-tensor", "e2m1-g16-e4m3fn-tensor-static"),
        "k_proj": ("e4m3fn-tensor-f32", "e4m3fn-tensor-f32-static"),
    },
    "experts_nvfp4": {"down_proj": ("e2m1-g16-e4m3fn-tensor", "e2m1-g16-e4m3fn-tensor-static")},
    "experts_fp8": {"gate_up_proj": ("e4m3fn-tensor-f32", "e4m3fn-tensor-f32-static")},
    "experts_fp8_pc_pt": {"gate_up_proj": ("e4m3fn-tensor-f32", "e4m3fn-token-f32")},
}


def loader_of(case: str, config_file: str) -> ModelOptLoader:
    """A loader over a fixture with the config from one of the two files."""
    if config_file == "config.json":
        return fixture_loader(ModelOptLoader, f"modelopt/{case}")
    path = FIXTURES / "modelopt" / case
    model = json.loads((path / "config.json").read_text())
    return ModelOptLoader(
        Source(
            path=path,
            store=SafetensorsStore({path / "model.safetensors": None}),
            quant_config=json.loads((path / config_file).read_text()),
            model_config={"hidden_size": model["hidden_size"]},
        )
    )


def test_every_fixture_is_read() -> None:
    folders = {path.name for path in (FIXTURES / "modelopt").iterdir() if path.is_dir()}
    assert folders == set(CASES)


@pytest.mark.parametrize("config_file", ["config.json", "hf_quant_config.json"])
@pytest.mark.parametrize("case", CASES)
def test_a_layer_is_worth_what_modelopt_says(case: str, config_file: str) -> None:
    loader = loader_of(case, config_file)
    expected = fixture_expected(f"modelopt/{case}")
    plans = {plan.name: plan for plan in loader.plan()}
    assert set(plans) == set(expected)
    for name, plan in plans.items():
        weight = loader.load(plan)
        assert (str(weight.scheme), str(weight.activation)) == CASES[case][name.split(".")[-1]]
        assert (plan.scheme, plan.activation, plan.experts) == (
            weight.scheme, weight.activation, weight.experts,
        )  # fmt: skip
        # The tool multiplies in float32, up to twice; nothing else may differ.
        difference = (weight.dequantize(torch.float64) - expected[name].to(torch.float64)).abs()
        assert bool((difference <= 2.0**-22 * expected[name].abs()).all())
        static = weight.activation is not None and weight.activation.static
        assert (weight.input_scale is not None) == static


@pytest.mark.parametrize("case", CASES)
def test_no_tensor_of_a_fixture_is_left_over(case: str) -> None:
    loader = loader_of(case, "config.json")
    checkpoint = Checkpoint(loader.source, loader, "modelopt")
    rest = {name.rpartition(".")[2] for name in checkpoint.tensor_names()}
    assert rest <= {"k_scale", "v_scale"}  # the cache's, not ours


def test_smoothing_factors_are_kept_beside_the_weight() -> None:
    for case in ("int8_sq", "int4_awq", "w4a8_awq"):
        loader = loader_of(case, "config.json")
        plan: LayerPlan = next(iter(loader.plan()))
        stored = loader.store.get(f"{plan.name}.pre_quant_scale")
        kept = loader.load(plan).pre_quant_scale
        assert kept is not None
        assert torch.equal(kept, stored)
        assert not torch.equal(kept, torch.ones_like(kept))


def test_weight_scale_2_of_w4a8_awq_is_claimed_and_not_multiplied() -> None:
    loader = loader_of("w4a8_awq", "config.json")
    plan = next(iter(loader.plan()))
    assert f"{plan.name}.weight_scale_2" in plan.tensors
    assert loader.load(plan).second is None
