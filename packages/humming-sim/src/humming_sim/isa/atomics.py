"""Atomic operations on memory (PTX ISA 9.0, 9.7.13.5 atom, 9.7.13.6 red).

Of several lanes at one address, the lower lane goes first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.isa.builder import Builder
from humming_sim.isa.memory import lanes_of, space_of, take_hints
from humming_sim.isa.minmax import Extreme, extreme
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.isa.spaces import Spaces
from humming_sim.isa.types import width_of
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.numbers.arithmetic import Modifiers as Arithmetic
from humming_sim.numbers.arithmetic import operation
from humming_sim.ptx.model import Instruction

Bits = npt.NDArray[Any]
#: (old, operand) or (old, compare, operand) to new, all unsigned bits.
Update = Callable[..., Bits]

_OPERATIONS = ("and", "or", "xor", "cas", "exch", "add", "inc", "dec", "min", "max")
_FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")


@instruction("atom", manual="9.7.13.5 atom")
def compile_atom(item: Instruction, b: Builder) -> Step:
    """Change memory and return what was there."""
    return _compile(item, b, returns=True)


@instruction("red", manual="9.7.13.6 red")
def compile_red(item: Instruction, b: Builder) -> Step:
    """Change memory."""
    if "async" in item.words:
        raise b.unsupported("red.async is compiled elsewhere")
    return _compile(item, b, returns=False)


def _compile(item: Instruction, b: Builder, returns: bool) -> Step:
    modifiers = Modifiers(item, item.words[0])
    space = space_of(modifiers)
    take_hints(modifiers)
    lanes = lanes_of(modifiers)
    how = modifiers.one_of(*_OPERATIONS)
    modifiers.drop("noftz")
    kind = _take_type(modifiers)
    modifiers.done()
    operands = list(item.operands)
    target = operands.pop(0) if returns else None
    address = b.address(operands[0])
    if kind == "b128" and how not in ("cas", "exch"):
        raise b.wrong("128-bit atomics are .cas and .exch")
    count = 2 if how == "cas" else 1
    sources = operands[1 : 1 + count]
    bits = f"b{width_of(kind)}"
    reads = [b.read_group(source, bits, lanes) for source in sources]
    writes = b.write_group(target, bits, lanes) if target is not None else []
    update = _update(b, how, kind, space)
    spaces, width = Spaces(b.environment), width_of(kind) // 8

    def step(frame: Frame) -> None:
        where = address(frame)
        frame.machine.poll(frame)
        for lane in range(lanes):
            values = [_whole(frame, group[lane](frame), width) for group in reads]
            old = _apply(frame, spaces, space, where + lane * width, values, update)
            if writes:
                writes[lane](frame, old.view(np.uint64).reshape(-1, 2) if width == 16 else old)

    return step


def _whole(frame: Frame, values: Any, width: int) -> Bits:
    """Values as one item per thread; those of 128 bits come as two of 64."""
    if width < 16:
        return frame.expand(values)
    return np.ascontiguousarray(values).view(f"V{width}").reshape(-1)


def _take_type(modifiers: Modifiers) -> str:
    return modifiers.one_of("b128") if "b128" in modifiers else modifiers.type()


def _apply(  # budget: what is changed, where, by what
    frame: Frame,
    spaces: Spaces,
    space: str,
    addresses: npt.NDArray[np.int64],
    values: list[Bits],
    update: Update,
) -> Bits:
    """Apply the update lane by lane where addresses meet, at once elsewhere; the old values."""
    width = values[0].dtype.itemsize
    order = np.argsort(addresses, kind="stable")
    ordered = addresses[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    turn = np.empty(len(order), np.int64)
    turn[order] = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    old = np.zeros(frame.n, values[0].dtype)
    threads, before = frame.threads(), frame.machine.progress
    for number in range(int(turn.max()) + 1):
        mask = turn == number
        part = frame if mask.all() else frame.of(threads[mask])
        here = spaces.load(part, space, addresses[mask], width)
        new = update(here, *(value[mask] for value in values))
        changed = bool((new != here).any())
        spaces.store(part, space, addresses[mask], np.ascontiguousarray(new))
        # A compare-and-swap that fails changes nothing: a loop over it waits for others.
        frame.machine.progress = before = before + changed
        old[mask] = here
    return old


def _compare_and_swap(old: Bits, compare: Bits, new: Bits) -> Bits:
    out: Bits = np.where(old == compare, new, old)
    return out


def _update(b: Builder, how: str, kind: str, space: str) -> Update:
    if how == "cas":
        return _compare_and_swap
    if how == "exch":
        return lambda old, new: new
    if how in ("and", "or", "xor"):
        bitwise: Any = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[how]
        return lambda old, value: np.asarray(bitwise(old, value))
    if how == "inc":
        return lambda old, top: np.where(old >= top, 0, old + old.dtype.type(1)).astype(old.dtype)
    if how == "dec":
        return lambda old, top: np.where(
            (old == 0) | (old > top), top, old - old.dtype.type(1)
        ).astype(old.dtype)
    if kind in _FLOATS:
        return _float_update(b, how, kind, space)
    function: Any = {"add": np.add, "min": np.minimum, "max": np.maximum}[how]
    kind_of = np.dtype(f"i{width_of(kind) // 8}" if kind[0] == "s" else f"u{width_of(kind) // 8}")

    def update(old: Bits, value: Bits) -> Bits:
        out: Bits = function(old.view(kind_of), value.view(kind_of))
        return out.view(old.dtype)

    return update


def _float_update(b: Builder, how: str, kind: str, space: str) -> Update:
    if how == "add":
        # atom.add.f32 flushes subnormals in global memory and keeps them in shared memory.
        flushes = kind == "f32" and space == "global"
        return operation("add", kind, Arithmetic(ftz=flushes))
    if kind in ("f32", "f64"):
        raise b.wrong(f"atomic .{how} of .{kind}")
    return extreme(kind, Extreme(maximum=how == "max"))
