"""The tensor map that a caller makes of one of the buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from humming_sim.errors import TensorMapError
from humming_sim.tma.elements import Element
from humming_sim.tma.modes import Fill, Swizzle
from humming_sim.tma.tensor_map import TensorMap as EncodedMap

__all__ = ["TensorMap"]


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorMap:
    """What ``cuTensorMapEncodeTiled`` would be told about a buffer; pass it as an argument.

    Attributes:
        buffer: NumPy array or CPU tensor that holds the tensor.
        element: type of the elements, a name of :class:`humming_sim.Element` in any case.
        dims: elements along each dimension, the innermost first.
        strides: bytes between neighbours along dimensions 1, 2, ...
        box: elements of the box along each dimension.
        element_strides: every how many elements one is moved; ones if left out.
        swizzle: a name of :class:`humming_sim.Swizzle`.
        fill: a name of :class:`humming_sim.Fill`.
        offset: bytes from the buffer's start to the tensor's.
    """

    buffer: Any
    element: str
    dims: tuple[int, ...]
    box: tuple[int, ...]
    strides: tuple[int, ...] = ()
    element_strides: tuple[int, ...] = ()
    swizzle: str = "none"
    fill: str = "zero"
    offset: int = 0

    def encode(self, address: int) -> bytes:
        """The 128 bytes of the map when the buffer starts at `address`.

        Raises:
            TensorMapError: if the driver would refuse it.
        """
        return EncodedMap(
            element=_member(Element, self.element),
            address=address + self.offset,
            dims=tuple(self.dims),
            strides=tuple(self.strides),
            box=tuple(self.box),
            element_strides=tuple(self.element_strides),
            swizzle=_member(Swizzle, self.swizzle),
            fill=_member(Fill, self.fill),
        ).encode()


def _member(kind: Any, name: str) -> Any:
    wanted = name.upper()
    for member in kind:
        if member.name in (wanted, f"_{wanted}", f"B{wanted}", f"SWIZZLE_{wanted}"):
            return member
    raise TensorMapError(f"{name!r} is no {kind.__name__}; there are {[m.name for m in kind]}")
