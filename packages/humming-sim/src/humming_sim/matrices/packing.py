"""Elements of 1 to 64 bits to and from the words and bytes that hold them, low bits first."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["PADDED_ROW_BYTES", "expand_padded", "pack", "unpack"]

#: Bytes that 16 packed 4-bit or 6-bit elements take in shared memory with their padding.
PADDED_ROW_BYTES = 16

_WHOLE = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def unpack(words: npt.NDArray[Any], bits: int) -> npt.NDArray[Any]:
    """Elements of `bits` (1, 4, 8, 16, 32 or 64) bits in unsigned words of at least that width.

    Args:
        words: unsigned integers [..., R].
        bits: width of an element.

    Returns:
        unsigned integers [..., R * (word bits / bits)], those of a word's low bits first; 1-bit and
        4-bit elements come as uint8.
    """
    words = np.ascontiguousarray(words)
    if bits in _WHOLE:
        return words.view(_WHOLE[bits])
    octets = words.view(np.uint8)
    if bits == 1:
        return np.unpackbits(octets, axis=-1, bitorder="little")
    if bits == 4:
        pairs = np.stack([octets & 15, octets >> 4], axis=-1)
        return pairs.reshape(*octets.shape[:-1], -1)
    raise ValueError(f"elements of {bits} bits are not packed in registers")


def pack(
    elements: npt.NDArray[Any], bits: int, word: type[np.unsignedinteger[Any]]
) -> npt.NDArray[Any]:
    """The inverse of :func:`unpack`: elements [..., E] to words [..., E * bits / word bits]."""
    if bits in _WHOLE:
        return np.ascontiguousarray(elements, _WHOLE[bits]).view(word)
    if bits == 1:
        octets = np.packbits(elements.astype(np.uint8), axis=-1, bitorder="little")
    elif bits == 4:
        octets = (elements[..., 0::2] | elements[..., 1::2] << 4).astype(np.uint8)
    else:
        raise ValueError(f"elements of {bits} bits are not packed in registers")
    return np.ascontiguousarray(octets).view(word)


def expand_padded(rows: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """Sixteen 4-bit or 6-bit elements at the start of each 16 bytes, one per byte, zero-extended.

    These are the formats b4x16_p64 and b6x16_p32 (PTX ISA 9.0, 9.7.16.9.1, optional
    decompression), which ldmatrix, tcgen05.cp and the smem operands of kind::f8f6f4 share.

    Args:
        rows: bytes [..., 16], those after the 16 elements being padding.
        bits: 4 or 6.

    Returns:
        bytes [..., 16], one element in the low bits of each.
    """
    if bits == 4:
        return unpack(np.ascontiguousarray(rows[..., :8]), 4)
    if bits == 6:
        triples = rows[..., :12].reshape(*rows.shape[:-1], 4, 3).astype(np.uint32)
        words = triples[..., 0] | triples[..., 1] << 8 | triples[..., 2] << 16
        shifts = np.arange(0, 24, 6, dtype=np.uint32)
        elements = (words[..., None] >> shifts & 63).astype(np.uint8)
        return elements.reshape(*rows.shape[:-1], 16)
    raise ValueError(f"padded rows hold 4-bit or 6-bit elements, not {bits}-bit ones")
