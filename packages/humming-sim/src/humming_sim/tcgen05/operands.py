"""Bytes of A and B, in shared memory or tensor memory, as matrices of numbers.

PTX ISA 9.0, 9.7.16.10.4 (packing formats) and 9.7.16.10.1 (transpose and negate). In shared memory
the narrow types of kind::f8f6f4 and kind::mxf8f6f4 are packed, 16 elements at the start of 16
bytes; in tensor memory each has a byte of its own, with e2m1 in bits 2-5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from humming_sim.matrices.operands import elements
from humming_sim.matrices.packing import expand_padded, unpack
from humming_sim.numbers.formats import decode
from humming_sim.tcgen05.instruction_descriptor import InstructionDescriptor
from humming_sim.tcgen05.shared_descriptor import OperandUse

__all__ = ["Storage", "matrix_from_shared", "matrix_from_tensor", "padding_set", "storage"]

_WIDTH = {
    **dict.fromkeys(("e2m1", "e0m3"), 4),
    **dict.fromkeys(("e2m3", "e3m2"), 6),
    **dict.fromkeys(("e4m3", "e5m2", "e3m4", "u8", "s8"), 8),
    **dict.fromkeys(("f16", "bf16"), 16),
    "tf32": 32,
}


@dataclass(frozen=True)
class Storage:
    """How one operand of an MMA is stored.

    Attributes:
        type: element type.
        k: elements of a row.
        slot: bits of an element's place: in shared memory, and in tensor memory.
        mn_major: neighbours in shared memory are neighbours along M or N.
        negate: the sign of every element is flipped.
    """

    type: str
    k: int
    slot: int
    mn_major: bool
    negate: bool

    @property
    def width(self) -> int:
        """Bits of an element."""
        return _WIDTH[self.type]

    @property
    def padded(self) -> bool:
        """Whether the elements are narrower than their places."""
        return self.width < self.slot

    @property
    def columns(self) -> int:
        """Columns of tensor memory that a row of A takes."""
        return self.k * self.slot // 32

    def use(self, rows: int, target: int) -> OperandUse:
        """What a shared memory descriptor of this operand is used for."""
        return OperandUse(rows, self.k, self.slot, self.mn_major, target)


def storage(descriptor: InstructionDescriptor, name: str) -> Storage:
    """The operand `name` ("a" or "b") of an instruction whose descriptor has no faults.

    Raises:
        ValueError: the descriptor's type code has no meaning.
    """
    kind = getattr(descriptor, f"{name}_type")
    if kind not in _WIDTH:
        raise ValueError(f"type code of {name.upper()} has no meaning")
    packed = descriptor.k >= 64
    return Storage(
        type=kind,
        k=descriptor.k,
        slot=4 if packed else max(_WIDTH[kind], 8),
        mn_major=getattr(descriptor, f"transpose_{name}"),
        negate=getattr(descriptor, f"negate_{name}"),
    )


def matrix_from_shared(units: npt.NDArray[np.uint8], what: Storage) -> npt.NDArray[np.float64]:
    """The operand from the bytes at its :func:`~.shared_descriptor.unit_addresses`.

    Args:
        units: bytes [..., lines, units, 16]: lines are rows (K-major) or values of k (MN-major).
        what: how they are stored.

    Returns:
        float64 [..., rows, k].
    """
    bytes_ = expand_padded(units, what.width) if what.padded else units
    codes = elements(bytes_, what.slot, "MN" if what.mn_major else "K")
    return _numbers(codes, what)


def matrix_from_tensor(words: npt.NDArray[np.uint32], what: Storage) -> npt.NDArray[np.float64]:
    """A from tensor memory.

    Args:
        words: [..., rows, columns], :attr:`Storage.columns` of them.
        what: how they are stored.

    Returns:
        float64 [..., rows, k].
    """
    codes = unpack(words, what.slot)
    if what.padded and what.width == 4:
        codes = codes >> 2
    return _numbers(codes, what)


def padding_set(words: npt.NDArray[np.uint32], what: Storage) -> bool:
    """Whether A's places in tensor memory have bits set that belong to no element."""
    if not what.padded:
        return False
    used = 0x3C3C3C3C if what.width == 4 else 0x3F3F3F3F
    return bool(np.any(words & np.uint32(~used & 0xFFFFFFFF)))


def _numbers(codes: npt.NDArray[np.unsignedinteger], what: Storage) -> npt.NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        numbers = decode(what.type, codes)
    return -numbers if what.negate else numbers
