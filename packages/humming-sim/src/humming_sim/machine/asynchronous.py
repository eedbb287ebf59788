"""Asynchronous operations: what has been issued and may complete at any time from now on.

Operations of one queue complete in order, those of different queues in any. Late completion (as
late as a wait, or the end of everything else, forces it) shows reads that come before their wait;
early completion shows writes to what somebody still reads. A seeded run mixes both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from humming_sim.machine.frame import Frame

if TYPE_CHECKING:
    from humming_sim.machine.machine import Machine

__all__ = ["AsyncEngine"]

#: Chance that an operation completes as soon as it is issued, and that one completes between two
#: turns of the scheduler, in a seeded run.
_AT_ONCE = 0.3
_PER_TURN = 0.1


@dataclass(frozen=True, eq=False)
class _Operation:
    frame: Frame
    action: Callable[[], None]
    dangling: str


class AsyncEngine:
    """Queues of operations that were issued and have not completed."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._queues: dict[Hashable, deque[_Operation]] = {}
        self._fresh = 0

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def submit(
        self,
        frame: Frame,
        action: Callable[[], None],
        queue: Hashable | None = None,
        dangling: str = "",
    ) -> Hashable:
        """Issue an operation; an action that needs the frame later keeps `frame.copy()`.

        Args:
            queue: operations of one queue complete in order; None for one of its own.
            dangling: a sentence if it is a fault that the issuing CTA exits before completion.

        Returns:
            the queue, for :meth:`finish`.
        """
        if queue is None:
            self._fresh += 1
            queue = ("own", self._fresh)
        self._queues.setdefault(queue, deque()).append(_Operation(frame.copy(), action, dangling))
        random = self._machine.random
        if random is not None and random.random() < _AT_ONCE:
            self.finish(queue)
        return queue

    def finish(self, queue: Hashable) -> None:
        """Complete everything that a queue holds."""
        while self._complete_one(queue):
            pass

    def pending(self, queue: Hashable) -> int:
        """How many operations of a queue have not completed."""
        return len(self._queues.get(queue, ()))

    def turn(self) -> None:
        """Perhaps complete one operation; called between two turns of the scheduler."""
        random = self._machine.random
        if random is not None and self._queues and random.random() < _PER_TURN:
            self._complete_one(list(self._queues)[random.integers(len(self._queues))])

    def idle(self) -> bool:
        """Complete one operation because nothing else can go on; False if there is none."""
        if not self._queues:
            return False
        random = self._machine.random
        queues = list(self._queues)
        return self._complete_one(queues[0 if random is None else random.integers(len(queues))])

    def check_exit(self, gone: npt.NDArray[np.intp]) -> None:
        """These CTAs have exited: report what of theirs must not be outstanding."""
        for queue in self._queues.values():
            for operation in queue:
                if operation.dangling and np.isin(operation.frame.ctas(), gone).any():
                    self._machine.report(operation.frame, "exit", operation.dangling)

    def _complete_one(self, key: Hashable) -> bool:
        queue = self._queues.get(key)
        if not queue:
            return False
        operation = queue.popleft()
        if not queue:
            del self._queues[key]
        operation.action()
        return True
