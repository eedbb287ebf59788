"""Integer instructions compute what Python's integers say, for every type that PTX gives them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from sim_scalar import PTXAS, Op, compute

from humming_sim.errors import PtxError, SimulationFault, UnsupportedInstruction

Array = npt.NDArray[np.unsignedinteger]

WIDTHS = (16, 32, 64)
KINDS = tuple(f"{sign}{width}" for width in WIDTHS for sign in "us")


def numbers(width: int, seed: int, count: int = 96) -> Array:
    """Bit patterns: edges, small numbers of both signs, and anything."""
    rng = np.random.default_rng(seed)
    top = 1 << width
    edges = [0, 1, 2, top - 1, top - 2, top // 2, top // 2 - 1, top // 2 + 1]
    small = [int(x) % top for x in rng.integers(-40, 40, count // 3)]
    rest = [int(x) % top for x in rng.integers(0, 1 << 63, count - len(small) - len(edges))]
    values = np.array([*edges, *small, *rest], dtype=f"u{width // 8}")
    return rng.permutation(values)


def signed(kind: str, code: int) -> int:
    width = int(kind[1:])
    return code - (1 << width) if kind[0] == "s" and code >> (width - 1) else code


def check(
    rows: dict[str, tuple[int, Callable[..., int]]],
    inputs: dict[str, Array],
    **options: str,
) -> None:
    """Every instruction's result equals the function of its inputs' codes, modulo its width."""
    ops = [Op(body, width) for body, (width, _) in rows.items()]
    results = compute(ops, inputs, **options)
    columns = [array.tolist() for array in inputs.values()]
    for (body, (width, function)), got in zip(rows.items(), results, strict=True):
        for index, codes in enumerate(zip(*columns, strict=True)):
            expected = function(*codes) % (1 << width)
            assert int(got[index]) == expected, f"{body} of {[hex(c) for c in codes]}"


def typed(kind: str, function: Callable[..., int]) -> Callable[..., int]:
    return lambda *codes: function(*(signed(kind, code) for code in codes))


@pytest.mark.parametrize("kind", KINDS)
def test_sums_products_and_differences_of_every_type(kind: str) -> None:
    width = int(kind[1:])
    rows: dict[str, tuple[int, Callable[..., int]]] = {
        "add.{k} %d, %a, %b;": (width, lambda a, b, c: a + b),
        "sub.{k} %d, %a, %b;": (width, lambda a, b, c: a - b),
        "mul.lo.{k} %d, %a, %b;": (width, lambda a, b, c: a * b),
        "mul.hi.{k} %d, %a, %b;": (width, lambda a, b, c: a * b >> width),
        "mad.lo.{k} %d, %a, %b, %c;": (width, lambda a, b, c: a * b + c),
        "mad.hi.{k} %d, %a, %b, %c;": (width, lambda a, b, c: (a * b >> width) + c),
        "sad.{k} %d, %a, %b, %c;": (width, lambda a, b, c: abs(a - b) + c),
        "min.{k} %d, %a, %b;": (width, lambda a, b, c: min(a, b)),
        "max.{k} %d, %a, %b;": (width, lambda a, b, c: max(a, b)),
        "add.{k} %d, %a, -3;": (width, lambda a, b, c: a - 3),
    }
    if width < 64:
        rows["mul.wide.{k} %d, %a, %b;"] = (2 * width, lambda a, b, c: a * b)
        wide = f"{kind[0]}{2 * width}"
        rows[f".reg .{wide} %w; cvt.{wide}.{kind} %w, %c; mad.wide.{{k}} %d, %a, %b, %w;"] = (
            2 * width,
            lambda a, b, c: a * b + c,
        )
    if kind[0] == "s":
        rows["abs.{k} %d, %a;"] = (width, lambda a, b, c: abs(a))
        rows["neg.{k} %d, %a;"] = (width, lambda a, b, c: -a)
    done = {
        body.replace("{k}", kind): (bits, typed(kind, function))
        for body, (bits, function) in rows.items()
    }
    check(done, {name: numbers(width, seed) for seed, name in enumerate("abc")})


@pytest.mark.parametrize("kind", KINDS)
def test_division_rounds_towards_zero_and_the_remainder_follows_the_dividend(kind: str) -> None:
    width = int(kind[1:])
    a, b = numbers(width, 3), numbers(width, 4)
    b[b == 0] = 7

    def quotient(x: int, y: int) -> int:
        size = abs(x) // abs(y)
        return -size if (x < 0) != (y < 0) else size

    rows = {
        f"div.{kind} %d, %a, %b;": (width, typed(kind, quotient)),
        f"rem.{kind} %d, %a, %b;": (width, typed(kind, lambda x, y: x - quotient(x, y) * y)),
    }
    check(rows, {"a": a, "b": b})


def test_division_by_zero_is_a_finding() -> None:
    with pytest.raises(SimulationFault, match="divided by zero"):
        compute(["div.u32 %d, %a, 0;"], {"a": numbers(32, 1)})


def clamp(value: int) -> int:
    return min(max(value, -(1 << 31)), (1 << 31) - 1)


def low24(kind: str, code: int) -> int:
    code &= 0xFFFFFF
    return code - (1 << 24) if kind[0] == "s" and code >> 23 else code


def test_saturating_and_24_bit_arithmetic() -> None:
    def s32(function: Callable[..., int]) -> Callable[..., int]:
        return typed("s32", function)

    rows: dict[str, tuple[int, Callable[..., int]]] = {
        "add.sat.s32 %d, %a, %b;": (32, s32(lambda a, b, c: clamp(a + b))),
        "sub.sat.s32 %d, %a, %b;": (32, s32(lambda a, b, c: clamp(a - b))),
        "mad.hi.sat.s32 %d, %a, %b, %c;": (32, s32(lambda a, b, c: clamp((a * b >> 32) + c))),
        "mad24.hi.sat.s32 %d, %a, %b, %c;": (
            32,
            lambda a, b, c: clamp((low24("s", a) * low24("s", b) >> 16) + signed("s32", c)),
        ),
        "min.relu.s32 %d, %a, %b;": (32, s32(lambda a, b, c: max(min(a, b), 0))),
        "max.relu.s32 %d, %a, %b;": (32, s32(lambda a, b, c: max(a, b, 0))),
    }
    for kind in ("u32", "s32"):
        for half, shift in (("lo", 0), ("hi", 16)):

            def product(a: int, b: int, kind: str = kind, shift: int = shift) -> int:
                return low24(kind, a) * low24(kind, b) >> shift

            rows[f"mul24.{half}.{kind} %d, %a, %b;"] = (32, lambda a, b, c, p=product: p(a, b))
            rows[f"mad24.{half}.{kind} %d, %a, %b, %c;"] = (
                32,
                lambda a, b, c, p=product: p(a, b) + c,
            )
    check(rows, {name: numbers(32, seed) for seed, name in enumerate("abc")})


def pieces(kind: str, word: int, width: int) -> list[int]:
    parts = [word >> shift & ((1 << width) - 1) for shift in range(0, 32, width)]
    return [signed(f"{kind[0]}{width}", part) for part in parts]


def test_packed_sums_and_extremes_work_on_half_words() -> None:
    rows: dict[str, tuple[int, Callable[..., int]]] = {}
    operations = {"add": lambda x, y: x + y, "min": min, "max": max}
    for kind in ("u16x2", "s16x2"):
        for name, function in operations.items():

            def both(a: int, b: int, kind: str = kind, function: object = function) -> int:
                assert callable(function)
                low, high = map(function, pieces(kind, a, 16), pieces(kind, b, 16))
                return (low & 0xFFFF) | (high & 0xFFFF) << 16

            rows[f"{name}.{kind} %d, %a, %b;"] = (32, both)

    def relu(a: int, b: int) -> int:
        low, high = map(min, pieces("s", a, 16), pieces("s", b, 16))
        return max(low, 0) | max(high, 0) << 16

    rows["min.relu.s16x2 %d, %a, %b;"] = (32, relu)
    check(rows, {"a": numbers(32, 5), "b": numbers(32, 6)}, version="8.0")


def test_dot_products_of_bytes_and_half_words() -> None:
    rows: dict[str, tuple[int, Callable[..., int]]] = {}
    for x in ("u32", "s32"):
        for y in ("u32", "s32"):

            def four(a: int, b: int, c: int, x: str = x, y: str = y) -> int:
                terms = zip(pieces(x, a, 8), pieces(y, b, 8), strict=True)
                return sum(p * q for p, q in terms) + c

            rows[f"dp4a.{x}.{y} %d, %a, %b, %c;"] = (32, four)
            for half, first in (("lo", 0), ("hi", 2)):

                def two(a: int, b: int, c: int, x: str = x, y: str = y, first: int = first) -> int:
                    octets = pieces(y, b, 8)[first : first + 2]
                    return sum(p * q for p, q in zip(pieces(x, a, 16), octets, strict=True)) + c

                rows[f"dp2a.{half}.{x}.{y} %d, %a, %b, %c;"] = (32, two)
    check(rows, {name: numbers(32, seed) for seed, name in enumerate("abc")})


@pytest.mark.parametrize("width", [32, 64])
def test_carry_chains_compute_double_words(width: int) -> None:
    kind = f"u{width}"
    chain = f".reg .b{width} %x;"
    modulus = 1 << 2 * width

    def double(high: int, low: int) -> int:
        return high << width | low

    rows: dict[str, tuple[int, Callable[..., int]]] = {
        f"{chain} add.cc.{kind} %x, %a, %b; addc.{kind} %d, %c, %a;": (
            width,
            lambda a, b, c: (double(c, a) + double(a, b)) % modulus >> width,
        ),
        f"{chain} sub.cc.{kind} %x, %a, %b; subc.{kind} %d, %c, %a;": (
            width,
            lambda a, b, c: (double(c, a) - double(a, b)) % modulus >> width,
        ),
        f"{chain} add.cc.{kind} %x, %a, %b; addc.cc.{kind} %x, %c, -1; addc.{kind} %d, 0, 0;": (
            width,
            lambda a, b, c: (c + (1 << width) - 1 + (a + b >> width)) >> width,
        ),
        f"{chain} sub.cc.{kind} %x, %a, %b; subc.cc.{kind} %x, %c, %c; subc.{kind} %d, 0, 0;": (
            width,
            lambda a, b, c: -int(a < b),
        ),
        f"{chain} mad.lo.cc.{kind} %x, %a, %b, %c; madc.hi.{kind} %d, %a, %b, 0;": (
            width,
            lambda a, b, c: a * b + c >> width,
        ),
        f"{chain} mad.hi.cc.s{width} %x, %a, %b, %c; addc.{kind} %d, 0, 0;": (
            width,
            lambda a, b, c: (
                ((signed(f"s{width}", a) * signed(f"s{width}", b) >> width) % (1 << width) + c)
                >> width
            ),
        ),
        f"{chain} add.cc.{kind} %x, %a, %b; madc.lo.cc.{kind} %x, %a, %b, %c;"
        f" addc.{kind} %d, 0, 0;": (
            width,
            lambda a, b, c: (a * b % (1 << width) + c + (a + b >> width)) >> width,
        ),
    }
    check(rows, {name: numbers(width, seed) for seed, name in enumerate("abc")})


def test_results_widen_by_sign_into_wider_registers() -> None:
    rows: dict[str, tuple[int, Callable[..., int]]] = {
        ".reg .b16 %h; cvt.u16.u32 %h, %a; cvt.s32.s16 %d, %h;": (
            32,
            lambda a: signed("s16", a & 0xFFFF),
        ),
        "cvt.s8.s32 %d, %a;": (32, lambda a: signed("s8", a & 0xFF)),
        "cvt.u8.s32 %d, %a;": (32, lambda a: a & 0xFF),
    }
    check(rows, {"a": numbers(32, 8)})


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("add.sat.u32 %d, %a, %a;", "add"),
        ("add.rn.s32 %d, %a, %a;", "rn"),
        ("mul.s32 %d, %a, %a;", "wide"),
        ("min.NaN.s32 %d, %a, %a;", "NaN"),
        ("div.rn.u32 %d, %a, %a;", "rn"),
        ("mad.lo.sat.s32 %d, %a, %a, %a;", "hi"),
        ("dp4a.u32 %d, %a, %a, %a;", "dp4a"),
        ("vadd.u32.u32.u32 %d, %a, %a;", "vadd"),
        ("add.u32 %d, %a;", "2 operands"),
    ],
)
def test_what_is_no_instruction_is_refused_by_name(body: str, named: str) -> None:
    with pytest.raises((PtxError, UnsupportedInstruction), match=named):
        compute([body], {"a": numbers(32, 9)}, legal=False)


@pytest.mark.skipif(PTXAS is None, reason="there is no ptxas to check the spelling of test PTX")
def test_the_test_kit_lets_ptxas_refuse_what_is_no_ptx() -> None:
    with pytest.raises(AssertionError, match="ptxas"):
        compute(["add.sat.u32 %d, %a, %a;"], {"a": numbers(32, 9)})
