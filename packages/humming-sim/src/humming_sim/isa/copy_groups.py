"""Groups of asynchronous copies that a thread commits and waits for.

PTX ISA 9.0, 9.7.9.25.1.1 (async-groups), 9.7.9.25.3.2-3 (cp.async), 9.7.9.27.2 (bulk copies).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from humming_sim.isa.transfers import SharedSource
from humming_sim.machine.frame import Frame
from humming_sim.machine.machine import Machine

__all__ = ["OPEN", "BulkGroups", "BulkOperation", "CopyGroups", "ThreadCopies"]

#: The group of what is not committed yet.
OPEN = -1

Mask = npt.NDArray[np.bool_]


class ThreadCopies(Protocol):
    """One cp.async by several threads.

    Attributes:
        frame: the threads whose copies have not completed.
        group: int64 [n], number of the group that each thread's copy is in, or OPEN.
        number: place in the order of issue.
        queue: of the asynchronous engine.
        done: whether nothing is left.
    """

    frame: Frame
    group: npt.NDArray[np.int64]
    number: int
    queue: Hashable
    done: bool

    def run(self) -> None:
        """Complete all of it."""

    def take(self, mask: Mask) -> ThreadCopies:
        """Move the copies of some of the threads into an object of their own."""


class CopyGroups:
    """The cp.async of all threads of a wave that have not completed."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._committed = np.zeros(machine.geometry.threads, np.int64)  # groups of each thread
        self._live: dict[int, list[ThreadCopies]] = {}  # by pool: threads never change theirs
        self._issued = 0

    @staticmethod
    def of(machine: Machine) -> CopyGroups:
        """Those of a machine."""
        if "cp.async" not in machine.extra:
            machine.extra["cp.async"] = CopyGroups(machine)
        groups: CopyGroups = machine.extra["cp.async"]
        return groups

    def issue(self, copies: ThreadCopies) -> None:
        """A cp.async was executed."""
        self._issued += 1
        copies.number = self._issued
        self._live.setdefault(copies.frame.pool, []).append(copies)
        copies.queue = self._machine.asyncs.submit(copies.frame, copies.run)

    def commit(self, frame: Frame) -> None:
        """Put the frame's open copies into a new group of each thread."""
        for copies, mine in self._of(frame):
            fresh = mine & (copies.group == OPEN)
            copies.group = np.where(fresh, self._committed[copies.frame.sel], copies.group)
        self._committed[frame.sel] += 1

    def wait(self, frame: Frame, pending: int) -> None:
        """Complete all groups of the frame's threads but the last `pending`."""
        for copies, mine in self._of(frame):
            first_kept = self._committed[copies.frame.sel] - pending
            self._complete(copies, mine & (copies.group != OPEN) & (copies.group < first_kept))

    def mark(self) -> int:
        """The number of the last copy issued, for :meth:`wait_until`."""
        return self._issued

    def wait_until(self, frame: Frame, mark: int) -> None:
        """Complete what the frame's threads had issued when :meth:`mark` gave `mark`."""
        for copies, mine in self._of(frame):
            if copies.number <= mark:
                self._complete(copies, mine)

    def _of(self, frame: Frame) -> Iterator[tuple[ThreadCopies, Mask]]:
        """What the frame's threads have in flight, and which threads of it are theirs."""
        live = self._live.get(frame.pool, [])
        live[:] = [copies for copies in live if not copies.done]
        if not live:
            return
        member = np.zeros(self._machine.geometry.threads, np.bool_)
        member[frame.sel] = True
        for copies in tuple(live):
            mine = member[copies.frame.sel]
            if mine.any():
                yield copies, mine

    def _complete(self, copies: ThreadCopies, mask: Mask) -> None:
        if mask.all():
            self._machine.asyncs.finish(copies.queue)
        elif mask.any():
            copies.take(mask).run()


class BulkOperation:
    """A bulk copy or reduction from shared to global memory by one thread."""

    def __init__(
        self, frame: Frame, source: SharedSource, put: Callable[[npt.NDArray[Any]], None]
    ) -> None:
        """Issue it.

        Args:
            frame: the thread.
            source: what it reads.
            put: writes what was read.
        """
        self.thread = int(frame.threads()[0])
        self.group = OPEN
        self.done = False
        self._machine, self._source, self._put = frame.machine, source, put
        self._reading = self._machine.asyncs.submit(
            frame,
            self._read,
            dangling="the CTA exits before this copy has read its shared memory; wait with "
            "cp.async.bulk.wait_group.read",
        )
        self._writing = self._machine.asyncs.submit(frame, self._write)

    def _read(self) -> None:
        self._source.take()

    def _write(self) -> None:
        self.finish_reading()
        self._put(self._source.take())
        self.done = True

    def finish_reading(self) -> None:
        """Complete the first half, the reading of the source."""
        self._machine.asyncs.finish(self._reading)

    def finish(self) -> None:
        """Complete all of it."""
        self._machine.asyncs.finish(self._writing)


class BulkGroups:
    """The bulk operations of all threads of a wave that groups keep track of."""

    def __init__(self, machine: Machine) -> None:
        self._committed = np.zeros(machine.geometry.threads, np.int64)
        self._live: dict[int, list[BulkOperation]] = {}

    @staticmethod
    def of(machine: Machine) -> BulkGroups:
        """Those of a machine."""
        if "bulk" not in machine.extra:
            machine.extra["bulk"] = BulkGroups(machine)
        groups: BulkGroups = machine.extra["bulk"]
        return groups

    def issue(self, operation: BulkOperation) -> None:
        """An operation was issued."""
        self._live.setdefault(operation.thread, []).append(operation)

    def commit(self, frame: Frame) -> None:
        """Put the frame's open operations into a new group of each thread."""
        for operations in self._of(frame):
            for operation in operations:
                if operation.group == OPEN:
                    operation.group = int(self._committed[operation.thread])
        self._committed[frame.sel] += 1

    def wait(self, frame: Frame, pending: int, only_reading: bool) -> None:
        """Complete all groups of the frame's threads but the last `pending`, or their reading."""
        for operations in self._of(frame):
            for operation in operations:
                first_kept = int(self._committed[operation.thread]) - pending
                if operation.group == OPEN or operation.group >= first_kept:
                    continue
                if only_reading:
                    operation.finish_reading()
                else:
                    operation.finish()

    def _of(self, frame: Frame) -> Iterator[list[BulkOperation]]:
        """The operations of each of the frame's threads that has any."""
        if not self._live:
            return
        threads = np.fromiter(self._live, np.intp)
        member = np.zeros(len(self._committed), np.bool_)
        member[frame.sel] = True
        for thread in threads[member[threads]].tolist():
            left = [operation for operation in self._live[thread] if not operation.done]
            if left:
                self._live[thread] = left
                yield left
            else:
                del self._live[thread]
