"""tcgen05.alloc, dealloc and relinquish_alloc_permit (PTX ISA 9.0, 9.7.16.7.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from humming_sim.isa.builder import Builder
from humming_sim.isa.registry import Modifiers, instruction, turning_point
from humming_sim.isa.spaces import Spaces
from humming_sim.isa.tcgen05_state import TensorCores, cta_group, tensor_cores
from humming_sim.machine.code import End, Step
from humming_sim.machine.frame import Frame
from humming_sim.machine.geometry import WARP
from humming_sim.machine.machine import Machine
from humming_sim.machine.scheduler import HANDLED, Parked
from humming_sim.ptx.model import Instruction
from humming_sim.tcgen05.accumulators import COLUMNS, split_address

_UNIT = 32

#: Ends an operation of one warp of each member: (members' frames, columns, address) -> done.
_Complete = Callable[["_Request"], bool]


@dataclass(eq=False)
class _Request:
    """Warps, one of each member CTA, that allocate or deallocate together."""

    members: tuple[int, ...]
    columns: int
    address: int
    complete: _Complete
    frames: dict[int, Frame]
    parked: list[Parked]
    deallocates: bool


class _Waiting:
    """Requests that wait for the peer's warp or for free columns, oldest first."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._requests: list[_Request] = []

    def arrive(self, frame: Frame, cta: int, wanted: _Request, block: int) -> None:
        """A warp comes to an instruction; it goes on when the operation is done."""
        request = self._open(frame, cta, wanted)
        request.frames[cta] = frame
        request.parked.append(self._machine.scheduler.park(frame, block, _why(request)))
        self.settle()

    def _open(self, frame: Frame, cta: int, wanted: _Request) -> _Request:
        for request in self._requests:
            same = request.members == wanted.members and len(request.frames) < len(request.members)
            if same and cta not in request.frames and request.deallocates == wanted.deallocates:
                if (request.columns, request.address) != (wanted.columns, wanted.address):
                    self._machine.report(
                        frame, "tmem",
                        f"{wanted.columns} columns here and {request.columns} in the peer CTA; the "
                        "pair must ask for the same",
                    )  # fmt: skip
                return request
        self._requests.append(wanted)
        return wanted

    def settle(self) -> None:
        """Complete what can be completed."""
        for request in [r for r in self._requests if len(r.frames) == len(r.members)]:
            if request.complete(request):
                self._requests.remove(request)
                for parked in request.parked:
                    self._machine.scheduler.wake(parked)
                if request.deallocates:
                    self.settle()
                    return


def _why(request: _Request) -> Callable[[], str]:
    def why() -> str:
        if len(request.frames) < len(request.members):
            return "a warp of the peer CTA has not come to the same instruction"
        return f"{request.columns} neighbouring columns of tensor memory are not free"

    return why


def _waiting(machine: Machine) -> _Waiting:
    waiting: _Waiting = machine.extra.setdefault("tcgen05 waiting", _Waiting(machine))
    return waiting


def _each_warp(frame: Frame) -> list[tuple[Frame, int, int]]:
    """(threads, CTA, warp) of each warp of the frame."""
    out = []
    for warp in frame.warps().ids.tolist():
        threads = frame.threads()
        part = frame.of(threads[threads // WARP == warp])
        if part.n != WARP:
            frame.machine.report(part, "convergence", "only a part of the warp executes this")
        out.append((part, int(part.ctas()[0]), warp))
    return out


def _check_columns(frame: Frame, columns: int) -> None:
    if not _UNIT <= columns <= COLUMNS or columns & (columns - 1):
        frame.machine.report(
            frame, "tmem", f"{columns} columns; a power of two from {_UNIT} to {COLUMNS} is allowed"
        )


@turning_point("tcgen05.alloc", manual="9.7.16.7.1 tcgen05.alloc", together="warp")
def compile_alloc(item: Instruction, b: Builder) -> End:
    """Allocate columns and store their address in shared memory; waits until there are enough."""
    modifiers = Modifiers(item, "tcgen05.alloc")
    group = cta_group(modifiers.one_of)
    modifiers.drop("sync", "aligned", "b32")
    space = "shared" if modifiers.flag("shared::cta") else ""
    modifiers.done()
    target, amount = b.operands(2)
    address, columns = b.address(target), b.read(amount, "u32")
    cores, following, spaces = tensor_cores(b.machine), b.next, Spaces(b.environment)

    def complete(request: _Request) -> bool:
        if not all(_fits(cores, cta, request.columns) for cta in request.members):
            return False
        for cta, frame in request.frames.items():
            first = cores.allocate(frame, cta, request.columns)
            one = frame.of(frame.threads()[:1])
            spaces.store(one, space, address(one), np.full(1, first, np.uint32))
        return True

    def end(frame: Frame) -> int:
        for part, cta, warp in _each_warp(frame):
            cores.use_group(part, group)
            count = part.uniform(columns(part))
            _check_columns(part, count)
            _check_right(cores, part, cta, warp, count)
            members = cores.members(part, cta, group)
            wanted = _Request(members, count, 0, complete, {}, [], False)
            _waiting(part.machine).arrive(part, cta, wanted, following)
        return HANDLED

    return end


def _fits(cores: TensorCores, cta: int, columns: int) -> bool:
    taken = cores.allocations[cta].values()
    return any(
        all(first + columns <= a.first or a.first + a.columns <= first for a in taken)
        for first in range(0, COLUMNS - columns + 1, columns)
    )


def _check_right(cores: TensorCores, frame: Frame, cta: int, warp: int, columns: int) -> None:
    machine = frame.machine
    if cta in cores.closed:
        machine.report(frame, "tmem", "allocates after tcgen05.relinquish_alloc_permit of this CTA")
    first = cores.allocator.setdefault(cta, warp)
    if first != warp:
        machine.report(
            frame, "tmem",
            f"allocates, but warp {first % machine.geometry.warps} has allocated before; one warp "
            "of a CTA must do it",
        )  # fmt: skip
    smallest = cores.smallest.setdefault(cta, columns)
    if columns > smallest:
        machine.report(
            frame, "tmem",
            f"allocates {columns} columns after {smallest}; later allocations must not be larger",
        )  # fmt: skip
    cores.smallest[cta] = columns


@turning_point("tcgen05.dealloc", manual="9.7.16.7.1 tcgen05.dealloc", together="warp")
def compile_dealloc(item: Instruction, b: Builder) -> End:
    """Give columns back; a pair's warps wait for each other."""
    modifiers = Modifiers(item, "tcgen05.dealloc")
    group = cta_group(modifiers.one_of)
    modifiers.drop("sync", "aligned", "b32")
    modifiers.done()
    where, amount = b.operands(2)
    address, columns = b.read(where, "u32"), b.read(amount, "u32")
    cores, following = tensor_cores(b.machine), b.next

    def complete(request: _Request) -> bool:
        first = split_address(request.address)[1]
        for cta in request.members:
            cores.free(cta, first)
        return True

    def end(frame: Frame) -> int:
        for part, cta, _ in _each_warp(frame):
            cores.use_group(part, group)
            count, at = part.uniform(columns(part)), part.uniform(address(part))
            if not _check_allocation(cores, part, cta, at, count):
                part.machine.scheduler.push(part.pool, following, part.sel)
                continue
            members = cores.members(part, cta, group)
            wanted = _Request(members, count, at, complete, {}, [], True)
            _waiting(part.machine).arrive(part, cta, wanted, following)
        return HANDLED

    return end


def _check_allocation(cores: TensorCores, frame: Frame, cta: int, at: int, columns: int) -> bool:
    lane, first = split_address(at)
    allocation = cores.allocations[cta].get(first)
    if allocation is not None and allocation.columns == columns and lane == 0:
        return True
    there = ", ".join(f"{a.columns} at {a.first:#x}" for a in cores.allocations[cta].values())
    frame.machine.report(
        frame, "tmem",
        f"deallocates {columns} columns at {at:#x}; allocated are {there or 'none'}",
        space="tmem", address=at,
    )  # fmt: skip
    return False


@instruction(
    "tcgen05.relinquish_alloc_permit",
    manual="9.7.16.7.1 tcgen05.relinquish_alloc_permit",
    together="warp",
)
def compile_relinquish(item: Instruction, b: Builder) -> Step:
    """The CTA allocates no more."""
    modifiers = Modifiers(item, "tcgen05.relinquish_alloc_permit")
    group = cta_group(modifiers.one_of)
    modifiers.drop("sync", "aligned")
    modifiers.done()
    b.operands(0)
    cores = tensor_cores(b.machine)

    def step(frame: Frame) -> None:
        cores.use_group(frame, group)
        cores.closed.update(np.unique(frame.ctas()).tolist())

    return step
