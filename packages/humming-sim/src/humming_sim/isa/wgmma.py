"""wgmma: four warps multiply matrices of shared memory, asynchronously.

PTX ISA 9.0, 9.7.15.5.2 wgmma.mma_async, 9.7.15.6 (sparse), 9.7.15.7 (fence, commit_group,
wait_group). Each warp computes its own 16 rows of D. An instruction takes descriptors, predicate
and metadata when it is issued; it reads shared memory and registers, and writes D, at some time
until its group has been waited for, in the order of issue.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.isa.builder import Builder, Reader
from humming_sim.isa.mma import by_warp, need_whole_warps
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.isa.wgmma_forms import parse
from humming_sim.isa.wgmma_operation import Operation, Plan, make_plan
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.machine.geometry import WARP
from humming_sim.machine.machine import Machine
from humming_sim.matrices.operands import lint_wgmma_descriptor
from humming_sim.matrices.sparse import lint_selector
from humming_sim.ptx.model import Group, Immediate, Instruction
from humming_sim.ptx.model import Operand as Argument

_GROUPS = 64  # committed groups that are remembered; waits reach back far less
_WARPGROUP = 4
_DANGLING = "the CTA exits before this wgmma has been waited for"


class _State:
    """Operations in flight and groups of every warp of the machine.

    Attributes:
        number: of the last operation issued.
        flying: operations that nobody has waited for, in the order of issue.
        issued: number of each warp's last operation, and how many it issued.
        marks, groups: number of the last operation of each of a warp's groups, and how many
            groups it committed.
    """

    def __init__(self, machine: Machine) -> None:
        warps = machine.geometry.threads // WARP
        self.number = 0
        self.flying: list[Operation] = []
        self.issued = np.zeros(warps, np.int64)
        self.counts = np.zeros(warps, np.int64)
        self.marks = np.zeros((warps, _GROUPS), np.int64)
        self.groups = np.zeros(warps, np.int64)

    @staticmethod
    def of(machine: Machine) -> _State:
        """The machine's state; the first call makes it."""
        state = machine.extra.get("wgmma")
        if state is None:
            state = machine.extra["wgmma"] = _State(machine)
            machine.extra.setdefault("at exit", []).append(state.check_exit)
        found: _State = state
        return found

    def check_exit(self, last: Frame) -> None:
        """All four warps of a warpgroup execute the same wgmma."""
        geometry = last.machine.geometry
        by_cta = self.counts.reshape(geometry.ctas, geometry.warps)
        short = -geometry.warps % _WARPGROUP
        counts = np.pad(by_cta, ((0, 0), (0, short))).reshape(geometry.ctas, -1, _WARPGROUP)
        if (counts != counts[:, :, :1]).any():
            cta, group, _ = (int(i) for i in np.argwhere(counts != counts[:, :, :1])[0])
            last.machine.report(
                last, "convergence",
                f"the warps of warpgroup {group} of CTA {cta} executed "
                f"{counts[cta, group].tolist()} wgmma.mma_async; expected the same number",
            )  # fmt: skip


# ----------------------------------------------------------------------------------- mma_async


@instruction("wgmma.mma_async", manual="9.7.15.5.2 wgmma.mma_async", together="warp")
def compile_mma_async(item: Instruction, b: Builder) -> Step:
    """Issue D = A * B + D, or D = A * B if scale-d is false."""
    form = parse(item)
    in_registers = len(item.operands) > 1 and isinstance(item.operands[1], Group)
    transposes = form.transposes * (1 if in_registers else 2)
    d, a, second, *more = b.operands(4 + 2 * form.sparse + 2 * form.signs + transposes)
    metadata, selector = _metadata(b, more) if form.sparse else (None, 0)
    scale_d, signs, majors = _immediates(b, more[2 * form.sparse :], form.signs)
    of_a, of_b = {0: ("K", "K"), 1: ("K", *majors), 2: majors}[len(majors)]
    plan = make_plan(b, form, (d, a), (*signs, of_a, of_b), selector)
    if form.sparse and plan.sparsity is not None:
        for message in lint_selector(plan.sparsity, selector):
            raise b.wrong(message)
    read_b = b.read(second, "b64")
    read_a = None if in_registers else b.read(a, "b64")
    accumulate = b.read(scale_d, "pred")
    needs_d = not (isinstance(scale_d, Immediate) and scale_d.value == 0)
    _declare(b, plan, needs_d)
    state = _State.of(b.machine)

    def step(frame: Frame) -> None:
        need_whole_warps(frame)
        keep = _per_warp(frame, accumulate(frame), "scale-d").astype(np.bool_)
        operation = Operation(plan, frame.copy(), keep)
        operation.descriptors = (
            None if read_a is None else _descriptor(frame, read_a, plan, 0),
            _descriptor(frame, read_b, plan, 1),
        )
        if metadata is not None:
            operation.metadata = by_warp(frame, metadata(frame)).copy()
        _check_registers(frame, plan, keep)
        operation.look()
        _issue(state, frame, operation)

    return step


def _immediates(
    b: Builder, arguments: list[Argument], signs: bool
) -> tuple[Argument, tuple[bool, bool], tuple[str, ...]]:
    """scale-d, whether A and B are negated, and the majors that imm-trans gives."""
    numbers = []
    for argument in arguments[1:]:
        if not isinstance(argument, Immediate):
            raise b.wrong("imm-scale and imm-trans are constants")
        numbers.append(argument.value if argument.value < 1 << 31 else argument.value - (1 << 64))
    scales, transposes = (numbers[:2], numbers[2:]) if signs else ([1, 1], numbers)
    if any(scale not in (1, -1) for scale in scales):
        raise b.wrong("imm-scale-a and imm-scale-b are 1 or -1")
    if any(transpose not in (0, 1) for transpose in transposes):
        raise b.wrong("imm-trans-a and imm-trans-b are 0 or 1")
    majors = tuple("MN" if transpose else "K" for transpose in transposes)
    return arguments[0], (scales[0] < 0, scales[1] < 0), majors


def _metadata(b: Builder, arguments: list[Argument]) -> tuple[Reader, int]:
    selector = arguments[1]
    if not isinstance(selector, Immediate):
        raise b.wrong("the sparsity selector is a constant")
    (words,) = b.read_group(arguments[0], "b32", 1)
    return words, selector.value


def _declare(b: Builder, plan: Plan, needs_d: bool) -> None:
    """Tell the flow analysis which registers are read and written."""
    if needs_d:
        b.traffic.reads |= set(plan.d)
    b.traffic.reads |= set(plan.a)
    b.traffic.writes |= set(plan.d)


def _per_warp(frame: Frame, values: Any, name: str) -> npt.NDArray[Any]:
    """One value per warp, [W]; reports lanes that differ."""
    spread = by_warp(frame, values)
    if (spread != spread[:, :1]).any():
        frame.machine.report(frame, "convergence", f"the lanes of a warp give different {name}")
    return spread[:, 0]


def _descriptor(frame: Frame, read: Reader, plan: Plan, position: int) -> npt.NDArray[np.uint64]:
    """A checked descriptor per warp, [W]."""
    values = _per_warp(frame, read(frame), "matrix descriptors")
    major, k_bytes = plan.majors[position], plan.k_bytes[position]
    for value in {*values.tolist()}:
        for message in lint_wgmma_descriptor(value, major, k_bytes):
            frame.machine.report(frame, "descriptor", f"matrix descriptor {value:#018x}: {message}")
    found: npt.NDArray[np.uint64] = np.array(values)
    return found


def _check_registers(frame: Frame, plan: Plan, keep: npt.NDArray[np.bool_]) -> None:
    """Registers must be written, and fenced from what used them before."""
    for written, name, always in plan.watched:
        missing = ~written[frame.sel] & (always | np.repeat(keep, WARP))
        if missing.any():
            frame.machine.report(
                frame, "uninitialised", f"register {name} is read and nothing wrote it",
                index=int(np.argmax(missing)),
            )  # fmt: skip
    unfenced = frame.machine.holds.unfenced(frame, plan.rows)
    if unfenced.any():
        frame.machine.report(
            frame, "fence",
            "no wgmma.fence lies between an ordinary access to registers of this wgmma and it",
            index=int(np.argmax(unfenced)),
        )  # fmt: skip


def _issue(state: _State, frame: Frame, operation: Operation) -> None:
    state.number += 1
    operation.number = state.number
    state.issued[operation.warps] = state.number
    state.counts[operation.warps] += 1
    state.flying.append(operation)
    machine = frame.machine
    machine.holds.give(frame, operation.plan.rows, state.number)
    for written, _, _ in operation.plan.watched:
        written[frame.sel] = True
    operation.queue = machine.asyncs.submit(
        frame, lambda: _complete(state, operation), dangling=_DANGLING
    )


def _complete(state: _State, operation: Operation) -> None:
    """Execute an operation, and before it what the same warps issued before it."""
    if operation.done:
        return
    before = [o for o in state.flying if o.number < operation.number and not o.done]
    for earlier in before:
        if np.isin(earlier.warps, operation.warps).any():
            earlier.run()
    operation.run()


# ------------------------------------------------------------------ fence, commit_group, wait_group


@instruction("wgmma.fence", manual="9.7.15.7.1 wgmma.fence", together="warp")
def compile_fence(item: Instruction, b: Builder) -> Step:
    """Order register accesses before it and wgmma after it."""
    _words(item, "wgmma.fence")
    b.operands(0)
    return lambda frame: frame.machine.holds.fence(frame)


@instruction("wgmma.commit_group", manual="9.7.15.7.2 wgmma.commit_group", together="warp")
def compile_commit_group(item: Instruction, b: Builder) -> Step:
    """Make a group of what each warp issued since its last group."""
    _words(item, "wgmma.commit_group")
    b.operands(0)
    state = _State.of(b.machine)

    def step(frame: Frame) -> None:
        need_whole_warps(frame)
        ids = frame.warps().ids
        state.marks[ids, state.groups[ids] % _GROUPS] = state.issued[ids]
        state.groups[ids] += 1

    return step


@instruction("wgmma.wait_group", manual="9.7.15.7.3 wgmma.wait_group", together="warp")
def compile_wait_group(item: Instruction, b: Builder) -> Step:
    """Wait until at most N of the latest groups are in flight."""
    _words(item, "wgmma.wait_group")
    (left,) = b.operands(1)
    if not isinstance(left, Immediate) or not 0 <= left.value < _GROUPS:
        raise b.wrong(f"the number of groups is a constant below {_GROUPS}")
    back = left.value + 1
    state = _State.of(b.machine)

    def step(frame: Frame) -> None:
        need_whole_warps(frame)
        ids = frame.warps().ids
        index = state.groups[ids] - back
        upto = np.where(index >= 0, state.marks[ids, index % _GROUPS], 0)
        limit = np.zeros(len(state.issued), np.int64)
        limit[ids] = upto
        for operation in list(state.flying):
            if (limit[operation.warps] >= operation.number).any():
                frame.machine.asyncs.finish(operation.queue)
                state.flying.remove(operation)
        frame.machine.holds.wait(frame, np.repeat(upto, WARP))

    return step


def _words(item: Instruction, start: str) -> None:
    modifiers = Modifiers(item, start)
    modifiers.one_of("sync")
    modifiers.one_of("aligned")
    modifiers.done()
