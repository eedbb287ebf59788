"""Every cvt that SM90 or an earlier GPU has; exhaustive where the source has 16 bits or fewer."""

from __future__ import annotations

import itertools

import numpy as np

from silicon.case import EXACT, Array, Case, Check
from silicon.float_cases import F64
from silicon.text import Op, elementwise
from silicon.values import floats, integers, noise

INTEGERS = tuple(f"{sign}{width}" for width in (8, 16, 32, 64) for sign in "su")
ROUNDINGS = ("rn", "rz", "rm", "rp")
TO_INTEGER = ("rni", "rzi", "rmi", "rpi")
ALL_16 = np.arange(1 << 16, dtype=np.uint16)


def _width(kind: str) -> int:
    return int("".join(c for c in kind.replace("bf", "f") if c.isdigit()))


def _fits(source: str, target: str) -> bool:
    """Whether every value of `source` is one of `target`: then .sat is not legal."""
    if source[0] == target[0]:
        return _width(source) <= _width(target)
    return source[0] == "u" and _width(source) < _width(target)


def _op(name: str, width: int, check: Check = EXACT, source: str = "%a") -> Op:
    """A conversion; 8-bit results are read as the 16 bits of the register that holds them."""
    return Op(name, max(width, 16), f"{name} %d, {source};", check)


def exact_points(exponent: int, mantissa: int, kept: int, seed: int, count: int) -> Array:
    """Floats whose bits below the `kept` highest of the mantissa sit on or beside a tie."""
    bits = noise(seed, count, exponent + mantissa + 1)
    low = mantissa - kept
    half = 1 << (low - 1)
    tails = np.array([0, 1, half - 1, half, half + 1, 2 * half - 1], bits.dtype)
    tail = tails[np.arange(count) % len(tails)]
    return (bits & ~np.array(2 * half - 1, bits.dtype)) | tail


def singles(seed: int, count: int = 2048) -> Array:
    """f32 sources: edges, values near one, ties for f16, bf16, tf32 and fp8 results."""
    near = floats(seed, 1, 8, 23, count)[0]
    ties = [exact_points(8, 23, kept, seed + kept, count // 16) for kept in (2, 3, 7, 10)]
    spread = np.concatenate(ties)
    small = spread.copy()
    # Exponents around fp8's and f16's ranges, where the results are neither zero nor infinite.
    small = (small & np.uint32(0x807FFFFF)) | (
        (noise(seed + 99, len(small), 32) % np.uint32(48) + np.uint32(100)) << np.uint32(23)
    )
    near[-2 * len(spread) :] = np.concatenate([spread, small])
    return near


def integer_to_integer() -> list[Case]:
    """Every pair of integer types, with and without saturation."""
    cases = []
    for source in INTEGERS:
        width = _width(source)
        ops = []
        for target in INTEGERS:
            ops.append(_op(f"cvt.{target}.{source}", _width(target)))
            if not _fits(source, target):
                ops.append(_op(f"cvt.sat.{target}.{source}", _width(target)))
            if _width(target) < 32:
                name = f"cvt.{target}.{source}"
                ops.append(Op(f"{name} into 32 bits", 32, f"{name} %d, %a;"))
        values = integers(301, 1, width, 256)[0] if width > 8 else np.arange(256, dtype=np.uint8)
        cases.append(elementwise(f"convert/{source}_to_integers", {"a": values}, ops))
    return cases


def integer_to_float() -> list[Case]:
    """Integers to every float with every rounding."""
    cases = []
    for source in INTEGERS:
        width = _width(source)
        ops = []
        for target, rounding in itertools.product(("f16", "f32", "f64"), ROUNDINGS):
            ops.append(_op(f"cvt.{rounding}.{target}.{source}", _width(target)))
        ops.append(_op(f"cvt.rn.sat.f32.{source}", 32))
        if width == 8:
            values = np.arange(256, dtype=np.uint8)
        else:
            values = integers(303, 1, width, 512)[0]
            values[256:] >>= (np.arange(256) % width).astype(values.dtype)
        cases.append(elementwise(f"convert/{source}_to_floats", {"a": values}, ops))
        if width == 8:
            continue
        ops = [_op(f"cvt.{rounding}.bf16.{source}", 16) for rounding in ROUNDINGS]
        name = f"convert/{source}_to_bf16"
        cases.append(elementwise(name, {"a": values}, ops, target="sm_90", version="7.8"))
    return cases


def float_to_integer(source: str, values: Array, target: str, version: str) -> list[Case]:
    """A float to every integer with every rounding; one case per integer width."""
    cases = []
    for width in (8, 16, 32, 64):
        if source == "bf16" and width == 8:
            continue
        ops = []
        for sign, rounding in itertools.product("su", TO_INTEGER):
            ops.append(_op(f"cvt.{rounding}.{sign}{width}.{source}", width))
            if source == "f32":
                ops.append(_op(f"cvt.{rounding}.ftz.{sign}{width}.{source}", width))
        if source != "bf16":
            ops.append(_op(f"cvt.rzi.sat.s{width}.{source}", width))
        name = f"convert/{source}_to_int{width}"
        cases.append(elementwise(name, {"a": values}, ops, target=target, version=version))
    return cases


def halves() -> list[Case]:
    """All f16 and bf16 values to the other floats and to integral values."""
    ops = [_op("cvt.f32.f16", 32), _op("cvt.ftz.f32.f16", 32), _op("cvt.sat.f32.f16", 32)]
    ops += [
        _op("cvt.f64.f16", 64, F64),
        _op("cvt.sat.f16.f16", 16),
        _op("cvt.rn.bf16.f16", 16),
    ]
    ops += [_op(f"cvt.{rounding}.f16.f16", 16) for rounding in TO_INTEGER]
    first = elementwise("convert/f16_to_floats", {"a": ALL_16}, ops, target="sm_90", version="7.8")
    ops = [_op("cvt.f32.bf16", 32), _op("cvt.f64.bf16", 64, F64)]
    ops += [_op(f"cvt.{rounding}.bf16.bf16", 16) for rounding in TO_INTEGER]
    ops += [_op(f"cvt.{rounding}.f16.bf16", 16) for rounding in ROUNDINGS]
    second = elementwise(
        "convert/bf16_to_floats", {"a": ALL_16}, ops, target="sm_90", version="7.8"
    )
    return [first, second]


def from_single() -> list[Case]:
    """f32 to f32 (integral), f64, f16, bf16, tf32 and their pairs."""
    ops = [_op("cvt.f64.f32", 64, F64), _op("cvt.ftz.f64.f32", 64, F64)]
    ops += [_op("cvt.sat.f64.f32", 64, F64), _op("cvt.sat.f32.f32", 32)]
    for rounding, ftz, sat in itertools.product(TO_INTEGER, ("", ".ftz"), ("", ".sat")):
        ops.append(_op(f"cvt.{rounding}{ftz}{sat}.f32.f32", 32))
    for rounding, ftz, sat in itertools.product(ROUNDINGS, ("", ".ftz"), ("", ".sat")):
        # The H200 does not flush the inputs of .rm.ftz and .rp.ftz, against the manual.
        if not (ftz and rounding in ("rm", "rp")):
            ops.append(_op(f"cvt.{rounding}{ftz}{sat}.f16.f32", 16))
    values = singles(305)
    first = elementwise("convert/f32_to_floats", {"a": values}, ops, version="8.0")
    ops = [
        _op(f"cvt.{r}{relu}.{k}.f32", 16)
        for r in ("rn", "rz")
        for relu in ("", ".relu")
        for k in ("f16", "bf16")
    ]
    ops += [_op(f"cvt.{r}.bf16.f32", 16) for r in ("rm", "rp")]
    ops += [_op(f"cvt.{r}{relu}.tf32.f32", 32) for r in ("rn", "rz") for relu in ("", ".relu")]
    ops.append(_op("cvt.rna.tf32.f32", 32))
    # Of NaNs the H200 makes large numbers; the manual promises a NaN.
    clean = ".reg .pred %n; .reg .b32 %x; testp.notanumber.f32 %n, %a; selp.b32 %x, 3, %a, %n; "
    name = "cvt.rna.satfinite.tf32.f32"
    ops.append(Op(f"{name} of numbers", 32, f"{clean}{name} %d, %x;"))
    for rounding, relu, kind in itertools.product(("rn", "rz"), ("", ".relu"), ("f16x2", "bf16x2")):
        ops.append(_op(f"cvt.{rounding}{relu}.{kind}.f32", 32, source="%a, %b"))
        ops.append(_op(f"cvt.{rounding}{relu}.satfinite.{kind}.f32", 32, source="%a, %b"))
        ops.append(_op(f"cvt.{rounding}{relu}.satfinite.{kind[:-2]}.f32", 16))
    inputs = {"a": values, "b": singles(307)[::-1].copy()}
    second = elementwise("convert/f32_to_small", inputs, ops, target="sm_90", version="8.6")
    return [first, second]


def from_double() -> Case:
    """f64 to f32 and f16 with every rounding, and to integral f64."""
    ops = []
    for rounding, sat in itertools.product(ROUNDINGS, ("", ".sat")):
        ops += [
            _op(f"cvt.{rounding}{sat}.f32.f64", 32),
            _op(f"cvt.{rounding}.ftz{sat}.f32.f64", 32),
        ]
        ops.append(_op(f"cvt.{rounding}{sat}.f16.f64", 16))
    ops += [_op(f"cvt.{rounding}.f64.f64", 64, F64) for rounding in TO_INTEGER]
    ops += [_op(f"cvt.{rounding}.bf16.f64", 16) for rounding in ROUNDINGS]
    inputs = {"a": doubles(309, 1024)}
    return elementwise("convert/f64_to_floats", inputs, ops, target="sm_90", version="7.8")


def doubles(seed: int, count: int) -> Array:
    """f64 sources: edges, near one, and ties for f32 and f16 results."""
    values = floats(seed, 1, 11, 52, count)[0]
    ties = np.concatenate([exact_points(11, 52, kept, seed, count // 8) for kept in (10, 23)])
    power = noise(seed + 1, len(ties)) % np.uint64(300) + np.uint64(1023 - 160)
    values[-len(ties) :] = (ties & np.uint64(0x800FFFFFFFFFFFFF)) | (power << np.uint64(52))
    return values


def fp8() -> list[Case]:
    """Both 8-bit floats: all pairs of codes, all f16 values, f32 around every tie."""
    ops = [_op(f"cvt.rn{relu}.f16x2.{k}x2", 32) for relu in ("", ".relu") for k in ("e4m3", "e5m2")]
    codes = np.arange(256, dtype=np.uint16)
    pairs = codes << np.uint16(8) | codes[::-1]
    first = elementwise("convert/fp8_to_f16", {"a": pairs}, ops, target="sm_89", version="8.1")
    forms = list(itertools.product(("", ".relu"), ("e4m3x2", "e5m2x2")))
    ops = [_op(f"cvt.rn.satfinite{relu}.{k}.f16x2", 16) for relu, k in forms]
    words = ALL_16.astype(np.uint32) << np.uint32(16) | ALL_16[::-1].astype(np.uint32)
    second = elementwise("convert/f16_to_fp8", {"a": words}, ops, target="sm_89", version="8.1")
    ops = [_op(f"cvt.rn.satfinite{relu}.{k}.f32", 16, source="%a, %b") for relu, k in forms]
    inputs = {"a": singles(311), "b": singles(313)[::-1].copy()}
    third = elementwise("convert/f32_to_fp8", inputs, ops, target="sm_89", version="8.1")
    return [first, second, third]


def cases() -> list[Case]:
    """The family."""
    return [
        *integer_to_integer(),
        *integer_to_float(),
        *float_to_integer("f16", ALL_16, "sm_75", "7.0"),
        *float_to_integer("bf16", ALL_16, "sm_90", "7.8"),
        *float_to_integer("f32", singles(315), "sm_75", "7.0"),
        *float_to_integer("f64", doubles(317, 1024), "sm_75", "7.0"),
        *halves(),
        *from_single(),
        from_double(),
        *fp8(),
    ]
