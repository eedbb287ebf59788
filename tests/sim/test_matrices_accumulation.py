"""The narrow sums of tensor cores against a scalar model in fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from humming_sim.matrices.accumulation import (
    Accumulation,
    hardware_accumulation,
    truncated_float32,
)
from humming_sim.matrices.products import Operand, Product, multiply

SMALLEST = {"f16": -14, "bf16": -126, "e4m3": -6, "e5m2": -14, "f32": -126}


def exponent(value: float, name: str) -> int | None:
    """Exponent of the leading bit, no lower than the format's smallest; None of zero."""
    if value == 0:
        return None
    return max(math.frexp(value)[1] - 1, SMALLEST[name])


def truncated(value: Fraction, step: Fraction) -> Fraction:
    return int(value / step) * step


def to_f32_bits(value: Fraction, mantissa: int) -> float:
    """Toward zero, to `mantissa` fraction bits."""
    if value == 0:
        return 0.0
    size = abs(value)
    power = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** power:
        power -= 1
    return float(truncated(value, Fraction(2) ** (max(power, -126) - mantissa)))


def model(a: list[float], b: list[float], c: float, name: str, rule: Accumulation) -> float:
    """One element as the paper describes it."""
    for start in range(0, len(a), rule.step):
        terms = [(Fraction(c), exponent(c, "f32"))]
        pairs = list(zip(a, b, strict=True))[start : start + rule.step]
        for x, y in pairs:
            ex, ey = exponent(x, name), exponent(y, name)
            power = None if ex is None or ey is None else ex + ey
            terms.append((Fraction(x) * Fraction(y), power))
        powers = [power for _, power in terms if power is not None]
        if not powers:
            return 0.0
        unit = Fraction(2) ** (max(powers) - rule.fraction)
        c = to_f32_bits(sum(truncated(value, unit) for value, _ in terms), rule.mantissa)
    return c


@pytest.mark.parametrize(
    ("capability", "instruction", "name", "k"),
    [
        (75, "mma", "f16", 8),
        (80, "mma", "f16", 16),
        (80, "mma", "bf16", 16),
        (89, "mma", "e4m3", 32),
        (90, "mma", "f16", 16),
        (90, "wgmma", "e5m2", 32),
        (100, "tcgen05", "bf16", 16),
        (120, "mma", "e4m3", 32),
    ],
)
def test_narrow_sums_follow_the_model(capability: int, instruction: str, name: str, k: int) -> None:
    rule = hardware_accumulation(capability, instruction, name, k)
    rng = np.random.default_rng(capability + k)
    spread = 4 if name in ("e4m3", "e5m2") else 12
    bits = {"f16": 10, "bf16": 7, "e4m3": 3, "e5m2": 2}[name]

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        mantissas = rng.integers(-(2 << bits), 2 << bits, shape) / (1 << bits)
        return mantissas * 2.0 ** rng.integers(-spread, spread, shape)

    a, b = draw((1, 4, k)), draw((1, k, 4))
    c = (draw((1, 4, 4)) * 2.0 ** rng.integers(-20, 20, (1, 4, 4))).astype(np.float32)
    c[0, 0] = 0
    a[0, 1, ::2] = 0
    product = Product("f32", "f32", accumulation=rule)
    found = multiply(product, Operand(a, name), Operand(b, name), c.view(np.uint32))
    exact = np.matmul(a, b) + c
    inexact = 0
    for m, n in np.ndindex(4, 4):
        wanted = model(a[0, m].tolist(), b[0, :, n].tolist(), float(c[0, m, n]), name, rule)
        assert float(found.view(np.float32)[0, m, n]) == wanted
        inexact += wanted != exact[0, m, n]
    assert inexact


def test_mxf4_adds_sixteen_products_exactly() -> None:
    rule = hardware_accumulation(120, "mma", "e2m1", 64, scaled=True)
    a, b = np.full((1, 1, 64), 6.0), np.full((1, 64, 1), 6.0)
    a[0, 0, 1::2] = -6.0
    a[0, 0, 0] = 0.5
    scales = np.repeat(2.0 ** np.array([40.0, -20.0]), 32)
    a_operand = Operand(a, "e2m1", scales.reshape(1, 1, 64), "ue8m0")
    b_operand = Operand(b, "e2m1", np.ones((1, 64, 1)), "ue8m0")
    c = np.zeros((1, 1, 1), np.uint32)
    product = Product("f32", "f32", accumulation=rule)
    found = multiply(product, a_operand, b_operand, c).view(np.float32)
    # The large block sums to (0.5 - 6) * 6, exactly; the small one to nothing.
    assert found[0, 0, 0] == -33 * 2.0**40


def test_infinities_and_nan_leave_narrow_sums_as_exact_ones() -> None:
    rule = hardware_accumulation(90, "mma", "f16", 16)
    a, b = np.ones((1, 2, 16)), np.ones((1, 16, 1))
    a[0, 0, 3], a[0, 1, 3], a[0, 1, 4] = np.inf, np.inf, -np.inf
    c = np.zeros((1, 2, 1), np.uint32)
    product = Product("f32", "f32", accumulation=rule)
    found = multiply(product, Operand(a, "f16"), Operand(b, "f16"), c)
    assert found.ravel().tolist() == [0x7F800000, 0x7FFFFFFF]


def test_half_accumulators_round_to_nearest_after_the_sum() -> None:
    rule = hardware_accumulation(90, "mma", "f16", 16)
    a, b = np.zeros((1, 1, 16)), np.zeros((1, 16, 1))
    a[0, 0, :2], b[0, :2, 0] = (1.0, 2.0**-11), (1.0, 1.5)
    c = np.zeros((1, 1, 1), np.uint16)
    product = Product("f16", "f16", accumulation=rule)
    found = multiply(product, Operand(a, "f16"), Operand(b, "f16"), c).view(np.float16)
    assert found[0, 0, 0] == 1 + 2.0**-10


@pytest.mark.parametrize("mantissa", [23, 13])
def test_truncation_to_fp32_goes_toward_zero(mantissa: int) -> None:
    rng = np.random.default_rng(5)
    values = rng.standard_normal(500) * 2.0 ** rng.integers(-150, 120, 500)
    found = truncated_float32(values, mantissa).view(np.float32)
    for value, result in zip(values.tolist(), found.tolist(), strict=True):
        assert result == to_f32_bits(Fraction(value), mantissa)


def test_truncation_to_fp32_overflows_at_two_to_the_128() -> None:
    values = np.array([2.0**128, -(2.0**128), 2.0**128 * (1 - 2.0**-30)])
    found = truncated_float32(values).view(np.float32).tolist()
    assert found == [math.inf, -math.inf, float(np.finfo(np.float32).max)]


def test_sums_that_vanish_are_positive_zeros() -> None:
    rule = hardware_accumulation(90, "mma", "f16", 16)
    a, b = np.zeros((1, 1, 16)), np.zeros((1, 16, 1))
    a[0, 0, 0], b[0, 0, 0] = -(2.0**-14), 2.0**-14
    for d, kind in (("f16", np.uint16), ("f32", np.uint32)):
        c = np.zeros((1, 1, 1), kind)
        product = Product(d, d, accumulation=rule)
        found = multiply(product, Operand(a, "f16"), Operand(b, "f16"), c)
        assert found[0, 0, 0] == (0 if d == "f16" else np.float32(-(2.0**-28)).view(np.uint32))
