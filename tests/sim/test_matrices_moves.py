"""ldmatrix, stmatrix, movmatrix and packing against element-by-element readings of the manual."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from humming_sim.matrices.moves import LOADS, STORES, load, store, transpose
from humming_sim.matrices.packing import expand_padded, pack, unpack

WARPS = 2


def random_rows(rows: int, width: int = 16) -> np.ndarray:
    rng = np.random.default_rng(rows)
    return rng.integers(0, 256, (WARPS, rows, width), dtype=np.uint8)


def halves(fragments: np.ndarray, lane: int, register: int) -> tuple[int, int]:
    word = int(fragments[lane, register])
    return word & 0xFFFF, word >> 16


def octets(fragments: np.ndarray, lane: int, register: int) -> list[int]:
    return list(int(fragments[lane, register]).to_bytes(4, "little"))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_b16_gives_a_quad_one_row_or_column(count: int, transposed: bool) -> None:
    # Figure 104: thread 4g + t holds columns 2t and 2t + 1 of row g; .trans swaps the two.
    rows = random_rows(8 * count)
    fragments = load(LOADS["m8n8", "b16", transposed], rows)
    assert fragments.shape == (WARPS, 32, count)
    for warp, matrix, g, t in np.ndindex(WARPS, count, 8, 4):
        cells = [(g, 2 * t), (g, 2 * t + 1)]
        if transposed:
            cells = [(column, row) for row, column in cells]
        memory = rows[warp, 8 * matrix : 8 * matrix + 8]
        wanted = tuple(int(memory[r, 2 * c]) | int(memory[r, 2 * c + 1]) << 8 for r, c in cells)
        assert halves(fragments[warp], 4 * g + t, matrix) == wanted


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("source", ["b8", "b8x16.b6x16_p32", "b8x16.b4x16_p64"])
def test_ldmatrix_m16n16_gives_four_columns_of_two_rows(count: int, source: str) -> None:
    # Figure 105 in the transposed matrix: rows g (register 0) and g + 8 (register 1).
    rows = random_rows(16 * count)
    fragments = load(LOADS["m16n16", source, True], rows)
    assert fragments.shape == (WARPS, 32, 2 * count)
    for warp, matrix, half, g, t in np.ndindex(WARPS, count, 2, 8, 4):
        memory = rows[warp, 16 * matrix : 16 * matrix + 16]
        wanted = [stored(memory[4 * t + i], g + 8 * half, source) for i in range(4)]
        assert octets(fragments[warp], 4 * g + t, 2 * matrix + half) == wanted


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("source", ["b8x16.b6x16_p32", "b8x16.b4x16_p64"])
def test_ldmatrix_m8n16_widens_without_moving(count: int, source: str) -> None:
    # Figure 106: thread 4g + t holds columns 4t to 4t + 3 of row g.
    rows = random_rows(8 * count)
    fragments = load(LOADS["m8n16", source, False], rows)
    assert fragments.shape == (WARPS, 32, count)
    for warp, matrix, g, t in np.ndindex(WARPS, count, 8, 4):
        memory = rows[warp, 8 * matrix + g]
        wanted = [stored(memory, 4 * t + i, source) for i in range(4)]
        assert octets(fragments[warp], 4 * g + t, matrix) == wanted


def stored(row: np.ndarray, column: int, source: str) -> int:
    """Element of a 16-byte row: bits counted from its start, low bits first."""
    if source == "b8":
        return int(row[column])
    bits = 6 if "b6" in source else 4
    return int.from_bytes(row.tobytes(), "little") >> column * bits & (1 << bits) - 1


@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_s8_s4_extends_the_sign(count: int) -> None:
    rows = random_rows(8 * count, 8)
    fragments = load(LOADS["m8n16", "s8.s4", False], rows)
    for warp, matrix, g, t in np.ndindex(WARPS, count, 8, 4):
        number = int.from_bytes(rows[warp, 8 * matrix + g].tobytes(), "little")
        nibbles = [number >> 4 * (4 * t + i) & 15 for i in range(4)]
        wanted = [(n - 16 if n > 7 else n) & 255 for n in nibbles]
        assert octets(fragments[warp], 4 * g + t, matrix) == wanted


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_b16_undoes_ldmatrix(count: int, transposed: bool) -> None:
    rows = random_rows(8 * count)
    key = ("m8n8", "b16", transposed)
    assert (store(STORES[key], load(LOADS[key], rows)) == rows).all()


@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_m16n8_writes_columns_of_sixteen_bytes(count: int) -> None:
    # Figure 108: e0, e1 are row g, e2, e3 row g + 8, of columns 2t and 2t + 1.
    rng = np.random.default_rng(count)
    fragments = rng.integers(0, 1 << 32, (WARPS, 32, count), dtype=np.uint32)
    rows = store(STORES["m16n8", "b8", True], fragments)
    assert rows.shape == (WARPS, 8 * count, 16)
    for warp, matrix, g, t, e in np.ndindex(WARPS, count, 8, 4, 4):
        memory_row, memory_column = 2 * t + e % 2, g + 8 * (e // 2)
        wanted = octets(fragments[warp], 4 * g + t, matrix)[e]
        assert rows[warp, 8 * matrix + memory_row, memory_column] == wanted


def test_movmatrix_transposes() -> None:
    matrix = np.arange(64, dtype=np.uint16).reshape(1, 8, 8)
    plain = LOADS["m8n8", "b16", False]
    fragments = load(plain, matrix.view(np.uint8))
    wanted = load(plain, np.ascontiguousarray(matrix.swapaxes(1, 2)).view(np.uint8))
    assert (transpose(fragments) == wanted).all()
    assert (transpose(transpose(fragments)) == fragments).all()


@pytest.mark.parametrize("bits", [1, 4, 8, 16, 32])
def test_packing_counts_from_the_low_bits(bits: int) -> None:
    words = np.array([[0x89ABCDEF, 0x01234567]], np.uint32)
    number = 0x0123456789ABCDEF
    wanted = [number >> i * bits & (1 << bits) - 1 for i in range(64 // bits)]
    elements = unpack(words, bits)
    assert elements.tolist() == [wanted]
    assert (pack(elements, bits, np.uint32) == words).all()


@given(hnp.arrays(np.uint8, (3, 16)), st.sampled_from([4, 6]))
def test_padded_rows_expand_to_one_element_per_byte(rows: np.ndarray, bits: int) -> None:
    expanded = expand_padded(rows, bits)
    for row, found in zip(rows, expanded, strict=True):
        number = int.from_bytes(row.tobytes(), "little")
        assert found.tolist() == [number >> i * bits & (1 << bits) - 1 for i in range(16)]


def test_padded_rows_hold_only_4_and_6_bits() -> None:
    with pytest.raises(ValueError, match="5-bit"):
        expand_padded(np.zeros((1, 16), np.uint8), 5)
    with pytest.raises(ValueError, match="6 bits"):
        unpack(np.zeros((1, 4), np.uint32), 6)
