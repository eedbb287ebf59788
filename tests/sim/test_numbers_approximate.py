"""Approximate functions stay inside the manual's error bounds and follow its tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from humming_sim.numbers.approximate import approximation, gross_float64
from humming_sim.numbers.formats import decode

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

NAN, INF, ONE = math.nan, math.inf, 1.0
# Argument and result; pairs, since a dict would merge the two zeros.
CASES = {
    "rcp": [(-INF, -0.0), (-0.0, -INF), (0.0, INF), (INF, 0.0), (NAN, NAN), (4.0, 0.25)],
    "sqrt": [(-INF, NAN), (-ONE, NAN), (-0.0, -0.0), (0.0, 0.0), (INF, INF), (NAN, NAN)],
    "rsqrt": [(-INF, NAN), (-ONE, NAN), (-0.0, -INF), (0.0, INF), (INF, 0.0), (4.0, 0.5)],
    "sin": [(-INF, NAN), (-0.0, -0.0), (0.0, 0.0), (INF, NAN), (NAN, NAN)],
    "cos": [(-INF, NAN), (-0.0, ONE), (0.0, ONE), (INF, NAN), (NAN, NAN)],
    "lg2": [(-INF, NAN), (-ONE, NAN), (-0.0, -INF), (0.0, -INF), (INF, INF), (8.0, 3.0)],
    "ex2": [(-INF, 0.0), (-0.0, ONE), (0.0, ONE), (INF, INF), (NAN, NAN), (-3.0, 0.125)],
    "tanh": [(-INF, -ONE), (-0.0, -0.0), (0.0, 0.0), (INF, ONE), (NAN, NAN), (1e-40, 1e-40)],
}
EXACT: dict[str, Callable[[float], float]] = {
    "rcp": lambda x: 1 / x,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "sin": math.sin,
    "cos": math.cos,
    "lg2": math.log2,
    "ex2": lambda x: 2.0**x,
    "tanh": math.tanh,
}


def same(got: float, expected: float) -> bool:
    if math.isnan(expected):
        return math.isnan(got)
    return got == expected and math.copysign(1, got) == math.copysign(1, expected)


@pytest.mark.parametrize("name", CASES)
def test_special_values_are_those_of_the_manual(name: str) -> None:
    x = np.array([argument for argument, _ in CASES[name]], np.float32)
    got = decode("f32", approximation(name, "f32")(x.view(np.uint32)))
    expected = [float(np.float32(result)) for _, result in CASES[name]]
    assert all(map(same, got.tolist(), expected)), got


@pytest.mark.parametrize("name", CASES)
def test_results_are_within_half_a_unit_in_the_last_place(name: str) -> None:
    rng = np.random.default_rng(6)
    x = np.abs(rng.normal(size=2000)).astype(np.float32) + np.float32(1e-3)
    got = approximation(name, "f32")(x.view(np.uint32)).view(np.float32)
    for argument, result in zip(x.tolist(), got.tolist(), strict=True):
        exact = EXACT[name](argument)
        assert abs(result - exact) <= np.spacing(np.float32(abs(exact))) * 0.5000001


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["ex2", "tanh"])
def test_half_precision_results_are_the_nearest_codes(name: str, kind: str) -> None:
    codes = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    got = decode(kind, approximation(name, kind)(codes))
    arguments = decode(kind, codes)
    for argument, result in zip(arguments[::97].tolist(), got[::97].tolist(), strict=True):
        if math.isfinite(argument) and abs(argument) < 15:
            exact = EXACT[name](argument)
            bound = 2.0**-10 if kind == "f16" else 2.0**-8
            assert abs(result - exact) <= max(abs(exact) * bound, 2.0**-24)


def test_packed_halves_are_computed_separately() -> None:
    word = np.array([0x3C00_4000], np.uint32)
    assert approximation("ex2", "f16x2")(word).tolist() == [0x4000_4400]


def test_ftz_flushes_subnormal_inputs_and_results() -> None:
    tiny = np.array([1], np.uint32)
    assert approximation("rcp", "f32", ftz=True)(tiny).tolist() == [0x7F800000]
    assert approximation("sqrt", "f32", ftz=True)(tiny).tolist() == [0]
    deep = np.array([-130.0], np.float32).view(np.uint32)
    assert approximation("ex2", "f32", ftz=True)(deep).tolist() == [0]
    assert approximation("ex2", "f32")(deep).tolist() == [1 << 19]


def test_approximate_division_loses_huge_divisors_and_full_division_does_not() -> None:
    x = np.array([2.0**100, np.inf, 6.0], np.float32).view(np.uint32)
    y = np.array([2.0**127, 2.0**127, 3.0], np.float32).view(np.uint32)
    assert decode("f32", approximation("div", "f32")(x, y)).tolist()[::2] == [0.0, 2.0]
    assert math.isnan(decode("f32", approximation("div", "f32")(x, y))[1])
    assert decode("f32", approximation("full", "f32")(x, y)).tolist() == [2.0**-27, INF, 2.0]


def test_double_reciprocal_roots_are_within_half_a_unit_in_the_last_place() -> None:
    x = np.exp2(np.random.default_rng(9).uniform(-1070, 1020, 500))
    got = approximation("rsqrt", "f64")(x.view(np.uint64)).view(np.float64)
    for argument, result in zip(x.tolist(), got.tolist(), strict=True):
        # The root lies between the midpoints to the neighbours: compare squares, exactly.
        low, high = (Fraction(result) + Fraction(math.ulp(result)) * s / 2 for s in (-1, 1))
        assert low**2 * Fraction(argument) <= 1 <= high**2 * Fraction(argument)


def test_gross_float64_functions_use_the_upper_word_only() -> None:
    x = np.array([3.0, -0.0, np.inf, np.nan, 5e-310, 2.0**1023 * 1.5])
    got = gross_float64("rcp", x.view(np.uint64))
    assert not np.any(got & np.uint64(0xFFFFFFFF))
    values = got.view(np.float64)
    # 1/3 is 0x3fd55555_5555..., 1/5 is 0x3fc99999_9999...: one rounds down, one up.
    assert got[0] == 0x3FD55555_00000000
    assert gross_float64("rcp", np.array([5.0]).view(np.uint64))[0] == 0x3FC9999A_00000000
    assert values[1:3].tolist() == [-INF, 0.0]
    assert got[3] == 0x7FFFFFFF00000000
    assert values[4:].tolist() == [INF, 0.0]
    root = gross_float64("rsqrt", np.array([4.0, -1.0]).view(np.uint64))
    assert root.tolist() == [0x3FE0000000000000, 0x7FFFFFFF00000000]
