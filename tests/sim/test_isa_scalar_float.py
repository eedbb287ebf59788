"""Floating-point instructions give the one rounded result, with every modifier that PTX has."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
import sim_reference as reference
from sim_scalar import Op, compute

from humming_sim.errors import PtxError, UnsupportedInstruction

Array = npt.NDArray[np.unsignedinteger]

WIDTH = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
MODES = ("rn", "rz", "rm", "rp")
ONE = {"f16": 0x3C00, "bf16": 0x3F80, "f32": 0x3F800000}


def codes(kind: str, seed: int, count: int = 64) -> Array:
    """Finite codes near one, whose sums cancel and products tie, with zeros and subnormals."""
    rng = np.random.default_rng(seed)
    exponent, mantissa, _ = reference.LAYOUT[kind]
    bias = 2 ** (exponent - 1) - 1
    fields = rng.integers(bias - 4, bias + 4, count).astype(np.int64) << mantissa
    keep = rng.choice([mantissa // 3, mantissa], count)
    fraction = rng.integers(0, 1 << mantissa, count).astype(np.int64)
    fraction = fraction >> (mantissa - keep) << (mantissa - keep)
    values = fields | fraction | rng.integers(0, 2, count).astype(np.int64) << (WIDTH[kind] - 1)
    values[:4] = [0, 1, 1 << mantissa, (1 << mantissa) - 1]
    return rng.permutation(values.astype(np.uint64)).astype(f"u{WIDTH[kind] // 8}")


def flushed(kind: str, code: int) -> int:
    sign, field, _ = reference.fields(kind, code)
    return reference.zero(kind, bool(sign)) if field == 0 else code


def saturated(kind: str, code: int) -> int:
    sign = reference.fields(kind, code)[0]
    return 0 if sign else min(code, ONE[kind])


def negative(kind: str, code: int) -> int:
    return code ^ 1 << (WIDTH[kind] - 1)


REFERENCES: dict[str, Callable[..., int]] = {
    "add": lambda kind, a, b, c, mode: reference.add(kind, a, b, mode),
    "sub": lambda kind, a, b, c, mode: reference.add(kind, a, negative(kind, b), mode),
    "mul": lambda kind, a, b, c, mode: reference.multiply(kind, a, b, mode),
    "fma": lambda kind, a, b, c, mode: reference.fma(kind, a, b, c, mode),
    "mad": lambda kind, a, b, c, mode: reference.fma(kind, a, b, c, mode),
}


def expected(
    name: str, kind: str, operands: tuple[int, ...], mode: str, modifiers: tuple[str, ...]
) -> int:
    if "ftz" in modifiers:
        operands = tuple(flushed(kind, code) for code in operands)
    result = REFERENCES[name](kind, *operands, mode)
    if "ftz" in modifiers:
        result = flushed(kind, result)
    if "relu" in modifiers and reference.fields(kind, result)[0]:
        result = 0
    return saturated(kind, result) if "sat" in modifiers else result


def check(kind: str, forms: list[tuple[str, str, tuple[str, ...]]], **options: str) -> None:
    """Forms are (instruction, rounding mode, modifiers); packed kinds run on both halves."""
    element = kind.removesuffix("x2")
    inputs = {name: codes(element, seed) for seed, name in enumerate("abc")}
    given = inputs
    if kind.endswith("x2"):
        given = {name: array.view(f"u{WIDTH[element] // 4}") for name, array in inputs.items()}
    width = WIDTH[element] * (2 if kind.endswith("x2") else 1)
    ops = []
    for name, mode, modifiers in forms:
        words = ".".join((name, mode, *modifiers, kind))
        operands = "%a, %b, %c" if name in ("fma", "mad") else "%a, %b"
        ops.append(Op(f"{words} %d, {operands};", width))
    for (name, mode, modifiers), got in zip(forms, compute(ops, given, **options), strict=True):
        results = got.view(f"u{WIDTH[element] // 8}").tolist()
        columns = [array.tolist() for array in inputs.values()]
        for result, *operands in zip(results, *columns, strict=True):
            wanted = expected(name, element, tuple(operands), mode, modifiers)
            shown = [hex(code) for code in operands]
            assert result == wanted, f"{name}.{mode}.{modifiers}.{kind} of {shown}"


def test_single_precision_in_every_mode_with_every_modifier() -> None:
    chosen = [(), ("ftz",), ("sat",), ("ftz", "sat")]
    check("f32", [(n, m, c) for n in REFERENCES for m in MODES for c in chosen])


def test_double_precision_in_every_mode() -> None:
    check("f64", [(name, mode, ()) for name in REFERENCES for mode in MODES])


@pytest.mark.parametrize("kind", ["f16", "f16x2"])
def test_half_precision_with_every_modifier(kind: str) -> None:
    forms = [
        (name, "rn", chosen)
        for name in ("add", "sub", "mul", "fma")
        for chosen in ((), ("ftz",), ("sat",), ("ftz", "sat"))
    ]
    check(kind, [*forms, ("fma", "rn", ("relu",)), ("fma", "rn", ("ftz", "relu"))])


@pytest.mark.parametrize("kind", ["bf16", "bf16x2"])
def test_bfloat16(kind: str) -> None:
    forms: list[tuple[str, str, tuple[str, ...]]] = [
        (name, "rn", ()) for name in ("add", "sub", "mul", "fma")
    ]
    check(kind, [*forms, ("fma", "rn", ("relu",))], version="7.8")


def test_pairs_of_single_precision() -> None:
    forms = [(n, m, c) for n in ("add", "sub", "mul", "fma") for m in MODES for c in ((), ("ftz",))]
    check("f32x2", forms, target="sm_100", version="8.6")


@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_mixed_precision_widens_the_first_operands(half: str) -> None:
    a, b, c = codes(half, 1), codes(half, 2), codes("f32", 3)

    def wide(code: int) -> int:
        exact = reference.finite(half, code)
        sign = reference.fields(half, code)[0]
        return reference.rounded("f32", exact) if exact else reference.zero("f32", bool(sign))

    rows = []
    for mode, sat in itertools.product(MODES, ("", ".sat")):
        modifiers = ("sat",) if sat else ()
        rows += [(f"add.{mode}{sat}.f32.{half} %d, %a, %c;", "add", mode, modifiers)]
        rows += [(f"sub.{mode}{sat}.f32.{half} %d, %a, %c;", "sub", mode, modifiers)]
        rows += [(f"fma.{mode}{sat}.f32.{half} %d, %a, %b, %c;", "fma", mode, modifiers)]
    inputs = {"a": a, "b": b, "c": c}
    results = compute([row[0] for row in rows], inputs, target="sm_100", version="8.6")
    for (body, name, mode, modifiers), got in zip(rows, results, strict=True):
        for result, *given in zip(got.tolist(), a.tolist(), b.tolist(), c.tolist(), strict=True):
            x, y, z = wide(given[0]), wide(given[1]), given[2]
            operands = (x, y, z) if name == "fma" else (x, z, 0)
            wanted = expected(name, "f32", operands, mode, modifiers)
            assert result == wanted, f"{body} of {[hex(code) for code in given]}"


def test_quotients_reciprocals_and_roots_in_every_mode() -> None:
    for kind in ("f32", "f64"):
        a, b = codes(kind, 4), codes(kind, 5)
        b[reference_zero(kind, b)] = b.max()
        positive = a & np.asarray((1 << WIDTH[kind] - 1) - 1, a.dtype) | a.dtype.type(1)
        one = {"f32": 0x3F800000, "f64": 0x3FF0000000000000}[kind]
        rows: list[tuple[str, Callable[[int, int, int], int]]] = []
        for mode in MODES:
            rows += [
                (
                    f"div.{mode}.{kind} %d, %a, %b;",
                    lambda x, y, p, k=kind, m=mode: reference.divide(k, x, y, m),
                ),
                (
                    f"rcp.{mode}.{kind} %d, %b;",
                    lambda x, y, p, k=kind, m=mode, o=one: reference.divide(k, o, y, m),
                ),
                (
                    f"sqrt.{mode}.{kind} %d, %p;",
                    lambda x, y, p, k=kind, m=mode: reference.square_root(k, p, m),
                ),
            ]
        ops = [Op(body, WIDTH[kind]) for body, _ in rows]
        results = compute(ops, {"a": a, "b": b, "p": positive})
        columns = [array.tolist() for array in (a, b, positive)]
        for (body, function), got in zip(rows, results, strict=True):
            for result, *given in zip(got.tolist(), *columns, strict=True):
                assert result == function(*given), f"{body} of {[hex(code) for code in given]}"


def reference_zero(kind: str, array: Array) -> npt.NDArray[np.bool_]:
    return (array & np.asarray((1 << WIDTH[kind] - 1) - 1, array.dtype)) == 0


SPECIAL = {
    "f16": (0x0000, 0x8000, 0x7C00, 0xFC00, 0x7E01, 0xFC01, 0x0001, 0x3C00, 0xBC00),
    "bf16": (0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0xFF81, 0x0001, 0x3F80, 0xBF80),
    "f32": (0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00001, 0xFF800001, 1, 0x3F800000, 0xBF800000),
}


def extreme(kind: str, larger: bool, modifiers: tuple[str, ...], *operands: int) -> int:
    sign = 1 << (WIDTH[kind] - 1)
    xor = 0
    if "xorsign" in modifiers:
        xor = (operands[0] ^ operands[1]) & sign
    if "abs" in modifiers:
        operands = tuple(code & ~sign for code in operands)
    if "ftz" in modifiers:
        operands = tuple(flushed(kind, code) for code in operands)
    result = operands[0]
    for other in operands[1:]:
        nans = [
            reference.value(kind, code) != reference.value(kind, code) for code in (result, other)
        ]
        if all(nans) or (any(nans) and "NaN" in modifiers):
            result = reference.CANONICAL[kind]
        elif any(nans):
            result = other if nans[0] else result
        else:
            # Minus zero is below zero.
            ranked = sorted((result, other), key=lambda c: (reference.value(kind, c), not c & sign))
            result = ranked[-1 if larger else 0]
    if reference.value(kind, result) != reference.value(kind, result):
        return reference.CANONICAL[kind]
    return result & ~sign | xor if "xorsign" in modifiers else result


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
def test_minima_and_maxima_order_zeros_and_treat_nan_as_asked(kind: str) -> None:
    pairs = np.array(list(itertools.product(SPECIAL[kind], SPECIAL[kind])), np.uint64)
    a, b = (pairs[:, i].astype(f"u{WIDTH[kind] // 8}") for i in (0, 1))
    choices: list[tuple[str, ...]] = [(), ("NaN",), ("xorsign", "abs"), ("NaN", "xorsign", "abs")]
    if kind != "bf16":
        choices += [("ftz", *choice) for choice in choices]
    rows = [(name, choice) for name in ("min", "max") for choice in choices]
    ops = [Op(f"{'.'.join((n, *c, kind))} %d, %a, %b;", WIDTH[kind]) for n, c in rows]
    for (name, choice), got in zip(rows, compute(ops, {"a": a, "b": b}), strict=True):
        for result, x, y in zip(got.tolist(), a.tolist(), b.tolist(), strict=True):
            wanted = extreme(kind, name == "max", choice, x, y)
            assert result == wanted, f"{name} {choice} of {x:#x}, {y:#x}"


def test_three_operand_extremes_of_sm100() -> None:
    triples = np.array(list(itertools.product(SPECIAL["f32"][:6], repeat=3)), np.uint32)
    a, b, c = (np.ascontiguousarray(triples[:, i]) for i in range(3))
    rows = [
        (name, choice)
        for name in ("min", "max")
        for choice in ((), ("NaN",), ("abs",), ("ftz", "NaN", "abs"))
    ]
    ops = [f"{'.'.join((name, *choice, 'f32'))} %d, %a, %b, %c;" for name, choice in rows]
    results = compute(ops, {"a": a, "b": b, "c": c}, target="sm_100", version="8.8")
    for (name, choice), got in zip(rows, results, strict=True):
        for result, *codes_ in zip(got.tolist(), a.tolist(), b.tolist(), c.tolist(), strict=True):
            assert result == extreme("f32", name == "max", choice, *codes_), (name, choice, codes_)


def test_packed_extremes_and_signs_work_on_both_halves() -> None:
    low = np.array(SPECIAL["f16"], np.uint16)
    words = (low.astype(np.uint32) << 16) | low[::-1]
    ops = ["max.NaN.f16x2 %d, %a, %b;", "abs.f16x2 %d, %a;", "neg.bf16x2 %d, %a;"]
    a, b = words, np.roll(words, 1)
    largest, absolute, opposite = compute(ops, {"a": a, "b": b})
    single = [
        Op("max.NaN.f16 %d, %a, %b;", 16),
        Op("abs.f16 %d, %a;", 16),
        Op("neg.bf16 %d, %a;", 16),
    ]
    halves = compute(single, {"a": a.view(np.uint16), "b": b.view(np.uint16)})
    for packed, plain in zip((largest, absolute, opposite), halves, strict=True):
        assert np.array_equal(packed.view(np.uint16), plain)


def test_signs_change_only_the_sign_and_make_nan_canonical() -> None:
    inputs = {
        "a": np.array(SPECIAL["f32"], np.uint32),
        "b": np.array(SPECIAL["f32"][::-1], np.uint32),
    }
    ops = ["abs.f32 %d, %a;", "neg.f32 %d, %a;", "neg.ftz.f32 %d, %a;", "copysign.f32 %d, %a, %b;"]
    absolute, opposite, flushing, copied = compute(ops, inputs)
    nan = 0x7FFFFFFF
    infinity, one = 0x7F800000, 0x3F800000
    assert absolute.tolist() == [0, 0, infinity, infinity, nan, nan, 1, one, one]
    sign = 1 << 31
    assert opposite[:4].tolist() == [sign, 0, infinity | sign, infinity]
    assert opposite[4:].tolist() == [nan, nan, sign | 1, one | sign, one]
    assert flushing[6] == sign
    for result, x, y in zip(
        copied.tolist(), inputs["a"].tolist(), inputs["b"].tolist(), strict=True
    ):
        assert result == (x & sign) | (y & ~sign)


def test_testp_classifies_numbers() -> None:
    inputs = {"a": np.array([*SPECIAL["f32"], 0x00800000, 0x007FFFFF], np.uint32)}
    tests = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    body = ".reg .pred %q; testp.{}.f32 %q, %a; selp.b32 %d, 1, 0, %q;"
    got = dict(zip(tests, compute([body.format(test) for test in tests], inputs), strict=True))
    assert got["finite"].tolist() == [1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert got["infinite"].tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert got["number"].tolist() == [1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1]
    assert got["notanumber"].tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]
    assert got["normal"].tolist() == [1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 0]
    assert got["subnormal"].tolist() == [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1]


def test_out_of_bounds_nan_makes_a_fused_result_zero() -> None:
    inputs = {"a": np.array([0x7FF73C00, 0x7E003C00], np.uint32)}
    ops = ["fma.rn.oob.f16x2 %d, %a, %a, %a;", "fma.rn.oob.relu.bf16x2 %d, %a, %a, %a;"]
    half, brain = compute(ops, inputs, version="8.1")
    assert half.tolist() == [0x00004000, 0x7FFF4000]
    assert brain[0] >> 16 == 0


APPROXIMATE = {
    "rcp": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "lg2": np.log2,
    "ex2": np.exp2,
    "tanh": np.tanh,
}


def test_approximate_functions_are_the_nearest_numbers() -> None:
    x = np.random.default_rng(6).uniform(0.25, 8, 64).astype(np.float32)
    ops = [f"{name}.approx.f32 %d, %a;" for name in APPROXIMATE]
    ops += ["div.approx.f32 %d, %a, %b;", "div.full.ftz.f32 %d, %a, %b;"]
    y = x[::-1].copy()
    results = compute(ops, {"a": x.view(np.uint32), "b": y.view(np.uint32)})
    wide = x.astype(np.float64)
    wanted = [function(wide) for function in APPROXIMATE.values()]
    wanted += [wide / y.astype(np.float64)] * 2
    for body, got, exact in zip(ops, results, wanted, strict=True):
        assert np.array_equal(got.view(np.float32), exact.astype(np.float32)), body


def test_ftz_of_approximate_functions_flushes_operands_and_results() -> None:
    inputs = {"a": np.array([1, 0x7F000000], np.uint32)}
    ops = ["rcp.approx.f32 %d, %a;", "rcp.approx.ftz.f32 %d, %a;", "sqrt.rn.ftz.f32 %d, %a;"]
    plain, flushing, root = compute(ops, inputs)
    assert plain.tolist() == [0x7F800000, 0x00400000]
    assert flushing.tolist() == [0x7F800000, 0]
    assert root[0] == 0


def test_half_precision_and_double_approximations_run() -> None:
    x = np.array([0x3C00, 0x4000], np.uint16)
    ops = [Op("ex2.approx.f16 %d, %a;", 16), Op("tanh.approx.f16 %d, %a;", 16)]
    power, tangent = compute(ops, {"a": x})
    assert power.tolist() == [0x4000, 0x4400]
    exact = [Fraction(float(np.tanh(v))) for v in (1.0, 2.0)]
    assert tangent.tolist() == [reference.rounded("f16", value) for value in exact]
    doubles = np.array([4.0, 0.25]).view(np.uint64)
    ops = [Op(f"{name} %d, %a;", 64) for name in ("rcp.approx.ftz.f64", "rsqrt.approx.f64")]
    inverse, root = compute(ops, {"a": doubles})
    assert inverse.view(np.float64).tolist() == [0.25, 4.0]
    assert root.view(np.float64).tolist() == [0.5, 2.0]


def test_literals_are_numbers_of_the_instruction() -> None:
    inputs = {"a": np.array([0x3F800000], np.uint32)}
    ops = ["add.f32 %d, %a, 0f3F800000;", "fma.rn.f32 %d, %a, 2.0, 0.5;", "mul.f32 %d, 3.0, %a;"]
    assert [int(got[0]) for got in compute(ops, inputs)] == [0x40000000, 0x40200000, 0x40400000]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("add.rz.f16 %d, %a, %a;", "rz"),
        ("add.sat.f64 %d, %a, %a;", "sat"),
        ("fma.f32 %d, %a, %a, %a;", "rn"),
        ("mul.ftz.bf16 %d, %a, %a;", "ftz"),
        ("fma.rn.relu.f32 %d, %a, %a, %a;", "relu"),
        ("max.xorsign.f32 %d, %a, %a;", "xorsign"),
        ("sin.f32 %d, %a;", "approx"),
        ("mul.f32.f16 %d, %a, %a;", "mixed"),
        ("ex2.approx.bf16 %d, %a;", "ftz"),
        ("sqrt.rn.f16 %d, %a;", "f32"),
    ],
)
def test_what_is_no_instruction_is_refused_by_name(body: str, named: str) -> None:
    with pytest.raises((PtxError, UnsupportedInstruction), match=named):
        compute([Op(body, 64)], {"a": codes("f64", 7)}, legal=False)
