"""Registers that asynchronous operations have been given and not yet given back.

A wgmma reads and writes its accumulators (and A in registers) at any time until it has been waited
for; until then they are nobody else's (PTX ISA 9.0, 9.7.15.7.3). And a wgmma.fence has to lie
between an ordinary access and the next wgmma that uses the register (9.7.15.7.1). Compilers move
register operations across the fence, and the assembler puts that right, so what counts here is that
there is a fence at all since the last wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from humming_sim.ptx.model import Group, Kernel, Register

if TYPE_CHECKING:
    from humming_sim.machine.frame import Frame

__all__ = ["Holds", "held_registers"]

#: Operands whose registers an instruction keeps after it was issued, by the start of its opcode.
_KEPT: dict[tuple[str, ...], tuple[int, ...]] = {("wgmma", "mma_async"): (0, 1)}


def held_registers(kernel: Kernel) -> list[int]:
    """Registers that asynchronous instructions of a kernel use, ascending."""
    found: set[int] = set()
    for item in kernel.instructions:
        for position in _KEPT.get(item.words[:2], ()):
            operand = item.operands[position] if position < len(item.operands) else None
            members = operand.items if isinstance(operand, Group) else ()
            found |= {member.index for member in members if isinstance(member, Register)}
    return sorted(found)


class Holds:
    """Who may use which register now.

    Operations have ascending numbers; :attr:`waited` says up to which a thread has waited.

    Attributes:
        row: row of each such register in the arrays.
        last: number of the last operation that uses a register, [rows, threads].
        waited: [threads].
        touched: whether an ordinary instruction used it since the last wgmma.fence,
            [rows, threads].
        fenced: whether there was a wgmma.fence since the last wait, [threads].
    """

    def __init__(self, registers: Sequence[int], threads: int) -> None:
        self.row = {register: row for row, register in enumerate(registers)}
        self.last = np.zeros((len(registers), threads), np.int32)
        self.waited = np.zeros(threads, np.int64)
        self.touched = np.zeros((len(registers), threads), np.bool_)
        self.fenced = np.zeros(threads, np.bool_)

    def use(self, frame: Frame, register: int, name: str) -> None:
        """An ordinary instruction reads or writes a register; reports it if it is held."""
        row = self.row[register]
        held = self.last[row, frame.sel] > self.waited[frame.sel]
        if held.any():
            frame.machine.report(
                frame,
                "async",
                f"register {name} belongs to an asynchronous operation that was issued and has not "
                "been waited for",
                index=int(np.argmax(held)),
            )
        self.touched[row, frame.sel] = True

    def give(self, frame: Frame, rows: npt.NDArray[np.intp], number: int) -> None:
        """The registers of these rows belong to operation `number` from now on."""
        if isinstance(frame.sel, slice):
            self.last[:, frame.sel][rows] = number
        else:
            self.last[rows[:, None], frame.sel] = number

    def unfenced(self, frame: Frame, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        """Which threads used one of these registers with no wgmma.fence since their last wait."""
        if self.fenced[frame.sel].all():
            return np.zeros(frame.n, np.bool_)
        touched: npt.NDArray[np.bool_] = np.any(self.touched[:, frame.sel][rows], axis=0)
        return touched & ~self.fenced[frame.sel]

    def fence(self, frame: Frame) -> None:
        """wgmma.fence by these threads."""
        self.touched[:, frame.sel] = False
        self.fenced[frame.sel] = True

    def wait(self, frame: Frame, numbers: npt.NDArray[np.int64]) -> None:
        """These threads have waited for all operations up to `numbers` [n]."""
        self.waited[frame.sel] = np.maximum(self.waited[frame.sel], numbers)
        self.fenced[frame.sel] = False
