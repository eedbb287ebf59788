"""Logic, shifts, bit fields and permutation agree with bit-by-bit references."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from sim_scalar import Op, compute

from humming_sim.errors import PtxError, UnsupportedInstruction

Array = npt.NDArray[np.unsignedinteger]
Row = tuple[int, Callable[..., int]]


def numbers(width: int, seed: int, count: int = 96) -> Array:
    rng = np.random.default_rng(seed)
    top = 1 << width
    edges = [0, 1, 2, top - 1, top - 2, top // 2, top // 2 - 1]
    rest = [int(x) % top for x in rng.integers(0, 1 << 63, count - len(edges))]
    # Some with long runs of equal bits.
    rest[::4] = [(x << (x % width)) % top for x in rest[::4]]
    return rng.permutation(np.array([*edges, *rest], dtype=f"u{width // 8}"))


def counts(limit: int, seed: int, count: int = 96) -> npt.NDArray[np.uint32]:
    return np.random.default_rng(seed).integers(0, limit, count).astype(np.uint32)


def check(rows: dict[str, Row], inputs: dict[str, Array], **options: str) -> None:
    results = compute([Op(body, width) for body, (width, _) in rows.items()], inputs, **options)
    columns = [array.tolist() for array in inputs.values()]
    for (body, (width, function)), got in zip(rows.items(), results, strict=True):
        for index, codes in enumerate(zip(*columns, strict=True)):
            expected = int(function(*codes)) % (1 << width)
            assert int(got[index]) == expected, f"{body} of {[hex(c) for c in codes]}"


def signed(width: int, code: int) -> int:
    return code - (1 << width) if code >> (width - 1) else code


@pytest.mark.parametrize("width", [16, 32, 64])
def test_bitwise_operations(width: int) -> None:
    rows: dict[str, Row] = {
        f"and.b{width} %d, %a, %b;": (width, lambda a, b: a & b),
        f"or.b{width} %d, %a, %b;": (width, lambda a, b: a | b),
        f"xor.b{width} %d, %a, %b;": (width, lambda a, b: a ^ b),
        f"not.b{width} %d, %a;": (width, lambda a, b: ~a),
        f"cnot.b{width} %d, %a;": (width, lambda a, b: a == 0),
        f"and.b{width} %d, %a, 0x0ff0;": (width, lambda a, b: a & 0xFF0),
    }
    check(rows, {"a": numbers(width, 1), "b": numbers(width, 2)})


@pytest.mark.parametrize("width", [16, 32, 64])
def test_shifts_beyond_the_width_leave_zero_or_the_sign(width: int) -> None:
    def left(a: int, n: int) -> int:
        return a << min(n, width)

    def right(a: int, n: int) -> int:
        return a >> min(n, width)

    def arithmetic(a: int, n: int) -> int:
        return signed(width, a) >> min(n, width)

    rows: dict[str, Row] = {f"shl.b{width} %d, %a, %n;": (width, left)}
    rows |= {f"shr.{kind}{width} %d, %a, %n;": (width, right) for kind in "bu"}
    rows[f"shr.s{width} %d, %a, %n;"] = (width, arithmetic)
    for places in (0, 3, width - 1, width, width + 7):
        rows[f"shl.b{width} %d, %a, {places};"] = (width, lambda a, n, p=places: left(a, p))
        rows[f"shr.u{width} %d, %a, {places};"] = (width, lambda a, n, p=places: right(a, p))
        rows[f"shr.s{width} %d, %a, {places};"] = (width, lambda a, n, p=places: arithmetic(a, p))
    amounts = counts(2 * width, 4)
    amounts[:3] = [0xFFFFFFFF, width, 1 << 31]
    check(rows, {"a": numbers(width, 3), "n": amounts})


def test_funnel_shifts_clamp_or_wrap() -> None:
    rows: dict[str, Row] = {}
    for mode, limit in (("clamp", lambda n: min(n, 32)), ("wrap", lambda n: n & 31)):
        rows[f"shf.l.{mode}.b32 %d, %a, %b, %n;"] = (
            32,
            lambda a, b, n, limit=limit: (b << 32 | a) << limit(n) >> 32,
        )
        rows[f"shf.r.{mode}.b32 %d, %a, %b, %n;"] = (
            32,
            lambda a, b, n, limit=limit: (b << 32 | a) >> limit(n),
        )
    amounts = counts(70, 7)
    amounts[0] = 0x80000021
    check(rows, {"a": numbers(32, 5), "b": numbers(32, 6), "n": amounts})


def test_lop3_evaluates_all_256_tables() -> None:
    def value(table: int, a: int, b: int, c: int) -> int:
        bits = ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1) for i in range(32))
        return sum((table >> index & 1) << i for i, index in enumerate(bits))

    inputs = {name: numbers(32, seed, 16) for seed, name in enumerate("abc")}
    rows: dict[str, Row] = {
        f"lop3.b32 %d, %a, %b, %c, {table};": (32, lambda a, b, c, t=table: value(t, a, b, c))
        for table in range(256)
    }
    check(rows, inputs)


def test_lop3_joins_its_result_with_a_predicate() -> None:
    body = (
        ".reg .pred %p, %q; .reg .b32 %x; setp.lt.u32 %q, %a, %b; "
        "lop3.{join}.b32 {d}|%p, %a, %b, %c, 0x80, %q; selp.b32 %d, 1, 0, %p;"
    )
    rows: dict[str, Row] = {
        body.format(join="or", d="%x"): (32, lambda a, b, c: (a & b & c != 0) or a < b),
        body.format(join="and", d="_"): (32, lambda a, b, c: (a & b & c != 0) and a < b),
    }
    inputs = {name: numbers(32, seed) & np.uint32(0x81) for seed, name in enumerate("abc")}
    check(rows, inputs, version="8.2")


MODES = {
    "f4e": lambda c: [(c + i) % 8 for i in range(4)],
    "b4e": lambda c: [(c - i) % 8 for i in range(4)],
    "rc8": lambda c: [c] * 4,
    "ecl": lambda c: [max(i, c) for i in range(4)],
    "ecr": lambda c: [min(i, c) for i in range(4)],
    "rc16": lambda c: [2 * (c & 1) + (i & 1) for i in range(4)],
}


def permuted(a: int, b: int, picks: list[int], signs: list[bool]) -> int:
    octets = [(b << 32 | a) >> 8 * pick & 0xFF for pick in picks]
    taken = [
        (0xFF if octet & 0x80 else 0) if sign else octet
        for octet, sign in zip(octets, signs, strict=True)
    ]
    return sum(octet << 8 * i for i, octet in enumerate(taken))


def generic(a: int, b: int, selector: int) -> int:
    nibbles = [selector >> 4 * i & 15 for i in range(4)]
    return permuted(a, b, [n & 7 for n in nibbles], [bool(n & 8) for n in nibbles])


def test_prmt_picks_bytes_in_every_mode() -> None:
    rows: dict[str, Row] = {"prmt.b32 %d, %a, %b, %n;": (32, generic)}
    for selector in (0x3210, 0x7531, 0x0C8F, 0xFFFF3210, 0xBA98):
        rows[f"prmt.b32 %d, %a, %b, {selector};"] = (
            32,
            lambda a, b, n, s=selector: generic(a, b, s),
        )
    for mode, picks in MODES.items():
        rows[f"prmt.b32.{mode} %d, %a, %b, %n;"] = (
            32,
            lambda a, b, n, p=picks: permuted(a, b, p(n & 3), [False] * 4),
        )
    check(rows, {"a": numbers(32, 8), "b": numbers(32, 9), "n": numbers(32, 10)})


@pytest.mark.parametrize("width", [32, 64])
def test_counting_finding_and_reversing_bits(width: int) -> None:
    def most(a: int) -> int:
        return a.bit_length() - 1

    def turned(a: int) -> int:
        number = signed(width, a)
        return ~number if number < 0 else number

    def amount(a: int) -> int:
        return width - 1 - most(a) if a else -1

    rows: dict[str, Row] = {
        f"popc.b{width} %d, %a;": (32, lambda a: bin(a).count("1")),
        f"clz.b{width} %d, %a;": (32, lambda a: width - a.bit_length()),
        f"brev.b{width} %d, %a;": (width, lambda a: int(f"{a:0{width}b}"[::-1], 2)),
        f"bfind.u{width} %d, %a;": (32, most),
        f"bfind.s{width} %d, %a;": (32, lambda a: most(turned(a))),
        f"bfind.shiftamt.u{width} %d, %a;": (32, amount),
        f"bfind.shiftamt.s{width} %d, %a;": (32, lambda a: amount(turned(a))),
    }
    check(rows, {"a": numbers(width, 11)})


def test_fns_counts_ones_up_and_down_from_a_base() -> None:
    def found(mask: int, base: int, offset: int) -> int:
        offset = signed(32, offset)
        if offset == 0:
            return base if mask >> base & 1 else -1
        path = range(base, 32) if offset > 0 else range(base, -1, -1)
        ones = [position for position in path if mask >> position & 1]
        return ones[abs(offset) - 1] if abs(offset) <= len(ones) else -1

    offsets = (counts(40, 13).astype(np.int64) - 20).astype(np.uint32)
    inputs = {"a": numbers(32, 12), "b": counts(32, 14), "n": offsets}
    check({"fns.b32 %d, %a, %b, %n;": (32, found)}, inputs)


@pytest.mark.parametrize("width", [32, 64])
def test_bit_fields_extract_and_insert(width: int) -> None:
    def extract(kind: str, a: int, position: int, length: int) -> int:
        last = width - 1
        if kind == "u" or length == 0:
            sign = 0
        else:
            sign = a >> min(position + length - 1, last) & 1
        bits = [
            a >> (position + i) & 1 if i < length and position + i <= last else sign
            for i in range(width)
        ]
        return sum(bit << i for i, bit in enumerate(bits))

    def insert(a: int, b: int, position: int, length: int) -> int:
        for i in range(length):
            if position + i < width:
                b = b & ~(1 << (position + i)) | (a >> i & 1) << (position + i)
        return b

    rows: dict[str, Row] = {
        f"bfe.{kind}{width} %d, %a, %n, %m;": (
            width,
            lambda a, b, n, m, kind=kind: extract(kind, a, n, m),
        )
        for kind in "us"
    }
    rows[f"bfi.b{width} %d, %a, %b, %n, %m;"] = (width, insert)
    for at, count in ((5, 9), (0, width), (width - 1, 1), (width - 4, 9), (3, 0)):
        for kind in "us":
            rows[f"bfe.{kind}{width} %d, %a, {at}, {count};"] = (
                width,
                lambda a, b, n, m, k=kind, at=at, count=count: extract(k, a, at, count),
            )
        rows[f"bfi.b{width} %d, %a, %b, {at}, {count};"] = (
            width,
            lambda a, b, n, m, at=at, count=count: insert(a, b, at, count),
        )
    n, m = counts(width + 8, 17), counts(width + 8, 18)
    n[:4], m[:4] = (255, 0, width, width - 1), (255, 255, 5, 9)
    check(rows, {"a": numbers(width, 15), "b": numbers(width, 16), "n": n, "m": m})


def test_words_take_positions_modulo_256() -> None:
    rows: dict[str, Row] = {"bfe.u32 %d, %a, %n, %m;": (32, lambda a, n, m: a >> 4 & 0xFF)}
    places = (np.full(96, 0x104, np.uint32), np.full(96, 0x208, np.uint32))
    check(rows, {"a": numbers(32, 19), "n": places[0], "m": places[1]})


def test_szext_and_bmsk_clamp_or_wrap() -> None:
    def extended(kind: str, mode: str, a: int, n: int) -> int:
        n = min(n, 32) if mode == "clamp" else n & 31
        if n == 0:
            return 0
        low = a & ((1 << n) - 1)
        return low - (1 << n) if kind == "s" and low >> (n - 1) else low

    def mask(mode: str, a: int, n: int) -> int:
        if mode == "clamp":
            a, n = min(a, 32), min(n, 32)
        else:
            a, n = a & 31, n & 31
        return ((1 << n) - 1) << a

    rows: dict[str, Row] = {}
    for mode in ("clamp", "wrap"):
        for kind in "us":
            rows[f"szext.{mode}.{kind}32 %d, %a, %n;"] = (
                32,
                lambda a, n, m, kind=kind, mode=mode: extended(kind, mode, a, n),
            )
        rows[f"bmsk.{mode}.b32 %d, %m, %n;"] = (32, lambda a, n, m, mode=mode: mask(mode, m, n))
    check(rows, {"a": numbers(32, 20), "n": counts(40, 21), "m": counts(40, 22)})


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("lop3.b32 %d, %a, %a, %a, 256;", "255"),
        ("shf.l.b32 %d, %a, %a, %a;", "clamp"),
        ("prmt.b32.f5e %d, %a, %a, %a;", "f5e"),
        ("bfe.b32 %d, %a, %a, %a;", "bfe"),
        ("and.u32 %d, %a, %a;", "and"),
    ],
)
def test_what_is_no_instruction_is_refused_by_name(body: str, named: str) -> None:
    with pytest.raises((PtxError, UnsupportedInstruction), match=named):
        compute([body], {"a": numbers(32, 23)}, legal=False)
