"""tcgen05.ld, st, wait and fence (PTX ISA 9.0, 9.7.16.8 and 9.7.16.11)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from humming_sim.isa.builder import Builder
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.isa.tcgen05_state import TensorCores, tensor_cores
from humming_sim.isa.tcgen05_uses import touched_before_wait
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.machine.geometry import WARP
from humming_sim.machine.machine import Machine
from humming_sim.ptx.model import Immediate, Instruction
from humming_sim.tcgen05.transfers import (
    FRAGMENTS,
    Fragment,
    fragment,
    merge_halves,
    split_halves,
)

_QUARTER = 32
_REPEATS = tuple(f"x{1 << power}" for power in range(8))


class _Cells:
    """The cells that the warps of a frame transfer: arrays that broadcast to [W, 32, R, 1 or 2]."""

    def __init__(self, cores: TensorCores, frame: Frame, addresses: Any, shape: Fragment) -> None:
        machine = frame.machine
        warps = frame.warps()
        if not warps.full:
            machine.report(frame, "convergence", "only a part of the warp executes this")
        spread = warps.spread(addresses)
        if (spread != spread[:, :1]).any():
            machine.report(
                frame, "convergence", "all lanes of a warp must give the same address",
                index=int(np.argmax(warps.gather(spread != spread[:, :1]))),
            )  # fmt: skip
        per_cta = machine.geometry.warps
        quarter = warps.ids % per_cta % 4
        lanes = quarter * _QUARTER
        self.ctas = warps.ids // per_cta
        columns = spread[:, 0] & 0xFFFF
        firsts = zip(self.ctas.tolist(), columns.tolist(), strict=True)
        self._spans = [(cta, first, shape.width) for cta, first in firsts]
        self.check(cores, frame)
        for index, lane in enumerate((spread[:, 0] >> 16).tolist()):
            lanes[index] += _first_lane(frame, index, lane, int(quarter[index]), shape.height)
            cta, column, width = self._spans[index]
            thread = int(warps.ids[index]) * WARP
            rows = slice(int(quarter[index]), int(quarter[index]) + 1)
            cores.order.access(frame, thread, cta, rows, slice(column, column + width), False)
        wide = (slice(None), None, None, None)
        self.index = self.ctas[wide], lanes[wide] + shape.lanes, columns[wide] + shape.columns

    def check(self, cores: TensorCores, frame: Frame) -> None:
        """Report columns that don't exist or are not allocated, at issue or at completion."""
        for cta, first, width in self._spans:
            cores.need(frame, cta, first, width)


def _first_lane(frame: Frame, index: int, lane: int, quarter: int, height: int) -> int:
    """The first lane in the warp's quarter.

    A warp reaches its own quarter only; hardware ignores the quarter in the address, so that 0
    there is as good.
    """
    if lane // _QUARTER not in (0, quarter):
        frame.machine.report(
            frame, "tmem",
            f"lane {lane} of tensor memory; this warp reaches lanes "
            f"[{quarter * _QUARTER}, {(quarter + 1) * _QUARTER})",
            index=index * WARP, space="tmem", address=lane << 16,
        )  # fmt: skip
    if lane % _QUARTER + height > _QUARTER:
        frame.machine.report(
            frame, "tmem",
            f"{height} lanes from lane {lane} on leave the quarter that this warp reaches",
            index=index * WARP, space="tmem", address=lane << 16,
        )  # fmt: skip
    return lane % _QUARTER


def _fragment(item: Instruction, b: Builder, start: str, halves: str) -> tuple[Fragment, int]:
    """The fragment that the opcode names, and the number of operands."""
    modifiers = Modifiers(item, start)
    modifiers.drop("sync", "aligned", "b32")
    shape = modifiers.one_of(*FRAGMENTS)
    repeat = int(modifiers.one_of(*_REPEATS)[1:])
    wide = modifiers.flag(halves)
    modifiers.done()
    split = shape == "16x32bx2"
    operands = b.operands(3 if split else 2)
    second = operands[1 if start.endswith("st") else 2] if split else Immediate(0)
    if not isinstance(second, Immediate):
        raise b.wrong("the columns between the two accesses are an immediate")
    try:
        return fragment(shape, repeat, wide, second.value), FRAGMENTS[shape] * repeat
    except ValueError as error:
        raise b.wrong(str(error)) from error


@instruction("tcgen05.ld", manual="9.7.16.8.3 tcgen05.ld", together="warp")
def compile_load(item: Instruction, b: Builder) -> Step:
    """Load registers; they have their values at tcgen05.wait::ld, or where they are used first."""
    if "red" in item.words:
        raise b.unsupported("tcgen05.ld.red is not simulated")
    shape, count = _fragment(item, b, "tcgen05.ld", "pack::16b")
    writers = b.write_group(item.operands[0], "b32", count)
    address = b.address(item.operands[1])
    cores = tensor_cores(b.machine)
    early, used = touched_before_wait(b.machine.kernel, item)

    def step(frame: Frame) -> None:
        cells = _Cells(cores, frame, address(frame), shape)
        kept = frame.copy()

        def load() -> None:
            cells.check(cores, kept)
            words = merge_halves(cores.read(kept, *cells.index))
            for register, write in enumerate(writers):
                write(kept, words[:, :, register].reshape(-1))

        if used is not None:
            frame.machine.report(
                frame, "tcgen05-wait",
                f"a register of this load is used before tcgen05.wait::ld, at PTX line {used.line}",
            )  # fmt: skip
        _issue(frame, "ld", load, early)

    return step


@instruction("tcgen05.st", manual="9.7.16.8.4 tcgen05.st", together="warp")
def compile_store(item: Instruction, b: Builder) -> Step:
    """Store registers; they are there at tcgen05.wait::st."""
    shape, count = _fragment(item, b, "tcgen05.st", "unpack::16b")
    readers = b.read_group(item.operands[-1], "b32", count)
    address = b.address(item.operands[0])
    cores = tensor_cores(b.machine)
    halves = shape.columns.shape[-1]

    def step(frame: Frame) -> None:
        cells = _Cells(cores, frame, address(frame), shape)
        registers = frame.warps().stack([read(frame) for read in readers])
        words = split_halves(registers, halves)
        kept = frame.copy()

        def store() -> None:
            cells.check(cores, kept)
            for cta in np.unique(cells.ctas).tolist():
                mine = cells.ctas == cta
                lanes, columns = (part[mine] for part in cells.index[1:])
                cores.write(cta, lanes, columns, words[mine])

        _issue(frame, "st", store, False)

    return step


# ------------------------------------------------------------------------------------ waiting


def _issue(frame: Frame, kind: str, action: Callable[[], None], at_once: bool) -> None:
    """Let a transfer of the frame's warps happen at any time until their wait."""
    sentence = f"the warp exits before tcgen05.wait::{kind}"
    queue = frame.machine.asyncs.submit(frame, action, None, sentence)
    if at_once:
        frame.machine.asyncs.finish(queue)
        return
    pending = _pending(frame.machine, kind)
    for warp in frame.warps().ids.tolist():
        pending.setdefault(warp, []).append(queue)


def _pending(machine: Machine, kind: str) -> dict[int, list[Hashable]]:
    pending: dict[int, list[Hashable]] = machine.extra.setdefault(f"tcgen05 {kind}", {})
    return pending


@instruction(
    "tcgen05.wait::ld", "tcgen05.wait::st", manual="9.7.16.8.5 tcgen05.wait", together="warp"
)
def compile_wait(item: Instruction, b: Builder) -> Step:
    """Complete the loads or stores that the warp has issued."""
    start = ".".join(item.words[:2])
    modifiers = Modifiers(item, start)
    modifiers.drop("sync", "aligned")
    modifiers.done()
    b.operands(0)
    tensor_cores(b.machine)
    pending = _pending(b.machine, start[-2:])

    def step(frame: Frame) -> None:
        for warp in frame.warps().ids.tolist():
            for queue in pending.pop(warp, ()):
                frame.machine.asyncs.finish(queue)

    return step


@instruction(
    "tcgen05.fence::before_thread_sync",
    "tcgen05.fence::after_thread_sync",
    manual="9.7.16.11.1 tcgen05.fence",
)
def compile_fence(item: Instruction, b: Builder) -> Step:
    """Order tensor memory accesses with synchronisation; only the check of it looks at them."""
    Modifiers(item, ".".join(item.words[:2])).done()
    b.operands(0)
    cores, after = tensor_cores(b.machine), item.words[1] == "fence::after_thread_sync"
    return lambda frame: cores.order.fence(frame, after)
