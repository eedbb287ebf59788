"""Floating-point arithmetic that IEEE 754 or the manual defines to the bit."""

from __future__ import annotations

import itertools

from silicon.case import EXACT, Array, Case, SameNumber
from silicon.text import Op, elementwise, flag
from silicon.values import floats, noise

ROUNDINGS = ("rn", "rz", "rm", "rp")
FORMATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}
# f64 instructions may hand on either operand's NaN payload; the manual leaves it open.
F64 = SameNumber("f64")


def operands(format: str, seed: int, count: int = 512) -> dict[str, Array]:
    """%a, %b, %c in a format; the x2 forms get two independent halves."""
    name = format.removesuffix("x2")
    exponent, mantissa = FORMATS[name]
    arrays = floats(seed, 3, exponent, mantissa, count)
    if format.endswith("x2"):
        others = floats(seed + 1000, 3, exponent, mantissa, count)
        others = [other[(noise(seed, count) % count).astype(int)] for other in others]
        arrays = [a.astype("uint32") << 16 | o for a, o in zip(arrays, others, strict=True)]
    return dict(zip("abc", arrays, strict=True))


def _op(name: str, arity: int, width: int) -> Op:
    registers = ", ".join(f"%{r}" for r in "abc"[:arity])
    return Op(name, width, f"{name} %d, {registers};", F64 if width == 64 else EXACT)


def single() -> list[Case]:
    """f32: every rounding, with and without .ftz and .sat."""
    cases = []
    for ftz in ("", ".ftz"):
        ops = []
        for rounding, sat in itertools.product(ROUNDINGS, ("", ".sat")):
            tail = f".{rounding}{ftz}{sat}.f32"
            ops += [_op(f"{name}{tail}", 2, 32) for name in ("add", "sub", "mul")]
            ops.append(_op(f"fma{tail}", 3, 32))
        for rounding in ROUNDINGS:
            tail = f".{rounding}{ftz}.f32"
            ops += [_op(f"div{tail}", 2, 32), _op(f"rcp{tail}", 1, 32), _op(f"sqrt{tail}", 1, 32)]
        ops += [_op(f"{name}{ftz}.f32", 1, 32) for name in ("abs", "neg")]
        for name, nan in itertools.product(("min", "max"), ("", ".NaN")):
            ops.append(_op(f"{name}{ftz}{nan}.f32", 2, 32))
            ops.append(_op(f"{name}{ftz}{nan}.xorsign.abs.f32", 2, 32))
        ops += [_op("copysign.f32", 2, 32), _op("add.f32", 2, 32), _op("mul.f32", 2, 32)]
        name = "float/single" + ftz.replace(".", "_")
        cases.append(elementwise(name, operands("f32", 201), ops, target="sm_86", version="7.2"))
    return cases


def double() -> Case:
    """f64: every rounding."""
    ops = []
    for rounding in ROUNDINGS:
        ops += [_op(f"{name}.{rounding}.f64", 2, 64) for name in ("add", "sub", "mul", "div")]
        ops.append(_op(f"fma.{rounding}.f64", 3, 64))
        ops += [_op(f"{name}.{rounding}.f64", 1, 64) for name in ("rcp", "sqrt")]
    ops += [_op(f"{name}.f64", 1, 64) for name in ("abs", "neg")]
    ops += [_op(f"{name}.f64", 2, 64) for name in ("min", "max", "copysign")]
    return elementwise("float/double", operands("f64", 203, 256), ops)


def half(format: str) -> Case:
    """f16 and f16x2: .ftz, .sat, .relu, min and max."""
    width = 32 if format.endswith("x2") else 16
    ops = []
    for ftz, sat in itertools.product(("", ".ftz"), ("", ".sat")):
        tail = f".rn{ftz}{sat}.{format}"
        ops += [_op(f"{name}{tail}", 2, width) for name in ("add", "sub", "mul")]
        ops.append(_op(f"fma{tail}", 3, width))
    for ftz in ("", ".ftz"):
        ops.append(_op(f"fma.rn{ftz}.relu.{format}", 3, width))
        ops += [_op(f"{name}{ftz}.{format}", 1, width) for name in ("abs", "neg")]
        for name, nan, sign in itertools.product(
            ("min", "max"), ("", ".NaN"), ("", ".xorsign.abs")
        ):
            ops.append(_op(f"{name}{ftz}{nan}{sign}.{format}", 2, width))
    ops += [_op(f"{name}.{format}", 2, width) for name in ("add", "mul")]
    return elementwise(f"float/{format}", operands(format, 205), ops, target="sm_86", version="7.2")


def brain(format: str) -> Case:
    """bf16 and bf16x2, add/sub/mul of SM90 and the .oob multiply-adds too."""
    width = 32 if format.endswith("x2") else 16
    ops = [_op(f"{name}.rn.{format}", 2, width) for name in ("add", "sub", "mul")]
    ops += [_op(f"fma.rn{relu}.{format}", 3, width) for relu in ("", ".relu")]
    ops += [_op(f"{name}.{format}", 1, width) for name in ("abs", "neg")]
    for name, nan, sign in itertools.product(("min", "max"), ("", ".NaN"), ("", ".xorsign.abs")):
        ops.append(_op(f"{name}{nan}{sign}.{format}", 2, width))
    return elementwise(f"float/{format}", operands(format, 207), ops, target="sm_90", version="7.8")


def out_of_bounds_fma() -> list[Case]:
    """fma.oob: a NaN operand that marks out-of-bounds data gives zero."""
    cases = []
    for format in ("f16", "f16x2", "bf16", "bf16x2"):
        width = 32 if format.endswith("x2") else 16
        ops = [_op(f"fma.rn.oob{relu}.{format}", 3, width) for relu in ("", ".relu")]
        inputs = operands(format, 209)
        inputs["a"][5::16] = 0xFFFFFFFF % (1 << width)
        inputs["b"][7::16] = 0xFFFFFFFF % (1 << width)
        inputs["c"][9::16] = 0xFFFFFFFF % (1 << width)
        name = f"float/oob_{format}"
        cases.append(elementwise(name, inputs, ops, target="sm_90", version="8.1"))
    return cases


COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
UNORDERED = ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def comparisons(format: str, target: str, version: str) -> Case:
    """setp with every operator, Boolean combination and set forms."""
    ftz_forms = ("", ".ftz") if format in ("f16", "f32") else ("",)
    ops = []
    for operator, ftz in itertools.product(COMPARISONS + UNORDERED, ftz_forms):
        name = f"setp.{operator}{ftz}.{format}"
        ops.append(Op(name, 32, flag(f"{name} %q, %a, %b;")))
    for join in ("and", "or", "xor"):
        name = f"setp.lt.{join}.{format}"
        if format in ("f32", "f64"):
            test = f"setp.gt.{format} %s, %b, %c; {name} %q|%r, %a, %b, %s;"
            both = f"{test} selp.b32 %u, 1, 0, %q; selp.b32 %v, 2, 0, %r; or.b32 %d, %u, %v;"
            ops.append(Op(name, 32, f".reg .pred %q, %r, %s; .reg .b32 %u, %v; {both}"))
        inverted = flag(f".reg .pred %s; setp.gt.{format} %s, %b, %c; {name} %q, %a, %b, !%s;")
        ops.append(Op(f"{name} !c", 32, inverted))
    ops += [
        _op(f"set.geu.{kind}.{format}", 2, 32)
        for kind in ("u32", "s32", "f32")
        if format in ("f32", "f64")
    ]
    inputs = operands(format, 211)
    inputs["b"][::5] = inputs["a"][::5]
    return elementwise(f"float/compare_{format}", inputs, ops, target=target, version=version)


def packed_comparisons(format: str, target: str, version: str) -> Case:
    """setp on pairs sets two predicates; set on pairs gives numbers."""
    ops = []
    for operator in COMPARISONS + UNORDERED:
        name = f"setp.{operator}.{format}"
        test = f".reg .pred %q, %r; .reg .b32 %u, %v; {name} %q|%r, %a, %b; "
        ops.append(
            Op(name, 32, test + "selp.b32 %u, 1, 0, %q; selp.b32 %v, 2, 0, %r; or.b32 %d, %u, %v;")
        )
        ops.append(_op(f"set.{operator}.{format}.{format}", 2, 32))
    inputs = operands(format, 213)
    inputs["b"][::5] = inputs["a"][::5]
    return elementwise(f"float/compare_{format}", inputs, ops, target=target, version=version)


def number_tests() -> list[Case]:
    """testp, slct and selp."""
    kinds = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    cases = []
    for format in ("f32", "f64"):
        ops = [Op(f"testp.{k}.{format}", 32, flag(f"testp.{k}.{format} %q, %a;")) for k in kinds]
        inputs = operands(format, 215, 256)
        if format == "f32":
            ops += [
                _op(f"slct{ftz}.{k}.f32", 3, 32)
                for ftz in ("", ".ftz")
                for k in ("b32", "f32", "s32")
            ]
            ops += [_op(f"slct.{k}.s32", 3, 32) for k in ("b32", "f32", "u32")]
            choose = ".reg .pred %q; setp.lt.f32 %q, %a, %b; selp.f32 %d, %b, %c, %q;"
            ops.append(Op("selp.f32", 32, choose))
        cases.append(elementwise(f"float/tests_{format}", inputs, ops))
    return cases


def cases() -> list[Case]:
    """The families float and compare (of floats)."""
    return [
        *single(),
        double(),
        *[half(format) for format in ("f16", "f16x2")],
        *[brain(format) for format in ("bf16", "bf16x2")],
        *out_of_bounds_fma(),
        comparisons("f16", "sm_75", "7.0"),
        comparisons("bf16", "sm_90", "7.8"),
        comparisons("f32", "sm_75", "7.0"),
        comparisons("f64", "sm_75", "7.0"),
        packed_comparisons("f16x2", "sm_75", "7.0"),
        packed_comparisons("bf16x2", "sm_90", "7.8"),
        *number_tests(),
    ]
