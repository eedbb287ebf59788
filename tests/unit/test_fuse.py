"""fuse() and stack_experts(): every number stays what it was, or the join is refused by name."""

from __future__ import annotations

import logging

import core_oracle as oracle
import numpy as np
import pytest
import torch

from humming import fuse, stack_experts
from humming.errors import ConfigError
from humming.weight import CanonicalWeight

K = 24


def part(scheme: str, n: int, seed: int, experts: int = 0, **more) -> CanonicalWeight:
    return oracle.random_weight(scheme, n, K, experts, seed=seed, **more)


def joined(*parts: CanonicalWeight) -> np.ndarray:
    return np.concatenate([oracle.dequantized(p) for p in parts], axis=-2)


#: schemes of the parts, and what they become.
WIDENED = [
    (("u4-g8-f16", "u4-g8-f16"), "u4-g8-f16"),
    (("u4+z-g8-f16", "u4+z-g8-f16"), "u4+z-g8-f16"),
    (("u4-g8-f16", "u4+z-g8-f16"), "u4+z-g8-f16"),
    (("u8+z-channel-f16", "u8-channel-f16"), "u8+z-channel-f16"),
    (("u1-g8-f16", "u1+z-g8-f16"), "u1+z-g8-f16"),
    (("u4+zf-g8-f16", "u4+zf-g8-bf16"), "u4+zf-g8-f32"),
    (("fp8", "fp8"), "e4m3fn-channel-f32"),
    (("u4+z-tensor-f16", "u4+z-tensor-f16"), "u4+z-channel-f16"),
    (("u4+zf-tensor-f16", "u4+zf-tensor-f32"), "u4+zf-channel-f32"),
    (("fp8", "fp8-channel"), "e4m3fn-channel-f32"),
    (("s8-channel-f16", "s8-channel-bf16", "s8-channel-e8m0"), "s8-channel-f32"),
    (("nvfp4", "nvfp4"), "e2m1-g16-e4m3fn-channel"),
    (("nvfp4", "e2m1-g16-e4m3fn-channel"), "e2m1-g16-e4m3fn-channel"),
    (("nvfp4", "e2m1-g16-e4m3fn"), "e2m1-g16-e4m3fn-channel"),
    (("e2m1-g16-e8m0", "nvfp4"), "e2m1-g16-f32-channel"),
    (("e4m3fn-b4x8-f32", "e4m3fn-b4x8-f32"), "e4m3fn-b4x8-f32"),
    (("e4m3fn-b4x8-f32", "e4m3fn-g8-bf16"), "e4m3fn-g8-f32"),
    (("e4m3fn-b4x8-f32", "e4m3fn-b2x8-f32"), "e4m3fn-g8-f32"),
    (("u4-b4x8-f16", "u4+z-b4x8-f16"), "u4+z-b4x8-f16"),
    (("u4-tensor-f32-tensor", "u4-channel-e8m0"), "u4-channel-f32-channel"),
]


@pytest.mark.parametrize("experts", [0, 2])
@pytest.mark.parametrize(("schemes", "wanted"), WIDENED)
def test_fusing_changes_no_number(schemes, wanted, experts):
    rows = [8, 4, 12][: len(schemes)]
    parts = [
        part(s, n, seed, experts) for seed, (s, n) in enumerate(zip(schemes, rows, strict=True))
    ]
    whole = fuse(parts)
    assert str(whole.scheme) == wanted
    assert whole.shape == (*((2,) if experts else ()), sum(p.n for p in parts), K)
    assert np.array_equal(oracle.dequantized(whole), joined(*parts))
    assert np.array_equal(whole.dequantize(torch.float64).numpy(), joined(*parts))


@pytest.mark.parametrize("scheme", ["fp8", "u4+z-tensor-f16", "nvfp4", "u4-tensor-f32-tensor"])
def test_a_scale_that_all_parts_share_stays_one_per_tensor(scheme):
    first = part(scheme, 4, 0)
    shared = {name: t for name, t in first.tensors() if name in ("second", "zeros", "scales")}
    if first.scheme.granularity.k:
        shared.pop("scales")
    second = part(scheme, 6, 1).replace(**shared)
    whole = fuse([first, second])
    assert whole.scheme == first.scheme
    assert np.array_equal(oracle.dequantized(whole), joined(first, second))


def test_blocks_that_a_boundary_would_cut_become_groups():
    parts = [part("e4m3fn-b4x8-f32", 6, 0), part("e4m3fn-b4x8-f32", 5, 1)]
    whole = fuse(parts)
    assert str(whole.scheme) == "e4m3fn-g8-f32"
    assert np.array_equal(oracle.dequantized(whole), joined(*parts))


def test_shards_cut_inside_blocks_can_be_fused_again():
    gate, up = part("e4m3fn-b4x8-f32", 12, 0), part("e4m3fn-b4x8-f32", 12, 1)
    halves = [weight.shard("n", 1, 2) for weight in (gate, up)]  # start inside a block
    assert halves[0].offset == (2, 0)
    assert np.array_equal(oracle.dequantized(fuse(halves)), joined(*halves))
    thirds = [weight.shard("k", 1, 2) for weight in (gate, up)]
    assert thirds[0].offset == (0, 4)
    assert np.array_equal(oracle.dequantized(fuse(thirds)), joined(*thirds))


@pytest.mark.parametrize("first_scale", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("experts", [0, 4])
def test_t06_gate_and_up_keep_their_own_global_scales(first_scale, experts):
    lead = (experts,) if experts else ()
    scales = [torch.full((*lead, 1, 1), s * 3.1e-4) for s in (first_scale, 1.0)]
    parts = [
        part("nvfp4", 32, seed, experts, activation="nvfp4").replace(second=s)
        for seed, s in enumerate(scales)
    ]
    whole = fuse(parts, ["gate", "up"])
    assert np.array_equal(oracle.dequantized(whole), joined(*parts))
    assert (whole.scheme.second.value == "tensor") == (first_scale == 1.0)


def test_t06_qkv_of_unequal_sizes_and_scales():
    parts = [
        oracle.random_weight("nvfp4", n, 32, seed=n).replace(second=torch.tensor([[s * 1e-3]]))
        for n, s in ((512, 1.0), (128, 3.0), (128, 9.0))
    ]
    whole = fuse(parts, ["q", "k", "v"])
    assert whole.second.shape == (768, 1)
    assert whole.second[:, 0].unique().numel() == 3
    wanted = torch.cat([p.dequantize(torch.float64) for p in parts])
    assert torch.equal(whole.dequantize(torch.float64), wanted)


@pytest.mark.parametrize("order", [(0.01, 0.02), (0.02, 0.01)])
def test_the_largest_input_scale_is_kept_and_the_difference_logged(order, caplog):
    parts = [
        part("nvfp4", 8, i, activation="nvfp4").replace(input_scale=torch.tensor(s))
        for i, s in enumerate(order)
    ]
    with caplog.at_level(logging.WARNING, logger="humming.fusing"):
        whole = fuse(parts, ["gate_proj", "up_proj"])
    assert float(whole.input_scale) == pytest.approx(0.02)
    assert "gate_proj + up_proj: activation scales differ" in caplog.text
    caplog.clear()
    fuse([parts[0], parts[1].replace(input_scale=parts[0].input_scale)])
    assert not caplog.text


def test_experts_keep_an_input_scale_each():
    parts = [part("fp8", 8, i, 3, activation="fp8-static") for i in range(2)]
    parts[1] = parts[1].replace(input_scale=torch.tensor([0.01, 0.05, 0.09]))
    found = fuse(parts).input_scale
    assert torch.equal(found, torch.tensor([0.05, 0.05, 0.09]))


@pytest.mark.parametrize("without", [0, 1])
def test_an_input_scale_that_one_part_lacks_is_refused_by_name(without):
    parts = [part("fp8", 8, i, activation="fp8-static") for i in range(2)]
    parts[without] = parts[without].replace(input_scale=None)
    with pytest.raises(ConfigError, match=f"p{without}='no input_scale': expected one"):
        fuse(parts, ["p0", "p1"])


def test_biases_are_joined_and_a_missing_one_is_zero():
    parts = [part("u4-g8-f16", n, n, bias=dtype)
             for n, dtype in ((3, torch.float16), (4, None), (2, torch.float16))]  # fmt: skip
    bias = fuse(parts).bias
    assert bias.dtype == torch.float16
    assert torch.equal(bias, torch.cat([parts[0].bias, torch.zeros(4).half(), parts[2].bias]))
    mixed = fuse([parts[0], part("u4-g8-f16", 2, 0, bias=torch.bfloat16)]).bias
    assert mixed.dtype == torch.float32
    assert fuse([parts[1], parts[1]]).bias is None
    experts = fuse([part("u4-g8-f16", 3, 0, 2, bias=torch.float32), part("u4-g8-f16", 4, 0, 2)])
    assert experts.bias.shape == (2, 7)


def test_parts_of_one_act_order_can_be_fused_others_not():
    first = part("u4-g8-f16", 4, 0, act_order=True)
    same = part("u4-g8-f16", 6, 1).replace(permutation=first.permutation)
    whole = fuse([first, same])
    assert np.array_equal(oracle.dequantized(whole), joined(first, same))
    halves = [w.shard("k", 1, 2) for w in (first, same)]
    assert np.array_equal(oracle.dequantized(fuse(halves)), joined(*halves))


ORDERED = part("u4-g8-f16", 4, 5, act_order=True)
PLAIN = part("u4-g8-f16", 4, 6)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([PLAIN, part("u3-g8-f16", 4, 0)], "b scheme='u3-g8-f16': expected u4-g8-f16, as a has"),
        ([PLAIN, part("s4-g8-f16", 4, 0)], "b scheme='s4-g8-f16'"),
        ([PLAIN, part("u4-g12-f16", 4, 0)], "b scheme='u4-g12-f16'"),
        ([PLAIN, part("u4-channel-f16", 4, 0)], "b scheme='u4-channel-f16'"),
        ([PLAIN, part("u4+zf-g8-f16", 4, 0)], "b scheme='u4+zf-g8-f16'"),
        ([part("u4+z-g8-f16", 4, 0), part("u4+zf-g8-f16", 4, 0)], "b scheme='u4+zf-g8-f16'"),
        ([PLAIN, ORDERED], "b permutation='different': expected that of a"),
        ([ORDERED, PLAIN], "b permutation='different': expected that of a"),
        ([ORDERED, part("u4-g8-f16", 4, 9, act_order=True)], "b permutation='different'"),
        ([PLAIN, oracle.random_weight("u4-g8-f16", 4, 32)], "K and experts of a: (4, 24)"),
        ([PLAIN, part("u4-g8-f16", 4, 0, 2)], "K and experts of a: (4, 24)"),
        ([PLAIN, PLAIN.replace(pre_quant_scale=torch.ones(K))], "b pre_quant_scale='different'"),
        ([PLAIN, part("u4-g8-f16", 4, 0, activation="int8")], "b activation='s8-token-f32'"),
        ([PLAIN, oracle.random_weight("u4-g8-f16", 4, K, offset=(0, 4))], "b first scale block"),
    ],
)
def test_what_cannot_be_one_weight_is_refused_by_name(parts, message):
    with pytest.raises(ConfigError) as caught:
        fuse(parts, ["a", "b"])
    assert message in str(caught.value)


@pytest.mark.parametrize("join", [fuse, stack_experts])
def test_no_parts_or_a_wrong_number_of_names_is_refused(join):
    with pytest.raises(ConfigError, match="at least one weight"):
        join([])
    with pytest.raises(ConfigError, match="2 names, one per part"):
        join([PLAIN, PLAIN], ["a"])


def test_one_part_is_itself_and_names_are_optional():
    assert fuse([PLAIN]) is PLAIN
    with pytest.raises(ConfigError, match="part 1 scheme"):
        fuse([PLAIN, part("u3-g8-f16", 4, 0)])


@pytest.mark.parametrize(
    "scheme", ["u4+z-g8-f16", "nvfp4", "fp8", "e4m3fn-b4x8-f32", "u4+zf-g8-f32"]
)
def test_stacked_experts_are_the_weights_they_were(scheme):
    parts = [part(scheme, 6, seed, bias=torch.float16) for seed in range(3)]
    stack = stack_experts(parts)
    assert stack.shape == (3, 6, K)
    for index, one in enumerate(parts):
        for (_, mine), (_, theirs) in zip(
            stack.expert(index).tensors(), one.tensors(), strict=True
        ):
            assert torch.equal(mine, theirs)


def test_stacked_experts_keep_their_own_act_order():
    parts = [part("u4-g8-f16", 6, seed, act_order=True) for seed in range(3)]
    wanted = np.stack([oracle.dequantized(p) for p in parts])
    assert np.array_equal(stack_experts(parts).dequantize(torch.float64).numpy(), wanted)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (part("u3-g8-f16", 4, 0), "b scheme='u3-g8-f16': expected u4-g8-f16, as a has"),
        (part("u4-g8-f16", 5, 0), "b shape='(5, 24)': expected (4, 24), as a has"),
        (oracle.random_weight("u4-g8-f16", 4, 32), "K and experts of a"),
        (part("u4-g8-f16", 4, 0, activation="int8"), "b activation"),
        (part("u4-g8-f16", 4, 0, bias=torch.float16), "b tensors"),
        (ORDERED, "b tensors"),
        (part("u4-g8-f16", 4, 0, 2), "K and experts of a"),
    ],
)
def test_experts_that_differ_are_refused_by_name(other, message):
    with pytest.raises(ConfigError) as caught:
        stack_experts([PLAIN, other], ["a", "b"])
    assert message in str(caught.value)


def test_stacks_are_not_stacked_again():
    with pytest.raises(ConfigError, match="a='a stack of experts': expected a single matrix"):
        stack_experts([part("u4-g8-f16", 4, 0, 2)], ["a"])
