"""The layout for mma.sync as integers: order of blocks and codes, ids, and what has no layout."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from humming.configs import LayerConfig
from humming.errors import UnsupportedError
from humming.formats.activation import ActivationScheme
from humming.formats.scheme import WeightScheme
from humming.formats.table import number_format
from humming.selection import find_profile
from humming_sm75_sm89.layout import BlockGrid, MmaLayout, layout_of, refuse_layout

ACTIVATIONS = {2: "f16", 4: "s8", 8: "s4"}


def config(
    scheme: str, n: int = 64, k: int = 256, activation: str = "f16", **fields: object
) -> LayerConfig:
    return LayerConfig(
        n=n,
        k=k,
        weight=WeightScheme.parse(scheme),
        activation=ActivationScheme.parse(activation),
        output=number_format("f16"),
        **fields,
    )


def layout(
    scheme: str, n: int = 64, k: int = 256, activation: str = "f16", **fields: object
) -> MmaLayout:
    device = "family-sm89" if activation.startswith("e") else "family-sm80"
    return layout_of(config(scheme, n, k, activation, **fields), find_profile(profile=device))


# ----------------------------------------------------------------------------------- index maps


@given(st.integers(1, 400), st.integers(1, 9000))
def test_positions_count_all_blocks_window_by_window(n: int, k: int) -> None:
    grid = BlockGrid(n, k)
    assert (grid.n64 - n, grid.k128 - k) == (-n % 64, -k % 128)
    found = {}
    for panel in range(grid.panels):
        for block in range(grid.blocks):
            # the formula of the design
            position = (block // 32) * grid.panels * 32
            position += panel * min(32, grid.blocks - block // 32 * 32) + block % 32
            assert grid.position(panel, block) == position
            found[position] = (panel, block)
    assert sorted(found) == list(range(grid.panels * grid.blocks))


@pytest.mark.parametrize("k", [1, 128, 2048, 2049, 5000])
def test_windows_are_pieces_of_memory(k: int) -> None:
    grid = BlockGrid(200, k)
    pieces = [
        (first, p, b) for first, width in grid.windows() for p in range(4) for b in range(width)
    ]
    places = [grid.position(p, first + b) for first, p, b in pieces]
    assert places == list(range(4 * grid.blocks))


@pytest.mark.parametrize("unit", ACTIVATIONS)
def test_each_element_of_a_block_is_one_code_of_one_lane(unit: int) -> None:
    found = layout("s4-channel-f32", activation=ACTIVATIONS[unit])
    assert (found.unit, found.step, found.steps) == (unit, 8 * unit, 8 // unit)
    places = {found.element(lane, code) for lane in range(32) for code in range(128)}
    assert places == {(row, k) for row in range(64) for k in range(64)}


#: PTX ISA, operand A of m16n8k16 (16-bit), m16n8k32 (8-bit), m16n8k64 (4-bit): row and column of
#: element i of a lane, as the manual writes them.
A_FRAGMENTS = {
    2: lambda lane, i: (
        lane // 4 + 8 * (2 <= i < 4 or i >= 6),
        lane % 4 * 2 + (i & 1) + 8 * (i >= 4),
    ),
    4: lambda lane, i: (
        lane // 4 + 8 * (4 <= i < 8 or i >= 12),
        lane % 4 * 4 + (i & 3) + 16 * (i >= 8),
    ),
    8: lambda lane, i: (
        lane // 4 + 8 * (8 <= i < 16 or i >= 24),
        lane % 4 * 8 + (i & 7) + 32 * (i >= 16),
    ),
}


@pytest.mark.parametrize("unit", A_FRAGMENTS)
def test_units_are_the_registers_of_the_operand_one_after_the_other(unit: int) -> None:
    found = layout("s4-channel-f32", activation=ACTIVATIONS[unit])
    per_mma = 4 * unit
    for lane in range(32):
        for code in range(128):
            mma, i = divmod(code, per_mma)
            tile, step = divmod(mma, found.steps)
            row, k = A_FRAGMENTS[unit](lane, i)
            assert found.element(lane, code) == (16 * tile + row, 8 * unit * step + k)


# -------------------------------------------------------------------------------- what there is

#: scheme, activation, k, act-order: what the layout says, in the order of FIELDS.
FIELDS = ("group", "zero_group", "has_scales", "has_zeros", "has_channel", "has_order", "exponent")
ROWS = [
    ("u4-g128-f16", "f16", 256, False, (128, 0, True, False, False, False, 0)),
    ("u4-g128-f16", "f16", 256, True, (128, 0, True, False, False, True, 0)),
    ("u4-g128-f16", "f16", 128, False, (0, 0, False, False, True, False, 0)),
    ("u4-g128-f16", "f16", 128, True, (128, 0, True, False, False, True, 0)),
    ("u4-g2147483647-f16", "f16", 100, True, (128, 0, True, False, False, True, 0)),
    ("u4+z-g128-f16", "f16", 256, False, (128, 128, True, True, False, False, 0)),
    ("u4+z-channel-f16", "f16", 200, False, (0, 256, False, True, True, False, 0)),
    ("u4+zf-channel-f16", "f16", 200, False, (256, 256, True, True, False, False, 0)),
    ("u4+zf-g32-f16-tensor", "f16", 200, False, (32, 32, True, True, True, False, 0)),
    ("e4m3fn-b128x128-f32", "f16", 200, False, (128, 0, True, False, False, False, 0)),
    ("e2m1-g16-e4m3fn-tensor", "f16", 64, False, (16, 0, True, False, True, False, 0)),
    ("u4-g24-f16", "f16", 100, False, (32, 0, True, False, False, True, 0)),
    ("u4-g24-f16", "f16", 20, False, (0, 0, False, False, True, False, 0)),
    ("s4-channel-f32", "s8", 100, False, (0, 0, False, False, True, False, -4)),
    ("u4-tensor-f32-channel", "s4", 100, False, (0, 0, False, False, True, False, 0)),
    ("e2m1-g32-e8m0", "s8", 128, False, (32, 0, True, False, False, False, -1)),
    ("e2m1-g32-e8m0", "e4m3fn", 128, False, (32, 0, True, False, True, False, 6)),
]


@pytest.mark.parametrize(("scheme", "activation", "k", "act_order", "expected"), ROWS)
def test_the_layout_says_what_is_packed(
    scheme: str, activation: str, k: int, act_order: bool, expected: tuple[object, ...]
) -> None:
    found = layout(scheme, k=k, activation=activation, act_order=act_order)
    assert tuple(getattr(found, field) for field in FIELDS) == expected
    assert found.group % found.step == found.zero_group % found.step == 0


@pytest.mark.parametrize(
    ("stored", "kept"),
    [("f32", "f32"), ("f16", "f16"), ("bf16", "bf16"), ("e8m0", "e8m0"), ("e4m3fn", "e4m3fn"),
     ("e5m2", "f32"), ("e5m3", "f32")],
)  # fmt: skip
def test_scales_keep_their_format_where_kernels_read_it(stored: str, kept: str) -> None:
    assert layout(f"u4-g32-{stored}").scale.name == kept


def test_ids_differ_where_a_kernel_reads_otherwise() -> None:
    ids = {
        str(layout("u4-g128-f16")): "planes/b4u2/scales128-f16",
        str(layout("u4-g64-f16")): "planes/b4u2/scales64-f16",
        str(layout("u4-g64-bf16")): "planes/b4u2/scales64-bf16",
        str(layout("u4+z-g64-f16")): "planes/b4u2/scales64-f16.zeros64",
        str(layout("u4-g64-f16", act_order=True)): "planes/b4u2/scales64-f16.order",
        str(layout("u4-channel-f16")): "planes/b4u2/channel",
        str(layout("u4-channel-f16", activation="s8")): "planes/b4u4/channel",
        str(layout("s7-channel-f16")): "planes/b7u2/channel",
        str(layout("u4-g64-f16-tensor")): "planes/b4u2/scales64-f16.channel",
        str(layout("e2m1-g32-e8m0", activation="f16")): "planes/b4u2-f16/scales32-e8m0",
        str(layout("e2m1-g32-e8m0", activation="bf16")): "planes/b4u2-bf16/scales32-e8m0",
        str(layout("e2m1-g32-e8m0-channel", activation="e5m2")): (
            "planes/b4u4-bytes/scales32-e8m0.channel"
        ),
        str(layout("e2m1-g32-e8m0-channel", activation="e4m3fn")): (
            "planes/b4u4-bytes/scales32-e8m0-powers.channel"
        ),
    }
    assert ids == {f"sm75_sm89/mma64x64/{middle}/v1": middle for middle in ids.values()}


def test_sizes_are_not_part_of_the_id() -> None:
    small, large = layout("u4-g64-f16"), layout("u4-g64-f16", n=1000, k=4096, experts=3)
    assert str(small) == str(large)
    assert (small.lead, large.lead) == (1, 3)
    assert (large.grid.panels, large.grid.blocks) == (16, 64)
    assert large.words(large.grid) == 16 * 64 * 512


# -------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("scheme", "activation", "why"),
    [
        ("u4+z-channel-f32", "s4", "u4+z weights are not decoded for s4 activations"),
        ("e4m3fn-channel-f32", "s8", "e4m3fn weights are not decoded for s8 activations"),
        ("e5m2-channel-f32", "s8", "e5m2 weights are not decoded for s8 activations"),
    ],
)
def test_what_no_operand_holds_has_no_layout(scheme: str, activation: str, why: str) -> None:
    profile = find_profile(profile="family-sm80")
    assert refuse_layout(config(scheme, activation=activation), profile) == why
    with pytest.raises(UnsupportedError, match=why.replace("+", r"\+")):
        layout_of(config(scheme, activation=activation), profile)


def test_activation_groups_need_inputs_in_their_order() -> None:
    profile = find_profile(profile="family-sm80")
    grouped = config("u4-g64-f16", activation="s8-g64-f32")
    assert refuse_layout(grouped, profile) is None
    ordered = dataclasses.replace(grouped, act_order=True)
    assert "activation groups of 64 inputs" in str(refuse_layout(ordered, profile))
