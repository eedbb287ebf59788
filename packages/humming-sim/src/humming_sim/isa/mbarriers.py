"""mbarrier instructions (PTX ISA 9.0, 9.7.13.15.9-16)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.isa.builder import Builder, Reader
from humming_sim.isa.registry import Modifiers, instruction, turning_point
from humming_sim.isa.spaces import SHARED, WINDOW
from humming_sim.machine.code import End, Step
from humming_sim.machine.frame import Frame
from humming_sim.machine.mbarrier import MAX_COUNT
from humming_sim.machine.scheduler import HANDLED
from humming_sim.ptx.model import Instruction, Operand, Sink

_SPURIOUS = 0.2  # chance that a seeded run lets try_wait give up early, as its time limit may


def barrier_places(b: Builder, operand: Operand, peers: bool) -> Reader:
    """Offsets of the mbarriers that an address names, [n]; generic addresses too."""
    address = b.address(operand)

    def places(frame: Frame) -> npt.NDArray[np.int64]:
        where = address(frame)
        where = np.where(where // WINDOW == SHARED // WINDOW, where - SHARED, where)
        return frame.machine.mbarriers.locate(frame, where, peers)

    return places


def _take_space(modifiers: Modifiers) -> bool:
    """Take scope, ordering and space; whether other CTAs' barriers may be named."""
    modifiers.drop("release", "acquire", "relaxed", "cta", "cluster")
    peers = modifiers.flag("shared::cluster")
    modifiers.drop("shared", "shared::cta")
    modifiers.one_of("b64")
    return peers


def _per_barrier(frame: Frame, places: Any, *values: Any) -> list[tuple[int, npt.NDArray[Any]]]:
    """(offset, which of the frame's threads) of each distinct barrier."""
    first = int(places[0])
    if (places == first).all():
        return [(first, np.ones(frame.n, np.bool_))]
    return [(int(where), places == where) for where in np.unique(places)]


@instruction("mbarrier.init", manual="9.7.13.15.9 mbarrier.init")
def compile_init(item: Instruction, b: Builder) -> Step:
    """Make an mbarrier for a number of arrivals."""
    modifiers = Modifiers(item, "mbarrier.init")
    _take_space(modifiers)
    modifiers.done()
    where, count = b.operands(2)
    places, counts = barrier_places(b, where, False), b.read(count, "u32")
    return lambda f: f.machine.mbarriers.initialise(f, places(f), counts(f))


@instruction("mbarrier.inval", manual="9.7.13.15.10 mbarrier.inval")
def compile_inval(item: Instruction, b: Builder) -> Step:
    """Free the bytes of an mbarrier."""
    modifiers = Modifiers(item, "mbarrier.inval")
    _take_space(modifiers)
    modifiers.done()
    places = barrier_places(b, b.operands(1)[0], False)
    return lambda f: f.machine.mbarriers.invalidate(f, places(f))


@instruction("mbarrier.expect_tx", manual="9.7.13.15.11 mbarrier.expect_tx")
def compile_expect(item: Instruction, b: Builder) -> Step:
    """Announce bytes without arriving."""
    return _compile_bytes(item, b, "expect_tx")


@instruction("mbarrier.complete_tx", manual="9.7.13.15.12 mbarrier.complete_tx")
def compile_complete(item: Instruction, b: Builder) -> Step:
    """Count bytes as arrived."""
    return _compile_bytes(item, b, "complete_tx")


def _compile_bytes(item: Instruction, b: Builder, what: str) -> Step:
    modifiers = Modifiers(item, f"mbarrier.{what}")
    peers = _take_space(modifiers)
    modifiers.done()
    where, count = b.operands(2)
    places, counts = barrier_places(b, where, peers), b.read(count, "u32")

    def step(frame: Frame) -> None:
        mbarriers = frame.machine.mbarriers
        act = mbarriers.expect if what == "expect_tx" else mbarriers.complete
        sizes = frame.expand(counts(frame)).astype(np.int64)
        for barrier, mine in _per_barrier(frame, places(frame)):
            act(frame, barrier, int(sizes[mine].sum()))

    return step


@instruction("mbarrier.arrive", manual="9.7.13.15.13 mbarrier.arrive")
def compile_arrive(item: Instruction, b: Builder) -> Step:
    """Arrive, perhaps announcing bytes first."""
    return _compile_arrive(item, b, "arrive")


@instruction("mbarrier.arrive_drop", manual="9.7.13.15.14 mbarrier.arrive_drop")
def compile_arrive_drop(item: Instruction, b: Builder) -> Step:
    """Arrive, and need fewer arrivals in later phases."""
    return _compile_arrive(item, b, "arrive_drop")


def _compile_arrive(item: Instruction, b: Builder, what: str) -> Step:
    modifiers = Modifiers(item, f"mbarrier.{what}")
    expects = modifiers.flag("expect_tx")
    keeps = modifiers.flag("noComplete")
    peers = _take_space(modifiers)
    modifiers.done()
    operands = list(b.operands(1, 2, 3))
    state = operands.pop(0) if _returns(item) else Sink()
    places = barrier_places(b, operands[0], peers)
    amount = b.read(operands[1], "u32") if len(operands) > 1 else None
    if amount is None and (expects or keeps):
        raise b.wrong(f"{item.opcode} needs a count")
    write = b.write(state, "b64")
    drops = what == "arrive_drop"

    def step(frame: Frame) -> None:
        mbarriers = frame.machine.mbarriers
        amounts = None if amount is None else frame.expand(amount(frame)).astype(np.int64)
        phases = np.zeros(frame.n, np.uint64)
        for barrier, mine in _per_barrier(frame, places(frame)):
            arrivals = int(mine.sum())
            if amounts is not None and expects:
                _check_amount(frame, amounts, "bytes", 0)
                mbarriers.expect(frame, barrier, int(amounts[mine].sum()))
            elif amounts is not None:
                _check_amount(frame, amounts, "arrivals", 1)
                arrivals = int(amounts[mine].sum())
            if peers:
                mbarriers.need_fenced(frame, barrier)
            phases[mine] = mbarriers.arrive(frame, barrier, arrivals, arrivals if drops else 0)
        write(frame, phases)

    return step


def _check_amount(frame: Frame, amounts: npt.NDArray[np.int64], what: str, low: int) -> None:
    bad = (amounts < low) | (amounts > MAX_COUNT)
    if bad.any():
        index = int(np.argmax(bad))
        frame.machine.report(
            frame,
            "mbarrier",
            f"{int(amounts[index])} {what}; the range is {low}..{MAX_COUNT}",
            index=index,
        )


def _returns(item: Instruction) -> bool:
    """Whether the first operand is the state, which other CTAs' barriers don't give."""
    return type(item.operands[0]).__name__ != "Address"


@instruction("mbarrier.pending_count", manual="9.7.13.15.17 mbarrier.pending_count")
def compile_pending(item: Instruction, b: Builder) -> Step:
    """Not simulated: the state is opaque, and here it is only the phase."""
    raise b.unsupported("mbarrier.pending_count; a state holds only its phase here")


@instruction("mbarrier.test_wait", manual="9.7.13.15.16 mbarrier.test_wait")
def compile_test(item: Instruction, b: Builder) -> Step:
    """Whether a phase is complete, without waiting."""
    places, complete, write = _waiting(item, b, "mbarrier.test_wait")

    def step(frame: Frame) -> None:
        done = complete(frame, places(frame))
        write(frame, done)
        if not done.all():
            frame.machine.poll(frame)
        ready = frame.narrow(done)
        if ready is not None:
            frame.machine.synchronised(ready)

    return step


@turning_point("mbarrier.try_wait", manual="9.7.13.15.16 mbarrier.try_wait")
def compile_try(item: Instruction, b: Builder) -> End:
    """Whether a phase is complete, after waiting for it.

    On a device the wait is limited in time; a seeded run gives up early now and then, so that a
    kernel that doesn't look at the result shows itself.
    """
    places, complete, write = _waiting(item, b, "mbarrier.try_wait")
    following = b.next

    def end(frame: Frame) -> int:
        where = frame.expand(places(frame))
        done = complete(frame, where)
        ready = frame.narrow(done)
        if ready is not None:
            write(ready, True)
            frame.machine.synchronised(ready)
            if ready is frame:
                return following
            frame.machine.scheduler.push(frame.pool, following, ready.sel)
        late = frame.narrow(~done)
        if late is None:
            return HANDLED
        random = frame.machine.random
        if random is not None and random.random() < _SPURIOUS:
            write(late, False)
            frame.machine.poll(late)
            frame.machine.scheduler.push(frame.pool, following, late.sel)
            return HANDLED
        places_left = where if late is frame else where[~done]
        for barrier, mine in _per_barrier(late, places_left):
            _wait(late.of(late.threads()[mine]), barrier, following, write)
        return HANDLED

    return end


def _wait(frame: Frame, barrier: int, following: int, write: Any) -> None:
    machine = frame.machine
    waiting = machine.mbarriers.at(frame, barrier).waiting

    def wake() -> None:
        write(frame, True)
        machine.synchronised(frame)
        machine.scheduler.wake(parked)

    def give_up() -> None:
        write(frame, False)
        waiting.remove(wake)

    parked = machine.scheduler.park(
        frame, following, lambda: machine.mbarriers.describe(barrier), give_up
    )
    waiting.append(wake)


def _waiting(item: Instruction, b: Builder, start: str) -> tuple[Reader, Any, Any]:
    """(where, (frame, where) to "complete", writer of the result) of a wait."""
    modifiers = Modifiers(item, start)
    parity = modifiers.flag("parity")
    _take_space(modifiers)
    modifiers.done()
    operands = b.operands(3, 4)  # the fourth is a time limit
    places = barrier_places(b, operands[1], False)
    state = b.read(operands[2], "u32" if parity else "b64")

    def complete(frame: Frame, where: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        barriers = {int(w): frame.machine.mbarriers.at(frame, int(w)) for w in np.unique(where)}
        if len(barriers) == 1:
            phase: Any = next(iter(barriers.values())).phase
        else:
            phase = np.array([barriers[int(w)].phase for w in where])
        given = frame.expand(state(frame)).astype(np.int64)
        if parity:
            if ((given != 0) & (given != 1)).any():
                frame.machine.report(
                    frame,
                    "mbarrier",
                    "a phase parity is 0 or 1",
                    index=int(np.argmax((given != 0) & (given != 1))),
                )
            return np.asarray((phase & 1) != given)
        return np.asarray(phase != given)

    return places, complete, b.write(operands[0], "pred")
