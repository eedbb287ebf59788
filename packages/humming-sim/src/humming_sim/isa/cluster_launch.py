"""Taking over the work of CTAs that have not started (PTX ISA 9.0, 9.7.13.17-18).

Every CTA of a wave has started, so a request always fails, as it may on a device at any time.
"""

from __future__ import annotations

import numpy as np

from humming_sim.isa.builder import Builder
from humming_sim.isa.mbarriers import barrier_places
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.machine.shared_memory import RANK_SHIFT
from humming_sim.ptx.model import Instruction

_RESPONSE = 16  # bytes; all zero is "not cancelled", which is the only answer here


@instruction("clusterlaunchcontrol.try_cancel", manual="9.7.13.17 clusterlaunchcontrol.try_cancel")
def compile_try_cancel(item: Instruction, b: Builder) -> Step:
    """Ask for another cluster's work; the answer comes asynchronously."""
    modifiers = Modifiers(item, "clusterlaunchcontrol.try_cancel")
    modifiers.one_of("async")
    modifiers.drop("shared::cta")
    modifiers.one_of("mbarrier::complete_tx::bytes")
    everywhere = modifiers.flag("multicast::cluster::all")
    modifiers.one_of("b128")
    modifiers.done()
    target, barrier = b.operands(2)
    address, places = b.address(target), barrier_places(b, barrier, False)

    def step(frame: Frame) -> None:
        issued, size = frame.copy(), frame.machine.geometry.cluster_size
        own, where, barriers = frame.ctas(), address(frame), places(frame)
        for index in range(frame.n):
            first = int(own[index]) // size * size
            ctas = range(first, first + size) if everywhere else [int(own[index])]
            for cta in ctas:
                offset = int(where[index]) & ((1 << RANK_SHIFT) - 1) | cta % size << RANK_SHIFT
                shift = (cta - int(own[index])) * frame.machine.shared.stride
                _answer(issued, cta, offset, int(barriers[index]) + shift)

    return step


def _answer(frame: Frame, cta: int, address: int, barrier: int) -> None:
    machine = frame.machine

    def act() -> None:
        places = machine.shared.locate_from(frame, cta, np.array([address]), _RESPONSE)
        machine.shared.write_async(frame, places, np.zeros(1, f"V{_RESPONSE}"))
        machine.mbarriers.complete(frame, barrier, _RESPONSE)

    machine.mbarriers.need_fenced(frame, barrier)
    machine.asyncs.submit(
        frame, act, dangling="exits while its request for other work has not been answered"
    )


@instruction(
    "clusterlaunchcontrol.query_cancel", manual="9.7.13.18 clusterlaunchcontrol.query_cancel"
)
def compile_query_cancel(item: Instruction, b: Builder) -> Step:
    """Read an answer: whether there is work, and whose."""
    modifiers = Modifiers(item, "clusterlaunchcontrol.query_cancel")
    asks = "is_canceled" in modifiers
    modifiers.rest()
    target, response = b.operands(2)
    read = b.read(response, "b128")
    if asks:
        write = b.write(target, "pred")
        return lambda frame: write(frame, (read(frame) != 0).any(-1))
    writes = b.write_group(target, "b32")

    def step(frame: Frame) -> None:
        frame.machine.report(frame, "numeric", "asks for the CTA of a request that failed", index=0)
        for write in writes:
            write(frame, np.uint32(0xFFFFFFFF))

    return step
