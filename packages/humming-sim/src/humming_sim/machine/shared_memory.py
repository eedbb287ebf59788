"""Shared memory of all CTAs, with what has been written and through which proxy.

A shared address is ``rank << 24 | offset`` with the CTA's rank in its cluster; that is what makes
clearing bit 24 name the even CTA of a pair. Offsets start at :data:`BASE`, as on devices that keep
the first KiB for themselves.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from humming_sim.machine.frame import Frame
    from humming_sim.machine.machine import Machine

__all__ = ["BASE", "RANK_SHIFT", "SharedMemory"]

BASE = 1024
RANK_SHIFT = 24
_OFFSET_MASK = (1 << RANK_SHIFT) - 1
_POISON = 0xFF
_COMING = 0x01  # in `written`: an asynchronous copy will write it
_GRANULE = 16  # bytes that share one record of who wrote them


class SharedMemory:
    """Shared memory of a wave.

    Attributes:
        size: bytes that a CTA may address, from :data:`BASE` on.
        stride: distance in bytes between two CTAs in :attr:`data`.
        data: all bytes.
        written: 0xFF for each byte that something has written, 1 for one that an asynchronous copy
            will write, else 0.
    """

    def __init__(self, machine: Machine, size: int, track_proxy: bool) -> None:
        ctas = machine.geometry.ctas
        self.size = size
        self.stride = -(-(BASE + size) // 1024) * 1024
        self._per_cluster = machine.geometry.cluster_size
        self.data = np.full(ctas * self.stride, _POISON, np.uint8)
        self.written = np.zeros(ctas * self.stride, np.uint8)
        self._base_of = (machine.cta_of * self.stride).astype(np.int64)
        self._data = _views(self.data)
        self._written = _views(self.written)
        granules = len(self.data) // _GRANULE if track_proxy else 0
        self._stamp = np.zeros(granules, np.int64)
        self._writer = np.zeros(granules, np.int32)
        self._check_written = machine.checks("uninitialised") or machine.checks("async")
        self._check_proxy = track_proxy and machine.checks("proxy")
        self._track_proxy = track_proxy

    # ---------------------------------------------------------------------------------- addresses

    def locate(
        self, frame: Frame, addresses: npt.NDArray[np.int64], width: int, peers: bool = False
    ) -> npt.NDArray[np.int64]:
        """Offsets into :attr:`data` of the checked shared addresses [n] of a frame's threads.

        Args:
            peers: whether addresses may name other CTAs of the cluster (.shared::cluster).
        """
        if self._per_cluster == 1:  # the short way for what is nearly always right
            aligned = width == 1 or not int(np.bitwise_or.reduce(addresses)) & (width - 1)
            if aligned and addresses.min() >= BASE and addresses.max() + width <= BASE + self.size:
                flat: npt.NDArray[np.int64] = self._base_of[frame.sel] + addresses
                return flat
        return self.locate_from(frame, frame.ctas(), addresses, width, peers)

    def locate_from(
        self,
        frame: Frame,
        ctas: npt.NDArray[np.intp] | int,
        addresses: npt.NDArray[np.int64],
        width: int,
        peers: bool = False,
    ) -> npt.NDArray[np.int64]:
        """:meth:`locate` for addresses [...] as CTAs (of that shape, or one) would use them."""
        offset = addresses & _OFFSET_MASK
        bad = (offset < BASE) | (offset + width > BASE + self.size) | (addresses < 0)
        rank = addresses >> RANK_SHIFT
        own = np.asarray(ctas) % self._per_cluster
        wrong = rank >= self._per_cluster if peers else rank != own
        if (bad | wrong).any():
            self._report_bounds(frame, addresses, width, bad, peers)
        if width > 1 and (offset & (width - 1)).any():
            index = int(np.argmax((offset & (width - 1)) != 0))
            frame.machine.report(
                frame,
                "alignment",
                f"a {width}-byte access needs an address that {width} divides",
                index=index if offset.ndim == 1 and offset.size == frame.n else None,
                space="shared",
                address=int(addresses.reshape(-1)[index]),
            )
        target = ctas - own + rank
        if peers and (target != ctas).any():
            self._check_alive(frame, target)
        flat: npt.NDArray[np.int64] = target * self.stride + offset
        return flat

    def _check_alive(self, frame: Frame, target: npt.NDArray[np.intp]) -> None:
        gone = ~frame.machine.cta_alive[target]
        if gone.any():
            frame.machine.report(
                frame, "cluster", "the CTA of the cluster whose shared memory this is has exited"
            )

    def _report_bounds(
        self,
        frame: Frame,
        addresses: npt.NDArray[np.int64],
        width: int,
        bad: npt.NDArray[np.bool_],
        peers: bool,
    ) -> None:
        flat = addresses.reshape(-1)
        index = int(np.argmax(bad)) if bad.any() else 0
        address = int(flat[index])
        if bad.any():
            last = BASE + self.size
            message = (
                f"{width} bytes at shared offset {address & _OFFSET_MASK:#x}; "
                f"the CTA has [{BASE:#x}, {last:#x})"
            )
            check = "bounds"
        else:
            message, check = (
                f"the address names CTA {address >> RANK_SHIFT} of the cluster",
                "cluster",
            )
            message += (
                f", which has {self._per_cluster}" if peers else "; .shared::cta means one's own"
            )
        frame.machine.report(
            frame,
            check,
            message,
            index=index if flat.size == frame.n else None,
            space="shared",
            address=address,
        )

    # ------------------------------------------------------------------------------------ by thread

    def load(
        self, frame: Frame, addresses: npt.NDArray[np.int64], width: int, peers: bool = False
    ) -> npt.NDArray[Any]:
        """`width` (1 to 32) bytes at each address [n], as uint or void of that width."""
        index = self.locate(frame, addresses, width, peers) // width
        self.need_written(frame, index, width)
        out: npt.NDArray[Any] = self._data[width][index]
        return out

    def store(
        self,
        frame: Frame,
        addresses: npt.NDArray[np.int64],
        values: npt.NDArray[Any],
        peers: bool = False,
    ) -> None:
        """Store values [n] (of 1 to 32 bytes each) by threads; the later lane wins."""
        width = values.dtype.itemsize
        flat = self.locate(frame, addresses, width, peers)
        index = flat // width
        self._data[width][index] = values
        self._written[width][index] = _ones(width)
        frame.machine.progress += 1
        if self._track_proxy:
            self.mark_generic(frame, flat)

    def mark_generic(self, frame: Frame, flat: npt.NDArray[np.int64]) -> None:
        """Note that the frame's threads wrote these offsets [n] through the generic proxy."""
        granule = flat // _GRANULE
        self._stamp[granule] = frame.machine.now
        self._writer[granule] = frame.threads()

    def mark_object(self, flat: npt.NDArray[np.int64], width: int) -> None:
        """Note that opaque objects (mbarriers) of `width` bytes were made at these offsets [n]."""
        self._written[width][flat // width] = _ones(width)
        if self._track_proxy:
            self._stamp[flat // _GRANULE] = 0

    def need_written(self, frame: Frame, index: npt.NDArray[np.int64], width: int) -> None:
        """Report a read of bytes that nothing wrote; `index` counts units of `width` bytes."""
        if not self._check_written or not index.size:
            return
        written = self._written[width][index]
        if width > 8:
            written = np.ascontiguousarray(written).view(np.uint64).reshape(*index.shape, -1)
            missing = (written != _ones(8)).any(-1)
        else:
            missing = written != _ones(width)
        if missing.any():
            where = int(np.argmax(missing))
            flat = int(index.reshape(-1)[where]) * width
            pending = (self.written[flat : flat + width] == _COMING).any()
            frame.machine.report(
                frame,
                "async" if pending else "uninitialised",
                f"{width} bytes of shared memory that "
                + ("an unfinished asynchronous copy will write" if pending else "nothing wrote"),
                index=where if index.size == frame.n else None,
                space="shared",
                address=flat % self.stride,
                cta=flat // self.stride,
            )

    # ------------------------------------------------------------------------- asynchronous proxies

    def read_async(self, frame: Frame, flat: npt.NDArray[np.int64], width: int) -> npt.NDArray[Any]:
        """Bytes that an asynchronous unit reads at offsets from :meth:`locate_from`.

        Checks that they were written, and that a proxy fence made them visible.
        """
        index = flat // width
        self.need_written(frame, index, width)
        self.check_proxy(frame, flat)
        out: npt.NDArray[Any] = self._data[width][index]
        return out

    def write_async(
        self, frame: Frame, flat: npt.NDArray[np.int64], values: npt.NDArray[Any]
    ) -> None:
        """Bytes that an asynchronous unit writes at offsets from :meth:`locate_from`."""
        width = values.dtype.itemsize
        index = flat // width
        self._data[width][index] = values
        self._written[width][index] = _ones(width)
        frame.machine.progress += 1
        if self._track_proxy:
            self._stamp[flat // _GRANULE] = 0

    def expect_async(self, flat: npt.NDArray[np.int64], width: int) -> None:
        """An asynchronous copy was issued that will write these offsets; reads have to wait."""
        self._written[width][flat // width] = _repeated(_COMING, width)

    def check_proxy(self, frame: Frame, flat: npt.NDArray[np.int64]) -> None:
        """Report generic writes that no fence.proxy.async separates from this asynchronous access.

        A fence orders what its own thread wrote before it, and what others wrote before that
        thread last synchronised with them (PTX ISA 9.0, 9.7.13.4 membar/fence).
        """
        if not self._check_proxy:
            return
        granule = flat.reshape(-1) // _GRANULE
        stamp = self._stamp[granule]
        machine = frame.machine
        fenced = machine.fence_time[self._writer[granule]] >= stamp
        covered = machine.fence_covers[flat.reshape(-1) // self.stride] >= stamp
        bad = (stamp > 0) & ~fenced & ~covered
        if bad.any():
            where = int(np.argmax(bad))
            offset = int(flat.reshape(-1)[where])
            writer = int(self._writer[granule[where]])
            machine.report(
                frame,
                "proxy",
                f"thread {writer % machine.geometry.padded} wrote this with an ordinary store and "
                "no fence.proxy.async lies between that and this asynchronous access",
                space="shared",
                address=offset % self.stride,
                cta=offset // self.stride,
            )


def _views(data: npt.NDArray[np.uint8]) -> dict[int, npt.NDArray[Any]]:
    views: dict[int, npt.NDArray[Any]] = {w: data.view(f"u{w}") for w in (1, 2, 4, 8)}
    return views | {w: data.view(f"V{w}") for w in (16, 32)}


def _ones(width: int) -> Any:
    """All bits set, as a scalar of that many bytes."""
    return _repeated(0xFF, width)


@cache
def _repeated(byte: int, width: int) -> Any:
    raw = bytes([byte]) * width
    return np.frombuffer(raw, f"u{width}" if width <= 8 else f"V{width}")[0]
