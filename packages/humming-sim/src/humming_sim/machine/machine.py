"""One wave of CTAs of a kernel: all its state, and how findings are made."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.errors import SimulationFault
from humming_sim.findings import FATAL, Finding
from humming_sim.machine.asynchronous import AsyncEngine
from humming_sim.machine.barriers import ClusterBarriers, NamedBarriers
from humming_sim.machine.frame import Frame
from humming_sim.machine.geometry import WARP, Geometry
from humming_sim.machine.global_memory import GlobalMemory
from humming_sim.machine.holds import Holds, held_registers
from humming_sim.machine.mbarrier import MBarriers
from humming_sim.machine.options import Options
from humming_sim.machine.scheduler import Scheduler
from humming_sim.machine.shared_memory import SharedMemory
from humming_sim.machine.tensor_memory import TensorMemory
from humming_sim.ptx.model import Kernel

__all__ = ["REGISTER_TYPES", "Machine"]

#: How a register of each width is kept; one of 128 bits is two of 64.
REGISTER_TYPES: dict[int, npt.DTypeLike] = {
    1: np.bool_,
    8: np.uint8,
    16: np.uint16,
    32: np.uint32,
    64: np.uint64,
    128: np.uint64,
}


class Machine:
    """The state of a wave.

    Attributes:
        kernel, geometry, options, memory: what runs, where, how, on which global memory.
        target: the architecture that the PTX is for, "sm_90a".
        registers: one array per register, [threads] of unsigned bits ([threads, 2] for b128).
        cta_of: CTA of each thread.
        alive, cta_alive: which threads, and CTAs, have not exited.
        now: number of blocks executed; a clock for "before" and "after".
        block: index of the block being executed.
        progress: grows with every change that a polling thread could wait for.
        polled, any_polled: threads that read something in order to wait for it.
        fence_time: when each thread last made its writes visible to the asynchronous proxy.
        sync_time: when each thread last synchronised with others.
        fence_covers: per CTA, writes up to then are visible through a fence after synchronisation.
        random: decides order and completions in a seeded run, else None.
    """

    def __init__(
        self,
        kernel: Kernel,
        target: str,
        geometry: Geometry,
        memory: GlobalMemory,
        options: Options,
    ) -> None:
        self.kernel, self.geometry, self.memory, self.options = kernel, geometry, memory, options
        self.target = target
        threads = geometry.threads
        thread = np.arange(threads)
        self.cta_of: npt.NDArray[np.intp] = thread // geometry.padded
        self.alive: npt.NDArray[np.bool_] = thread % geometry.padded < geometry.block_threads
        self.cta_alive: npt.NDArray[np.bool_] = np.ones(geometry.ctas, np.bool_)
        self.random = None if options.seed is None else np.random.default_rng(options.seed)
        self.registers: list[npt.NDArray[Any]] = []
        self.now = 1
        self.block = 0
        self.progress = 0
        self.polled = np.zeros(threads, np.bool_)
        self.any_polled = False
        self.fence_time = np.zeros(threads, np.int64)
        self.sync_time = np.zeros(threads, np.int64)
        self.fence_covers = np.zeros(geometry.ctas, np.int64)
        self.asyncs = AsyncEngine(self)
        self.holds = Holds(held_registers(kernel), threads)
        self.barriers = NamedBarriers(self)
        self.clusters = ClusterBarriers(self)
        self.mbarriers = MBarriers(self)
        self.shared: SharedMemory
        self.scheduler: Scheduler
        #: State that one family of instructions keeps, by the family's name.
        self.extra: dict[str, Any] = {}

    @cached_property
    def tmem(self) -> TensorMemory:
        """Tensor memory; made on first use, since few kernels have any."""
        return TensorMemory(self)

    def checks(self, name: str) -> bool:
        """Whether a check is on."""
        return name in self.options.checks

    # ----------------------------------------------------------------------------- events

    def poll(self, frame: Frame) -> None:
        """The frame's threads read something that others change: a loop over it may be a wait."""
        self.polled[frame.sel] = True
        self.any_polled = True

    def synchronised(self, frame: Frame) -> None:
        """The frame's threads have synchronised with others: what those did lies before this."""
        self.sync_time[frame.sel] = self.now

    def fence_async(self, frame: Frame) -> None:
        """fence.proxy.async by the frame's threads."""
        self.fence_time[frame.sel] = self.now
        np.maximum.at(self.fence_covers, frame.ctas(), self.sync_time[frame.sel])
        self.mbarriers.fence_init(frame)

    def after_exit(self, frame: Frame) -> None:
        """Threads have just exited."""
        ctas = np.unique(frame.ctas())
        running: npt.NDArray[np.bool_] = np.any(self.alive.reshape(self.geometry.ctas, -1), axis=1)
        gone = ctas[~running[ctas]]
        self.cta_alive = running
        if len(gone):
            self.asyncs.check_exit(gone)
        self.barriers.after_exit(ctas)
        self.clusters.after_exit(frame)

    # --------------------------------------------------------------------------- findings

    def where(self, thread: int) -> tuple[tuple[int, int, int], int, int]:
        """(CTA in the grid, warp, lane) of a thread."""
        local = thread % self.geometry.padded
        return self._cta(thread // self.geometry.padded), local // WARP, local % WARP

    def _cta(self, cta: int) -> tuple[int, int, int]:
        x, y, z = self._coordinates[cta].tolist()
        return x, y, z

    @cached_property
    def _coordinates(self) -> npt.NDArray[np.int64]:
        return self.geometry.cta_coordinates()

    def report(  # budget: the fields of a finding, all but three by keyword
        self,
        frame: Frame,
        check: str,
        message: str,
        *,
        index: int | None = None,
        space: str = "",
        address: int | None = None,
        cta: int | None = None,
        fatal: bool = False,
    ) -> None:
        """Report a finding about the instruction that `frame` is at, unless its check is off.

        Args:
            index: which thread of the frame; None for its first.
            cta: the CTA whose memory it is about, if not the thread's.
            fatal: whether nothing can go on after it, so that it is reported in any case.

        Raises:
            SimulationFault: if the check is on.
        """
        if not fatal and check not in FATAL and not self.checks(check):
            return
        instruction = self.kernel.instructions[min(frame.at, len(self.kernel.instructions) - 1)]
        where, warp, lane = self.where(int(frame.threads()[index or 0]))
        if cta is not None and self._cta(cta) != where:
            message = f"{message} (memory of CTA {self._cta(cta)})"
        raise SimulationFault(
            [
                Finding(
                    check=check,
                    message=message,
                    kernel=self.kernel.name,
                    line=instruction.line,
                    text=instruction.text,
                    cta=where,
                    warp=warp,
                    lane=None if index is None else lane,
                    space=space,
                    address=address,
                )
            ]
        )
