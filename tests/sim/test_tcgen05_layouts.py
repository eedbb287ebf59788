"""Tensor memory layouts, one element at a time: D, A, scales, and what ld, st and cp move."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from humming_sim.tcgen05.accumulators import accumulator_layout, split_address
from humming_sim.tcgen05.block_scales import read_scales, scale_cells
from humming_sim.tcgen05.forms import MmaForm
from humming_sim.tcgen05.transfers import (
    COPIES,
    FRAGMENTS,
    copied_words,
    fragment,
    merge_halves,
    split_halves,
)


def cell(letter, row, column, n):
    """(cta, lane, column) of an element of D by the figures of 9.7.16.10.5."""
    if letter == "A":  # 256 rows, 128 in each CTA
        return row // 128, row % 128, column
    if letter == "B":  # 64 rows in each CTA, columns in two halves
        return row // 64, row % 64 + 64 * (column >= n // 2), column % (n // 2)
    if letter == "D":
        return 0, row, column
    if letter == "E":
        return 0, row + 64 * (column >= n // 2), column % (n // 2)
    if letter == "F":  # the first 16 lanes of each warp's 32
        return 0, row // 16 * 32 + row % 16, column
    return 0, row + 32 * (column // (n // 4)), column % (n // 4)


@pytest.mark.parametrize(
    ("letter", "m", "form"),
    [
        ("A", 256, MmaForm("f16", 2)),
        ("B", 128, MmaForm("f16", 2)),
        ("D", 128, MmaForm("f16")),
        ("D", 128, MmaForm("f16", ws=True)),
        ("E", 64, MmaForm("f16", ws=True)),
        ("F", 64, MmaForm("f16")),
        ("G", 32, MmaForm("f16", ws=True)),
    ],
)
def test_every_element_of_d_has_the_cell_of_its_layout(letter, m, form):
    n = 64
    layout = accumulator_layout(m, n, form)
    assert layout.letter == letter
    assert layout.alignments == ((0, 16) if letter == "F" else (0,))
    seen = {}
    for block in layout.blocks:
        for row, column in itertools.product(range(*block.rows), range(*block.columns)):
            lane = range(128)[block.lanes][row - block.rows[0]]
            seen[block.cta * layout.rows + row, column] = (
                block.cta,
                lane,
                column - block.columns[0],
            )
    assert seen == {
        (row, column): cell(letter, row, column, n)
        for row, column in itertools.product(range(m), range(n))
    }
    assert layout.columns == 1 + max(place[2] for place in seen.values())


def test_no_layout_exists_for_other_m():
    with pytest.raises(ValueError, match="M = 96"):
        accumulator_layout(96, 64, MmaForm("f16"))


def test_an_address_is_a_lane_and_a_column():
    assert split_address(0x0060_01A0) == (0x60, 0x1A0)


# ------------------------------------------------------------------------------------------ scales


def stored_scales(codes, copies=(0, 1, 2, 3)):
    """Tensor memory after every 128 x 4 tile of codes went through tcgen05.cp.32x128b.warpx4."""
    rows, count = codes.shape
    memory = np.zeros((128, 64), np.uint32)
    octets = memory.view(np.uint8).reshape(128, 64, 4)
    tiles = -(-rows // 128)
    for row, j in itertools.product(range(rows), range(count)):
        column = (j // 4 * tiles + row // 128) * 4 + row % 128 // 32
        for warp in copies:
            octets[warp * 32 + row % 32, column, j % 4] = codes[row, j]
    return memory


@pytest.mark.parametrize(
    ("rows", "count", "ids"),
    [
        (128, 1, (0, 1, 2, 3)),
        (128, 2, (0, 2)),
        (128, 4, (0,)),
        (256, 1, (0, 1, 2, 3)),
        (256, 4, (0,)),
        (48, 2, (0, 2)),
        (128, 3, (0, 1, 2, 3)),
        (256, 3, (0, 1, 2, 3)),
        (128, 6, (0, 2)),
        (240, 6, (0, 2)),
        (8, 6, (0, 2)),
    ],
)
def test_scales_are_found_where_copies_of_scale_tiles_put_them(rows, count, ids):
    rng = np.random.default_rng(rows + count)
    codes = rng.integers(0, 256, (rows, 12), np.uint8)
    memory = stored_scales(codes)
    for scale_id in ids:
        cells = scale_cells(rows, count, scale_id)
        found, differ = read_scales(memory[cells.lanes, cells.columns], cells)
        assert (found == codes[:, scale_id : scale_id + count]).all()
        assert not differ.any()


def test_copies_that_differ_are_noticed():
    codes = np.arange(128, dtype=np.uint8)[:, None].repeat(4, 1)
    memory = stored_scales(codes)
    memory[64 + 5, 2] ^= 1 << 16
    cells = scale_cells(128, 4, 0)
    _, differ = read_scales(memory[cells.lanes, cells.columns], cells)
    assert np.argwhere(differ).tolist() == [[2 * 32 + 5, 2]]


def test_b_of_an_m_128_pair_has_its_halves_in_different_partitions():
    codes = np.random.default_rng(0).integers(0, 256, (256, 1), np.uint8)
    memory = np.zeros((128, 8), np.uint32)
    for column in range(256):
        half, inner = divmod(column, 128)
        for copy in (0, 1):
            memory[half * 64 + copy * 32 + inner % 32, inner // 32] = int(codes[column, 0]) << 8
    cells = scale_cells(256, 1, 1, halves=True)
    found, differ = read_scales(memory[cells.lanes, cells.columns], cells)
    assert (found == codes).all()
    assert not differ.any()
    assert cells.width == 4


# ------------------------------------------------------------------------------------------- ld, st


def fragment_cell(shape, thread, register):
    """Figures 183 to 187, from the tables that CUTLASS derives its copies from: bit strides."""
    if shape == "32x32b":
        return thread, register
    if shape == "16x32bx2":
        return thread % 16, register + 1000 * (thread // 16)
    digits = {  # thread digits as (size, lanes, columns), then register digits
        "16x64b": ([(2, 8, 0), (2, 0, 1), (8, 1, 0)], [(128, 0, 2)]),
        "16x128b": ([(4, 0, 1), (8, 1, 0)], [(2, 8, 0), (64, 0, 4)]),
        "16x256b": ([(4, 0, 2), (8, 1, 0)], [(2, 0, 1), (2, 8, 0), (32, 0, 8)]),
    }[shape]
    lane = column = 0
    for value, sizes in zip((thread, register), digits, strict=True):
        rest = value
        for size, lanes, columns in sizes:
            lane += rest % size * lanes
            column += rest % size * columns
            rest //= size
    return lane, column


@pytest.mark.parametrize("repeat", [1, 2, 4, 32])
@pytest.mark.parametrize("shape", FRAGMENTS)
def test_each_register_is_the_cell_of_its_figure(shape, repeat):
    second = 1000
    plain = fragment(shape, repeat, second=second)
    wide = fragment(shape, repeat, halves=True, second=second)
    registers = FRAGMENTS[shape] * repeat
    assert plain.columns.shape == (32, registers, 1)
    assert wide.columns.shape == (32, registers, 2)
    for thread, register in itertools.product(range(32), range(registers)):
        lane, column = fragment_cell(shape, thread, register)
        assert (plain.lanes[thread, register, 0], plain.columns[thread, register, 0]) == (
            lane,
            column,
        )
        split, inner = divmod(column, 1000) if shape == "16x32bx2" else (0, column)
        pair = [split * 1000 + 2 * inner, split * 1000 + 2 * inner + 1]
        assert wide.columns[thread, register].tolist() == pair


@pytest.mark.parametrize("shape", FRAGMENTS)
def test_a_fragment_covers_each_of_its_cells_once(shape):
    plain = fragment(shape, 8, second=8)
    cells = list(zip(plain.lanes.repeat(1, -1).ravel(), plain.columns.ravel(), strict=True))
    assert len(set(cells)) == len(cells) == plain.height * plain.width


def test_too_many_registers_or_odd_repetitions_are_refused():
    for shape, repeat in (("16x256b", 64), ("32x32b", 3), ("8x8b", 1), ("16x128b", 128)):
        with pytest.raises(ValueError, match="no"):
            fragment(shape, repeat)


def test_halves_are_packed_and_unpacked():
    cells = np.array([[0xAAAA1111, 0xBBBB2222]], np.uint32)
    assert merge_halves(cells).tolist() == [0x22221111]
    assert split_halves(merge_halves(cells), 2).tolist() == [[0x1111, 0x2222]]
    assert merge_halves(cells[:, :1]).tolist() == [0xAAAA1111]
    assert split_halves(cells[:, 0], 1).tolist() == [[0xAAAA1111]]


# ----------------------------------------------------------------------------------------------- cp


@pytest.mark.parametrize(
    ("name", "columns", "places"),
    [
        ("128x256b", 8, {row: {row} for row in range(128)}),
        ("128x128b", 4, {row: {row} for row in range(128)}),
        ("4x256b", 8, {row: {32 * row} for row in range(4)}),
        ("64x128b.warpx2::02_13", 4, {row: {row, row + 64} for row in range(64)}),
        (
            "64x128b.warpx2::01_23",
            4,
            {row: {row % 32 + 64 * (row // 32) + w for w in (0, 32)} for row in range(64)},
        ),
        ("32x128b.warpx4", 4, {row: {row + 32 * w for w in range(4)} for row in range(32)}),
    ],
)
def test_rows_of_a_copy_go_to_the_lanes_of_their_warps(name, columns, places):
    shape = COPIES[name]
    assert shape.columns == columns
    assert shape.use.row_bytes == 4 * columns
    assert {row: set(lanes) for row, lanes in enumerate(shape.lanes.tolist())} == places


def test_a_copy_moves_bytes_in_order():
    units = np.arange(2 * 2 * 16, dtype=np.uint8).reshape(2, 2, 16)
    words = copied_words(units)
    assert words.shape == (2, 8)
    assert words[1, 5] == int.from_bytes(bytes([52, 53, 54, 55]), "little")


@pytest.mark.parametrize(("source", "bits", "shift"), [("b4x16_p64", 4, 2), ("b6x16_p32", 6, 0)])
def test_decompression_gives_every_element_its_byte(source, bits, shift):
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 1 << bits, (3, 16))
    units = rng.integers(0, 256, (3, 1, 16)).astype(np.uint8)  # padding is noise
    for row in range(3):
        packed = sum(int(code) << bits * i for i, code in enumerate(codes[row]))
        units[row, 0, : 2 * bits] = np.frombuffer(packed.to_bytes(2 * bits, "little"), np.uint8)
    words = copied_words(units, source)
    assert (words.view(np.uint8) == codes << shift).all()
    with pytest.raises(ValueError, match="b2x16"):
        copied_words(units, "b2x16")


def test_e2m1_bits_2_to_5_are_an_8_bit_floats_upper_exponent_and_mantissa():
    # Why bits 2-5: a shifted e2m1 byte is e4m3-like, 0SEEM00; only the sign moves.
    words = copied_words(np.full((1, 1, 16), 0xD7, np.uint8), "b4x16_p64")
    low, high = words.view(np.uint8)[0, :2] >> 2
    assert [float(x) for x in np.array([low, high], np.uint8).view(ml_dtypes.float4_e2m1fn)] == [
        6.0,
        -3.0,
    ]
