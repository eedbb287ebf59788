"""Loads, stores and address conversion (PTX ISA 9.0, 9.7.9.8-11, 9.7.9.15, 9.7.9.19-20)."""

from __future__ import annotations

from typing import Any

import numpy as np

from humming_sim.isa.builder import Builder
from humming_sim.isa.control import nothing
from humming_sim.isa.counting import count_access
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.isa.spaces import LOCAL, PARAM, SHARED, WINDOW, Spaces
from humming_sim.isa.types import DTYPES, width_of
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.ptx.model import Address, Instruction, Operand, Symbol

#: Words that say where and how long to cache, and the scope of ordering: nothing here.
_HINTS = (
    "ca", "cg", "cs", "cv", "lu", "wb", "wt", "nc", "weak", "uni",
    "cta", "cluster", "gpu", "sys", "evict_normal", "evict_first", "evict_last",
)  # fmt: skip
_HINT_STARTS = ("L1::", "L2::", "level::")
_ORDERED = ("relaxed", "acquire", "release", "acq_rel", "volatile", "mmio")
_SPACES = {
    "global": "global", "const": "global", "local": "local", "param": "param",
    "param::entry": "param", "shared": "shared", "shared::cta": "shared",
    "shared::cluster": "shared::cluster",
}  # fmt: skip


def space_of(modifiers: Modifiers) -> str:
    """Take the state space; none is the generic one, ""."""
    return _SPACES.get(modifiers.one_of(*_SPACES, default=""), "")


def take_hints(modifiers: Modifiers) -> bool:
    """Take everything about caching and ordering; whether a loop over it may be a wait."""
    ordered = [modifiers.flag(word) for word in _ORDERED]
    modifiers.drop(*_HINTS)
    modifiers.drop_prefix(*_HINT_STARTS)
    return any(ordered)


def lanes_of(modifiers: Modifiers) -> int:
    """Take the vector length; none is 1."""
    return int(modifiers.one_of("v2", "v4", "v8", default="v1")[1:])


@instruction("ld", "ldu", manual="9.7.9.8 ld, 9.7.9.9 ld.global.nc, 9.7.9.10 ldu")
def compile_load(item: Instruction, b: Builder) -> Step:
    """Load scalars or vectors; a cache policy operand changes nothing."""
    modifiers = Modifiers(item, item.words[0])
    space, polls, lanes = space_of(modifiers), take_hints(modifiers), lanes_of(modifiers)
    type_ = item.words[-1]
    modifiers.rest() if type_ == "b128" else _only_type(modifiers)
    operands = b.operands(2, 3)
    address = b.address(operands[1])
    space = _call_space(b, space, operands[1])
    width = width_of(type_) // 8
    writes = b.write_group(operands[0], type_, lanes)
    spaces = Spaces(b.environment)
    dtype = np.dtype(DTYPES.get(type_, "V16"))
    total = width * lanes
    count = count_access(b, space, total)

    def step(frame: Frame) -> None:
        where = address(frame)
        if polls:
            frame.machine.poll(frame)
        if count is not None:
            count(frame, where)
        raw = spaces.load(frame, space, where, total)
        if type_ == "b128":
            writes[0](frame, _as_pairs(raw))
        elif lanes == 1:
            writes[0](frame, raw.view(dtype))
        else:
            values = np.ascontiguousarray(raw).view(dtype).reshape(-1, lanes)
            for lane, write in enumerate(writes):
                write(frame, values[:, lane])

    return step


@instruction("st", manual="9.7.9.11 st")
def compile_store(item: Instruction, b: Builder) -> Step:
    """Store scalars or vectors."""
    if item.words[1] == "async":
        raise b.unsupported("st.async is compiled elsewhere")
    modifiers = Modifiers(item, "st")
    space, _, lanes = space_of(modifiers), take_hints(modifiers), lanes_of(modifiers)
    type_ = item.words[-1]
    modifiers.rest() if type_ == "b128" else _only_type(modifiers)
    operands = b.operands(2, 3)
    address = b.address(operands[0])
    space = _call_space(b, space, operands[0])
    width = width_of(type_) // 8
    reads = b.read_group(operands[1], type_, lanes)
    spaces = Spaces(b.environment)
    dtype = np.dtype(f"V{width * lanes}") if width * lanes > 8 else np.dtype(f"u{width * lanes}")
    count = count_access(b, space, width * lanes)

    def step(frame: Frame) -> None:
        where = address(frame)
        if count is not None:
            count(frame, where)
        if lanes == 1 and width <= 8:
            values = frame.expand(reads[0](frame)).view(dtype)
        else:
            parts = [_expand(frame, read(frame)) for read in reads]
            values = np.stack(parts, 1).reshape(frame.n, -1).view(dtype).reshape(-1)
        spaces.store(frame, space, where, values)

    return step


def _call_space(b: Builder, space: str, address: Operand) -> str:
    """Parameters of a call are kept in local memory; those of the kernel are in "param"."""
    base = address.base if isinstance(address, Address) else None
    called = isinstance(base, Symbol) and base.name in b.machine.kernel.local
    return "local" if space == "param" and called else space


def _expand(frame: Frame, values: Any) -> Any:
    array = np.asarray(values)
    return array if array.ndim == 2 else frame.expand(array)


def _as_pairs(raw: Any) -> Any:
    return np.ascontiguousarray(raw).view(np.uint64).reshape(-1, 2)


def _only_type(modifiers: Modifiers) -> None:
    modifiers.type()
    modifiers.done()


@instruction("prefetch", "prefetchu", manual="9.7.9.15 prefetch, prefetchu")
def compile_prefetch(item: Instruction, b: Builder) -> Step:
    """A cache hint."""
    return nothing


@instruction("cvta", manual="9.7.9.20 cvta")
def compile_cvta(item: Instruction, b: Builder) -> Step:
    """Addresses of a space to generic ones, or (``.to``) back."""
    modifiers = Modifiers(item, "cvta")
    back = modifiers.flag("to")
    space = modifiers.one_of(*_SPACES)
    type_ = modifiers.type()
    modifiers.done()
    target, source = b.operands(2)
    if not back and isinstance(source, Symbol):
        type_ = "u64"
    read, write = b.read(source, type_), b.write(target, type_)
    if type_ != "u64":
        raise b.unsupported("32-bit generic addresses")
    window = {"shared": SHARED, "local": LOCAL}.get(_SPACES[space], 0)
    shift = np.uint64((1 << 64) - window if back and window else window)
    return lambda frame: write(frame, read(frame) + shift)


@instruction("isspacep", manual="9.7.9.19 isspacep")
def compile_isspacep(item: Instruction, b: Builder) -> Step:
    """Whether a generic address lies in a space's window."""
    space = item.words[1]
    if space not in _SPACES:
        raise b.wrong(f".{space} is no state space")
    target, source = b.operands(2)
    read, write = b.read(source, "s64"), b.write(target, "pred")
    number = {"shared": SHARED, "shared::cluster": SHARED, "local": LOCAL, "param": PARAM}
    wanted = number.get(_SPACES[space], 0) // WINDOW

    def step(frame: Frame) -> None:
        addresses = frame.expand(read(frame))
        inside = addresses // WINDOW == wanted if wanted else addresses >= 4 * WINDOW
        if space in ("shared", "shared::cta"):
            rank = (addresses - SHARED) >> 24
            inside = inside & (rank == frame.ctas() % frame.machine.geometry.cluster_size)
        write(frame, inside)

    return step
