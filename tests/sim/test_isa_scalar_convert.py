"""Scalar cvt of every pair of types, with one rounding, and cvt.pack."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
import sim_reference as reference
from sim_scalar import Op, compute

from humming_sim.errors import PtxError, UnsupportedInstruction

Array = npt.NDArray[np.unsignedinteger]

INTEGERS = tuple(f"{sign}{width}" for width in (8, 16, 32, 64) for sign in "su")
FLOATS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
MODES = ("rn", "rz", "rm", "rp")
WHOLE: dict[str, Callable[[Fraction], int]] = {
    "rni": round,
    "rzi": math.trunc,
    "rmi": math.floor,
    "rpi": math.ceil,
}


def integers(kind: str, seed: int, count: int = 64) -> Array:
    width = int(kind[1:])
    rng = np.random.default_rng(seed)
    edges = [0, 1, (1 << width) - 1, 1 << (width - 1), (1 << (width - 1)) - 1, 200]
    rest = [int(x) >> int(s) for x, s in zip(
        rng.integers(0, 1 << 63, count), rng.integers(0, 63, count), strict=True)]  # fmt: skip
    values = [value % (1 << width) for value in [*edges, *rest][:count]]
    return np.array(values, dtype=f"u{width // 8}")


def number(kind: str, code: int) -> int:
    width = int(kind[1:])
    code %= 1 << width
    return code - (1 << width) if kind[0] == "s" and code >> (width - 1) else code


def limits(kind: str) -> tuple[int, int]:
    width = int(kind[1:])
    return (-(1 << width - 1), (1 << width - 1) - 1) if kind[0] == "s" else (0, (1 << width) - 1)


def clamped(kind: str, value: int) -> int:
    low, high = limits(kind)
    return min(max(value, low), high)


def floats(kind: str, seed: int, count: int = 64) -> Array:
    """Codes of every size, with zeros, subnormals, infinities and NaN."""
    rng = np.random.default_rng(seed)
    exponent, mantissa, _ = reference.LAYOUT[kind]
    top = ((1 << exponent) - 1) << mantissa
    bias = (1 << exponent - 1) - 1
    fields = rng.integers(max(bias - 30, 0), min(bias + 70, (1 << exponent) - 1), count)
    short = rng.integers(0, mantissa + 1, count)
    fraction = rng.integers(0, 1 << mantissa, count) >> short << short
    values = (fields.astype(np.int64) << mantissa) | fraction
    values[:6] = [0, 1, top, top | 1 << (mantissa - 1), (1 << mantissa) - 1, top - 1]
    negative = rng.integers(0, 2, count).astype(np.uint64) << np.uint64(FLOATS[kind] - 1)
    return (values.astype(np.uint64) | negative).astype(f"u{FLOATS[kind] // 8}")


def test_integers_truncate_extend_and_saturate() -> None:
    for source in INTEGERS:
        codes = integers(source, 1)
        ops, wanted = [], []
        for target in INTEGERS:
            width = int(target[1:])
            ops.append(Op(f"cvt.{target}.{source} %d, %a;", width))
            wanted.append([number(source, c) % (1 << width) for c in codes.tolist()])
            low, high = limits(source)
            if low < limits(target)[0] or high > limits(target)[1]:
                ops.append(Op(f"cvt.sat.{target}.{source} %d, %a;", width))
                wanted.append(
                    [clamped(target, number(source, c)) % (1 << width) for c in codes.tolist()]
                )
        for op, got, row in zip(ops, compute(ops, {"a": codes}), wanted, strict=True):
            assert got.tolist() == row, op.body


def test_narrow_results_extend_into_wider_registers() -> None:
    codes = integers("s32", 2)
    ops = ["cvt.s8.s32 %d, %a;", "cvt.u8.s32 %d, %a;", "cvt.s16.s32 %d, %a;"]
    results = compute(ops, {"a": codes})
    for kind, got in zip(("s8", "u8", "s16"), results, strict=True):
        assert got.tolist() == [number(kind, code) % (1 << 32) for code in codes.tolist()]


@pytest.mark.parametrize("source", INTEGERS)
def test_integers_become_floats_with_one_rounding(source: str) -> None:
    codes = integers(source, 3)
    # ptxas has no cvt from 8 bits to bf16.
    targets = [kind for kind in FLOATS if kind != "bf16" or source[1:] != "8"]
    rows = list(itertools.product(targets, MODES))
    ops = [Op(f"cvt.{mode}.{kind}.{source} %d, %a;", FLOATS[kind]) for kind, mode in rows]
    ops.append(Op(f"cvt.rn.sat.f32.{source} %d, %a;"))
    *results, saturated = compute(ops, {"a": codes})
    for (kind, mode), got in zip(rows, results, strict=True):
        for result, code in zip(got.tolist(), codes.tolist(), strict=True):
            value = number(source, code)
            expected = reference.rounded(kind, Fraction(value), mode) if value else 0
            assert result == expected, (kind, mode, hex(code))
    expected = [0x3F800000 if number(source, code) > 0 else 0 for code in codes.tolist()]
    assert saturated.tolist() == expected


@pytest.mark.parametrize("source", FLOATS)
def test_floats_become_integers_clamped(source: str) -> None:
    codes = floats(source, 4)
    targets = [kind for kind in INTEGERS if source != "bf16" or kind[1:] != "8"]
    rows = list(itertools.product(targets, WHOLE))
    ops = [Op(f"cvt.{mode}.{kind}.{source} %d, %a;", int(kind[1:])) for kind, mode in rows]
    for (kind, mode), got in zip(rows, compute(ops, {"a": codes}), strict=True):
        width = int(kind[1:])
        for result, code in zip(got.tolist(), codes.tolist(), strict=True):
            value = reference.value(source, code)
            if isinstance(value, Fraction):
                expected = clamped(kind, WHOLE[mode](value)) % (1 << width)
            elif math.isnan(value):
                expected = 1 << (width - 1) if source == "f64" or width == 64 else 0
            else:
                expected = limits(kind)[value > 0] % (1 << width)
            assert result == expected, (kind, mode, hex(code))


def test_ftz_makes_subnormal_sources_zero_before_they_become_integers() -> None:
    codes = np.array([1, 0x80000001], np.uint32)
    ops = ["cvt.rpi.s32.f32 %d, %a;", "cvt.rpi.ftz.s32.f32 %d, %a;", "cvt.rmi.ftz.s32.f32 %d, %a;"]
    plain, up, down = compute(ops, {"a": codes})
    assert plain.tolist() == [1, 0]
    assert up.tolist() == down.tolist() == [0, 0]


NARROWING = [("f32", "f16"), ("f32", "bf16"), ("f64", "f16"), ("f64", "bf16"), ("f64", "f32")]
NARROWING += [("bf16", "f16"), ("f16", "bf16")]


@pytest.mark.parametrize(("source", "target"), NARROWING)
def test_floats_narrow_with_one_rounding_in_every_mode(source: str, target: str) -> None:
    codes = floats(source, 5, 128)
    ops = [Op(f"cvt.{mode}.{target}.{source} %d, %a;", FLOATS[target]) for mode in MODES]
    for mode, got in zip(MODES, compute(ops, {"a": codes}), strict=True):
        for result, code in zip(got.tolist(), codes.tolist(), strict=True):
            value = reference.value(source, code)
            sign = code >> (FLOATS[source] - 1)
            if isinstance(value, Fraction):
                zero = reference.zero(target, bool(sign))
                expected = reference.rounded(target, value, mode) if value else zero
                assert result == expected, (mode, hex(code))
            elif math.isnan(value):
                assert reference.value(target, result) != reference.value(target, result)
            else:
                assert reference.value(target, result) == value


@pytest.mark.parametrize(
    ("source", "target"), [("f16", "f32"), ("f16", "f64"), ("bf16", "f32"), ("f32", "f64")]
)
def test_floats_widen_exactly(source: str, target: str) -> None:
    codes = floats(source, 6, 128)
    (got,) = compute([Op(f"cvt.{target}.{source} %d, %a;", FLOATS[target])], {"a": codes})
    for result, code in zip(got.tolist(), codes.tolist(), strict=True):
        first, second = reference.value(source, code), reference.value(target, result)
        assert first == second or (first != first and second != second)
        assert first != first or result >> (FLOATS[target] - 1) == code >> (FLOATS[source] - 1)


def test_sat_relu_satfinite_and_ftz_of_float_results() -> None:
    codes = np.array(
        [0x3F000000, 0x40000000, 0xBF800000, 0x80000000, 0x7FC00000, 0x7F800000, 0xFF800000, 1],
        np.uint32,
    )
    ops = [
        Op("cvt.sat.f32.f32 %d, %a;"),
        Op("cvt.rn.sat.f16.f32 %d, %a;", 16),
        Op("cvt.rn.relu.f16.f32 %d, %a;", 16),
        Op("cvt.rz.relu.satfinite.bf16.f32 %d, %a;", 16),
        Op("cvt.rn.satfinite.f16.f32 %d, %a;", 16),
        Op("cvt.ftz.f64.f32 %d, %a;", 64),
        Op("cvt.rna.tf32.f32 %d, %a;"),
    ]
    results = [got.tolist() for got in compute(ops, {"a": codes}, version="8.1")]
    one = 0x3F800000
    assert results[0] == [0x3F000000, one, 0, 0, 0, one, 0, 1]
    assert results[1] == [0x3800, 0x3C00, 0, 0, 0, 0x3C00, 0, 0]
    assert results[2] == [0x3800, 0x4000, 0, 0, 0x7FFF, 0x7C00, 0, 0]
    assert results[3] == [0x3F00, 0x4000, 0, 0, 0x7FFF, 0x7F7F, 0, 0]
    assert results[4] == [0x3800, 0x4000, 0xBC00, 0x8000, 0x7FFF, 0x7BFF, 0xFBFF, 0]
    assert results[5][-1] == 0
    assert results[6][:4] == codes[:4].tolist()


def test_tf32_rounds_to_ten_bits() -> None:
    codes = floats("f32", 7, 128)
    ops = ["cvt.rna.tf32.f32 %d, %a;", "cvt.rn.tf32.f32 %d, %a;", "cvt.rz.relu.tf32.f32 %d, %a;"]
    for mode, got in zip(("rna", "rn", "rz"), compute(ops, {"a": codes}), strict=True):
        for result, code in zip(got.tolist(), codes.tolist(), strict=True):
            value = reference.value("f32", code)
            if not isinstance(value, Fraction):
                continue
            low = code & 0x7FFFFFFF & 0x1FFF
            kept = (code & 0x7FFFFFFF) >> 13
            up = {"rna": low >= 0x1000, "rz": False}.get(
                mode, low > 0x1000 or (low == 0x1000 and kept & 1 == 1)
            )
            sign = code & 1 << 31
            expected = sign | (kept + up) << 13
            assert result == (0 if mode == "rz" and sign else expected), (mode, hex(code))


@pytest.mark.parametrize("kind", FLOATS)
def test_floats_round_to_integral_values(kind: str) -> None:
    codes = floats(kind, 8, 128)
    ops = [Op(f"cvt.{mode}.{kind}.{kind} %d, %a;", FLOATS[kind]) for mode in WHOLE]
    for mode, got in zip(WHOLE, compute(ops, {"a": codes}), strict=True):
        for result, code in zip(got.tolist(), codes.tolist(), strict=True):
            value = reference.value(kind, code)
            if isinstance(value, Fraction):
                assert reference.value(kind, result) == WHOLE[mode](value)
                assert result >> (FLOATS[kind] - 1) == code >> (FLOATS[kind] - 1)
            elif math.isnan(value) and kind != "f64":
                assert result == reference.CANONICAL[kind]


def test_pack_saturates_two_integers_above_the_low_bits_of_a_third() -> None:
    a, b = integers("s32", 9), integers("s32", 10)[::-1].copy()
    c = integers("u32", 11)
    kinds = ("u2", "s2", "u4", "s4", "u8", "s8")
    ops = [f"cvt.pack.sat.{kind}.s32.b32 %d, %a, %b, %c;" for kind in kinds]
    ops += [f"cvt.pack.sat.{kind}.s32 %d, %a, %b;" for kind in ("u16", "s16")]
    results = compute(ops, {"a": a, "b": b, "c": c})
    for kind, got in zip((*kinds, "u16", "s16"), results, strict=True):
        bits = int(kind[1:])
        for result, *given in zip(got.tolist(), a.tolist(), b.tolist(), c.tolist(), strict=True):
            high, low = (clamped(kind, number("s32", x)) % (1 << bits) for x in given[:2])
            above = given[2] << 2 * bits if bits < 16 else 0
            assert result == (low | high << bits | above) % (1 << 32), (kind, given)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("cvt.f16.f32 %d, %a;", "rn"),
        ("cvt.s32.f32 %d, %a;", "rni"),
        ("cvt.rn.s32.f32 %d, %a;", "rni"),
        ("cvt.rp.relu.f16.f32 %d, %a;", "relu"),
        ("cvt.rn.relu.f16.f64 %d, %a;", "relu"),
        ("cvt.sat.u32.u16 %d, %a;", "sat"),
        ("cvt.rn.f32.f16 %d, %a;", "rn"),
        ("cvt.rn.f32.e8m1 %d, %a;", "e8m1"),
        ("cvt.rna.f16.f32 %d, %a;", "rn"),
        ("cvt.pack.u8.s32.b32 %d, %a, %a, %a;", "sat"),
    ],
)
def test_what_is_no_conversion_is_refused_by_name(body: str, named: str) -> None:
    with pytest.raises((PtxError, UnsupportedInstruction), match=named):
        compute([Op(body, 64)], {"a": floats("f64", 12)}, legal=False)
