"""Clusters and the grid (PTX ISA 9.0, 9.7.9.23-24, 9.7.13.3, 9.7.13.13, 9.7.19.5)."""

from __future__ import annotations

import numpy as np

from humming_sim.isa.builder import Builder
from humming_sim.isa.control import nothing
from humming_sim.isa.registry import Modifiers, instruction, turning_point
from humming_sim.isa.spaces import SHARED
from humming_sim.machine.code import End, Step
from humming_sim.machine.frame import Frame
from humming_sim.machine.geometry import WARP
from humming_sim.machine.machine import Machine
from humming_sim.machine.scheduler import HANDLED, Parked
from humming_sim.machine.shared_memory import RANK_SHIFT
from humming_sim.ptx.model import Immediate, Instruction

_OFFSET = (1 << RANK_SHIFT) - 1
_REGISTERS = 65536 // WARP  # of a CTA, per lane of one warp


@instruction("mapa", manual="9.7.9.23 mapa")
def compile_mapa(item: Instruction, b: Builder) -> Step:
    """The address of the same variable in another CTA of the cluster."""
    modifiers = Modifiers(item, "mapa")
    shared = modifiers.flag("shared::cluster")
    kind = modifiers.type()
    modifiers.done()
    target, source, rank = b.operands(3)
    base = 0 if shared else SHARED
    read, ranks, write = b.read(source, kind), b.read(rank, "u32"), b.write(target, kind)

    def step(frame: Frame) -> None:
        chosen = frame.expand(ranks(frame)).astype(np.int64)
        size = frame.machine.geometry.cluster_size
        if (chosen >= size).any():
            frame.machine.report(
                frame,
                "cluster",
                f"CTA {int(chosen.max())} of a cluster of {size}",
                index=int(chosen.argmax()),
            )
        offset = (frame.expand(read(frame)).astype(np.int64) - base) & _OFFSET
        write(frame, base + offset + (chosen << RANK_SHIFT))

    return step


@instruction("getctarank", manual="9.7.9.24 getctarank")
def compile_getctarank(item: Instruction, b: Builder) -> Step:
    """The rank of the CTA that a shared address lies in."""
    modifiers = Modifiers(item, "getctarank")
    shared = modifiers.flag("shared::cluster")
    kind = modifiers.type()
    modifiers.done()
    target, source = b.operands(2)
    base = 0 if shared else SHARED
    read, write = b.read(source, kind), b.write(target, "u32")
    return lambda f: write(f, (f.expand(read(f)).astype(np.int64) - base) >> RANK_SHIFT)


@instruction("barrier.cluster.arrive", manual="9.7.13.3 barrier.cluster")
def compile_cluster_arrive(item: Instruction, b: Builder) -> Step:
    """Arrive at the barrier of the cluster."""
    modifiers = Modifiers(item, "barrier.cluster.arrive")
    modifiers.drop("release", "relaxed", "aligned")
    modifiers.done()
    return lambda frame: frame.machine.clusters.arrive(frame)


@turning_point("barrier.cluster.wait", manual="9.7.13.3 barrier.cluster")
def compile_cluster_wait(item: Instruction, b: Builder) -> End:
    """Wait until all threads of the cluster have arrived."""
    modifiers = Modifiers(item, "barrier.cluster.wait")
    modifiers.drop("acquire", "aligned")
    modifiers.done()
    following = b.next

    def end(frame: Frame) -> int:
        frame.machine.clusters.wait(frame, following)
        return HANDLED

    return end


@instruction("griddepcontrol", manual="9.7.13.13 griddepcontrol")
def compile_griddepcontrol(item: Instruction, b: Builder) -> Step:
    """Order between dependent grids: a launch runs alone here, so all it waits for is done."""
    modifiers = Modifiers(item, "griddepcontrol")
    modifiers.one_of("wait", "launch_dependents")
    modifiers.done()
    return nothing


@turning_point("setmaxnreg", manual="9.7.19.5 setmaxnreg", together="warp")
def compile_setmaxnreg(item: Instruction, b: Builder) -> End:
    """Trade registers between warps: an increase waits until others have given enough back."""
    modifiers = Modifiers(item, "setmaxnreg")
    modifiers.one_of("inc", "dec")
    modifiers.one_of("sync")
    modifiers.one_of("aligned")
    modifiers.type()
    modifiers.done()
    count = b.operands(1)[0]
    if not isinstance(count, Immediate) or count.value % 8 or not 24 <= count.value <= 256:
        raise b.wrong("setmaxnreg takes a multiple of 8 from 24 to 256")
    wanted, following = count.value, b.next
    pools: dict[int, RegisterPool] = b.machine.extra.setdefault("registers", {})

    def end(frame: Frame) -> int:
        machine = frame.machine
        threads, ctas = frame.threads(), frame.ctas()
        for warp in np.unique(threads // WARP).tolist():
            lanes = threads[threads // WARP == warp]
            cta = int(ctas[threads // WARP == warp][0])
            if cta not in pools:
                pools[cta] = RegisterPool(machine)
            pools[cta].ask(frame.of(lanes), warp, wanted, following)
        return HANDLED

    return end


class RegisterPool:
    """The registers of a CTA, per lane: what each warp holds, and who waits for more.

    A CTA starts with as many for each warp as it was compiled for (.maxnreg, or what the largest
    CTA that fits would have).
    """

    def __init__(self, machine: Machine) -> None:
        warps = machine.geometry.warps
        compiled = machine.kernel.directives.get("maxnreg", (0,))[0]
        self._each = compiled or min(255, _REGISTERS // warps) // 8 * 8
        self._free = 0 if compiled else _REGISTERS - self._each * warps
        self._held: dict[int, int] = {}
        self._waiting: list[tuple[Parked, int, int]] = []

    def ask(self, frame: Frame, warp: int, wanted: int, following: int) -> None:
        """A warp sets its registers and goes on at `following`, perhaps later."""
        machine = frame.machine
        parked = machine.scheduler.park(frame, following, lambda: self._why(wanted))
        self._waiting.append((parked, warp, wanted))
        while any(self._serve(machine, entry) for entry in list(self._waiting)):
            pass

    def _serve(self, machine: Machine, entry: tuple[Parked, int, int]) -> bool:
        parked, warp, wanted = entry
        more = wanted - self._held.get(warp, self._each)
        if more > self._free:
            return False
        self._free -= more
        self._held[warp] = wanted
        self._waiting.remove(entry)
        machine.scheduler.wake(parked)
        return True

    def _why(self, wanted: int) -> str:
        return f"setmaxnreg waits for {wanted} registers a thread; {self._free} are free"
