"""Moving and packing registers (PTX ISA 9.0, 9.7.9.3 and 9.7.9.4 mov)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.isa.builder import Builder
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.isa.types import width_of
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.ptx.model import Group, Instruction

Array = npt.NDArray[Any]

_TYPES = (
    "pred", "b16", "b32", "b64", "b128", "u16", "u32", "u64", "s16", "s32", "s64", "f16", "bf16",
    "f16x2", "bf16x2", "f32", "f64",
)  # fmt: skip


@instruction("mov", manual="9.7.9.3 mov, 9.7.9.4 mov")
def compile_mov(item: Instruction, b: Builder) -> Step:
    """A copy, an address, a special register; or several registers from one and back."""
    modifiers = Modifiers(item, "mov")
    kind = modifiers.one_of(*_TYPES)
    modifiers.done()
    target, source = b.operands(2)
    if isinstance(source, Group):
        return _pack(b, kind, source)
    if isinstance(target, Group):
        return _unpack(b, kind, target)
    return b.copy(target, source, kind)


def _member(b: Builder, kind: str, group: Group) -> str:
    """The type of one member of a group that fills a register of type `kind`."""
    width, rest = divmod(width_of(kind), len(group.items))
    if rest or kind not in ("b16", "b32", "b64", "b128") or width not in (8, 16, 32, 64):
        raise b.wrong(f"{len(group.items)} registers do not fill .{kind}")
    return f"b{width}"


def _pack(b: Builder, kind: str, group: Group) -> Step:
    member = _member(b, kind, group)
    readers = b.read_group(group, member)
    write = b.write(b.item.operands[0], kind)
    dtype = np.dtype(f"u{width_of(member) // 8}")

    def step(frame: Frame) -> None:
        parts = np.empty((frame.n, len(readers)), dtype)
        for column, read in enumerate(readers):
            parts[:, column] = read(frame)
        write(frame, _whole(parts, kind))

    return step


def _whole(parts: Array, kind: str) -> Array:
    if kind == "b128":
        return parts.view(np.uint64)
    whole: Array = parts.view(f"u{width_of(kind) // 8}")
    return whole.reshape(-1)


def _unpack(b: Builder, kind: str, group: Group) -> Step:
    member = _member(b, kind, group)
    read, writers = b.read(b.item.operands[1], kind), b.write_group(group, member)
    dtype = np.dtype(f"u{width_of(member) // 8}")

    def step(frame: Frame) -> None:
        values = read(frame)
        whole = values if kind == "b128" else frame.expand(values)
        # A copy: a member may be the register that is taken apart.
        parts = np.array(whole).view(dtype).reshape(frame.n, -1)
        for column, write in enumerate(writers):
            write(frame, parts[:, column])

    return step
