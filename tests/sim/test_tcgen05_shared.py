"""The shared memory descriptor: fields, faults, and the address of every element."""

from __future__ import annotations

import numpy as np
import pytest

from humming_sim.tcgen05.shared_descriptor import OperandUse, decode, lint, unit_addresses

CODES = {"none": 0, "128B_32B": 1, "128B": 2, "64B": 4, "32B": 6}
#: The manual's Swizzle<B, M, S>: B bits at M + S are XORed into those at M.
CUTE = {"none": (0, 4, 3), "32B": (1, 4, 3), "64B": (2, 4, 3), "128B": (3, 4, 3),
        "128B_32B": (2, 5, 2)}  # fmt: skip
SPAN = {"none": 16, "32B": 32, "64B": 64, "128B": 128, "128B_32B": 128}


def encode(start, leading=16, stride=0, swizzle="128B", **fields):
    bits = start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | CODES[swizzle] << 61
    bits |= fields.get("version", 1) << 46 | fields.get("base_offset", 0) << 49
    return bits | fields.get("absolute", 0) << 52


def cute_swizzle(mode, address):
    count, low, distance = CUTE[mode]
    return address ^ (address >> low + distance & (1 << count) - 1) << low


def element_address(bits, row, k, size, major):
    """Canonical layouts of 9.7.16.3.3, one element at a time (T elements in 16 bytes)."""
    descriptor = decode(bits)
    t = 16 // size
    span = SPAN[descriptor.swizzle] // size
    if major == "K":
        chunk = k // t * (descriptor.leading if descriptor.swizzle == "none" else 16)
        offset = row % 8 * span * size + row // 8 * descriptor.stride + chunk + k % t * size
    else:
        group = 4 if descriptor.swizzle == "128B_32B" else 8
        outer, inner = descriptor.leading, descriptor.stride
        if descriptor.swizzle == "none":
            outer, inner = inner, outer
        offset = row % span * size + row // span * outer
        offset += k % group * span * size + k // group * inner
    return cute_swizzle(descriptor.swizzle, descriptor.start + offset)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
def test_k_major_elements_are_where_the_canonical_layout_puts_them(swizzle, size):
    bits = encode(4096 + (64 if swizzle == "128B" else 0), 512, 2048, swizzle)
    use = OperandUse(24, 32 // size, size * 8)
    units = unit_addresses(decode(bits), use)
    assert units.shape == (24, 2)
    for row in range(24):
        for k in range(use.k):
            wanted = element_address(bits, row, k, size, "K")
            assert units[row, k * size // 16] + k * size % 16 == wanted


@pytest.mark.parametrize(
    ("swizzle", "size"),
    [("none", 1), ("none", 2), ("32B", 2), ("64B", 1), ("128B", 1), ("128B", 2), ("128B_32B", 4)],
)
def test_mn_major_elements_are_where_the_canonical_layout_puts_them(swizzle, size):
    bits = encode(8192, 4096, 16384, swizzle)
    use = OperandUse(128, 16, size * 8, mn_major=True)
    units = unit_addresses(decode(bits), use)
    assert units.shape == (16, 128 * size // 16)
    for row in range(0, 128, 3):
        for k in range(16):
            wanted = element_address(bits, row, k, size, "MN")
            assert units[k, row * size // 16] + row * size % 16 == wanted


@pytest.mark.parametrize(
    ("swizzle", "major", "leading", "stride", "size", "shape", "strides"),
    [  # the manual's examples: shape and strides in elements
        ("none", "K", 64, 32, 4, ((8, 2), (4, 4)), ((4, 32), (1, 64))),
        ("32B", "K", 0, 64, 4, ((8, 2), (4, 2)), ((8, 64), (1, 4))),
        ("none", "MN", 128, 64, 2, ((8, 1, 2), (8, 2)), ((1, 8, 64), (8, 128))),
        ("32B", "MN", 128, 256, 2, ((8, 2, 2), (8, 2)), ((1, 8, 128), (16, 256))),
        ("64B", "MN", 256, 512, 2, ((8, 4, 2), (8, 2)), ((1, 8, 256), (32, 512))),
    ],
)
def test_the_manuals_example_layouts_hold(swizzle, major, leading, stride, size, shape, strides):
    def offset(index, sizes, steps):
        total = 0
        for count, step in zip(sizes, steps, strict=True):
            total += index % count * step
            index //= count
        return total

    rows, k = int(np.prod(shape[0])), int(np.prod(shape[1]))
    bits = encode(0, leading * size, stride * size, swizzle)
    units = unit_addresses(decode(bits), OperandUse(rows, k, size * 8, major == "MN"))
    for row in range(rows):
        for column in range(k):
            linear = offset(row, shape[0], strides[0]) + offset(column, shape[1], strides[1])
            line, place = (row, column) if major == "K" else (column, row)
            got = units[line, place * size // 16] + place * size % 16
            assert got == cute_swizzle(swizzle, linear * size)


@pytest.mark.parametrize("start", [0, 48, 96])
def test_rows_of_48_bytes_go_on_at_the_absolute_address(start):
    bits = encode(1024 + start, 32768, 1024, absolute=1)
    use = OperandUse(128, 96, 4, target=103)
    assert lint(bits, use) == ()
    units = unit_addresses(decode(bits), use)
    assert units.shape == (128, 3)
    for row in range(128):
        for unit in range(3):
            place = start + 16 * unit
            base = 1024 + place if place < 128 else 32768 + place - 128
            assert units[row, unit] == cute_swizzle("128B", base + row % 8 * 128 + row // 8 * 1024)


def test_fields_are_bytes():
    descriptor = decode(encode(0x3FFF0, 0x1230, 0x4560, "64B", base_offset=5, absolute=1))
    assert (descriptor.start, descriptor.leading, descriptor.stride) == (0x3FFF0, 0x1230, 0x4560)
    assert (descriptor.base_offset, descriptor.absolute, descriptor.swizzle) == (5, True, "64B")


K_MAJOR = OperandUse(128, 16, 16)


@pytest.mark.parametrize("bit", [14, 15, 30, 31, *range(53, 61)])
def test_reserved_bits_are_reported(bit):
    assert lint(encode(0), K_MAJOR) == ()
    assert "reserved" in lint(encode(0) | 1 << bit, K_MAJOR)[0]


@pytest.mark.parametrize("version", [0, 2, 3, 5])
def test_a_wrong_version_is_reported(version):
    assert "bits 46-48" in lint(encode(0, version=version), K_MAJOR)[0]


@pytest.mark.parametrize("code", [3, 5, 7])
def test_swizzle_codes_without_a_meaning_are_reported_and_refused(code):
    bits = encode(0) & ~(7 << 61) | code << 61
    assert "bits 61-63" in lint(bits, K_MAJOR)[0]
    with pytest.raises(ValueError, match="no meaning"):
        unit_addresses(decode(bits), K_MAJOR)


@pytest.mark.parametrize(
    ("bits", "use", "words"),
    [
        (encode(128), K_MAJOR, "line 1 of the 1024-byte pattern"),
        (encode(64, swizzle="64B"), K_MAJOR, "line 1 of the 512-byte pattern"),
        (encode(112), K_MAJOR, "32 bytes from byte 112"),
        (encode(0, swizzle="none", base_offset=1), K_MAJOR, "no meaning without swizzle"),
        (encode(0, swizzle="128B_32B"), OperandUse(128, 16, 16, True), "only MN-major tf32"),
        (encode(0, swizzle="128B"), OperandUse(128, 8, 32, True), "MN-major tf32 takes"),
        (encode(0, swizzle="128B_32B"), OperandUse(128, 8, 32), "K-major operand can't"),
        (encode(64), OperandUse(128, 16, 16, True), "128 bytes from byte 64"),
        (encode(0, 128, absolute=1), K_MAJOR, "exists on sm_103a"),
        (encode(0, 128, absolute=1), OperandUse(8, 16, 16, target=103), "rows of 48 bytes"),
        (encode(0, 16, absolute=1), OperandUse(8, 96, 4, target=103), "128-byte line"),
        (
            encode(0, 0, swizzle="64B", absolute=1),
            OperandUse(8, 96, 4, target=103),
            "16-byte atoms",
        ),
        (encode(96), OperandUse(8, 96, 4, target=103), "48 bytes from byte 96"),
    ],
)
def test_faults_are_named_with_their_bits(bits, use, words):
    lines = lint(bits, use)
    assert [line for line in lines if words in line], lines


@pytest.mark.parametrize("start", [0, 32, 64, 96])
def test_steps_along_k_inside_a_swizzle_line_are_fine(start):
    assert lint(encode(start), K_MAJOR) == ()
