"""AutoRound checkpoints: files that AutoRound exported, and what hybrids and rules add to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from int_packers import IntLayer, awq_tensors, gptq_tensors, int32, random_layer, stream
from memory_checkpoint import FIXTURES, fixture_expected, fixture_loader, memory_loader

from humming.checkpoints.auto_round import AutoRoundLoader
from humming.checkpoints.base import LayerPlan
from humming.errors import CheckpointError
from humming.formats.table import number_format

#: What the exporter named "plain" has another quant_method; the tests of GPTQ and AWQ read it.
CASES = sorted(
    path.parent.name
    for path in FIXTURES.glob("auto_round/*/config.json")
    if not path.parent.name.startswith("plain")
)
DOWN, Q, K = (f"model.layers.0.{n}_proj" for n in ("mlp.down", "self_attn.q", "self_attn.k"))
#: Scheme and activation of each export; of q_proj, where layers differ.
SCHEMES = {
    "fp8block": "e4m3fn-b128x128-bf16 e4m3fn-g128-f32",
    "fp8static": "e4m3fn-channel-bf16 e4m3fn-tensor-f32-static",
    "fp8weight": "e4m3fn-tensor-bf16 None",
    "int2_asym": "u2+z-g16-f16 None",
    "int3_asym": "u3+z-g32-f16 None",
    "int3_asym_gptq": "u3+z-channel-f16 None",
    "int4_asym": "u4+z-g32-f16 None",
    "int4_asym_gptq": "u4+z-g32-f16 None",
    "int4_asym_gptqmodel": "u4+z-g16-f16 None",
    "int4_awq": "u4+z-g32-f16 None",
    "int4_sym": "u4-g32-f16 None",
    "int5_asym": "u5+z-g32-f16 None",
    "int7_awq": "u7+z-g32-f16 None",
    "int8_sym": "u8-g32-f16 None",
    "mixed": "u4-g32-f16 None",
    "mxfp4": "e2m1-g32-e8m0 e2m1-g32-e8m0",
    "mxfp8": "e4m3fn-g32-e8m0 e4m3fn-g32-e8m0",
    "mxint4": "e0m3-g32-e8m0 e0m3-g32-e8m0",
    "nvfp4": "e2m1-g16-e4m3fn-tensor e2m1-g16-e4m3fn-tensor-static",
    "nvfp4_e5m3": "e2m1-g16-e5m3 e2m1-g16-e5m3",
}
CONFIG: dict[str, Any] = {
    "quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False, "data_type": "int",
    "packing_format": "auto_round", "block_name_to_quantize": "model.layers",
}  # fmt: skip


def loader_of(tensors: dict[str, torch.Tensor], **changes: Any) -> AutoRoundLoader:
    return memory_loader(AutoRoundLoader, tensors, {**CONFIG, **changes})


def check(loader: AutoRoundLoader, values: dict[str, torch.Tensor]) -> dict[str, LayerPlan]:
    """Layers must be those of `values`, equal, and read as planned; returns their plans."""
    plans = {plan.name: plan for plan in loader.plan()}
    assert set(plans) == set(values)
    for name, plan in plans.items():
        weight = loader.load(plan)
        assert (weight.scheme, weight.n, weight.k) == (plan.scheme, plan.n, plan.k)
        assert weight.activation == plan.activation
        assert torch.equal(weight.dequantize(torch.float64), values[name]), name
    return plans


# -- files of the real tool -------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_reads_what_autoround_reads(case: str) -> None:
    loader = fixture_loader(AutoRoundLoader, f"auto_round/{case}")
    expected = fixture_expected(f"auto_round/{case}")
    plans = {plan.name: plan for plan in loader.plan()}
    assert {f"{name}.weight" for name in plans} == set(expected)
    assert f"{plans[Q].scheme} {plans[Q].activation}" == SCHEMES[case]
    for name, plan in plans.items():
        weight = loader.load(plan)
        assert (weight.scheme, weight.activation) == (plan.scheme, plan.activation)
        assert weight.bias is not None if name == Q else weight.bias is None or name == K
        found, wanted = weight.dequantize(torch.float64), expected[f"{name}.weight"]
        if case == "nvfp4":  # a divisor: AutoRound rounds another product than we
            torch.testing.assert_close(found, wanted.double(), rtol=3e-7, atol=0)
        else:
            assert torch.equal(found.to(wanted.dtype), wanted)


def test_every_fixture_has_a_known_scheme() -> None:
    assert set(SCHEMES) == set(CASES)


def test_a_mixed_export_has_its_widths_and_leaves_out_what_has_16_bits() -> None:
    loader = fixture_loader(AutoRoundLoader, "auto_round/mixed")
    assert {plan.name: str(plan.scheme) for plan in loader.plan()} == {
        DOWN: "u4-g32-f16", Q: "u4-g32-f16", K: "u8-g32-f16",
    }  # fmt: skip


@pytest.mark.parametrize("case", ["mxfp8", "nvfp4", "fp8static", "int4_sym", "mxint4"])
def test_plans_name_every_tensor_of_their_layers(case: str) -> None:
    loader = fixture_loader(AutoRoundLoader, f"auto_round/{case}")
    named = {tensor for plan in loader.plan() for tensor in plan.tensors}
    assert named == {t for t in loader.store if t.rpartition(".")[0] in (Q, DOWN)}


# -- integers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("packing", "offset"),
    [
        ("auto_round", 0),
        ("auto_round:gptqmodel", 0),
        ("auto_round:auto_gptq", 1),
        ("auto_round:gptq", 1),
    ],
)
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
def test_gptq_packings_differ_by_one_in_zero_points(packing: str, offset: int, bits: int) -> None:
    layer = random_layer(32, 64, 32, bits, lowest_zero=1)
    tensors = gptq_tensors(layer, offset=offset, g_idx="gptqmodel" in packing)
    check(loader_of(tensors, bits=bits, packing_format=packing), {"layer": layer.values})


@pytest.mark.parametrize("bits", [4, 5, 6, 7])
@pytest.mark.parametrize("packing", ["auto_round:auto_awq", "auto_round:awq"])
@pytest.mark.parametrize("sym", [True, False])
def test_awq_packings(packing: str, bits: int, sym: bool) -> None:
    layer = random_layer(32, 64, 32, bits, sym=sym)
    loader = loader_of(awq_tensors(layer), bits=bits, packing_format=packing, sym=sym)
    plans = check(loader, {"layer": layer.values})
    assert ("+z" in str(plans["layer"].scheme)) != sym


def test_without_a_packing_format_symmetric_layers_are_known_by_shape() -> None:
    layer = random_layer(32, 64, 32, 4, sym=True)
    values = {"layer": layer.values}
    for tensors in (gptq_tensors(layer, offset=1, g_idx=False), awq_tensors(layer)):
        check(loader_of(tensors, packing_format=None, sym=True, backend="auto"), values)


def test_without_a_packing_format_zero_points_are_not_guessed() -> None:
    tensors = gptq_tensors(random_layer(32, 64, 32, 4))
    with pytest.raises(CheckpointError, match="packing_format=None, expected a value"):
        loader_of(tensors, packing_format=None).plan()


# -- rules for single layers ------------------------------------------------------------------


def layers(*named: tuple[str, IntLayer]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Tensors of several layers, and their values."""
    tensors = {}
    for name, layer in named:
        tensors |= gptq_tensors(layer, name, g_idx=False)
    return tensors, {name: layer.values for name, layer in named}


def test_names_win_over_patterns_and_patterns_apply_in_order() -> None:
    two, four, eight = (random_layer(32, 64, 32, bits) for bits in (2, 4, 8))
    tensors, values = layers(("m.1.q", two), ("m.1.k", eight), ("m.10.q", four), ("lm_head", eight))
    rules = {
        r"\.k$": {"bits": 8, "group_size": None},
        r"m\.1\.": {"bits": 3},  # searched for: m.1.k has its rule already
        "m.1.q": {"bits": 2},
        "lm_head": {"bits": 8, "group_size": 32, "sym": False, "act_bits": 16, "super_bits": None},
    }
    plans = check(loader_of(tensors, extra_config=rules), values)
    assert [str(plan.scheme)[:2] for plan in plans.values()] == ["u2", "u8", "u4", "u8"]


def test_a_dotted_key_means_whole_components() -> None:
    four, eight = random_layer(32, 64, 32, 4), random_layer(32, 64, 32, 8)
    tensors, values = layers(("m.1.gate.up", eight), ("m.1.gate_proj", four), ("m.10.q", four))
    check(loader_of(tensors, extra_config={"m.1.gate": {"bits": 8}}), values)


def test_a_layer_of_16_bits_must_not_be_quantized() -> None:
    tensors, _ = layers(("m.q", random_layer(32, 64, 32, 4)))
    with pytest.raises(CheckpointError, match=r"m.q.qweight.*extra_config says bits 16"):
        loader_of(tensors, extra_config={"m.q": {"bits": 16}}).plan()
    tensors["m.k.weight"] = torch.zeros(4, 4)
    assert len(loader_of(tensors, extra_config={"m.k": {"bits": 16}}).plan()) == 1


def test_a_layer_with_a_width_must_be_quantized() -> None:
    tensors, _ = layers(("m.q", random_layer(32, 64, 32, 4)))
    tensors["lm_head.weight"] = torch.zeros(4, 4)
    with pytest.raises(CheckpointError, match=r"lm_head.weight.*says bits 8, but the file has F32"):
        loader_of(tensors, extra_config={"lm_head": {"bits": 8}}).plan()


@pytest.mark.parametrize("key", ["(", "[a"])
def test_a_malformed_pattern_is_refused(key: str) -> None:
    tensors, _ = layers(("m.q", random_layer(32, 64, 32, 4)))
    with pytest.raises(CheckpointError, match="per-layer rule"):
        loader_of(tensors, extra_config={key: {"bits": 8}}).plan()


# -- hybrids, and what only AutoRound has -----------------------------------------------------


def fp8_block(n: int, k: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """An FP8 layer with f32 scales per 128 x 128, and its values."""
    rng = np.random.default_rng(n)
    weight = torch.from_numpy(rng.normal(size=(n, k))).to(torch.float8_e4m3fn)
    scales = torch.from_numpy(rng.uniform(0.1, 2, (-(-n // 128), -(-k // 128)))).float()
    rows, columns = torch.arange(n) // 128, torch.arange(k) // 128
    values = weight.double() * scales.double()[rows][:, columns]
    return {"attn.weight": weight, "attn.weight_scale_inv": scales}, values


@pytest.mark.parametrize("rules", [{}, {"attn": {"bits": 16}}])
def test_fp8_layers_beside_integers_are_read(rules: dict[str, Any]) -> None:
    tensors, values = layers(("m.q", random_layer(32, 64, 32, 4)))
    more, wanted = fp8_block(200, 300)
    tensors |= more
    tensors["norm.weight"] = torch.ones(4)
    plans = check(loader_of(tensors, extra_config=rules), {**values, "attn": wanted})
    assert str(plans["attn"].scheme) == "e4m3fn-b128x128-f32"
    assert str(plans["attn"].activation) == "e4m3fn-g128-f32"
    assert plans["m.q"].activation is None


def test_an_fp8_layer_without_its_scale_is_refused() -> None:
    tensors, _ = layers(("m.q", random_layer(32, 64, 32, 4)))
    tensors |= fp8_block(200, 300)[0]
    del tensors["attn.weight_scale_inv"]
    with pytest.raises(CheckpointError, match=r"attn.weight.*without a scale"):
        loader_of(tensors).plan()


def test_a_scale_without_fp8_codes_is_refused() -> None:
    tensors, _ = layers(("m.q", random_layer(32, 64, 32, 4)))
    tensors |= fp8_block(200, 300)[0]
    tensors["attn.weight"] = tensors["attn.weight"].to(torch.bfloat16)
    with pytest.raises(CheckpointError, match=r"attn\.weight"):
        loader_of(tensors).plan()


def test_zero_points_of_fp8_weights_are_refused() -> None:
    tensors = {**fp8_block(200, 300)[0], "attn.weight_zp": torch.zeros(1)}
    with pytest.raises(CheckpointError, match=r"attn.weight_zp.*not supported"):
        loader_of(tensors, bits=8, data_type="fp").plan()


def pairs(scale: str, group: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Random codes two to a byte, the even one low, and random scale bytes; their values.

    Values are counted in e0m3 units, or are those of e2m1.
    """
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 16, (8, 64))
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    stored = rng.integers(100, 140, (8, 64 // group)).astype(np.uint8)
    magnitudes = np.array([0, 1, 2, 3, 4, 5, 6, 7] if group == 32 else [0, 0.5, 1, 1.5, 2, 3, 4, 6])
    numbers = magnitudes[codes & 7] * np.where(codes & 8, -1, 1)
    scales = number_format(scale).decode(stored).repeat(group, axis=1)
    tensors = {
        "layer.weight_packed": torch.from_numpy(packed),
        "layer.weight_scale": torch.from_numpy(stored),
    }
    return tensors, torch.from_numpy(numbers * scales)


def test_mxint4_counts_in_quarters() -> None:
    tensors, values = pairs("e8m0", 32)
    loader = loader_of(tensors, data_type="mx_int", sym=True, act_bits=16)
    plans = check(loader, {"layer": values / 4})
    assert plans["layer"].activation is None


def test_an_mxint4_scale_that_can_not_be_divided_by_four_is_refused() -> None:
    tensors, _ = pairs("e8m0", 32)
    tensors["layer.weight_scale"][2, 1] = 1
    loader = loader_of(tensors, data_type="mx_int")
    with pytest.raises(CheckpointError, match=r"layer.weight_scale.*exponent below 2"):
        loader.load(loader.plan()[0])


def test_nvfp4_with_e5m3_scales() -> None:
    tensors, values = pairs("e5m3", 16)
    check(loader_of(tensors, data_type="nvfp4_v2", group_size=16), {"layer": values})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 8}, "bits=8, expected 4"),
        ({"group_size": 16}, "group_size=16, expected 32"),
        ({"act_bits": 4, "act_data_type": "int"}, "act_data_type='int', expected mx_int"),
        ({"act_bits": 8, "act_data_type": "mx_int"}, "act_bits=8, expected 4"),
    ],
)
def test_pairs_of_another_kind_are_refused(changes: Any, message: str) -> None:
    tensors, _ = pairs("e8m0", 32)
    with pytest.raises(CheckpointError, match=message):
        loader_of(tensors, **{"data_type": "mx_int", **changes}).plan()


def test_pairs_with_scales_of_another_shape_are_refused() -> None:
    tensors, _ = pairs("e8m0", 32)
    tensors["layer.weight_scale"] = torch.zeros(8, 3, dtype=torch.uint8)
    with pytest.raises(CheckpointError, match=r"layer.weight_scale.*expected \[8, 2\] for K=64"):
        loader_of(tensors, data_type="mx_int").plan()


@pytest.mark.parametrize("sym", [True, False])
def test_integers_of_compressed_tensors_are_read_by_that_loader(sym: bool) -> None:
    layer = random_layer(8, 64, 32, 4, sym=sym)
    tensors = {
        "layer.weight_packed": int32([stream(row, 4) for row in layer.codes]),
        "layer.weight_scale": layer.scales,
        "layer.weight_shape": torch.tensor([8, 64]),
    }
    if not sym:
        zeros = [stream(row, 4) for row in layer.zeros.T]
        tensors["layer.weight_zero_point"] = int32(zeros).t().contiguous()
    loader = loader_of(tensors, packing_format="auto_round:llm_compressor", sym=sym)
    check(loader, {"layer": layer.values})


@pytest.mark.parametrize("act_bits", [16, 8])
def test_fp8_weights_alone_leave_activations_as_they_are(act_bits: int) -> None:
    tensors, values = fp8_block(128, 128)
    loader = loader_of(
        tensors, bits=8, data_type="fp", group_size=[128, 128], act_bits=act_bits, act_dynamic=True
    )
    (plan,) = check(loader, {"attn": values}).values()
    assert (plan.activation is None) == (act_bits == 16)


# -- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"packing_format": "auto_round:exllamav2"}, "packing_format='auto_round:exllamav2', expe"),
        ({"packing_format": 3}, "packing_format=3, expected str"),
        ({"bits": 9}, "bits=9, expected 2 or 3"),
        ({"bits": 3, "packing_format": "auto_round:auto_awq"}, "bits=3, expected 4 or 5 or 6 or 7"),
        ({"group_size": [128, 128]}, r"group_size=\[128, 128\], expected int"),
        ({"data_type": "mx_fp"}, "data_type='mx_fp', expected int: 'layer' has integer codes"),
        ({"act_bits": 8}, "act_bits=8, expected 16: integer weights with quantized activations"),
        ({"rotation_config": {"hadamard_type": "hadamard"}}, "rotation_config=.*rotated"),
        ({"spinquant_config": {"r1": True}}, "spinquant_config=.*rotated"),
        ({"super_bits": 6}, "super_bits=6 is not supported"),
        ({"extra_config": []}, r"extra_config=\[\], expected dict"),
        ({"extra_config": {"layer": 4}}, "per-layer rule 'layer': expected an object, found 4"),
        ({"extra_config": {"layer": {"super_bits": 6}}}, "super_bits=6 is not supported"),
    ],
)
def test_a_setting_that_is_not_understood_is_refused(changes: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        loader_of(gptq_tensors(random_layer(32, 64, 32, 4)), **changes).plan()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data_type": "fp"}, "data_type='fp', expected int, mx_fp or nv_fp"),
        ({"data_type": ["mx_fp"]}, r"data_type=\['mx_fp'\], expected str"),
        ({"data_type": "mx_fp", "group_size": 16}, "group_size=16, expected 32"),
        ({"data_type": "nv_fp", "group_size": 32}, "group_size=32, expected 16"),
        ({"data_type": "mx_fp", "act_bits": 8, "act_data_type": "int"}, "act_data_type='int', exp"),
        ({"data_type": "mx_fp", "act_bits": 8}, "act_data_type=None, expected str"),
    ],
)
def test_microscaled_settings_that_fit_nothing_are_refused(changes: Any, message: str) -> None:
    tensors, _ = pairs("e8m0", 32)
    with pytest.raises(CheckpointError, match=message):
        loader_of(tensors, **changes).plan()


def test_a_lone_quantized_tensor_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"layer.weight.*missing"):
        loader_of({"layer.scales": torch.ones(2, 2)}).plan()
