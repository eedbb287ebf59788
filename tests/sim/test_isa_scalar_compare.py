"""Comparison, selection, moves and packing."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import sim_reference as reference
from sim_scalar import Op, compute

from humming_sim.errors import PtxError, UnsupportedInstruction

Array = npt.NDArray[np.unsignedinteger]

ORDERED: dict[str, Callable[..., bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
JOINS: dict[str, Callable[[bool, bool], bool]] = {
    "and": lambda t, c: t and c,
    "or": lambda t, c: t or c,
    "xor": operator.ne,
}
SPECIAL = {
    "f16": (0x0000, 0x8000, 0x7C00, 0x7E01, 0x0001, 0x8001, 0x3C00, 0xBC00),
    "bf16": (0x0000, 0x8000, 0x7F80, 0x7FC1, 0x0001, 0x8001, 0x3F80, 0xBF80),
    "f32": (0, 1 << 31, 0x7F800000, 0x7FC00001, 1, 0x80000001, 0x3F800000, 0xBF800000),
    "f64": (0, 1 << 63, 0x7FF << 52, 0x7FF1 << 48, 1, (1 << 63) + 1, 0x3FF << 52, 0xBFF << 52),
}


def pairs(kind: str) -> tuple[Array, Array]:
    """All pairs of special values."""
    both = np.array(list(itertools.product(SPECIAL[kind], repeat=2)), np.uint64)
    dtype = f"u{reference_width(kind) // 8}"
    return both[:, 0].astype(dtype), both[:, 1].astype(dtype)


def reference_width(kind: str) -> int:
    exponent, mantissa, _ = reference.LAYOUT[kind]
    return exponent + mantissa + 1


def holds(name: str, kind: str, a: int, b: int, ftz: bool = False) -> bool:
    x, y = (reference.value(kind, 0 if ftz and not exponent(kind, c) else c) for c in (a, b))
    unordered = x != x or y != y
    if name in ("num", "nan"):
        return unordered == (name == "nan")
    if name in ORDERED:
        return not unordered and ORDERED[name](x, y)
    return unordered or ORDERED[name[:-1]](x, y)


def exponent(kind: str, code: int) -> int:
    return reference.fields(kind, code)[1]


FLOAT_NAMES = (*ORDERED, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


@pytest.mark.parametrize("kind", SPECIAL)
def test_floats_compare_ordered_and_unordered(kind: str) -> None:
    a, b = pairs(kind)
    rows = [(name, ftz) for name in FLOAT_NAMES for ftz in ("", ".ftz")]
    rows = [row for row in rows if not row[1] or kind in ("f16", "f32")]
    body = ".reg .pred %q; setp.{}{}.{} %q, %a, %b; selp.b32 %d, 1, 0, %q;"
    results = compute([body.format(name, ftz, kind) for name, ftz in rows], {"a": a, "b": b})
    for (name, ftz), got in zip(rows, results, strict=True):
        for result, x, y in zip(got.tolist(), a.tolist(), b.tolist(), strict=True):
            assert result == holds(name, kind, x, y, bool(ftz)), (name, ftz, hex(x), hex(y))


@pytest.mark.parametrize("width", [16, 32, 64])
def test_integers_compare_by_their_sign(width: int) -> None:
    top = 1 << width
    edges = [0, 1, top // 2 - 1, top // 2, top - 1]
    a, b = (
        np.array(column, dtype=f"u{width // 8}")
        for column in zip(*itertools.product(edges, repeat=2), strict=True)
    )
    rows: list[tuple[str, str, str]] = [(n, f"s{width}", n) for n in ORDERED]
    rows += [(n, f"u{width}", n) for n in ORDERED]
    rows += [(n, f"b{width}", n) for n in ("eq", "ne")]
    aliases = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
    rows += [(n, f"u{width}", plain) for n, plain in aliases.items()]
    body = ".reg .pred %q; setp.{}.{} %q, %a, %b; selp.b32 %d, 1, 0, %q;"
    results = compute([body.format(n, kind) for n, kind, _ in rows], {"a": a, "b": b})
    for (_, kind, plain), got in zip(rows, results, strict=True):
        for result, x, y in zip(got.tolist(), a.tolist(), b.tolist(), strict=True):
            if kind[0] == "s":
                x, y = (v - top if v >= top // 2 else v for v in (x, y))
            assert result == ORDERED[plain](x, y)


def test_predicates_join_and_the_second_takes_the_opposite_result() -> None:
    a, b = pairs("f32")
    rows = [(join, sign) for join in JOINS for sign in ("", "!")]
    body = (
        ".reg .pred %p, %q, %c; .reg .b32 %x, %y; setp.gt.f32 %c, %a, 0f00000000; "
        "setp.lt.{}.f32 %p|%q, %a, %b, {}%c; selp.b32 %x, 1, 0, %p; selp.b32 %y, 2, 0, %q; "
        "or.b32 %d, %x, %y;"
    )
    results = compute([body.format(*row) for row in rows], {"a": a, "b": b})
    for (join, sign), got in zip(rows, results, strict=True):
        for result, x, y in zip(got.tolist(), a.tolist(), b.tolist(), strict=True):
            test, given = holds("lt", "f32", x, y), holds("gt", "f32", x, 0) != bool(sign)
            expected = JOINS[join](test, given) + 2 * JOINS[join](not test, given)
            assert result == expected


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_pairs_give_two_predicates_and_two_numbers(kind: str) -> None:
    low, high = pairs(kind)
    a = low.astype(np.uint32) | high.astype(np.uint32) << 16
    b = np.roll(a, 5)
    body = (
        ".reg .pred %p, %q; .reg .b32 %x, %y; setp.{0}.{1}x2 %p|%q, %a, %b; "
        "selp.b32 %x, 1, 0, %p; selp.b32 %y, 2, 0, %q; or.b32 %d, %x, %y;"
    )
    names = ("lt", "geu", "nan")
    ops = [body.format(name, kind) for name in names]
    ops += [f"set.{name}.{kind}x2.{kind}x2 %d, %a, %b;" for name in names]
    ops += [f"set.{name}.u32.{kind}x2 %d, %a, %b;" for name in names]
    results = compute(ops, {"a": a, "b": b})
    one = SPECIAL[kind][6]
    for index, name in enumerate(names):
        flags, numbers, masks = (results[index + 3 * part].tolist() for part in range(3))
        for flag, number, mask, x, y in zip(
            flags, numbers, masks, a.tolist(), b.tolist(), strict=True
        ):
            first = holds(name, kind, x & 0xFFFF, y & 0xFFFF)
            second = holds(name, kind, x >> 16, y >> 16)
            assert flag == first + 2 * second
            assert number == first * one + (second * one << 16)
            assert mask == first * 0xFFFF + (second * 0xFFFF << 16)


def test_set_gives_ones_or_the_number_one() -> None:
    a, b = pairs("f32")
    forms = {"u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF, "f32": 0x3F800000}
    ops = [Op(f"set.gt.{target}.f32 %d, %a, %b;", 32) for target in forms]
    joined = ".reg .pred %c; setp.num.f32 %c, %a, %b; set.le.xor.ftz.u32.f32 %d, %a, %b, %c;"
    ops += [Op("set.gt.f16.f32 %d, %a, %b;", 16), Op("set.gt.bf16.f32 %d, %a, %b;", 16), Op(joined)]
    results = compute(ops, {"a": a, "b": b})
    true = [*forms.values(), 0x3C00, 0x3F80]
    for one, got in zip(true, results[:5], strict=True):
        for result, x, y in zip(got.tolist(), a.tolist(), b.tolist(), strict=True):
            assert result == one * holds("gt", "f32", x, y)
    for result, x, y in zip(results[5].tolist(), a.tolist(), b.tolist(), strict=True):
        expected = holds("le", "f32", x, y, ftz=True) != holds("num", "f32", x, y)
        assert result == 0xFFFFFFFF * expected


def test_half_set_gives_words_and_half_words() -> None:
    a, b = pairs("f16")
    ops = [Op("set.ltu.u16.f16 %d, %a, %b;", 16), Op("set.ltu.s32.f16 %d, %a, %b;", 32)]
    short, long = compute(ops, {"a": a, "b": b})
    for first, second, x, y in zip(
        short.tolist(), long.tolist(), a.tolist(), b.tolist(), strict=True
    ):
        assert first == 0xFFFF * holds("ltu", "f16", x, y)
        assert second == 0xFFFFFFFF * holds("ltu", "f16", x, y)


def test_slct_takes_the_first_unless_the_third_is_negative_or_nan() -> None:
    c = np.array(SPECIAL["f32"], np.uint32)
    inputs = {"a": np.full(8, 1, np.uint32), "b": np.full(8, 2, np.uint32), "c": c}
    ops = [f"slct{form} %d, %a, %b, %c;" for form in (".u32.f32", ".ftz.f32.f32", ".b32.s32")]
    plain, flushing, integer = compute(ops, inputs)
    assert plain.tolist() == [1, 1, 1, 2, 1, 2, 1, 2]
    assert flushing.tolist() == [1, 1, 1, 2, 1, 1, 1, 2]
    assert integer.tolist() == [1 if code < 1 << 31 else 2 for code in c.tolist()]


# --------------------------------------------------------------------------------------- moves


def test_registers_pack_and_unpack_lowest_first() -> None:
    a = np.array([0x01020304, 0xFFEEDDCC, 0], np.uint32)
    ops = [
        ".reg .b16 %x, %y; mov.b32 {%x, %y}, %a; mov.b32 %d, {%y, %x};",
        ".reg .b8 %w, %x, %y, %z; mov.b32 {%w, %x, %y, %z}, %a; mov.b32 %d, {%z, %y, %x, %w};",
        ".reg .b16 %x; mov.b32 {_, %x}, %a; cvt.u32.u16 %d, %x;",
        Op(".reg .b32 %x; not.b32 %x, %a; mov.b64 %d, {%a, %x};", 64),
        Op(
            ".reg .b64 %l, %h; .reg .b128 %w; mov.b64 %l, {%a, 1}; mov.b64 %h, {2, %a}; "
            "mov.b128 %w, {%l, %h}; mov.b128 {%h, %l}, %w; xor.b64 %d, %h, %l;",
            64,
        ),
        ".reg .b32 %x; mov.b32 %x, %a; mov.b32 {%r0, %r1}, %x; mov.b32 %d, {%r1, %r0};".replace(
            "%x;", "%x; .reg .b16 %r0, %r1;", 1
        ),
    ]
    swapped, reversed_, high, wide, cross, again = compute(ops, {"a": a}, version="8.3")
    for index, code in enumerate(a.tolist()):
        assert swapped[index] == code >> 16 | (code & 0xFFFF) << 16
        assert reversed_[index] == int.from_bytes(code.to_bytes(4, "little"), "big")
        assert high[index] == code >> 16
        assert wide[index] == code | (code ^ 0xFFFFFFFF) << 32
        assert cross[index] == (code | 1 << 32) ^ (2 | code << 32)
        assert again[index] == swapped[index]


def test_mov_reads_literals_special_registers_and_predicates() -> None:
    a = np.arange(40, dtype=np.uint32)
    ops = [
        "mov.u32 %d, %tid.x;",
        ".reg .f32 %f; mov.f32 %f, 0f40490FDB; mov.b32 %d, %f;",
        "mov.s32 %d, -2;",
        "mov.u32 %d, %laneid;",
        ".reg .pred %p, %q; setp.lt.u32 %p, %a, 3; mov.pred %q, %p; selp.b32 %d, 1, 0, %q;",
    ]
    thread, number, negative, lane, flag = compute(ops, {"a": a})
    assert thread.tolist() == list(range(40))
    assert set(number.tolist()) == {0x40490FDB}
    assert set(negative.tolist()) == {0xFFFFFFFE}
    assert lane.tolist() == [index % 32 for index in range(40)]
    assert flag.tolist() == [int(index < 3) for index in range(40)]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (".reg .pred %q; setp.lo.s32 %q, %a, %a;", "lo"),
        (".reg .pred %q; setp.lt.b32 %q, %a, %a;", "lt"),
        (".reg .pred %q; setp.equ.u32 %q, %a, %a;", "equ"),
        (".reg .pred %q; setp.eq.ftz.s32 %q, %a, %a;", "ftz"),
        ("set.eq.f32.f16x2 %d, %a, %a;", "f16x2"),
        ("set.eq.f16x2.f32 %d, %a, %a;", "f16x2"),
        ("slct.ftz.b32.s32 %d, %a, %a, %a;", "f32"),
        (".reg .b16 %x; mov.b32 {%x, %x, %x}, %a;", "3 registers"),
        ("mov.b8 %d, %a;", "mov"),
    ],
)
def test_what_is_no_instruction_is_refused_by_name(body: str, named: str) -> None:
    inputs = {"a": np.array([1, 2], np.uint32)}
    with pytest.raises((PtxError, UnsupportedInstruction), match=named):
        compute([body], inputs, legal=False)
