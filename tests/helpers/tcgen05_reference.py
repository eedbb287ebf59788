"""Where the manual puts elements for tcgen05, one element at a time, and what codes are worth.

Written from PTX ISA 9.0, 9.7.16.3.3 (canonical layouts), 9.7.16.10.4 (packing), 9.7.16.10.5 (data
path layouts) and 9.7.16.10.7 (scales), without a look at the simulator.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

SWIZZLE_CODES = {"none": 0, "128B_32B": 1, "128B": 2, "64B": 4, "32B": 6}
#: The manual's Swizzle<B, M, S>: B bits at M + S are XORed into those at M.
CUTE = {
    "none": (0, 4, 3),
    "32B": (1, 4, 3),
    "64B": (2, 4, 3),
    "128B": (3, 4, 3),
    "128B_32B": (2, 5, 2),
}
SPAN = {"none": 16, "32B": 32, "64B": 64, "128B": 128, "128B_32B": 128}


def shared_descriptor(start, leading=16, stride=0, swizzle="128B", **fields):
    """Table 40."""
    bits = start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | SWIZZLE_CODES[swizzle] << 61
    bits |= fields.get("version", 1) << 46 | fields.get("base_offset", 0) << 49
    return bits | fields.get("absolute", 0) << 52


def cute_swizzle(mode, address):
    """A swizzled byte address."""
    count, low, distance = CUTE[mode]
    return address ^ (address >> low + distance & (1 << count) - 1) << low


def unit_address(layout, row, k, slot):
    """Address of the 16-byte unit of an element, and the element's place in it.

    `layout` is (start, leading, stride, swizzle, major); `slot` is the bits of an element's place.
    """
    start, leading, stride, swizzle, major = layout
    per_unit, span = 128 // slot, SPAN[swizzle] * 8 // slot
    if major == "K":
        chunk = k // per_unit
        offset = row % 8 * SPAN[swizzle] + row // 8 * stride
        offset += chunk * (leading if swizzle == "none" else 16)
        return cute_swizzle(swizzle, start + offset), k % per_unit
    group = 4 if swizzle == "128B_32B" else 8
    outer, inner = (stride, leading) if swizzle == "none" else (leading, stride)
    offset = row % span // per_unit * 16 + row // span * outer
    offset += k % group * SPAN[swizzle] + k // group * inner
    return cute_swizzle(swizzle, start + offset), row % per_unit


def accumulator_cell(letter, row, column, n):
    """(CTA of the pair, lane, column) of an element of D by figures 205 to 218."""
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


# --------------------------------------------------------------------------------- element types

#: Bits, second opinion on the values, and bits of a place in shared memory, by type.
TYPES = {
    "f16": (16, np.float16, 16),
    "bf16": (16, ml_dtypes.bfloat16, 16),
    "tf32": (32, np.float32, 32),
    "e4m3": (8, ml_dtypes.float8_e4m3fn, 8),
    "e5m2": (8, ml_dtypes.float8_e5m2, 8),
    "e2m3": (6, ml_dtypes.float6_e2m3fn, 8),
    "e3m2": (6, ml_dtypes.float6_e3m2fn, 8),
    "e2m1": (4, ml_dtypes.float4_e2m1fn, 8),
    "u8": (8, np.uint8, 8),
    "s8": (8, np.int8, 8),
    "e3m4": (8, None, 8),
    "e0m3": (4, None, 4),
}
WORDS = {4: np.uint8, 6: np.uint8, 8: np.uint8, 16: np.uint16, 32: np.uint32}


def values_of(codes, name):
    """What codes are worth, in float64."""
    bits, opinion, _ = TYPES[name]
    codes = np.asarray(codes)
    if name == "e0m3":
        return np.where(codes & 8, -1.0, 1.0) * (codes & 7)
    if name == "e3m4":
        exponent, mantissa = codes >> 4 & 7, codes & 15
        size = np.where(exponent, (16 + mantissa) * 2.0 ** (exponent - 7.0), mantissa * 2.0**-6)
        return np.where(codes & 128, -size, size)
    if name == "tf32":
        codes = codes & 0xFFFFE000
    with np.errstate(invalid="ignore"):
        return codes.astype(WORDS[bits]).view(opinion).astype(np.float64)


def random_codes(rng, shape, name):
    """Finite codes of moderate size."""
    bits = TYPES[name][0]
    if name in ("f16", "bf16", "tf32"):
        numbers = rng.integers(-64, 65, shape) / 16
        opinion = np.float32 if name == "tf32" else TYPES[name][1]
        return numbers.astype(opinion).view(WORDS[bits]).astype(np.int64)
    codes = rng.integers(0, 1 << bits, shape)
    if name in ("e4m3", "e5m2", "e3m4"):
        codes &= 0xBF  # small exponents: no NaN, sums stay exact
    return codes


def store_units(memory, layout, codes, name, packed=False):
    """Write a matrix of codes [rows, k] to shared memory as a descriptor will read it."""
    bits, _, slot = TYPES[name]
    slot = 4 if packed else slot
    for (row, k), code in np.ndenumerate(codes):
        address, place = unit_address(layout, row, k, slot)
        width = bits if slot == 8 and bits < 8 else slot  # narrow elements are packed in the unit
        unit = int.from_bytes(memory[address : address + 16].tobytes(), "little")
        mask = (1 << width) - 1 << place * width
        unit = unit & ~mask | int(code) << place * width
        memory[address : address + 16] = np.frombuffer(unit.to_bytes(16, "little"), np.uint8)


def store_rows(memory, lane_of, column, codes, name, packed=False):
    """Write A to tensor memory [lanes, columns]: narrow elements in bytes, e2m1 in bits 2-5."""
    bits = TYPES[name][0]
    slot = 4 if packed else max(bits, 8)
    shift = 2 if bits == 4 and not packed else 0
    for (row, k), code in np.ndenumerate(codes):
        word, place = divmod(k * slot, 32)
        cell = memory[lane_of(row), column + word]
        mask = (1 << slot) - 1 << place
        memory[lane_of(row), column + word] = int(cell) & ~mask | int(code) << shift + place


def store_scales(memory, column, codes, scale_id=0, halves=False):
    """Write scale codes [rows, count] to tensor memory, one byte at a time.

    The tiles of 128 rows x 4 scales of one row block lie in four columns, tile after tile; a
    scale id puts the first scale at that byte of its word.
    """
    rows = len(codes)
    octets = memory.view(np.uint8).reshape(*memory.shape, 4)
    for (row, j), code in np.ndenumerate(codes):
        word, byte = divmod(scale_id + j, 4)
        half, inner = divmod(row, rows // 2) if halves else (0, row)
        partitions = (2 * half, 2 * half + 1) if halves else range(4)
        where = column + inner // 32 + word * 4 * -(-rows // 128)
        for partition in partitions:
            octets[partition * 32 + inner % 32, where, byte] = code
