"""Integers and floating point convert with one rounding, and clamp as PTX says."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import sim_reference as reference
from hypothesis import example, given, settings
from hypothesis import strategies as st

from humming_sim.numbers.integers import (
    INTEGER_MODES,
    clamp,
    from_float,
    limits,
    round_to_integral,
    to_float,
)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

TYPES = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")


def whole(x: Fraction, mode: str) -> int:
    return {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[mode](x)


@settings(max_examples=300, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(TYPES))
@example(2.5, "s32")
@example(-0.5, "u8")
@example(2.0**63, "s64")
@example(2.0**63, "u64")
@example(-(2.0**63), "s64")
@example(1.8446744073709552e19, "u64")
def test_floats_round_to_integers_and_clamp(x: float, name: str) -> None:
    low, high = limits(name)
    for mode in INTEGER_MODES:
        expected = min(max(whole(Fraction(x), mode), low), high)
        got = int(from_float(name, np.array([x]), mode)[0])
        assert got == expected % (1 << int(name[1:]))


def test_infinities_clamp_and_nan_gives_the_code_asked_for() -> None:
    x = np.array([np.inf, -np.inf, np.nan])
    assert from_float("s32", x, "rzi").tolist() == [0x7FFFFFFF, 0x80000000, 0]
    assert from_float("u64", x, "rzi", nan=1 << 63).tolist() == [(1 << 64) - 1, 0, 1 << 63]


@settings(max_examples=150, deadline=None)
@given(st.integers(-(2**63), 2**64 - 1), st.sampled_from(["rn", "rz", "rm", "rp"]))
@example(2**64 - 1, "rz")
@example(-(2**63), "rm")
@example(2**24 + 1, "rn")
@example((1 << 63) | (1 << 10), "rn")
def test_integers_round_once_to_every_format(number: int, mode: str) -> None:
    dtype = np.uint64 if number >= 2**63 else np.int64
    for name in ("f64", "f32", "f16", "bf16"):
        got = int(to_float(name, np.array([number], dtype), mode)[0])
        assert got == (reference.rounded(name, Fraction(number), mode) if number else 0)


def test_clamping_limits_signed_and_unsigned_numbers() -> None:
    signed = np.array([-(2**63), -129, -1, 127, 128, 2**63 - 1], np.int64)
    assert clamp("s8", signed).tolist() == [-128, -128, -1, 127, 127, 127]
    assert clamp("u16", signed).tolist() == [0, 0, 0, 127, 128, 65535]
    unsigned = np.array([0, 2**63, 2**64 - 1], np.uint64)
    assert clamp("s64", unsigned).tolist() == [0, 2**63 - 1, 2**63 - 1]


def test_rounding_to_integral_values_keeps_the_sign_of_zero() -> None:
    x = np.array([-0.2, 2.5, -2.5, 1e30], np.float32)
    got = round_to_integral(x, "rni")
    assert got.dtype == np.float32
    assert got.tolist() == [0.0, 2.0, -2.0, np.float32(1e30)]
    assert np.signbit(got[0])


def test_only_integer_types_have_limits() -> None:
    assert limits("s2") == (-2, 1)
    assert limits("u4") == (0, 15)
    for name in ("f32", "s2f6"):
        with pytest.raises(ValueError, match=name):
            limits(name)
