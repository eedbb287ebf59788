"""Encoding rounds once, in every mode, and treats what does not fit as PTX says."""

from __future__ import annotations

import itertools
from fractions import Fraction

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import sim_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from humming_sim.numbers.conversion import converter, stochastic
from humming_sim.numbers.formats import FORMATS, decode, values
from humming_sim.numbers.rounding import Rounding, encode, random_width

SMALL = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "e3m4", "e0m3", "s2f6")
WIDTH16 = ("f16", "bf16")
DIRECTED = ("rn", "rna", "rz", "rm", "rp")

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def ladder(name: str) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """The finite values of a format ascending, and their codes; one zero, the positive."""
    table = values(name)
    codes = np.arange(len(table))
    keep = np.isfinite(table) & ~((table == 0) & (codes != 0))
    order = np.argsort(table[keep], kind="stable")
    return table[keep][order], codes[keep][order]


def probes(name: str) -> npt.NDArray[np.float32]:
    """float32 numbers that decide: all values, all midpoints, and both neighbours of each."""
    steps, _ = ladder(name)
    steps = np.concatenate([steps, [steps[-1] + (steps[-1] - steps[-2]), steps[-1] * 4]])
    points = np.concatenate([steps, (steps[1:] + steps[:-1]) / 2, -steps]).astype(np.float32)
    near = [np.nextafter(points, np.float32(side)) for side in (np.inf, -np.inf)]
    return np.concatenate([points, *near])


def looked_up(name: str, x: npt.NDArray[np.float32], mode: str) -> npt.NDArray[np.int64]:
    """Codes by searching the ladder; overflow saturates."""
    steps, codes = ladder(name)
    above = np.clip(np.searchsorted(steps, x.astype(np.float64), "left"), 0, len(steps) - 1)
    below = np.clip(np.searchsorted(steps, x.astype(np.float64), "right") - 1, 0, len(steps) - 1)
    up, down = steps[above] - x, x - steps[below]
    even = codes[above] % 2 == 0
    away = np.abs(steps[above]) > np.abs(steps[below])
    choose_above = {
        "rn": (up < down) | ((up == down) & even),
        "rna": (up < down) | ((up == down) & away),
        "rz": ~away,
        "rm": np.zeros(len(x), bool),
        "rp": np.ones(len(x), bool),
    }[mode]
    return np.where(choose_above, codes[above], codes[below])


@pytest.mark.parametrize("mode", DIRECTED)
@pytest.mark.parametrize("name", SMALL + WIDTH16)
def test_every_decision_point_rounds_as_a_search_of_all_values_does(name: str, mode: str) -> None:
    x = probes(name)
    x = x[np.isfinite(x)]
    got = encode(name, x, Rounding(mode, satfinite=True)).astype(np.int64)
    expected = looked_up(name, x, mode)
    # The ladder has one zero; encoding keeps the sign of what became zero.
    zero = values(name)[expected] == 0
    assert np.array_equal(got[~zero], expected[~zero])
    assert np.all(values(name)[got[zero]] == 0)
    if name != "s2f6":
        assert np.array_equal(np.signbit(values(name)[got[zero]]), np.signbit(x[zero]))


@pytest.mark.parametrize(
    ("name", "mode"), [*itertools.product(SMALL, DIRECTED), ("ue8m0", "rz"), ("ue8m0", "rp")]
)
@pytest.mark.parametrize("relu", [False, True])
def test_the_table_over_leading_bits_equals_integer_rounding(
    name: str, mode: str, relu: bool
) -> None:
    rng = np.random.default_rng(5)
    random = rng.integers(0, 1 << 32, 20_000, dtype=np.uint64).astype(np.uint32)
    bits = np.concatenate([probes("e5m2" if name == "ue8m0" else name).view(np.uint32), random])
    rounding = Rounding(mode, satfinite=True, relu=relu)
    expected = encode(name, bits.view(np.float32), rounding)
    assert np.array_equal(converter("f32", name, rounding)(bits), expected)


@pytest.mark.parametrize(
    ("name", "other"),
    [("f16", np.float16), ("bf16", ml_dtypes.bfloat16), ("e5m2", ml_dtypes.float8_e5m2)],
)
def test_random_float32_round_to_nearest_like_ml_dtypes(name: str, other: type) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 1 << 32, 500_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    expected = x.astype(other).view(FORMATS[name].storage)
    for got in (encode(name, x), converter("f32", name)(x.view(np.uint32))):
        number = ~np.isnan(x)
        assert np.array_equal(got[number], expected[number])
        assert np.all(got[~number] == reference.CANONICAL[name])


@settings(max_examples=300, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(DIRECTED))
def test_float64_rounds_once_to_float32_and_float16(x: float, mode: str) -> None:
    exact = Fraction(x)
    for name in ("f32", "f16", "bf16"):
        expected = reference.rounded(name, exact, mode) if exact else None
        got = int(encode(name, np.array([x]), Rounding(mode))[0])
        if expected is not None:
            assert got == expected


def test_float64_passes_through_unchanged() -> None:
    rng = np.random.default_rng(2)
    x = rng.integers(0, 1 << 63, 10_000, dtype=np.uint64).view(np.float64)
    number = ~np.isnan(x)
    for mode in DIRECTED:
        assert np.array_equal(encode("f64", x, Rounding(mode))[number], x.view(np.uint64)[number])


@pytest.mark.parametrize(
    ("name", "mode", "satfinite", "expected"),
    [
        ("f16", "rn", False, (0x7C00, 0xFC00, 0x7C00, 0xFC00)),
        ("f16", "rn", True, (0x7BFF, 0xFBFF, 0x7BFF, 0xFBFF)),
        ("f16", "rz", False, (0x7BFF, 0xFBFF, 0x7C00, 0xFC00)),
        ("bf16", "rz", True, (0x7F7F, 0xFF7F, 0x7F7F, 0xFF7F)),
        ("f16", "rp", False, (0x7C00, 0xFBFF, 0x7C00, 0xFC00)),
        ("f16", "rm", False, (0x7BFF, 0xFC00, 0x7C00, 0xFC00)),
        ("e4m3", "rn", True, (0x7E, 0xFE, 0x7E, 0xFE)),
        ("e5m2", "rn", True, (0x7B, 0xFB, 0x7B, 0xFB)),
        ("e2m1", "rn", True, (0x7, 0xF, 0x7, 0xF)),
        ("tf32", "rn", False, (0x7F800000, 0xFF800000, 0x7F800000, 0xFF800000)),
        ("tf32", "rna", True, (0x7F7FE000, 0xFF7FE000, 0x7F7FE000, 0xFF7FE000)),
        ("s2f6", "rn", True, (0x7F, 0x80, 0x7F, 0x80)),
    ],
)
def test_overflow_and_infinity(
    name: str, mode: str, satfinite: bool, expected: tuple[int, ...]
) -> None:
    x = np.array([3.4028235e38, -3.4028235e38, np.inf, -np.inf], np.float32)
    x[:2] = x[:2] if name != "bf16" else np.array([3.4e38, -3.4e38], np.float32)
    assert tuple(encode(name, x, Rounding(mode, satfinite=satfinite)).tolist()) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("f16", 0x7FFF),
        ("bf16", 0x7FFF),
        ("tf32", 0x7FFFE000),
        ("e4m3", 0x7F),
        ("e5m2", 0x7F),
        ("e3m4", 0x7F),
        ("e2m1", 0x7),
        ("e3m2", 0x1F),
        ("e2m3", 0x1F),
        ("s2f6", 0x7F),
    ],
)
@pytest.mark.parametrize("relu", [False, True])
def test_nan_gives_the_canonical_nan_or_the_largest_value(
    name: str, expected: int, relu: bool
) -> None:
    x = np.array([0x7FC00000, 0xFFC00000, 0x7F800001], np.uint32)
    rounding = Rounding(satfinite=True, relu=relu)
    assert np.all(encode(name, x.view(np.float32), rounding) == expected)
    assert np.all(converter("f32", name, rounding)(x) == expected)


def test_relu_clears_negative_results_and_negative_zero() -> None:
    x = np.array([-1.0, -0.0, -np.inf, 1.0], np.float32)
    for name, one in (("f16", 0x3C00), ("e4m3", 0x38), ("s2f6", 0x40), ("tf32", 0x3F800000)):
        assert encode(name, x, Rounding(relu=True, satfinite=True)).tolist() == [0, 0, 0, one]


def test_ue8m0_takes_the_exponent_down_or_up() -> None:
    x = np.array([1.0, 1.5, -3.0, 0.75, 0.0, -0.0, 2.0**-127, 2.0**-128, 1.5 * 2.0**-127])
    assert encode("ue8m0", x, Rounding("rz")).tolist() == [127, 127, 128, 126, 0, 0, 0, 0, 0]
    assert encode("ue8m0", x, Rounding("rp")).tolist() == [127, 128, 129, 127, 0, 0, 0, 0, 1]
    huge = np.array([np.inf, -np.inf, np.nan, 3.4e38])
    assert encode("ue8m0", huge, Rounding("rp")).tolist() == [255, 255, 255, 255]
    assert encode("ue8m0", huge, Rounding("rp", satfinite=True)).tolist() == [254, 254, 255, 254]
    with pytest.raises(ValueError, match="ue8m0"):
        encode("ue8m0", x)


@pytest.mark.parametrize("name", ["f16", "bf16", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1"])
def test_stochastic_rounding_carries_when_discarded_plus_random_bits_overflow(name: str) -> None:
    rng = np.random.default_rng(3)
    width = random_width(name)
    x = np.concatenate([probes(name), rng.normal(size=2000).astype(np.float32)])
    x = rng.permutation(x[np.isfinite(x)])[:4000]
    random = rng.integers(0, 1 << width, len(x))
    random[::3], random[1::3] = 0, (1 << width) - 1
    got = stochastic(name, Rounding("rs", satfinite=True))(x.view(np.uint32), random)
    table = values(name)
    magnitudes = table[: FORMATS[name].largest + 1]
    for value, bits, code in zip(np.abs(x).tolist(), random.tolist(), got.tolist(), strict=True):
        below = min(int(np.searchsorted(magnitudes, value, "right")) - 1, len(magnitudes) - 1)
        exact, base = Fraction(value), Fraction(float(magnitudes[below]))
        step = Fraction(float(magnitudes[min(below + 1, len(magnitudes) - 1)])) - base
        up = bool(step) and (exact - base) / step + Fraction(bits, 1 << width) >= 1
        assert code & ~FORMATS[name].sign == below + up


def test_stochastic_rounding_needs_random_bits_and_others_refuse_them() -> None:
    one = np.ones(1, np.float32)
    with pytest.raises(ValueError, match="rs"):
        encode("f16", one, Rounding("rs"))
    with pytest.raises(ValueError, match="rn"):
        encode("f16", one, Rounding("rn"), random=np.zeros(1, np.int64))


@pytest.mark.parametrize("source", ["f16", "bf16", "e4m3", "e5m2", "e2m1", "ue8m0", "s2f6"])
@pytest.mark.parametrize("target", ["f16", "bf16", "f32", "f64", "e4m3", "e2m1"])
def test_small_sources_convert_by_value(source: str, target: str) -> None:
    codes = np.arange(1 << FORMATS[source].bits).astype(FORMATS[source].storage)
    rounding = Rounding(satfinite=FORMATS[target].bits <= 8)
    got = converter(source, target, rounding)(codes)
    assert got.dtype == FORMATS[target].storage
    number = ~np.isnan(values(source))
    expected = encode(target, values(source), rounding)
    assert np.array_equal(got[number], expected[number])
    if (source, target) == ("bf16", "f32"):
        assert np.array_equal(got, codes.astype(np.uint32) << 16)
    elif target != "f64":
        assert np.array_equal(got[~number], expected[~number])
    else:
        assert np.all(np.isnan(got.view(np.float64)[~number]))


def test_nans_become_quiet_float64_nans_that_keep_their_payload() -> None:
    # As measured on an H200.
    assert converter("bf16", "f64")(np.array([0x7F81, 0xFFC2], np.uint16)).tolist() == [
        0x7FF8200000000000,
        0xFFF8400000000000,
    ]
    assert converter("f16", "f64")(np.array([0x7C01], np.uint16))[0] == 0x7FF8040000000000


def test_float64_nans_keep_sign_and_leading_payload_and_become_quiet() -> None:
    nans = np.array([0x7FF8000000000000, 0xFFF0000000000001, 0x7FF5000000000000], np.uint64)
    assert converter("f64", "f32")(nans).tolist() == [0x7FC00000, 0xFFC00000, 0x7FE80000]
    assert converter("f64", "f16", Rounding("rz"))(nans).tolist() == [0x7E00, 0xFE00, 0x7F40]


def test_wide_pairs_convert_by_value() -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=1000) * np.exp2(rng.integers(-40, 40, 1000))
    assert np.array_equal(converter("f64", "f16")(x.view(np.uint64)), encode("f16", x))
    assert np.array_equal(
        converter("f64", "f32")(x.view(np.uint64)), x.astype(np.float32).view(np.uint32)
    )
    single = x.astype(np.float32).view(np.uint32)
    assert np.array_equal(decode("f64", converter("f32", "f64")(single)), decode("f32", single))


def test_rna_to_tf32_rounds_ties_away_and_nan_like_a_number() -> None:
    bits = np.array([0x3F801000, 0xBF801000, 0x3F800FFF, 0x7F800001, 0x7FFFFFFF], np.uint32)
    expected = [0x3F802000, 0xBF802000, 0x3F800000, 0x7F800000, 0x7FFFE000]
    assert converter("f32", "tf32", Rounding("rna"))(bits).tolist() == expected
    finite = converter("f32", "tf32", Rounding("rna", satfinite=True))(bits).tolist()
    assert finite == [*expected[:3], 0x7F7FE000, 0x7FFFC000]
