"""createpolicy (PTX ISA 9.0, 9.7.9.18): cache policies change no result."""

from __future__ import annotations

import numpy as np

from humming_sim.isa.builder import Builder, Reader, Writer
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.ptx.model import Instruction

_POLICY = np.uint64(1 << 60)  # an opaque value; nothing here looks at it
_PRIORITIES = ("L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged")


@instruction("createpolicy", manual="9.7.9.18 createpolicy")
def compile_policy(item: Instruction, b: Builder) -> Step:
    """Make a cache policy; a fraction must lie in (0, 1]."""
    modifiers = Modifiers(item, "createpolicy")
    kind = modifiers.one_of("fractional", "range", "cvt")
    modifiers.drop("global", "L2", *_PRIORITIES, *_PRIORITIES)
    modifiers.one_of("b64")
    modifiers.done()
    operands = b.operands(*{"fractional": (1, 2), "range": (4,), "cvt": (2,)}[kind])
    write = b.write(operands[0], "b64")
    if kind == "range":
        b.address(operands[1])
        sizes = [b.read(operand, "u32") for operand in operands[2:]]
        return lambda frame: _range(frame, write, *sizes)
    if kind == "cvt":
        b.read(operands[1], "b64")
    if kind == "cvt" or len(operands) == 1:
        return lambda frame: write(frame, _POLICY)
    fraction = b.read(operands[1], "f32")

    def step(frame: Frame) -> None:
        part = frame.expand(fraction(frame))
        wrong = ~((part > 0) & (part <= 1))
        if wrong.any():
            index = int(np.argmax(wrong))
            message = f"a fraction of {part[index]}; it must be above 0 and at most 1"
            frame.machine.report(frame, "numeric", message, index=index)
        write(frame, _POLICY)

    return step


def _range(frame: Frame, write: Writer, primary: Reader, total: Reader) -> None:
    first, whole = frame.expand(primary(frame)), frame.expand(total(frame))
    if (first > whole).any():
        index = int(np.argmax(first > whole))
        message = f"a primary size of {first[index]} bytes, above the total of {whole[index]}"
        frame.machine.report(frame, "numeric", message, index=index)
    write(frame, _POLICY)
