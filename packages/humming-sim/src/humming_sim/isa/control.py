"""Control flow and CTA barriers (PTX ISA 9.0, 9.7.12 and 9.7.13.1-2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from humming_sim.isa.builder import Builder, Reader
from humming_sim.isa.registry import Modifiers, instruction, turning_point
from humming_sim.machine.code import End, Step
from humming_sim.machine.frame import Frame
from humming_sim.machine.scheduler import HANDLED
from humming_sim.ptx.model import Immediate, Instruction, Operand, Symbol

_BARRIERS = 16  # CTA barriers, PTX ISA 9.0, 9.7.13.1


def nothing(frame: Frame) -> None:
    """A step that changes nothing."""
    del frame


@turning_point("bra", manual="9.7.12.3 bra")
def compile_bra(item: Instruction, b: Builder) -> End:
    """A jump; a guard is handled by whoever compiles the block."""
    modifiers = Modifiers(item, "bra")
    modifiers.drop("uni")
    modifiers.done()
    target = b.label(b.operands(1)[0])
    scheduler = b.machine
    return lambda frame: scheduler.scheduler.jump(frame, target)


@turning_point("brx.idx", manual="9.7.12.4 brx.idx")
def compile_brx(item: Instruction, b: Builder) -> End:
    """A jump to the entry of a list that a register selects."""
    modifiers = Modifiers(item, "brx.idx")
    modifiers.drop("uni")
    modifiers.done()
    index, table = b.operands(2)
    read, targets = b.read(index, "u32"), b.table(table)

    def end(frame: Frame) -> int:
        chosen = frame.expand(read(frame))
        if (chosen >= len(targets)).any():
            frame.machine.report(
                frame,
                "bounds",
                f"entry {int(chosen.max())} of a list of {len(targets)} targets",
                index=int(chosen.argmax()),
            )
        for value in np.unique(chosen).tolist():
            part = frame.of(frame.threads()[chosen == value])
            target = frame.machine.scheduler.jump(part, targets[value])
            if target != HANDLED:
                frame.machine.scheduler.push(frame.pool, target, part.sel)
        return HANDLED

    return end


@turning_point("ret", "exit", manual="9.7.12.6 ret, 9.7.12.7 exit")
def compile_exit(item: Instruction, b: Builder) -> End:
    """The end of a thread; kernels have no caller to return to."""
    modifiers = Modifiers(item, item.words[0])
    modifiers.drop("uni")
    modifiers.done()
    return lambda frame: frame.machine.scheduler.exit(frame)


@turning_point("trap", manual="9.7.19.4 trap")
def compile_trap(item: Instruction, b: Builder) -> End:
    """An abort, which is always a finding."""
    del item, b

    def end(frame: Frame) -> int:
        frame.machine.report(frame, "trap", "the kernel aborted itself", index=0)
        return frame.machine.scheduler.exit(frame)

    return end


@instruction("call", manual="9.7.12.5 call")
def compile_call(item: Instruction, b: Builder) -> Step:
    """Calls of the two functions that device code gets from the driver."""
    (callee,) = b.operands(1)
    name = callee.name if isinstance(callee, Symbol) else ""
    if name == "vprintf":
        return nothing

    def step(frame: Frame) -> None:
        if name == "__assertfail":
            frame.machine.report(frame, "trap", "a device assertion failed", index=0)
        raise refusal

    refusal = b.unsupported(f"the call of {name}; compile with inlining")
    return step


# ------------------------------------------------------------------------------------- CTA barriers


@turning_point(
    "bar.sync",
    "barrier.sync.aligned",
    "barrier.cta.sync.aligned",
    manual="9.7.13.1 bar, barrier",
    together="warp",
)
def compile_sync_aligned(item: Instruction, b: Builder) -> End:
    """Arrive and wait; the lanes of a warp together."""
    return _sync(item, b)


@turning_point("bar.cta.sync", manual="9.7.13.1 bar, barrier", together="warp")
def compile_sync_cta(item: Instruction, b: Builder) -> End:
    """The same, spelled with its scope."""
    return _sync(item, b)


@turning_point("barrier.sync", "barrier.cta.sync", manual="9.7.13.1 bar, barrier")
def compile_sync(item: Instruction, b: Builder) -> End:
    """Arrive and wait; lanes may come one by one."""
    return _sync(item, b)


def _sync(item: Instruction, b: Builder) -> End:
    operands = b.operands(1, 2)
    number, count = _number(b, operands[0]), _count(b, operands[1] if operands[1:] else None)
    following = b.next

    def end(frame: Frame) -> int:
        for value, size, part in _split(frame, number(frame), count(frame)):
            frame.machine.barriers.arrive(part, value, size, following)
        return HANDLED

    return end


@instruction(
    "bar.arrive",
    "bar.cta.arrive",
    "barrier.arrive.aligned",
    "barrier.cta.arrive.aligned",
    manual="9.7.13.1 bar, barrier",
    together="warp",
)
def compile_arrive_aligned(item: Instruction, b: Builder) -> Step:
    """Arrive without waiting, the lanes of a warp together."""
    return compile_arrive(item, b)


@instruction("barrier.arrive", "barrier.cta.arrive", manual="9.7.13.1 bar, barrier")
def compile_arrive(item: Instruction, b: Builder) -> Step:
    """Arrive without waiting."""
    operands = b.operands(2)
    number, count = _number(b, operands[0]), _count(b, operands[1])

    def step(frame: Frame) -> None:
        for value, size, part in _split(frame, number(frame), count(frame)):
            frame.machine.barriers.arrive(part, value, size, None)

    return step


@turning_point("barrier.red", "barrier.cta.red", manual="9.7.13.1 bar, barrier")
def compile_reduce(item: Instruction, b: Builder) -> End:
    """Arrive, wait and reduce a predicate; lanes may come one by one."""
    return compile_reduce_aligned(item, b)


@turning_point(
    "bar.red",
    "bar.cta.red",
    "barrier.red.aligned",
    "barrier.cta.red.aligned",
    manual="9.7.13.1 bar, barrier",
    together="warp",
)
def compile_reduce_aligned(item: Instruction, b: Builder) -> End:
    """Arrive, wait, and learn for how many threads a predicate held."""
    words = [word for word in item.words if word in ("popc", "and", "or")]
    if len(words) != 1:
        raise b.wrong("bar.red needs .popc, .and or .or")
    how = words[0]
    operands = b.operands(3, 4)
    number = _number(b, operands[1])
    count = _count(b, operands[2] if len(operands) == 4 else None)
    predicate = b.read(operands[-1], "pred")
    write = b.write(operands[0], "u32" if how == "popc" else "pred")
    following = b.next

    def result(part: Frame, true: int, all_: int) -> None:
        write(part, {"popc": np.uint32(true), "and": true == all_, "or": true > 0}[how])

    def end(frame: Frame) -> int:
        held = frame.expand(predicate(frame))
        for value, size, part in _split(frame, number(frame), count(frame)):
            mine = held[np.isin(frame.threads(), part.threads())]
            frame.machine.barriers.arrive(part, value, size, following, mine, result)
        return HANDLED

    return end


def _number(b: Builder, operand: Operand) -> Reader:
    return b.read(operand, "u32")


def _count(b: Builder, operand: Operand | None) -> Reader:
    """Threads of a barrier; 0 stands for all."""
    if operand is None:
        return lambda frame: 0
    if isinstance(operand, Immediate) and operand.value % 32:
        raise b.wrong("a barrier's thread count is a multiple of 32")
    return b.read(operand, "u32")


def _split(frame: Frame, numbers: Any, counts: Any) -> list[tuple[int, int | None, Frame]]:
    """(barrier, count or None, the threads that name them)."""
    if np.ndim(numbers) == 0 and np.ndim(counts) == 0:
        groups = [(int(numbers), int(counts), frame)]
    else:
        pairs = np.stack([frame.expand(numbers), frame.expand(counts)], -1).astype(np.int64)
        groups = []
        for number, count in np.unique(pairs, axis=0).tolist():
            mask = (pairs == (number, count)).all(-1)
            groups.append((number, count, frame.of(frame.threads()[mask])))
    for number, count, part in groups:
        if number >= _BARRIERS:
            part.machine.report(part, "bounds", f"barrier {number}; a CTA has 0 to 15", index=0)
        if count % 32:
            part.machine.report(
                part, "convergence", f"a barrier for {count} threads, no multiple of 32", index=0
            )
    return [(number, count or None, part) for number, count, part in groups]


@instruction("bar.warp.sync", manual="9.7.13.2 bar.warp.sync", together=0)
def compile_warp_sync(item: Instruction, b: Builder) -> Step:
    """The named lanes come together; the scheduler sees to it."""
    b.operands(1)
    return lambda frame: frame.machine.synchronised(frame)


# ---------------------------------------------------------------------------------- of no effect


@instruction("nanosleep", manual="9.7.19.2 nanosleep")
def compile_nanosleep(item: Instruction, b: Builder) -> Step:
    """A pause, a hint that the loop around it waits for something."""
    return lambda frame: frame.machine.poll(frame)


@instruction(
    "pmevent",
    "brkpt",
    "discard",
    "applypriority",
    manual="9.7.19.1 brkpt, 9.7.19.3 pmevent, 9.7.9.16 applypriority, 9.7.9.17 discard",
)
def compile_nothing(item: Instruction, b: Builder) -> Step:
    """Profiling, debugging and cache hints."""
    return nothing
