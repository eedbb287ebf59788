"""CTA barriers (PTX ISA 9.0, 9.7.13.1) and cluster barriers (9.7.13.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from humming_sim.machine.frame import Frame

if TYPE_CHECKING:
    from humming_sim.machine.machine import Machine
    from humming_sim.machine.scheduler import Parked

__all__ = ["ClusterBarriers", "NamedBarriers"]


@dataclass
class _Named:
    """One barrier of a CTA while threads are at it."""

    count: int | None
    arrived: int = 0
    parked: list[Parked] = field(default_factory=list)
    true: int = 0  # threads whose predicate held, for reductions
    results: list[Callable[[int, int], None]] = field(default_factory=list)


class NamedBarriers:
    """The sixteen barriers of each CTA."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._open: dict[tuple[int, int], _Named] = {}

    def arrive(
        self,
        frame: Frame,
        number: int,
        count: int | None,
        wait_at: int | None,
        predicate: npt.NDArray[np.bool_] | None = None,
        result: Callable[[Frame, int, int], None] | None = None,
    ) -> None:
        """The frame's threads arrive at a barrier of their CTA.

        Args:
            number: which, 0 to 15.
            count: threads that it takes; None for all of the CTA that run.
            wait_at: the block they go on at when it is complete; None not to wait (bar.arrive).
            predicate: for reductions, each thread's, [n].
            result: called with (threads, how many predicates held, how many threads).
        """
        threads, ctas = frame.threads(), frame.ctas()
        for cta in np.unique(ctas).tolist():
            mask = ctas == cta
            part = frame.of(threads[mask])
            barrier = self._open.setdefault((cta, number), _Named(count))
            if barrier.count != count:
                self._machine.report(
                    part,
                    "convergence",
                    f"barrier {number} is in use for {barrier.count or 'all'} threads, "
                    f"and this asks for {count or 'all'}",
                )
            barrier.arrived += part.n
            if predicate is not None:
                barrier.true += int(np.count_nonzero(predicate[mask]))
            if wait_at is not None:
                barrier.parked.append(
                    self._machine.scheduler.park(part, wait_at, self._why(cta, number))
                )
            if result is not None:
                barrier.results.append(partial(result, part))
            self._settle(cta, number)

    def after_exit(self, ctas: npt.NDArray[np.intp]) -> None:
        """Threads of these CTAs have exited: a barrier for all needs fewer now."""
        gone = set(ctas.tolist())
        for cta, number in [key for key in self._open if key[0] in gone]:
            self._settle(cta, number)

    def _needed(self, cta: int, barrier: _Named) -> int:
        if barrier.count is not None:
            return barrier.count
        padded = self._machine.geometry.padded
        return int(np.count_nonzero(self._machine.alive[cta * padded : (cta + 1) * padded]))

    def _settle(self, cta: int, number: int) -> None:
        barrier = self._open[cta, number]
        needed = self._needed(cta, barrier)
        if barrier.arrived < needed:
            return
        if barrier.arrived > needed and barrier.parked:
            self._machine.report(
                barrier.parked[0].frame,
                "convergence",
                f"{barrier.arrived} threads came to barrier {number}, which is for {needed}",
            )
        del self._open[cta, number]
        for result in barrier.results:
            result(barrier.true, barrier.arrived)
        for parked in barrier.parked:
            self._machine.synchronised(parked.frame)
            self._machine.scheduler.wake(parked)
        self._machine.progress += 1

    def _why(self, cta: int, number: int) -> Callable[[], str]:
        def why() -> str:
            barrier = self._open[cta, number]
            return f"barrier {number} has {barrier.arrived} of {self._needed(cta, barrier)} threads"

        return why


class ClusterBarriers:
    """The barrier of each cluster: every thread arrives, then waits."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        geometry = machine.geometry
        self._size = geometry.cluster_size * geometry.padded
        clusters = geometry.ctas // geometry.cluster_size
        self._phase = np.zeros(clusters, np.int64)
        self._arrived_in = np.full(geometry.threads, -1, np.int64)
        self._owes_wait = np.zeros(geometry.threads, np.bool_)
        self._waiting: dict[int, list[Parked]] = {}

    def arrive(self, frame: Frame) -> None:
        """barrier.cluster.arrive by the frame's threads."""
        threads = frame.threads()
        clusters = threads // self._size
        phase = self._phase[clusters]
        again = self._owes_wait[threads]
        if again.any():
            self._machine.report(
                frame,
                "convergence",
                "arrives at the cluster barrier twice without waiting",
                index=int(np.argmax(again)),
            )
        self._arrived_in[threads] = phase
        self._owes_wait[threads] = True
        self._machine.mbarriers.fence_init(frame)
        self._machine.progress += 1
        self.settle(clusters)

    def wait(self, frame: Frame, block: int) -> None:
        """barrier.cluster.wait: the frame's threads go on at `block` when all have arrived."""
        threads = frame.threads()
        clusters = threads // self._size
        if not self._owes_wait[threads].all():
            self._machine.report(frame, "convergence", "waits for the cluster without arriving")
        self._owes_wait[threads] = False
        for cluster in np.unique(clusters).tolist():
            part = frame.of(threads[clusters == cluster])
            if (self._arrived_in[part.sel] < self._phase[cluster]).all():
                self._machine.synchronised(part)
                self._machine.scheduler.push(part.pool, block, part.sel)
                continue
            parked = self._machine.scheduler.park(part, block, self._why(cluster))
            self._waiting.setdefault(cluster, []).append(parked)

    def settle(self, clusters: npt.NDArray[np.intp]) -> None:
        """Complete the phase of each of these clusters whose running threads have all arrived."""
        for cluster in np.unique(clusters).tolist():
            span = slice(cluster * self._size, (cluster + 1) * self._size)
            missing = self._machine.alive[span] & (self._arrived_in[span] < self._phase[cluster])
            if missing.any() or not self._machine.alive[span].any():
                continue
            self._phase[cluster] += 1
            for parked in self._waiting.pop(cluster, []):
                self._machine.synchronised(parked.frame)
                self._machine.scheduler.wake(parked)

    def _why(self, cluster: int) -> Callable[[], str]:
        def why() -> str:
            span = slice(cluster * self._size, (cluster + 1) * self._size)
            missing = self._machine.alive[span] & (self._arrived_in[span] < self._phase[cluster])
            return f"{int(missing.sum())} threads have not arrived at the cluster barrier"

        return why

    def after_exit(self, frame: Frame) -> None:
        """Threads have exited, which counts as arrival."""
        self.settle(frame.threads() // self._size)
