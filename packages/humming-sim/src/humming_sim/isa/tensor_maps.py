"""Tensor maps in memory: reading, changing and fencing them.

PTX ISA 9.0, 9.7.9.28 (tensormap.replace), 9.7.13.16 (tensormap.cp_fenceproxy), 9.7.13.4
(fence.proxy.tensormap).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from humming_sim.errors import TensorMapError
from humming_sim.isa.builder import Builder, Environment
from humming_sim.isa.memory import space_of
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.isa.spaces import LOCAL, PARAM, SHARED, WINDOW, Spaces
from humming_sim.isa.transfers import global_offsets, one_thread
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.machine.machine import Machine
from humming_sim.ptx.model import Immediate, Instruction, Operand
from humming_sim.tma.encoding import MAP_BYTES, replaced
from humming_sim.tma.tensor_map import TensorMap

__all__ = ["MapChanges", "read_map"]

#: What the address of a tensor map is a multiple of (driver documentation), bytes.
ALIGNMENT = 64

_WIDEST = 32  # bytes of one access
_SCOPES = ("cta", "cluster", "gpu", "sys")
_WITH_ORDINAL = ("box_dim", "global_dim", "global_stride", "element_stride")
_WITHOUT = (
    "global_address",
    "rank",
    "elemtype",
    "interleave_layout",
    "swizzle_mode",
    "swizzle_atomicity",
    "fill_mode",
)
_CONSTANT = _WITHOUT[2:]
_WIDE = ("global_address", "global_stride")

_WHERE = {
    LOCAL // WINDOW: "local memory; pass it as a __grid_constant__ parameter",
    SHARED // WINDOW: "shared memory; copy it to global memory (tensormap.cp_fenceproxy)",
}


def read_map(frame: Frame, environment: Environment, address: int, index: int) -> TensorMap | None:
    """The tensor map at a generic address, for one of the frame's threads.

    None if it is no map and the checks that say so are off.
    """
    machine = frame.machine
    window = address // WINDOW
    message = ""
    if window in _WHERE:
        message = f"the tensor map lies in {_WHERE[window]}"
    elif address % ALIGNMENT:
        machine.report(
            frame,
            "alignment",
            f"a tensor map must lie at a multiple of {ALIGNMENT} bytes",
            index=index,
            address=address,
        )
    if not message:
        try:
            return TensorMap.decode(_bytes(frame, environment, address, index))
        except TensorMapError as error:
            message = str(error)
    machine.report(frame, "descriptor", message, index=index, address=address)
    return None


def _bytes(frame: Frame, environment: Environment, address: int, index: int) -> bytes:
    if address // WINDOW == PARAM // WINDOW:
        return environment.parameters[address - PARAM :][:MAP_BYTES].tobytes()
    where = global_offsets(frame, np.array([address]), MAP_BYTES, index=index)[0]
    MapChanges.of(frame.machine).check(frame, address, index)
    return frame.machine.memory.view(np.uint8)[where : where + MAP_BYTES].tobytes()


@dataclass
class _Change:
    """A map in global memory that a thread has changed."""

    thread: int
    released: bool = False
    acquired: set[int] = field(default_factory=set)  # CTAs


class MapChanges:
    """Which tensor maps in global memory the tensormap proxy may not see yet.

    A map that a thread changes must be released by it and acquired where it is used, since tensor
    copies read maps through a proxy of their own. Acquiring counts for the whole CTA.
    """

    def __init__(self) -> None:
        self._changes: dict[int, _Change] = {}

    @staticmethod
    def of(machine: Machine) -> MapChanges:
        """Those of a machine."""
        changes: MapChanges = machine.extra.setdefault("tensormaps", MapChanges())
        return changes

    def change(self, address: int, thread: int, released: bool = False) -> None:
        """A thread has written the map at an address."""
        self._changes[address] = _Change(thread, released)

    def release(self, frame: Frame) -> None:
        """fence.proxy.tensormap::generic.release by the frame's threads."""
        threads = set(frame.threads().tolist()) if self._changes else set()
        for change in self._changes.values():
            change.released = change.released or change.thread in threads

    def acquire(self, frame: Frame, addresses: npt.NDArray[np.int64]) -> None:
        """fence.proxy.tensormap::generic.acquire by the frame's threads, [n]."""
        for address, cta in zip(addresses.tolist(), frame.ctas().tolist(), strict=True):
            if address in self._changes:
                self._changes[address].acquired.add(cta)

    def check(self, frame: Frame, address: int, index: int) -> None:
        """Report a use that comes before these fences."""
        change = self._changes.get(address)
        if change is None:
            return
        missing = "" if change.released else "release"
        if not missing and int(frame.ctas()[index]) not in change.acquired:
            missing = "acquire"
        if missing:
            thread = change.thread % frame.machine.geometry.padded
            frame.machine.report(
                frame,
                "proxy",
                f"thread {thread} changed this tensor map and no "
                f"fence.proxy.tensormap::generic.{missing} followed",
                index=index,
                space="global",
                address=address,
            )


@instruction("tensormap.replace", manual="9.7.9.28 tensormap.replace")
def compile_replace(item: Instruction, b: Builder) -> Step:
    """Change one field of a tensor map in shared or global memory."""
    modifiers = Modifiers(item, "tensormap.replace")
    modifiers.one_of("tile")
    name = modifiers.one_of(*_WITH_ORDINAL, *_WITHOUT)
    space = space_of(modifiers)
    modifiers.one_of("b1024")
    type_ = modifiers.types(1)[0]
    modifiers.done()
    if type_ != ("b64" if name in _WIDE else "b32"):
        raise b.wrong(f"a value of type .{type_} for .{name}")
    operands = b.operands(3 if name in _WITH_ORDINAL else 2)
    if name in _CONSTANT and not isinstance(operands[-1], Immediate):
        raise b.wrong(f"the value of .{name} must be a constant")
    ordinal = _constant(b, operands[1]) if name in _WITH_ORDINAL else 0
    address, value = b.address(operands[0]), b.read(operands[-1], type_)
    spaces = Spaces(b.environment)

    def step(frame: Frame) -> None:
        places, values = address(frame), frame.expand(value(frame))
        for index, (place, new) in enumerate(zip(places.tolist(), values.tolist(), strict=True)):
            one = one_thread(frame, index)
            pieces = place + np.arange(0, MAP_BYTES, _WIDEST)
            old = b"".join(
                spaces.load(one, space, pieces[k : k + 1], _WIDEST).tobytes() for k in range(4)
            )
            try:
                blob = replaced(old, name, new, ordinal)
            except TensorMapError as error:
                frame.machine.report(frame, "descriptor", str(error), index=index, address=place)
                return
            _write(one, spaces, space, pieces, blob)

    return step


def _constant(b: Builder, operand: Operand) -> int:
    if not isinstance(operand, Immediate):
        raise b.wrong("the ordinal must be a constant")
    return operand.value


def _read(frame: Frame, spaces: Spaces, space: str, pieces: npt.NDArray[np.int64]) -> bytes:
    loaded = (spaces.load(frame, space, pieces[k : k + 1], _WIDEST) for k in range(len(pieces)))
    return b"".join(piece.tobytes() for piece in loaded)


def _write(
    frame: Frame, spaces: Spaces, space: str, pieces: npt.NDArray[np.int64], blob: bytes
) -> None:
    values = np.frombuffer(blob, f"V{_WIDEST}")
    for k in range(len(pieces)):
        spaces.store(frame, space, pieces[k : k + 1], values[k : k + 1])
    address = int(pieces[0])
    if space == "global" or (space == "" and address // WINDOW > PARAM // WINDOW):
        MapChanges.of(frame.machine).change(address, int(frame.threads()[0]))


@instruction("tensormap.cp_fenceproxy", manual="9.7.13.16 tensormap.cp_fenceproxy", together="warp")
def compile_copy_fence(item: Instruction, b: Builder) -> Step:
    """Copy a tensor map from shared to global memory and release it; a whole warp together."""
    modifiers = Modifiers(item, "tensormap.cp_fenceproxy")
    for word in ("global", "shared::cta", "tensormap::generic", "release", "sync", "aligned"):
        modifiers.one_of(word)
    modifiers.one_of(*_SCOPES)
    modifiers.done()
    operands = b.operands(3)
    _need_size(b, operands[2])
    target, source = b.address(operands[0]), b.address(operands[1])
    spaces = Spaces(b.environment)

    def step(frame: Frame) -> None:
        targets, sources = target(frame), source(frame)
        _, first = np.unique(np.stack([targets, sources]), axis=1, return_index=True)
        for index in first.tolist():
            one = one_thread(frame, index)
            for offset in range(0, MAP_BYTES, _WIDEST):
                here, there = (
                    sources[index : index + 1] + offset,
                    targets[index : index + 1] + offset,
                )
                spaces.store(one, "global", there, spaces.load(one, "shared", here, _WIDEST))
            place, thread = int(targets[index]), int(one.threads()[0])
            MapChanges.of(frame.machine).change(place, thread, released=True)

    return step


def _need_size(b: Builder, operand: Operand) -> None:
    if not isinstance(operand, Immediate) or operand.value != MAP_BYTES:
        raise b.wrong(f"the size must be {MAP_BYTES}")


@instruction("fence.proxy.tensormap::generic", manual="9.7.13.4 fence.proxy.tensormap")
def compile_map_fence(item: Instruction, b: Builder) -> Step:
    """Show changed tensor maps to tensor copies (release), or (acquire) see one."""
    modifiers = Modifiers(item, "fence.proxy.tensormap::generic")
    acquires = modifiers.one_of("release", "acquire") == "acquire"
    modifiers.one_of(*_SCOPES)
    modifiers.done()
    if not acquires:
        b.operands(0)
        return lambda frame: MapChanges.of(frame.machine).release(frame)
    operands = b.operands(2)
    _need_size(b, operands[1])
    address = b.address(operands[0])
    return lambda frame: MapChanges.of(frame.machine).acquire(frame, address(frame))
