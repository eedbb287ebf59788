"""tcgen05.cp, shift and commit (PTX ISA 9.0, 9.7.16.9 and 9.7.16.12)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from humming_sim.isa.builder import Builder
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.isa.spaces import SHARED
from humming_sim.isa.tcgen05_order import ALL_QUARTERS
from humming_sim.isa.tcgen05_state import TensorCores, cta_group, tensor_cores
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.machine.shared_memory import RANK_SHIFT
from humming_sim.ptx.model import Instruction
from humming_sim.tcgen05.accumulators import split_address
from humming_sim.tcgen05.shared_descriptor import OperandUse, decode, lint, unit_addresses
from humming_sim.tcgen05.transfers import (
    COPIES,
    SHIFT_COLUMNS,
    SHIFT_LANES,
    CopyShape,
    copied_words,
)

__all__ = ["check_descriptor", "read_units"]

#: Bytes of the 16-byte units that hold data, as accesses, by bits of a padded element.
_PARTS = {4: ((0, 8),), 6: ((0, 8), (8, 4)), 0: ((0, 16),)}
_SOURCES = {"b4x16_p64": 4, "b6x16_p32": 6}


def check_descriptor(frame: Frame, index: int, bits: int, use: OperandUse, name: str) -> None:
    """Report what is wrong with a shared memory descriptor that a thread gives."""
    for sentence in lint(bits, use):
        frame.machine.report(frame, "descriptor", f"{name}: {sentence}", index=index)


def read_units(
    frame: Frame, cta: int, bits: int, use: OperandUse, padded: int = 0
) -> npt.NDArray[np.uint8]:
    """The 16-byte units that a descriptor names in the shared memory of a CTA.

    Args:
        padded: bits of an element if the units hold 16 padded ones, else 0; padding isn't read.

    Returns:
        uint8 [lines, units, 16].
    """
    machine = frame.machine
    rank = cta % machine.geometry.cluster_size
    addresses = unit_addresses(decode(bits), use) + (rank << RANK_SHIFT)
    flat = machine.shared.locate_from(frame, cta, addresses, 16)
    units = np.zeros((*flat.shape, 16), np.uint8)
    for first, width in _PARTS[padded]:
        raw = machine.shared.read_async(frame, flat + first, width)
        octets = np.ascontiguousarray(raw).view(np.uint8)
        units[..., first : first + width] = octets.reshape(*flat.shape, width)
    return units


@instruction("tcgen05.cp", manual="9.7.16.9.2 tcgen05.cp")
def compile_copy(item: Instruction, b: Builder) -> Step:
    """Copy a matrix of shared memory to tensor memory, in each CTA from its own."""
    modifiers = Modifiers(item, "tcgen05.cp")
    group = cta_group(modifiers.one_of)
    words = [word for word in COPIES if set(word.split(".")) <= set(item.words)]
    if len(words) != 1:
        raise b.unsupported(f"{item.opcode}: the shapes are {', '.join(COPIES)}")
    modifiers.drop(*words[0].split("."))
    source = modifiers.one_of(*_SOURCES, default="") if modifiers.flag("b8x16") else ""
    modifiers.done()
    shape = COPIES[words[0]]
    to, descriptor = b.operands(2)
    address, bits = b.address(to), b.read(descriptor, "u64")
    cores = tensor_cores(b.machine)

    def step(frame: Frame) -> None:
        given = zip(
            address(frame).tolist(),
            frame.expand(bits(frame)).tolist(),
            frame.ctas().tolist(),
            frame.threads().tolist(),
            strict=True,
        )
        for index, (where, value, cta, thread) in enumerate(given):
            cores.use_group(frame, group)
            check_descriptor(frame, index, value, shape.use, "source")
            lane, column = split_address(where)
            cores.need_lanes(frame, cta, lane, int(shape.lanes.max()) + 1)
            one = frame.of(np.array([thread]))
            members = cores.members(one, cta, group)
            for member in members:
                cores.need(one, member, column, shape.columns)
                span = slice(column, column + shape.columns)
                cores.order.access(one, thread, member, ALL_QUARTERS, span, True)
            cores.submit(one, members, _Copy(cores, members, shape, source, value, where))

    return step


@dataclass(frozen=True)
class _Copy:
    """One issued copy; executed when called."""

    cores: TensorCores
    members: tuple[int, ...]
    shape: CopyShape
    source: str
    bits: int
    address: int

    def __call__(self, frame: Frame) -> None:
        lane, column = split_address(self.address)
        lanes = (lane + self.shape.lanes)[:, :, None]
        columns = column + np.arange(self.shape.columns)
        for cta in self.members:
            self.cores.need(frame, cta, column, self.shape.columns)
            padded = _SOURCES.get(self.source, 0)
            units = read_units(frame, cta, self.bits, self.shape.use, padded)
            words = copied_words(units, self.source)[:, None, :]
            self.cores.write(cta, lanes, columns, words)


@instruction("tcgen05.shift", manual="9.7.16.9.3 tcgen05.shift")
def compile_shift(item: Instruction, b: Builder) -> Step:
    """Each lane of 32 but the last takes the eight columns of the lane after it.

    That this is "down" follows from tcgen05.cp.4x256b, which renews the last lane afterwards.
    """
    modifiers = Modifiers(item, "tcgen05.shift")
    group = cta_group(modifiers.one_of)
    modifiers.drop("down")
    modifiers.done()
    address = b.address(b.operands(1)[0])
    cores = tensor_cores(b.machine)

    def step(frame: Frame) -> None:
        given = zip(
            address(frame).tolist(), frame.ctas().tolist(), frame.threads().tolist(), strict=True
        )
        for index, (where, cta, thread) in enumerate(given):
            cores.use_group(frame, group)
            lane, column = split_address(where)
            if lane % SHIFT_LANES:
                frame.machine.report(
                    frame, "alignment", f"lane {lane}; tcgen05.shift needs a multiple of 32",
                    index=index, space="tmem", address=where,
                )  # fmt: skip
            cores.need_lanes(frame, cta, lane, SHIFT_LANES)
            one = frame.of(np.array([thread]))
            members = cores.members(one, cta, group)
            span = slice(column, column + SHIFT_COLUMNS)
            quarter = slice(lane // SHIFT_LANES, lane // SHIFT_LANES + 1)
            for member in members:
                cores.need(one, member, column, SHIFT_COLUMNS)
                cores.order.access(one, thread, member, quarter, span, True)
            cores.submit(one, members, _shift(cores, members, lane, span))

    return step


def _shift(
    cores: TensorCores, members: tuple[int, ...], lane: int, columns: slice
) -> Callable[[Frame], None]:
    def shift(frame: Frame) -> None:
        last = lane + SHIFT_LANES
        for cta in members:
            words = cores.read(frame, cta, slice(lane + 1, last), columns).copy()
            cores.write(cta, slice(lane, last - 1), columns, words)

    return shift


@instruction("tcgen05.commit", manual="9.7.16.12.1 tcgen05.commit")
def compile_commit(item: Instruction, b: Builder) -> Step:
    """One arrival on an mbarrier, in each CTA of a mask with .multicast, after all before it."""
    modifiers = Modifiers(item, "tcgen05.commit")
    group = cta_group(modifiers.one_of)
    modifiers.one_of("mbarrier::arrive::one")
    generic = not modifiers.flag("shared::cluster")
    multicast = modifiers.flag("multicast::cluster")
    modifiers.drop("b64")
    modifiers.done()
    operands = b.operands(2 if multicast else 1)
    address = b.address(operands[0])
    mask = b.read(operands[1], "u16") if multicast else None
    cores = tensor_cores(b.machine)

    def step(frame: Frame) -> None:
        where = address(frame) - (SHARED if generic else 0)
        masks = None if mask is None else frame.expand(mask(frame)).tolist()
        for index, (cta, thread) in enumerate(
            zip(frame.ctas().tolist(), frame.threads().tolist(), strict=True)
        ):
            cores.use_group(frame, group)
            one = frame.of(np.array([thread]))
            targets = _targets(one, int(where[index]), None if masks is None else masks[index])
            flat = frame.machine.mbarriers.locate(one, targets, peers=True)
            members = cores.members(one, cta, group)
            cores.submit(one, members, _arrive(flat))

    return step


def _targets(frame: Frame, address: int, mask: int | None) -> npt.NDArray[np.int64]:
    """Shared addresses of the mbarriers."""
    if mask is None:
        return np.array([address])
    offset = address & (1 << RANK_SHIFT) - 1
    ranks = [rank for rank in range(16) if mask >> rank & 1]
    size = frame.machine.geometry.cluster_size
    if not ranks or ranks[-1] >= size:
        frame.machine.report(
            frame, "cluster", f"mask {mask:#06x} of CTAs; the cluster has {size}", index=0
        )
    return np.array([rank << RANK_SHIFT | offset for rank in ranks if rank < size])


def _arrive(flat: npt.NDArray[np.int64]) -> Callable[[Frame], None]:
    def arrive(frame: Frame) -> None:
        mbarriers = frame.machine.mbarriers
        for where in flat.tolist():
            mbarriers.need_fenced(frame, where)
            mbarriers.arrive(frame, where, 1)

    return arrive
