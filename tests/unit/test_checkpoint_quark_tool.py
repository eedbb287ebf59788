"""What Quark wrote reads as Quark reads it: tests/fixtures/quark."""

from __future__ import annotations

import pytest
import torch
from memory_checkpoint import FIXTURES, fixture_expected, fixture_loader, memory_loader

from humming.checkpoints.checkpoint import Checkpoint
from humming.checkpoints.quark import QuarkLoader
from humming.checkpoints.store import SafetensorsStore

#: case → scheme and activation.
CASES = {
    "int4_group": ("s4-g32-f32", "None"),
    "int4_group_asym": ("u4+z-g32-f32", "None"),
    "int4_group_order": ("s4-g32-f32", "None"),
    "uint4_group": ("u4+z-g32-f32", "None"),
    "uint4_channel": ("u4+z-channel-f32", "None"),
    "uint4_tensor": ("u4+z-tensor-f32", "None"),
    "int4_channel": ("s4-channel-f32", "None"),
    "int2_group": ("s2-g32-f32", "None"),
    "int3_group": ("s3-g8-f32", "None"),
    "int3_channel": ("s3-channel-f32", "None"),
    "int8_group": ("s8-g32-f32", "None"),
    "uint8_group": ("u8+z-g32-f32", "None"),
    "int8_channel": ("s8-channel-f32", "s8-tensor-f32-static"),
    "int8_tensor_asym": ("u8+z-tensor-f32", "None"),
    "fp8_tensor": ("e4m3fn-tensor-f32", "e4m3fn-tensor-f32-static"),
    "fp8_channel": ("e4m3fn-channel-f32", "e4m3fn-token-f32"),
    "fp8_e5m2": ("e5m2-tensor-f32", "None"),
    "mxfp4": ("e2m1-g32-e8m0", "e2m1-g32-e8m0"),
    "mxfp6_e2m3": ("e2m3-g32-e8m0", "None"),
    "mxfp6_e3m2": ("e3m2-g32-e8m0", "None"),
    "amdfp4": ("e2m1-g32-e5m3", "None"),
    "nvfp4": ("e2m1-g16-e4m3fn-tensor", "e2m1-g16-e4m3fn-tensor-static"),
    "progressive": ("s4-channel-f32-tensor", "e4m3fn-tensor-f32-static"),
    "fp8_cache_override": ("e4m3fn-tensor-f32", "e4m3fn-tensor-f32-static"),
}
OLD_MX = {
    "quant_method": "quark",
    "global_quant_config": {
        "weight": {
            "dtype": "mx", "mx_element_dtype": "fp4", "qscheme": None, "axis": -1,
            "group_size": 32, "dynamic": False, "symmetric": None,
        },
        "input_tensors": None, "output_tensors": None, "bias": None,
    },
    "exclude": None, "layer_quant_config": None, "layer_type_quant_config": None,
}  # fmt: skip


def test_every_fixture_is_read() -> None:
    folders = {path.name for path in (FIXTURES / "quark").iterdir() if path.is_dir()}
    assert folders == {*CASES, "old_mx"}


@pytest.mark.parametrize("case", CASES)
def test_a_layer_is_worth_what_quark_says(case: str) -> None:
    loader = fixture_loader(QuarkLoader, f"quark/{case}")
    (plan,) = loader.plan()
    ((name, expected),) = fixture_expected(f"quark/{case}").items()
    weight = loader.load(plan)
    assert plan.name == name
    assert (str(weight.scheme), str(weight.activation)) == CASES[case]
    assert (plan.scheme, plan.activation) == (weight.scheme, weight.activation)
    # The tool multiplies in float32, up to twice; nothing else may differ.
    difference = (weight.dequantize(torch.float64) - expected.to(torch.float64)).abs()
    assert bool((difference <= 2.0**-22 * expected.abs()).all())
    static = weight.activation is not None and weight.activation.static
    assert (weight.input_scale is not None) == static
    if plan.bias:
        assert weight.bias is not None
        assert torch.equal(weight.bias, loader.store.get(f"{name}.bias"))


@pytest.mark.parametrize("case", CASES)
def test_no_tensor_of_a_fixture_is_left_over(case: str) -> None:
    loader = fixture_loader(QuarkLoader, f"quark/{case}")
    checkpoint = Checkpoint(loader.source, loader, "quark")
    rest = {name.rpartition(".")[2] for name in checkpoint.tensor_names()}
    assert rest == ({"output_scale"} if case == "fp8_cache_override" else set())


def test_old_mx_blocks_are_read_as_quarks_packer_reads_them() -> None:
    ((name, expected),) = fixture_expected("quark/old_mx").items()
    tensors = fixture_tensors("quark/old_mx")
    loader = memory_loader(QuarkLoader, tensors, OLD_MX)
    (plan,) = loader.plan()
    weight = loader.load(plan)
    assert str(weight.scheme) == "e2m1-g32-e8m0"
    assert plan.tensors == (f"{name}.weight",)
    assert torch.equal(weight.dequantize(torch.float64), expected.to(torch.float64))


def fixture_tensors(folder: str) -> dict[str, torch.Tensor]:
    store = SafetensorsStore({FIXTURES / folder / "model.safetensors": None})
    return {name: store.get(name) for name in store}
