"""Conversion of pairs and fours (PTX ISA 9.0 and 9.1, 9.7.9.21 cvt): x2 and x4 types.

The first source operand becomes the upper element. Elements travel as ``[n, count]``, the lowest
first. ``.rs`` takes its random bits as the manual's figures 38 to 41 lay them out; that within a
pair of x4's elements the upper one reads the shared 16 bits in reverse is how an SM100 device was
seen to act.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.isa.builder import Builder, Reader
from humming_sim.isa.elementwise import read_bits
from humming_sim.isa.registry import Modifiers
from humming_sim.machine.code import Step
from humming_sim.machine.frame import Frame
from humming_sim.numbers.conversion import converter, stochastic
from humming_sim.numbers.formats import decode
from humming_sim.numbers.rounding import Rounding, encode
from humming_sim.ptx.model import Group, Instruction, Operand

__all__ = ["compile_packed", "is_packed"]

Array = npt.NDArray[Any]

#: Bits that an element takes in a register.
_FIELD = {
    **dict.fromkeys(("f16", "bf16"), 16),
    **dict.fromkeys(("e4m3", "e5m2", "e2m3", "e3m2", "ue8m0", "s2f6"), 8),
    "e2m1": 4,
}
_HALVES = ("f16", "bf16")
_SMALL = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
_SCALE = "scaled::n2::ue8m0"


@dataclass(frozen=True)
class _Form:
    """One row of the manual's syntax: elements, how many, and what goes with them."""

    target: str
    source: str
    count: int
    modes: tuple[str, ...]
    flags: tuple[str, ...] = ()
    required: tuple[str, ...] = ()


def is_packed(kind: str) -> bool:
    """Whether a type of cvt holds several elements."""
    return kind[-2:] in ("x2", "x4") and kind[:-2] in _FIELD


def _form(target: str, source: str) -> _Form | None:
    """The row for two types of an opcode, such as "e4m3x2" and "f32"."""
    to, count = target[:-2], int(target[-1]) if is_packed(target) else 0
    of = source.removesuffix("x2")
    both = ("relu", "satfinite")
    if count == 4 and to in _SMALL and source == "f32":
        return _Form(to, "f32", 4, ("rs",), ("relu",), ("satfinite",))
    if count != 2 or not (source == "f32" or source.endswith("x2")):
        return None
    if to in _HALVES and source == "f32":
        return _Form(to, "f32", 2, ("rn", "rz", "rs"), both)
    if to in _SMALL and of in ("f32", *_HALVES):
        return _Form(to, of, 2, ("rn",), ("relu",), ("satfinite",))
    if to == "ue8m0" and of in ("f32", "bf16"):
        return _Form(to, of, 2, ("rz", "rp"), ("satfinite",))
    if to == "s2f6" and of in ("f32", "bf16"):
        return _Form(to, of, 2, ("rn",), ("relu", _SCALE), ("satfinite",))
    if to == "f16" and of in _SMALL:
        return _Form(to, of, 2, ("rn",), ("relu",))
    if to == "bf16" and of in (*_SMALL, "s2f6"):
        return _Form(to, of, 2, ("rn",), (*both, _SCALE))
    if to == "bf16" and of == "ue8m0":
        return _Form(to, of, 2, ("rn",))
    return None


def compile_packed(item: Instruction, b: Builder, modifiers: Modifiers) -> Step:
    """``cvt`` where either type holds several elements."""
    form = _form(*item.words[-2:])
    if form is None:
        raise b.unsupported(f"cvt from .{item.words[-1]} to .{item.words[-2]} is not simulated")
    for kind in item.words[-2:]:
        modifiers.one_of(kind)
    mode = modifiers.one_of(*form.modes)
    for word in form.required:
        modifiers.one_of(word)
    given = {flag for flag in form.flags if modifiers.flag(flag)} | set(form.required)
    modifiers.done()
    rounding = Rounding(mode, satfinite="satfinite" in given, relu="relu" in given)
    scaled = _SCALE in given
    target, *sources = b.operands(*_operand_counts(form, mode == "rs" or scaled))
    elements = _elements(b, form, sources)
    convert = _conversion(b, form, rounding, sources[-1] if scaled or mode == "rs" else None)
    field, count = _FIELD[form.target], form.count
    write = b.write(target, f"b{field * count}")
    return lambda frame: write(frame, _pack(convert(frame, elements(frame)), field))


def _operand_counts(form: _Form, extra: bool) -> tuple[int, ...]:
    values = 2 if form.source == "f32" and form.count == 2 else 1
    return (1 + values + int(extra),)


# ----------------------------------------------------------------------------------- elements


def _elements(b: Builder, form: _Form, sources: list[Operand]) -> Callable[[Frame], Array]:
    """Source elements as codes ``[n, count]``, the lowest first."""
    if form.source == "f32":
        group = sources[0]
        operands = group.items if isinstance(group, Group) else tuple(sources[:2])
        if len(operands) != form.count:
            raise b.wrong(f"{form.count} values are expected")
        readers = [read_bits(b, operand, "f32") for operand in reversed(operands)]
        return lambda frame: np.stack([read(frame) for read in readers], axis=-1)
    field = _FIELD[form.source]
    read = read_bits(b, sources[0], f"b{2 * field}")
    return lambda frame: _split(np.ascontiguousarray(read(frame)), field)


def _split(bits: Array, field: int) -> Array:
    if field == 4:
        return np.stack([bits & np.uint8(15), bits >> np.uint8(4)], axis=-1)
    return bits.view(f"u{field // 8}").reshape(-1, 2)


def _pack(codes: Array, field: int) -> Array:
    if field == 4:
        codes = codes[:, ::2] | (codes[:, 1::2] << np.uint8(4))
    width = codes.shape[1] * codes.dtype.itemsize
    packed: Array = np.ascontiguousarray(codes).view(f"u{width}")
    return packed.reshape(-1)


# ---------------------------------------------------------------------------------- conversion


def _conversion(
    b: Builder, form: _Form, rounding: Rounding, extra: Operand | None
) -> Callable[[Frame, Array], Array]:
    """From the frame and source elements to target elements, both ``[n, count]``."""
    if extra is None:
        plain = converter(form.source, form.target, rounding)
        return lambda frame, codes: plain(codes)
    if rounding.mode == "rs":
        random = _random_bits(form, read_bits(b, extra, "b32"))
        draw = stochastic(form.target, rounding)
        return lambda frame, codes: draw(codes, random(frame))
    factors = read_bits(b, extra, "b16")
    down = form.target == "s2f6"

    def scale(frame: Frame, codes: Array) -> Array:
        factor = decode("ue8m0", np.ascontiguousarray(factors(frame)).view(np.uint8))
        factor, values = factor.reshape(-1, 2), decode(form.source, codes)
        # float64 holds quotients and products by a power of two exactly.
        return encode(form.target, values / factor if down else values * factor, rounding)

    return scale


def _random_bits(form: _Form, read: Reader) -> Callable[[Frame], Array]:
    """Each element's random bits, ``[n, count]``, the lowest element first."""
    if form.target in _HALVES:
        mask = np.uint16(0x1FFF if form.target == "f16" else 0xFFFF)
        return lambda frame: _halves(read(frame)) & mask

    def shared(frame: Frame) -> Array:
        pairs = _halves(read(frame))
        if form.target == "e2m1":
            octets = pairs.view(np.uint8).reshape(-1, 2, 2).astype(np.uint16)
            # The low bytes of both halves belong to the lower pair, the high bytes to the upper.
            pairs = octets[:, 0] | (octets[:, 1] << np.uint16(8))
        return np.stack([pairs, _reversed(pairs)], axis=-1).reshape(-1, 4)

    return shared


def _halves(bits: Array) -> Array:
    halves: Array = np.ascontiguousarray(bits).view(np.uint16).reshape(-1, 2)
    return halves


def _reversed(bits: Array) -> Array:
    """16-bit numbers with their bits in reverse."""
    for shift, mask in ((1, 0x5555), (2, 0x3333), (4, 0x0F0F), (8, 0x00FF)):
        low, places = np.uint16(mask), np.uint16(shift)
        bits = ((bits >> places) & low) | ((bits & low) << places)
    return bits
