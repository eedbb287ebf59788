"""Communication within a warp (PTX ISA 9.0, 9.7.9.6 shfl.sync, 9.7.13.9-14)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.isa.builder import Builder
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame, Warps
from humming_sim.machine.geometry import WARP
from humming_sim.ptx.model import Instruction, Operand, Pair, Sink

_LANES = np.arange(WARP)
_NAN = np.frombuffer(b"\xff\xff\xff\x7f", np.float32)[0]
_BITS = (1 << _LANES.astype(np.uint64)).astype(np.uint64)


def pair(operand: Operand) -> tuple[Operand, Operand]:
    """``d|p``, or ``d`` without its second result."""
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, Sink())


def members(frame: Frame, warps: Warps, masks: Any) -> npt.NDArray[np.bool_]:
    """The lanes that the membermasks name, [W, 32, 32]: who takes part, as each lane sees it.

    Reports a lane that is not in its own mask, and lanes named that are not here.
    """
    mask = warps.spread(masks).astype(np.uint64)
    named = (mask[:, :, None] & _BITS).astype(np.bool_)
    own = named[:, _LANES, _LANES] | ~warps.active
    if not own.all():
        frame.machine.report(frame, "convergence", "a lane that its own membermask doesn't name")
    missing = named & warps.active[:, :, None] & ~warps.active[:, None, :]
    if missing.any():
        _, _, lane = (int(axis[0]) for axis in np.nonzero(missing))
        frame.machine.report(
            frame, "convergence", f"the membermask names lane {lane}, which doesn't take part"
        )
    return named


@instruction("shfl.sync", manual="9.7.9.6 shfl.sync", together=4)
def compile_shuffle(item: Instruction, b: Builder) -> Step:
    """Values of other lanes, chosen by .up, .down, .bfly or .idx within a segment."""
    modifiers = Modifiers(item, "shfl.sync")
    mode = modifiers.one_of("up", "down", "bfly", "idx")
    modifiers.one_of("b32")
    modifiers.done()
    target, source, by, clamp, mask = b.operands(5)
    first, second = pair(target)
    read, lane, limit = b.read(source, "b32"), b.read(by, "u32"), b.read(clamp, "u32")
    masks, write, inside = b.read(mask, "u32"), b.write(first, "b32"), b.write(second, "pred")

    def step(frame: Frame) -> None:
        warps = frame.warps()
        members(frame, warps, masks(frame))
        shift = warps.spread(lane(frame)).astype(np.int64) & 31
        c = warps.spread(limit(frame)).astype(np.int64)
        segment, c = (c >> 8) & 31, c & 31
        high = (_LANES & segment) | (c & ~segment)
        low = _LANES & segment
        if mode == "up":
            wanted = _LANES - shift
            fits = wanted >= high
        elif mode == "idx":
            wanted = low | (shift & ~segment)
            fits = wanted <= high
        else:
            wanted = _LANES + shift if mode == "down" else _LANES ^ shift
            fits = wanted <= high
        chosen = np.where(fits, wanted, _LANES)
        values = warps.spread(read(frame))
        rows = np.arange(len(values))[:, None]
        idle = ~warps.active[rows, chosen & 31] & warps.active
        if idle.any():
            frame.machine.report(frame, "convergence", "reads a lane that doesn't take part")
        write(frame, warps.gather(values[rows, chosen & 31]))
        inside(frame, warps.gather(fits))

    return step


@instruction("vote.sync", manual="9.7.13.9 vote.sync", together=-1)
def compile_vote(item: Instruction, b: Builder) -> Step:
    """Whether a predicate holds in all, any or equally in the member lanes, or in which."""
    modifiers = Modifiers(item, "vote.sync")
    how = modifiers.one_of("all", "any", "uni", "ballot")
    kind = modifiers.type()
    modifiers.done()
    target, source, mask = b.operands(3)
    read, masks, write = b.read(source, "pred"), b.read(mask, "u32"), b.write(target, kind)
    decide: dict[str, Callable[[Any, Any], Any]] = {
        "all": lambda held, named: (held | ~named).all(-1),
        "any": lambda held, named: (held & named).any(-1),
        "uni": lambda held, named: (held | ~named).all(-1) | (~held | ~named).all(-1),
        "ballot": lambda held, named: _mask_of(held & named),
    }

    def step(frame: Frame) -> None:
        warps = frame.warps()
        named = members(frame, warps, masks(frame))
        held = warps.spread(read(frame), False)[:, None, :]
        write(frame, warps.gather(decide[how](held, named)))

    return step


def _mask_of(lanes: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """[..., 32] of truth values as a number with a bit for each."""
    out: npt.NDArray[np.uint32] = (lanes * _BITS).sum(-1).astype(np.uint32)
    return out


@instruction("activemask", manual="9.7.13.11 activemask")
def compile_activemask(item: Instruction, b: Builder) -> Step:
    """The lanes that are here together."""
    modifiers = Modifiers(item, "activemask")
    modifiers.one_of("b32")
    modifiers.done()
    write = b.write(b.operands(1)[0], "b32")

    def step(frame: Frame) -> None:
        warps = frame.warps()
        mask = _mask_of(warps.active)
        write(frame, warps.gather(np.broadcast_to(mask[:, None], warps.active.shape)))

    return step


@instruction("match", manual="9.7.13.10 match.sync", together=-1)
def compile_match(item: Instruction, b: Builder) -> Step:
    """Which member lanes hold one's own value, or whether all hold the same."""
    modifiers = Modifiers(item, "match")
    how, _ = modifiers.one_of("any", "all"), modifiers.one_of("sync")
    kind = modifiers.type()
    modifiers.done()
    target, source, mask = b.operands(3)
    first, second = pair(target)
    read, masks = b.read(source, kind), b.read(mask, "u32")
    write, same = b.write(first, "b32"), b.write(second, "pred")

    def step(frame: Frame) -> None:
        warps = frame.warps()
        named = members(frame, warps, masks(frame))
        values = warps.spread(read(frame))
        equal = (values[:, :, None] == values[:, None, :]) & named
        if how == "any":
            write(frame, warps.gather(_mask_of(equal)))
            return
        everywhere = (equal == named).all(-1)
        write(frame, warps.gather(np.where(everywhere, _mask_of(named), 0).astype(np.uint32)))
        same(frame, warps.gather(everywhere))

    return step


@instruction("elect.sync", manual="9.7.13.14 elect.sync", together=-1)
def compile_elect(item: Instruction, b: Builder) -> Step:
    """One of the member lanes: here the first."""
    target, mask = b.operands(2)
    first, second = pair(target)
    masks, lane, chosen = b.read(mask, "u32"), b.write(first, "b32"), b.write(second, "pred")

    def step(frame: Frame) -> None:
        warps = frame.warps()
        named = members(frame, warps, masks(frame))
        leader = named.argmax(-1)
        lane(frame, warps.gather(leader.astype(np.uint32)))
        chosen(frame, warps.gather(leader == _LANES))

    return step


_REDUCTIONS: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


@instruction("redux.sync", manual="9.7.13.12 redux.sync", together=-1)
def compile_redux(item: Instruction, b: Builder) -> Step:
    """A reduction over the member lanes."""
    modifiers = Modifiers(item, "redux.sync")
    how = modifiers.one_of(*_REDUCTIONS)
    absolute, nans = modifiers.flag("abs"), modifiers.flag("NaN")
    kind = modifiers.type()
    modifiers.done()
    target, source, mask = b.operands(3)
    read, masks, write = b.read(source, kind), b.read(mask, "u32"), b.write(target, kind)
    combine = _integer_reduction(how)
    if kind == "f32":
        if how not in ("min", "max"):
            raise b.wrong("redux.sync of .f32 has .min and .max only")
        combine = _float_reduction(how, absolute, nans)
    elif absolute or nans:
        raise b.wrong(".abs and .NaN are for .f32")

    def step(frame: Frame) -> None:
        warps = frame.warps()
        named = members(frame, warps, masks(frame))
        values = warps.spread(read(frame))
        out = np.zeros_like(values)
        for row, lanes in zip(*np.nonzero(warps.active), strict=True):
            out[row, lanes] = combine(values[row][named[row, lanes]])
        write(frame, warps.gather(out))

    return step


def _integer_reduction(how: str) -> Callable[[Any], Any]:
    function = _REDUCTIONS[how]
    return lambda values: function.reduce(values, dtype=values.dtype)  # sums wrap


def _float_reduction(how: str, absolute: bool, nans: bool) -> Callable[[Any], Any]:
    plain, ignoring = {"min": (np.min, np.fmin), "max": (np.max, np.fmax)}[how]

    def combine(values: npt.NDArray[np.float32]) -> Any:
        given = np.abs(values) if absolute else values
        out = plain(given) if nans else ignoring.reduce(given)
        return _NAN if np.isnan(out) else out

    return combine
