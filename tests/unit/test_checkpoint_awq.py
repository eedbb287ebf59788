"""AWQ checkpoints: files of AutoAWQ and AutoRound, and layers packed from the description."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from int_packers import IntLayer, awq, awq_tensors, gptq_tensors, int32, random_layer, stream
from memory_checkpoint import FIXTURES, fixture_expected, fixture_loader, memory_loader

import humming
from humming.checkpoints.awq import AwqLoader
from humming.checkpoints.gptq import GptqLoader
from humming.errors import CheckpointError
from humming.weight import CanonicalWeight

CASES = sorted(path.parent.name for path in FIXTURES.glob("awq/*/config.json"))
CONFIG: dict[str, Any] = {
    "quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm",
    "modules_to_not_convert": None,
}  # fmt: skip


def loader_of(tensors: dict[str, torch.Tensor], **changes: Any) -> AwqLoader:
    return memory_loader(AwqLoader, tensors, {**CONFIG, **changes})


def read(tensors: dict[str, torch.Tensor], **changes: Any) -> CanonicalWeight:
    """The one layer of a checkpoint, which must be read as it was planned."""
    loader = loader_of(tensors, **changes)
    (plan,) = loader.plan()
    assert loader.store.read == []  # type: ignore[attr-defined]
    assert set(plan.tensors) == set(tensors)
    weight = loader.load(plan)
    assert (weight.scheme, weight.n, weight.k) == (plan.scheme, plan.n, plan.k)
    assert (weight.bias is not None) == plan.bias
    return weight


def gemv_tensors(layer: IntLayer, width: int) -> dict[str, torch.Tensor]:
    """gemv layout with `width` words of zero points in each row."""
    n, groups = layer.zeros.shape
    padded = torch.zeros(n, 8 * width, dtype=layer.scales.dtype)
    padded[:, :groups] = layer.scales
    zeros = [[*row, *[0] * (8 * width - groups)] for row in layer.zeros.tolist()]
    return {
        "layer.qweight": int32([stream(row, 4) for row in layer.codes]),
        "layer.qzeros": int32([stream(row, 4) for row in zeros]),
        "layer.scales": padded,
    }


@pytest.mark.parametrize("case", CASES)
def test_reads_what_autoawq_reads(case: str) -> None:
    expected = fixture_expected(f"awq/{case}")["layer.weight"]
    checkpoint = humming.load_checkpoint(FIXTURES / "awq" / case)
    assert (list(checkpoint), checkpoint.family) == (["layer"], "awq")
    found = checkpoint["layer"].dequantize(torch.float64)
    assert torch.equal(found.to(expected.dtype), expected)


def test_autorounds_plain_export_leaves_its_excluded_layers_out() -> None:
    loader = fixture_loader(AwqLoader, "auto_round/plain_awq")
    expected = fixture_expected("auto_round/plain_awq")
    plans = list(loader.plan())
    assert {f"{plan.name}.weight" for plan in plans} == set(expected)
    for plan in plans:
        found = loader.load(plan).dequantize(torch.float64)
        assert torch.equal(found.half(), expected[f"{plan.name}.weight"].half())


def test_the_golden_word_holds_columns_0_to_7() -> None:
    assert awq(range(8)) == [0x75316420]
    tensors = {
        "layer.qweight": int32([[0x75316420]] * 64),
        "layer.qzeros": int32([[0x75316420]]),
        "layer.scales": torch.ones(1, 8, dtype=torch.float16),
    }
    weight = read(tensors)
    assert weight.zeros is not None
    assert weight.codes()[:, 0].tolist() == list(range(8))
    assert weight.zeros[:, 0].tolist() == list(range(8))
    assert not weight.dequantize().any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("n", "group"), [(64, 64), (72, 64), (8, 32), (72, -1)])
def test_gemm_dequantizes_exactly(n: int, group: int, dtype: torch.dtype) -> None:
    layer = random_layer(n, 256, group, 4, dtype=dtype)
    assert {0, 15} <= set(layer.zeros.flatten().tolist())
    weight = read(awq_tensors(layer), group_size=group)
    assert torch.equal(weight.dequantize(torch.float64), layer.values)
    assert weight.scales.dtype == dtype
    scale = "f16" if dtype == torch.float16 else "bf16"
    assert str(weight.scheme) == f"u4+z-{f'g{group}' if group > 0 else 'channel'}-{scale}"


@given(st.integers(1, 5), st.integers(1, 6), st.sampled_from([8, 16, 24]), st.integers(0, 99))
def test_gemm_of_any_size_reads_back(n8: int, groups: int, group: int, seed: int) -> None:
    layer = random_layer(8 * n8, groups * group, group, 4, seed=seed)
    weight = read(awq_tensors(layer), group_size=group)
    assert torch.equal(weight.dequantize(torch.float64), layer.values)


@pytest.mark.parametrize(("k", "group", "width"), [(256, 64, 2), (1152, 64, 4), (256, 128, 1)])
def test_gemv_dequantizes_exactly_whatever_the_padding(k: int, group: int, width: int) -> None:
    layer = random_layer(40, k, group, 4)
    weight = read(gemv_tensors(layer, width), group_size=group, version="GEMV")
    assert torch.equal(weight.dequantize(torch.float64), layer.values)
    assert weight.scales.shape == (40, k // group)


def test_the_same_weight_as_gptq_v2_is_equal_bit_for_bit() -> None:
    layer = random_layer(64, 256, 64, 4)
    gptq = memory_loader(
        GptqLoader,
        gptq_tensors(layer),
        {"bits": 4, "group_size": 64, "sym": False, "checkpoint_format": "gptq_v2"},
    )
    one, other = read(awq_tensors(layer)), gptq.load(gptq.plan()[0])
    assert one.scheme == other.scheme
    for (name, a), (_, b) in zip(one.tensors(), other.tensors(), strict=True):
        assert torch.equal(a, b), name


def test_without_zero_points_the_middle_is_meant() -> None:
    layer = random_layer(64, 128, 64, 4, sym=True)
    for tensors in (awq_tensors(layer, qzeros=False), awq_tensors(layer)):
        weight = read(tensors, zero_point=False)
        assert str(weight.scheme) == "u4-g64-f16"
        assert torch.equal(weight.dequantize(torch.float64), layer.values)


def test_zero_points_that_zero_point_denies_are_refused() -> None:
    tensors = awq_tensors(random_layer(64, 128, 64, 4))
    with pytest.raises(CheckpointError, match=r"layer.qzeros.*every zero point is 8.*0 to 15"):
        read(tensors, zero_point=False)


def test_the_old_side_file_names_its_settings_otherwise() -> None:
    layer = random_layer(64, 128, 64, 4)
    loader = memory_loader(
        AwqLoader,
        awq_tensors(layer),
        {"w_bit": 4, "q_group_size": 64, "zero_point": True, "version": "GEMM"},
    )
    (plan,) = loader.plan()
    assert torch.equal(loader.load(plan).dequantize(torch.float64), layer.values)


def test_excluded_layers_are_left_alone() -> None:
    tensors = {
        **awq_tensors(random_layer(64, 128, 64, 4), "model.layers.10.gate_proj"),
        "model.layers.1.gate.weight": torch.zeros(4, 4),
        "lm_head.weight": torch.zeros(4, 4),
    }
    excluded = ["lm_head", "gate", "layers.1"]  # whole components: neither gate_proj nor layers.10
    (plan,) = loader_of(tensors, modules_to_not_convert=excluded).plan()
    assert plan.name == "model.layers.10.gate_proj"


@pytest.mark.parametrize("entry", ["model.layers.1", "up", "model.layers.1.up"])
def test_an_excluded_layer_that_is_quantized_is_refused(entry: str) -> None:
    tensors = awq_tensors(random_layer(64, 128, 64, 4), "model.layers.1.up")
    with pytest.raises(CheckpointError, match=rf"up\.qweight.*modules_to_not_convert has '{entry}"):
        loader_of(tensors, modules_to_not_convert=[entry]).plan()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "gemv_fast"}, "version gemv_fast is not supported, expected gemm or gemv"),
        ({"version": "marlin"}, "version marlin is not supported"),
        ({"version": "llm-awq"}, "version llm-awq is not supported"),
        ({"version": None, "format": "bitblas"}, "version bitblas is not supported"),
        ({"format": "gemv"}, "version gemm and gemv is not supported"),
        ({"version": 1}, "version=1, expected str"),
        ({"bits": 3}, "bits=3, expected 4"),
        ({"bits": "4"}, "bits='4', expected int"),
        ({"bits": None}, "w_bit=None, expected int"),
        ({"group_size": -2}, "group_size=-2, expected a positive size, or -1"),
        ({"zero_point": "yes"}, "zero_point='yes', expected bool"),
        ({"modules_to_not_convert": [1]}, r"modules_to_not_convert=\[1\], expected a list of name"),
        ({"modules_to_not_convert": "lm_head"}, "modules_to_not_convert='lm_head', expected list"),
        ({"rotation": "random"}, "rotation='random'"),
    ],
)
def test_a_setting_that_is_not_understood_is_refused(changes: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        loader_of(awq_tensors(random_layer(64, 128, 64, 4)), **changes).plan()


def words(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.int32)


@pytest.mark.parametrize(
    ("tensor", "replacement", "message"),
    [
        ("qweight", words(128, 9), r"layer.qweight.*expected \[128, 8\], found I32 \[128, 9\]"),
        ("qweight", torch.zeros(128, 8), "expected I32, found F32"),
        ("qweight", words(96, 8), "K=96; expected N in eights and K in groups of 64"),
        ("qzeros", None, "layer.qzeros.*missing, but zero_point is true"),
        ("qzeros", words(2, 4), r"layer.qzeros.*expected \[2, 8\]"),
        ("qzeros", torch.zeros(2, 8), "layer.qzeros.*expected I32, found F32"),
        ("scales", None, "layer.scales.*missing"),
        ("scales", torch.zeros(3, 64), r"layer.scales.*expected \[2, 64\]"),
        ("scales", torch.zeros(2, 60), r"layer.qweight.*N=60|found N=60"),
        ("scales", words(2, 64), "expected scales in f16 or bf16 or f32"),
        ("bias", torch.zeros(63), r"layer.bias.*expected \[64\]"),
    ],
)
def test_a_tensor_of_the_wrong_kind_is_named(
    tensor: str, replacement: torch.Tensor | None, message: str
) -> None:
    tensors = awq_tensors(random_layer(64, 128, 64, 4))
    tensors.pop(f"layer.{tensor}")
    if replacement is not None:
        tensors[f"layer.{tensor}"] = replacement
    with pytest.raises(CheckpointError, match=message):
        loader_of(tensors).plan()


@pytest.mark.parametrize(
    ("tensor", "shape", "message"),
    [
        ("scales", (40, 8), r"layer.scales.*expected \[40, 18 and padding\]"),
        ("scales", (40, 25), r"layer.scales.*expected \[40, 24\]"),
        ("qzeros", (40, 2), r"layer.qzeros.*expected \[40, 4\]"),
    ],
)
def test_a_gemv_tensor_of_the_wrong_shape_is_named(
    tensor: str, shape: tuple[int, int], message: str
) -> None:
    tensors = gemv_tensors(random_layer(40, 1152, 64, 4), 4)
    dtype = tensors[f"layer.{tensor}"].dtype
    tensors[f"layer.{tensor}"] = torch.zeros(shape, dtype=dtype)
    with pytest.raises(CheckpointError, match=message):
        loader_of(tensors, version="gemv").plan()
