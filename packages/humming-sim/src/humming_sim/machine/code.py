"""Compiled code: blocks of steps that a frame of threads executes without leaving them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from humming_sim.machine.frame import Frame

__all__ = ["FULL_MASK", "Block", "End", "Step"]

#: What an instruction does to a frame.
Step = Callable[[Frame], None]
#: What ends a block: the next block for the whole frame, or scheduler.HANDLED.
End = Callable[[Frame], int]

FULL_MASK = 0xFFFFFFFF


def _everyone(frame: Frame) -> Any:
    del frame
    return FULL_MASK


@dataclass
class Block:
    """Instructions that are entered only at the first and left only at the last.

    Attributes:
        first, last: indices of instructions.
        steps: (index of the instruction, what it does).
        end: where threads go from here.
        gather: whether it starts with an instruction that the lanes of a warp execute together.
        mask: for such an instruction, the lanes it names, [n] or one number.
        exchanges: whether threads may exchange data here, so that it matters who comes first.
        visits: threads that executed it.
    """

    first: int
    last: int
    end: End
    steps: list[tuple[int, Step]] = field(default_factory=list)
    gather: bool = False
    mask: Callable[[Frame], Any] = _everyone
    exchanges: bool = False
    visits: int = 0
