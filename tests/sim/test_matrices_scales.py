"""Block scales and sparse metadata of mma.sync, element by element."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from sim_fragments import metadata_place

from humming_sim.matrices import scales, sparse
from humming_sim.matrices.fragments import b_map
from humming_sim.matrices.products import Operand, Product, multiply

SCALE_DTYPES = {"ue8m0": ml_dtypes.float8_e8m0fnu, "ue4m3": ml_dtypes.float8_e4m3fn}


def scale_words(stype: str) -> np.ndarray:
    """Scale data of three warps without NaN."""
    rng = np.random.default_rng(11)
    top = 0xFE if stype == "ue8m0" else 0x7E
    octets = rng.integers(0, top, (3, 32, 4), dtype=np.uint8, endpoint=True)
    return octets.view(np.uint32)[..., 0]


@pytest.mark.parametrize("stype", SCALE_DTYPES)
@pytest.mark.parametrize(("count", "byte_ids"), [(1, (0, 1, 2, 3)), (2, (0, 2)), (4, (0,))])
def test_scales_come_from_the_selected_lanes_and_bytes(
    stype: str, count: int, byte_ids: tuple[int, ...]
) -> None:
    words = scale_words(stype)
    for byte_id in byte_ids:
        for thread_id in range(4):
            for warp, row, j in np.ndindex(3, 16, count):
                # 9.7.14.3: T0 and T1 of a quad hold rows g and g + 8; 1 selects T2 and T3.
                lane = 4 * (row % 8) + (row >= 8) + 2 * (thread_id % 2)
                wanted = scale_value(words[warp, lane], byte_id + j, stype)
                found = scales.scale_a(words, byte_id, thread_id % 2, count, stype)
                assert found[warp, row, j] == wanted
            for warp, column, j in np.ndindex(3, 8, count):
                wanted = scale_value(words[warp, 4 * column + thread_id], byte_id + j, stype)
                found = scales.scale_b(words, byte_id, thread_id, count, stype)
                assert found[warp, j, column] == wanted


def scale_value(word: int, byte: int, stype: str) -> float:
    code = np.array([int(word) >> 8 * byte & 255], np.uint8)
    return float(code.view(SCALE_DTYPES[stype])[0])


def test_selectors_may_differ_by_warp() -> None:
    words = scale_words("ue8m0")
    found = scales.scale_a(words, np.array([0, 1, 3]), np.array([1, 0, 1]), 1, "ue8m0")
    for warp, (byte_id, thread_id) in enumerate([(0, 1), (1, 0), (3, 1)]):
        alone = scales.scale_a(words, byte_id, thread_id, 1, "ue8m0")
        assert (found[warp] == alone[warp]).all()


@pytest.mark.parametrize(
    ("count", "byte_id", "thread_id", "operand", "faults"),
    [
        (1, 3, 1, "a", 0),
        (1, 4, 1, "a", 1),
        (1, 0, 2, "a", 1),
        (1, 0, 3, "b", 0),
        (2, 2, 0, "a", 0),
        (2, 1, 0, "b", 1),
        (4, 0, 3, "b", 0),
        (4, 1, 4, "b", 2),
    ],
)
def test_selectors_outside_of_the_table_are_reported(
    count: int, byte_id: int, thread_id: int, operand: str, faults: int
) -> None:
    assert len(scales.lint_selector(count, byte_id, thread_id, operand)) == faults


@pytest.mark.parametrize("count", [2, 4])
def test_each_scale_multiplies_its_part_of_k(count: int) -> None:
    rng = np.random.default_rng(12)
    a, b = rng.integers(-6, 7, (1, 16, 64)) / 2, rng.integers(-6, 7, (1, 64, 8)) / 2
    sfa, sfb = 2.0 ** rng.integers(-3, 4, (1, 16, count)), rng.integers(1, 15, (1, count, 8)) / 4
    a_operand = Operand(a, "e2m1", np.repeat(sfa, 64 // count, 2), "ue4m3")
    b_operand = Operand(b, "e2m1", np.repeat(sfb, 64 // count, 1), "ue4m3")
    c = np.zeros((1, 16, 8), np.uint32)
    found = multiply(Product("f32", "f32"), a_operand, b_operand, c).view(np.float32)
    for m, n in np.ndindex(16, 8):
        wanted = sum(
            a[0, m, k] * b[0, k, n] * sfa[0, m, k * count // 64] * sfb[0, k * count // 64, n]
            for k in range(64)
        )
        assert found[0, m, n] == wanted


# ----------------------------------------------------------------------------------------- sparse

#: k, stored width, whether one lane, two or four of a quad have metadata (9.7.14.6.1).
SHAPES = [
    (16, 16, 1),
    (32, 16, 2),
    (8, 32, 1),
    (16, 32, 2),
    (32, 8, 2),
    (64, 8, 4),
    (64, 4, 2),
    (128, 4, 4),
]


@pytest.mark.parametrize(("k", "bits", "lanes"), SHAPES)
def test_metadata_puts_stored_elements_in_their_chunks(k: int, bits: int, lanes: int) -> None:
    spec = sparse.sparsity(k, bits)
    assert len(spec.selectors) == {1: 4, 2: 2, 4: 1}[lanes]
    rng = np.random.default_rng(k + bits)
    stored = rng.integers(1, 16, (2, 16, k // 2))
    chunk = {32: 2, 16: 4, 8: 4, 4: 8}[bits]
    for selector in spec.selectors:
        metadata = np.zeros((2, 32), np.uint32)
        wanted = np.zeros((2, 16, k), np.int64)
        for warp, row, c in np.ndindex(2, 16, k // chunk):
            mine = list(stored[warp, row, c * chunk // 2 : (c + 1) * chunk // 2])
            if bits == 32:
                place = int(rng.integers(2))
                nibble, places = (0b0100, 0b1110)[place], [place]
            else:
                first, second = (int(p) for p in rng.choice(4, 2, replace=False))
                nibble, places = first | second << 2, [first, second]
                if bits == 4:
                    places = [2 * p + i for p in places for i in range(2)]
            for place, element in zip(places, mine, strict=True):
                wanted[warp, row, c * chunk + place] = element
            lane, low = metadata_place(k, bits, row, c, selector)
            metadata[warp, lane] |= np.uint32(nibble << low)
        assert (sparse.expand(spec, stored, metadata, selector) == wanted).all()
        assert not sparse.unusable_chunks(spec, metadata, selector, ordered=False).any()


def test_unusable_metadata_is_found() -> None:
    spec = sparse.sparsity(16, 16)
    metadata = np.full((1, 32), 0x44444444, np.uint32)
    metadata[0, 4 * 3 + 1] = 0x44445444
    metadata[0, 4 * 5 + 1] = 0x44444441
    equal = sparse.unusable_chunks(spec, metadata, 1, ordered=False)
    assert np.argwhere(equal).tolist() == [[0, 3, 3]]
    unordered = sparse.unusable_chunks(spec, metadata, 1, ordered=True)
    assert np.argwhere(unordered).tolist() == [[0, 3, 3], [0, 5, 0]]
    tf32 = sparse.sparsity(8, 32)
    metadata = np.full((1, 32), 0xE4E4E4E4, np.uint32)
    assert not sparse.unusable_chunks(tf32, metadata, 0, ordered=True).any()
    assert sparse.unusable_chunks(tf32, metadata ^ np.uint32(1), 0, ordered=True).any()


def test_sparse_selectors_are_checked() -> None:
    assert sparse.lint_selector(sparse.sparsity(16, 16), 3) == []
    assert "expected 1 at most" in sparse.lint_selector(sparse.sparsity(32, 16), 2)[0]
    assert sparse.lint_selector(sparse.sparsity(128, 4), 1)


def test_b_of_a_sparse_shape_has_all_of_k() -> None:
    assert b_map(64, 8, 8).registers == 4
