"""FP8 checkpoints: what transformers writes and reads, every spelling, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from core_oracle import value
from memory_checkpoint import fixture_expected, fixture_loader, memory_loader

from humming.checkpoints.fp8 import Fp8Loader as Loader
from humming.errors import CheckpointError
from humming.weight import CanonicalWeight

NAME = "layers.0.up"
BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
TENSOR = {"quant_method": "fp8", "weight_block_size": None}
Tensors = dict[str, torch.Tensor]
CASES = ("block", "block_ue8m0", "tensor_static", "deepseek_v4")


def load_one(
    tensors: Tensors, config: dict[str, Any], model_config: dict[str, Any] | None = None
) -> CanonicalWeight:
    loader = memory_loader(Loader, tensors, config, model_config)
    (plan,) = loader.plan()
    weight = loader.load(plan)
    found = (weight.scheme, weight.n, weight.k, weight.experts, weight.bias is not None)
    assert found == (plan.scheme, plan.n, plan.k, plan.experts, plan.bias)
    return weight


def refusal(
    tensors: Tensors, config: dict[str, Any], model_config: dict[str, Any] | None = None
) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_one(tensors, config, model_config)
    return str(caught.value)


def codes(*shape: int, seed: int = 0) -> torch.Tensor:
    """e4m3 codes, all of them but NaN."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 254, shape).astype(np.uint8)
    raw[raw >= 127] += 1
    return torch.from_numpy(raw).view(torch.float8_e4m3fn)


def values(weight: torch.Tensor, name: str = "e4m3fn") -> np.ndarray:
    table = np.array([value(name, code) for code in range(256)])
    return table[weight.view(torch.uint8).numpy()]


def scaled(weight: torch.Tensor, scales: torch.Tensor, block: tuple[int, int]) -> np.ndarray:
    """Weights of blocks in float64; scales are any float or exponent tensor."""
    n, k = weight.shape[-2:]
    if scales.element_size() == 1:
        factors = np.exp2(scales.view(torch.uint8).numpy().astype(np.float64) - 127)
    else:
        factors = scales.to(torch.float64).numpy()
    rows, columns = np.arange(n) // block[0], np.arange(k) // block[1]
    return values(weight) * factors[..., rows[:, None], columns[None, :]]


# -- files of the real tool -------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_weights_equal_those_that_transformers_reads(case: str) -> None:
    loader, expected = fixture_loader(Loader, f"fp8/{case}"), fixture_expected(f"fp8/{case}")
    plans = {plan.name: plan for plan in loader.plan()}
    assert set(plans) == {name.removesuffix(".weight") for name in expected}
    for name, wanted in expected.items():
        weight = loader.load(plans[name.removesuffix(".weight")])
        assert torch.equal(weight.dequantize(), wanted), name
    claimed = {name for plan in plans.values() for name in plan.tensors}
    assert set(loader.store) - claimed <= {"lm_head.weight"}


@pytest.mark.parametrize(
    ("case", "layer", "scheme", "activation"),
    [
        ("block", "layers.0.q_proj", "e4m3fn-b16x24-f32", "e4m3fn-g24-f32"),
        ("block", "layers.0.mlp.experts.gate_up_proj", "e4m3fn-b16x24-f32", "e4m3fn-g24-f32"),
        ("block_ue8m0", "layers.0.q_proj", "e4m3fn-b16x24-e8m0", "e4m3fn-g24-e8m0"),
        ("tensor_static", "layers.0.q_proj", "e4m3fn-tensor-f32", "e4m3fn-tensor-f32-static"),
        ("deepseek_v4", "layers.0.attn.wo_a", "e4m3fn-b16x32-e8m0", "e4m3fn-g32-e8m0"),
        ("deepseek_v4", "layers.0.ffn.experts.1.w2", "e2m1-g32-e8m0", "e4m3fn-g32-e8m0"),
    ],
)
def test_schemes_of_the_tools_files(case: str, layer: str, scheme: str, activation: str) -> None:
    plan = {plan.name: plan for plan in fixture_loader(Loader, f"fp8/{case}").plan()}[layer]
    assert (str(plan.scheme), str(plan.activation)) == (scheme, activation)


def test_the_static_scale_of_transformers_is_read() -> None:
    loader = fixture_loader(Loader, "fp8/tensor_static")
    (plan,) = loader.plan()
    found = loader.load(plan).input_scale
    assert found is not None
    assert float(found) == np.float32(0.0123)


# -- scales -----------------------------------------------------------------------------------

SCALE_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "e8m0": torch.float8_e8m0fnu}


@pytest.mark.parametrize("fmt", SCALE_DTYPES)
@pytest.mark.parametrize(
    ("n", "k"), [(576, 2560), (4544, 768), (192, 320), (1094, 512), (512, 1094), (129, 257)]
)
def test_partial_blocks_are_read_with_their_scales_exact(n: int, k: int, fmt: str) -> None:
    rows, columns = -(-n // 128), -(-k // 128)
    raw = np.arange(rows * columns).reshape(rows, columns)
    if fmt == "e8m0":
        scales = torch.from_numpy((raw % 200 + 20).astype(np.uint8)).view(torch.float8_e8m0fnu)
    else:
        scales = torch.from_numpy(raw * 0.0173 + 0.001).to(SCALE_DTYPES[fmt])
    weight = codes(n, k)
    tensors = {f"{NAME}.weight": weight, f"{NAME}.weight_scale_inv": scales}
    found = load_one(tensors, BLOCKS)
    assert str(found.scheme) == f"e4m3fn-b128x128-{fmt}"
    assert np.array_equal(
        found.dequantize(torch.float64).numpy(), scaled(weight, scales, (128, 128))
    )
    if rows != columns:
        tensors[f"{NAME}.weight_scale_inv"] = scales.T.contiguous()
        message = refusal(tensors, BLOCKS)
        assert f"expected [{rows}, {columns}] for blocks of 128 x 128: the axes are swapped" in (
            message
        )


@pytest.mark.parametrize(("n", "k", "dim"), [(768, 256, "n"), (256, 768, "k"), (384, 200, "n")])
def test_shards_that_cut_blocks_are_slices_of_the_whole(n: int, k: int, dim: str) -> None:
    scales = torch.rand(-(-n // 128), -(-k // 128)) + 0.1
    tensors = {f"{NAME}.weight": codes(n, k), f"{NAME}.weight_scale_inv": scales}
    weight = load_one(tensors, BLOCKS)
    whole = weight.dequantize()
    axis = 0 if dim == "n" else 1
    parts = [weight.shard(dim, rank, 4).dequantize() for rank in range(4)]
    assert torch.equal(torch.cat(parts, dim=axis), whole)


def test_bytes_of_exponents_are_exponents() -> None:
    tensors = {
        f"{NAME}.weight": codes(4, 64),
        f"{NAME}.weight_scale_inv": torch.tensor([[127, 128]] * 4, dtype=torch.uint8),
    }
    config = {**BLOCKS, "weight_block_size": [1, 32], "scale_fmt": "ue8m0"}
    weight = load_one(tensors, config)
    assert (str(weight.scheme), str(weight.activation)) == ("e4m3fn-g32-e8m0", "e4m3fn-g32-e8m0")
    assert np.array_equal(
        weight.dequantize(torch.float64).numpy(),
        scaled(tensors[f"{NAME}.weight"], tensors[f"{NAME}.weight_scale_inv"], (1, 32)),
    )


@pytest.mark.parametrize("config", [TENSOR, {"quant_method": "fp8"}, BLOCKS])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_scale_is_a_scale_per_tensor(config: dict[str, Any], shape: tuple[int, ...]) -> None:
    weight = codes(200, 300)
    tensors = {f"{NAME}.weight": weight, f"{NAME}.weight_scale": torch.full(shape, 0.37)}
    found = load_one(tensors, config)
    assert (str(found.scheme), str(found.activation)) == ("e4m3fn-tensor-f32", "e4m3fn-token-f32")
    assert np.array_equal(
        found.dequantize(torch.float64).numpy(), values(weight) * np.float64(np.float32(0.37))
    )


@pytest.mark.parametrize("config", [TENSOR, {"quant_method": "fp8"}])
@pytest.mark.parametrize("shape", [(200,), (200, 1)])
def test_one_scale_per_row_is_a_scale_per_channel(
    config: dict[str, Any], shape: tuple[int, ...]
) -> None:
    weight, scales = codes(200, 300), (torch.arange(200) + 1.0).view(shape)
    found = load_one({f"{NAME}.weight": weight, f"{NAME}.weight_scale": scales}, config)
    assert (str(found.scheme), str(found.activation)) == ("e4m3fn-channel-f32", "e4m3fn-token-f32")
    wanted = values(weight) * (np.arange(200) + 1.0)[:, None]
    assert np.array_equal(found.dequantize(torch.float64).numpy(), wanted)


def test_blocks_of_128_are_the_default_only_where_the_key_is_absent() -> None:
    tensors = {f"{NAME}.weight": codes(200, 300), f"{NAME}.weight_scale_inv": torch.rand(2, 3)}
    assert str(load_one(tensors, {"quant_method": "fp8"}).scheme) == "e4m3fn-b128x128-f32"
    message = refusal(tensors, TENSOR)
    assert "N=200, K=300 expected one scale, or 200 of them, found F32 [2, 3]" in message


def test_scales_of_fused_parts_are_refused_by_name() -> None:
    tensors = {f"{NAME}.weight": codes(30, 8), f"{NAME}.weight_scale": torch.rand(3)}
    for config in (TENSOR, {"quant_method": "fp8"}, BLOCKS):
        message = refusal(tensors, config)
        assert f"'{NAME}.weight_scale'" in message
        assert "found F32 [3]; scales of the parts of a fused layer are not supported" in message


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float8_e5m2, "e5m2"),
        (torch.float8_e4m3fnuz, "e4m3fnuz"),
        (torch.float8_e5m2fnuz, "e5m2fnuz"),
    ],
)
def test_the_dtype_says_which_fp8(dtype: torch.dtype, name: str) -> None:
    raw = torch.arange(120, dtype=torch.uint8).view(4, 30)
    tensors = {f"{NAME}.weight": raw.view(dtype), f"{NAME}.weight_scale": torch.tensor(2.0)}
    found = load_one(tensors, TENSOR)
    assert str(found.scheme) == f"{name}-tensor-f32"
    assert np.array_equal(found.dequantize(torch.float64).numpy(), 2 * values(raw, name))
    if "e5m2" in name:
        assert "fmt='e4m3'" in refusal(tensors, {**TENSOR, "fmt": "e4m3"})
    assert "fmt='e9', expected the name of an FP8 format" in refusal(
        tensors, {**TENSOR, "fmt": "e9"}
    )


@pytest.mark.parametrize(
    "spelling",
    ["weight_scale_inv", "weight_scale", "scale", "scale_weight", "weight_quantizer.scale",
     "qscale_weight"],
)  # fmt: skip
def test_every_spelling_multiplies_and_two_are_an_error(spelling: str) -> None:
    tensors = {f"{NAME}.weight": codes(4, 8), f"{NAME}.{spelling}": torch.tensor(3.0)}
    found = load_one(tensors, TENSOR)
    assert np.array_equal(
        found.dequantize(torch.float64).numpy(), 3 * values(tensors[f"{NAME}.weight"])
    )
    other = "weight_scale" if spelling != "weight_scale" else "scale"
    tensors[f"{NAME}.{other}"] = torch.tensor(3.0)
    assert "two spellings of one thing" in refusal(tensors, TENSOR)


@pytest.mark.parametrize(
    "spelling", ["input_scale", "scale_input", "activation_scale", "input_quantizer.scale",
                 "qscale_act"]
)  # fmt: skip
def test_static_activations_need_their_scale_and_dynamic_ones_refuse_it(spelling: str) -> None:
    static = {**TENSOR, "activation_scheme": "static"}
    tensors = {f"{NAME}.weight": codes(4, 8), f"{NAME}.weight_scale": torch.tensor(3.0)}
    assert "static, but there is no scale of its input" in refusal(tensors, static)
    tensors[f"{NAME}.{spelling}"] = torch.tensor([0.25], dtype=torch.bfloat16)
    found = load_one(tensors, static)
    assert str(found.activation) == "e4m3fn-tensor-f32-static"
    assert found.input_scale is not None
    assert found.input_scale.tolist() == 0.25
    assert f"dynamic, but '{NAME}.{spelling}' is present" in refusal(tensors, TENSOR)
    tensors[f"{NAME}.{spelling}"] = torch.tensor([0.25, 0.5])
    assert "expected shape [] or [1], found [2]" in refusal(tensors, static)
    tensors[f"{NAME}.{spelling}"] = torch.tensor(0.0)
    assert "scale 0.0, expected a positive number" in refusal(tensors, static)


# -- experts ----------------------------------------------------------------------------------


def test_a_stack_of_experts_is_a_tensor_without_a_suffix() -> None:
    weight, scales = codes(3, 40, 16), torch.rand(3, 2, 1) + 0.1
    name = "layers.0.mlp.experts.gate_up_proj"
    tensors = {name: weight, f"{name}_scale_inv": scales}
    found = load_one(tensors, {**TENSOR})
    assert str(found.scheme) == "e4m3fn-channel-f32"  # one scale for gate, one for up
    wanted = values(weight) * np.repeat(scales.to(torch.float64).numpy(), 20, axis=1)
    assert np.array_equal(found.dequantize(torch.float64).numpy(), wanted)
    tensors[f"{name}_activation_scale"] = torch.tensor([0.5, 0.25, 2.0])
    found = load_one(tensors, {**TENSOR, "activation_scheme": "static"})
    assert found.input_scale is not None
    assert found.input_scale.tolist() == [0.5, 0.25, 2.0]
    tensors[f"{name}_scale_inv"] = torch.rand(2, 2, 1)
    message = refusal(tensors, {**TENSOR, "activation_scheme": "static"})
    assert "expected 3 experts first" in message


def test_experts_may_have_a_scale_each() -> None:
    weight, scales = codes(3, 40, 16), torch.tensor([1.0, 2.0, 4.0])
    name = "layers.0.mlp.experts.down_proj"
    for shape in ((3,), (3, 1), (3, 1, 1)):
        found = load_one({name: weight, f"{name}_scale_inv": scales.view(shape)}, TENSOR)
        assert str(found.scheme) == "e4m3fn-tensor-f32"
        wanted = values(weight) * np.array([1.0, 2.0, 4.0])[:, None, None]
        assert np.array_equal(found.dequantize(torch.float64).numpy(), wanted)


def fp4_expert(dtype: torch.dtype = torch.int8) -> Tensors:
    rng = np.random.default_rng(0)
    raw = torch.from_numpy(rng.integers(0, 256, (6, 32)).astype(np.uint8))
    powers = torch.from_numpy(rng.integers(100, 140, (6, 2)).astype(np.uint8))
    layer = "layers.0.ffn.experts.3.w1"
    return {
        f"{layer}.weight": raw.view(dtype),
        f"{layer}.scale": powers.view(torch.float8_e8m0fnu),
    }


V4 = {**BLOCKS, "scale_fmt": "ue8m0", "activation_scheme": "dynamic"}


# torch has a dtype for pairs of FP4 codes since 2.8.
PAIRS = [torch.int8, torch.uint8, *filter(None, [getattr(torch, "float4_e2m1fn_x2", None)])]


@pytest.mark.parametrize("dtype", PAIRS)
def test_fp4_experts_are_read_in_any_byte_dtype(dtype: torch.dtype) -> None:
    tensors = fp4_expert(dtype)
    raw, powers = (tensor.view(torch.uint8).numpy() for tensor in tensors.values())
    fp4 = np.array([value("e2m1", code) for code in range(16)])
    plain = np.stack([fp4[raw & 15], fp4[raw >> 4]], axis=-1).reshape(6, 64)
    plain *= np.exp2(np.repeat(powers, 32, axis=1).astype(np.float64) - 127)
    for config, model in ((V4, {"expert_dtype": "fp4"}), ({**V4, "expert_dtype": "fp4"}, {})):
        found = load_one(tensors, config, model)
        assert (str(found.scheme), str(found.activation)) == ("e2m1-g32-e8m0", "e4m3fn-g128-e8m0")
        assert np.array_equal(found.dequantize(torch.float64).numpy(), plain)


def test_bytes_are_fp4_only_in_experts_of_a_model_that_says_so() -> None:
    tensors = fp4_expert()
    for model in ({}, {"expert_dtype": "fp8"}):
        assert "I8 [6, 32], expected an FP8 dtype" in refusal(tensors, V4, model)
    shared = {
        name.replace("experts.3", "shared_experts"): tensor for name, tensor in tensors.items()
    }
    assert "expected an FP8 dtype" in refusal(shared, V4, {"expert_dtype": "fp4"})
    message = refusal(tensors, V4, {"expert_dtype": "nvfp4"})
    assert "expert_dtype='nvfp4', expected fp8 or fp4" in message
    assert "expert_dtype=4, expected a string" in refusal(tensors, V4, {"expert_dtype": 4})


def test_nan_exponents_are_refused_by_name() -> None:
    tensors = fp4_expert()
    tensors["layers.0.ffn.experts.3.w1.scale"].view(torch.uint8)[5, 1] = 255
    message = refusal(tensors, V4, {"expert_dtype": "fp4"})
    assert "'layers.0.ffn.experts.3.w1.scale': e8m0 scale at [5, 1] is NaN" in message


# -- what is not as promised --------------------------------------------------------------------


@pytest.mark.parametrize("key", ["modules_to_not_convert", "ignored_layers"])
def test_an_excluded_layer_with_codes_is_refused(key: str) -> None:
    tensors = {"lm_head.weight": codes(4, 8), "lm_head.weight_scale": torch.tensor(1.0)}
    message = refusal(tensors, {**TENSOR, key: ["lm_head"]})
    assert "'lm_head.weight': F8_E4M3 [4, 8], but 'lm_head' in the config spares" in message
    assert load_one(tensors, {**TENSOR, key: ["head", "lm"]}).n == 4
    assert f"{key}='lm_head'" in refusal(tensors, {**TENSOR, key: "lm_head"})
    assert "expected a list of names" in refusal(tensors, {**TENSOR, key: [1]})


def test_an_unquantized_layer_with_a_scale_is_refused() -> None:
    plain = torch.ones(4, 8, dtype=torch.bfloat16)
    for suffix in ("weight_scale_inv", "input_scale", "weight_quantizer.scale"):
        tensors = {f"{NAME}.weight": plain, f"{NAME}.{suffix}": torch.tensor(1.0)}
        message = refusal(tensors, TENSOR)
        assert f"'{NAME}.{suffix}': a scale, but '{NAME}.weight' is BF16 [4, 8]" in message
    stack = {"experts.up": plain, "experts.up_scale_inv": torch.tensor(1.0)}
    assert "'experts.up_scale_inv': a scale, but 'experts.up' is BF16" in refusal(stack, TENSOR)
    norm = {"q_norm.weight": torch.ones(8), "q_norm.scale": torch.ones(8)}
    cache = {"attn.k_scale": torch.ones(1), "attn.v_scale": torch.ones(1)}
    assert list(memory_loader(Loader, {**norm, **cache}, TENSOR).plan()) == []


def test_codes_without_a_scale_are_refused() -> None:
    message = refusal({f"{NAME}.weight": codes(4, 8)}, TENSOR)
    assert f"'{NAME}.weight': F8_E4M3 [4, 8] without a scale: no {NAME}.weight_scale_inv" in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation_scheme": "tokenwise"}, "activation_scheme='tokenwise', expected dynamic or"),
        ({"activation_scheme": 3}, "activation_scheme=3, expected str"),
        ({"scale_fmt": "fp4"}, "scale_fmt='fp4', expected float or ue8m0"),
        ({"weight_block_size": [128]}, "weight_block_size=[128], expected [rows, columns]"),
        ({"weight_block_size": [128, 0]}, "weight_block_size=[128, 0]"),
        ({"weight_block_size": "128x128"}, "weight_block_size='128x128'"),
    ],
)
def test_malformed_configs_are_named(change: dict[str, Any], message: str) -> None:
    tensors = {f"{NAME}.weight": codes(4, 8), f"{NAME}.weight_scale": torch.tensor(1.0)}
    assert message in refusal(tensors, {**TENSOR, **change})


@pytest.mark.parametrize("dtype", [torch.int32, torch.float8_e4m3fn, torch.float64])
def test_scales_of_another_type_are_refused(dtype: torch.dtype) -> None:
    tensors = {f"{NAME}.weight": codes(4, 8), f"{NAME}.weight_scale": torch.ones(1).to(dtype)}
    assert "expected scales in f32 or bf16 or f16 or e8m0" in refusal(tensors, TENSOR)


def test_biases_are_read_and_checked() -> None:
    tensors = {
        f"{NAME}.weight": codes(4, 8),
        f"{NAME}.weight_scale": torch.tensor(1.0),
        f"{NAME}.bias": torch.arange(4.0),
    }
    bias = load_one(tensors, TENSOR).bias
    assert bias is not None
    assert bias.tolist() == [0, 1, 2, 3]
    tensors[f"{NAME}.bias"] = torch.arange(5.0)
    assert f"'{NAME}.bias': expected shape [4], found [5]" in refusal(tensors, TENSOR)
    tensors[f"{NAME}.bias"] = torch.ones(4, dtype=torch.int32)
    assert "expected F16 or BF16 or F32" in refusal(tensors, TENSOR)
