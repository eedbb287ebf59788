"""NumberFormat in NumPy: every code of every small format, and rounding, against two opinions."""

from __future__ import annotations

import math

import core_oracle as oracle
import ml_dtypes
import numpy as np
import pytest

from humming.errors import ConfigError
from humming.formats.number import Kind, NumberFormat, Specials
from humming.formats.table import all_formats, number_format

SMALL = [fmt for fmt in all_formats() if fmt.bits <= 8]
GENERIC = [number_format(f"e{e}m{m}") for e in range(1, 7) for m in range(1, 7 - e + 1)]
BY_NAME = {fmt.name: fmt for fmt in (*SMALL, *GENERIC)}

#: All formats that NumPy or ml_dtypes also has. e3m4 is missing on purpose: ml_dtypes'
#: float8_e3m4 has IEEE specials and ends at 15.5, the format here ends at 30.
OTHERS = {
    "s2": ml_dtypes.int2,
    "s4": ml_dtypes.int4,
    "s8": np.int8,
    "u2": ml_dtypes.uint2,
    "u4": ml_dtypes.uint4,
    "u8": np.uint8,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e8m0": ml_dtypes.float8_e8m0fnu,
}
WIDE = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def same_floats(a, b) -> bool:
    """Equal values, NaN where NaN, and zeros of the same sign."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    numbers = ~np.isnan(b)
    signs = np.array_equal(np.signbit(a[numbers]), np.signbit(b[numbers]))
    return np.array_equal(a, b, equal_nan=True) and signs


def near_every_value(fmt: NumberFormat) -> np.ndarray:
    """Every value, every midpoint of neighbours, and their float64 neighbours; both signs."""
    grid = np.unique([v for v in oracle.all_values(fmt) if math.isfinite(v)])
    points = np.concatenate([grid, (grid[:-1] + grid[1:]) / 2])
    beside = [np.nextafter(points, np.inf), np.nextafter(points, -np.inf)]
    return np.unique(np.concatenate([points, *beside, -points]))


@pytest.mark.parametrize("fmt", BY_NAME.values(), ids=str)
def test_decode_gives_what_the_description_says_of_every_code(fmt):
    found = fmt.decode(np.arange(1 << fmt.bits, dtype=np.uint8))
    assert same_floats(found, oracle.all_values(fmt))


@pytest.mark.parametrize("name", OTHERS)
def test_decode_agrees_with_ml_dtypes_on_every_code(name):
    fmt = number_format(name)
    codes = np.arange(1 << fmt.bits, dtype=np.uint8)
    if fmt.is_integer and fmt.signed:  # ml_dtypes keeps small integers sign-extended
        codes = (codes.astype(np.int16) - ((codes >> (fmt.bits - 1)) << fmt.bits)).astype(np.int8)
    theirs = codes.view(OTHERS[name]).astype(np.float64)
    ours = fmt.decode(codes.view(np.uint8) & ((1 << fmt.bits) - 1))
    assert same_floats(ours, theirs)


def test_e3m4_is_not_the_ml_dtypes_format_of_that_name():
    ours = number_format("e3m4")
    assert ours.max == 30.0
    assert float(ml_dtypes.finfo(ml_dtypes.float8_e3m4).max) == 15.5
    with pytest.raises(ConfigError, match="float8_e3m4"):
        number_format(np.dtype(ml_dtypes.float8_e3m4))


def test_ml_dtypes_ieee_e4m3_is_refused_as_a_dtype_though_its_name_is_an_alias():
    with pytest.raises(ConfigError, match="float8_e4m3"):
        number_format(np.dtype(ml_dtypes.float8_e4m3))
    assert number_format("float8_e4m3").name == "e4m3fn"


@pytest.mark.parametrize("name", WIDE)
def test_16_bit_formats_decode_every_code_like_numpy(name):
    codes = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        theirs = codes.view(WIDE[name]).astype(np.float64)
    assert same_floats(number_format(name).decode(codes), theirs)


@pytest.mark.parametrize("fmt", BY_NAME.values(), ids=str)
def test_encode_inverts_decode_on_every_finite_code(fmt):
    codes = np.arange(1 << fmt.bits, dtype=np.uint8)
    values = fmt.decode(codes)
    finite = np.isfinite(values)
    assert np.array_equal(fmt.encode(values[finite]), codes[finite])


@pytest.mark.parametrize("fmt", BY_NAME.values(), ids=str)
def test_encode_rounds_to_nearest_and_ties_to_even(fmt):
    points = near_every_value(fmt)
    if fmt.bits == 8:
        points = points[:: 1 if fmt.kind is Kind.INTEGER else 7]
    found = fmt.encode(points)
    for x, code in zip(points, found, strict=True):
        if not fmt.signed and x < 0:
            continue  # saturates; tested below
        allowed = oracle.nearest_codes(fmt, float(x))
        # -0 in a format without it is +0, which the oracle's sign rule can't name.
        assert int(code) in allowed or (not allowed and code == 0), (x, code, allowed)


@pytest.mark.parametrize("name", [*OTHERS, *WIDE])
def test_encode_agrees_with_ml_dtypes_within_range(name):
    fmt = number_format(name)
    other = {**OTHERS, **WIDE}[name]
    rng = np.random.default_rng(3)
    points = rng.normal(0, 1, 4000) * 2.0 ** rng.uniform(-12, 12, 4000)
    if fmt.bits <= 8:
        points = np.concatenate([points, near_every_value(fmt)])
    if fmt.name == "e8m0":  # has no zero and no sign
        points = np.abs(points[points != 0])
    points = points.astype(np.float32).astype(np.float64)
    points = points[(points >= fmt.min) & (points <= fmt.max)]
    if fmt.is_integer:  # a cast of integers truncates: compare whole numbers
        points = np.rint(points)
    theirs = points.astype(other).astype(np.float64)
    assert same_floats(fmt.decode(fmt.encode(points)), theirs)


@pytest.mark.parametrize("fmt", [*BY_NAME.values(), *map(number_format, WIDE)], ids=str)
def test_encode_saturates_what_is_too_large_infinity_included(fmt):
    beyond = [fmt.max * 1.5 + 1, 1e300, np.inf]
    assert np.all(fmt.decode(fmt.encode(beyond)) == fmt.max)
    below = [-abs(fmt.min) * 1.5 - 1, -1e300, -np.inf]
    assert np.all(fmt.decode(fmt.encode(below)) == fmt.min)


@pytest.mark.parametrize("fmt", [f for f in BY_NAME.values() if not f.signed], ids=str)
def test_unsigned_formats_saturate_negative_values_to_the_smallest(fmt):
    assert np.all(fmt.decode(fmt.encode([-0.0, -1e-9, -3.0])) == fmt.min)


def test_f32_encodes_like_numpy_but_saturates():
    fmt = number_format("f32")
    x = np.random.default_rng(0).normal(0, 1e30, 1000)
    assert np.array_equal(fmt.encode(x), x.astype(np.float32).view(np.uint32))
    assert np.array_equal(fmt.decode(fmt.encode(x)), x.astype(np.float32).astype(np.float64))
    assert fmt.decode(fmt.encode([1e39, -np.inf])).tolist() == [fmt.max, fmt.min]
    assert int(fmt.encode([np.nan])[0]) == fmt.nan_code


@pytest.mark.parametrize("fmt", [*SMALL, *map(number_format, WIDE)], ids=str)
def test_nan_becomes_the_nan_of_the_format_or_is_refused(fmt):
    if fmt.has_nan:
        code = int(fmt.encode([np.nan])[0])
        assert code == fmt.nan_code
        assert np.isnan(fmt.decode([code])[0])
    else:
        with pytest.raises(ConfigError, match=f"no NaN, which {fmt.name} can't hold"):
            fmt.encode([1.0, np.nan])


def test_negative_zero_keeps_its_sign_where_the_format_has_one():
    assert int(number_format("e2m1").encode([-0.0])[0]) == 0b1000
    assert int(number_format("e4m3fn").encode([-1e-9])[0]) == 0x80
    assert int(number_format("e0m3").encode([-0.2])[0]) == 0b1000
    assert int(number_format("e4m3fnuz").encode([-0.0])[0]) == 0  # 0x80 would be NaN
    assert int(number_format("s4").encode([-0.2])[0]) == 0


@pytest.mark.parametrize("fmt", [*SMALL, *GENERIC], ids=str)
def test_extremes_are_those_of_the_values(fmt):
    finite = [v for v in oracle.all_values(fmt) if math.isfinite(v)]
    assert (fmt.min, fmt.max) == (min(finite), max(finite))
    assert fmt.code_dtype == np.uint8
    if fmt.max > 0:
        assert 2.0**fmt.max_normal_exponent <= fmt.max < 2.0 ** (fmt.max_normal_exponent + 1)


@pytest.mark.parametrize("other", SMALL, ids=str)
def test_holds_means_that_every_finite_value_survives(other):
    theirs = {v for v in oracle.all_values(other) if math.isfinite(v)}
    for fmt in SMALL:
        mine = set(oracle.all_values(fmt))
        assert fmt.holds(other) == (theirs <= mine), fmt


def test_wider_formats_hold_narrower_ones():
    f16, bf16, f32 = (number_format(name) for name in ("f16", "bf16", "f32"))
    assert f32.holds(f16)
    assert f32.holds(bf16)
    assert f32.holds(f32)
    assert not f16.holds(f32)
    assert not f16.holds(bf16)
    assert not bf16.holds(f16)
    assert bf16.holds(number_format("e8m0"))
    assert not f16.holds(number_format("e8m0"))
    assert all(f16.holds(fmt) for fmt in SMALL if fmt.name not in ("e8m0", "e5m3"))


@pytest.mark.parametrize("code", [-1, 16, 1000])
def test_decode_refuses_codes_of_more_bits(code):
    with pytest.raises(ConfigError, match=r"codes below 2\^4"):
        number_format("e2m1").decode([3, code])


def test_decode_refuses_floats():
    with pytest.raises(ConfigError, match="an integer array"):
        number_format("e2m1").decode([1.0])


def test_empty_arrays_pass():
    fmt = number_format("e4m3fn")
    assert fmt.decode(np.zeros((0, 3), np.uint8)).shape == (0, 3)
    assert fmt.encode(np.zeros((0, 3))).shape == (0, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "E4M3"}, "a lower-case identifier"),
        ({"mantissa": 40}, "1 to 32 bits in all"),
        ({"mantissa": 20}, "at most 16 bits, or those of float32"),
        ({"exponent": 0}, "exponent bits for floats, and only them"),
        ({"mantissa": -1}, "exponent bits for floats, and only them"),
        ({"kind": Kind.INTEGER, "exponent": 0, "specials": Specials.IEEE}, "none for an integer"),
        ({"kind": Kind.INTEGER}, "exponent bits for floats, and only them"),
        ({"signed": False, "specials": Specials.FNUZ}, "a signed format"),
    ],
)
def test_impossible_rows_are_refused(change, message):
    row = {"name": "x", "kind": Kind.FLOAT, "signed": True, "exponent": 4, "mantissa": 3, "bias": 7}
    with pytest.raises(ConfigError, match=message):
        NumberFormat(**{**row, **change})
