"""cp.async.bulk and cp.reduce.async.bulk of byte ranges (PTX ISA 9.0, 9.7.9.25.4, 9.7.9.27.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from humming_sim.isa.async_copy import constant_operand
from humming_sim.isa.builder import Builder, Reader
from humming_sim.isa.copy_groups import BulkGroups, BulkOperation
from humming_sim.isa.destinations import Destinations
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.isa.transfers import (
    GlobalSink,
    Load,
    SharedSource,
    Signals,
    global_offsets,
    need_read,
    one_thread,
    pieces_of,
    report_problem,
    shared_sink,
)
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.machine.shared_memory import RANK_SHIFT
from humming_sim.ptx.model import Instruction, Operand
from humming_sim.tma.bulk import (
    REDUCE_GLOBAL,
    REDUCE_SHARED,
    UNIT,
    copied_bytes,
    copy_problem,
    reduction_refusal,
)
from humming_sim.tma.reductions import STORAGE, Reduction, reduction

OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")

_CTA, _CLUSTER = "shared::cta", "shared::cluster"

Addresses = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Combination:
    """How a reduction combines: the function and the type of its operands."""

    function: Reduction
    operands: npt.DTypeLike


@instruction("cp.async.bulk", manual="9.7.9.25.4.1 cp.async.bulk")
def compile_bulk_copy(item: Instruction, b: Builder) -> Step:
    """Start to copy a range of bytes."""
    modifiers = Modifiers(item, "cp.async.bulk")
    target, source = _spaces(modifiers)
    return _compile(item, b, modifiers, (target, source), None)


@instruction("cp.reduce.async.bulk", manual="9.7.9.25.4.2 cp.reduce.async.bulk")
def compile_bulk_reduction(item: Instruction, b: Builder) -> Step:
    """Start to combine a range of shared memory with one elsewhere, element by element."""
    modifiers = Modifiers(item, "cp.reduce.async.bulk")
    target, source = _spaces(modifiers)
    if source != _CTA:
        raise b.wrong("a bulk reduction reads .shared::cta")
    how = modifiers.one_of(*OPERATIONS)
    type_ = modifiers.types(1)[0]
    modifiers.drop("noftz")
    refusal = reduction_refusal(REDUCE_GLOBAL if target == "global" else REDUCE_SHARED, how, type_)
    if refusal is not None:
        raise b.wrong(refusal)
    combination = Combination(reduction(how, type_), STORAGE[type_])
    return _compile(item, b, modifiers, (target, source), combination)


def _spaces(modifiers: Modifiers) -> tuple[str, str]:
    """Take destination and source, which are written in that order."""
    words = (_CTA, _CLUSTER, "global")
    return modifiers.one_of(*words), modifiers.one_of(*words)


def _compile(
    item: Instruction,
    b: Builder,
    modifiers: Modifiers,
    spaces: tuple[str, str],
    combination: Combination | None,
) -> Step:
    operands = list(item.operands)
    if modifiers.flag("L2::cache_hint"):
        # The policy is the last operand, but for a byte mask.
        b.read(operands.pop(-2 if "cp_mask" in modifiers else -1), "b64")
    if spaces == ("global", _CTA):
        return _compile_store(b, modifiers, operands, combination)
    modifiers.one_of("mbarrier::complete_tx::bytes")
    multicast = modifiers.flag("multicast::cluster")
    modifiers.done()
    if len(operands) != 4 + multicast:
        raise b.wrong(f"{len(operands)} operands; expected {4 + multicast}")
    mask = operands[4] if multicast else None
    places = Destinations(b, operands[0], operands[3], mask, spaces[0] == _CLUSTER)
    source, size = b.address(operands[1]), b.read(operands[2], "u32")
    if spaces == (_CLUSTER, _CTA) and not multicast:
        return _send(places, source, size, combination)
    if spaces[1] != "global" or spaces[0] == "global":
        raise b.wrong(f"there is no bulk copy from .{spaces[1]} to .{spaces[0]}")
    return _load(places, source, size)


def _load(places: Destinations, source: Reader, size: Reader) -> Step:
    def step(frame: Frame) -> None:
        sources, sizes = source(frame), frame.expand(size(frame)).astype(np.int64)
        targets = places.read(frame)
        for index in range(frame.n):
            mine, count = targets.of(index), int(sizes[index])
            _check(frame, index, mine.address, sources[index], count)
            pieces = pieces_of(frame, count, UNIT, index)
            part = one_thread(frame, index)
            offsets = global_offsets(frame, sources[index] + pieces, UNIT, index=index)
            flat = mine.flat(frame, mine.address[:, None] + pieces, UNIT)
            signals = Signals(part, [(where, count) for where in mine.barrier.tolist()])
            copies = np.tile(offsets, len(mine.thread))
            Load(part, UNIT, copies, flat.reshape(-1), signals).issue()

    return step


def _check(frame: Frame, index: int, targets: Addresses, source: int, size: int) -> None:
    sources, sizes = np.full_like(targets, source), np.full_like(targets, size)
    problem = copy_problem(targets, sources, sizes, ("shared", "global"))
    report_problem(frame, None if problem is None else replace(problem, index=index))


def _send(
    places: Destinations, source: Reader, size: Reader, combination: Combination | None
) -> Step:
    """From the CTA's shared memory to that of another CTA of the cluster."""

    def step(frame: Frame) -> None:
        sources, sizes = source(frame), frame.expand(size(frame)).astype(np.int64)
        targets = places.read(frame)
        report_problem(frame, copy_problem(targets.address, sources, sizes, ("shared", "shared")))
        _need_remote(frame, targets.address)
        for index in range(frame.n):
            pieces = pieces_of(frame, int(sizes[index]), UNIT, index)
            part = one_thread(frame, index)
            here = _own(frame, index, sources[index] + pieces)
            mine = targets.of(index)
            flat = mine.flat(frame, mine.address[:, None] + pieces, UNIT).reshape(-1)
            signals = Signals(part, [(int(targets.barrier[index]), int(sizes[index]))])
            _issue_send(SharedSource(part, here, UNIT), flat, signals, combination)

    return step


def _issue_send(
    source: SharedSource, flat: Addresses, signals: Signals, combination: Combination | None
) -> None:
    frame, machine = signals.frame, signals.frame.machine
    signals.check()
    put = shared_sink(frame, flat)
    need_read(frame, flat, UNIT)
    if combination is None:
        machine.shared.expect_async(flat, UNIT)

    def run() -> None:
        values = source.take()
        if combination is not None:
            values = _combined(frame, flat, values, combination)
        put(values)
        signals.send()

    machine.asyncs.submit(
        frame, run, dangling="the CTA exits while this copy of its shared memory is in flight"
    )


def _combined(
    frame: Frame, flat: Addresses, values: npt.NDArray[np.void], combination: Combination
) -> npt.NDArray[np.void]:
    old = frame.machine.shared.read_async(frame, flat, UNIT)
    before = np.ascontiguousarray(old).view(combination.operands)
    coming = np.ascontiguousarray(values).view(combination.operands)
    result: npt.NDArray[np.void] = np.ascontiguousarray(combination.function(before, coming)).view(
        old.dtype
    )
    return result


def _need_remote(frame: Frame, addresses: Addresses) -> None:
    """Copies between CTAs go to another CTA (PTX ISA 9.0, 9.7.9.25.4.1)."""
    own = frame.ctas() % frame.machine.geometry.cluster_size
    near = addresses >> RANK_SHIFT == own
    if near.any():
        index = int(np.argmax(near))
        frame.machine.report(
            frame,
            "cluster",
            "the destination must lie in another CTA of the cluster than the thread's",
            index=index,
            space="shared",
            address=int(addresses[index]),
        )


def _own(frame: Frame, index: int, addresses: Addresses) -> Addresses:
    """Offsets of one thread's own shared memory."""
    cta = int(frame.ctas()[index])
    return frame.machine.shared.locate_from(frame, cta, addresses, UNIT)


def _compile_store(
    b: Builder, modifiers: Modifiers, operands: list[Operand], combination: Combination | None
) -> Step:
    modifiers.one_of("bulk_group")
    masked = combination is None and modifiers.flag("cp_mask")
    modifiers.done()
    if len(operands) != 3 + masked:
        raise b.wrong(f"{len(operands)} operands; expected {3 + masked}")
    target, source = b.address(operands[0]), b.address(operands[1])
    size = b.read(operands[2], "u32")
    mask = b.read(operands[3], "b16") if masked else None

    def step(frame: Frame) -> None:
        targets, sources = target(frame), source(frame)
        sizes = frame.expand(size(frame)).astype(np.int64)
        masks = None if mask is None else frame.expand(mask(frame))
        report_problem(frame, copy_problem(targets, sources, sizes, ("global", "shared")))
        groups = BulkGroups.of(frame.machine)
        for index in range(frame.n):
            pieces = pieces_of(frame, int(sizes[index]), UNIT, index)
            part = one_thread(frame, index)
            offsets = global_offsets(frame, targets[index] + pieces, UNIT, True, index)
            sink = GlobalSink(part, offsets, UNIT)
            if combination is not None:
                sink.reduce, sink.operands = combination.function, combination.operands
            if masks is not None:
                sink.mask = copied_bytes(int(masks[index]), int(sizes[index])).reshape(-1, UNIT)
            here = SharedSource(part, _own(frame, index, sources[index] + pieces), UNIT)
            groups.issue(BulkOperation(part, here, sink.put))

    return step


@instruction("cp.async.bulk.prefetch", manual="9.7.9.25.4.3 cp.async.bulk.prefetch")
def compile_bulk_prefetch(item: Instruction, b: Builder) -> Step:
    """A cache hint, whose address and size are checked."""
    modifiers = Modifiers(item, "cp.async.bulk.prefetch")
    modifiers.one_of("L2")
    modifiers.one_of("global")
    policy = modifiers.flag("L2::cache_hint")
    modifiers.done()
    operands = b.operands(2 + policy)
    source, size = b.address(operands[0]), b.read(operands[1], "u32")

    def step(frame: Frame) -> None:
        sources, sizes = source(frame), frame.expand(size(frame)).astype(np.int64)
        report_problem(frame, copy_problem(sources, sources, sizes, ("global", "global")))

    return step


@instruction("cp.async.bulk.commit_group", manual="9.7.9.27.2.1 cp.async.bulk.commit_group")
def compile_bulk_commit(item: Instruction, b: Builder) -> Step:
    """Make a group of the thread's bulk operations so far."""
    Modifiers(item, "cp.async.bulk.commit_group").done()
    b.operands(0)
    return lambda frame: BulkGroups.of(frame.machine).commit(frame)


@instruction("cp.async.bulk.wait_group", manual="9.7.9.27.2.2 cp.async.bulk.wait_group")
def compile_bulk_wait(item: Instruction, b: Builder) -> Step:
    """Wait until at most so many groups are left, or (.read) have still to be read."""
    modifiers = Modifiers(item, "cp.async.bulk.wait_group")
    reading = modifiers.flag("read")
    modifiers.done()
    pending = constant_operand(b, b.operands(1)[0])
    return lambda frame: BulkGroups.of(frame.machine).wait(frame, pending, reading)
