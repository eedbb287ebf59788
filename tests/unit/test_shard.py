"""shard(): what a tensor-parallel rank gets is its slice of the whole, wherever the cut falls."""

from __future__ import annotations

import math

import core_oracle as oracle
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from humming.errors import ConfigError
from humming.weight import CanonicalWeight

#: T05: block-wise FP8 with partial blocks; the numbers of the case.
PARTIAL = [(576, 2560), (4544, 768), (192, 320), (10944, 512), (512, 10944), (129, 257)]
#: T05: (N, K, dim, world): cuts inside a block of 128.
CUTS = [(768, 256, "n", 4), (256, 768, "k", 4), (384, 256, "n", 4)]
BLOCK_SCALES = ["f32", "bf16", "e8m0"]


def block_weight(n: int, k: int, scale: str, seed: int = 0) -> CanonicalWeight:
    """e4m3fn codes under 128 x 128 blocks with scales that differ from block to block."""
    rng = np.random.default_rng(seed)
    codes = (rng.integers(0, 0x7F, (n, k)) + 0x80 * rng.integers(0, 2, (n, k))).astype(np.uint8)
    rows, columns = math.ceil(n / 128), math.ceil(k / 128)
    number = torch.arange(rows * columns).reshape(rows, columns)
    scales = {
        "f32": (1 + number / (rows * columns)) * 2.0**-9,
        "bf16": (2.0 ** (number % 16 - 20.0) * (1 + number // 16 % 128 / 128)).bfloat16(),
        "e8m0": (number % 200 + 20).to(torch.uint8),
    }[scale]
    assert scales.unique().numel() == min(rows * columns, 200 if scale == "e8m0" else 2048)
    scheme = f"e4m3fn-b128x128-{scale}"
    template = oracle.random_weight(scheme, 1, 1)
    return template.replace(n=n, k=k, packed=torch.from_numpy(codes), scales=scales)


def blocks_spread_by_kron(weight: CanonicalWeight) -> np.ndarray:
    """The whole matrix, with block scales spread by a Kronecker product."""
    table = np.array([oracle.value("e4m3fn", c) for c in range(256)])
    scale = weight.scheme.scale.name
    numbers = weight.scales.float().numpy().astype(np.float64)
    if scale == "e8m0":
        numbers = np.ldexp(1.0, numbers.astype(int) - 127)
    spread = np.kron(numbers, np.ones((128, 128)))[: weight.n, : weight.k]
    return table[weight.packed.numpy()] * spread


def exact(weight: CanonicalWeight) -> np.ndarray:
    return weight.dequantize(torch.float64).numpy()


def sliced(whole: np.ndarray, dim: str, rank: int, world: int) -> np.ndarray:
    axis = whole.ndim - (2 if dim == "n" else 1)
    return np.split(whole, world, axis=axis)[rank]


@pytest.mark.parametrize("scale", BLOCK_SCALES)
@pytest.mark.parametrize(("n", "k"), PARTIAL)
def test_t05_partial_blocks_dequantize_and_shard_exactly(n, k, scale):
    weight = block_weight(n, k, scale)
    assert tuple(weight.scales.shape) == (math.ceil(n / 128), math.ceil(k / 128))
    whole = blocks_spread_by_kron(weight)
    assert np.array_equal(exact(weight), whole)
    for dim, size in (("n", n), ("k", k)):
        for world in (w for w in (2, 3) if size % w == 0):
            for rank in {0, world - 1}:
                part = weight.shard(dim, rank, world)
                assert np.array_equal(exact(part), sliced(whole, dim, rank, world))


@pytest.mark.parametrize("scale", BLOCK_SCALES)
@pytest.mark.parametrize(("n", "k", "dim", "world"), CUTS)
def test_t05_every_shard_multiplies_to_its_slice_or_partial_sum(n, k, dim, world, scale):
    weight = block_weight(n, k, scale)
    whole = blocks_spread_by_kron(weight)
    x = oracle.realistic_activations(5, k).double().numpy()
    total = np.zeros((5, n))
    for rank in range(world):
        part = weight.shard(dim, rank, world)
        if dim == "n":
            assert np.array_equal(x @ exact(part).T, x @ sliced(whole, dim, rank, world).T)
        else:
            total += sliced(x, "k", rank, world) @ exact(part).T
    if dim == "k":
        assert np.allclose(total, x @ whole.T, rtol=1e-12, atol=1e-12 * np.abs(total).max())


@pytest.mark.parametrize(("n", "k"), [(192, 320), (129, 257)])
def test_t05_a_scale_tensor_of_the_swapped_shape_is_refused(n, k):
    weight = block_weight(n, k, "f32")
    with pytest.raises(ConfigError, match=r"torch\.float32 \[2, 3\] for e4m3fn-b128x128-f32"):
        weight.replace(scales=weight.scales.T)


def test_t05_a_cut_keeps_only_the_blocks_it_touches():
    weight = block_weight(768, 768, "f32")
    part = weight.shard("n", 1, 4)  # rows 192 to 384: half of block 1, and block 2
    assert part.offset == (64, 0)
    assert torch.equal(part.scales, weight.scales[1:3])
    part = weight.shard("k", 2, 4)  # columns 384 to 576: block 3, and half of block 4
    assert part.offset == (0, 0)
    assert torch.equal(part.scales, weight.scales[:, 3:5])


SCHEMES = ["u4-tensor-f32", "u3-channel-bf16", "u4+z-g8-f16", "u5+zf-g12-f32", "s8-g7-e8m0",
           "e2m1-g16-e4m3fn-tensor", "e4m3fn-b5x6-f32", "s4-g8-bf16-channel", "u1+z-b3x9-f16",
           "e3m2-b16x8-e8m0-channel"]  # fmt: skip


@st.composite
def cases(draw):
    scheme = draw(st.sampled_from(SCHEMES))
    dim = draw(st.sampled_from(["n", "k"]))
    world = draw(st.integers(1, 6))
    n = draw(st.integers(1, 6)) * (world if dim == "n" else 1)
    k = draw(st.integers(1, 9)) * (world if dim == "k" else 1)
    experts = draw(st.sampled_from([0, 0, 2]))
    act_order = draw(st.booleans()) and "-b" not in scheme
    bias = draw(st.sampled_from([None, torch.float16, torch.float32]))
    seed = draw(st.integers(0, 1000))
    weight = oracle.random_weight(scheme, n, k, experts, seed=seed, act_order=act_order, bias=bias)
    return weight, dim, world


@given(cases())
def test_shards_are_the_slices_of_the_whole(case):
    weight, dim, world = case
    whole = oracle.dequantized(weight)
    for rank in range(world):
        part = weight.shard(dim, rank, world)
        assert part.shape == sliced(whole, dim, rank, world).shape
        assert np.array_equal(exact(part), sliced(whole, dim, rank, world))
        assert np.array_equal(oracle.dequantized(part), sliced(whole, dim, rank, world))


@given(cases())
def test_multiplying_shards_equals_cutting_the_product(case):
    weight, dim, world = case
    x = np.random.default_rng(0).integers(-8, 8, (3, weight.k)).astype(np.float64)
    bias = 0.0 if weight.bias is None else weight.bias.double().numpy()[..., None, :]
    product = x @ np.swapaxes(exact(weight), -1, -2) + bias
    parts = [weight.shard(dim, rank, world) for rank in range(world)]
    outputs = []
    for rank, part in enumerate(parts):
        mine = sliced(x, "k", rank, world) if dim == "k" else x
        out = mine @ np.swapaxes(exact(part), -1, -2)
        outputs.append(out if part.bias is None else out + part.bias.double().numpy()[..., None, :])
    joined = sum(outputs) if dim == "k" else np.concatenate(outputs, axis=-1)
    assert np.allclose(joined, product, rtol=1e-12, atol=1e-12 * (1 + np.abs(product).max()))
    if dim == "k" and weight.bias is not None:
        assert [part.bias is not None for part in parts] == [True, *[False] * (world - 1)]


@given(cases(), st.data())
def test_a_shard_of_a_shard_is_the_slice_of_the_slice(case, data):
    weight, dim, world = case
    first = weight.shard(dim, data.draw(st.integers(0, world - 1)), world)
    other = data.draw(st.sampled_from(["n", "k"]))
    size = first.n if other == "n" else first.k
    again = data.draw(st.sampled_from([w for w in range(1, size + 1) if size % w == 0]))
    rank = data.draw(st.integers(0, again - 1))
    assert np.array_equal(exact(first.shard(other, rank, again)),
                          sliced(exact(first), other, rank, again))  # fmt: skip


@given(cases(), st.data())
def test_any_range_of_rows_or_columns_is_the_slice(case, data):
    weight, _, _ = case
    assume(weight.n > 1)
    whole = exact(weight)
    r = sorted(data.draw(st.tuples(st.integers(0, weight.n), st.integers(0, weight.n))))
    c = sorted(data.draw(st.tuples(st.integers(0, weight.k), st.integers(0, weight.k))))
    part = weight.rows(*r).columns(*c)
    assert np.array_equal(exact(part), whole[..., slice(*r), slice(*c)])


def test_act_order_shards_hold_the_inputs_they_are_named_for():
    weight = oracle.random_weight("u4+z-g8-f16", 3, 24, 2, act_order=True)
    for rank in range(3):
        part = weight.shard("k", rank, 3)
        part.check_values()
        assert torch.equal(part.scales, weight.scales)  # groups stay whole, their index moves
        for expert in range(2):
            stored = [int(p) for p in weight.permutation[expert] if p // 8 == rank]
            assert part.permutation[expert].tolist() == [p - 8 * rank for p in stored]


def test_act_order_that_starts_inside_a_group_keeps_its_groups():
    weight = oracle.random_weight("u4+z-g8-f16", 3, 24, act_order=True, offset=(0, 3))
    whole = oracle.dequantized(weight)
    for rank in range(3):
        assert np.array_equal(exact(weight.shard("k", rank, 3)), sliced(whole, "k", rank, 3))


def test_act_order_over_blocks_of_rows_cannot_be_cut_along_k():
    weight = oracle.random_weight("e4m3fn-b3x8-f32", 6, 16, act_order=True)
    with pytest.raises(ConfigError, match="a group granularity"):
        weight.shard("k", 0, 2)


def test_pre_quant_scale_follows_the_inputs_and_input_scale_stays():
    weight = oracle.random_weight("fp8", 6, 16, activation="fp8-static")
    weight = weight.replace(pre_quant_scale=torch.arange(16.0))
    part = weight.shard("k", 1, 2)
    assert part.pre_quant_scale.tolist() == list(range(8, 16))
    assert part.input_scale is weight.input_scale
    rows = weight.shard("n", 1, 2)
    assert torch.equal(rows.pre_quant_scale, weight.pre_quant_scale)
    assert rows.activation == part.activation == weight.activation


def test_a_byte_aligned_cut_shares_memory():
    weight = oracle.random_weight("u4-g8-f16", 6, 16)
    for part in (weight.shard("n", 1, 2), weight.shard("k", 1, 2)):
        assert (
            part.packed.untyped_storage().data_ptr() == weight.packed.untyped_storage().data_ptr()
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("m", 0, 2), "dim='m': expected 'n' or 'k'"),
        (("n", 0, 4), "world=4: expected a divisor of n=6"),
        (("k", 0, 3), "world=3: expected a divisor of k=16"),
        (("k", 0, 0), "world=0: expected a divisor of k=16"),
        (("k", 0, -2), "world=-2: expected a divisor of k=16"),
        (("n", 2, 2), "rank=2: expected 0 to 1"),
        (("n", -1, 2), "rank=-1: expected 0 to 1"),
    ],
)
def test_impossible_shards_are_refused(arguments, message):
    with pytest.raises(ConfigError) as caught:
        oracle.random_weight("u4-g8-f16", 6, 16).shard(*arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize("cut", [(3, 2), (-1, 2), (0, 7)])
def test_impossible_ranges_are_refused(cut):
    with pytest.raises(ConfigError, match="0 <= start <= stop <= 6"):
        oracle.random_weight("u4-g8-f16", 6, 16).rows(*cut)
    with pytest.raises(ConfigError, match="0 <= start <= stop <= 6"):
        oracle.random_weight("u4-g8-f16", 16, 6).columns(*cut)
