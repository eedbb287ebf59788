"""CanonicalWeight: dequantize() against an element-by-element float64 reference, and checks."""

from __future__ import annotations

import itertools

import core_oracle as oracle
import numpy as np
import pytest
import torch

from humming.errors import ConfigError
from humming.formats.activation import ActivationScheme
from humming.formats.scheme import SCHEME_ALIASES, WeightScheme
from humming.weight import CanonicalWeight

N, K = 7, 21  # no multiple of anything
GRANULARITIES = ["tensor", "channel", "g8", "g5", "b3x8"]
KINDS = {
    "": ["u1", "u3", "u4", "u8", "s1", "s4", "s7", "e2m1", "e3m2", "e4m3fn", "e5m2fnuz", "e0m5"],
    "+z": ["u1", "u4", "u8"],
    "+zf": ["u2", "s5"],
}
SCALES = ["e8m0", "e4m3fn", "e5m2", "e5m3", "f16", "bf16", "f32"]


def combinations():
    """Every granularity, zero, second and kind of code; scale formats take turns."""
    turn = itertools.cycle(SCALES)
    wide = itertools.cycle(SCALES[4:])
    for granularity, second in itertools.product(GRANULARITIES, ["", "-tensor", "-channel"]):
        for zero, codes in KINDS.items():
            for code in codes:
                scale = next(wide if zero == "+zf" else turn)
                yield f"{code}{zero}-{granularity}-{scale}{second}"


def dequantized(weight: CanonicalWeight) -> np.ndarray:
    return weight.dequantize(torch.float64).numpy()


@pytest.mark.parametrize("text", list(combinations()))
def test_dequantize_is_the_formula_for_every_class(text):
    weight = oracle.random_weight(text, N, K, seed=len(text))
    wanted = oracle.dequantized(weight)
    assert np.array_equal(dequantized(weight), wanted)
    single = weight.dequantize()
    if weight.second is None and "+zf" not in text and "f32" not in text:
        assert np.array_equal(single.double().numpy(), wanted)  # exact in float32 too
    # Two roundings of the product, one more where a float zero point cancels.
    bound = 2**-22 * np.abs(wanted) + (2**-22 if "+zf" in text else 0)
    assert np.all(np.abs(single.double().numpy() - wanted) <= bound)


@pytest.mark.parametrize("text", SCHEME_ALIASES)
def test_dequantize_is_the_formula_for_every_alias(text):
    weight = oracle.random_weight(text, 5, 300 if "256" in text else 140, seed=3)
    assert np.array_equal(dequantized(weight), oracle.dequantized(weight))


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize(
    "text",
    ["u4-g8-f16", "u4+z-g8-bf16", "u3+zf-g8-f32", "u5-channel-bf16", "s8-tensor-f32",
     "e2m1-g8-e4m3fn-tensor", "e2m1-g8-e8m0-channel", "e4m3fn-b3x8-f32"],
)  # fmt: skip
def test_experts_and_act_order_change_nothing_but_places(text, act_order):
    weight = oracle.random_weight(text, N, K, 3, seed=5, act_order=act_order)
    assert np.array_equal(dequantized(weight), oracle.dequantized(weight))
    for index in range(3):
        one = weight.expert(index)
        assert one.shape == (N, K)
        assert np.array_equal(dequantized(one), dequantized(weight)[index])


@pytest.mark.parametrize("offset", [(0, 3), (2, 0), (1, 7)])
def test_an_offset_says_where_in_the_first_block_the_matrix_starts(offset):
    weight = oracle.random_weight("e4m3fn-b3x8-f32", N, K, seed=6, offset=offset)
    assert np.array_equal(dequantized(weight), oracle.dequantized(weight))
    grouped = oracle.random_weight("u4+z-g8-f16", N, K, seed=6, offset=(0, offset[1]))
    assert np.array_equal(dequantized(grouped), oracle.dequantized(grouped))


@pytest.mark.parametrize("act_order", [False, True])
def test_group_index_names_the_scale_column(act_order):
    weight = oracle.random_weight("u4+z-g8-f16", N, K, seed=7, act_order=act_order)
    index = torch.tensor([2, 0, 1] * 7, dtype=torch.int32)
    uneven = weight.replace(group_index=index)
    assert np.array_equal(dequantized(uneven), oracle.dequantized(uneven))
    assert not np.array_equal(dequantized(uneven), dequantized(weight))


def test_float32_of_k_quant_like_scales_is_exact():
    weight = oracle.random_weight("u6-g16-f32", 4, 32, seed=8)
    scales = weight.scales.to(torch.float16).float() * torch.randint(1, 64, weight.scales.shape)
    weight = weight.replace(scales=scales)  # a product of 11 + 6 bits, and 5 of the code
    exact = oracle.dequantized(weight)
    assert np.array_equal(weight.dequantize().double().numpy(), exact)


def test_half_precision_is_the_rounded_float32():
    weight = oracle.random_weight("nvfp4", 5, 40)
    single = weight.dequantize()
    assert torch.equal(weight.dequantize(torch.float16), single.to(torch.float16))


def test_bias_and_pre_quant_scale_are_left_out():
    weight = oracle.random_weight("u4-g8-f16", N, K, bias=torch.float32)
    scaled = weight.replace(pre_quant_scale=torch.full((K,), 3.0))
    assert torch.equal(scaled.dequantize(), weight.replace(bias=None).dequantize())


def test_it_says_what_it_is():
    weight = oracle.random_weight("u4+z-g8-f16", N, K, 2, bias=torch.float16)
    assert repr(weight) == "CanonicalWeight(u4+z-g8-f16, 2 x [7, 21])"
    assert repr(weight.expert(0)) == "CanonicalWeight(u4+z-g8-f16, [7, 21])"
    assert weight.shape == (2, N, K)
    assert weight.device == torch.device("cpu")
    assert [name for name, _ in weight.tensors()] == ["packed", "scales", "zeros", "bias"]
    # 11 bytes of codes, 3 scales and 3 zero points per row, and a bias
    assert weight.nbytes == 2 * N * (11 + 3 * 2 + 3 + 2)
    moved = weight.to("cpu")
    assert torch.equal(moved.dequantize(), weight.dequantize())


@pytest.mark.parametrize("index", [-1, 2, 7])
def test_an_expert_that_is_not_there_is_refused(index):
    with pytest.raises(ConfigError, match="an index below 2"):
        oracle.random_weight("u4-g8-f16", N, K, 2).expert(index)
    with pytest.raises(ConfigError, match="an index below 0"):
        oracle.random_weight("u4-g8-f16", N, K).expert(0)


def refused(weight: CanonicalWeight, message: str, **changes: object) -> None:
    with pytest.raises(ConfigError) as caught:
        weight.replace(**changes)
    assert caught.value.field == next(iter(changes))
    assert message in str(caught.value)


ZEROS = {dtype: torch.zeros(N, 3, dtype=dtype) for dtype in (torch.uint8, torch.float32)}


@pytest.mark.parametrize(
    ("scheme", "changes", "message"),
    [
        ("u4-g8-f16", {"n": -1}, "n=-1: expected a size >= 0"),
        ("u4-g8-f16", {"packed": torch.zeros(N, 12, dtype=torch.uint8)},
         "torch.uint8 [7, 12]': expected torch.uint8 [7, 11]"),
        ("u4-g8-f16", {"packed": torch.zeros(N, 11, dtype=torch.int8)}, "torch.uint8 [7, 11]"),
        ("u4-g8-f16", {"scales": torch.ones(3, N, dtype=torch.float16)}, "torch.float16 [7, 3]"),
        ("u4-g8-f16", {"scales": torch.ones(N, 2, dtype=torch.float16)}, "torch.float16 [7, 3]"),
        ("u4-g8-f16", {"scales": torch.ones(N, 3, dtype=torch.bfloat16)}, "torch.float16 [7, 3]"),
        ("e4m3fn-b3x8-f32", {"scales": torch.ones(2, 3)}, "torch.float32 [3, 3]"),
        ("u4-g8-f16", {"zeros": ZEROS[torch.uint8]}, "None, as u4-g8-f16 says"),
        ("u4+z-g8-f16", {"zeros": None}, "a tensor, as u4+z-g8-f16 says"),
        ("u4+z-g8-f16", {"zeros": ZEROS[torch.float32]}, "torch.uint8 [7, 3]"),
        ("u4+zf-g8-f16", {"zeros": ZEROS[torch.float32]}, "torch.float16 [7, 3]"),
        ("nvfp4", {"second": None}, "a tensor, as e2m1-g16-e4m3fn-tensor says"),
        ("nvfp4", {"second": torch.ones(())}, "torch.float32 [1, 1]"),
        ("s4-g8-f16-channel", {"second": torch.ones(1, 1)}, "torch.float32 [7, 1]"),
        ("u4-g8-f16", {"second": torch.ones(1, 1)}, "None, as u4-g8-f16 says"),
        ("u4-g8-f16", {"bias": torch.zeros(K)}, "[7] for u4-g8-f16"),
        ("u4-g8-f16", {"bias": torch.zeros(N, dtype=torch.float64)}, "[7] for u4-g8-f16"),
        ("u4-g8-f16", {"permutation": torch.arange(K)}, "torch.int32 [21]"),
        ("u4-g8-f16", {"group_index": torch.arange(N, dtype=torch.int32)}, "torch.int32 [21]"),
        ("e4m3fn-b3x8-f32", {"group_index": torch.zeros(K, dtype=torch.int32),
                             "scales": torch.ones(N, 3)}, "a group granularity"),
        ("u4-g8-f16", {"pre_quant_scale": torch.ones(N)}, "[21] for u4-g8-f16"),
        ("u4-g8-f16", {"input_scale": torch.ones(1)}, "torch.float32 []"),
        ("u4-g8-f16", {"offset": (0, 8), "scales": torch.ones(N, 4, dtype=torch.float16)},
         "a place inside a block of u4-g8-f16"),
        ("u4-g8-f16", {"offset": (1, 0)}, "a place inside a block"),
        ("u4-g8-f16", {"offset": (0, -1)}, "a place inside a block"),
        ("u4-channel-f16", {"offset": (0, 1)}, "a place inside a block"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_the_scheme_are_refused_by_field(scheme, changes, message):
    refused(oracle.random_weight(scheme, N, K), message, **changes)


def test_experts_need_a_leading_dimension_everywhere():
    stack = oracle.random_weight("u4-g8-f16", N, K, 2)
    refused(stack, "torch.float16 [2, 7, 3]", scales=torch.ones(N, 3, dtype=torch.float16))
    refused(stack, "torch.float32 [2]", input_scale=torch.ones(()))
    with pytest.raises(ConfigError, match=r"torch\.uint8 \[3, 7, 11\]"):
        stack.replace(experts=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"permutation": torch.zeros(K, dtype=torch.int32)}, "each of 21 once"),
        ({"permutation": torch.arange(1, K + 1, dtype=torch.int32)}, "each of 21 once"),
        ({"permutation": torch.arange(-1, K - 1, dtype=torch.int32)}, "each of 21 once"),
        ({"group_index": torch.full((K,), 3, dtype=torch.int32)}, "0 to 2"),
        ({"group_index": torch.full((K,), -1, dtype=torch.int32)}, "0 to 2"),
        ({"zeros": torch.full((N, 3), 16, dtype=torch.uint8)}, "0 to 15"),
    ],
)
def test_check_values_refuses_what_only_the_data_shows(changes, message):
    weight = oracle.random_weight("u4+z-g8-f16", N, K, act_order=True)
    weight.check_values()
    with pytest.raises(ConfigError, match=message):
        weight.replace(**changes).check_values()


def test_check_values_looks_at_every_expert():
    weight = oracle.random_weight("u4+z-g8-f16", N, K, 3, act_order=True)
    weight.check_values()
    order = weight.permutation.clone()
    order[2, 0] = order[2, 1]
    with pytest.raises(ConfigError, match="each of 21 once"):
        weight.replace(permutation=order).check_values()


def test_activation_and_scheme_are_kept_as_given():
    weight = oracle.random_weight("fp8", N, K, activation="fp8-static")
    assert weight.activation == ActivationScheme.parse("fp8-static")
    assert weight.scheme == WeightScheme.parse("fp8")
    assert float(weight.input_scale) == pytest.approx(0.05)
