"""Shared-memory operand addresses against the CuTe expressions of the PTX manual."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim_operands import CUTE, SPAN, cute_offset, cute_swizzle

from humming_sim.matrices.operands import (
    SWIZZLES,
    Layout,
    canonical_addresses,
    decode_wgmma_descriptor,
    elements,
    lint_wgmma_descriptor,
    swizzled,
)


def check(layout: Layout, start: int, rows: int, k: int, size: int) -> None:
    units = canonical_addresses(start, layout, rows, k, 8 * size)
    each = 16 // size
    for row in range(rows):
        for column in range(k):
            wanted = cute_swizzle(
                start + cute_offset(layout, row, column, size), *CUTE[layout.swizzle]
            )
            if layout.major == "K":
                unit, inside = units[row, column // each], column % each
            else:
                unit, inside = units[column, row // each], row % each
            assert unit + inside * size == wanted, (row, column)


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_k_major_addresses_follow_the_canonical_layout(swizzle: str, size: int) -> None:
    leading = 4096 if swizzle == "none" else 16
    layout = Layout(swizzle, "K", leading, 8 * SPAN[swizzle] + 1024)
    for start in (0, 8192 + 32 * (swizzle == "128B")):
        check(layout, start, 64, 32 // size, size)


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B", "128B_32B"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_mn_major_addresses_follow_the_canonical_layout(swizzle: str, size: int) -> None:
    layout = Layout(swizzle, "MN", leading=4096, stride=2048)
    check(layout, 1024, 128, 32 // size, size)


def test_the_manuals_examples_are_met() -> None:
    # Figure 166: tf32, no swizzle, ((8,2),(4,4)):((4,32),(1,64)) elements.
    layout = Layout("none", "K", leading=64 * 4, stride=32 * 4)
    units = canonical_addresses(0, layout, 16, 16, 32)
    assert units[9, 3] == 4 * (1 * 4 + 1 * 32 + 3 * 64)
    # Figure 167: tf32, 32-byte swizzle, ((8,2),(4,4)):((8,64),(1,4)); row 9 is linear byte 288 +
    # 32 = 320, whose bit 7 is 0, row 4 is byte 128, whose bit 7 moves it by 16.
    layout = Layout("32B", "K", leading=16, stride=64 * 4)
    units = canonical_addresses(0, layout, 16, 8, 32)
    assert units[9].tolist() == [288, 304]
    assert units[4].tolist() == [128 + 16, 128]
    # Figure 168: bf16, MN-major, ((8,1,2),(8,2)):((1,8,64),(8,128)).
    layout = Layout("none", "MN", leading=128 * 2, stride=64 * 2)
    units = canonical_addresses(0, layout, 16, 16, 16)
    assert units[9, 1] == 2 * (1 * 64 + 1 * 8 + 1 * 128)
    # Figure 169: bf16, MN-major, 32-byte swizzle, ((8,2,2),(8,2)):((1,8,128),(16,256)).
    layout = Layout("32B", "MN", leading=128 * 2, stride=256 * 2)
    units = canonical_addresses(0, layout, 32, 16, 16)
    assert units[9, 2] == 2 * (1 * 128 + 1 * 16 + 1 * 256)


@given(
    st.sampled_from(sorted(SWIZZLES)),
    st.integers(0, 1 << 18),
)
def test_a_swizzle_permutes_within_its_period(swizzle: str, address: int) -> None:
    period = SWIZZLES[swizzle].period
    first = address // period * period
    found = swizzled(np.arange(first, first + period), swizzle)
    assert sorted(found) == list(range(first, first + period))
    assert (swizzled(found, swizzle) == np.arange(first, first + period)).all()


def test_a_base_offset_moves_the_first_line_of_the_pattern() -> None:
    # A pattern whose first line is at 0x300 has base offset 6: its line 0 is not permuted.
    lines = swizzled(0x300 + 128 * np.arange(8), "128B", base_offset=6)
    assert (lines - 0x300 - 128 * np.arange(8)).tolist() == [16 * line for line in range(8)]


def test_addresses_of_several_starts_come_together() -> None:
    layout = Layout("128B", "K", 16, 1024)
    both = canonical_addresses(np.array([0, 1024 + 64]), layout, 8, 16, 16)
    assert both.shape == (2, 8, 2)
    assert (both[1] == canonical_addresses(1024 + 64, layout, 8, 16, 16)).all()


@pytest.mark.parametrize("major", ["K", "MN"])
@pytest.mark.parametrize("bits", [4, 8, 16, 32])
def test_elements_read_back_what_the_layout_wrote(major: str, bits: int) -> None:
    rng = np.random.default_rng(bits)
    rows, k = 64, 256 // bits
    matrix = rng.integers(0, 1 << bits, (rows, k), dtype=np.uint64)
    memory = np.zeros(1 << 16, np.uint8)
    layout = Layout("128B", major, leading=8192, stride=1024)
    units = canonical_addresses(2048, layout, rows, k, bits)
    lines = matrix if major == "K" else matrix.T
    for line, unit in np.ndindex(units.shape):
        each = 128 // bits
        number = sum(
            int(v) << bits * i for i, v in enumerate(lines[line, unit * each : unit * each + each])
        )
        address = units[line, unit]
        memory[address : address + 16] = list(number.to_bytes(16, "little"))
    found = elements(memory[units[..., None] + np.arange(16)], bits, major)
    assert (found == matrix).all()


def test_layouts_that_are_not_defined_are_refused() -> None:
    with pytest.raises(ValueError, match="MN-major operands only"):
        canonical_addresses(0, Layout("128B_32B", "K", 16, 1024), 8, 8, 32)
    with pytest.raises(ValueError, match="whole number"):
        canonical_addresses(0, Layout("none", "K", 16, 128), 8, 4, 16)


def descriptor(start: int, leading: int, stride: int, base: int, mode: int) -> int:
    value = start >> 4 | leading >> 4 << 16 | stride >> 4 << 32
    return value | base << 49 | mode << 62


def test_wgmma_descriptor_fields_are_where_the_manual_puts_them() -> None:
    modes = ["none", "128B", "64B", "32B"]
    for mode, name in enumerate(modes):
        value = descriptor(0x2FFF0, 0x12340, 0x3FFF0, 5, mode)
        start, layout = decode_wgmma_descriptor(value, "MN")
        assert start == 0x2FFF0
        assert layout == Layout(name, "MN", 0x12340, 0x3FFF0, 5)


def test_a_good_wgmma_descriptor_passes() -> None:
    assert lint_wgmma_descriptor(descriptor(1024 + 96, 16, 1024, 0, 1), "K") == []
    assert lint_wgmma_descriptor(descriptor(1024, 8192, 1024, 0, 1), "MN") == []


@pytest.mark.parametrize("bit", [14, 15, 30, 31, 46, 47, 48, 52, 57, 61])
def test_a_reserved_bit_of_a_wgmma_descriptor_is_reported(bit: int) -> None:
    messages = lint_wgmma_descriptor(descriptor(0, 16, 1024, 0, 1) | 1 << bit, "K")
    assert len(messages) == 1
    assert "reserved" in messages[0]


def test_other_wgmma_descriptor_faults_are_reported() -> None:
    assert "base offset" in lint_wgmma_descriptor(descriptor(0, 16, 128, 1, 0), "K")[0]
    crossing = lint_wgmma_descriptor(descriptor(48, 16, 512, 0, 2), "K")
    assert "64-byte swizzle line" in crossing[0]
    assert lint_wgmma_descriptor(descriptor(48, 16, 512, 0, 2), "MN") == []
