"""Arithmetic rounds exactly once: compared with fractions, case by case."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
import sim_reference as reference
from hypothesis import example, given, settings
from hypothesis import strategies as st

from humming_sim.numbers.arithmetic import Modifiers, operation
from humming_sim.numbers.codes import flusher
from humming_sim.numbers.exact import odd_sum, to_odd_float32
from humming_sim.numbers.formats import FORMATS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

MODES = ("rn", "rz", "rm", "rp")
F32, F64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)


def finite(name: str, code: int) -> bool:
    return isinstance(reference.value(name, code), Fraction)


def run(op: str, kind: str, *operands: int, mode: str = "rn", **modifiers: bool) -> int:
    storage = FORMATS[kind].storage
    arrays = (np.array([operand], storage) for operand in operands)
    return int(operation(op, kind, Modifiers(mode, **modifiers))(*arrays)[0])


def samples(name: str, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Finite codes, half of them within a few binades of 1 so that sums cancel and tie."""
    rng = np.random.default_rng(seed)
    fmt = FORMATS[name]
    codes = rng.integers(0, 1 << fmt.bits, count, dtype=np.uint64).astype(np.int64)
    near = fmt.bias << fmt.mantissa
    spread = rng.integers(-6 << fmt.mantissa, 6 << fmt.mantissa, count)
    codes = np.where(rng.random(count) < 0.7, (near + spread) | (codes & fmt.sign), codes)
    # Few mantissa bits make ties and exact results common.
    short = rng.random(count) < 0.5
    codes = np.where(short, codes & ~((1 << (fmt.mantissa - 3)) - 1), codes)
    magnitude = codes & (fmt.sign - 1)
    return np.where(magnitude >= (fmt.infinity or 0), near, codes)


BINARY: dict[str, Callable[..., int]] = {
    "add": reference.add,
    "sub": lambda name, a, b, mode: reference.add(name, a, b ^ FORMATS[name].sign, mode),
    "mul": reference.multiply,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma", "div"])
def test_float32_operations_round_once_in_every_mode(op: str, mode: str) -> None:
    a, b, c = (samples("f32", 1500, seed) for seed in (1, 2, 3))
    operands = (a, b, c) if op == "fma" else (a, b)
    got = operation(op, "f32", Modifiers(mode))(*(x.astype(np.uint32) for x in operands))
    compute = {**BINARY, "fma": reference.fma, "div": reference.divide}[op]
    for result, *codes in zip(got.tolist(), *(x.tolist() for x in operands), strict=True):
        if op == "div" and not codes[1] & 0x7FFFFFFF:
            continue
        assert result == compute("f32", *codes, mode), [hex(code) for code in codes]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma"])
def test_half_precision_operations_round_once(op: str, kind: str) -> None:
    a, b, c = (samples(kind, 2000, seed) for seed in (4, 5, 6))
    operands = (a, b, c) if op == "fma" else (a, b)
    got = operation(op, kind)(*(x.astype(np.uint16) for x in operands))
    compute = {**BINARY, "fma": reference.fma}[op]
    for result, *codes in zip(got.tolist(), *(x.tolist() for x in operands), strict=True):
        assert result == compute(kind, *codes, "rn"), [hex(code) for code in codes]


def test_float16_fma_survives_products_that_are_midpoints() -> None:
    # 1.5 * (1 + 2**-10) has 12 significant bits; adding the smallest number breaks the tie.
    a, b = 0x3E00, 0x3C01
    for c in (0x0001, 0x8001, 0x0000):
        assert run("fma", "f16", a, b, c) == reference.fma("f16", a, b, c)


def test_bfloat16_fma_survives_addends_far_below_a_midpoint() -> None:
    for c in (0x0001, 0x8001, 0x0000, 0x2000, 0xA000):
        assert run("fma", "bf16", 0x3FC0, 0x3F81, c) == reference.fma("bf16", 0x3FC0, 0x3F81, c)


@settings(max_examples=400, deadline=None)
@given(F32, F32, F32, st.sampled_from(MODES))
@example(0x3F800001, 0x3F800001, 0x33800000, "rn")
@example(0x00800001, 0x3F000000, 0x00000000, "rn")
# float64 rounds this sum to a midpoint of subnormals, which the exact sum is below.
@example(0x1A000001, 0x19FFFFFE, 0x00400001, "rn")
@example(0x3F800000, 0x3F800000, 0xBF800000, "rm")
def test_any_float32_fma_rounds_once(a: int, b: int, c: int, mode: str) -> None:
    got = run("fma", "f32", a, b, c, mode=mode)
    if all(finite("f32", code) for code in (a, b, c)):
        assert got == reference.fma("f32", a, b, c, mode)
    else:
        x, y, z = (float(reference.value("f32", code)) for code in (a, b, c))
        exact = x * y + z
        if math.isnan(exact):
            assert got == 0x7FFFFFFF
        elif math.isinf(exact):
            assert got == (0x7F800000 if exact > 0 else 0xFF800000)


@settings(max_examples=200, deadline=None)
@given(F64, F64, F64, st.sampled_from(MODES))
@example(0x3FF0000000000001, 0x3FF0000000000001, 0x3CA0000000000000, "rn")
@example(0x0010000000000001, 0x3FE0000000000000, 0x0000000000000000, "rp")
@example(0x7FEFFFFFFFFFFFFF, 0x7FEFFFFFFFFFFFFF, 0x0000000000000000, "rz")
def test_any_float64_operation_rounds_once(a: int, b: int, c: int, mode: str) -> None:
    if not all(finite("f64", code) for code in (a, b, c)):
        return
    assert run("fma", "f64", a, b, c, mode=mode) == reference.fma("f64", a, b, c, mode)
    for op, compute in BINARY.items():
        assert run(op, "f64", a, b, mode=mode) == compute("f64", a, b, mode)
    if b & ((1 << 63) - 1):
        assert run("div", "f64", a, b, mode=mode) == reference.divide("f64", a, b, mode)


@pytest.mark.parametrize("mode", MODES)
def test_reciprocals_and_roots_round_once(mode: str) -> None:
    one = {"f32": 0x3F800000, "f64": 0x3FF0000000000000}
    wide = np.exp2(np.random.default_rng(7).uniform(-1070, 1020, 100)).view(np.uint64)
    narrow = (samples("f32", 1000, 7) & 0x7FFFFFFF | 1).astype(np.uint32)
    for kind, codes in (("f32", narrow), ("f64", wide)):
        roots = operation("sqrt", kind, Modifiers(mode))(codes)
        inverses = operation("rcp", kind, Modifiers(mode))(codes)
        results = zip(codes.tolist(), roots.tolist(), inverses.tolist(), strict=True)
        for code, root, inverse in results:
            assert root == reference.square_root(kind, code, mode)
            assert inverse == reference.divide(kind, one[kind], code, mode)


def test_packed_operations_work_on_both_halves() -> None:
    a, b, c = (samples("f16", 400, seed).astype(np.uint16) for seed in (8, 9, 10))
    words = (x.view(np.uint32) for x in (a, b, c))
    got = operation("fma", "f16x2")(*words)
    assert got.dtype == np.uint32
    assert np.array_equal(got.view(np.uint16), operation("fma", "f16")(a, b, c))
    x, y = (samples("f32", 400, seed).astype(np.uint32) for seed in (11, 12))
    pair = operation("add", "f32x2", Modifiers("rz"))(x.view(np.uint64), y.view(np.uint64))
    assert np.array_equal(pair.view(np.uint32), operation("add", "f32", Modifiers("rz"))(x, y))


def test_nan_results_are_canonical_and_infinities_follow_ieee() -> None:
    infinity, nan = 0x7F800000, 0xFFC00001
    assert run("add", "f32", infinity, infinity | 1 << 31) == 0x7FFFFFFF
    assert run("mul", "f32", 0, infinity) == 0x7FFFFFFF
    assert run("fma", "f32", nan, 0, 0) == 0x7FFFFFFF
    assert run("div", "f32", 0x3F800000, 0x80000000) == 0xFF800000
    assert run("add", "f16", 0xFE00, 0x3C00) == 0x7FFF
    assert run("fma", "bf16", 0x7F80, 0x0000, 0x3F80) == 0x7FFF
    assert run("add", "f32", infinity, 0x3F800000, mode="rz") == infinity


def test_ftz_flushes_inputs_and_results_but_keeps_signs() -> None:
    tiny, smallest = 0x80000001, 0x00800000
    assert run("add", "f32", tiny, 0, ftz=True) == 0
    assert run("add", "f32", tiny, 0x80000000, ftz=True) == 0x80000000
    assert run("mul", "f32", smallest | 1 << 31, 0x3F000000, ftz=True) == 0x80000000
    assert run("add", "f16", 0x03FF, 0x0400, ftz=True) == 0x0400
    # Just below the smallest normal number: tiny with an unbounded exponent, normal without.
    assert run("mul", "f32", 0x80800000, 0x3F7FFFFF, ftz=True) == 0x80000000
    assert run("mul", "f32", 0x80800000, 0x3F7FFFFF) == 0x80800000
    assert run("fma", "f16", 0x0400, 0x3BFF, 0x0000, ftz=True) == 0
    codes = np.array([0x03FF, 0x83FF, 0x0400, 0x7C00, 0xFE00], np.uint16)
    assert flusher("f16")(codes).tolist() == [0, 0x8000, 0x0400, 0x7C00, 0xFE00]


def test_saturation_clamps_to_the_unit_interval() -> None:
    cases = [(0x40000000, 0x3F800000), (0xBF800000, 0), (0x80000000, 0), (0x7FC00000, 0)]
    cases += [(0x7F800000, 0x3F800000), (0xFF800000, 0), (0x3F000000, 0x3F000000)]
    for operand, expected in cases:
        assert run("mul", "f32", operand, 0x3F800000, sat=True) == expected
    assert run("add", "f16", 0x4000, 0x4000, sat=True) == 0x3C00


def test_relu_and_out_of_bounds_operands_of_half_fma() -> None:
    # 0x7ff7 with either sign, in a factor but not as the addend: measured on an H200.
    one, minus, oob = 0x3C00, 0xBC00, 0x7FF7
    assert run("fma", "f16", one, minus, 0, relu=True) == 0
    assert run("fma", "f16", 0x7E00, one, one, relu=True) == 0x7FFF
    assert run("fma", "f16", oob, one, one, oob=True) == 0
    assert run("fma", "f16", one, oob, one, oob=True) == 0
    assert run("fma", "f16", oob | 0x8000, 0x7E00, one, oob=True) == 0
    assert run("fma", "bf16", oob, 0x3F80, 0x3F80, oob=True, relu=True) == 0
    assert run("fma", "f16", one, one, oob, oob=True) == 0x7FFF
    for other in (0x7E00, 0x7FFF, 0x7FF6):
        assert run("fma", "f16", other, one, one, oob=True) == 0x7FFF


@settings(max_examples=300, deadline=None)
@given(
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_odd_sums_are_exact_or_an_odd_neighbour(x: float, y: float) -> None:
    exact = Fraction(x) + Fraction(y)
    if abs(exact) >= Fraction(2) ** 1023:
        return
    got = float(odd_sum(np.array([x]), np.array([y]))[0])
    if Fraction(got) != exact:
        assert int(np.array([got]).view(np.uint64)[0]) & 1
        assert abs(Fraction(got) - exact) < Fraction(math.ulp(got))


@settings(max_examples=300, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_odd_float32_is_exact_or_an_odd_neighbour(x: float) -> None:
    got = to_odd_float32(np.array([x]))
    if float(got[0]) != x:
        assert int(got.view(np.uint32)[0]) & 1
        low, high = np.nextafter(got, np.float32(-np.inf)), np.nextafter(got, np.float32(np.inf))
        assert float(low[0]) < x < float(high[0])
