"""Every code of every format has the value its specification gives it."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import sim_reference as reference

from humming_sim.numbers.formats import FORMATS, Kind, decode, number_format, values

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

OTHERS = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "ue8m0": ml_dtypes.float8_e8m0fnu,
    "s8": np.int8,
    "u8": np.uint8,
    "s4": ml_dtypes.int4,
    "u4": ml_dtypes.uint4,
    "s2": ml_dtypes.int2,
    "u2": ml_dtypes.uint2,
    "s16": np.int16,
    "u16": np.uint16,
}


def codes(name: str) -> np.ndarray:
    fmt = FORMATS[name]
    return np.arange(1 << fmt.bits, dtype=np.int64).astype(fmt.storage)


@pytest.mark.parametrize("name", OTHERS)
def test_all_codes_have_the_values_of_ml_dtypes(name: str) -> None:
    expected = codes(name).view(OTHERS[name]).astype(np.float64)
    assert np.array_equal(values(name), expected, equal_nan=True)
    assert np.array_equal(np.signbit(values(name)), np.signbit(expected)) or name == "ue8m0"


def test_e3m4_is_finite_up_to_30_and_all_ones_is_nan() -> None:
    for code, got in enumerate(values("e3m4")):
        expected = reference.value("e3m4", code)
        assert got == expected or (math.isnan(got) and code & 0x7F == 0x7F)
    assert values("e3m4")[FORMATS["e3m4"].largest] == 30.0


def test_e0m3_is_a_sign_and_an_integer() -> None:
    assert values("e0m3").tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, -1, -2, -3, -4, -5, -6, -7]
    assert math.copysign(1, values("e0m3")[8]) == -1


def test_ue4m3_is_e4m3_without_the_sign() -> None:
    assert np.array_equal(values("ue4m3"), values("e4m3")[:128], equal_nan=True)


def test_s2f6_counts_sixty_fourths_in_twos_complement() -> None:
    expected = np.arange(256, dtype=np.uint8).view(np.int8) / 64.0
    assert np.array_equal(values("s2f6"), expected)
    assert (values("s2f6").max(), values("s2f6").min()) == (1.984375, -2.0)


def test_decoding_ignores_padding_above_and_below_a_code() -> None:
    assert decode("e2m3", np.array([0xC8, 0x08], np.uint8)).tolist() == [1.0, 1.0]
    assert decode("tf32", np.array([0x3F801FFF], np.uint32)).tolist() == [1.0]


def test_wide_formats_decode_by_reinterpretation() -> None:
    assert decode("f32", np.array([0x40490FDB], np.uint32))[0] == np.float32(math.pi)
    assert decode("f64", np.array([math.pi]).view(np.uint64))[0] == math.pi
    assert decode("s32", np.array([0xFFFFFFFF], np.uint32)).tolist() == [-1.0]
    assert decode("u64", np.array([1 << 63], np.uint64)).tolist() == [2.0**63]


@pytest.mark.parametrize("name", [n for n, f in FORMATS.items() if f.kind is not Kind.INTEGER])
def test_largest_infinity_and_nan_codes_are_what_they_say(name: str) -> None:
    fmt = FORMATS[name]
    largest = decode(name, np.array([fmt.largest], fmt.storage))[0]
    above = decode(name, np.array([fmt.largest + (1 << fmt.padding)], np.uint64))[0]
    assert math.isfinite(largest)
    assert not above > largest or above == math.inf
    if fmt.infinity is not None:
        assert decode(name, np.array([fmt.infinity], fmt.storage))[0] == math.inf
    if fmt.nan is not None:
        assert math.isnan(decode(name, np.array([fmt.nan], fmt.storage))[0])


def test_unknown_formats_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="e9m9"):
        number_format("e9m9")
    with pytest.raises(ValueError, match="f32"):
        values("f32")


def test_shared_tables_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        values("e4m3")[0] = 1.0
