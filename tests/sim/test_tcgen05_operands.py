"""Operands from bytes and products of one MMA against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from humming_sim.tcgen05.forms import MmaForm
from humming_sim.tcgen05.instruction_descriptor import decode, lint
from humming_sim.tcgen05.operands import (
    matrix_from_shared,
    matrix_from_tensor,
    padding_set,
    storage,
)
from humming_sim.tcgen05.product import accumulate, factor, padding_of_scales

#: kind, type code, type, bits of an element, a second opinion on its values.
TYPES = [
    ("f16", 0, "f16", 16, np.float16),
    ("f16", 1, "bf16", 16, ml_dtypes.bfloat16),
    ("tf32", 2, "tf32", 32, np.float32),
    ("f8f6f4", 0, "e4m3", 8, ml_dtypes.float8_e4m3fn),
    ("f8f6f4", 1, "e5m2", 8, ml_dtypes.float8_e5m2),
    ("f8f6f4", 3, "e2m3", 6, ml_dtypes.float6_e2m3fn),
    ("f8f6f4", 4, "e3m2", 6, ml_dtypes.float6_e3m2fn),
    ("f8f6f4", 5, "e2m1", 4, ml_dtypes.float4_e2m1fn),
    ("mxf8f6f4", 5, "e2m1", 4, ml_dtypes.float4_e2m1fn),
    ("mxf4", 1, "e2m1", 4, ml_dtypes.float4_e2m1fn),
    ("i8", 0, "u8", 8, np.uint8),
    ("i8", 1, "s8", 8, np.int8),
]
CONTAINERS = {4: np.uint8, 6: np.uint8, 8: np.uint8, 16: np.uint16, 32: np.uint32}


def descriptor(kind, a=0, b=0, flags=0, m=128, n=8, target=103):
    """A descriptor with the given type codes; scales are ue8m0."""
    scale = "block16" if kind == "mxf4nvf4" else ""
    form = MmaForm(kind, scale=scale, target=target)
    bits = a << 7 | b << 10 | n >> 3 << 17 | flags
    bits |= m >> 7 << 27 | 1 << 23 if form.row.scaled else m >> 4 << 24
    if not form.row.scaled:
        bits |= (2 if kind == "i8" else 1) << 4
    return decode(bits, form)


def values_of(codes, bits, opinion):
    if opinion is np.float32:  # tf32 ignores the low 13 bits
        codes = codes & 0xFFFFE000
    with np.errstate(invalid="ignore"):
        return codes.astype(CONTAINERS[bits]).view(opinion).astype(np.float64)


def in_units(codes, bits, slot):
    """Rows of codes as 16-byte units, packed as 9.7.16.10.4 says: [rows, units, 16]."""
    per_unit = 128 // slot
    rows = codes.reshape(len(codes), -1, per_unit)
    units = np.full((*rows.shape[:2], 16), 0xA5, np.uint8)
    for index in np.ndindex(rows.shape[:2]):
        packed = sum(int(code) << bits * i for i, code in enumerate(rows[index]))
        size = per_unit * bits // 8
        units[index][:size] = np.frombuffer(packed.to_bytes(size, "little"), np.uint8)
    return units


@pytest.mark.parametrize(
    ("kind", "code", "name", "bits", "opinion", "mn_major"),
    [
        (*row, mn_major)
        for row in TYPES
        for mn_major in (False, True)
        if row[0] != "mxf4" * mn_major
    ],
)
def test_shared_memory_holds_elements_in_order(kind, code, name, bits, opinion, mn_major):
    what = storage(descriptor(kind, a=code, flags=mn_major << 15), "a")
    assert (what.type, what.mn_major) == (name, mn_major)
    codes = np.random.default_rng(code).integers(0, 1 << bits, (32, what.k))
    stored = codes.T if mn_major else codes
    slot = 4 if kind == "mxf4" else max(bits, 8)
    got = matrix_from_shared(in_units(stored, bits, slot), what)
    np.testing.assert_array_equal(got, values_of(codes, bits, opinion))


@pytest.mark.parametrize(("kind", "code", "name", "bits", "opinion"), TYPES)
def test_tensor_memory_holds_a_with_narrow_elements_in_bytes(kind, code, name, bits, opinion):
    what = storage(descriptor(kind, a=code, flags=1 << 13), "a")
    codes = np.random.default_rng(code).integers(0, 1 << bits, (16, what.k))
    words = np.zeros((16, what.columns), np.uint32)
    width = 4 if kind == "mxf4" else max(bits, 8)
    shift = 2 if bits == 4 and kind != "mxf4" else 0
    for row, k in np.ndindex(codes.shape):
        word, place = divmod(k * width, 32)
        words[row, word] |= np.uint32((int(codes[row, k]) << shift) << place)
    np.testing.assert_array_equal(matrix_from_tensor(words, what), -values_of(codes, bits, opinion))
    assert not padding_set(words, what)
    assert what.columns == {"tf32": 8, "mxf4": 8}.get(kind, 8)
    if what.padded:
        assert padding_set(words | 0x80, what)


def test_k_96_takes_twelve_columns_of_tensor_memory():
    what = storage(descriptor("mxf4", 1, 1, flags=1 << 31), "a")
    assert (what.k, what.columns, what.slot) == (96, 12, 4)


def test_hidden_types_have_their_values():
    what = storage(descriptor("f8f6f4", a=2), "a")
    codes = np.arange(256).reshape(8, 32)
    got = matrix_from_shared(in_units(codes, 8, 8), what).reshape(-1)
    for code, value in enumerate(got):
        if code & 0x7F == 0x7F:
            assert np.isnan(value)
            continue
        exponent, mantissa = code >> 4 & 7, code & 15
        size = (16 + mantissa) * 2.0 ** (exponent - 7) if exponent else mantissa * 2.0**-6
        assert value == (-size if code & 128 else size)
    assert np.nanmax(got) == 30
    packed = storage(descriptor("mxf4nvf4", a=0, b=1), "a")
    codes = np.arange(64).reshape(1, 64) % 16
    got = matrix_from_shared(in_units(codes, 4, 4), packed)[0, :16]
    assert got.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, -1, -2, -3, -4, -5, -6, -7]


def test_a_type_without_a_meaning_is_refused():
    with pytest.raises(ValueError, match="type code of A"):
        storage(descriptor("f8f6f4", a=6), "a")


# ----------------------------------------------------------------------------------------- products


def multiply(a, b, c, what, halvings=0):
    factors = (
        factor(np.asarray(x), kind, None, what) for x, kind in ((a, what.a_type), (b, what.b_type))
    )
    return accumulate(*factors, c, what, halvings)


def exact(a, b, c, power=0):
    """D as fractions."""
    return [
        [
            sum((Fraction(x) * Fraction(y) for x, y in zip(row, column, strict=True)), Fraction(0))
            + Fraction(c[i][j]) / 2**power
            for j, column in enumerate(b)
        ]
        for i, row in enumerate(a)
    ]


def nearest(value, kind):
    """One rounding to nearest even of a fraction, by trying the neighbours."""
    guess = kind(float(value))
    low, high = np.nextafter(guess, kind(-np.inf)), np.nextafter(guess, kind(np.inf))

    def rank(x):
        return abs(Fraction(float(x)) - value), int(x.view(f"u{x.itemsize}")) & 1

    return min((low, guess, high), key=rank)


@pytest.mark.parametrize("halvings", [0, 3])
def test_f16_products_are_exact_and_rounded_once(halvings):
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((6, 16)).astype(np.float16).astype(np.float64) for _ in range(2))
    c = rng.standard_normal((6, 6)).astype(np.float32)
    what = descriptor("f16")
    d = multiply(a, b, c.view(np.uint32), what, halvings).view(np.float32)
    wanted = exact(a, b, c.astype(float), halvings)
    for i, j in np.ndindex(6, 6):
        assert d[i, j] == nearest(wanted[i][j], np.float32)


def test_half_results_lie_in_the_low_half_of_their_words():
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-4, 5, (4, 16)).astype(np.float64) / 8 for _ in range(2))
    c = rng.standard_normal((4, 4)).astype(np.float16)
    what = decode(8 << 24 | 1 << 17, MmaForm("f16"))
    assert what.d_type == "f16"
    noise = np.uint32(0xDEAD0000)
    d = multiply(a, b, c.view(np.uint16).astype(np.uint32) | noise, what)
    assert (d >> 16 == 0).all()
    wanted = exact(a, b, c.astype(float))
    for i, j in np.ndindex(4, 4):
        assert d.astype(np.uint16).view(np.float16)[i, j] == nearest(wanted[i][j], np.float16)


def test_without_an_accumulator_d_is_the_product():
    a = np.array([[1.0, 2.0]])
    b = np.array([[3.0, 4.0], [5.0, 6.0]])
    d = multiply(a, b, None, descriptor("f16")).view(np.float32)
    assert d.tolist() == [[11.0, 17.0]]


@pytest.mark.parametrize(
    ("saturate", "wanted"), [(0, -(2**31) + 127 * 127 * 2 - 1), (1, 2**31 - 1)]
)
def test_integer_sums_wrap_or_saturate(saturate, wanted):
    a = np.array([[127.0, 127.0]])
    c = np.array([[2**31 - 1]], np.int32).view(np.uint32)
    what = descriptor("i8", 1, 1, flags=saturate << 3)
    assert multiply(a, a, c, what).view(np.int32)[0, 0] == wanted


def test_nan_and_overflow_are_nan_and_infinity():
    a = np.array([[np.inf, 1.0], [1e300, 0.0]])
    b = np.array([[0.0, 1.0], [1.0, 0.0]])
    d = multiply(a, b, None, descriptor("f16"))
    assert d[0, 0] == 0x7FFFFFFF
    assert d.view(np.float32)[0, 1] == np.inf
    assert d.view(np.float32)[1, 1] == np.inf


@pytest.mark.parametrize(
    ("kind", "scale", "flags", "opinion"),
    [
        ("mxf8f6f4", "", 1 << 23, ml_dtypes.float8_e8m0fnu),
        ("mxf4", "", 1 << 23, ml_dtypes.float8_e8m0fnu),
        ("mxf4nvf4", "block16", 0, ml_dtypes.float8_e4m3fn),
        ("mxf4nvf4", "block16", 1 << 23, ml_dtypes.float8_e8m0fnu),
        ("mxf4nvf4", "block16", 1 << 31, ml_dtypes.float8_e4m3fn),
        ("mxf4", "", 1 << 23 | 1 << 31, ml_dtypes.float8_e8m0fnu),
    ],
)
def test_every_block_takes_its_own_scale(kind, scale, flags, opinion):
    form = MmaForm(kind, scale=scale, target=103)
    code = 1 if kind != "mxf8f6f4" else 0
    bits = code << 7 | code << 10 | 1 << 17 | 1 << 27 | flags
    assert lint(bits, form) == ()
    what = decode(bits, form)
    rng = np.random.default_rng(3)
    matrix = rng.integers(-6, 7, (8, what.k)).astype(np.float64)
    codes = rng.integers(120, 127, (8, what.scales)).astype(np.uint8)
    got = factor(matrix, what.a_type, codes, what).scaled()[0]
    for row, k in np.ndindex(matrix.shape):
        of_scale = float(codes[row, k // what.block : k // what.block + 1].view(opinion)[0])
        assert got[row, k] == matrix[row, k] * of_scale


def test_a_nan_scale_makes_its_block_nan():
    what = decode(1 << 17 | 1 << 23 | 1 << 27, MmaForm("mxf8f6f4"))
    got = factor(np.zeros((1, 32)), "e4m3", np.array([[255]], np.uint8), what)
    assert np.isnan(got.scaled()).all()


def test_scales_of_seven_bits_have_a_bit_too_many():
    codes = np.array([[0, 127, 128, 255]], np.uint8)
    assert padding_of_scales(codes, "ue4m3").tolist() == [[False, False, True, True]]
    assert not padding_of_scales(codes, "ue8m0").any()
