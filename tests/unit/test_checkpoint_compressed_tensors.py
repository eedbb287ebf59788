"""compressed-tensors: what the real tool wrote, and files built from the format's description."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ct_cases import PACKINGS, ct_config, int_args, packed_layer
from memory_checkpoint import FIXTURES, fixture_expected, fixture_loader, memory_loader

from humming.checkpoints.compressed_tensors import CompressedTensorsLoader as Loader
from humming.errors import CheckpointError
from humming.weight import CanonicalWeight

CASES = sorted(path.name for path in (FIXTURES / "compressed_tensors").iterdir() if path.is_dir())
NAME = "layers.0.up"

#: Words of v_i = (5 i + 1) mod 2^b, i = 0..31, computed elsewhere.
GOLDEN = {
    ("dense", 1): "55555555",
    ("dense", 2): "39393939 39393939",
    ("dense", 3): "F19D50F1 50F19D50 9D50F19D",
    ("dense", 4): "4FA50B61 C72D83E9 4FA50B61 C72D83E9",
    ("dense", 5): "F5582CC1 DC4DC927 6ED161C5 D9A3D450 E5E4D40F",
    ("dense", 6): "9540B181 3BA991F6 3070BDE3 A581B591 3FB9D2FA 71748D20",
    ("dense", 7): "5202C301 29487CD1 13D70CD7 EB51991E BF565C16 00FF79E9 385C90D1",
    ("dense", 8): "100B0601 241F1A15 38332E29 4C47423D 605B5651 746F6A65 88837E79 9C97928D",
    ("padded", 3): "319D50F1 03C67543 150F19D5 00000027",
    ("padded", 5): "35582CC1 3137249F 2D161C5D 28F5141B 24D40FD9 00000397",
    ("padded", 6): "1540B181 2EA647DA 070BDE33 206D644C 39D2FAA5 123480FE 00000717",
    ("padded", 7): "0202C301 0487CD15 070CD729 0991E13D 0C16EB51 0E9BF565 0100FF79 0385C90D",
}


def load_one(tensors: dict[str, torch.Tensor], config: dict[str, object]) -> CanonicalWeight:
    loader = memory_loader(Loader, tensors, config)
    (plan,) = loader.plan()
    weight = loader.load(plan)
    found = (weight.scheme, weight.n, weight.k, weight.experts, weight.bias is not None)
    assert found == (plan.scheme, plan.n, plan.k, plan.experts, plan.bias)
    return weight


def refusal(tensors: dict[str, torch.Tensor], config: dict[str, object]) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_one(tensors, config)
    return str(caught.value)


# -- files of the real tool -------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_weights_equal_those_that_the_tool_decompresses(case: str) -> None:
    folder = f"compressed_tensors/{case}"
    loader, expected = fixture_loader(Loader, folder), fixture_expected(folder)
    plans = {plan.name: plan for plan in loader.plan()}
    assert {f"{name}.weight" for name in plans} == set(expected)
    for name, plan in plans.items():
        wanted, weight = expected[f"{name}.weight"], loader.load(plan)
        exact = weight.dequantize(torch.float64)
        if weight.second is None:
            assert torch.equal(exact.to(torch.float32).to(wanted.dtype), wanted), plan
        else:
            # Three roundings lie between: ours of 1 / global, the tool's of its quotient and of
            # its product.
            distance = (exact - wanted.to(torch.float64)).abs()
            assert bool((distance <= 3 * 2.0**-24 * wanted.to(torch.float64).abs()).all()), plan


@pytest.mark.parametrize("case", CASES)
def test_plans_claim_every_tensor_of_the_quantized_layers(case: str) -> None:
    loader = fixture_loader(Loader, f"compressed_tensors/{case}")
    claimed = [name for plan in loader.plan() for name in plan.tensors]
    assert len(claimed) == len(set(claimed))
    assert set(loader.store) - set(claimed) <= {"lm_head.weight", "lm_head.bias"}


@pytest.mark.parametrize(
    ("case", "layer", "scheme", "activation"),
    [
        ("packed_group", "b4_sym", "u4-g32-bf16", None),
        ("packed_channel", "b3_asym", "u3+z-channel-f16", None),
        ("packed_channel", "b8_sym", "u8-channel-f16", None),
        ("packed_tensor", "asym", "u4+z-tensor-f32", None),
        ("packed_stack", "experts.up", "u4+z-g32-bf16", None),
        ("int_quantized", "w8a8", "s8-channel-bf16", "s8-token-f32"),
        ("int_quantized", "w8a8_asym", "u8+z-channel-bf16", "s8-token-f32"),
        ("int_quantized", "w8a8_static", "s8-tensor-bf16", "s8-tensor-f32-static"),
        ("int_quantized", "w4a8", "u4-g32-bf16", "s8-token-f32"),
        ("float_quantized", "static", "e4m3fn-tensor-bf16", "e4m3fn-tensor-f32-static"),
        ("float_quantized", "dynamic", "e4m3fn-channel-bf16", "e4m3fn-token-f32"),
        ("float_quantized", "block", "e4m3fn-b16x32-bf16", "e4m3fn-g32-f32"),
        ("naive_quantized", "fp8", "e4m3fn-channel-f32", None),
        ("nvfp4", "w4a4", "e2m1-g16-e4m3fn-tensor", "e2m1-g16-e4m3fn-tensor-static"),
        ("mxfp4", "w4a4", "e2m1-g32-e8m0", "e2m1-g32-e8m0"),
        ("mxfp4", "w4a8", "e2m1-g32-e8m0", "e4m3fn-g128-f32"),
        ("mxfp6", "w6a8", "e2m3-g32-e8m0", "e4m3fn-g32-e8m0"),
        ("mxfp8", "w8a8", "e4m3fn-g32-e8m0", "e4m3fn-g32-e8m0"),
        ("mixed", "attn.q_proj", "e4m3fn-channel-bf16", "e4m3fn-token-f32"),
        ("mixed", "mlp.down_proj", "u4-g32-bf16", None),
    ],
)
def test_schemes_of_the_tools_files(
    case: str, layer: str, scheme: str, activation: str | None
) -> None:
    loader = fixture_loader(Loader, f"compressed_tensors/{case}")
    plan = {plan.name: plan for plan in loader.plan()}[layer]
    assert str(plan.scheme) == scheme
    assert (None if plan.activation is None else str(plan.activation)) == activation
    weight = loader.load(plan)
    assert (weight.activation, weight.scheme) == (plan.activation, plan.scheme)


def test_static_input_scales_are_read_and_divisors_inverted() -> None:
    for case, layer, suffix in (
        ("float_quantized", "static", "input_scale"),
        ("nvfp4", "w4a4", "input_global_scale"),
    ):
        loader = fixture_loader(Loader, f"compressed_tensors/{case}")
        plan = {plan.name: plan for plan in loader.plan()}[layer]
        stored = float(loader.store.get(f"{layer}.{suffix}"))
        found = loader.load(plan).input_scale
        wanted = np.float32(stored if suffix == "input_scale" else 1 / np.float64(stored))
        assert found is not None
        assert float(found) == wanted


def test_act_order_of_the_tool_becomes_a_stable_permutation() -> None:
    loader = fixture_loader(Loader, "compressed_tensors/packed_act_order")
    plans = {plan.name: plan for plan in loader.plan()}
    assert [plans[name].act_order for name in ("shuffled", "static", "unset")] == [
        True,
        False,
        False,
    ]
    weight = loader.load(plans["shuffled"])
    index = loader.store.get("shuffled.weight_g_idx").tolist()
    order = sorted(range(len(index)), key=lambda column: (index[column], column))
    assert weight.permutation is not None
    assert weight.permutation.tolist() == order
    assert weight.group_index is None


# -- words ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("packing", "bits"), GOLDEN, ids=lambda value: str(value))
def test_golden_words_hold_the_sequence(packing: str, bits: int) -> None:
    raw = [int(word, 16) for word in GOLDEN[packing, bits].split()]
    words = torch.from_numpy(np.array([raw], dtype=np.uint32).view(np.int32))
    values = [(5 * i + 1) % (1 << bits) for i in range(32)]
    assert torch.equal(PACKINGS[packing](np.array([values]), bits), words)
    tensors = {
        f"{NAME}.weight_packed": words,
        f"{NAME}.weight_shape": torch.tensor([1, 32]),
        f"{NAME}.weight_scale": torch.ones(1, 1),
    }
    version = {"version": "0.18.0" if packing == "dense" else "0.17.1"}
    weight = load_one(tensors, ct_config(int_args(bits), **version))
    assert weight.codes().tolist() == [values]
    half = 1 << (bits - 1)
    assert weight.dequantize().tolist() == [[value - half for value in values]]


@pytest.mark.parametrize(("packing", "bits"), GOLDEN, ids=lambda value: str(value))
@pytest.mark.parametrize("asym", [False, True], ids=["sym", "asym"])
def test_packing_is_recognised_from_the_number_of_words(
    packing: str, bits: int, asym: bool
) -> None:
    rng = np.random.default_rng(bits)
    tensors, plain = packed_layer(rng, (bits, 64, 4096), 128, asym=asym, packing=packing)
    words = tensors[f"{NAME}.weight_packed"].shape[1]
    assert words == (4096 * bits // 32 if packing == "dense" else -(-4096 // (32 // bits)))
    args = int_args(bits, 128, symmetric=not asym)
    weight = load_one(tensors, ct_config(args))  # no version: the count must do
    assert np.array_equal(weight.dequantize(torch.float64).numpy(), plain)


@pytest.mark.parametrize(("packing", "bits"), GOLDEN, ids=lambda value: str(value))
@pytest.mark.parametrize("group", [0, 32], ids=["channel", "ragged groups"])
def test_k_100_fills_no_whole_number_of_words(packing: str, bits: int, group: int) -> None:
    rng = np.random.default_rng(bits)
    tensors, plain = packed_layer(rng, (bits, 37, 100), group, asym=True, packing=packing)
    config = ct_config(
        int_args(bits, group, symmetric=False), version="0.20.1" if packing == "dense" else "0.9.0"
    )
    weight = load_one(tensors, config)
    assert np.array_equal(weight.dequantize(torch.float64).numpy(), plain)
    assert weight.scales.shape == (37, 4 if group else 1)


def test_where_both_packings_take_as_many_words_only_the_version_tells() -> None:
    # 40 codes of 3 bits: 4 words either way, but not the same words.
    for packing, version in (("dense", "0.18.0.a20260102"), ("padded", "0.17.1")):
        rng = np.random.default_rng(0)
        tensors, plain = packed_layer(rng, (3, 32, 40), 0, packing=packing)
        weight = load_one(tensors, ct_config(int_args(3), version=version))
        assert np.array_equal(weight.dequantize(torch.float64).numpy(), plain)
        assert "only the config's version could tell" in refusal(tensors, ct_config(int_args(3)))


def test_int4_is_offset_binary() -> None:
    raw = np.array([[0x76543210, 0xFEDCBA98]], dtype=np.uint32).view(np.int32)
    tensors = {
        f"{NAME}.weight_packed": torch.from_numpy(raw),
        f"{NAME}.weight_shape": torch.tensor([1, 16]),
        f"{NAME}.weight_scale": torch.ones(1, 1),
    }
    weight = load_one(tensors, ct_config(int_args(4)))
    assert weight.dequantize().tolist() == [list(range(-8, 8))]


# -- zero points ------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [0, 32])
@pytest.mark.parametrize("stored", ["packed", "int8", "absent"])
def test_zero_points_that_are_all_zero_round_trip(group: int, stored: str) -> None:
    rng = np.random.default_rng(1)
    tensors, plain = packed_layer(rng, (4, 24, 64), group)
    columns = 64 // (group or 64)
    zero = {
        "packed": torch.full((3, columns), -0x77777778, dtype=torch.int32),
        "int8": torch.zeros(24, columns, dtype=torch.int8),
    }
    if stored in zero:
        tensors[f"{NAME}.weight_zero_point"] = zero[stored]
    weight = load_one(tensors, ct_config(int_args(4, group, symmetric=False)))
    assert (weight.zeros is None) == (stored == "absent")
    assert np.array_equal(weight.dequantize(torch.float64).numpy(), plain)
    # A symmetric layer may carry them too; the scheme then has none.
    weight = load_one(tensors, ct_config(int_args(4, group)))
    assert weight.zeros is None
    assert np.array_equal(weight.dequantize(torch.float64).numpy(), plain)


def test_zero_points_of_a_symmetric_layer_must_be_zero() -> None:
    tensors, _ = packed_layer(np.random.default_rng(2), (4, 24, 64), 32, asym=True)
    message = refusal(tensors, ct_config(int_args(4, 32)))
    assert "weight_zero_point" in message
    assert "symmetric" in message
    tensors[f"{NAME}.weight_zero_point"] = torch.ones(24, 2, dtype=torch.int8)
    assert "symmetric" in refusal(tensors, ct_config(int_args(4, 32)))


def test_zero_points_of_one_group_lie_along_n() -> None:
    tensors, plain = packed_layer(np.random.default_rng(3), (4, 24, 64), 0, asym=True)
    assert tensors[f"{NAME}.weight_zero_point"].shape == (3, 1)
    weight = load_one(tensors, ct_config(int_args(4, symmetric=False)))
    assert np.array_equal(weight.dequantize(torch.float64).numpy(), plain)
    tensors[f"{NAME}.weight_zero_point"] = tensors[f"{NAME}.weight_zero_point"].T.contiguous()
    message = refusal(tensors, ct_config(int_args(4, symmetric=False)))
    assert "words along N" in message
