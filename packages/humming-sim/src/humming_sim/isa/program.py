"""A kernel's instructions as compiled blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from humming_sim.errors import PtxError
from humming_sim.isa.builder import Builder, Environment, Traffic
from humming_sim.isa.registry import Entry, find
from humming_sim.machine.code import FULL_MASK, Block, End, Step
from humming_sim.machine.frame import Frame, as_selection
from humming_sim.machine.machine import Machine
from humming_sim.machine.scheduler import HANDLED
from humming_sim.ptx.model import Immediate, Instruction, Kernel, Register, Symbol

__all__ = ["compile_kernel"]


def compile_kernel(machine: Machine, environment: Environment) -> list[Block]:
    """Compile every instruction of the machine's kernel.

    Registers that may be read before they are written are watched while the kernel runs; the
    others need no watching, which the kernel's first compilation finds out. After that the
    instructions that have to do with watched registers are compiled once more.

    Raises:
        PtxError: for an instruction that is wrong.
        UnsupportedInstruction: for one that is not simulated.
    """
    kernel = machine.kernel
    entries = [find(item) for item in kernel.instructions]
    leaders = _leaders(kernel, entries)
    program = _Program(machine, environment, kernel, entries, leaders)
    if not machine.checks("uninitialised"):
        return program.compile({})
    if kernel.suspects is None:
        kernel.suspects = program.suspects(program.compile({}))
    threads = machine.geometry.threads
    return program.compile({index: np.zeros(threads, np.bool_) for index in kernel.suspects})


def _leaders(kernel: Kernel, entries: list[Entry]) -> list[int]:
    """Indices of the first instruction of every block, ascending."""
    count = len(entries)
    leaders = {0, *kernel.labels.values()}
    gathered = False  # whether all lanes are known to be together here
    for index, (item, entry) in enumerate(zip(kernel.instructions, entries, strict=True)):
        if index in leaders:
            gathered = False
        if entry.together is not None:
            whole = entry.together == "warp" or _names_all(item, entry.together)
            if not (whole and gathered and not entry.ends):
                leaders.add(index)
            gathered = whole
        if entry.ends:
            leaders.add(index + 1)
    return sorted(index for index in leaders if index < count) or [0]


def _names_all(item: Instruction, together: str | int) -> bool:
    if not isinstance(together, int) or item.guard is not None:
        return False
    mask = item.operands[together]
    return isinstance(mask, Immediate) and mask.value & FULL_MASK == FULL_MASK


class _Made(NamedTuple):
    """An instruction compiled, and what it does with registers."""

    made: Any
    guard: Callable[[Frame], Any] | None
    mask: Callable[[Frame], Any] | None
    traffic: Traffic

    def step(self) -> Step:
        step: Step = self.made
        return step if self.guard is None else _guarded(step, self.guard)

    def end(self, following: int) -> End:
        end: End = self.made
        return end if self.guard is None else _guarded_end(end, self.guard, following)


class _Program:
    def __init__(
        self,
        machine: Machine,
        environment: Environment,
        kernel: Kernel,
        entries: list[Entry],
        leaders: list[int],
    ) -> None:
        self._machine, self._environment = machine, environment
        self._kernel, self._entries, self._leaders = kernel, entries, leaders
        self._block_at = {first: block for block, first in enumerate(leaders)}
        self._made: list[_Made] = []

    def _block_of(self, label: str) -> int:
        where = self._kernel.labels.get(label)
        if where is None:
            raise PtxError(f"there is no label {label}")
        return self._block_at.get(where, len(self._leaders))

    def compile(self, watched: dict[int, npt.NDArray[np.bool_]]) -> list[Block]:
        """All blocks; of what was compiled before, only what now is watched is compiled again."""
        builder = Builder(self._machine, self._environment, watched)
        earlier, self._made = self._made, []
        blocks = []
        for number, first in enumerate(self._leaders):
            following = [*self._leaders[1:], len(self._entries)][number]
            for index in range(first, following):
                if earlier and earlier[index].traffic.registers().isdisjoint(watched):
                    self._made.append(earlier[index])
                else:
                    self._made.append(self._compile(builder, index, number + 1, index == first))
            blocks.append(self._block(number, first, following))
        builder.start(builder.item, 0, _no_label)  # it outlives this program, in closures
        blocks.append(Block(len(self._entries) - 1, len(self._entries) - 1, _leave))
        return blocks

    def _compile(self, builder: Builder, index: int, following: int, leads: bool) -> _Made:
        item, entry = self._kernel.instructions[index], self._entries[index]
        builder.start(item, following, self._block_of)
        mask = None
        if leads and isinstance(entry.together, int):
            mask = builder.read(item.operands[entry.together], "u32")
        guard = None if item.guard is None else builder.read(item.guard, "pred")
        try:
            made = entry.compile(item, builder)
        except PtxError as error:
            if error.line:
                raise
            raise type(error)(error.reason, item.line, item.text) from None
        return _Made(made, guard, mask, builder.traffic)

    def _block(self, number: int, first: int, following: int) -> Block:
        block = Block(first, following - 1, lambda frame: number + 1)
        for index in range(first, following):
            entry, made = self._entries[index], self._made[index]
            block.exchanges |= _exchanges(self._kernel.instructions[index])
            if index == first and entry.together is not None:
                block.gather = True
                if made.mask is not None:
                    block.mask = made.mask
            if entry.ends:
                block.end = made.end(number + 1)
            else:
                block.steps.append((index, made.step()))
        return block

    # ------------------------------------------------------- registers that nothing wrote

    def suspects(self, blocks: list[Block]) -> set[int]:
        """Registers that some path reads without having written them, and where copies lead."""
        count = len(self._leaders)
        before: dict[int, int] = {0: 0}  # registers written for certain before a block
        work = [0]
        while work:
            number = work.pop()
            out = self._flow(blocks[number], before[number], set())
            for successor in self._successors(number):
                known = before.get(successor, -1)
                if successor < count and (known == -1 or known & out != known):
                    before[successor] = known & out
                    work.append(successor)
        suspects: set[int] = set()
        for number, defined in before.items():
            self._flow(blocks[number], defined, suspects)
        return self._close(suspects)

    def _flow(self, block: Block, defined: int, suspects: set[int]) -> int:
        """Registers written for certain after a block; adds what it reads unwritten."""
        for index in range(block.first, block.last + 1):
            traffic = self._made[index].traffic
            suspects |= {r for r in traffic.reads if not defined >> r & 1}
            if self._kernel.instructions[index].guard is None:
                for register in traffic.writes:
                    defined |= 1 << register
                for target, source in traffic.copies.items():
                    if defined >> source & 1:
                        defined |= 1 << target
                    else:
                        defined &= ~(1 << target)
            else:
                for target, source in traffic.copies.items():
                    if not defined >> source & 1:
                        defined &= ~(1 << target)
        return defined

    def _successors(self, number: int) -> list[int]:
        last = [*self._leaders[1:], len(self._entries)][number] - 1
        item = self._kernel.instructions[last]
        out = []
        if item.words[0] == "bra":
            out = [self._block_of(_name(item))]
        elif item.words[0] == "brx":
            out = [self._block_of(label) for label in self._kernel.tables[_name(item)]]
        falls = item.guard is not None or item.words[0] not in ("bra", "brx", "ret", "exit", "trap")
        return [*out, number + 1] if falls else out

    def _close(self, suspects: set[int]) -> set[int]:
        """With the registers that suspects are copied from."""
        copies = [pair for made in self._made for pair in made.traffic.copies.items()]
        grown = True
        while grown:
            more = {source for target, source in copies if target in suspects}
            more |= {target for target, source in copies if source in suspects}
            grown = not more <= suspects
            suspects |= more
        return suspects


def _exchanges(item: Instruction) -> bool:
    """Whether an instruction uses memory that other threads use as well."""
    return item.words[0] in ("ld", "st", "atom", "red") and item.words[1] not in ("param", "local")


def _name(item: Instruction) -> str:
    last = item.operands[-1]
    return last.name if isinstance(last, Symbol | Register) else ""


def _no_label(name: str) -> int:
    raise PtxError(f"the label {name} is looked up too late")


def _leave(frame: Frame) -> int:
    return frame.machine.scheduler.exit(frame)


def _guarded(step: Step, guard: Callable[[Frame], Any]) -> Step:
    def guarded(frame: Frame) -> None:
        narrowed = frame.narrow(guard(frame))
        if narrowed is not None:
            step(narrowed)

    return guarded


def _guarded_end(end: End, guard: Callable[[Frame], Any], following: int) -> End:
    """Threads that the guard excludes go on at the next block."""

    def guarded(frame: Frame) -> int:
        mask = guard(frame)
        narrowed = frame.narrow(mask)
        if narrowed is None:
            return following
        if narrowed is frame:
            return end(frame)
        scheduler = frame.machine.scheduler
        scheduler.push(frame.pool, following, as_selection(frame.threads()[~mask]))
        target = end(narrowed)
        if target != HANDLED:
            scheduler.push(frame.pool, target, narrowed.sel)
        return HANDLED

    return guarded
