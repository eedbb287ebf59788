"""Products of every kind against Python's fractions, integers and ml_dtypes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from humming_sim.matrices.products import Operand, Product, multiply, operand

W, M, N, K = 2, 16, 8, 16

#: Second opinions on element types: dtype, and how many bits up its code lies in the container.
FLOATS: dict[str, tuple[Any, int, int]] = {
    "f16": (np.float16, 16, 0),
    "bf16": (ml_dtypes.bfloat16, 16, 0),
    "e4m3": (ml_dtypes.float8_e4m3fn, 8, 0),
    "e5m2": (ml_dtypes.float8_e5m2, 8, 0),
    "e3m2": (ml_dtypes.float6_e3m2fn, 8, 0),
    "e2m3": (ml_dtypes.float6_e2m3fn, 8, 0),
    "e2m1": (ml_dtypes.float4_e2m1fn, 8, 2),
}
#: Masks that hold exponents to 2**-7 to 2**0, so that float64 adds sixteen products exactly.
NARROWED = {"f16": (0x9FFF, 0x2000), "bf16": (0x83FF, 0x3C00)}
CODE_BITS = {"f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8, "e3m2": 6, "e2m3": 6, "e2m1": 4}


def random_codes(name: str, shape: tuple[int, ...], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Register elements with junk in their padding, and their finite values."""
    dtype, width, shift = FLOATS[name]
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << CODE_BITS[name], shape)
    if name in NARROWED:
        keep, fix = NARROWED[name]
        codes = codes & keep | fix
    unsigned = np.uint16 if width == 16 else np.uint8
    values = codes.astype(unsigned).view(dtype).astype(np.float64)
    codes = np.where(np.isfinite(values), codes, 0)
    values = np.where(np.isfinite(values), values, 0.0)
    junk = rng.integers(0, 1 << width, shape) & ~((1 << CODE_BITS[name]) - 1 << shift)
    container = (codes << shift | junk) & (1 << width) - 1
    return container.astype(unsigned), values


def dot(a: np.ndarray, b: np.ndarray, c: float) -> Fraction:
    terms = (Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True))
    return sum(terms, Fraction(c))


def nearest(exact: Fraction, dtype: Any) -> float:
    """The value of a binary float type nearest to a fraction, ties to even."""
    guess = dtype(float(exact))
    candidates = {float(guess)}
    for towards in (-np.inf, np.inf):
        candidates.add(float(np.nextafter(guess, dtype(towards))))
    finite = [c for c in candidates if np.isfinite(c)]

    def key(candidate: float) -> tuple[Fraction, int]:
        bits = np.array([candidate], dtype).view(f"u{np.dtype(dtype).itemsize}")[0]
        return abs(Fraction(candidate) - exact), int(bits) & 1

    return min(finite, key=key)


@pytest.mark.parametrize("a_type", FLOATS)
@pytest.mark.parametrize("b_type", ["e5m2", "e2m1", "f16", "bf16"])
def test_float_products_are_one_rounding_from_exact(a_type: str, b_type: str) -> None:
    a_bits, a = random_codes(a_type, (W, M, K), 1)
    b_bits, b = random_codes(b_type, (W, K, N), 2)
    c = np.random.default_rng(3).standard_normal((W, M, N)).astype(np.float32)
    widths = FLOATS[a_type][1], FLOATS[b_type][1]
    d = multiply(
        Product("f32", "f32"),
        operand(a_bits, a_type, widths[0]),
        operand(b_bits, b_type, widths[1]),
        c.view(np.uint32),
    )
    found = d.view(np.float32)
    for w, m, n in np.ndindex(1, M, N):
        exact = dot(a[w, m], b[w, :, n], float(c[w, m, n]))
        assert float(found[w, m, n]) == nearest(exact, np.float32)


def test_half_accumulators_round_once_to_f16() -> None:
    _, a = random_codes("e4m3", (W, M, K), 4)
    _, b = random_codes("e2m3", (W, K, N), 5)
    a, b = a / 64, b / 64
    a_operand, b_operand = Operand(a, "e4m3"), Operand(b, "e2m3")
    c = np.random.default_rng(6).standard_normal((W, M, N)).astype(np.float16)
    found = multiply(Product("f16", "f16"), a_operand, b_operand, c.view(np.uint16))
    assert found.dtype == np.uint16
    for w, m, n in np.ndindex(W, M, N):
        exact = dot(a[w, m], b[w, :, n], float(c[w, m, n]))
        assert float(found.view(np.float16)[w, m, n]) == nearest(exact, np.float16)


def test_f16_may_enter_an_f32_accumulator() -> None:
    one = operand(np.full((1, 8, 4), 0x3C00, np.uint16), "f16", 16)
    two = operand(np.full((1, 4, 8), 0x4000, np.uint16), "f16", 16)
    c = np.full((1, 8, 8), 0x3800, np.uint16)
    found = multiply(Product("f32", "f16"), one, two, c)
    assert (found.view(np.float32) == 8.5).all()


def test_subnormals_count() -> None:
    tiny = operand(np.full((1, 8, 4), 1, np.uint16), "f16", 16)
    eight_bit = operand(np.full((1, 4, 8), 1, np.uint8), "e5m2", 8)
    found = multiply(Product("f32", "f32"), tiny, eight_bit, np.zeros((1, 8, 8), np.uint32))
    assert (found.view(np.float32) == 4 * 2.0**-24 * 2.0**-16).all()


def test_tf32_ignores_its_low_thirteen_bits() -> None:
    bits = np.array([0x3F801FFF, 0x3F802000], np.uint32).reshape(1, 1, 2)
    values = operand(bits, "tf32", 32).values.ravel().tolist()
    assert values == [1.0, 1.0 + 2.0**-10]


def test_negation_flips_every_element() -> None:
    bits = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    plain, negated = operand(bits, "e2m3", 8), operand(bits, "e2m3", 8, negate=True)
    assert (plain.values == -negated.values).all()


@pytest.mark.parametrize(("d", "nan"), [("f32", 0x7FFFFFFF), ("f16", 0x7FFF)])
def test_nan_is_canonical_and_infinity_stays(d: str, nan: int) -> None:
    values = np.zeros((1, 2, 2))
    values[0, 0, 0] = np.inf
    values[0, 1, 1] = np.nan
    other = np.ones((1, 2, 2))
    c = np.zeros((1, 2, 2), np.uint16 if d == "f16" else np.uint32)
    found = multiply(Product(d, d), Operand(values, "f16"), Operand(other, "f16"), c)
    assert found[0, 1].tolist() == [nan, nan]
    assert np.isposinf(found[0, 0].view(f"f{found.itemsize}")).all()


INTEGERS = {"s8": (-128, 127), "u8": (0, 255), "s4": (-8, 7), "u4": (0, 15)}


@pytest.mark.parametrize("a_type", INTEGERS)
@pytest.mark.parametrize("b_type", INTEGERS)
@pytest.mark.parametrize("saturate", [False, True])
def test_integer_products_wrap_or_saturate(a_type: str, b_type: str, saturate: bool) -> None:
    rng = np.random.default_rng(7)
    a = rng.integers(*INTEGERS[a_type], (W, M, 64), endpoint=True)
    b = rng.integers(*INTEGERS[b_type], (W, 64, N), endpoint=True)
    c = rng.integers(-(1 << 31), 1 << 31, (W, M, N))
    c[0] = np.where(rng.random((M, N)) < 0.5, (1 << 31) - 1, -(1 << 31))
    width = 8 if a_type[1:] == "8" else 4
    found = multiply(
        Product("s32", "s32", saturate=saturate),
        operand((a & (1 << width) - 1).astype(np.uint8), a_type, width),
        operand((b & (1 << int(b_type[1:])) - 1).astype(np.uint8), b_type, int(b_type[1:])),
        c.astype(np.int32).view(np.uint32),
    )
    outside = 0
    for w, m, n in np.ndindex(W, M, N):
        exact = sum(int(x) * int(y) for x, y in zip(a[w, m], b[w, :, n], strict=True))
        exact += int(c[w, m, n])
        inside = -(1 << 31) <= exact < 1 << 31
        outside += not inside
        if saturate:
            exact = min(max(exact, -(1 << 31)), (1 << 31) - 1)
        assert int(found[w, m, n]) == exact & 0xFFFFFFFF
    assert outside


@pytest.mark.parametrize("operation", ["xor", "and"])
def test_single_bits_count_ones(operation: str) -> None:
    rng = np.random.default_rng(8)
    a = rng.integers(0, 2, (W, M, 256), dtype=np.uint8)
    b = rng.integers(0, 2, (W, 256, N), dtype=np.uint8)
    c = rng.integers(0, 1 << 32, (W, M, N), dtype=np.uint32)
    found = multiply(Product("s32", "s32", operation), operand(a, "b1", 1), operand(b, "b1", 1), c)
    for w, m, n in np.ndindex(W, M, N):
        pairs = zip(a[w, m], b[w, :, n], strict=True)
        ones = sum(int(x != y if operation == "xor" else x & y) for x, y in pairs)
        assert int(found[w, m, n]) == ones + int(c[w, m, n]) & 0xFFFFFFFF


@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
def test_doubles_are_a_chain_of_fused_multiply_adds(rounding: str) -> None:
    rng = np.random.default_rng(9)
    a, b, c = (rng.standard_normal(shape) for shape in ((1, 8, 4), (1, 4, 8), (1, 8, 8)))
    found = multiply(
        Product("f64", "f64", rounding=rounding),
        Operand(a, "f64"),
        Operand(b, "f64"),
        c.view(np.uint64),
    ).view(np.float64)
    inexact = 0
    for m, n in np.ndindex(8, 8):
        total = float(c[0, m, n])
        for k in range(4):
            exact = Fraction(float(a[0, m, k])) * Fraction(float(b[0, k, n])) + Fraction(total)
            total = rounded_double(exact, rounding)
            inexact += Fraction(total) != exact
        assert found[0, m, n] == total
    assert inexact


def rounded_double(exact: Fraction, mode: str) -> float:
    """Python divides integers with one rounding to nearest; step to the side that `mode` wants."""
    near = exact.numerator / exact.denominator
    if mode == "rn" or Fraction(near) == exact:
        return near
    down = near if Fraction(near) < exact else float(np.nextafter(near, -np.inf))
    up = near if Fraction(near) > exact else float(np.nextafter(near, np.inf))
    if mode == "rz":
        return down if exact > 0 else up
    return down if mode == "rm" else up
