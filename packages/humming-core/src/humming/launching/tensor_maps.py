"""Tensor maps: what the driver would refuse, said before it is asked, and their 128 bytes.

Facts from the documentation of ``cuTensorMapEncodeTiled`` (CUDA 13.0).
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from humming.backend import TensorMap
from humming.errors import ConfigError, LaunchError
from humming.launching.driver import Driver

__all__ = ["ELEMENTS", "SWIZZLES", "Element", "MapEncoder", "Swizzle", "problems"]


@dataclass(frozen=True)
class Element:
    """An element type.

    Attributes:
        bits: of one element in global memory.
        floating: whether NaN can fill.
        padded: bits that one takes in shared memory, if these are more; such a box has 128
            elements along dimension 0.
        swizzles: those that it can have; empty for all.
    """

    bits: int
    floating: bool = False
    padded: int = 0
    swizzles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Swizzle:
    """The driver's name of a swizzle, and the widest box row in bytes; 0 for no limit."""

    driver: str
    span: int


_PADDED = ("none", "b128", "b128_atom_32b")

#: The driver's ``CUtensorMapDataType``, in lower case.
ELEMENTS = {
    "uint8": Element(8),
    "uint16": Element(16),
    "uint32": Element(32),
    "int32": Element(32),
    "uint64": Element(64),
    "int64": Element(64),
    "float16": Element(16, floating=True),
    "float32": Element(32, floating=True),
    "float64": Element(64, floating=True),
    "bfloat16": Element(16, floating=True),
    "float32_ftz": Element(32, floating=True),
    "tfloat32": Element(32, floating=True),
    "tfloat32_ftz": Element(32, floating=True),
    "16u4_align8b": Element(4),
    "16u4_align16b": Element(4, padded=8, swizzles=_PADDED),
    "16u6_align16b": Element(6, padded=8, swizzles=(*_PADDED, "b128_atom_64b")),
}

SWIZZLES = {
    "none": Swizzle("NONE", 0),
    "b32": Swizzle("32B", 32),
    "b64": Swizzle("64B", 64),
    "b128": Swizzle("128B", 128),
    "b128_atom_32b": Swizzle("128B_ATOM_32B", 128),
    "b128_atom_32b_flip_8b": Swizzle("128B_ATOM_32B_FLIP_8B", 128),
    "b128_atom_64b": Swizzle("128B_ATOM_64B", 128),
}
_FILLS = {"zero": "NONE", "nan": "NAN_REQUEST_ZERO_FMA"}
_L2_BYTES = {0: "NONE", 64: "L2_64B", 128: "L2_128B", 256: "L2_256B"}

_PADDED_BOX = 128
_LARGEST_BOX = 228 * 1024  # bytes: found by trying


def problems(description: TensorMap, address: int) -> list[str]:
    """What the driver would refuse in a map of a tensor at `address`, and what it would accept."""
    names = list(_names(description))
    if names:
        return names  # the other checks need rows and matching lengths
    return [*_tensor(description, address), *_box(description)]


def _names(m: TensorMap) -> Iterator[str]:
    for field, value, allowed in (
        ("element", m.element, ELEMENTS),
        ("swizzle", m.swizzle, SWIZZLES),
        ("fill", m.fill, _FILLS),
        ("l2_bytes", m.l2_bytes, _L2_BYTES),
    ):
        if value not in allowed:
            yield f"{field} {value!r}, must be one of {', '.join(map(str, allowed))}"
    rank = len(m.dims)
    if not 1 <= rank <= 5:
        yield f"{rank} dimensions, must be 1 to 5"
    elif len(m.box) != rank or len(m.strides) != rank - 1:
        yield (
            f"{len(m.box)} box sizes and {len(m.strides)} strides, must be {rank} and {rank - 1} "
            f"for {rank} dimensions"
        )


def _tensor(m: TensorMap, address: int) -> Iterator[str]:
    element = ELEMENTS[m.element]
    unit = _unit(m)
    if address % unit:
        yield f"address {address:#x}, must be a multiple of {unit} for {m.element}"
    for axis, size in enumerate(m.dims):
        if not 1 <= size <= 2**32:
            yield f"dims[{axis}] {size}, must be 1 to 2**32"
    divisor = _PADDED_BOX if element.padded else 2 if element.bits < 8 else 1
    if m.dims[0] % divisor:
        yield f"dims[0] {m.dims[0]}, must be a multiple of {divisor} for {m.element}"
    for axis, stride in enumerate(m.strides, start=1):
        if not 0 <= stride < 2**40 or stride % unit:
            yield f"stride {stride} of dimension {axis}, must be a multiple of {unit} below 2**40"
    if m.fill == "nan" and not element.floating:
        yield f"fill nan, must be zero for {m.element}"


def _box(m: TensorMap) -> Iterator[str]:
    element, swizzle = ELEMENTS[m.element], SWIZZLES[m.swizzle]
    for axis, size in enumerate(m.box):
        if not 1 <= size <= 256:
            yield f"box[{axis}] {size}, must be 1 to 256"
    bits = m.box[0] * element.bits
    if element.padded and m.box[0] != _PADDED_BOX:
        yield f"box[0] {m.box[0]}, must be {_PADDED_BOX} for {m.element}"
    elif bits % 128:
        yield f"box[0] has {bits / 8:g} bytes, must be a multiple of 16"
    total = math.prod(m.box) * element.bits // 8
    if total > _LARGEST_BOX:
        yield f"the box has {total} bytes, must be at most {_LARGEST_BOX}"
    if element.swizzles and m.swizzle not in element.swizzles:
        yield f"swizzle {m.swizzle}, must be one of {', '.join(element.swizzles)} for {m.element}"
    row = m.box[0] * (element.padded or element.bits) // 8
    if swizzle.span and row > swizzle.span:
        yield f"box[0] takes {row} bytes, must be at most {swizzle.span} with swizzle {m.swizzle}"


def _unit(m: TensorMap) -> int:
    return 32 if ELEMENTS[m.element].padded else 16


class MapEncoder:
    """Encodes tensor maps with the driver and keeps the latest ones."""

    def __init__(self, driver: Driver, kept: int = 4096) -> None:
        self._driver = driver
        #: (description, address) to the map as sixteen 64-bit words; a hit costs no driver call.
        self.encode = lru_cache(maxsize=kept)(self._encode)
        self._spelled = lru_cache(maxsize=kept)(self._spell)

    def _encode(self, description: TensorMap, address: int) -> tuple[int, ...]:
        unit, before, after = self._spelled(description)
        if address % unit:
            raise ConfigError("tensor map", description, problems(description, address)[0])
        status, encoded = self._driver.api.cuTensorMapEncodeTiled(*before, address, *after)
        if status:
            raise LaunchError(
                "tensor map",
                repr(description),
                f"{self._driver.meaning(status)}; it keeps all rules, so the device may lack "
                f"{description.element} or {description.swizzle}",
            )
        # The bindings' own list of words takes longer than the driver.
        return struct.unpack("<16Q", ctypes.string_at(encoded.getPtr(), 128))

    def _spell(self, m: TensorMap) -> tuple[int, tuple[Any, ...], tuple[Any, ...]]:
        """What addresses are multiples of, and the driver's arguments before and after one."""
        found = problems(m, 0)
        if found:
            raise ConfigError("tensor map", m, "; ".join(found))
        api = self._driver.api

        def enum(kind: str, prefix: str, name: str) -> Any:
            return getattr(getattr(api, kind), f"CU_TENSOR_MAP_{prefix}_{name}")

        return (
            _unit(m),
            (enum("CUtensorMapDataType", "DATA_TYPE", m.element.upper()), len(m.dims)),
            (
                [api.cuuint64_t(size) for size in m.dims],
                # One dimension has no stride, yet the driver refuses an array of none.
                [api.cuuint64_t(stride) for stride in m.strides or (0,)],
                [api.cuuint32_t(size) for size in m.box],
                [api.cuuint32_t(1) for _ in m.dims],
                enum("CUtensorMapInterleave", "INTERLEAVE", "NONE"),
                enum("CUtensorMapSwizzle", "SWIZZLE", SWIZZLES[m.swizzle].driver),
                enum("CUtensorMapL2promotion", "L2_PROMOTION", _L2_BYTES[m.l2_bytes]),
                enum("CUtensorMapFloatOOBfill", "FLOAT_OOB_FILL", _FILLS[m.fill]),
            ),
        )
