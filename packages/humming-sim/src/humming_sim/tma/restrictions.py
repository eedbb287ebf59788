"""The restrictions of ``cuTensorMapEncodeTiled``, each as a function that names its violations.

Facts from the driver's documentation (CUDA 13.0, tensor map object management) and PTX ISA 9.0,
9.7.9.27.1.1 (restrictions on tensor copies). The encoder of driver 580 refuses the same on an H200.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from humming_sim.tma.elements import PACKED, Element
from humming_sim.tma.modes import Fill, Interleave, Swizzle

if TYPE_CHECKING:
    from humming_sim.tma.tensor_map import TensorMap

__all__ = ["problems"]

#: Along dimension 0, in elements, of types that shared memory pads: box, and divisor of the tensor.
PADDED_BOX = 128

#: Largest box, bytes: the shared memory of a multiprocessor (found by trying on an H200).
LARGEST_BOX = 228 * 1024

#: Swizzles that a padded type can have. 64-byte atoms only for stores: see uses.py.
PADDED_SWIZZLES = {
    Element._16U4_ALIGN16B: (Swizzle.NONE, Swizzle.B128, Swizzle.B128_ATOM_32B),
    Element._16U6_ALIGN16B: (
        Swizzle.NONE,
        Swizzle.B128,
        Swizzle.B128_ATOM_32B,
        Swizzle.B128_ATOM_64B,
    ),
}


def problems(tensor_map: TensorMap) -> list[str]:
    """What the driver would refuse in `tensor_map`, each with what would be accepted."""
    shape = list(_shape(tensor_map))
    if shape:
        return shape  # the other checks count on matching lengths
    return [text for check in _CHECKS for text in check(tensor_map)]


def _shape(m: TensorMap) -> Iterator[str]:
    if not 1 <= len(m.dims) <= 5:
        yield f"{len(m.dims)} dimensions, must be 1 to 5"
        return
    wanted = {"box": len(m.dims), "element_strides": len(m.dims), "strides": len(m.dims) - 1}
    for name, length in wanted.items():
        found = len(getattr(m, name))
        if found != length:
            yield f"{name} has {found} values, must be {length} for {len(m.dims)} dimensions"


def _address(m: TensorMap) -> Iterator[str]:
    unit = _unit(m)
    if m.address % unit:
        yield f"address {m.address:#x} must be a multiple of {unit} for {m.element.title}"
    if not 0 <= m.address < 2**64:
        yield f"address {m.address:#x} must be an unsigned 64-bit number"


def _dims(m: TensorMap) -> Iterator[str]:
    for axis, size in enumerate(m.dims):
        if not 1 <= size <= 2**32:
            yield f"dims[{axis}] is {size}, must be 1 to 2**32"
    divisor = PADDED_BOX if m.element.padded else 2 if m.element in PACKED else 1
    if m.dims[0] % divisor:
        yield f"dims[0] is {m.dims[0]}, must be a multiple of {divisor} for {m.element.title}"


def _strides(m: TensorMap) -> Iterator[str]:
    unit = _unit(m)
    for axis, stride in enumerate(m.strides, start=1):
        if not 0 <= stride < 2**40 or stride % unit:
            yield (
                f"the stride of dimension {axis} is {stride} bytes, must be a multiple of {unit} "
                f"below 2**40 for {m.element.title}"
            )


def _box(m: TensorMap) -> Iterator[str]:
    for axis, size in enumerate(m.box):
        if not 1 <= size <= 256:
            yield f"box[{axis}] is {size}, must be 1 to 256"
    if m.element.padded and m.box[0] != PADDED_BOX:
        yield f"box[0] is {m.box[0]}, must be {PADDED_BOX} for {m.element.title}"
    bits = m.box[0] * m.element.bits
    if bits % 128 and not m.element.padded:
        unit = 128 // m.element.bits
        yield f"box[0] is {bits / 8:g} bytes, must be a multiple of 16 ({unit} elements)"
    total = math.prod(m.box) * m.element.bits // 8
    if total > LARGEST_BOX:
        yield f"the box has {total} bytes, must be at most {LARGEST_BOX}"


def _element_strides(m: TensorMap) -> Iterator[str]:
    for axis, step in enumerate(m.element_strides):
        if not 1 <= step <= 8:
            yield f"element_strides[{axis}] is {step}, must be 1 to 8"


def _interleave(m: TensorMap) -> Iterator[str]:
    if m.interleave != Interleave.NONE:
        yield f"interleave {m.interleave.name} is not simulated, must be NONE"


def _swizzle(m: TensorMap) -> Iterator[str]:
    allowed = PADDED_SWIZZLES.get(m.element, tuple(Swizzle))
    if m.swizzle not in allowed:
        names = ", ".join(swizzle.name for swizzle in allowed)
        yield f"swizzle {m.swizzle.name} with {m.element.title}, must be one of {names}"
    elif m.swizzle != Swizzle.NONE and m.padded_row_bytes > m.swizzle.span:
        yield (
            f"box[0] takes {m.padded_row_bytes} bytes of shared memory, must be at most "
            f"{m.swizzle.span} with swizzle {m.swizzle.name}"
        )


def _fill(m: TensorMap) -> Iterator[str]:
    if m.fill == Fill.NAN and not m.element.facts.floating:
        yield f"fill NAN with {m.element.title}, must be ZERO: only whole floats can be NaN"


def _unit(m: TensorMap) -> int:
    """What addresses and strides must be multiples of, bytes."""
    return 32 if m.element.padded else 16


_CHECKS: tuple[Callable[[TensorMap], Iterator[str]], ...] = (
    _address,
    _dims,
    _strides,
    _box,
    _element_strides,
    _interleave,
    _swizzle,
    _fill,
)
