"""What instructions that compute each thread's result from its operands have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from humming_sim.isa.builder import Builder, Reader, Writer
from humming_sim.isa.types import width_of
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.ptx.model import Operand, Register

__all__ = ["PACKED_WIDTH", "apply", "read_bits", "read_values"]

#: Types that name two elements of one register, and the register's width.
PACKED_WIDTH = {"f16x2": 32, "bf16x2": 32, "f32x2": 64, "u16x2": 32, "s16x2": 32}


def read_bits(b: Builder, operand: Operand, kind: str) -> Reader:
    """The operand as unsigned bit patterns of type `kind`, always ``[n]``.

    Literals are numbers of that type first: 1.0 as f32 reads as 0x3f800000.
    """
    width = PACKED_WIDTH.get(kind) or width_of(kind)
    bits = f"b{width}"
    if isinstance(operand, Register):
        return b.read(operand, bits)
    read = b.read(operand, bits if kind in PACKED_WIDTH else kind)
    unsigned = np.dtype(f"u{width // 8}")
    return lambda frame: np.ascontiguousarray(frame.expand(read(frame))).view(unsigned)


def read_values(b: Builder, operands: Sequence[Operand], kind: str) -> list[Reader]:
    """The operands as values of `kind`: each ``[n]``, or a scalar for what all threads share."""
    return [b.read(operand, kind) for operand in operands]


def apply(function: Callable[..., Any], readers: Sequence[Reader], write: Writer) -> Step:
    """A step that writes ``function(*operands)``; `function` does not change its arguments."""
    if len(readers) == 1:
        only = readers[0]
        return lambda frame: write(frame, function(only(frame)))
    if len(readers) == 2:
        first, second = readers
        return lambda frame: write(frame, function(first(frame), second(frame)))
    if len(readers) == 3:
        first, second, third = readers
        return lambda frame: write(frame, function(first(frame), second(frame), third(frame)))

    def step(frame: Frame) -> None:
        write(frame, function(*(read(frame) for read in readers)))

    return step
