"""Global (and constant) memory: copies of the caller's buffers, each with its own bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from humming_sim.machine.frame import Frame


__all__ = ["BASE", "Allocation", "GlobalMemory"]

#: Address of the first buffer. Far from the shared and local windows, so that a mixed-up address
#: is out of bounds.
BASE = 0x7F00_0000_0000

_GUARD = 4096
_ALIGN = 256


@dataclass(frozen=True)
class Allocation:
    """One buffer: its first address, its bytes, and whether the kernel may write it."""

    name: str
    start: int
    size: int
    writable: bool = True


class GlobalMemory:
    """Bytes of all buffers in one array, with unmapped gaps between them."""

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self._next = BASE
        self._bytes = np.zeros(0, np.uint8)
        self._starts = np.zeros(0, np.int64)
        self._ends = np.zeros(0, np.int64)
        self._views: dict[int, npt.NDArray[Any]] = {}

    def add(self, name: str, size: int, writable: bool = True) -> Allocation:
        """Reserve addresses for a buffer of `size` bytes; :meth:`seal` makes them real."""
        allocation = Allocation(name, self._next, size, writable)
        self.allocations.append(allocation)
        self._next += -(-(size + _GUARD) // _ALIGN) * _ALIGN
        return allocation

    def seal(self) -> None:
        """Make the memory; no buffer can be added afterwards."""
        self._bytes = np.zeros(self._next - BASE, np.uint8)
        self._starts = np.array([a.start for a in self.allocations], np.int64)
        self._ends = np.array([a.start + a.size for a in self.allocations], np.int64)
        for width in (1, 2, 4, 8):
            self._views[width] = self._bytes.view(f"u{width}")
        for width in (16, 32):
            self._views[width] = self._bytes.view(f"V{width}")

    def bytes_of(self, allocation: Allocation) -> npt.NDArray[np.uint8]:
        """The bytes of a buffer, as a view."""
        start = allocation.start - BASE
        return self._bytes[start : start + allocation.size]

    def find(self, address: int) -> Allocation | None:
        """The buffer that an address lies in."""
        k = int(np.searchsorted(self._starts, address, "right")) - 1
        if k >= 0 and address < self._ends[k]:
            return self.allocations[k]
        return None

    def locate(
        self, frame: Frame, addresses: npt.NDArray[np.int64], width: int, write: bool = False
    ) -> npt.NDArray[np.int64]:
        """Offsets into the bytes of checked addresses [n] of `width` bytes each."""
        machine = frame.machine
        if width > 1 and (addresses & (width - 1)).any():
            index = int(np.argmax(addresses & (width - 1) != 0))
            machine.report(
                frame,
                "alignment",
                f"a {width}-byte access needs an address that {width} divides",
                index=index,
                space="global",
                address=int(addresses[index]),
            )
        low, high = int(addresses.min()), int(addresses.max())
        k = int(np.searchsorted(self._starts, low, "right")) - 1
        if k < 0 or high + width > self._ends[k]:
            self._check_each(frame, addresses, width)
        elif write and not self.allocations[k].writable:
            machine.report(
                frame,
                "bounds",
                f"buffer {self.allocations[k].name} is read-only",
                index=int(addresses.argmin()),
                space="global",
                address=low,
            )
        return addresses - BASE

    def _check_each(self, frame: Frame, addresses: npt.NDArray[np.int64], width: int) -> None:
        k = np.searchsorted(self._starts, addresses, "right") - 1
        bad = (k < 0) | (addresses + width > self._ends[np.maximum(k, 0)])
        if bad.any():
            index = int(np.argmax(bad))
            frame.machine.report(
                frame,
                "bounds",
                self.describe(int(addresses[index]), width),
                index=index,
                space="global",
                address=int(addresses[index]),
            )

    def describe(self, address: int, width: int) -> str:
        """A sentence on where an address outside of every buffer lies."""
        k = int(np.searchsorted(self._starts, address, "right")) - 1
        if k < 0:
            return f"{width} bytes at an address below every buffer"
        near = self.allocations[k]
        return (
            f"{width} bytes at byte {address - near.start} of buffer {near.name}, "
            f"which has {near.size} bytes"
        )

    def load(self, frame: Frame, addresses: npt.NDArray[np.int64], width: int) -> npt.NDArray[Any]:
        """`width` (1 to 32) bytes at each address [n], as uint or void of that width."""
        offsets = self.locate(frame, addresses, width)
        out: npt.NDArray[Any] = self._views[width][offsets // width]
        return out

    def store(
        self, frame: Frame, addresses: npt.NDArray[np.int64], values: npt.NDArray[Any]
    ) -> None:
        """Store values [n] (of 1 to 32 bytes each); of two at one address the later lane wins."""
        width = values.dtype.itemsize
        offsets = self.locate(frame, addresses, width, write=True)
        self._views[width][offsets // width] = values
        frame.machine.progress += 1

    def view(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """All bytes as this type; index it with offsets from :meth:`locate`."""
        return self._bytes.view(dtype)
