"""Where a matrix operand lies in shared memory: canonical layouts, swizzles, wgmma descriptors.

Facts: PTX ISA 9.0, 9.7.15.5.1.2 (wgmma shared memory matrix layout, strides, canonical layouts and
matrix descriptor format); tcgen05 (9.7.16.3 and 9.7.16.4) has the same layouts under another
descriptor, so the layout here knows nothing of how a descriptor encodes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.matrices.packing import unpack

__all__ = [
    "SWIZZLES",
    "UNIT",
    "Layout",
    "Swizzle",
    "canonical_addresses",
    "canonical_offsets",
    "decode_wgmma_descriptor",
    "elements",
    "lint_wgmma_descriptor",
    "swizzled",
]

#: Bytes that an operand moves together: one address of this module names so many.
UNIT = 16


@dataclass(frozen=True)
class Swizzle:
    """One swizzle mode.

    Address bits [7, 7 + width) are XORed into bits [atom, atom + width).

    Attributes:
        span: bytes of the leading dimension that one line of the pattern holds.
        width: address bits that are changed.
        atom: log2 of the bytes that stay together.
        group: values of k in one MN-major pattern.
    """

    span: int
    width: int
    atom: int = 4
    group: int = 8

    @property
    def period(self) -> int:
        """Bytes after which the pattern repeats."""
        return 128 << self.width if self.width else UNIT


#: Swizzle modes by name. "128B_32B" is tcgen05's 128-byte swizzle of 32-byte atoms, MN-major only.
SWIZZLES = {
    "none": Swizzle(span=16, width=0),
    "32B": Swizzle(span=32, width=1),
    "64B": Swizzle(span=64, width=2),
    "128B": Swizzle(span=128, width=3),
    "128B_32B": Swizzle(span=128, width=2, atom=5, group=4),
}


@dataclass(frozen=True)
class Layout:
    """A canonical layout without its start address.

    Attributes:
        swizzle: a key of :data:`SWIZZLES`.
        major: "K" (a row's elements are neighbours) or "MN" (a k's elements are).
        leading: leading dimension byte offset. K-major: from one 16-byte column to the next if
            there is no swizzle, else unused. MN-major: from one swizzle span of rows to the next;
            without swizzle from one group of 8 k to the next.
        stride: stride dimension byte offset. K-major: from 8 rows to the next 8. MN-major: from 8
            k to the next 8 (4 with 32-byte atoms); without swizzle from 16 bytes of rows to the
            next.
        base_offset: (address of the swizzle pattern's first line >> 7) & 7.
    """

    swizzle: str
    major: str
    leading: int
    stride: int
    base_offset: int = 0


def canonical_addresses(
    start: int | npt.NDArray[np.int64], layout: Layout, rows: int, k: int, element_bits: int
) -> npt.NDArray[np.int64]:
    """Byte address of every 16-byte unit of an operand of `rows` (M or N) by `k` elements.

    Args:
        start: start addresses, any shape [...].
        layout: how the units lie after it.
        rows: rows of A or columns of B.
        k: elements of a row.
        element_bits: bits that one element takes in shared memory (8 for the padded 4-bit and
            6-bit elements of kind::f8f6f4, of which 16 take 16 bytes).

    Returns:
        int64: K-major [..., rows, k * element_bits / 128], MN-major [..., k, rows * element_bits /
        128]; :func:`elements` turns the bytes there into a matrix.

    Raises:
        ValueError: the layout is not defined for this operand.
    """
    offsets = canonical_offsets(layout, rows, k, element_bits)
    linear = np.asarray(start, np.int64)[..., None, None] + offsets
    return swizzled(linear, layout.swizzle, layout.base_offset)


@lru_cache(maxsize=512)
def canonical_offsets(
    layout: Layout, rows: int, k: int, element_bits: int
) -> npt.NDArray[np.int64]:
    """Byte offset of every unit from the start address before swizzling; read-only.

    See :func:`canonical_addresses` for arguments, shape and errors.
    """
    swizzle = SWIZZLES[layout.swizzle]
    along = k if layout.major == "K" else rows
    if along * element_bits % (8 * UNIT):
        raise ValueError(
            f"{along} elements of {element_bits} bits are no whole number of 16-byte units"
        )
    unit = np.arange(along * element_bits // (8 * UNIT))
    line = np.arange(rows if layout.major == "K" else k)[:, None]
    if layout.major == "K":
        if swizzle.atom != 4:
            raise ValueError("a swizzle of 32-byte atoms is defined for MN-major operands only")
        step = layout.leading if swizzle.width == 0 else UNIT
        offsets = line % 8 * swizzle.span + line // 8 * layout.stride + unit * step
    elif swizzle.width == 0:
        offsets = line % 8 * UNIT + line // 8 * layout.leading + unit * layout.stride
    else:
        units = swizzle.span // UNIT
        within = line % swizzle.group * swizzle.span + unit % units * UNIT
        offsets = within + line // swizzle.group * layout.stride + unit // units * layout.leading
    offsets = offsets.astype(np.int64)
    offsets.setflags(write=False)
    return offsets


def swizzled(
    addresses: npt.NDArray[np.int64], swizzle: str, base_offset: int = 0
) -> npt.NDArray[np.int64]:
    """Addresses as the swizzle mode permutes them; the pattern is fixed to shared addresses.

    A base offset moves the pattern's first line: line (address >> 7) - base_offset. The manual only
    says how to compute it; that it is subtracted was measured on an H200, with every base offset,
    swizzle and several misaligned starts.
    """
    mode = SWIZZLES[swizzle]
    if mode.width == 0:
        return addresses
    lines = (addresses >> 7) - base_offset & (1 << mode.width) - 1
    return addresses ^ lines << mode.atom


def elements(units: npt.NDArray[np.uint8], element_bits: int, major: str) -> npt.NDArray[Any]:
    """Element bits of an operand from the bytes at its :func:`canonical_addresses`.

    Args:
        units: bytes [..., lines, units, 16].
        element_bits: 1, 4, 8, 16, 32 or 64.
        major: "K" or "MN".

    Returns:
        unsigned integers [..., rows, k].
    """
    flat = np.ascontiguousarray(units).reshape(*units.shape[:-2], -1)
    lines = unpack(flat, element_bits)
    return lines if major == "K" else np.swapaxes(lines, -1, -2)


# ------------------------------------------------------------------------------ wgmma descriptors

_WGMMA_SWIZZLES = ("none", "128B", "64B", "32B")
_WGMMA_RESERVED = ((14, 15), (30, 31), (46, 48), (52, 61))


def _field(value: int, low: int, width: int) -> int:
    return value >> low & (1 << width) - 1


@lru_cache(maxsize=4096)
def decode_wgmma_descriptor(value: int, major: str) -> tuple[int, Layout]:
    """Start address and layout of a 64-bit wgmma matrix descriptor (PTX ISA 9.0, 9.7.15.5.1.2.2).

    `major` comes from the instruction's transpose immediates.
    """
    layout = Layout(
        swizzle=_WGMMA_SWIZZLES[_field(value, 62, 2)],
        major=major,
        leading=_field(value, 16, 14) << 4,
        stride=_field(value, 32, 14) << 4,
        base_offset=_field(value, 49, 3),
    )
    return _field(value, 0, 14) << 4, layout


def lint_wgmma_descriptor(value: int, major: str, k_bytes: int = 32) -> list[str]:
    """What is wrong with a wgmma matrix descriptor, a sentence each.

    Args:
        value: the descriptor.
        major: "K" or "MN".
        k_bytes: bytes of a K-major row that the instruction reads.
    """
    messages = [
        f"descriptor bits {low}-{high} are reserved, expected 0"
        for low, high in _WGMMA_RESERVED
        if _field(value, low, high - low + 1)
    ]
    start, layout = decode_wgmma_descriptor(value, major)
    span = SWIZZLES[layout.swizzle].span
    if layout.swizzle == "none" and layout.base_offset:
        messages.append("a base offset has no meaning without swizzle, expected 0")
    if major == "K" and layout.swizzle != "none" and start % span + k_bytes > span:
        messages.append(
            f"{k_bytes} bytes of K from byte {start % span} of a {span}-byte swizzle line leave it"
        )
    return messages
