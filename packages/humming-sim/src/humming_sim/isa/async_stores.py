"""Stores and reductions that one thread sends to the shared memory of another CTA, and st.bulk.

PTX ISA 9.0, 9.7.9.12 (st.async), 9.7.9.13 (st.bulk), 9.7.13.7 (red.async).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.isa.builder import Builder
from humming_sim.isa.bulk_copy import OPERATIONS
from humming_sim.isa.destinations import Destinations
from humming_sim.isa.memory import lanes_of
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.isa.spaces import SHARED, WINDOW
from humming_sim.isa.transfers import (
    GlobalSink,
    Signals,
    global_offsets,
    one_thread,
    pieces_of,
    raw_type,
    report_problem,
)
from humming_sim.isa.types import DTYPES, width_of
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.machine.shared_memory import RANK_SHIFT
from humming_sim.ptx.model import Immediate, Instruction, Operand
from humming_sim.tma.bulk import REDUCE_GLOBAL, REDUCE_SHARED, initialise_problem, reduction_refusal
from humming_sim.tma.reductions import STORAGE, Reduction, reduction

Bits = npt.NDArray[Any]

_BARRIER = "mbarrier::complete_tx::bytes"


@instruction("st.async", manual="9.7.9.12 st.async")
def compile_store_async(item: Instruction, b: Builder) -> Step:
    """Start a store to the cluster's shared memory, or (.release) to global memory."""
    modifiers = Modifiers(item, "st.async")
    lanes = lanes_of(modifiers)
    type_ = modifiers.types(1)[0]
    return _compile(item, b, modifiers, (type_, lanes), None)


@instruction("red.async", manual="9.7.13.7 red.async")
def compile_reduce_async(item: Instruction, b: Builder) -> Step:
    """The same with a reduction."""
    modifiers = Modifiers(item, "red.async")
    how = modifiers.one_of(*OPERATIONS)
    type_ = modifiers.types(1)[0]
    table = REDUCE_GLOBAL | {"add": REDUCE_SHARED["add"] | {"s64"}}
    refusal = reduction_refusal(table if "release" in modifiers else REDUCE_SHARED, how, type_)
    if refusal is not None or ("release" in modifiers and how != "add"):
        raise b.wrong(refusal or f"red.async.release.{how}; there is only .add")
    return _compile(item, b, modifiers, (type_, 1), how)


def _compile(
    item: Instruction, b: Builder, modifiers: Modifiers, what: tuple[str, int], how: str | None
) -> Step:
    released = modifiers.flag("release")
    modifiers.drop("weak", "relaxed", "mmio", "cta", "cluster", "gpu", "sys", _BARRIER)
    modifiers.drop("global" if released else "shared::cluster")
    modifiers.done()
    type_, lanes = what
    combine = None if how is None else reduction(how, "u64" if type_ == "s64" else type_)
    operands = b.operands(2 if released else 3)
    values = _Values(b, operands[1], type_, lanes)
    if released:
        return _to_global(b, operands[0], values, combine)
    return _to_cluster(Destinations(b, operands[0], operands[2], None, True), values, combine)


class _Values:
    """The operand with the values."""

    def __init__(self, b: Builder, operand: Operand, type_: str, lanes: int) -> None:
        self._reads = b.read_group(operand, type_, lanes)
        self._dtype = np.dtype(DTYPES[type_])
        self.width = width_of(type_) // 8 * lanes
        self.operands: npt.DTypeLike = STORAGE.get(type_, raw_type(width_of(type_) // 8))

    def read(self, frame: Frame) -> Bits:
        """One value of `width` bytes per thread."""
        parts = [frame.expand(read(frame)) for read in self._reads]
        joined = np.ascontiguousarray(np.stack(parts, 1)).astype(self._dtype, copy=False)
        values: Bits = joined.view(raw_type(self.width)).reshape(-1)
        return values


def _to_cluster(places: Destinations, values: _Values, combine: Reduction | None) -> Step:
    width = values.width

    def step(frame: Frame) -> None:
        machine = frame.machine
        targets = places.read(frame)
        _need_cluster(frame)
        flat = targets.flat(frame, targets.address[:, None], width).reshape(-1)
        issuer, addresses, data = frame.copy(), targets.address, values.read(frame)
        signals = Signals(issuer, [(where, width) for where in targets.barrier.tolist()])
        signals.check()
        if combine is None:
            machine.shared.expect_async(flat, width)

        def run() -> None:
            if combine is None:
                machine.shared.store(issuer, addresses, data, peers=True)
            else:
                _reduce(issuer, addresses, data, combine)
            signals.send()

        machine.asyncs.submit(frame, run)

    return step


def _reduce(frame: Frame, addresses: npt.NDArray[np.int64], data: Bits, combine: Reduction) -> None:
    shared, width = frame.machine.shared, data.dtype.itemsize
    for index in range(frame.n):  # one by one, since lanes may meet at one address
        one, where = one_thread(frame, index), addresses[index : index + 1]
        old = shared.load(one, where, width, peers=True)
        shared.store(one, where, combine(old, data[index : index + 1]), peers=True)


def _need_cluster(frame: Frame) -> None:
    if frame.machine.geometry.cluster_size == 1:
        frame.machine.report(
            frame, "cluster", "this instruction needs a cluster of more than one CTA"
        )


def _to_global(b: Builder, target: Operand, values: _Values, combine: Reduction | None) -> Step:
    address, width = b.address(target), values.width

    def step(frame: Frame) -> None:
        addresses, data = address(frame), values.read(frame)
        frame.machine.memory.locate(frame, addresses, width, write=True)
        for index in range(frame.n):
            one = one_thread(frame, index)
            place = addresses[index : index + 1]
            offsets = global_offsets(frame, place, width, True, index)
            sink = GlobalSink(one, offsets, width, combine, values.operands)
            frame.machine.asyncs.submit(one, partial(sink.put, data[index : index + 1]))

    return step


@instruction("st.bulk", manual="9.7.9.13 st.bulk")
def compile_store_bulk(item: Instruction, b: Builder) -> Step:
    """Set a range of shared memory to zero."""
    modifiers = Modifiers(item, "st.bulk")
    modifiers.drop("weak", "shared::cta")
    modifiers.done()
    operands = b.operands(3)
    if not isinstance(operands[2], Immediate) or operands[2].value:
        raise b.wrong("st.bulk can only write zeros")
    address, size = b.address(operands[0]), b.read(operands[1], "u32")

    def step(frame: Frame) -> None:
        where = address(frame)
        where = np.where(where // WINDOW == SHARED // WINDOW, where - SHARED, where)
        sizes = frame.expand(size(frame)).astype(np.int64)
        report_problem(frame, initialise_problem(where, sizes))
        for index in range(frame.n):
            places = where[index] + pieces_of(frame, int(sizes[index]), 8, index)
            _zero(one_thread(frame, index), places)

    return step


def _zero(frame: Frame, places: npt.NDArray[np.int64]) -> None:
    shared = frame.machine.shared
    own = int(frame.ctas()[0]) % frame.machine.geometry.cluster_size
    if not len(places):
        return
    if (places >> RANK_SHIFT != own).any():
        frame.machine.report(
            frame,
            "cluster",
            "st.bulk writes the CTA's own shared memory",
            index=0,
            space="shared",
            address=int(places[0]),
        )
    shared.store(frame, places, np.zeros(len(places), np.uint64))
