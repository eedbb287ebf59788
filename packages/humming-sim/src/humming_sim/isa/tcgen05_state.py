"""What the tcgen05 instructions of a wave share: allocation, access to tensor memory, ordering.

PTX ISA 9.0, 9.7.16.1 (tensor memory), 9.7.16.5 (CTA pairs) and 9.7.16.6 (ordering).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.device import target_parts
from humming_sim.isa.tcgen05_order import Order
from humming_sim.machine.frame import Frame
from humming_sim.machine.machine import Machine
from humming_sim.tcgen05.accumulators import COLUMNS, LANES

__all__ = ["GROUPS", "Allocation", "Index", "TensorCores", "cta_group", "tensor_cores"]

#: The words that say how many CTAs take part.
GROUPS = {"cta_group::1": 1, "cta_group::2": 2}

#: Lanes or columns: a slice, or numbers.
Index = slice | npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Allocation:
    """Columns that a warp has allocated."""

    first: int
    columns: int
    frame: Frame


class TensorCores:
    """State of the tensor cores of all CTAs of a wave.

    Attributes:
        target: number of the device's architecture, or else of the PTX's: 100 for sm_100a.
        order: what has touched tensor memory, for the check of fences.
        allocations: per CTA, by first column.
        allocator: per CTA, the warp that allocates.
        smallest: per CTA, columns of its last allocation.
        closed: CTAs that have given up the right to allocate.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._memory = machine.tmem
        self.target = target_parts(machine.options.arch or machine.target)[0]
        self.order = Order(machine)
        self.allocations: list[dict[int, Allocation]] = [{} for _ in range(machine.geometry.ctas)]
        self.allocator: dict[int, int] = {}
        self.smallest: dict[int, int] = {}
        self.closed: set[int] = set()
        self._group = 0
        machine.extra.setdefault("at exit", []).append(self._check_leaks)

    # ------------------------------------------------------------------------------- CTA pairs

    def use_group(self, frame: Frame, group: int) -> None:
        """Report a kernel that mixes CTA groups (PTX ISA 9.0, 9.7.16.10.9.1)."""
        if self._group not in (0, group):
            self._machine.report(
                frame,
                "tmem",
                f"cta_group::{group} in a kernel that used cta_group::{self._group} before; all "
                "tcgen05 instructions of a kernel take the same",
            )
        self._group = group

    def members(self, frame: Frame, cta: int, group: int) -> tuple[int, ...]:
        """The CTAs that take part in an instruction that `cta` issues, the even one first."""
        if group == 1:
            return (cta,)
        if self._machine.geometry.cluster_size % 2:
            self._machine.report(
                frame, "cluster", "cta_group::2 needs a cluster with an even number of CTAs"
            )
        first = cta & ~1
        return (first, first + 1)

    def submit(
        self, frame: Frame, members: tuple[int, ...], action: Callable[[Frame], None]
    ) -> None:
        """Issue an operation to the pipe of a CTA or pair, which executes in order of issue.

        The manual's pipelined pairs (9.7.16.6.2) are all in order there; the others are too, as
        kernels in use rely on.
        """
        kept = frame.copy()

        def run() -> None:
            gone = [cta for cta in members if not self._machine.cta_alive[cta]]
            if gone:
                self._machine.report(kept, "cluster", "a CTA of the pair has exited", cta=gone[0])
            action(kept)

        queue: Hashable = ("tcgen05", members)
        self._machine.asyncs.submit(
            kept, run, queue, "the CTA exits before this tensor core operation has completed"
        )

    # ---------------------------------------------------------------------------------- access

    def need(self, frame: Frame, cta: int, first: int, width: int) -> None:
        """Report columns that tensor memory doesn't have, or that are not allocated."""
        if first + width > COLUMNS:
            self._report(
                frame, "bounds", f"{_range(first, width)}; there are {COLUMNS}", cta, first
            )
        free = ~self._memory.allocated[cta, first : first + width]
        if free.any():
            column = first + int(np.argmax(free))
            self._report(
                frame, "tmem", f"{_range(first, width)}, of which {column} is not allocated", cta,
                column,
            )  # fmt: skip

    def need_lanes(self, frame: Frame, cta: int, first: int, height: int) -> None:
        """Report lanes that tensor memory doesn't have."""
        if first + height > LANES:
            self._report(
                frame, "bounds", f"lanes [{first}, {first + height}) of tensor memory; there are "
                f"{LANES}", cta, first << 16,
            )  # fmt: skip

    def read(self, frame: Frame, cta: Any, lanes: Index, columns: Index) -> npt.NDArray[np.uint32]:
        """Words of tensor memory; reports those that nothing wrote.

        `cta`, `lanes` and `columns` index as NumPy does: numbers that broadcast, or slices.
        """
        written = self._memory.written[cta, lanes, columns]
        if not written.all():
            self._report_unwritten(frame, written, cta, lanes, columns)
        words: npt.NDArray[np.uint32] = self._memory.data[cta, lanes, columns]
        return words

    def write(self, cta: Any, lanes: Index, columns: Index, words: npt.NDArray[np.uint32]) -> None:
        """Store words, indexed as in :meth:`read`."""
        self._memory.data[cta, lanes, columns] = words
        self._memory.written[cta, lanes, columns] = True
        self._machine.progress += 1

    def _report_unwritten(
        self, frame: Frame, written: npt.NDArray[np.bool_], cta: Any, lanes: Index, columns: Index
    ) -> None:
        where = np.unravel_index(int(np.argmin(written)), written.shape)
        if isinstance(lanes, slice) and isinstance(columns, slice):
            which, lane, column = cta, lanes.start + where[0], columns.start + where[1]
        else:
            grids = np.broadcast_arrays(cta, _numbers(lanes), _numbers(columns))
            which, lane, column = (int(grid[where]) for grid in grids)
        self._report(
            frame, "uninitialised", f"lane {lane}, column {column} of tensor memory, which nothing "
            "wrote", int(which), int(lane) << 16 | int(column),
        )  # fmt: skip

    # ------------------------------------------------------------------------------ allocation

    def allocate(self, frame: Frame, cta: int, columns: int) -> int:
        """The first of `columns` free neighbours, now allocated; -1 if there are none."""
        free = ~self._memory.allocated[cta]
        for first in range(0, COLUMNS - columns + 1, columns):
            span = slice(first, first + columns)
            if free[span].all():
                self._memory.allocated[cta, span] = True
                self._memory.written[cta, :, span] = False
                self.allocations[cta][first] = Allocation(first, columns, frame.copy())
                return first
        return -1

    def free(self, cta: int, first: int) -> None:
        """End an allocation; what was there is lost."""
        allocation = self.allocations[cta].pop(first)
        span = slice(first, first + allocation.columns)
        self._memory.allocated[cta, span] = False
        self._memory.data[cta, :, span] = 0xFFFFFFFF
        self._machine.progress += 1

    def _check_leaks(self, frame: Frame) -> None:
        del frame
        for cta, allocations in enumerate(self.allocations):
            for allocation in allocations.values():
                self._report(
                    allocation.frame,
                    "tmem",
                    f"{_range(allocation.first, allocation.columns)} are never deallocated",
                    cta,
                    allocation.first,
                )

    def _report(self, frame: Frame, check: str, message: str, cta: int, address: int) -> None:
        self._machine.report(frame, check, message, space="tmem", address=address, cta=cta)


def _numbers(index: Index) -> npt.NDArray[np.intp]:
    return np.arange(index.start, index.stop) if isinstance(index, slice) else index


def _range(first: int, width: int) -> str:
    return f"columns [{first}, {first + width}) of tensor memory"


def tensor_cores(machine: Machine) -> TensorCores:
    """The state of a machine's tensor cores, made when the first instruction is compiled."""
    state = machine.extra.get("tcgen05")
    if state is None:
        state = machine.extra["tcgen05"] = TensorCores(machine)
    cores: TensorCores = state
    return cores


def cta_group(words: Callable[..., str]) -> int:
    """Take `.cta_group::N`; `words` is Modifiers.one_of."""
    return GROUPS[words(*GROUPS)]
