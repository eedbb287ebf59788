"""Fragment maps against the index formulas that the PTX manual prints per shape."""

from __future__ import annotations

import numpy as np
import pytest
from sim_fragments import (
    A_FORMULAS,
    ACCUMULATOR_FORMULAS,
    B_FORMULAS,
    Formula,
    element,
    quad_pair,
    quad_pair_element,
)

from humming_sim.matrices.fragments import (
    FragmentMap,
    a_map,
    accumulator_map,
    b_map,
    quad_pair_maps,
)


def check_map(mapping: FragmentMap, bits: int, formula: Formula) -> None:
    """Both directions of a map on random elements of two warps."""
    rows, columns = mapping.shape
    rng = np.random.default_rng(rows * columns + bits)
    matrices = rng.integers(0, 1 << min(bits, 62), (2, rows, columns), dtype=np.uint64)
    fragments = mapping.fragments(matrices)
    assert fragments.shape == (2, 32, rows * columns * bits // (32 * mapping.word().itemsize * 8))
    for warp in range(2):
        for lane in range(32):
            for i in range(rows * columns // 32):
                row, column = formula(lane >> 2, lane % 4, i)
                found = element(fragments[warp, lane], i, bits)
                assert found == matrices[warp, row, column], (lane, i)
    assert (mapping.matrices(fragments) == matrices).all()


@pytest.mark.parametrize(("m", "k", "bits"), A_FORMULAS)
def test_a_is_where_the_manual_says(m: int, k: int, bits: int) -> None:
    check_map(a_map(m, k, bits), bits, A_FORMULAS[m, k, bits])


@pytest.mark.parametrize(("k", "bits"), B_FORMULAS)
def test_b_is_where_the_manual_says(k: int, bits: int) -> None:
    check_map(b_map(k, 8, bits), bits, B_FORMULAS[k, bits])


@pytest.mark.parametrize(("m", "n"), ACCUMULATOR_FORMULAS)
@pytest.mark.parametrize("bits", [16, 32, 64])
def test_accumulators_are_where_the_manual_says(m: int, n: int, bits: int) -> None:
    check_map(accumulator_map(m, n, bits), bits, ACCUMULATOR_FORMULAS[m, n])


@pytest.mark.parametrize("a_layout", ["row", "col"])
@pytest.mark.parametrize("b_layout", ["row", "col"])
@pytest.mark.parametrize("accumulator", ["f16", "f32"])
def test_m8n8k4_has_four_products_of_quad_pairs(
    a_layout: str, b_layout: str, accumulator: str
) -> None:
    bits = int(accumulator[1:])
    maps = quad_pair_maps(a_layout, b_layout, bits)
    for mapping, operand, layout in zip(
        maps, "abc", (a_layout, b_layout, accumulator), strict=True
    ):
        count = 8 * 8 if operand == "c" else 8 * 4
        matrices = np.arange(3 * 4 * count).reshape(12, *mapping.shape)
        fragments = mapping.fragments(matrices)
        assert fragments.shape[0] == 3
        for lane in range(32):
            for i in range(count * 4 // 32):
                row, column = quad_pair_element(operand, layout, lane, i)
                found = element(fragments[2, lane], i, mapping.bits)
                assert found == matrices[8 + quad_pair(lane)[0], row, column]
        assert (mapping.matrices(fragments) == matrices).all()


def test_a_wgmma_warp_holds_sixteen_rows_like_an_mma() -> None:
    # Figures 148, 150, 152 and 154: m64k16 f16, m64k8 tf32, m64k32 8-bit, m64k256 single bits.
    for k, bits in ((16, 16), (8, 32), (32, 8), (256, 1)):
        mapping = a_map(16, k, bits)
        assert mapping.registers == 4
        check_map(mapping, bits, A_FORMULAS[16, k, bits])
