"""Packed cvt: pairs and fours of fp8, fp6, fp4, ue8m0 and s2f6, with scales and random bits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import sim_reference as reference
from sim_scalar import Op, compute

from humming_sim.errors import PtxError, UnsupportedInstruction

Array = npt.NDArray[np.unsignedinteger]

TYPES: dict[str, tuple[type, int]] = {
    "e4m3": (ml_dtypes.float8_e4m3fn, 8),
    "e5m2": (ml_dtypes.float8_e5m2, 8),
    "e2m3": (ml_dtypes.float6_e2m3fn, 8),
    "e3m2": (ml_dtypes.float6_e3m2fn, 8),
    "e2m1": (ml_dtypes.float4_e2m1fn, 4),
    "f16": (np.float16, 16),
    "bf16": (ml_dtypes.bfloat16, 16),
}
SMALL = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
LARGEST = {"e4m3": 0x7E, "e5m2": 0x7B, "e2m3": 0x1F, "e3m2": 0x1F, "e2m1": 0x7}
NAN = {"e4m3": 0x7F, "e5m2": 0x7F, "e2m3": 0x1F, "e3m2": 0x1F, "e2m1": 0x7}
SIGN = {"e4m3": 0x80, "e5m2": 0x80, "e2m3": 0x20, "e3m2": 0x20, "e2m1": 0x8}
#: Targets whose fp6 and fp4 conversions ptxas accepts.
BLACKWELL = {"target": "sm_100a", "version": "8.6"}

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def singles(seed: int, count: int = 96) -> npt.NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=count) * np.exp2(rng.integers(-9, 12, count))).astype(np.float32)
    quarters = (rng.integers(-32, 32, count) / 8).astype(np.float32)
    x = np.where(rng.random(count) < 0.4, quarters, x)
    x[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-30]
    return rng.permutation(x)


def narrowed(name: str, value: float, relu: bool = False) -> int:
    """Nearest even by ml_dtypes, saturated; NaN as PTX says."""
    if math.isnan(value):
        return NAN[name]
    if relu and math.copysign(1, value) < 0:
        return 0
    dtype = TYPES[name][0]
    edge = float(np.array([LARGEST[name]], np.uint8).view(dtype)[0])
    limited = np.array([min(max(value, -edge), edge)], np.float64)
    return int(limited.astype(np.float32).astype(dtype).view(np.uint8)[0])


def joined(name: str, high: int, low: int) -> int:
    return low | high << TYPES[name][1]


@pytest.mark.parametrize("name", SMALL)
def test_two_singles_become_a_pair_the_first_above(name: str) -> None:
    a, b = singles(1), singles(2)
    ops = [f"cvt.rn.satfinite{relu}.{name}x2.f32 %x, %a, %b;" for relu in ("", ".relu")]
    results = compute(
        [Op(_from_pair(name, body), 16) for body in ops],
        {"a": a.view(np.uint32), "b": b.view(np.uint32)},
        **BLACKWELL,
    )
    for relu, got in zip((False, True), results, strict=True):
        for result, x, y in zip(got.tolist(), a.tolist(), b.tolist(), strict=True):
            expected = joined(name, narrowed(name, x, relu), narrowed(name, y, relu))
            assert result == expected, (x, y)


def _from_pair(name: str, body: str) -> str:
    """e2m1x2 lies in a .b8 register %x, which mov joins with a zero byte."""
    if name == "e2m1":
        return f".reg .b8 %x, %z; mov.b16 {{%z, _}}, 0; {body} mov.b16 %d, {{%x, %z}};"
    return body.replace("%x", "%d")


def test_a_pair_of_halves_becomes_fp8() -> None:
    rng = np.random.default_rng(3)
    words = rng.integers(0, 1 << 32, 96, dtype=np.uint64).astype(np.uint32)
    ops = [
        Op(f"cvt.rn.satfinite{relu}.{name}x2.f16x2 %d, %a;", 16)
        for name in ("e4m3", "e5m2")
        for relu in ("", ".relu")
    ]
    results = compute(ops, {"a": words}, version="8.1")
    halves = words.view(np.float16).astype(np.float64).reshape(-1, 2)
    for (name, relu), got in zip(
        itertools.product(("e4m3", "e5m2"), (False, True)), results, strict=True
    ):
        for result, (low, high) in zip(got.tolist(), halves.tolist(), strict=True):
            assert result == joined(name, narrowed(name, high, relu), narrowed(name, low, relu))


@pytest.mark.parametrize("name", SMALL)
def test_every_small_code_widens_to_f16(name: str) -> None:
    dtype, field = TYPES[name]
    codes = np.arange(256, dtype=np.uint8) & np.uint8(2 * LARGEST[name] | 1 | SIGN[name])
    if field == 8:
        codes = codes & np.uint8(SIGN[name] | (SIGN[name] - 1))
        pairs = codes.astype(np.uint16) | codes[::-1].astype(np.uint16) << 8
        body = "cvt.rn{}.f16x2." + name + "x2 %d, %a;"
    else:
        pairs = np.arange(256, dtype=np.uint16)
        body = ".reg .b8 %x; mov.b16 {{%x, _}}, %a; cvt.rn{}.f16x2.e2m1x2 %d, %x;"
    ops = [Op(body.format(relu)) for relu in ("", ".relu")]
    plain, relu = compute(ops, {"a": pairs}, **BLACKWELL)
    for index, pair in enumerate(pairs.tolist()):
        mask = (1 << field) - 1
        for part, code in enumerate((pair & mask, pair >> field)):
            value = float(np.array([code], np.uint8).view(dtype)[0])
            result, clamped = (int(got[index]) >> 16 * part & 0xFFFF for got in (plain, relu))
            if math.isnan(value):
                assert result == clamped == 0x7FFF
            else:
                expected = int(np.array([value], np.float16).view(np.uint16)[0])
                assert result == expected
                assert clamped == (0 if expected >> 15 else expected)


def test_two_singles_become_halves_in_every_form() -> None:
    a, b = singles(4), singles(5)
    forms = list(
        itertools.product(("f16", "bf16"), ("rn", "rz"), ("", ".relu"), ("", ".satfinite"))
    )
    ops = [Op(f"cvt.{mode}{relu}{sat}.{k}x2.f32 %d, %a, %b;") for k, mode, relu, sat in forms]
    results = compute(ops, {"a": a.view(np.uint32), "b": b.view(np.uint32)}, version="8.1")
    for (kind, mode, relu, sat), got in zip(forms, results, strict=True):
        for result, x, y in zip(got.tolist(), a.tolist(), b.tolist(), strict=True):
            high, low = (_half(kind, mode, bool(relu), bool(sat), v) for v in (x, y))
            assert result == low | high << 16, (kind, mode, relu, sat, x, y)


def _half(kind: str, mode: str, relu: bool, sat: bool, value: float) -> int:
    infinity = {"f16": 0x7C00, "bf16": 0x7F80}[kind]
    if math.isnan(value):
        return 0x7FFF
    negative = math.copysign(1, value) < 0
    if math.isinf(value):
        code = infinity | negative << 15
    else:
        exact = Fraction(value)
        code = reference.rounded(kind, exact, mode) if exact else int(negative) << 15
    if sat and code & 0x7FFF == infinity:
        code -= 1
    return 0 if relu and negative else code


def power(value: float, up: bool, sat: bool) -> int:
    if math.isnan(value):
        return 0xFF
    top = 0xFE if sat else 0xFF
    if math.isinf(value):
        return top
    size = abs(Fraction(value))
    codes = range(255)
    if up:
        return next((c for c in codes if Fraction(2) ** (c - 127) >= size), top)
    below = [c for c in codes if Fraction(2) ** (c - 127) <= size]
    return below[-1] if below else 0


def test_exponents_go_down_or_up() -> None:
    a, b = singles(6), singles(7)
    a[:3] = np.array([2.0**-127, 1.5 * 2.0**-127, 3e38], np.float32)
    forms = list(itertools.product(("rz", "rp"), ("", ".satfinite")))
    ops = [Op(f"cvt.{mode}{sat}.ue8m0x2.f32 %d, %a, %b;", 16) for mode, sat in forms]
    results = compute(ops, {"a": a.view(np.uint32), "b": b.view(np.uint32)}, **BLACKWELL)
    for (mode, sat), got in zip(forms, results, strict=True):
        for result, x, y in zip(got.tolist(), a.tolist(), b.tolist(), strict=True):
            high, low = (power(v, mode == "rp", bool(sat)) for v in (x, y))
            assert result == low | high << 8, (mode, sat, x, y)


def test_exponents_widen_to_bfloat16_and_back() -> None:
    codes = np.arange(256, dtype=np.uint16)
    pairs = codes | codes[::-1] << 8
    ops = [
        Op("cvt.rn.bf16x2.ue8m0x2 %d, %a;"),
        Op(
            ".reg .b32 %x; cvt.rn.bf16x2.ue8m0x2 %x, %a; cvt.rz.ue8m0x2.bf16x2 %d, %x;",
            16,
        ),
    ]
    wide, back = compute(ops, {"a": pairs}, **BLACKWELL)
    for result, again, pair in zip(wide.tolist(), back.tolist(), pairs.tolist(), strict=True):
        for part in (0, 1):
            code, half = pair >> 8 * part & 0xFF, result >> 16 * part & 0xFFFF
            if code == 0xFF:
                assert half == 0x7FFF
            else:
                assert reference.value("bf16", half) == Fraction(2) ** (code - 127)
        assert again == pair


# ------------------------------------------------------------------------------ random bits


def carried(name: str, value: float, random: int, width: int) -> int:
    """Truncation after adding `random` in units of ``2 ** -width`` of the last place."""
    if math.isnan(value):
        return NAN.get(name, 0x7FFF)
    sign = math.copysign(1, value) < 0
    size = abs(value)
    dtype, field = TYPES[name]
    bits = 16 if field == 16 else 8
    largest = LARGEST.get(name) or {"f16": 0x7BFF, "bf16": 0x7F7F}[name]
    table = np.arange(largest + 1, dtype=f"u{bits // 8}").view(dtype).astype(np.float64)
    at = int(np.searchsorted(table, size, "right")) - 1
    if at < largest:
        step = Fraction(float(table[at + 1])) - Fraction(float(table[at]))
        rest = (Fraction(size) - Fraction(float(table[at]))) / step
        at += rest + Fraction(random, 1 << width) >= 1
    return at | sign << (SIGN[name].bit_length() - 1 if name in SIGN else 15)


def backwards(bits: int) -> int:
    return int(f"{bits:016b}"[::-1], 2)


def x4_random(name: str, bits: int) -> tuple[int, int, int, int]:
    """Random bits of the four operands a, b, e, f."""
    upper, lower = bits >> 16, bits & 0xFFFF
    if name == "e2m1":
        upper, lower = upper & 0xFF00 | lower >> 8, (upper & 0xFF) << 8 | lower & 0xFF
    return backwards(upper), upper, backwards(lower), lower


@pytest.mark.parametrize("name", SMALL)
def test_stochastic_fours_take_their_random_bits_as_laid_out(name: str) -> None:
    values = [singles(seed, 128) for seed in (8, 9, 10, 11)]
    random = np.random.default_rng(12).integers(0, 1 << 32, 128, dtype=np.uint64).astype(np.uint32)
    field = TYPES[name][1]
    op = Op(f"cvt.rs.satfinite.{name}x4.f32 %d, {{%a, %b, %e, %f}}, %r;", 4 * field)
    inputs: dict[str, Array] = {
        letter: x.view(np.uint32) for letter, x in zip("abef", values, strict=True)
    }
    (got,) = compute([op], {**inputs, "r": random}, target="sm_100a", version="8.7")
    columns = [x.tolist() for x in values]
    for result, bits, *row in zip(got.tolist(), random.tolist(), *columns, strict=True):
        parts = [
            carried(name, value, draw, 16)
            for value, draw in zip(row, x4_random(name, bits), strict=True)
        ]
        expected = sum(part << field * (3 - place) for place, part in enumerate(parts))
        assert result == expected, (row, hex(bits))


def test_stochastic_halves_take_one_half_of_the_random_bits_each() -> None:
    a, b = singles(13), singles(14)
    random = np.random.default_rng(15).integers(0, 1 << 32, 96, dtype=np.uint64).astype(np.uint32)
    ops = [f"cvt.rs.satfinite.{kind}x2.f32 %d, %a, %b, %r;" for kind in ("f16", "bf16")]
    inputs = {"a": a.view(np.uint32), "b": b.view(np.uint32), "r": random}
    results = compute(ops, inputs, target="sm_100a", version="8.7")
    for kind, width, got in zip(("f16", "bf16"), (13, 16), results, strict=True):
        mask = (1 << width) - 1
        rows = zip(got.tolist(), a.tolist(), b.tolist(), random.tolist(), strict=True)
        for result, x, y, bits in rows:
            high, low = (
                carried(kind, x, bits >> 16 & mask, width),
                carried(kind, y, bits & mask, width),
            )
            assert result == low | high << 16, (kind, x, y, hex(bits))


# -------------------------------------------------------------------- PTX 9.1 and 9.2, by scale


def fixed(value: float, scale: int, relu: bool) -> int:
    if math.isnan(value) or scale == 0xFF:
        return 127
    if math.isinf(value):
        units = 1 << 30 if value > 0 else -(1 << 30)
    else:
        units = round(Fraction(value) / Fraction(2) ** (scale - 127) * 64)
    if relu and math.copysign(1, value) < 0:
        units = 0
    return min(max(units, -128), 127) & 0xFF


def test_s2f6_divides_by_its_scale_and_rounds() -> None:
    a, b = singles(16), singles(17)
    scales = np.random.default_rng(18).integers(120, 134, (96, 2)).astype(np.uint16)
    scales[:2] = 0xFF
    factors = scales[:, 0] << 8 | scales[:, 1]
    forms = list(itertools.product((False, True), (False, True)))
    ops = [
        Op(
            f"cvt.rn.satfinite{'.relu' * relu}{'.scaled::n2::ue8m0' * by}.s2f6x2.f32 "
            f"%d, %a, %b{', %s' * by};",
            16,
        )
        for relu, by in forms
    ]
    inputs: dict[str, Array] = {"a": a.view(np.uint32), "b": b.view(np.uint32), "s": factors}
    # ptxas 13.0 does not know s2f6.
    results = compute(ops, inputs, target="sm_100a", version="9.1", legal=False)
    for (relu, by), got in zip(forms, results, strict=True):
        rows = zip(got.tolist(), a.tolist(), b.tolist(), scales.tolist(), strict=True)
        for result, x, y, (first, second) in rows:
            high = fixed(x, first if by else 127, relu)
            low = fixed(y, second if by else 127, relu)
            assert result == low | high << 8, (x, y, first, second)


SCALED_SOURCES: dict[str, Callable[[int], Fraction | float]] = {
    "s2f6": lambda code: Fraction(code - 256 * (code >> 7), 64),
    "e4m3": lambda code: reference.value("e4m3", code),
    "e2m3": lambda code: Fraction(
        float(np.array([code & 0x3F], np.uint8).view(ml_dtypes.float6_e2m3fn)[0])
    ),
}


@pytest.mark.parametrize("name", SCALED_SOURCES)
def test_small_numbers_widen_to_bfloat16_times_their_scale(name: str) -> None:
    codes = np.arange(256, dtype=np.uint16)
    if name == "e2m3":
        codes &= 0x3F
    pairs = codes | codes[::-1] << 8
    scale = np.random.default_rng(19).integers(0, 1 << 16, 256).astype(np.uint16)
    scale[:8] = 0x7F7F
    op = f"cvt.rn.satfinite.scaled::n2::ue8m0.bf16x2.{name}x2 %d, %a, %s;"
    plain = f"cvt.rn.bf16x2.{name}x2 %d, %a;"
    inputs = {"a": pairs, "s": scale}
    got, unscaled = compute([op, plain], inputs, target="sm_100a", version="9.2", legal=False)
    rows = zip(got.tolist(), unscaled.tolist(), pairs.tolist(), scale.tolist(), strict=True)
    for result, alone, pair, factor in rows:
        for part in (0, 1):
            half, code = result >> 16 * part & 0xFFFF, pair >> 8 * part & 0xFF
            power_code = factor >> 8 * part & 0xFF
            value = SCALED_SOURCES[name](code)
            if not isinstance(value, Fraction) or power_code == 0xFF:
                assert half == 0x7FFF
                continue
            exact = value * Fraction(2) ** (power_code - 127)
            expected = reference.rounded("bf16", exact) if exact else 0
            if expected & 0x7FFF == 0x7F80:
                expected -= 1
            assert half & 0x7FFF == expected & 0x7FFF
            assert reference.value("bf16", alone >> 16 * part & 0xFFFF) == value


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("cvt.rn.e4m3x2.f32 %d, %a, %a;", "satfinite"),
        ("cvt.rz.satfinite.e4m3x2.f32 %d, %a, %a;", "rn"),
        ("cvt.rn.satfinite.ue8m0x2.f32 %d, %a, %a;", "rz"),
        ("cvt.rn.satfinite.e4m3x4.f32 %d, {%a, %a, %a, %a};", "rs"),
        ("cvt.rs.satfinite.e4m3x4.f32 %d, {%a, %a}, %a;", "4 values"),
        ("cvt.rn.f16x2.ue8m0x2 %d, %a;", "ue8m0x2"),
        ("cvt.rn.satfinite.relu.ue8m0x2.f32 %d, %a, %a;", "rz"),
        ("cvt.rs.f16x2.f32 %d, %a, %a;", "4"),
    ],
)
def test_what_is_no_conversion_is_refused_by_name(body: str, named: str) -> None:
    inputs = {"a": singles(20).view(np.uint32)}
    with pytest.raises((PtxError, UnsupportedInstruction), match=named):
        compute([body], inputs, legal=False)
