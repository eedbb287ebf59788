"""compressed-tensors layers beyond the tool's fixtures: conventions, corners and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from core_oracle import value
from ct_cases import ct_config, int_args, packed_layer
from memory_checkpoint import memory_loader

from humming.checkpoints.compressed_tensors import CompressedTensorsLoader as Loader
from humming.errors import CheckpointError
from humming.formats.scheme import WeightScheme
from humming.weight import CanonicalWeight

NAME = "layers.0.up"
Tensors = dict[str, torch.Tensor]
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
MXFP4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
FP8 = {"num_bits": 8, "type": "float"}


def load_one(tensors: Tensors, config: dict[str, Any]) -> CanonicalWeight:
    loader = memory_loader(Loader, tensors, config)
    (plan,) = loader.plan()
    return loader.load(plan)


def refusal(tensors: Tensors, config: dict[str, Any]) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_one(tensors, config)
    return str(caught.value)


def nvfp4_layer(global_scale: float) -> tuple[Tensors, np.ndarray]:
    """256 x 512 with block scales 2^-9, 448 and 0 among others; codes times block scales."""
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 16, (256, 512))
    scale_codes = rng.integers(0, 127, (256, 32))
    scale_codes[:, :3] = (1, 126, 0)
    tensors = {
        f"{NAME}.weight_packed": torch.from_numpy(
            (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
        ),
        f"{NAME}.weight_scale": torch.from_numpy(scale_codes.astype(np.uint8)).view(
            torch.float8_e4m3fn
        ),
        f"{NAME}.weight_global_scale": torch.tensor([global_scale], dtype=torch.float32),
    }
    fp4 = np.array([value("e2m1", code) for code in range(16)])
    fp8 = np.array([value("e4m3fn", code) for code in range(128)])
    return tensors, fp4[codes] * np.repeat(fp8[scale_codes], 16, axis=1)


@pytest.mark.parametrize("factor", [2.0**-12, 3.1e-4, 1.0])
def test_a_global_scale_divides_to_within_one_ulp_of_the_factor(factor: float) -> None:
    factor32 = np.float32(factor)
    tensors, blocks = nvfp4_layer(float(np.float32(1) / factor32))
    weight = load_one(tensors, ct_config(NVFP4, "nvfp4-pack-quantized"))
    assert weight.scheme == WeightScheme.parse("nvfp4")
    assert {448 * 6.0, 2.0**-9 * 6.0, 0.0} <= set(np.abs(blocks).ravel())
    wanted = (blocks * np.float64(factor32)).astype(np.float32)  # ModelOpt: times the factor
    found = weight.dequantize(torch.float32).numpy()
    assert (np.abs(found - wanted) <= np.spacing(np.abs(wanted))).all()
    if factor != 3.1e-4:
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), 1e-45])
def test_a_divisor_that_cannot_divide_is_refused(bad: float) -> None:
    tensors, _ = nvfp4_layer(bad)
    message = refusal(tensors, ct_config(NVFP4, "nvfp4-pack-quantized"))
    assert f"{NAME}.weight_global_scale" in message
    assert "expected a positive number" in message


def test_a_missing_global_scale_is_named() -> None:
    tensors, _ = nvfp4_layer(1.0)
    del tensors[f"{NAME}.weight_global_scale"]
    message = refusal(tensors, ct_config(NVFP4, "nvfp4-pack-quantized"))
    assert f"'{NAME}.weight_global_scale': missing" in message


def test_nan_scales_are_refused_by_name() -> None:
    tensors, _ = nvfp4_layer(1.0)
    tensors[f"{NAME}.weight_scale"].view(torch.uint8)[7, 3] = 0x7F
    message = refusal(tensors, ct_config(NVFP4, "nvfp4-pack-quantized"))
    assert f"'{NAME}.weight_scale': e4m3fn scale at [7, 3] is NaN" in message
    mx = {
        f"{NAME}.weight_packed": torch.zeros(4, 32, dtype=torch.uint8),
        f"{NAME}.weight_scale": torch.full((4, 2), 254, dtype=torch.uint8),
    }
    assert (
        float(load_one(mx, ct_config(MXFP4, "mxfp4-pack-quantized")).dequantize().abs().max()) == 0
    )
    mx[f"{NAME}.weight_scale"][3, 1] = 255
    message = refusal(mx, ct_config(MXFP4, "mxfp4-pack-quantized"))
    assert "e8m0 scale at [3, 1] is NaN" in message


def test_plans_read_nothing_but_weight_shape() -> None:
    tensors, _ = packed_layer(np.random.default_rng(0), (4, 24, 64), 32, asym=True)
    tensors[f"{NAME}.bias"] = torch.ones(24)
    loader = memory_loader(Loader, tensors, ct_config(int_args(4, 32, symmetric=False)))
    (plan,) = loader.plan()
    assert set(loader.store.read) == {f"{NAME}.weight_shape"}  # type: ignore[attr-defined]
    assert set(plan.tensors) == set(tensors)
    assert plan.bias
    assert loader.load(plan).bias is tensors[f"{NAME}.bias"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_dtype_of_scales_is_kept(dtype: torch.dtype) -> None:
    tensors, _ = packed_layer(np.random.default_rng(0), (4, 24, 64), 32)
    tensors[f"{NAME}.weight_scale"] = tensors[f"{NAME}.weight_scale"].to(dtype)
    assert load_one(tensors, ct_config(int_args(4, 32))).scales.dtype == dtype


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_scale_per_tensor_may_have_any_shape_of_one(shape: tuple[int, ...]) -> None:
    tensors = {
        f"{NAME}.weight": torch.ones(8, 16).to(torch.float8_e4m3fn),
        f"{NAME}.weight_scale": torch.full(shape, 0.5),
    }
    weight = load_one(tensors, ct_config(FP8, "float-quantized"))
    assert str(weight.scheme) == "e4m3fn-tensor-f32"
    assert bool((weight.dequantize() == 0.5).all())


@pytest.mark.parametrize(("n", "k"), [(160, 320), (129, 257), (576, 2560)])
@pytest.mark.parametrize("spelled", [[128, 128], "128x128"])
def test_partial_blocks_count_and_both_spellings_are_one(n: int, k: int, spelled: object) -> None:
    rows, columns = -(-n // 128), -(-k // 128)
    scales = torch.arange(1, rows * columns + 1, dtype=torch.float32).view(rows, columns)
    tensors = {
        f"{NAME}.weight": torch.ones(n, k).to(torch.float8_e4m3fn),
        f"{NAME}.weight_scale": scales,
    }
    config = ct_config({**FP8, "strategy": "block", "block_structure": spelled}, "float-quantized")
    weight = load_one(tensors, config)
    assert str(weight.scheme) == "e4m3fn-b128x128-f32"
    wanted = scales[torch.arange(n) // 128][:, torch.arange(k) // 128]
    assert torch.equal(weight.dequantize(), wanted)
    if (rows, columns) != (columns, rows):
        tensors[f"{NAME}.weight_scale"] = scales.T.contiguous()
        message = refusal(tensors, config)
        assert f"expected shape [{rows}, {columns}] for N={n}, K={k}" in message


@pytest.mark.parametrize("k", [4304, 100])
def test_a_ragged_last_group_needs_its_own_scale(k: int) -> None:
    tensors, plain = packed_layer(np.random.default_rng(0), (4, 16, k), 32)
    assert np.array_equal(load_one(tensors, ct_config(int_args(4, 32))).dequantize().numpy(), plain)
    scales = tensors[f"{NAME}.weight_scale"]
    tensors[f"{NAME}.weight_scale"] = scales[:, : k // 32].contiguous()
    message = refusal(tensors, ct_config(int_args(4, 32)))
    assert f"expected shape [16, {-(-k // 32)}] for N=16, K={k} and groups of 32" in message


# -- act-order --------------------------------------------------------------------------------

ORDERED = {**int_args(4, 32), "actorder": "group"}


def act_order_layer(index: np.ndarray) -> tuple[Tensors, np.ndarray]:
    """A layer whose columns are in the groups that `index` says, and its weights."""
    rng = np.random.default_rng(11)
    k = index.size
    tensors, _ = packed_layer(rng, (4, 24, k), 32)
    words = tensors[f"{NAME}.weight_packed"].numpy().view(np.uint32)
    codes = (words[:, np.arange(k) // 8] >> (4 * (np.arange(k) % 8)).astype(np.uint32)) & 15
    scales = tensors[f"{NAME}.weight_scale"].to(torch.float64).numpy()
    tensors[f"{NAME}.weight_g_idx"] = torch.from_numpy(index.astype(np.int32))
    return tensors, (codes.astype(np.int64) - 8) * scales[:, index]


@pytest.mark.parametrize("spelled", ["group", "dynamic", "GROUP", True])
def test_act_order_groups_are_those_of_g_idx(spelled: object) -> None:
    index = np.random.default_rng(1).permutation(np.arange(96) // 32)
    tensors, plain = act_order_layer(index)
    weight = load_one(tensors, ct_config({**ORDERED, "actorder": spelled}))
    assert np.array_equal(weight.dequantize(torch.float64).numpy(), plain)
    assert weight.permutation is not None
    assert weight.permutation.tolist() == np.argsort(index, kind="stable").tolist()
    assert weight.group_index is None


def test_act_order_groups_may_be_uneven() -> None:
    index = np.random.default_rng(2).integers(0, 3, 96)
    tensors, plain = act_order_layer(index)
    weight = load_one(tensors, ct_config(ORDERED))
    assert np.array_equal(weight.dequantize(torch.float64).numpy(), plain)
    assert weight.group_index is not None
    assert weight.group_index.tolist() == sorted(index.tolist())


def test_act_order_without_an_order_leaves_columns_alone() -> None:
    for index in (np.arange(96) // 32, np.where(np.arange(96) == 5, -1, 2)):
        tensors, _ = act_order_layer(index)
        plain = tensors.copy()
        del plain[f"{NAME}.weight_g_idx"]
        weight, bare = load_one(tensors, ct_config(ORDERED)), load_one(plain, ct_config(ORDERED))
        assert weight.permutation is None
        assert weight.group_index is None
        assert torch.equal(weight.dequantize(), bare.dequantize())


def test_act_order_refuses_groups_that_do_not_exist_and_configs_without_it() -> None:
    index = np.arange(96) // 32
    tensors, _ = act_order_layer(index)
    message = refusal(tensors, ct_config(int_args(4, 32)))
    assert f"{NAME}.weight_g_idx" in message
    assert "actorder" in message
    tensors[f"{NAME}.weight_g_idx"][4] = 3
    assert "groups from 0 to 3, expected 0 to 2" in refusal(tensors, ct_config(ORDERED))
    tensors[f"{NAME}.weight_g_idx"] = torch.zeros(95, dtype=torch.int32)
    assert "expected shape [96], found I32 [95]" in refusal(tensors, ct_config(ORDERED))


# -- what is not as promised --------------------------------------------------------------------


def test_a_stack_of_experts_reads_each_by_itself() -> None:
    rng = np.random.default_rng(3)
    parts = [packed_layer(rng, (4, 24, 64), 32, asym=True) for _ in range(3)]
    tensors = {name: torch.stack([part[0][name] for part in parts]) for name in parts[0][0]}
    tensors[f"{NAME}.weight_shape"] = torch.tensor([3, 24, 64])
    weight = load_one(tensors, ct_config(int_args(4, 32, symmetric=False)))
    assert weight.experts == 3
    for index, (_, plain) in enumerate(parts):
        assert np.array_equal(weight.expert(index).dequantize(torch.float64).numpy(), plain)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([24, 65], "has 8 words along K; K=65 codes of 4 bits take 9 (dense) or 9 (padded)"),
        ([23, 64], "weight_packed has rows [24]"),
        ([24, 0], "weight_packed has rows [24]"),
        ([1, 24, 64], "expected shape [2], found [3]"),
    ],
)
def test_weight_shape_must_agree_with_the_words(shape: list[int], message: str) -> None:
    tensors, _ = packed_layer(np.random.default_rng(0), (4, 24, 64), 0)
    tensors[f"{NAME}.weight_shape"] = torch.tensor(shape)
    assert message in refusal(tensors, ct_config(int_args(4)))


@pytest.mark.parametrize("suffix", ["weight_packed", "weight_shape", "weight_scale"])
def test_a_missing_tensor_is_named(suffix: str) -> None:
    tensors, _ = packed_layer(np.random.default_rng(0), (4, 24, 64), 32)
    del tensors[f"{NAME}.{suffix}"]
    message = refusal(tensors, ct_config(int_args(4, 32)))
    assert f"tensor '{NAME}.{suffix}': missing" in message


@pytest.mark.parametrize(
    ("suffix", "dtype", "message"),
    [
        ("weight_packed", torch.int64, "expected I32, found I64 [24, 8]"),
        ("weight_scale", torch.float64, "expected scales in f16 or bf16 or f32, found F64 [24, 2]"),
        ("weight_zero_point", torch.int64, "expected I32 or I8, found I64 [3, 2]"),
    ],
)
def test_a_mistyped_tensor_is_named(suffix: str, dtype: torch.dtype, message: str) -> None:
    tensors, _ = packed_layer(np.random.default_rng(0), (4, 24, 64), 32, asym=True)
    tensors[f"{NAME}.{suffix}"] = tensors[f"{NAME}.{suffix}"].to(dtype)
    found = refusal(tensors, ct_config(int_args(4, 32, symmetric=False)))
    assert f"tensor '{NAME}.{suffix}': {message}" in found


def test_bytes_of_small_floats_are_matrices_of_whole_codes() -> None:
    tensors = {
        f"{NAME}.weight_packed": torch.zeros(2, 4, 32, dtype=torch.uint8),
        f"{NAME}.weight_scale": torch.full((2, 4, 2), 127, dtype=torch.uint8),
    }
    message = refusal(tensors, ct_config(MXFP4, "mxfp4-pack-quantized"))
    assert "expected 2 dimensions, found U8 [2, 4, 32]" in message
    tensors[f"{NAME}.weight_packed"] = torch.zeros(4, 25, dtype=torch.uint8)
    tensors[f"{NAME}.weight_scale"] = torch.full((4, 2), 127, dtype=torch.uint8)
    fp6 = {**MXFP4, "num_bits": 6}
    message = refusal(tensors, ct_config(fp6, "mxfp6-pack-quantized"))
    assert "rows of 25 bytes, expected whole codes of 6 bits" in message


def test_narrow_integers_in_int8_must_fit() -> None:
    rng = np.random.default_rng(0)
    codes = torch.from_numpy(rng.integers(-8, 8, (24, 64)).astype(np.int8))
    tensors = {f"{NAME}.weight": codes, f"{NAME}.weight_scale": torch.ones(24, 1)}
    config = ct_config(int_args(4), "naive-quantized")
    weight = load_one(tensors, config)
    assert str(weight.scheme) == "u4-channel-f32"
    assert torch.equal(weight.dequantize(), codes.float())
    codes[5, 5] = 8
    assert "values from -8 to 8, expected 4 bits: -8 to 7" in refusal(tensors, config)


def test_naive_int8_is_signed() -> None:
    codes = torch.arange(-128, 128, dtype=torch.int8).view(4, 64)
    tensors = {f"{NAME}.weight": codes, f"{NAME}.weight_scale": torch.ones(4, 1)}
    weight = load_one(tensors, ct_config(int_args(8), "naive-quantized"))
    assert torch.equal(weight.dequantize(), codes.float())


def test_codes_of_another_type_than_the_config_says_are_refused() -> None:
    tensors = {
        f"{NAME}.weight": torch.ones(4, 64).to(torch.float8_e4m3fn),
        f"{NAME}.weight_scale": torch.ones(4, 1),
    }
    message = refusal(tensors, ct_config(int_args(8), "naive-quantized"))
    assert "expected I8, found F8_E4M3 [4, 64]" in message


def test_static_inputs_need_their_scale() -> None:
    tensors = {
        f"{NAME}.weight": torch.ones(4, 64).to(torch.float8_e4m3fn),
        f"{NAME}.weight_scale": torch.ones(1),
    }
    config = ct_config(FP8, "float-quantized", input_activations={**FP8, "group_size": None})
    assert f"'{NAME}.input_scale': missing" in refusal(tensors, config)
    tensors[f"{NAME}.input_scale"] = torch.tensor([0.25], dtype=torch.bfloat16)
    tensors[f"{NAME}.input_zero_point"] = torch.zeros(1).to(torch.float8_e4m3fn)
    weight = load_one(tensors, config)
    assert str(weight.activation) == "e4m3fn-tensor-f32-static"
    assert weight.input_scale is not None
    assert weight.input_scale.tolist() == 0.25
    tensors[f"{NAME}.input_zero_point"] = torch.ones(1).to(torch.float8_e4m3fn)
    assert "input_zero_point': not 0" in refusal(tensors, config)
    tensors[f"{NAME}.input_scale"] = torch.tensor([0.25, 0.5])
    assert "input_scale': expected shape [1], found F32 [2]" in refusal(tensors, config)
    tensors[f"{NAME}.input_scale"] = torch.tensor([0.25])
    tensors[f"{NAME}.bias"] = torch.ones(5)
    assert "bias': expected shape [4], found F32 [5]" in refusal(tensors, config)


def test_an_ignored_layer_with_scales_is_refused() -> None:
    tensors, _ = packed_layer(np.random.default_rng(0), (4, 24, 64), 32, name="lm_head")
    message = refusal(tensors, ct_config(int_args(4, 32)))
    assert "'lm_head.weight_packed': part of a quantized layer" in message
    assert "'lm_head' in the config's ignore list" in message


def test_a_layer_that_no_group_names_is_refused() -> None:
    tensors, _ = packed_layer(np.random.default_rng(0), (4, 24, 64), 32)
    config = ct_config(int_args(4, 32))
    config["config_groups"]["group_0"]["targets"] = ["re:.*down$"]
    assert "no config group names the layer; targets: re:.*down$" in refusal(tensors, config)


@pytest.mark.parametrize("form", ["dense", "fakequant", None])
def test_uncompressed_files_must_have_no_codes(form: str | None) -> None:
    tensors, _ = packed_layer(np.random.default_rng(0), (4, 24, 64), 32)
    config = ct_config(int_args(4, 32), "dense")
    config["format"] = form
    assert "says that nothing is compressed" in refusal(tensors, config)
    plain = {f"{NAME}.weight": torch.ones(4, 4), f"{NAME}.k_scale": torch.ones(1)}
    assert list(memory_loader(Loader, plain, config).plan()) == []


def test_a_layer_named_by_the_config_must_have_its_tensors() -> None:
    tensors: Tensors = {f"{NAME}.weight": torch.ones(4, 64, dtype=torch.bfloat16)}
    config = ct_config(int_args(4, 32))
    assert list(memory_loader(Loader, tensors, config).plan()) == []  # any class might be meant
    config["config_groups"]["group_0"]["targets"] = [NAME]
    assert f"'{NAME}.weight_scale': missing" in refusal(tensors, config)
