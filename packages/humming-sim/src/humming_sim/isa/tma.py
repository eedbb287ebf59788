"""Copies of tensor tiles (PTX ISA 9.0, 9.7.9.27.1: cp.async.bulk.tensor and its relatives)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.device import target_parts
from humming_sim.isa.builder import Builder
from humming_sim.isa.bulk_copy import OPERATIONS
from humming_sim.isa.control import nothing
from humming_sim.isa.copy_groups import BulkGroups, BulkOperation
from humming_sim.isa.destinations import Destinations
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.isa.tensor_maps import read_map
from humming_sim.isa.transfers import (
    GlobalSink,
    Load,
    SharedSource,
    Signals,
    global_offsets,
    one_thread,
    report_problem,
)
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.ptx.model import Address, Instruction, Operand
from humming_sim.tma.bulk import Problem
from humming_sim.tma.reductions import STORAGE, reduction
from humming_sim.tma.tensor_map import TensorMap
from humming_sim.tma.tiles import OUTSIDE, Tiles, fill_bytes, loaded, pack_six_bits, tiles
from humming_sim.tma.uses import Direction, TensorUse, reduction_type, target_problem, use_problem

Addresses = npt.NDArray[np.int64]

_RANKS = ("1d", "2d", "3d", "4d", "5d")
_IM2COL = ("im2col", "im2col::w", "im2col::w::128", "im2col_no_offs")
_GATHERED = ("tile::gather4", "tile::scatter4")
_GATHERED_COORDINATES = 5


@dataclass(frozen=True)
class _Part:
    """Threads of a frame that use one tensor map.

    Attributes:
        frame: those threads.
        rows: which of the frame's threads they are.
        map: the map.
        coordinates: int64 [n, rank] of each thread.
    """

    frame: Frame
    rows: Addresses
    map: TensorMap
    coordinates: Addresses


class _Tensor:
    """The operand ``[tensorMap, tensorCoords]``."""

    def __init__(self, b: Builder, operand: Operand, use: TensorUse) -> None:
        if not isinstance(operand, Address) or len(operand.extras) != 1:
            raise b.wrong("[tensorMap, {coordinates}] is expected")
        count = _GATHERED_COORDINATES if use.gathered else use.rank
        self._address = b.address(operand)
        self._coordinates = b.read_group(operand.extras[0], "s32", count)
        self._environment, self.use = b.environment, use
        self._architecture, self._exact = target_parts(b.machine.target)

    def parts(self, frame: Frame) -> Iterator[_Part]:
        """The frame's threads by tensor map."""
        addresses = self._address(frame)
        columns = [frame.expand(read(frame)).astype(np.int64) for read in self._coordinates]
        coordinates = np.stack(columns, 1)
        first = int(addresses[0])
        if (addresses == first).all():
            yield from self._part(frame, np.arange(frame.n), first, coordinates)
            return
        for address in np.unique(addresses).tolist():
            rows = np.flatnonzero(addresses == address)
            part = frame.of(frame.threads()[rows])
            yield from self._part(part, rows, address, coordinates[rows])

    def _part(
        self, frame: Frame, rows: Addresses, address: int, coordinates: Addresses
    ) -> Iterator[_Part]:
        tensor_map = read_map(frame, self._environment, address, 0)
        if tensor_map is None:
            return
        # PTX for sm_90 runs on later devices; only "a" and "f" targets tell the device.
        if self._exact or self._architecture > 90:
            message = target_problem(tensor_map, self.use, self._architecture)
            report_problem(frame, None if message is None else Problem("descriptor", message))
        yield _Part(frame, rows, tensor_map, coordinates)


def _take_use(b: Builder, modifiers: Modifiers, direction: Direction) -> TensorUse:
    """Take dimension, mode, and for a reduction the operation."""
    for word in _IM2COL:
        if modifiers.flag(word):
            raise b.unsupported(f".{word}: only tiled tensor copies are simulated")
    rank = int(modifiers.one_of(*_RANKS)[0])
    gathered = modifiers.one_of(*_GATHERED, "tile", default="tile") != "tile"
    if gathered and rank != 2:
        raise b.wrong(".tile::gather4 and .tile::scatter4 are .2d")
    operation = modifiers.one_of(*OPERATIONS) if direction is Direction.REDUCE else ""
    return TensorUse(direction, rank, gathered, operation, "shared::cluster" in modifiers)


@instruction("cp.async.bulk.tensor", manual="9.7.9.27.1.2 cp.async.bulk.tensor")
def compile_tensor_copy(item: Instruction, b: Builder) -> Step:
    """Start to copy a tile to or from shared memory."""
    modifiers = Modifiers(item, "cp.async.bulk.tensor")
    if modifiers.flag("bulk_group"):
        use = _take_use(b, modifiers, Direction.STORE)
        return _compile_store(b, modifiers, use)
    use = _take_use(b, modifiers, Direction.LOAD)
    modifiers.one_of("mbarrier::complete_tx::bytes")
    modifiers.one_of("shared::cta", "shared::cluster")
    modifiers.one_of("global")
    multicast = modifiers.flag("multicast::cluster")
    pair = modifiers.one_of("cta_group::1", "cta_group::2", default="cta_group::1")
    policy = modifiers.flag("L2::cache_hint")
    modifiers.done()
    operands = b.operands(3 + multicast + policy)
    if policy:
        b.read(operands[-1], "b64")
    mask = operands[3] if multicast else None
    places = Destinations(
        b, operands[0], operands[2], mask, use.to_cluster, pair=pair == "cta_group::2"
    )
    tensor = _Tensor(b, operands[1], use)

    def step(frame: Frame) -> None:
        for part in tensor.parts(frame):
            _load(part, use, places)

    return step


def _load(part: _Part, use: TensorUse, places: Destinations) -> None:
    frame, m = part.frame, part.map
    targets = places.read(frame)
    coordinates = part.coordinates[targets.thread]
    problem = use_problem(m, use, coordinates, targets.address)
    if problem is not None:
        report_problem(frame, replace(problem, index=int(targets.thread[problem.index])))
    made = tiles(m, coordinates, targets.address, gathered=use.gathered)
    inside = made.global_addresses != OUTSIDE
    whole = bool(inside.all())
    offsets = _offsets(frame, made, inside, targets.thread)
    count = m.transaction_bytes * _boxes(use)
    issuer = frame.copy()
    Load(
        frame=issuer,
        chunk=made.chunk,
        offsets=offsets,
        flat=targets.flat(frame, made.shared_addresses, made.chunk).reshape(-1),
        signals=Signals(issuer, [(where, count) for where in targets.barrier.tolist()]),
        inside=None if whole else inside.reshape(-1),
        fill=None if whole else fill_bytes(m, made.chunk),
        convert=lambda data: loaded(m, data),
    ).issue()


def _boxes(use: TensorUse) -> int:
    return _GATHERED_COORDINATES - 1 if use.gathered else 1


def _offsets(
    frame: Frame,
    made: Tiles,
    inside: npt.NDArray[np.bool_],
    thread: Addresses,
) -> Addresses:
    """Offsets into global memory of the pieces inside of the tensor, after checking each tile."""
    parts = [
        global_offsets(frame, row[mask], made.chunk, index=int(index))
        for row, mask, index in zip(made.global_addresses, inside, thread, strict=True)
    ]
    return np.concatenate(parts)


def _compile_store(b: Builder, modifiers: Modifiers, use: TensorUse) -> Step:
    modifiers.one_of("global")
    modifiers.one_of("shared::cta")
    policy = modifiers.flag("L2::cache_hint")
    modifiers.done()
    operands = b.operands(2 + policy)
    if policy:
        b.read(operands[-1], "b64")
    tensor, source = _Tensor(b, operands[0], use), b.address(operands[1])

    def step(frame: Frame) -> None:
        sources = source(frame)
        for part in tensor.parts(frame):
            _store(part, use, sources[part.rows])

    return step


def _store(part: _Part, use: TensorUse, sources: Addresses) -> None:
    frame, m = part.frame, part.map
    report_problem(frame, use_problem(m, use, part.coordinates, sources))
    made = tiles(m, part.coordinates, sources, gathered=use.gathered, store=True)
    inside = made.global_addresses != OUTSIDE
    groups = BulkGroups.of(frame.machine)
    for index in range(frame.n):
        one, where = one_thread(frame, index), made.global_addresses[index][inside[index]]
        if not where.size:  # a tile that lies outside of the tensor
            continue
        offsets = global_offsets(frame, where, made.chunk, True, index)
        sink = GlobalSink(one, offsets, made.chunk)
        if use.operation:
            kind = reduction_type(m.element, use.operation) or ""
            sink.reduce, sink.operands = reduction(use.operation, kind), STORAGE[kind]
        packs = made.shared_chunk != made.chunk
        chosen = inside[index, ::3] if packs else inside[index]
        flat = frame.machine.shared.locate_from(
            frame, int(frame.ctas()[index]), made.shared_addresses[index][chosen], made.shared_chunk
        )
        put = _packing(sink) if packs else sink.put
        groups.issue(BulkOperation(one, SharedSource(one, flat, made.shared_chunk), put))


def _packing(sink: GlobalSink) -> Callable[[Any], None]:
    """A store of six-bit elements: sixteen bytes of shared memory become twelve."""

    def put(values: npt.NDArray[Any]) -> None:
        rows = np.ascontiguousarray(values).view(np.uint8).reshape(-1, 16)
        sink.put(pack_six_bits(rows).reshape(-1).view(np.uint32))

    return put


@instruction("cp.reduce.async.bulk.tensor", manual="9.7.9.27.1.3 cp.reduce.async.bulk.tensor")
def compile_tensor_reduction(item: Instruction, b: Builder) -> Step:
    """Start to combine a tile of shared memory with one of a tensor."""
    modifiers = Modifiers(item, "cp.reduce.async.bulk.tensor")
    modifiers.one_of("bulk_group")
    return _compile_store(b, modifiers, _take_use(b, modifiers, Direction.REDUCE))


@instruction("cp.async.bulk.prefetch.tensor", manual="9.7.9.27.1.4 cp.async.bulk.prefetch.tensor")
def compile_tensor_prefetch(item: Instruction, b: Builder) -> Step:
    """A cache hint, whose map and coordinates are checked."""
    modifiers = Modifiers(item, "cp.async.bulk.prefetch.tensor")
    use = _take_use(b, modifiers, Direction.PREFETCH)
    modifiers.one_of("L2")
    modifiers.one_of("global")
    policy = modifiers.flag("L2::cache_hint")
    modifiers.done()
    operands = b.operands(1 + policy)
    if policy:
        b.read(operands[-1], "b64")
    tensor = _Tensor(b, operands[0], use)

    def step(frame: Frame) -> None:
        for part in tensor.parts(frame):
            report_problem(part.frame, use_problem(part.map, use, part.coordinates, None))

    return step


@instruction(
    "prefetch.tensormap",
    "prefetch.const.tensormap",
    "prefetch.param.tensormap",
    manual="9.7.9.15 prefetch",
)
def compile_map_prefetch(item: Instruction, b: Builder) -> Step:
    """A cache hint."""
    Modifiers(item, ".".join(item.words)).done()
    b.address(b.operands(1)[0])
    return nothing
