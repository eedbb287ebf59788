"""Which bytes a tensor copy moves: tensor map and coordinates -> global and shared addresses.

PTX ISA 9.0, 5.5.3 (tiled mode, bounding boxes, gather4 and scatter4), 5.5.1.1 (padding of sub-byte
types) and 5.5.7 (swizzling). A load fills what lies outside of the tensor; a store or reduction
leaves it alone, but only in steps of 16 bytes: where a tensor row ends inside of 16 bytes, an H200
writes all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.numbers.rounding import encode
from humming_sim.tma.elements import GROUP, OOB_NAN, Element
from humming_sim.tma.modes import Fill, Swizzle, swizzled
from humming_sim.tma.tensor_map import TensorMap

__all__ = ["OUTSIDE", "Tiles", "fill_bytes", "loaded", "pack_six_bits", "tiles"]

Addresses = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Global address of a chunk that lies outside of the tensor.
OUTSIDE = -1

# Sixteen elements are 8 or 12 bytes; memory moves powers of two.
_PADDED_CHUNK = {Element._16U4_ALIGN16B: 8, Element._16U6_ALIGN16B: 4}

#: Coordinates of gather4 and scatter4: a column and this many rows.
GATHERED_ROWS = 4


@dataclass(frozen=True)
class Tiles:
    """Addresses of the chunks of n tiles, m chunks each, in the order of the box.

    Attributes:
        chunk: bytes of one chunk in global memory, a power of two up to 16 that divides its
            address. A chunk is inside of the tensor or outside.
        shared_chunk: bytes of one chunk in shared memory: `chunk`, but 16 in stores of six-bit
            elements, where each 16 shared bytes become three chunks of 4 (:func:`pack_six_bits`).
        global_addresses: int64 [n, m], byte address of each chunk, OUTSIDE where out of bounds.
        shared_addresses: int64 [n, m], or [n, m / 3] in those stores, swizzled.
    """

    chunk: int
    shared_chunk: int
    global_addresses: Addresses
    shared_addresses: Addresses


def tiles(
    tensor_map: TensorMap,
    coordinates: Addresses,
    shared: Addresses,
    *,
    gathered: bool = False,
    store: bool = False,
) -> Tiles:
    """The addresses that n copies with one map touch.

    Args:
        tensor_map: the map.
        coordinates: int64 [n, rank]; with `gathered` [n, 5]: one column and four rows.
        shared: int64 [n], where each tile starts in shared memory, a multiple of 128.
        gathered: ``.tile::gather4`` or ``.tile::scatter4``.
        store: from shared to global memory (a store or reduction).
    """
    end = _row_end(tensor_map, store)
    chunk = _chunk_bytes(tensor_map, coordinates[:, 0], end)
    plan = _plan(tensor_map, chunk, gathered)
    if not gathered and (coordinates >= 0).all() and (coordinates <= plan.last).all():
        first = coordinates @ plan.weights // 8
        addresses = (tensor_map.address + first)[:, None] + plan.inside
    else:
        columns = (coordinates[:, 0] * tensor_map.element.bits // 8)[:, None] + plan.columns
        rows = coordinates[:, 1:, None] if gathered else coordinates[:, None, 1:] + plan.steps
        addresses = _bounded(tensor_map, end, columns, rows)
    unpadding = tensor_map.element is Element._16U6_ALIGN16B and store
    offsets = plan.shared[::3] if unpadding else plan.shared
    return Tiles(
        chunk=chunk,
        shared_chunk=GROUP if unpadding else chunk,
        global_addresses=addresses,
        shared_addresses=swizzled(shared[:, None] + offsets, tensor_map.swizzle),
    )


def _row_end(tensor_map: TensorMap, store: bool) -> int:
    """Bytes from the start of a tensor row that a copy may touch."""
    end = tensor_map.dims[0] * tensor_map.element.bits // 8
    return -(-end // GROUP) * GROUP if store else end


def _bounded(tensor_map: TensorMap, end: int, columns: Addresses, rows: Addresses) -> Addresses:
    """Addresses of tiles that may reach out of the tensor.

    Args:
        end: bytes of a tensor row.
        columns: int64 [n, c], of each chunk of a box row, bytes from the start of a tensor row.
        rows: int64 [n, r, rank - 1], of each box row, the coordinates other than the first.
    """
    starts = tensor_map.address + rows @ np.array(tensor_map.strides, dtype=np.int64)
    addresses: Addresses = starts[:, :, None] + columns[:, None, :]
    limits = np.array(tensor_map.dims[1:], dtype=np.int64)
    bad_rows: Bools = np.any((rows < 0) | (rows >= limits), axis=2)
    bad_columns = (columns < 0) | (columns >= end)
    addresses[bad_rows[:, :, None] | bad_columns[:, None, :]] = OUTSIDE
    return addresses.reshape(len(columns), -1)


@dataclass(frozen=True)
class _Plan:
    """The part of the geometry that coordinates don't change.

    Attributes:
        columns: int64 [c], offset of each chunk of a box row in global memory, bytes.
        steps: int64 [r, rank - 1], offset of each box row, elements.
        shared: int64 [r * c], offset of each chunk in shared memory before swizzling, bytes.
        last: int64 [rank], the largest coordinates of a box inside of the tensor.
        weights: int64 [rank], distance of neighbours along each dimension, bits.
        inside: int64 [r * c], offset of each chunk from the box's start in global memory, bytes.
    """

    columns: Addresses
    steps: Addresses
    shared: Addresses
    last: Addresses
    weights: Addresses
    inside: Addresses


@lru_cache(maxsize=256)
def _plan(tensor_map: TensorMap, chunk: int, gathered: bool) -> _Plan:
    counts = (GATHERED_ROWS,) if gathered else tensor_map.counts[1:]
    columns = np.arange(0, tensor_map.row_bytes, chunk, dtype=np.int64)
    # Groups of 8 or 12 bytes of padded types lie 16 apart; of all others a group is 16 bytes.
    group = GROUP * tensor_map.row_bytes // tensor_map.padded_row_bytes
    shared_columns = columns // group * GROUP + columns % group
    rows = np.arange(math.prod(counts), dtype=np.int64)
    shared = rows[:, None] * tensor_map.shared_row_bytes + shared_columns
    grid = np.indices(counts[::-1], dtype=np.int64).reshape(len(counts), len(rows))
    apart = np.array(tensor_map.element_strides[1:], dtype=np.int64)
    steps = grid[::-1].T * apart  # dimension 1 runs fastest
    reach = np.append(tensor_map.box[0] - 1, (np.array(counts, dtype=np.int64) - 1) * apart)
    strides = np.array(tensor_map.strides, dtype=np.int64)
    return _Plan(
        columns=columns,
        steps=steps,
        shared=shared.reshape(-1),
        last=np.array(tensor_map.dims, dtype=np.int64) - 1 - reach,
        weights=np.append(np.int64(tensor_map.element.bits), strides * 8),
        inside=((steps @ strides)[:, None] + columns).reshape(-1),
    )


def _chunk_bytes(tensor_map: TensorMap, first: Addresses, end: int) -> int:
    """The largest chunk that the swizzle, the padding and the tensor's end keep in one piece.

    A box row starts at a multiple of 16 bytes of a tensor row (:func:`uses.use_problem` sees to
    that), so that only the end can fall inside of 16 bytes.
    """
    if tensor_map.element.padded:
        return _PADDED_CHUNK[tensor_map.element]
    whole = 8 if tensor_map.swizzle is Swizzle.B128_ATOM_32B_FLIP_8B else 16
    begin = first * tensor_map.element.bits // 8
    crosses = (begin < end) & (end < begin + tensor_map.row_bytes)
    return math.gcd(whole, end) if crosses.any() else whole


def fill_bytes(tensor_map: TensorMap, chunk: int) -> npt.NDArray[np.uint8]:
    """What a load writes for a chunk outside of the tensor: uint8 [chunk]."""
    if tensor_map.fill is Fill.ZERO:
        return np.zeros(chunk, dtype=np.uint8)
    pattern = np.frombuffer(OOB_NAN.to_bytes(2, "little"), dtype=np.uint8)
    return np.resize(pattern, chunk)


def loaded(tensor_map: TensorMap, data: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Data of a tile as a load writes it: rounded to TF32 if the map says so, else unchanged.

    Args:
        data: of any dtype whose bytes are elements of the map; not the filling.
    """
    if not tensor_map.element.facts.rounds:
        return data
    floats = np.ascontiguousarray(data).view(np.float32)
    return encode("tf32", floats).view(data.dtype).reshape(data.shape)


def pack_six_bits(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The low six bits of sixteen bytes, packed low bits first, as stores of six-bit elements do.

    Args:
        data: uint8 [..., 16].

    Returns:
        uint8 [..., 12].
    """
    fours = (data & 0x3F).reshape(*data.shape[:-1], 4, 4).astype(np.uint32)
    words = (fours << np.array([0, 6, 12, 18], dtype=np.uint32)).sum(axis=-1, dtype=np.uint32)
    threes = (words[..., None] >> np.array([0, 8, 16], dtype=np.uint32)).astype(np.uint8)
    packed: npt.NDArray[np.uint8] = threes.reshape(*data.shape[:-1], 12)
    return packed
