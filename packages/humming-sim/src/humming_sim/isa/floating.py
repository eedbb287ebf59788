"""Floating-point arithmetic (PTX ISA 9.0, 9.7.3 to 9.7.5) on the bit patterns of registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.isa.builder import Builder
from humming_sim.isa.elementwise import PACKED_WIDTH, apply, read_bits
from humming_sim.isa.registry import Modifiers as Words
from humming_sim.isa.registry import instruction
from humming_sim.isa.types import width_of
from humming_sim.machine.code import Step
from humming_sim.numbers.approximate import approximation, gross_float64
from humming_sim.numbers.arithmetic import Modifiers, operation
from humming_sim.numbers.codes import Operation, canonical, flusher, packed
from humming_sim.numbers.conversion import converter
from humming_sim.numbers.formats import number_format
from humming_sim.ptx.model import Instruction, Operand

Array = npt.NDArray[Any]

_MODES = ("rn", "rz", "rm", "rp")
#: Rounding modes and flags that sums and products of each type take.
_TAKES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "f32": (_MODES, ("ftz", "sat")),
    "f32x2": (_MODES, ("ftz",)),
    "f64": (_MODES, ()),
    "f16": (("rn",), ("ftz", "sat")),
    "f16x2": (("rn",), ("ftz", "sat")),
    "bf16": (("rn",), ()),
    "bf16x2": (("rn",), ()),
}
#: Flags that only the fused forms of the half-precision types take.
_FUSED = dict.fromkeys(("f16", "f16x2", "bf16", "bf16x2"), ("relu", "oob"))
_ELEMENT = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32"}


def _finish(
    b: Builder, function: Operation, operands: Sequence[Operand], kinds: Sequence[str]
) -> Step:
    """A step for a result and operands of these types, the result's first."""
    target, *sources = operands
    readers = [read_bits(b, operand, k) for operand, k in zip(sources, kinds[1:], strict=True)]
    width = PACKED_WIDTH.get(kinds[0]) or width_of(kinds[0])
    return apply(function, readers, b.write(target, f"b{width}"))


def _take(words: Words, kind: str, extra: tuple[str, ...], default: str | None) -> Modifiers:
    modes, flags = _TAKES[kind]
    mode = words.one_of(*modes, default=default)
    found = dict.fromkeys([flag for flag in (*flags, *extra) if words.flag(flag)], True)
    return Modifiers(mode=mode, **found)


def _mixed(item: Instruction) -> str:
    """The half-precision type of a mixed form such as add.f32.bf16, or ""."""
    return item.words[-1] if item.words[-2] == "f32" and item.words[-1] in ("f16", "bf16") else ""


def compile_binary(item: Instruction, b: Builder) -> Step:
    """``add``, ``sub`` and ``mul``; the first operand of a mixed form is widened first."""
    name, half = item.words[0], _mixed(item)
    words = Words(item, name)
    kind = "f32" if half else item.words[-1]
    modifiers = _take(words, kind, (), "rn")
    words.one_of(kind)
    if half:
        words.one_of(half)
        if modifiers.ftz or name == "mul":
            raise b.unsupported(f"{item.opcode} is no mixed form of the manual")
    words.done()
    function = operation(name, kind, modifiers)
    operands = b.operands(3)
    if half:
        wide = converter(half, "f32")
        return _finish(b, lambda x, y: function(wide(x), y), operands, ("f32", half, "f32"))
    return _finish(b, function, operands, (kind,) * 3)


def compile_fma(item: Instruction, b: Builder) -> Step:
    """``fma``, and ``mad``, which is the same."""
    half = _mixed(item)
    words = Words(item, item.words[0])
    kind = "f32" if half else item.words[-1]
    modifiers = _take(words, kind, _FUSED.get(kind, ()), None)
    words.one_of(kind)
    if half:
        words.one_of(half)
    words.done()
    if item.words[0] == "mad" and (half or kind not in ("f32", "f64")):
        raise b.unsupported(f"{item.opcode} is no form of mad")
    if modifiers.sat and (modifiers.relu or modifiers.oob):
        raise b.wrong(".sat does not go with .relu and .oob")
    function = operation("fma", kind, modifiers)
    operands = b.operands(4)
    if half:
        wide = converter(half, "f32")
        kinds = ("f32", half, half, "f32")
        return _finish(b, lambda x, y, z: function(wide(x), wide(y), z), operands, kinds)
    return _finish(b, function, operands, (kind,) * 4)


def compile_div(item: Instruction, b: Builder) -> Step:
    """``div``, 9.7.3.8: rounded, or approximate."""
    words = Words(item, "div")
    kind = words.one_of("f32", "f64")
    quick = words.one_of("approx", "full", default="") if kind == "f32" else ""
    if quick:
        function = approximation("div" if quick == "approx" else "full", kind, words.flag("ftz"))
    else:
        function = _rounded(words, "div", kind)
    words.done()
    return _finish(b, function, b.operands(3), (kind,) * 3)


def _rounded(words: Words, name: str, kind: str) -> Operation:
    mode = words.one_of(*_MODES)
    return operation(name, kind, Modifiers(mode, ftz=kind == "f32" and words.flag("ftz")))


def compile_sign(item: Instruction, b: Builder) -> Step:
    """``abs`` and ``neg``: only the sign bit changes."""
    words = Words(item, item.words[0])
    kind = item.words[-1]
    ftz = kind in ("f32", "f16", "f16x2") and words.flag("ftz")
    words.one_of("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
    words.done()
    function = sign_operation(item.words[0], _ELEMENT.get(kind, kind), ftz)
    if kind in _ELEMENT:
        function = packed(function, _ELEMENT[kind])
    return _finish(b, function, b.operands(2), (kind, kind))


def sign_operation(name: str, kind: str, ftz: bool) -> Operation:
    """abs or neg on bit patterns of `kind`.

    The manual leaves the result for NaN open; devices give the canonical one, but for f64.
    """
    fmt = number_format(kind)
    mask = fmt.storage(fmt.sign - 1 if name == "abs" else fmt.sign)
    operator: Callable[..., Array] = np.bitwise_and if name == "abs" else np.bitwise_xor
    if kind == "f64":
        return lambda bits: operator(bits, mask)
    flush, fix = flusher(kind) if ftz else None, canonical(kind)

    def run(bits: Array) -> Array:
        return fix(operator(bits if flush is None else flush(bits), mask))

    return run


# -------------------------------------------------------------------------- one operand

#: Types of the approximate functions, and on which of them .ftz is possible.
_APPROXIMATE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "rsqrt": (("f32", "f64"), ("f32",)),
    "sin": (("f32",), ("f32",)),
    "cos": (("f32",), ("f32",)),
    "lg2": (("f32",), ("f32",)),
    "ex2": (("f32", "f16", "f16x2", "bf16", "bf16x2"), ("f32", "bf16", "bf16x2")),
    "tanh": (("f32", "f16", "f16x2", "bf16", "bf16x2"), ()),
}


@instruction("rcp", "sqrt", manual="9.7.3.13 rcp, 9.7.3.15 sqrt")
def compile_inverse(item: Instruction, b: Builder) -> Step:
    """Reciprocals and square roots, rounded or approximate."""
    name = item.words[0]
    words = Words(item, name)
    kind = words.one_of("f32", "f64")
    if kind == "f32" and words.flag("approx"):
        function = approximation(name, kind, words.flag("ftz"))
    else:
        function = _rounded(words, name, kind)
    words.done()
    return _finish(b, function, b.operands(2), (kind, kind))


@instruction("rcp.approx.ftz.f64", "rsqrt.approx.ftz.f64", manual="9.7.3.14, 9.7.3.17")
def compile_gross(item: Instruction, b: Builder) -> Step:
    """Approximations that use and give only the upper word of a double."""
    Words(item, f"{item.words[0]}.approx.ftz.f64").done()
    name = item.words[0]
    return _finish(b, lambda bits: gross_float64(name, bits), b.operands(2), ("f64", "f64"))


@instruction(*_APPROXIMATE, manual="9.7.3.16-22, 9.7.4.9-10 rsqrt, sin, cos, lg2, ex2, tanh")
def compile_approximate(item: Instruction, b: Builder) -> Step:
    """Functions that hardware only approximates."""
    name, kind = item.words[0], item.words[-1]
    kinds, flushing = _APPROXIMATE[name]
    words = Words(item, name)
    words.one_of("approx")
    ftz = kind in flushing and words.flag("ftz")
    words.one_of(*kinds)
    words.done()
    if name == "ex2" and kind.startswith("bf16") and not ftz:
        raise b.wrong("ex2 of bf16 needs .ftz")
    return _finish(b, approximation(name, kind, ftz), b.operands(2), (kind, kind))
