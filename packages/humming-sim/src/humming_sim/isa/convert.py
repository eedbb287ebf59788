"""Conversion of one value (PTX ISA 9.0, 9.7.9.21 cvt) and ``cvt.pack`` (9.7.9.22)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.isa import convert_packed
from humming_sim.isa.builder import Builder
from humming_sim.isa.elementwise import apply, read_bits
from humming_sim.isa.registry import Modifiers, instruction
from humming_sim.isa.types import width_of
from humming_sim.machine.code import Step
from humming_sim.numbers.codes import canonical, flusher, saturator, tiny_results
from humming_sim.numbers.conversion import Conversion, converter
from humming_sim.numbers.formats import decode, values
from humming_sim.numbers.integers import (
    INTEGER_MODES,
    clamp,
    from_float,
    limits,
    round_to_integral,
    to_float,
)
from humming_sim.numbers.rounding import Rounding, encode
from humming_sim.ptx.model import Instruction

Array = npt.NDArray[Any]

_SIZES = (8, 16, 32, 64)
_INTEGERS = tuple(f"{sign}{bits}" for sign in "us" for bits in _SIZES)
_FLOATS = ("f16", "bf16", "f32", "f64")
_MODES = ("rn", "rz", "rm", "rp")
#: Bits of significand and of exponent: what widening one into another loses.
_EXTENT = {"f16": (11, 5), "bf16": (8, 8), "f32": (24, 8), "f64": (53, 11), "tf32": (11, 8)}


@instruction("cvt", manual="9.7.9.21 cvt")
def compile_cvt(item: Instruction, b: Builder) -> Step:
    """One value to another type, or pairs and fours of small floats."""
    if len(item.words) < 3:
        raise b.wrong("cvt needs two types")
    target, source = item.words[-2:]
    modifiers = Modifiers(item, "cvt")
    if convert_packed.is_packed(target) or convert_packed.is_packed(source):
        return convert_packed.compile_packed(item, b, modifiers)
    for kind in (target, source):
        modifiers.one_of(kind)
    known = (*_INTEGERS, *_FLOATS)
    if source not in known or target not in (*known, "tf32"):
        raise b.unsupported(f"cvt from .{source} to .{target} is not simulated")
    if target in _INTEGERS:
        function = (_integer_to_integer if source in _INTEGERS else _float_to_integer)(
            b, modifiers, target, source
        )
    else:
        function = (_integer_to_float if source in _INTEGERS else _float_to_float)(
            b, modifiers, target, source
        )
    modifiers.done()
    result, operand = b.operands(2)
    # Signed results are sign-extended into wider registers, others zero-extended.
    written = target if target in _INTEGERS else f"b{_bits(target)}"
    read = b.read(operand, source) if source in _INTEGERS else read_bits(b, operand, source)
    return apply(function, [read], b.write(result, written))


def _bits(kind: str) -> int:
    return 32 if kind == "tf32" else width_of(kind)


# ------------------------------------------------------------------------ from and to integers


def _integer_to_integer(
    b: Builder, modifiers: Modifiers, target: str, source: str
) -> Callable[[Any], Any]:
    dtype = _dtype(target)
    if not modifiers.flag("sat"):
        return lambda x: np.asarray(x).astype(dtype)
    if limits(target)[0] <= limits(source)[0] and limits(target)[1] >= limits(source)[1]:
        raise b.wrong(f".sat is no use from .{source} to .{target}")
    wide = np.uint64 if source == "u64" else np.int64
    return lambda x: clamp(target, np.asarray(x).astype(wide)).astype(dtype)


def _float_to_integer(
    b: Builder, modifiers: Modifiers, target: str, source: str
) -> Callable[[Array], Array]:
    mode = modifiers.one_of(*INTEGER_MODES)
    modifiers.drop("sat")  # clamping is what happens anyway
    flush = flusher("f32") if source == "f32" and modifiers.flag("ftz") else None
    bits = width_of(target)
    nan = 1 << (bits - 1) if source == "f64" or bits == 64 else 0
    dtype = _dtype(target)

    def run(codes: Array) -> Array:
        numbers = decode(source, codes if flush is None else flush(codes))
        return from_float(target, numbers, mode, nan).view(dtype)

    return run


def _integer_to_float(
    b: Builder, modifiers: Modifiers, target: str, source: str
) -> Callable[[Any], Array]:
    mode = modifiers.one_of(*_MODES)
    saturate = _saturation(modifiers, target)
    if target == "f32":
        modifiers.drop("ftz")  # no integer becomes subnormal
    native = {"f32": np.float32, "f64": np.float64}.get(target)
    wide = np.uint64 if source == "u64" else np.int64

    def run(x: Any) -> Array:
        if mode == "rn" and native is not None:
            codes: Array = np.asarray(x).astype(native).view(f"u{_bits(target) // 8}")
        else:
            codes = to_float(target, np.asarray(x).astype(wide), mode)
        return codes if saturate is None else saturate(codes)

    return run


def _dtype(kind: str) -> np.dtype[Any]:
    return np.dtype(f"{'i' if kind[0] == 's' else 'u'}{width_of(kind) // 8}")


def _saturation(modifiers: Modifiers, target: str) -> Conversion | None:
    """Clamping to [0, 1], if ``.sat`` is there and the type knows it."""
    if target in ("f16", "f32", "f64") and modifiers.flag("sat"):
        return saturator(target)
    return None


# ----------------------------------------------------------------------------- float to float


def _float_to_float(
    b: Builder, modifiers: Modifiers, target: str, source: str
) -> Callable[[Array], Array]:
    steps: list[Conversion] = []
    ftz = "f32" in (source, target) and target != "tf32" and modifiers.flag("ftz")
    # To f16, devices round even subnormals: with .rm the smallest negative one to -2 ** -24.
    if ftz and source == "f32" and target != "f16":
        steps.append(flusher("f32"))
    steps.append(_core(b, modifiers, target, source, ftz))
    if ftz and target == "f32" and source != "f64":
        steps += [flusher("f32"), canonical("f32")]
    saturate = _saturation(modifiers, target)
    if saturate is not None:
        steps.append(saturate)
    if len(steps) == 1:
        return steps[0]

    def run(codes: Array) -> Array:
        for step in steps:
            codes = step(codes)
        return codes

    return run


def _core(b: Builder, modifiers: Modifiers, target: str, source: str, ftz: bool) -> Conversion:
    if source == target:
        mode = modifiers.one_of(*INTEGER_MODES, default="")
        return _integral(source, mode) if mode else _same
    lossy = any(old > new for old, new in zip(_EXTENT[source], _EXTENT[target], strict=True))
    if not lossy:
        return converter(source, target)
    # .rna is tf32's alone; .relu and .satfinite go with float32 sources and .rn or .rz.
    modes = ("rn", "rz", "rna") if target == "tf32" else _MODES
    mode = modifiers.one_of(*modes)
    special = source == "f32" and target in ("f16", "bf16", "tf32")
    rounding = Rounding(
        mode,
        satfinite=special and modifiers.flag("satfinite"),
        relu=special and mode != "rna" and modifiers.flag("relu"),
    )
    if (rounding.relu or rounding.satfinite) and mode in ("rm", "rp"):
        raise b.wrong(f".{mode} goes with neither .relu nor .satfinite")
    convert = converter(source, target, rounding)
    return _flushed(convert, mode) if ftz and source == "f64" else convert


def _flushed(convert: Conversion, mode: str) -> Conversion:
    """Conversion from f64 to f32 with subnormal results flushed."""
    flush, tiny = flusher("f32"), tiny_results("f32", mode)
    return lambda codes: tiny(flush(convert(codes)), lambda at: codes.view(np.float64)[at])


def _same(codes: Array) -> Array:
    return codes


def _integral(kind: str, mode: str) -> Conversion:
    """Rounding to integral values of the same type."""
    if kind in ("f16", "bf16"):
        table = encode(kind, round_to_integral(values(kind), mode))
        return lambda codes: table.take(codes)
    dtype = np.float64 if kind == "f64" else np.float32

    def run(codes: Array) -> Array:
        result: Array = round_to_integral(codes.view(dtype), mode).view(codes.dtype)
        return result

    return run if kind == "f64" else (lambda codes: canonical("f32")(run(codes)))


# --------------------------------------------------------------------------------- cvt.pack

_PACKED = ("u2", "s2", "u4", "s4", "u8", "s8", "u16", "s16")


@instruction("cvt.pack", manual="9.7.9.22 cvt.pack")
def compile_pack(item: Instruction, b: Builder) -> Step:
    """Two saturated integers in the low bits, above them the low bits of a third operand."""
    modifiers = Modifiers(item, "cvt.pack")
    modifiers.one_of("sat")
    kind = modifiers.one_of(*_PACKED)
    modifiers.one_of("s32")
    bits = int(kind[1:])
    if bits < 16:
        modifiers.one_of("b32")
    modifiers.done()
    target, *sources = b.operands(3 if bits == 16 else 4)
    mask, shift, above = (np.uint32(v) for v in ((1 << bits) - 1, bits, 2 * bits % 32))

    def run(first: Any, second: Any, rest: Any = None) -> Any:
        high, low = (
            clamp(kind, np.asarray(x).astype(np.int64)).astype(np.uint32) & mask
            for x in (first, second)
        )
        joined = low | (high << shift)
        return joined if rest is None else joined | (np.asarray(rest) << above)

    readers = [b.read(source, "s32") for source in sources[:2]]
    readers += [b.read(source, "b32") for source in sources[2:]]
    return apply(run, readers, b.write(target, "b32"))
