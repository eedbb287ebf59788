"""Quark layers written by hand from the description of the format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import quark_files as qf
import torch
from core_oracle import value
from hypothesis import given
from hypothesis import strategies as st
from memory_checkpoint import memory_loader

from humming.checkpoints.quark import QuarkLoader
from humming.weight import CanonicalWeight

UP = "model.layers.1.mlp.up_proj"


def load(
    tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any], layer: str = UP
) -> CanonicalWeight:
    loader = memory_loader(QuarkLoader, tensors, config)
    plans = {plan.name: plan for plan in loader.plan()}
    assert loader.store.read == []  # type: ignore[attr-defined]
    weight = loader.load(plans[layer])
    weight.check_values()
    return weight


def equal(weight: CanonicalWeight, expected: np.ndarray) -> bool:
    return np.array_equal(weight.dequantize(torch.float64).numpy(), expected)


def integers(dtype: str, rng: np.random.Generator, *shape: int) -> tuple[np.ndarray, int]:
    """Random integers of a dtype, its extremes among them, and its width."""
    bits = int(dtype[-1])
    low = 0 if dtype.startswith("u") else -(1 << (bits - 1))
    found = rng.integers(low, low + (1 << bits), shape)
    if found.size > 1:
        found.flat[0], found.flat[-1] = low, low + (1 << bits) - 1
    return found, bits


@given(
    dtype=st.sampled_from(["int4", "uint4"]),
    symmetric=st.booleans(),
    reorder=st.booleans(),
    transposed=st.booleans(),
    n=st.integers(5, 20),
    groups=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_4_bit_groups_are_words_along_n(
    dtype: str, symmetric: bool, reorder: bool, transposed: bool, n: int, groups: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    k = 16 * groups
    codes, _ = integers(dtype, rng, n, k)
    zeros, _ = integers(dtype, rng, n, groups)
    if symmetric and dtype == "int4":
        zeros[:] = 0
    scales = qf.float32(rng, n, groups)
    tensors = {
        f"{UP}.weight": qf.words(codes.T, reorder),
        f"{UP}.weight_scale": scales.t().contiguous() if transposed else scales,
        f"{UP}.weight_zero_point": qf.words(zeros.T, reorder),
    }
    spec = qf.spec(dtype, "per_group", group_size=16, symmetric=symmetric)
    weight = load(tensors, qf.config(spec, pack="reorder" if reorder else "order"))
    expected = (codes - qf.spread(zeros, n, k)) * qf.spread(scales.double().numpy(), n, k)
    assert equal(weight, expected)
    signed = dtype == "int4" and symmetric
    assert str(weight.scheme) == f"{'s4' if signed else 'u4+z'}-g16-f32"


@pytest.mark.parametrize("qscheme", ["per_channel", "per_tensor"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", ["int2", "int3", "int4", "uint4", "int8", "uint8"])
def test_other_integers_are_stored_along_k(dtype: str, symmetric: bool, qscheme: str) -> None:
    rng = np.random.default_rng(1)
    n, k = 8, 24
    codes, bits = integers(dtype, rng, n, k)
    rows = n if qscheme == "per_channel" else 1
    zeros, _ = integers(dtype, rng, rows, 1)
    if symmetric and not dtype.startswith("u"):
        zeros[:] = 0
    scales = qf.float32(rng, rows)
    flat = zeros[:, 0]
    if bits == 4:
        weight, stored = qf.words(codes, True), qf.words(flat, True)
    elif bits == 3:
        weight, stored = qf.stream(codes, 3), qf.stream(flat, 3)
    elif bits == 2:
        weight, stored = torch.from_numpy(codes).int(), torch.from_numpy(flat).int()
    else:
        kind = np.int8 if dtype == "int8" else np.uint8
        weight, stored = torch.from_numpy(codes.astype(kind)), torch.from_numpy(flat.astype(kind))
    if qscheme == "per_tensor":
        scales, stored = scales.reshape(()), torch.tensor(int(flat[0]), dtype=torch.int32)
    tensors = {
        f"{UP}.weight": weight, f"{UP}.weight_scale": scales, f"{UP}.weight_zero_point": stored,
    }  # fmt: skip
    loaded = load(tensors, qf.config(qf.spec(dtype, qscheme, symmetric=symmetric)))
    factor = scales.double().numpy().reshape(-1, 1)
    assert equal(loaded, (codes - zeros) * factor)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("n", "k"), [(6, 32), (32, 32), (2, 32)])
def test_8_bit_groups_are_transposed_with_their_scales_or_not_at_all(
    dtype: str, old: bool, n: int, k: int
) -> None:
    rng = np.random.default_rng(2)
    codes, _ = integers(dtype, rng, n, k)
    zeros, _ = integers(dtype, rng, n, k // 16)
    scales = qf.float32(rng, n, k // 16)
    kind = np.int8 if dtype == "int8" else np.uint8
    tensors = {
        f"{UP}.weight": torch.from_numpy(codes.astype(kind)),
        f"{UP}.weight_scale": scales,
        f"{UP}.weight_zero_point": torch.from_numpy(zeros.astype(kind)),
    }
    if not old:
        tensors = {name: tensor.t().contiguous() for name, tensor in tensors.items()}
    spec = qf.spec(dtype, "per_group", group_size=16, symmetric=False)
    loaded = load(tensors, qf.config(spec))
    assert equal(
        loaded, (codes - qf.spread(zeros, n, k)) * qf.spread(scales.double().numpy(), n, k)
    )


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_int3_groups_keep_codes_and_zeros_along_k(symmetric: bool, transposed: bool) -> None:
    rng = np.random.default_rng(3)
    n, k = 5, 64
    codes, _ = integers("int3", rng, n, k)
    zeros, _ = integers("int3", rng, n, 8)
    zeros *= not symmetric
    scales = qf.float32(rng, n, 8)
    tensors = {
        f"{UP}.weight": qf.stream(codes, 3),
        f"{UP}.weight_scale": scales.t().contiguous() if transposed else scales,
        f"{UP}.weight_zero_point": qf.stream(zeros, 3),
    }
    spec = qf.spec("int3", "per_group", group_size=8, symmetric=symmetric)
    loaded = load(tensors, qf.config(spec))
    assert equal(
        loaded, (codes - qf.spread(zeros, n, k)) * qf.spread(scales.double().numpy(), n, k)
    )


@pytest.mark.parametrize("symmetric", [True, False])
def test_int2_groups_are_one_code_per_word(symmetric: bool) -> None:
    rng = np.random.default_rng(4)
    codes, _ = integers("int2", rng, 6, 32)
    zeros, _ = integers("int2", rng, 6, 2)
    zeros *= not symmetric
    scales = qf.float32(rng, 6, 2)
    tensors = {
        f"{UP}.weight": torch.from_numpy(codes.T.copy()).int(),
        f"{UP}.weight_scale": scales.t().contiguous(),
        f"{UP}.weight_zero_point": torch.from_numpy(zeros.T.copy()).int(),
    }
    spec = qf.spec("int2", "per_group", group_size=16, symmetric=symmetric)
    loaded = load(tensors, qf.config(spec))
    wanted = (codes - qf.spread(zeros, 6, 32)) * qf.spread(scales.double().numpy(), 6, 32)
    assert equal(loaded, wanted)


@pytest.mark.parametrize("scale", ["e8m0", "float32", None, "e5m3"])
@pytest.mark.parametrize(
    ("dtype", "fmt", "bits"),
    [
        ("fp4", "e2m1", 4),
        ("fp6_e2m3", "e2m3", 6),
        ("fp6_e3m2", "e3m2", 6),
        ("fp8_e4m3", "e4m3fn", 8),
    ],
)
def test_small_floats_are_bit_streams_under_group_scales(
    dtype: str, fmt: str, bits: int, scale: str | None
) -> None:
    rng = np.random.default_rng(5)
    codes = rng.integers(0, (1 << bits) - 1, (5, 64), dtype=np.uint8)
    codes[codes == 0x7F] = 0  # NaN of e4m3
    stored = qf.stream(codes, bits)
    if bits == 8:
        stored = stored.view(torch.float8_e4m3fn)
    scales = qf.float32(rng, 5, 2)
    factors = scales.double().numpy()
    if scale in ("e8m0", "e5m3"):
        scales = torch.from_numpy(rng.integers(90, 160, (5, 2), dtype=np.uint8))
        factors = np.vectorize(lambda c: value(str(scale), int(c)))(scales.numpy())
    tensors = {f"{UP}.weight": stored, f"{UP}.weight_scale": scales}
    spec = qf.spec(dtype, "per_group", group_size=32, scale_format=scale, symmetric=None)
    loaded = load(tensors, qf.config(spec))
    numbers = np.vectorize(lambda c: value(fmt, int(c)))(codes)
    assert equal(loaded, numbers * qf.spread(factors, 5, 64))


@pytest.mark.parametrize(("stage", "dtype", "fmt"), [
    ("fp8_e4m3", torch.float8_e4m3fn, "e4m3fn"),
    ("fp8_e5m2", torch.float8_e5m2, "e5m2"),
    ("fp8_e5m3", torch.uint8, "e5m3"),
])  # fmt: skip
def test_scales_of_scales_are_the_second_level(stage: str, dtype: torch.dtype, fmt: str) -> None:
    rng = np.random.default_rng(6)
    codes = rng.integers(0, 16, (5, 64), dtype=np.uint8)
    scales = rng.integers(1, 0x70, (5, 4), dtype=np.uint8)
    tensors = {
        f"{UP}.weight": qf.stream(codes, 4),
        f"{UP}.weight_scale": torch.from_numpy(scales).view(dtype),
        f"{UP}.weight_scale_2": torch.tensor(0.003),
    }
    stages = [
        qf.spec("fp4", "per_group", group_size=16, scale_format="float32"),
        qf.spec(stage, "per_tensor", is_scale_quant=True),
    ]
    loaded = load(tensors, qf.config(stages))
    assert str(loaded.scheme) == f"e2m1-g16-{fmt}-tensor"
    blocks = np.vectorize(lambda c: value(fmt, int(c)))(scales)
    numbers = np.vectorize(lambda c: value("e2m1", int(c)))(codes)
    assert equal(loaded, numbers * qf.spread(blocks, 5, 64) * float(np.float32(0.003)))


@pytest.mark.parametrize("outer", ["per_tensor", "per_channel"])
def test_progressive_weights_multiply_both_scales(outer: str) -> None:
    rng = np.random.default_rng(7)
    codes, _ = integers("int4", rng, 9, 32)
    first = qf.float32(rng, 9) if outer == "per_channel" else torch.tensor(0.3)
    second = qf.float32(rng, 2, 9)
    tensors = {
        f"{UP}.weight": qf.words(codes.T, True),
        f"{UP}.weight_scale": first,
        f"{UP}.weight_scale_2": second,
        f"{UP}.weight_zero_point_2": torch.zeros(2, 2, dtype=torch.int32),
    }
    stages = [qf.spec("fp8_e4m3", outer), qf.spec("int4", "per_group", group_size=16)]
    loaded = load(tensors, qf.config(stages))
    factor = qf.spread(second.t().double().numpy(), 9, 32) * first.double().numpy().reshape(-1, 1)
    assert np.allclose(loaded.dequantize(torch.float64).numpy(), codes * factor, rtol=1e-15, atol=0)


@pytest.mark.parametrize("spelling", ["weight_scale", "weight_scale_inv", "weight_quantizer.scale"])
def test_fp8_blocks_are_read_under_any_spelling(spelling: str) -> None:
    rng = np.random.default_rng(8)
    codes = rng.integers(0, 0x7F, (12, 20), dtype=np.uint8)
    scales = qf.float32(rng, 3, 2)
    tensors = {
        f"{UP}.weight": torch.from_numpy(codes).view(torch.float8_e4m3fn),
        f"{UP}.{spelling}": scales,
    }
    loaded = load(tensors, qf.config(qf.spec("fp8_e4m3", "per_block", block_size=[4, 16])))
    numbers = np.vectorize(lambda c: value("e4m3fn", int(c)))(codes)
    factors = scales.double().numpy()[np.arange(12) // 4][:, np.arange(20) // 16]
    assert equal(loaded, numbers * factors)


ACTIVATIONS = [
    (None, "None"),
    (qf.spec("bfloat16", "per_tensor"), "None"),
    (qf.spec("fp8_e4m3", "per_tensor", is_dynamic=True), "e4m3fn-tensor-f32"),
    (qf.spec("fp8_e4m3", "per_tensor"), "e4m3fn-tensor-f32-static"),
    (qf.spec("fp8_e5m2", "per_channel", is_dynamic=True), "e5m2-token-f32"),
    (qf.spec("int8", "per_channel", ch_axis=1, is_dynamic=True), "s8-token-f32"),
    (qf.spec("int4", "per_group", group_size=64, is_dynamic=True), "s4-g64-f32"),
    (qf.spec("fp4", "per_group", group_size=32, is_dynamic=True, scale_format="e8m0"),
     "e2m1-g32-e8m0"),
    (qf.spec("fp4", "per_group", group_size=16, is_dynamic=True, scale_format="e5m3"),
     "e2m1-g16-e5m3"),
    (qf.spec("mx", "per_group", group_size=32, is_dynamic=True, scale_format="e8m0",
             mx_element_dtype="fp6_e2m3"), "e2m3-g32-e8m0"),
    ([qf.spec("fp4", "per_group", group_size=16, is_dynamic=True),
      qf.spec("fp8_e4m3", "per_tensor", is_scale_quant=True)], "e2m1-g16-e4m3fn-tensor-static"),
    ([qf.spec("fp4", "per_group", group_size=16, is_dynamic=True),
      qf.spec("fp8_e4m3", "per_tensor", is_scale_quant=True, is_dynamic=True)],
     "e2m1-g16-e4m3fn-tensor"),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "expected"), ACTIVATIONS, ids=[a[1] for a in ACTIVATIONS])
def test_activations_are_what_input_tensors_say(inputs: Any, expected: str) -> None:
    tensors = {
        f"{UP}.weight": torch.zeros(3, 4, dtype=torch.int8),
        f"{UP}.weight_scale": torch.ones(3),
    }
    if expected.endswith("static"):
        role = "input_scale_2" if "g16" in expected else "input_scale"
        tensors[f"{UP}.{role}"] = torch.tensor([0.5], dtype=torch.bfloat16)
    weight = load(tensors, qf.config(qf.spec("int8", "per_channel"), inputs))
    assert str(weight.activation) == expected
    assert (weight.input_scale == 0.5) if expected.endswith("static") else not weight.input_scale


def test_layers_get_their_own_spec_then_that_of_their_type_then_the_common_one() -> None:
    int8, fp8 = qf.spec("int8", "per_channel"), qf.spec("fp8_e4m3", "per_channel")
    own = {
        "*.layers.?.v_proj": {"weight": fp8},
        "*": {"weight": int8},  # never reached for v_proj: the first match wins
    }
    q, v = "model.layers.0.q_proj", "model.layers.0.v_proj"
    tensors = {}
    for name, dtype in ((q, torch.int8), (v, torch.float8_e4m3fn)):
        tensors[f"{name}.weight"] = torch.ones(3, 4).to(dtype)
        tensors[f"{name}.weight_scale"] = torch.ones(3)
    config = qf.config(fp8, layer_quant_config=own)
    assert str(load(tensors, config, q).scheme) == "s8-channel-f32"
    assert str(load(tensors, config, v).scheme) == "e4m3fn-channel-f32"
    types = {"Linear": {"weight": int8}, "Conv2d": {"weight": fp8}}
    by_type = qf.config(
        qf.spec("int4", "per_channel"),
        layer_type_quant_config=types,
        layer_quant_config={"*.v_proj": {"weight": fp8}},
    )
    assert str(load(tensors, by_type, q).scheme) == "s8-channel-f32"


def test_names_are_matched_whole_and_nothing_below_is_implied() -> None:
    """As Quark does with fnmatch; `re:` patterns are regular expressions."""
    tensors = {}
    for name in ("model.gate", "model.gate.up", "lm_head"):
        tensors[f"{name}.weight"] = torch.zeros(3, 4, dtype=torch.int8)
        tensors[f"{name}.weight_scale"] = torch.ones(3)
    del tensors["model.gate.weight"], tensors["model.gate.weight_scale"]
    tensors["lm_head.weight"] = torch.zeros(3, 4)
    del tensors["lm_head.weight_scale"]
    config = qf.config(qf.spec("int8", "per_channel"), exclude=["*.gate", "lm_head", "re:.*down$"])
    loader = memory_loader(QuarkLoader, tensors, config)
    assert [plan.name for plan in loader.plan()] == ["model.gate.up"]


def test_quantized_outputs_of_the_cache_are_not_ours() -> None:
    key = "model.layers.0.self_attn.k_proj"
    fp8 = qf.spec("fp8_e4m3", "per_tensor")
    own = {"*k_proj": {"weight": fp8, "input_tensors": None, "output_tensors": fp8}}
    tensors = {
        f"{key}.weight": torch.zeros(3, 4).to(torch.float8_e4m3fn),
        f"{key}.weight_scale": torch.tensor(2.0),
        f"{key}.output_scale": torch.tensor(3.0),
    }
    export = {"weight_format": "real_quantized", "kv_cache_group": ["*k_proj", "*v_proj"]}
    for more in ({"kv_cache_quant_config": own}, {"export": export}):
        weight = load(tensors, qf.config(fp8, layer_quant_config=own, **more), key)
        assert str(weight.scheme) == "e4m3fn-tensor-f32"


def test_a_row_and_a_group_of_zeros_and_the_bias_survive() -> None:
    codes = np.random.default_rng(9).integers(1, 16, (6, 64), dtype=np.uint8)
    codes[1], codes[2, :32], codes[3] = 0, 0, 8  # 8 is -0.0
    exponents = torch.full((6, 2), 127, dtype=torch.uint8)
    exponents[1] = 0
    tensors = {
        f"{UP}.weight": qf.stream(codes, 4), f"{UP}.weight_scale": exponents,
        f"{UP}.bias": 0.01 * torch.arange(6.0),
    }  # fmt: skip
    spec = qf.spec("fp4", "per_group", group_size=32, scale_format="e8m0")
    weight = load(tensors, qf.config(spec))
    found = weight.dequantize(torch.float64)
    assert bool(found.isfinite().all())
    assert not found[1].any()
    assert not found[2, :32].any()
    assert bool(torch.signbit(found[3]).all())
    assert torch.equal(weight.bias, tensors[f"{UP}.bias"])  # type: ignore[arg-type]
