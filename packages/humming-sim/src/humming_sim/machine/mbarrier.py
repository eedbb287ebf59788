"""mbarrier objects (PTX ISA 9.0, 9.7.13.15): phases, pending arrivals and transaction bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from humming_sim.machine.frame import Frame

if TYPE_CHECKING:
    from humming_sim.machine.machine import Machine

__all__ = ["MAX_COUNT", "Barrier", "MBarriers"]

#: Largest count of arrivals, and of bytes outstanding (PTX ISA 9.0, 9.7.13.15.2).
MAX_COUNT = (1 << 20) - 1


@dataclass
class Barrier:
    """One mbarrier.

    Attributes:
        expected: arrivals that complete a phase.
        pending: arrivals that this phase still needs.
        bytes: transaction bytes that this phase still needs; may be negative for a while.
        phase: number of the phase in progress.
        fenced: whether the initialisation was fenced towards the asynchronous proxy and cluster.
        waiting: called when the phase in progress completes.
    """

    expected: int
    pending: int
    initialised_by: int
    bytes: int = 0
    phase: int = 0
    fenced: bool = False
    waiting: list[Callable[[], None]] = field(default_factory=list)


class MBarriers:
    """All mbarriers of a wave by their offset in shared memory."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._barriers: dict[int, Barrier] = {}

    def locate(
        self, frame: Frame, addresses: npt.NDArray[np.int64], peers: bool = False
    ) -> npt.NDArray[np.int64]:
        """Offsets of mbarriers at shared addresses [n]."""
        return self._machine.shared.locate(frame, addresses, 8, peers)

    def initialise(self, frame: Frame, flat: npt.NDArray[np.int64], counts: object) -> None:
        """mbarrier.init by the frame's threads; `flat` from :meth:`locate`, counts [n] or one."""
        for where, count, thread in zip(
            flat.tolist(), frame.expand(counts).tolist(), frame.threads().tolist(), strict=True
        ):
            if not 1 <= count <= MAX_COUNT:
                self._report(frame, where, f"count {count} is outside of 1..{MAX_COUNT}")
            old = self._barriers.get(where)
            if old is not None and old.waiting:
                self._report(frame, where, "initialised again while threads wait for it")
            self._barriers[where] = Barrier(count, count, thread)
        self._machine.shared.mark_object(flat, 8)
        self._machine.progress += 1

    def invalidate(self, frame: Frame, flat: npt.NDArray[np.int64]) -> None:
        """mbarrier.inval: the bytes are free for other use."""
        for where in flat.tolist():
            self.at(frame, where)
            del self._barriers[where]

    def at(self, frame: Frame, where: int) -> Barrier:
        """The mbarrier at an offset; reports one that was never initialised."""
        barrier = self._barriers.get(where)
        if barrier is None:
            self._report(frame, where, "used, but no mbarrier.init made one here", fatal=True)
        return self._barriers[where]

    def fence_init(self, frame: Frame) -> None:
        """fence.mbarrier_init, fence.proxy.async or a cluster barrier after initialisation."""
        threads = set(frame.threads().tolist())
        for barrier in self._barriers.values():
            if not barrier.fenced and barrier.initialised_by in threads:
                barrier.fenced = True

    def need_fenced(self, frame: Frame, where: int) -> None:
        """Report an mbarrier that the asynchronous proxy or a peer sees before that fence."""
        barrier = self.at(frame, where)
        if not barrier.fenced and self._machine.checks("fence"):
            self._report(
                frame,
                where,
                "the asynchronous proxy or another CTA uses this mbarrier, and no "
                "fence.mbarrier_init or fence.proxy.async followed its mbarrier.init",
                check="fence",
            )
            barrier.fenced = True

    def expect(self, frame: Frame, where: int, count: int) -> None:
        """Raise the bytes that the phase needs (expect-tx)."""
        barrier = self.at(frame, where)
        barrier.bytes += count
        self._check_bytes(frame, where, barrier)

    def complete(self, frame: Frame, where: int, count: int) -> None:
        """Lower the bytes that the phase needs (complete-tx)."""
        barrier = self.at(frame, where)
        barrier.bytes -= count
        self._check_bytes(frame, where, barrier)
        self._settle(barrier)

    def arrive(self, frame: Frame, where: int, count: int = 1, drop: int = 0) -> int:
        """`count` arrivals; returns the phase arrived at.

        Args:
            drop: by how much the next phases' expected arrivals fall (arrive_drop).
        """
        barrier = self.at(frame, where)
        phase = barrier.phase
        if count > barrier.pending:
            self._report(
                frame,
                where,
                f"{count} arrivals in a phase that needs {barrier.pending} more of "
                f"{barrier.expected}",
            )
        barrier.expected -= drop
        barrier.pending -= count
        self._machine.progress += 1
        self._settle(barrier)
        return phase

    def raise_pending(self, frame: Frame, where: int, count: int) -> None:
        """More arrivals needed in this phase (cp.async.mbarrier.arrive without .noinc)."""
        self.at(frame, where).pending += count

    def _settle(self, barrier: Barrier) -> None:
        """Complete the phase if nothing is missing."""
        while barrier.pending == 0 and barrier.bytes == 0:
            barrier.phase += 1
            barrier.pending = barrier.expected
            waiting, barrier.waiting = barrier.waiting, []
            for wake in waiting:
                wake()
            self._machine.progress += 1
            if barrier.expected == 0:
                return

    def _check_bytes(self, frame: Frame, where: int, barrier: Barrier) -> None:
        if abs(barrier.bytes) > MAX_COUNT:
            self._report(
                frame, where, f"{barrier.bytes} bytes outstanding; the limit is {MAX_COUNT}"
            )

    def check_end(self, frame: Frame) -> None:
        """At the end of the kernel: no bytes may be outstanding."""
        for where, barrier in self._barriers.items():
            if barrier.bytes:
                state = "were announced and never came" if barrier.bytes > 0 else "came unannounced"
                self._report(
                    frame,
                    where,
                    f"at the end of the kernel {abs(barrier.bytes)} bytes {state} "
                    f"(phase {barrier.phase}, {barrier.pending} of {barrier.expected} arrivals "
                    "missing)",
                )

    def describe(self, where: int) -> str:
        """A sentence on the state of an mbarrier."""
        barrier = self._barriers[where]
        return (
            f"mbarrier {where % self._machine.shared.stride:#x} of CTA "
            f"{where // self._machine.shared.stride}: phase {barrier.phase} needs "
            f"{barrier.pending} of {barrier.expected} arrivals and {barrier.bytes} bytes"
        )

    def _report(
        self, frame: Frame, where: int, message: str, check: str = "mbarrier", fatal: bool = False
    ) -> None:
        address, cta = where % self._machine.shared.stride, where // self._machine.shared.stride
        self._machine.report(
            frame, check, message, space="shared", address=address, cta=cta, fatal=fatal
        )
