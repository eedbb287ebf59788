"""The 128 bytes of a simulated tensor map.

NVIDIA's layout is opaque, so this one is our own; only maps made here can be used here. Little
endian, without padding:

====== ===== ============================================================
offset bytes field
====== ===== ============================================================
0      8     magic, ``b"humTMap1"``
8      8     global address
16     40    dimensions of the tensor, in elements, five of 64 bits
56     32    byte strides of dimensions 1 to 4, four of 64 bits
88     10    dimensions of the box, in elements, five of 16 bits
98     5     element (traversal) strides, five of 8 bits
103    1     rank - 1
104    1     element type, the driver's code
105    1     interleave
106    1     swizzle mode, the code of ``tensormap.replace``
107    1     swizzle atomicity, likewise
108    1     L2 promotion
109    1     fill
110    18    zero
====== ===== ============================================================

Fields of dimensions beyond the rank are kept: ``tensormap.replace`` may write them before the rank.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Any

from humming_sim.errors import TensorMapError
from humming_sim.tma.elements import Element

__all__ = ["MAP_BYTES", "Fields", "pack", "replaced", "unpack"]

MAP_BYTES = 128

_MAGIC = b"humTMap1"
_LAYOUT = struct.Struct("<8sQ5Q4Q5H5B7B18s")
_EMPTY = bytes(MAP_BYTES)
_FOREIGN = (
    "these 128 bytes are no tensor map of this simulator: NVIDIA's encoding is opaque, so build "
    "the map with humming_sim.TensorMap (or on 128 zero bytes with tensormap.replace)"
)


@dataclass(frozen=True)
class Fields:
    """A tensor map as stored: unchecked, five of everything (four strides)."""

    address: int = 0
    dims: tuple[int, ...] = (0,) * 5
    strides: tuple[int, ...] = (0,) * 4
    box: tuple[int, ...] = (0,) * 5
    element_strides: tuple[int, ...] = (0,) * 5
    rank_minus_1: int = 0
    element: int = 0
    interleave: int = 0
    swizzle_mode: int = 0
    swizzle_atomicity: int = 0
    l2_promotion: int = 0
    fill: int = 0


def pack(fields: Fields) -> bytes:
    """The 128 bytes of `fields`."""
    scalars = (fields.rank_minus_1, fields.element, fields.interleave, fields.swizzle_mode)
    more = (fields.swizzle_atomicity, fields.l2_promotion, fields.fill)
    arrays = (*fields.dims, *fields.strides, *fields.box, *fields.element_strides)
    return _LAYOUT.pack(_MAGIC, fields.address, *arrays, *scalars, *more, b"")


def unpack(blob: bytes) -> Fields:
    """The fields in `blob`, unchecked.

    Raises:
        TensorMapError: the bytes are not what :func:`pack` makes.
    """
    if len(blob) != MAP_BYTES:
        raise TensorMapError(f"a tensor map has {MAP_BYTES} bytes, not {len(blob)}")
    magic, address, *values, tail = _LAYOUT.unpack(blob)
    if magic != _MAGIC or tail.strip(b"\0"):
        raise TensorMapError(_FOREIGN)
    dims, strides, box, steps = values[0:5], values[5:9], values[9:14], values[14:19]
    return Fields(address, tuple(dims), tuple(strides), tuple(box), tuple(steps), *values[19:])


# Field of tensormap.replace -> (attribute of Fields, smallest and largest value that fits).
_SCALARS = {
    "global_address": ("address", 0, 2**64 - 1),
    "rank": ("rank_minus_1", 0, 4),
    "interleave_layout": ("interleave", 0, 2),
    "swizzle_mode": ("swizzle_mode", 0, 4),
    "swizzle_atomicity": ("swizzle_atomicity", 0, 3),
    "fill_mode": ("fill", 0, 1),
}
_ARRAYS = {
    "box_dim": ("box", 1, 256),
    "global_dim": ("dims", 1, 2**32),
    "global_stride": ("strides", 0, 2**40 - 1),
    "element_stride": ("element_strides", 1, 8),
}


def replaced(blob: bytes, field: str, value: int, ordinal: int = 0) -> bytes:
    """`blob` after ``tensormap.replace.tile.<field>`` (PTX ISA 9.0, 9.7.9.28).

    128 zero bytes become a map with the one field set. Whether the fields fit each other is checked
    when the map is used, since replacing them one by one passes through states that don't.

    Args:
        blob: the map's bytes.
        field: as in the instruction, such as "global_dim".
        value: the new value, unsigned; for "rank" one less than the rank.
        ordinal: which dimension, for the four fields that have one.

    Raises:
        TensorMapError: foreign bytes, an unknown field, or a value that the field can't hold.
    """
    fields = Fields() if blob == _EMPTY else unpack(blob)
    changed: dict[str, Any]
    if field == "elemtype":
        changed = {"element": int(_element(value))}
    elif field in _SCALARS:
        name, low, high = _SCALARS[field]
        changed = {name: _within(field, value, low, high)}
    elif field in _ARRAYS:
        name, low, high = _ARRAYS[field]
        array = list(getattr(fields, name))
        if not 0 <= ordinal < len(array):
            raise TensorMapError(f"{field}: ordinal {ordinal}, must be 0 to {len(array) - 1}")
        array[ordinal] = _within(f"{field} {ordinal}", value, low, high)
        changed = {name: tuple(array)}
    else:
        raise TensorMapError(f"tensormap.replace has no field {field!r}")
    return pack(replace(fields, **changed))


def _within(field: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise TensorMapError(f"{field}: {value} does not fit, must be {low} to {high}")
    return value


def _element(code: int) -> Element:
    try:
        return Element.of_ptx_code(code)
    except ValueError as error:
        raise TensorMapError(f"elemtype: {error}") from None
