"""ldmatrix, stmatrix and movmatrix as permutations of bytes.

PTX ISA 9.0, 9.7.14.5.15 to 9.7.14.5.17. Lane i of the warp gives the address of memory row i, so
the functions take and return the bytes of rows; a fragment's lane is 4 * g + t as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.matrices.packing import expand_padded, unpack

__all__ = ["LOADS", "STORES", "Move", "load", "store", "transpose"]

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Move:
    """One form of ldmatrix or stmatrix.

    Attributes:
        rows: memory rows, and so addresses, per matrix.
        row_bytes: bytes of a memory row with its padding, and the alignment of its address.
        registers: 32-bit registers per matrix.
        counts: values of .num: 1, 2, 4.
        permute: bytes [M, rows, row_bytes] to words [M, registers, 8, 4] (g, t) for loads; the
            reverse for stores.
        padding: bytes at the end of a row that hold nothing.
    """

    rows: int
    row_bytes: int
    registers: int
    counts: tuple[int, ...]
    permute: Callable[[Any], Any]
    padding: int = 0


def load(move: Move, rows: Bytes) -> Words:
    """Memory rows [W, rows * num, row_bytes] to fragments [W, 32, registers * num]."""
    warps = len(rows)
    words = move.permute(np.ascontiguousarray(rows).reshape(-1, move.rows, move.row_bytes))
    return np.ascontiguousarray(words.reshape(warps, -1, 32).swapaxes(1, 2))


def store(move: Move, fragments: Words) -> Bytes:
    """Fragments [W, 32, registers * num] to memory rows [W, rows * num, row_bytes]."""
    warps = len(fragments)
    words = np.ascontiguousarray(fragments.swapaxes(1, 2), np.uint32)
    rows: Bytes = move.permute(words.reshape(-1, move.registers, 8, 4))
    return rows.reshape(warps, -1, move.row_bytes)


def transpose(fragments: Words) -> Words:
    """movmatrix.m8n8.trans.b16: the fragments [W, 32, 1] of the transposed matrix."""
    return load(LOADS["m8n8", "b16", True], store(STORES["m8n8", "b16", False], fragments))


# ------------------------------------------------------------------------------------------ loads


def _words(rows: Bytes) -> Words:
    """Lane 4r + c takes word c of row r."""
    return np.ascontiguousarray(rows).view(np.uint32)[:, None]


def _words_of_transposed_halves(rows: Bytes) -> Words:
    return _words(np.ascontiguousarray(rows.view(np.uint16).swapaxes(1, 2)).view(np.uint8))


def _words_of_transposed_bytes(rows: Bytes) -> Words:
    """Register 0 has columns 0 to 7 of memory, register 1 columns 8 to 15; four rows in each."""
    words = np.ascontiguousarray(rows.swapaxes(1, 2)).view(np.uint32)
    return words.reshape(-1, 2, 8, 4)


def _unpadded(bits: int, then: Callable[[Bytes], Words]) -> Callable[[Bytes], Words]:
    return lambda rows: then(expand_padded(rows, bits))


def _words_of_signed_nibbles(rows: Bytes) -> Words:
    """Rows are 8 bytes, without padding, and lie at any multiple of 8 (measured on an H200)."""
    nibbles = unpack(rows, 4)
    return _words((nibbles ^ 8) - np.uint8(8))


#: ldmatrix by shape, format (".type" or ".dst.src") and .trans.
LOADS: dict[tuple[str, str, bool], Move] = {
    ("m8n8", "b16", False): Move(8, 16, 1, (1, 2, 4), _words),
    ("m8n8", "b16", True): Move(8, 16, 1, (1, 2, 4), _words_of_transposed_halves),
    ("m16n16", "b8", True): Move(16, 16, 2, (1, 2), _words_of_transposed_bytes),
    ("m8n16", "s8.s4", False): Move(8, 8, 1, (1, 2, 4), _words_of_signed_nibbles),
    **{
        (shape, f"b8x16.b{bits}x16_p{padding}", transposed): Move(
            rows, 16, rows // 8, counts, _unpadded(bits, then), padding // 8
        )
        for bits, padding in ((6, 32), (4, 64))
        for shape, transposed, rows, counts, then in (
            ("m8n16", False, 8, (1, 2, 4), _words),
            ("m16n16", True, 16, (1, 2), _words_of_transposed_bytes),
        )
    },
}

# ----------------------------------------------------------------------------------------- stores


def _rows(words: Words) -> Bytes:
    return np.ascontiguousarray(words[:, 0]).view(np.uint8)


def _transposed_halves(words: Words) -> Bytes:
    halves = _rows(words).view(np.uint16)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).view(np.uint8)


def _transposed_bytes(words: Words) -> Bytes:
    """Bytes 0 and 1 are row g of the matrix, 2 and 3 row g + 8; memory rows are its columns."""
    octets = np.ascontiguousarray(words[:, 0]).view(np.uint8).reshape(-1, 8, 4, 2, 2)
    return np.transpose(octets, (0, 2, 4, 3, 1)).reshape(-1, 8, 16)


#: stmatrix by shape, type and .trans.
STORES: dict[tuple[str, str, bool], Move] = {
    ("m8n8", "b16", False): Move(8, 16, 1, (1, 2, 4), _rows),
    ("m8n8", "b16", True): Move(8, 16, 1, (1, 2, 4), _transposed_halves),
    ("m16n8", "b8", True): Move(8, 16, 1, (1, 2, 4), _transposed_bytes),
}
