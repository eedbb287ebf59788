"""Packed weights for mma.sync: what the tensors mean is, to the bit, what the weight means."""

from __future__ import annotations

import core_oracle as oracle
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from humming.backend import PackedWeight
from humming.configs import LayerConfig
from humming.errors import ConfigError, LayoutMismatch
from humming.formats.activation import ActivationScheme
from humming.formats.number import NumberFormat
from humming.formats.scheme import Second, WeightScheme
from humming.formats.table import SCALE_FORMATS, all_formats, number_format
from humming.selection import find_profile
from humming.weight import CanonicalWeight
from humming_sm75_sm89 import packing
from humming_sm75_sm89.layout import MmaLayout, layout_of, refuse_layout
from humming_sm75_sm89.order import fitted
from humming_sm75_sm89.packing import pack_weight
from humming_sm75_sm89.unpacking import dequantize, unpack_weight

PROFILE = find_profile(profile="family-sm89")


def config(weight: CanonicalWeight, activation: str = "f16") -> LayerConfig:
    return LayerConfig(
        n=weight.n,
        k=weight.k,
        experts=weight.experts,
        weight=weight.scheme,
        activation=ActivationScheme.parse(activation),
        output=number_format("f16"),
        bias=weight.bias is not None,
        act_order=weight.permutation is not None,
    )


def packed(weight: CanonicalWeight, activation: str = "f16") -> tuple[PackedWeight, MmaLayout]:
    fit, layer = fitted(weight, config(weight, activation), PROFILE)
    layout = layout_of(layer, PROFILE)
    return pack_weight(fit, layer, layout), layout


def check(weight: CanonicalWeight, activation: str = "f16") -> tuple[PackedWeight, MmaLayout]:
    """Pack and compare: bits, or within one rounding of the product of two scales."""
    found, layout = packed(weight, activation)
    values, expected = dequantize(found, layout), weight.dequantize(torch.float64)
    assert values.shape == expected.shape
    if not layout.has_scales and weight.scheme.second is not Second.NONE:
        assert torch.allclose(values, expected, rtol=2.0**-23, atol=0, equal_nan=True)
    else:
        assert np.array_equal(values.numpy(), expected.numpy(), equal_nan=True)
    check_tensors(found, layout, weight)
    return found, layout


def check_tensors(found: PackedWeight, layout: MmaLayout, weight: CanonicalWeight) -> None:
    """Names, shapes, dtypes and what is in the padding."""
    tensors, grid, lead = found.tensors, layout.grid, layout.lead
    floats = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    stored = tensors["order"].shape[-1] if layout.has_order else grid.k128
    scale = floats.get(layout.scale.name, torch.uint8)
    zero = scale if weight.scheme.zero.value == "zf" else torch.uint8
    words = grid.n64 * stored * layout.planes.bits // 32
    expected = {"weight": ((lead, words), torch.int32)}
    if layout.has_scales:
        expected["scales"] = ((lead, -(-stored // layout.group), grid.panels, 64), scale)
    if layout.has_zeros:
        expected["zeros"] = ((lead, -(-stored // layout.zero_group), grid.panels, 64), zero)
    if layout.has_channel:
        expected["channel"] = ((lead, grid.n64), torch.float32)
    if layout.has_bias:
        expected["bias"] = ((lead, grid.n64), torch.float32)
    if layout.has_order:
        expected["order"] = ((lead, stored), torch.int32)
    assert {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()} == expected
    assert all(t.is_contiguous() for t in tensors.values())
    codes = unpack_weight(found, layout)
    assert not codes[:, layout.n :].any()
    if layout.has_order:
        order = tensors["order"]
        for expert in range(lead):
            inputs = order[expert][order[expert] >= 0]
            assert sorted(inputs.tolist()) == list(range(layout.k))
            assert not codes[expert][:, order[expert] < 0].any()
    else:
        assert not codes[:, :, layout.k :].any()
    if weight.bias is not None:
        bias = weight.bias.float().reshape(lead, -1)
        assert torch.equal(tensors["bias"][:, : layout.n], bias)
        assert not tensors["bias"][:, layout.n :].any()


# -------------------------------------------------------------- where each bit lies, by the design


WIDTHS = [(b, a) for a, most in (("f16", 8), ("s8", 8), ("s4", 4)) for b in range(1, most + 1)]


@pytest.mark.parametrize(("bits", "activation"), WIDTHS)
def test_each_bit_of_each_code_is_where_the_design_says(bits: int, activation: str) -> None:
    n, k = 130, 2241  # 3 panels, 36 blocks: a window of 32 and one of 4, tails in both
    weight = oracle.random_weight(f"s{bits}-channel-f32", n, k, seed=bits)
    found, layout = packed(weight, activation)
    unit, planes = layout.unit, layout.planes
    blocks, panels = 36, 3
    P, kb, lane, code = np.meshgrid(
        np.arange(panels), np.arange(blocks), np.arange(32), np.arange(128), indexing="ij"
    )
    index, j = code // unit, code % unit
    S = 64 // (8 * unit)
    tile, s, reg = index // 4 // S, index // 4 % S, index % 4
    row = 64 * P + 16 * tile + 8 * (reg & 1) + lane // 4
    column = 64 * kb + 8 * unit * s + 4 * unit * (reg >> 1) + unit * (lane % 4) + j
    padded = np.zeros((192, 36 * 64), dtype=np.uint8)
    padded[:n, :k] = weight.codes().numpy()
    expected = padded[row, column]
    position = (kb // 32) * panels * 32 + P * np.minimum(32, blocks - kb // 32 * 32) + kb % 32
    words = found.tensors["weight"].numpy()[0].view(np.uint32)
    codes = np.zeros_like(expected)
    for bit in range(bits):
        places = np.array([planes.place(c, bit) for c in range(128)])
        word, at = places[code, 0], places[code, 1]
        # 16-byte load word // 4 of the lane lies at (word // 4) * 512 + lane * 16 of the block
        address = position * bits * 128 + word // 4 * 128 + lane * 4 + word % 4
        codes |= ((words[address] >> at.astype(np.uint32)) & 1).astype(np.uint8) << bit
    assert np.array_equal(codes, expected)


def test_scales_and_zeros_lie_in_panel_order() -> None:
    weight = oracle.random_weight("u4+z-g32-f16", 100, 96, 2)
    found, _ = packed(weight)
    for name, source in (("scales", weight.scales), ("zeros", weight.zeros)):
        tensor = found.tensors[name]
        assert tensor.shape == (2, 4, 2, 64)
        for n in range(128):
            panel, j, g = n // 64, n % 64 // 8, n % 8
            expected = source[:, n].tolist() if n < 100 else [[0.0] * 3] * 2
            assert tensor[:, :3, panel, g * 8 + j].tolist() == expected
        assert not tensor[:, 3].any()


# ------------------------------------------------------------------------------- every code format

CODES = [f for f in all_formats() if f.bits <= 8 and (f.signed or f.is_integer)]
GENERIC = [number_format(name) for name in ("e1m1", "e1m6", "e4m1", "e5m1", "e6m1", "e4m2")]


@pytest.mark.parametrize("activation", ["f16", "bf16", "e4m3fn", "s8", "s4"])
@pytest.mark.parametrize("code", [*CODES, *GENERIC], ids=str)
def test_every_code_format_is_packed_for_every_activation_that_it_has(
    code: NumberFormat, activation: str
) -> None:
    for zero in ("", "+z", "+zf") if code.is_integer and not code.signed else ("",):
        scheme = WeightScheme.parse(f"{code}{zero}-g64-f16")
        if code.bits > number_format(activation).bits:
            continue
        weight = oracle.random_weight(scheme, 70, 200, seed=1)
        if refuse_layout(config(weight, activation), PROFILE) is None:
            check(weight, activation)
        else:
            assert activation != "f16" or code.name in ("e5m2fnuz", "e6m1", "e5m1"), scheme


@pytest.mark.parametrize("scale", SCALE_FORMATS)
@pytest.mark.parametrize("granularity", ["tensor", "channel", "g32", "b16x64", "b64x32"])
def test_every_scale_format_and_granularity(scale: str, granularity: str) -> None:
    for second in ("", "-tensor", "-channel"):
        check(oracle.random_weight(f"u4-{granularity}-{scale}{second}", 70, 200, seed=2))


# -------------------------------------------------------------------------------------- everything

SCHEMES = ["u4-g128-f16", "u4+z-g64-bf16", "u3+zf-g32-f32", "u8+z-channel-f16", "u2-tensor-f32",
           "u5+zf-channel-bf16", "e2m1-g16-e4m3fn-tensor", "e2m1-g32-e8m0", "s8-channel-f32-tensor",
           "e4m3fn-b128x128-f32", "e4m3fn-b32x16-bf16", "e3m2-g48-f16-channel", "u7+z-g24-f16",
           "u1-g8-f16", "s6-g40-e5m3", "e0m3-g100-f16", "u6-g16-f32", "u4+z-b7x20-f16-tensor",
           "u4-g2147483647-f16"]  # fmt: skip


@st.composite
def weights(draw: st.DrawFn) -> CanonicalWeight:
    """A weight, whole or cut in one or both dimensions."""
    scheme = WeightScheme.parse(draw(st.sampled_from(SCHEMES)))
    experts = draw(st.sampled_from([0, 0, 0, 1, 3]))
    weight = oracle.random_weight(
        scheme,
        draw(st.integers(1, 150)),
        draw(st.integers(1, 400)),
        experts,
        seed=draw(st.integers(0, 1000)),
        act_order=draw(st.booleans()) and not scheme.granularity.is_block,
        bias=draw(st.sampled_from([None, torch.float16, torch.float32])),
    )
    if draw(st.booleans()):
        start = draw(st.integers(0, weight.n - 1))
        weight = weight.rows(start, draw(st.integers(start + 1, weight.n)))
    if draw(st.booleans()):
        # Mostly at multiples of 8, as tensor parallelism cuts.
        step = draw(st.sampled_from([1, 8, 32])) if weight.k >= 32 else 1
        start = draw(st.integers(0, (weight.k - 1) // step)) * step
        weight = weight.columns(start, draw(st.integers(start + 1, weight.k)))
    return weight


@given(weights())
def test_any_weight_keeps_its_values(weight: CanonicalWeight) -> None:
    check(weight)


@given(weights(), st.integers(1, 3))
def test_chunks_of_panels_are_put_together(weight: CanonicalWeight, chunk: int) -> None:
    whole, _ = packed(weight)
    limit = packing._CHUNK_CODES
    packing._CHUNK_CODES = chunk * 64 * 512
    try:
        parts, _ = packed(weight)
    finally:
        packing._CHUNK_CODES = limit
    assert torch.equal(whole.tensors["weight"], parts.tensors["weight"])


# --------------------------------------------------------------------------- cuts and act-order


@pytest.mark.parametrize(
    ("scheme", "k", "start", "stop", "group", "ordered"),
    [
        ("u4-g128-f16", 512, 96, 512, 32, False),  # gcd(128, 96)
        ("u4+z-g128-f16", 512, 64, 500, 64, False),
        ("u4-g128-f16", 512, 128, 512, 128, False),  # a cut between two groups
        ("u4-g128-f16", 512, 96, 128, 0, False),  # less than a group is left
        ("u4-g128-f16", 512, 120, 512, 128, True),  # 8 columns: fewer than an MMA sums
        ("e4m3fn-b128x128-f32", 768, 192, 384, 64, False),
        ("e4m3fn-b128x128-f32", 768, 200, 768, 128, True),
    ],
)
def test_a_cut_in_a_group_gets_smaller_groups(
    scheme: str, k: int, start: int, stop: int, group: int, ordered: bool
) -> None:
    weight = oracle.random_weight(scheme, 192, k).columns(start, stop).rows(70, 150)
    _, layout = check(weight)
    assert (layout.group, layout.has_order) == (group, ordered)


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("experts", [0, 3])
def test_shards_under_act_order_have_holes_and_all_inputs(world: int, experts: int) -> None:
    weight = oracle.random_weight("u4+z-g64-f16", 64, 1024, experts, act_order=True)
    for rank in (0, world - 1):
        found, layout = check(weight.shard("k", rank, world))
        stored, k = found.tensors["order"].shape[-1], 1024 // world
        assert layout.k == k < stored < 1.5 * k + 384
        assert layout.group in (16, 32, 64)


def test_under_act_order_whole_groups_have_no_holes() -> None:
    weight = oracle.random_weight("u4-g128-f16", 64, 1024, act_order=True)
    found, layout = check(weight)
    assert torch.equal(found.tensors["order"][0], weight.permutation)
    assert torch.equal(unpack_weight(found, layout)[0], weight.codes())


def test_groups_that_an_mma_cannot_keep_apart_are_filled_up() -> None:
    found, layout = check(oracle.random_weight("u4-g24-f16", 64, 72))
    expected = [k for g in range(3) for k in [*range(24 * g, 24 * g + 24), *[-1] * 8]]
    assert found.tensors["order"][0].tolist() == expected + [-1] * 32
    assert layout.group == 32


def test_a_regular_weight_fits_as_it_is() -> None:
    for scheme in ("u4-g128-f16", "u4-channel-f16", "u4-g24-f16", "e4m3fn-b128x128-f32"):
        weight = oracle.random_weight(scheme, 64, 512)
        layer = config(weight)
        assert fitted(weight, layer, PROFILE) == (weight, layer)
        part = weight.rows(3, 60)
        assert fitted(part, config(part), PROFILE)[0] is part


# ---------------------------------------------------------------------------- shapes of the cases

T03 = [f"u{b}+z-{g}-{s}" for b in (2, 3, 4, 8) for g in ("g16", "g64", "g128", "channel")
       for s in ("f16", "bf16")]  # fmt: skip
T04 = [(205, 1094, 64), (464, 410, 128), (192, 320, 32), (96, 826, 64), (288, 288, 32),
       (8, 32, 32), (1, 64, 32), (144, 288, 32)]  # fmt: skip
T05 = [(576, 256), (454, 76), (192, 320), (1094, 51), (51, 1094), (129, 257)]


@pytest.mark.parametrize("scheme", T03)
def test_t03_zero_points(scheme: str) -> None:
    for experts in (0, 2):
        check(oracle.random_weight(scheme, 65, 384, experts))


@pytest.mark.parametrize(("n", "k", "group"), T04)
def test_t04_shapes(n: int, k: int, group: int) -> None:
    for scheme in (f"u4-g{group}-f16", f"e2m1-g{group}-e8m0", "e4m3fn-channel-f32"):
        check(oracle.random_weight(scheme, n, k))
    check(oracle.random_weight(f"u4-g{group}-f16", n, k), "s8")


@pytest.mark.parametrize("scale", ["f32", "bf16", "e8m0"])
@pytest.mark.parametrize(("n", "k"), T05)
def test_t05_partial_blocks_and_their_shards(n: int, k: int, scale: str) -> None:
    weight = oracle.random_weight(f"e4m3fn-b128x128-{scale}", n, k)
    check(weight)
    for dim, size in (("n", n), ("k", k)):
        for world in (w for w in (2, 3, 4) if size % w == 0):
            check(weight.shard(dim, world - 1, world))


def test_t06_second_level_scales_of_a_fused_layer() -> None:
    weight = oracle.random_weight("e2m1-g16-e4m3fn-channel", 128, 128, 4)
    second = torch.tensor([1.0, 10.0]).repeat_interleave(64).expand(4, 128).unsqueeze(-1)
    found, _ = check(weight.replace(second=second.contiguous()))
    assert torch.equal(found.tensors["channel"], second[..., 0])


# -------------------------------------------------------------------------------------- refusals


def test_a_weight_that_is_not_the_layers_is_refused() -> None:
    weight = oracle.random_weight("u4-g64-f16", 64, 256, bias=torch.float16)
    layer = config(weight)
    layout = layout_of(layer, PROFILE)
    ordered = oracle.random_weight("u4-g64-f16", 64, 256, bias=torch.float16, act_order=True)
    for other, field in [
        (weight.rows(0, 32), "n"),
        (weight.columns(0, 192), "k"),
        (oracle.random_weight("u4-g64-f16", 64, 256, 2, bias=torch.float16), "experts"),
        (oracle.random_weight("u4-g32-f16", 64, 256, bias=torch.float16), "scheme"),
        (weight.replace(bias=None), "bias"),
        (ordered, "act_order"),
    ]:
        with pytest.raises(ConfigError, match=f"^{field}="):
            pack_weight(other, layer, layout)
    with pytest.raises(ConfigError, match=r"^layout="):
        pack_weight(weight, layer, layout_of(config(weight.rows(0, 32)), PROFILE))


def test_a_weight_that_does_not_fit_is_refused() -> None:
    cut = oracle.random_weight("u4-g128-f16", 64, 512).columns(96, 512)
    with pytest.raises(ConfigError, match=r"fitted\(\) moves it"):
        pack_weight(cut, config(cut), layout_of(config(cut), PROFILE))
    uneven = oracle.random_weight("u4-g256-f16", 64, 512, act_order=True).columns(0, 256)
    with pytest.raises(ConfigError, match=r"a weight that fitted\(\) gave"):
        pack_weight(uneven, config(uneven), layout_of(config(uneven), PROFILE))


def test_a_weight_in_another_layout_is_not_unpacked() -> None:
    found, _ = packed(oracle.random_weight("u4-g64-f16", 64, 256))
    _, other = packed(oracle.random_weight("u4-g32-f16", 64, 256))
    with pytest.raises(LayoutMismatch):
        dequantize(found, other)
