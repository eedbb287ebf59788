"""cp.async: copies of up to 16 bytes per thread (PTX ISA 9.0, 9.7.9.25.3, 9.7.13.15.15)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.isa.builder import Builder, Reader
from humming_sim.isa.copy_groups import OPEN, CopyGroups, Mask
from humming_sim.isa.counting import count_access
from humming_sim.isa.mbarriers import barrier_places
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.isa.transfers import global_offsets, raw_type
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.ptx.model import Immediate, Instruction, Operand, Register

_PREFETCHES = ("L2::64B", "L2::128B", "L2::256B")

Addresses = npt.NDArray[np.int64]


@instruction("cp.async", manual="9.7.9.25.3.1 cp.async")
def compile_copy(item: Instruction, b: Builder) -> Step:
    """Start to copy 4, 8 or 16 bytes; what `src-size` leaves out becomes zero."""
    modifiers = Modifiers(item, "cp.async")
    kind = modifiers.one_of("ca", "cg")
    modifiers.one_of("shared", "shared::cta")
    modifiers.one_of("global")
    policy = modifiers.flag("L2::cache_hint")
    modifiers.drop(*_PREFETCHES)
    modifiers.done()
    operands = list(b.operands(3, 4, 5))
    if policy:
        b.read(operands.pop(), "b64")
    if not 3 <= len(operands) <= 4:
        raise b.wrong("a cache policy needs .L2::cache_hint, and that a policy")
    width = _copy_size(b, operands[2], kind)
    target, source = b.address(operands[0]), b.address(operands[1])
    amount = _amount(b, operands[3], width) if len(operands) == 4 else None
    count = count_access(b, "global", width)

    def step(frame: Frame) -> None:
        amounts = None if amount is None else frame.expand(amount(frame)).astype(np.int64)
        if amounts is not None and (amounts == width).all():
            amounts = None
        copies = _Copies(frame.copy(), target(frame), source(frame), width, amounts)
        copies.check()
        if count is not None:
            count(frame, copies.source)
        CopyGroups.of(frame.machine).issue(copies)

    return step


def _copy_size(b: Builder, operand: Operand, kind: str) -> int:
    size = operand.value if isinstance(operand, Immediate) else 0
    allowed = (16,) if kind == "cg" else (4, 8, 16)
    if size not in allowed:
        raise b.wrong(f"cp.async.{kind} copies {' or '.join(map(str, allowed))} bytes")
    return size


def _amount(b: Builder, operand: Operand, width: int) -> Reader:
    """Bytes to read: `src-size`, or all or nothing by the predicate `ignore-src`."""
    if isinstance(operand, Register) and operand.type == "pred":
        ignore = b.read(operand, "pred")
        return lambda frame: np.where(ignore(frame), 0, width)
    return b.read(operand, "u32")


class _Copies:
    """One cp.async by the threads of a frame; see copy_groups.ThreadCopies."""

    def __init__(
        self,
        frame: Frame,
        target: Addresses,
        source: Addresses,
        width: int,
        amounts: Addresses | None,
    ) -> None:
        self.frame, self.target, self.source = frame, target, source
        self.width, self.amounts = width, amounts
        self.group = np.full(frame.n, OPEN)
        self.number = 0
        self.queue: Hashable = None
        self.done = False

    def check(self) -> None:
        """Check addresses and amounts, and mark the destination as being on its way."""
        machine, frame, width = self.frame.machine, self.frame, self.width
        if (self.source % width).any():
            index = int(np.argmax(self.source % width != 0))
            machine.report(
                frame,
                "alignment",
                f"the source of cp.async of {width} bytes must be a multiple of {width}",
                index=index,
                space="global",
                address=int(self.source[index]),
            )
        if self.amounts is None:
            machine.memory.locate(frame, self.source, width)
        else:
            self._check_amounts(self.amounts)
        flat = machine.shared.locate(frame, self.target, width)
        machine.shared.expect_async(flat, width)

    def _check_amounts(self, amounts: Addresses) -> None:
        if (amounts > self.width).any():
            index = int(np.argmax(amounts > self.width))
            self.frame.machine.report(
                self.frame,
                "numeric",
                f"cp.async is to read {int(amounts[index])} of {self.width} bytes",
                index=index,
            )
        for index in np.flatnonzero(amounts).tolist():
            ends = self.source[index] + np.array([0, amounts[index] - 1])
            global_offsets(self.frame, ends, 1, index=index)

    def take(self, mask: Mask) -> _Copies:
        """Move the copies of some of the threads into an object of their own."""
        part = _Copies(
            self.frame.of(self.frame.threads()[mask]),
            self.target[mask],
            self.source[mask],
            self.width,
            None if self.amounts is None else self.amounts[mask],
        )
        self.frame = self.frame.of(self.frame.threads()[~mask])
        self.target, self.source, self.group = (
            self.target[~mask],
            self.source[~mask],
            self.group[~mask],
        )
        self.amounts = None if self.amounts is None else self.amounts[~mask]
        return part

    def run(self) -> None:
        """Copy."""
        self.done = True
        machine = self.frame.machine
        values = self._read() if self.amounts is None else self._read_partly(self.amounts)
        machine.shared.store(self.frame, self.target, values)

    def _read(self) -> npt.NDArray[Any]:
        return self.frame.machine.memory.load(self.frame, self.source, self.width)

    def _read_partly(self, amounts: Addresses) -> npt.NDArray[Any]:
        data = self.frame.machine.memory.view(np.uint8)
        out = np.zeros((self.frame.n, self.width), np.uint8)
        for byte in range(int(amounts.max())):
            wanted = np.flatnonzero(amounts > byte)
            out[wanted, byte] = data[
                global_offsets(self.frame, self.source[wanted] + byte, 1, index=None)
            ]
        whole: npt.NDArray[Any] = out.view(raw_type(self.width)).reshape(-1)
        return whole


@instruction("cp.async.commit_group", manual="9.7.9.25.3.2 cp.async.commit_group")
def compile_commit(item: Instruction, b: Builder) -> Step:
    """Make a group of the copies so far."""
    Modifiers(item, "cp.async.commit_group").done()
    b.operands(0)
    return lambda frame: CopyGroups.of(frame.machine).commit(frame)


@instruction("cp.async.wait_group", manual="9.7.9.25.3.3 cp.async.wait_group")
def compile_wait(item: Instruction, b: Builder) -> Step:
    """Wait until at most so many groups are left."""
    Modifiers(item, "cp.async.wait_group").done()
    pending = constant_operand(b, b.operands(1)[0])
    return lambda frame: CopyGroups.of(frame.machine).wait(frame, pending)


@instruction("cp.async.wait_all", manual="9.7.9.25.3.3 cp.async.wait_all")
def compile_wait_all(item: Instruction, b: Builder) -> Step:
    """Wait for all copies so far, committed or not."""
    Modifiers(item, "cp.async.wait_all").done()
    b.operands(0)

    def step(frame: Frame) -> None:
        groups = CopyGroups.of(frame.machine)
        groups.commit(frame)
        groups.wait(frame, 0)

    return step


def constant_operand(b: Builder, operand: Operand) -> int:
    """The value of an operand that must be a literal."""
    if not isinstance(operand, Immediate) or operand.value < 0:
        raise b.wrong("this operand must be a constant")
    return operand.value


@instruction("cp.async.mbarrier.arrive", manual="9.7.13.15.15 cp.async.mbarrier.arrive")
def compile_arrive(item: Instruction, b: Builder) -> Step:
    """Arrive at an mbarrier once the thread's copies so far are complete.

    Without .noinc the phase first needs one arrival more, which this one then makes up for.
    """
    modifiers = Modifiers(item, "cp.async.mbarrier.arrive")
    counted = modifiers.flag("noinc")
    modifiers.drop("shared", "shared::cta")
    modifiers.one_of("b64")
    modifiers.done()
    places = barrier_places(b, b.operands(1)[0], False)

    def step(frame: Frame) -> None:
        where = frame.expand(places(frame))
        for barrier in np.unique(where).tolist():
            part = frame.narrow(where == barrier)
            if part is not None:
                _arrive(part.copy(), barrier, counted)

    return step


def _arrive(frame: Frame, barrier: int, counted: bool) -> None:
    machine = frame.machine
    groups = CopyGroups.of(machine)
    mark = groups.mark()
    if counted:
        machine.mbarriers.at(frame, barrier)
    else:
        machine.mbarriers.raise_pending(frame, barrier, frame.n)

    def action() -> None:
        groups.wait_until(frame, mark)
        machine.mbarriers.arrive(frame, barrier, frame.n)

    machine.asyncs.submit(frame, action)
