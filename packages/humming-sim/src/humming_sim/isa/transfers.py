"""Bulk transfers in flight: where their data comes from, goes to, and whom they signal.

A transfer is issued with everything checked that program order decides: bounds, whether its source
was written, proxy fences. It moves data later, when the asynchronous engine says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.machine.frame import Frame
from humming_sim.machine.global_memory import BASE
from humming_sim.machine.shared_memory import RANK_SHIFT
from humming_sim.tma.bulk import Problem
from humming_sim.tma.reductions import Reduction

__all__ = [
    "GlobalSink",
    "Load",
    "SharedSource",
    "Signals",
    "global_offsets",
    "need_read",
    "one_thread",
    "pieces_of",
    "raw_type",
    "report_problem",
    "shared_sink",
]

Addresses = npt.NDArray[np.int64]
Bits = npt.NDArray[Any]

_LEFT = "the CTA of the cluster that this copy writes to has exited"


def raw_type(width: int) -> Any:
    """Unsigned integers of so many bytes, or void where there are none."""
    return np.dtype(f"u{width}" if width <= 8 else f"V{width}")


def one_thread(frame: Frame, index: int) -> Frame:
    """A frame of one of the threads, for what outlives the instruction."""
    return frame.of(frame.threads()[index : index + 1])


def report_problem(frame: Frame, problem: Problem | None) -> None:
    """Report what a pure check of the frame's threads found."""
    if problem is not None:
        frame.machine.report(
            frame,
            problem.check,
            problem.message,
            index=problem.index,
            space=problem.space,
            address=problem.address,
        )


def global_offsets(
    frame: Frame, addresses: Addresses, chunk: int, write: bool = False, index: int | None = 0
) -> Addresses:
    """Offsets into global memory of pieces of `chunk` bytes at addresses of any shape.

    All pieces must lie in one buffer.

    Args:
        index: which thread of the frame uses them, for the finding.
    """
    if not addresses.size:
        return addresses
    memory = frame.machine.memory
    buffer = memory.find(int(addresses.min()))
    end = BASE if buffer is None else buffer.start + buffer.size
    beyond = addresses + chunk > end
    message = ""
    if beyond.any():
        address = int(addresses[beyond].min())
        message = memory.describe(address, chunk)
    elif write and buffer is not None and not buffer.writable:
        address = int(addresses.min())
        message = f"buffer {buffer.name} is read-only"
    if message:
        frame.machine.report(frame, "bounds", message, index=index, space="global", address=address)
    return addresses - BASE


def pieces_of(frame: Frame, size: int, piece: int, index: int) -> Addresses:
    """Offsets of the pieces of a range; one end of every bulk operation is shared memory."""
    most = frame.machine.shared.size
    if size > most:
        frame.machine.report(
            frame,
            "bounds",
            f"a range of {size} bytes, and the CTA has {most} bytes of shared memory",
            index=index,
        )
    return np.arange(0, min(size, most), piece)


@dataclass(eq=False)
class Signals:
    """mbarriers that a transfer tells how many bytes have come.

    Attributes:
        frame: the threads that issued it.
        barriers: offset in shared memory and bytes, for each.
    """

    frame: Frame
    barriers: list[tuple[int, int]]

    def check(self) -> None:
        """Every barrier must be initialised, and that must be fenced."""
        for where, _ in self.barriers:
            self.frame.machine.mbarriers.need_fenced(self.frame, where)

    def send(self) -> None:
        """The bytes have come."""
        for where, count in self.barriers:
            self.frame.machine.mbarriers.complete(self.frame, where, count)


@dataclass(eq=False)
class Load:
    """From global to shared memory.

    Attributes:
        frame: the threads that issued it.
        chunk: bytes of each piece.
        offsets: int64 [k], of each piece inside of the tensor in global memory.
        flat: int64 [m], of each piece in shared memory.
        inside: bool [m], which pieces those k are; None if all.
        fill: uint8 [chunk], for the others.
        convert: what happens to the data on the way.
        signals: whom to tell.
    """

    frame: Frame
    chunk: int
    offsets: Addresses
    flat: Addresses
    signals: Signals
    inside: npt.NDArray[np.bool_] | None = None
    fill: npt.NDArray[np.uint8] | None = None
    convert: Callable[[Bits], Bits] = field(default=lambda data: data)

    def issue(self) -> None:
        """Check what can be checked now, and hand the rest to the engine."""
        machine = self.frame.machine
        self.signals.check()
        need_read(self.frame, self.flat, self.chunk)
        machine.shared.expect_async(self.flat, self.chunk)
        own = np.isin(self.flat // machine.shared.stride, self.frame.ctas()).any()
        machine.asyncs.submit(
            self.frame,
            self.run,
            dangling="the CTA exits while this copy into its shared memory is still in flight"
            if own
            else "",
        )

    def run(self) -> None:
        """Move the data and signal."""
        machine = self.frame.machine
        dtype = raw_type(self.chunk)
        data = self.convert(machine.memory.view(dtype)[self.offsets // self.chunk])
        if self.inside is not None and self.fill is not None:
            values = np.full(self.flat.shape, self.fill.view(dtype)[0], dtype)
            values[self.inside] = data
            data = values
        shared_sink(self.frame, self.flat)(data)
        self.signals.send()


def shared_sink(frame: Frame, flat: Addresses) -> Callable[[Bits], None]:
    """What writes shared memory through the asynchronous proxy."""

    def put(values: Bits) -> None:
        machine = frame.machine
        ctas = np.unique(flat // machine.shared.stride)
        if not machine.cta_alive[ctas].all():
            machine.report(frame, "cluster", _LEFT)
        machine.shared.write_async(frame, flat, values)

    return put


class SharedSource:
    """Shared memory that an asynchronous unit reads some time after the instruction.

    The bytes are compared with what they were at the instruction: changing the source of a copy
    that has not read it yet is undefined (PTX ISA 9.0, 9.7.9.25.1).
    """

    def __init__(self, frame: Frame, flat: Addresses, width: int) -> None:
        self._frame, self._flat, self._width = frame, flat.reshape(-1), width
        self._values = frame.machine.shared.read_async(frame, self._flat, width)
        self.taken = False
        sources = frame.machine.extra.setdefault("bulk sources", [])
        sources[:] = [source for source in sources if not source.taken]
        sources.append(self)

    def take(self) -> Bits:
        """The data; the first call is when it is read."""
        if not self.taken:
            self.taken = True
            self._compare()
        return self._values

    def overlaps(self, flat: Addresses, width: int) -> bool:
        """Whether pieces of `width` bytes at these offsets hit what is still to be read."""
        if self.taken or not self._flat.size:
            return False
        unit = max(width, self._width)
        mine, theirs = self._flat // unit, flat.reshape(-1) // unit
        return (
            mine.min() <= theirs.max()
            and theirs.min() <= mine.max()
            and bool(np.isin(theirs, mine).any())
        )

    def line(self) -> int:
        """The line of the instruction that reads."""
        return self._frame.machine.kernel.instructions[self._frame.at].line

    def _compare(self) -> None:
        shared = self._frame.machine.shared
        now = shared.data.view(raw_type(self._width))[self._flat // self._width]
        before = np.ascontiguousarray(self._values).view(np.uint8).reshape(-1)
        changed = np.flatnonzero(now.view(np.uint8).reshape(-1) != before)
        if not len(changed):
            return
        piece, byte = divmod(int(changed[0]), self._width)
        where = int(self._flat[piece]) + byte
        self._values = now
        self._frame.machine.report(
            self._frame,
            "async",
            "shared memory changed after this asynchronous operation was issued and before it had "
            "read it; wait for it (cp.async.bulk.wait_group.read, or its mbarrier) first",
            index=0,
            space="shared",
            address=(where // shared.stride % self._frame.machine.geometry.cluster_size)
            << RANK_SHIFT
            | where % shared.stride,
            cta=where // shared.stride,
        )


def need_read(frame: Frame, flat: Addresses, width: int) -> None:
    """Report a copy into shared memory that an earlier bulk operation has yet to read."""
    for source in frame.machine.extra.get("bulk sources", ()):
        if flat.size and source.overlaps(flat, width):
            frame.machine.report(
                frame,
                "async",
                "this copy overwrites shared memory that the asynchronous operation of line "
                f"{source.line()} has not read yet; wait for it (.read) first",
            )


@dataclass(eq=False)
class GlobalSink:
    """Global memory that a store or reduction writes.

    Attributes:
        frame: the thread that issued it.
        offsets: int64 [k], of each piece.
        chunk: bytes of each.
        reduce: combines with what is there; None to overwrite.
        operands: type of the operands of `reduce`.
        mask: bool [k, chunk], the bytes to write; None for all.
    """

    frame: Frame
    offsets: Addresses
    chunk: int
    reduce: Reduction | None = None
    operands: npt.DTypeLike = np.uint8
    mask: npt.NDArray[np.bool_] | None = None

    def put(self, values: Bits) -> None:
        """Write values of `chunk` bytes, [k]."""
        machine = self.frame.machine
        pieces = machine.memory.view(raw_type(self.chunk))
        index = self.offsets // self.chunk
        if self.reduce is not None:
            old = np.ascontiguousarray(pieces[index]).view(self.operands)
            new = np.ascontiguousarray(values).view(self.operands)
            values = np.ascontiguousarray(self.reduce(old, new)).view(pieces.dtype)
        elif self.mask is not None:
            old = np.ascontiguousarray(pieces[index]).view(np.uint8).reshape(self.mask.shape)
            new = np.ascontiguousarray(values).view(np.uint8).reshape(self.mask.shape)
            values = np.where(self.mask, new, old).view(pieces.dtype).reshape(-1)
        pieces[index] = values
        machine.progress += 1
