"""The check that tcgen05.fence lies where threads hand tensor memory to each other.

PTX ISA 9.0, 9.7.16.6.3 and 9.7.16.6.4: an access after another thread's needs
tcgen05.fence::after_thread_sync behind the synchronisation, and ld and st need
tcgen05.fence::before_thread_sync before it; tcgen05.commit includes that one. Accesses are
remembered by column and quarter of the lanes, the last one each.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from humming_sim.machine.frame import Frame
from humming_sim.machine.geometry import WARP
from humming_sim.machine.machine import Machine
from humming_sim.tcgen05.accumulators import COLUMNS

__all__ = ["ALL_QUARTERS", "CHECK", "Order"]

CHECK = "tcgen05-fence"

ALL_QUARTERS = slice(0, 4)


class Order:
    """Last accesses and fences of a wave."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._on = machine.checks(CHECK)
        geometry = machine.geometry
        self._tick = 0
        self._after = np.zeros(geometry.threads, np.int64)
        self._before = np.zeros(geometry.threads, np.int64)
        shape = (geometry.ctas if self._on else 0, 4, COLUMNS)
        self._when = np.zeros(shape, np.int64)
        self._warp = np.zeros(shape, np.int32)
        self._pipe = np.zeros(shape, np.bool_)

    def fence(self, frame: Frame, after: bool) -> None:
        """tcgen05.fence by the frame's threads."""
        self._tick += 1
        (self._after if after else self._before)[frame.sel] = self._tick

    def access(
        self, frame: Frame, thread: int, cta: int, quarters: slice, columns: slice, pipe: bool
    ) -> None:
        """Note an access, and report it if a fence to the one before is missing.

        Args:
            frame: the instruction that issues it.
            thread: the thread, or the first of the warp.
            cta, quarters, columns: tensor memory that it touches.
            pipe: mma, cp or shift, as opposed to ld and st.
        """
        if not self._on:
            return
        self._tick += 1
        place = (cta, quarters, columns)
        when, warp, piped = self._when[place], self._warp[place], self._pipe[place]
        # A warp's own accesses are ordered by tcgen05.wait or by the pipe, except that the pipe
        # says by commit and mbarrier when ld and st may follow.
        own = (warp == thread // WARP) & (piped <= pipe)
        last = np.where(own, 0, when)
        if last.any():
            self._check(frame, thread, last, warp, piped)
        when[...], warp[...], piped[...] = self._tick, thread // WARP, pipe

    def _check(
        self,
        frame: Frame,
        thread: int,
        last: npt.NDArray[np.int64],
        warp: npt.NDArray[np.int32],
        piped: npt.NDArray[np.bool_],
    ) -> None:
        place = np.unravel_index(int(np.argmax(last)), last.shape)
        latest, other = int(last[place]), int(warp[place])
        who = f"an access by warp {other % self._machine.geometry.warps}"
        if self._after[thread] < latest:
            self._machine.report(
                frame, CHECK,
                f"no tcgen05.fence::after_thread_sync between {who} to the same columns and this",
            )  # fmt: skip
        unfenced = ~piped & (last > self._before[warp * WARP])
        if unfenced.any():
            self._machine.report(
                frame, CHECK,
                f"no tcgen05.fence::before_thread_sync after {who} to the same columns",
            )  # fmt: skip
