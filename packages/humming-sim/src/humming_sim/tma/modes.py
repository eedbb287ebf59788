"""The modes of a tensor map, numbered as the driver numbers them, and the swizzle functions.

PTX ISA 9.0, 5.5.6 (interleave) and 5.5.7 (swizzling).
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

__all__ = ["Fill", "Interleave", "L2Promotion", "Swizzle", "swizzled"]


class Interleave(IntEnum):
    """``CUtensorMapInterleave``; this simulator refuses all but NONE."""

    NONE = 0
    B16 = 1
    B32 = 2


class L2Promotion(IntEnum):
    """``CUtensorMapL2promotion``; it changes no result."""

    NONE = 0
    B64 = 1
    B128 = 2
    B256 = 3


class Fill(IntEnum):
    """``CUtensorMapFloatOOBfill``: what elements outside of the tensor read as."""

    ZERO = 0
    NAN = 1


class Swizzle(IntEnum):
    """``CUtensorMapSwizzle``."""

    NONE = 0
    B32 = 1
    B64 = 2
    B128 = 3
    B128_ATOM_32B = 4
    B128_ATOM_32B_FLIP_8B = 5
    B128_ATOM_64B = 6

    @property
    def span(self) -> int:
        """Bytes within which data is permuted, and the widest box row; 0 for NONE."""
        return (0, 32, 64, 128, 128, 128, 128)[self]

    @property
    def atom(self) -> int:
        """Bytes that stay together; 16, which is what bulk copies move, for NONE."""
        return (16, 16, 16, 16, 32, 8, 64)[self]

    @property
    def period(self) -> int:
        """Bytes after which the pattern repeats; the pattern starts at a multiple of it."""
        return (16, 256, 512, 1024, 512, 512, 256)[self]

    @property
    def mode_and_atomicity(self) -> tuple[int, int]:
        """The two values of ``tensormap.replace``: ``.swizzle_mode``, ``.swizzle_atomicity``."""
        return min(self, 3), max(self - 3, 0)

    @classmethod
    def of_mode_and_atomicity(cls, mode: int, atomicity: int) -> Swizzle:
        """The inverse of :attr:`mode_and_atomicity`.

        Raises:
            ValueError: a pair that no tensor map has, or the 96-byte mode.
        """
        if mode == 4:
            raise ValueError("96-byte swizzling (sm_103a) is not simulated; use 32, 64 or 128")
        if not 0 <= mode <= 3 or not 0 <= atomicity <= 3:
            raise ValueError(f"swizzle mode {mode} with atomicity {atomicity}: both are 0 to 3")
        if atomicity and mode != 3:
            raise ValueError(
                "only 128-byte swizzling (mode 3) has an atomicity other than 16 bytes"
            )
        return cls(mode + atomicity)


# Each pair (shift, mask): XOR the address with (address >> shift) & mask. Bits 7 and up count
# 128-byte lines of shared memory.
_XORS = {
    Swizzle.NONE: (),
    Swizzle.B32: ((3, 0x10),),
    Swizzle.B64: ((3, 0x30),),
    Swizzle.B128: ((3, 0x70),),
    Swizzle.B128_ATOM_32B: ((2, 0x60),),
    Swizzle.B128_ATOM_32B_FLIP_8B: ((2, 0x60), (4, 0x08)),
    Swizzle.B128_ATOM_64B: ((1, 0x40),),
}


def swizzled(addresses: npt.NDArray[np.int64], swizzle: Swizzle) -> npt.NDArray[np.int64]:
    """Where the bytes go that would be at `addresses` (shared, absolute) without swizzling.

    The function is its own inverse and depends on absolute address bits alone (PTX ISA 9.0, 5.5.7:
    the base offset of a pattern is the line number of its address).
    """
    result = addresses
    for shift, mask in _XORS[swizzle]:
        result = result ^ ((addresses >> shift) & mask)
    return result
