"""The 64-bit shared memory descriptor of tcgen05 and the addresses it means.

PTX ISA 9.0, 9.7.16.3 (strides, absolute leading address, canonical layouts) and 9.7.16.4.1
(Table 40). The layouts themselves are :mod:`humming_sim.matrices.operands`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from humming_sim.matrices.operands import (
    SWIZZLES,
    UNIT,
    Layout,
    canonical_addresses,
    swizzled,
)

__all__ = ["OperandUse", "SharedDescriptor", "decode", "lint", "unit_addresses"]

_SWIZZLE_CODES = {0: "none", 1: "128B_32B", 2: "128B", 4: "64B", 6: "32B"}
_RESERVED = ((14, 15), (30, 31), (53, 60))
_VERSION = 0b001
_LINE = 128


@dataclass(frozen=True)
class SharedDescriptor:
    """A decoded descriptor; addresses and offsets in bytes.

    Attributes:
        bits: as given.
        start: where the matrix begins in the CTA's shared memory.
        leading: leading dimension byte offset, or if `absolute` the address of a row's rest.
        stride: stride dimension byte offset.
        absolute: bit 52.
        base_offset: bits 49-51.
        swizzle: a key of :data:`~humming_sim.matrices.operands.SWIZZLES`; "" if the code has no
            meaning.
    """

    bits: int
    start: int
    leading: int
    stride: int
    absolute: bool
    base_offset: int
    swizzle: str


@dataclass(frozen=True)
class OperandUse:
    """What an instruction reads through a descriptor.

    Attributes:
        rows: rows of A, columns of B, or lanes of a copy; those of one CTA.
        k: elements of a row.
        bits: bits of an element's place in shared memory: 4, 8 (also padded 4-bit and 6-bit
            elements), 16 or 32.
        mn_major: neighbours in memory are neighbours along M or N.
        target: number of the target, 100 for sm_100a.
    """

    rows: int
    k: int
    bits: int
    mn_major: bool = False
    target: int = 100

    @property
    def row_bytes(self) -> int:
        """Bytes of a row along K."""
        return self.k * self.bits // 8


def _field(bits: int, low: int, width: int) -> int:
    return bits >> low & (1 << width) - 1


@lru_cache(maxsize=4096)
def decode(bits: int) -> SharedDescriptor:
    """Read the fields of a descriptor."""
    return SharedDescriptor(
        bits=bits,
        start=_field(bits, 0, 14) << 4,
        leading=_field(bits, 16, 14) << 4,
        stride=_field(bits, 32, 14) << 4,
        absolute=bool(_field(bits, 52, 1)),
        base_offset=_field(bits, 49, 3),
        swizzle=_SWIZZLE_CODES.get(_field(bits, 61, 3), ""),
    )


@lru_cache(maxsize=4096)
def lint(bits: int, use: OperandUse) -> tuple[str, ...]:
    """Sentences on everything that is wrong with a descriptor for this use, naming the bits."""
    descriptor = decode(bits)
    found = [
        f"descriptor bits {low}-{high} are reserved and must be 0"
        for low, high in _RESERVED
        if _field(bits, low, high - low + 1)
    ]
    version = _field(bits, 46, 3)
    if version != _VERSION:
        found.append(f"descriptor bits 46-48 are {version:#05b}; tcgen05 wants 0b001")
    if not descriptor.swizzle:
        found.append(f"descriptor bits 61-63: swizzle code {_field(bits, 61, 3)} has no meaning")
        return tuple(found)
    found += _lint_majorness(descriptor, use)
    found += _lint_absolute(descriptor, use) if descriptor.absolute else ()
    found += _lint_start(descriptor, use)
    return tuple(found)


def _lint_majorness(descriptor: SharedDescriptor, use: OperandUse) -> list[str]:
    wide_atoms = descriptor.swizzle == "128B_32B"
    if use.mn_major and (use.bits == 32) != wide_atoms:
        if wide_atoms:
            return ["descriptor bits 61-63: only MN-major tf32 takes the swizzle of 32-byte atoms"]
        return ["descriptor bits 61-63: MN-major tf32 takes the swizzle of 32-byte atoms only (1)"]
    if not use.mn_major and wide_atoms:
        return ["descriptor bits 61-63: a K-major operand can't have a swizzle of 32-byte atoms"]
    return []


def _lint_absolute(descriptor: SharedDescriptor, use: OperandUse) -> list[str]:
    wanted = {
        f"exists on sm_103a, not on sm_{use.target}": use.target == 103,
        f"is for rows of 48 bytes, not {use.row_bytes}": use.row_bytes == 48,
        "is for K-major operands": not use.mn_major,
        "is for the 128-byte swizzle of 16-byte atoms": descriptor.swizzle == "128B",
        "needs a base offset of 0": descriptor.base_offset == 0,
        "needs an address of a 128-byte line in bits 16-29": descriptor.leading % _LINE == 0,
    }
    return [
        f"descriptor bit 52: the absolute mode {what}" for what, fine in wanted.items() if not fine
    ]


def _lint_start(descriptor: SharedDescriptor, use: OperandUse) -> list[str]:
    mode = SWIZZLES[descriptor.swizzle]
    if not mode.width:
        if descriptor.base_offset:
            return ["descriptor bits 49-51: a base offset has no meaning without swizzle"]
        return []
    found = []
    line = descriptor.start % mode.period // mode.span
    if line and not descriptor.base_offset:
        found.append(
            f"descriptor bits 0-13: address {descriptor.start:#x} is in line {line} of the "
            f"{mode.period}-byte pattern of the {descriptor.swizzle} swizzle, and bits 49-51 (base "
            "offset) are 0"
        )
    within = descriptor.start % mode.span
    length = use.rows * use.bits // 8 if use.mn_major else use.row_bytes
    if within + min(length, mode.span) > mode.span and not descriptor.absolute:
        found.append(
            f"descriptor bits 0-13: {min(length, mode.span)} bytes from byte {within} of a "
            f"{mode.span}-byte swizzle line leave it"
        )
    return found


def unit_addresses(descriptor: SharedDescriptor, use: OperandUse) -> npt.NDArray[np.int64]:
    """Byte address of every 16-byte unit of the operand in the CTA's shared memory.

    Returns:
        int64: K-major [rows, row bytes / 16], MN-major [k, rows * bits / 128].

    Raises:
        ValueError: the descriptor has no meaning for this use; :func:`lint` says why.
    """
    if not descriptor.swizzle:
        raise ValueError("the descriptor's swizzle code has no meaning")
    if descriptor.absolute and use.mn_major:
        raise ValueError("the absolute mode is for K-major operands")
    if descriptor.absolute:
        return _split_addresses(descriptor, use)
    layout = Layout(
        swizzle=descriptor.swizzle,
        major="MN" if use.mn_major else "K",
        leading=descriptor.leading,
        stride=descriptor.stride,
        base_offset=descriptor.base_offset,
    )
    return canonical_addresses(descriptor.start, layout, use.rows, use.k, use.bits)


def _split_addresses(descriptor: SharedDescriptor, use: OperandUse) -> npt.NDArray[np.int64]:
    """Rows that go on at an absolute address where their 128-byte line ends (9.7.16.3.1.2)."""
    row = np.arange(use.rows, dtype=np.int64)[:, None]
    column = descriptor.start % _LINE + np.arange(0, use.row_bytes, UNIT)
    first = descriptor.start - descriptor.start % _LINE
    base = np.where(column < _LINE, first, descriptor.leading) + column % _LINE
    return swizzled(base + row % 8 * _LINE + row // 8 * descriptor.stride, descriptor.swizzle)
