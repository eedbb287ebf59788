"""Rules of bulk copies, of what may be done with a tensor map, and the arithmetic of reductions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from humming_sim.tma.bulk import (
    REDUCE_GLOBAL,
    REDUCE_SHARED,
    REDUCE_TENSOR,
    copied_bytes,
    copy_problem,
    initialise_problem,
    reduction_refusal,
)
from humming_sim.tma.elements import Element
from humming_sim.tma.modes import Swizzle
from humming_sim.tma.reductions import STORAGE, reduction
from humming_sim.tma.tensor_map import TensorMap
from humming_sim.tma.uses import Direction, TensorUse, reduction_type, target_problem, use_problem

GLOBAL = 0x7F00_0000_0000


def array(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


# ---------------------------------------------------------------------------------------- copies


def test_copies_of_multiples_of_16_are_fine() -> None:
    spaces = ("shared", "global")
    assert copy_problem(array(1024, 2048), array(GLOBAL, 32), array(0, 160), spaces) is None


@pytest.mark.parametrize(
    ("copy", "what", "space"),
    [((1032, 0, 16), "destination", "shared"), ((1024, 8, 16), "source", "global")],
)
def test_a_misaligned_end_is_named_with_its_space(
    copy: tuple[int, int, int], what: str, space: str
) -> None:
    sizes = array(16, copy[2])
    problem = copy_problem(
        array(1024, copy[0]), array(0, copy[1]), sizes, spaces=("shared", "global")
    )
    assert problem is not None
    assert (problem.check, problem.index, problem.space) == ("alignment", 1, space)
    assert what in problem.message


def test_a_size_that_16_does_not_divide_is_named() -> None:
    problem = copy_problem(array(0), array(0), array(24), ("global", "shared"))
    assert problem is not None
    assert "24 bytes" in problem.message


@pytest.mark.parametrize(
    ("address", "size", "fine"),
    [
        (1024, 8, True),
        (1032, 16777216, True),
        (1028, 8, False),
        (1024, 12, False),
        (0, 16777224, False),
    ],
)
def test_st_bulk_takes_multiples_of_8(address: int, size: int, fine: bool) -> None:
    assert (initialise_problem(array(address), array(size)) is None) == fine


@given(st.integers(0, 65535), st.integers(0, 4))
def test_a_byte_mask_repeats_every_16_bytes(mask: int, units: int) -> None:
    expected = [bool(mask >> (k % 16) & 1) for k in range(16 * units)]
    assert copied_bytes(mask, 16 * units).tolist() == expected


@pytest.mark.parametrize(
    ("table", "how", "type_", "fine"),
    [
        (REDUCE_SHARED, "add", "u64", True),
        (REDUCE_SHARED, "add", "f32", False),
        (REDUCE_SHARED, "min", "u64", False),
        (REDUCE_SHARED, "xor", "b64", False),
        (REDUCE_GLOBAL, "add", "s64", False),
        (REDUCE_GLOBAL, "add", "f64", True),
        (REDUCE_GLOBAL, "max", "s64", True),
        (REDUCE_GLOBAL, "max", "f32", False),
        (REDUCE_GLOBAL, "and", "b64", True),
        (REDUCE_GLOBAL, "inc", "s32", False),
        (REDUCE_TENSOR, "mul", "u32", False),
    ],
)
def test_reductions_exist_for_the_types_of_the_manual(
    table: dict[str, frozenset[str]], how: str, type_: str, fine: bool
) -> None:
    refusal = reduction_refusal(table, how, type_)
    assert (refusal is None) == fine
    assert fine or f".{how}" in str(refusal)


# ------------------------------------------------------------------------------------------ uses


def make(**changes: Any) -> TensorMap:
    base: dict[str, Any] = {
        "element": Element.FLOAT16,
        "address": GLOBAL,
        "dims": (256, 64),
        "strides": (512,),
        "box": (64, 8),
    }
    return TensorMap(**(base | changes))


PADDED = {"element": Element._16U4_ALIGN16B, "strides": (128,), "box": (128, 8)}
SIX = {"element": Element._16U6_ALIGN16B, "strides": (192,), "box": (128, 8)}
LOAD, STORE = TensorUse(Direction.LOAD, 2), TensorUse(Direction.STORE, 2)
GATHER = TensorUse(Direction.LOAD, 2, gathered=True)


def problem(
    m: TensorMap, use: TensorUse, coordinates: tuple[int, ...], shared: int | None = 1024
) -> str:
    shares = None if shared is None else array(shared, 1024)
    points = np.array([coordinates, [0] * len(coordinates)], dtype=np.int64)
    found = use_problem(m, use, points, shares)
    return "" if found is None else f"{found.check}: {found.message}"


FINE = [
    (make(), LOAD, (8, 3), 1152),
    (make(), LOAD, (-8, -3), 1024),
    (make(), STORE, (248, 100), 1024),
    (make(box=(64, 1)), GATHER, (8, 5, -1, 900, 7), 1024),
    (make(**PADDED), LOAD, (128, 0), 1024),
    (make(**SIX), STORE, (128, 0), 1024),
    (make(**SIX, swizzle=Swizzle.B128_ATOM_64B), STORE, (0, 0), 1024),
    (make(), TensorUse(Direction.PREFETCH, 2), (8, 3), None),
    (make(), TensorUse(Direction.REDUCE, 2, operation="add"), (8, 3), 1024),
]


@pytest.mark.parametrize("case", FINE)
def test_uses_that_the_manual_allows_are_no_problem(case: Any) -> None:
    assert problem(*case) == ""


NOT_FINE = [
    (
        make(),
        LOAD,
        (8, 3),
        1040,
        "alignment: a tile in shared memory must start at",
    ),
    (make(), LOAD, (4, 3), 1024, "alignment: a box must start at a multiple of 16 bytes"),
    (make(element=Element.INT32), LOAD, (2, 0), 1024, "at a multiple of 4 for INT32, not {2, 0}"),
    (make(**PADDED), LOAD, (64, 0), 1024, "at a multiple of 128 for 16U4_ALIGN16B"),
    (make(), TensorUse(Direction.LOAD, 3), (0, 0, 0), 1024, "descriptor: the instruction is .3d"),
    (make(), GATHER, (0, 1, 2, 3, 4), 1024, "need a box of one row"),
    (make(), STORE, (-8, 0), 1024, "bounds: the coordinates of a store must not be negative"),
    (make(), STORE, (0, -1), 1024, "not be negative: {0, -1}"),
    (make(**PADDED), STORE, (0, 0), 1024, "can only be loaded"),
    (make(**SIX, swizzle=Swizzle.B128_ATOM_64B), LOAD, (0, 0), 1024, "can only be stored"),
    (
        make(element=Element.FLOAT32),
        TensorUse(Direction.REDUCE, 2, operation="min"),
        (0, 0),
        1024,
        ".min of FLOAT32; it takes tensors of bf16, f16",
    ),
    (
        make(element=Element._16U4_ALIGN8B),
        TensorUse(Direction.REDUCE, 2, operation="and"),
        (0, 0),
        1024,
        "it takes tensors of b32, b64",
    ),
]


@pytest.mark.parametrize("case", NOT_FINE)
def test_uses_that_the_manual_forbids_are_problems(case: Any) -> None:
    *use, message = case
    assert message in problem(*use)


@pytest.mark.parametrize(
    ("element", "operation", "type_"),
    [
        (Element.UINT32, "add", "u32"),
        (Element.INT32, "xor", "b32"),
        (Element.UINT64, "or", "b64"),
        (Element.INT64, "max", "s64"),
        (Element.INT64, "add", None),
        (Element.FLOAT32_FTZ, "add", "f32.ftz"),
        (Element.TFLOAT32, "add", "f32"),
        (Element.UINT8, "add", None),
        (Element.INT32, "inc", None),
    ],
)
def test_tensors_are_reduced_in_the_type_of_their_elements(
    element: Element, operation: str, type_: str | None
) -> None:
    assert reduction_type(element, operation) == type_


def test_devices_before_blackwell_take_neither_sub_byte_elements_nor_atoms() -> None:
    atom = make(swizzle=Swizzle.B128_ATOM_32B)
    for m in (atom, make(**PADDED)):
        assert "10.0" in str(target_problem(m, LOAD, 90))
        assert target_problem(m, LOAD, 100) is None
        assert target_problem(m, STORE, 120) is None
        to_cluster = TensorUse(Direction.LOAD, 2, to_cluster=True)
        assert ".shared::cta" in str(target_problem(m, to_cluster, 120))
    assert target_problem(make(), LOAD, 90) is None


# ------------------------------------------------------------------------------------ reductions


def combine(how: str, type_: str, old: int, new: int) -> int:
    dtype = STORAGE[type_]
    with np.errstate(all="ignore"):
        result = reduction(how, type_)(np.array([old], dtype), np.array([new], dtype))
    assert result.dtype == dtype
    return int(result[0])


def signed(value: int, bits: int) -> int:
    return value - (value >> (bits - 1) << bits)


def whole(how: str, type_: str, old: int, new: int) -> int:
    """Integer reductions by their definition (PTX ISA 9.0, 9.7.13.6)."""
    bits = int(type_[1:])
    order = (lambda v: signed(v, bits)) if type_[0] == "s" else (lambda v: v)
    return {
        "add": (old + new) % (1 << bits),
        "min": min(old, new, key=order),
        "max": max(old, new, key=order),
        "inc": 0 if old >= new else old + 1,
        "dec": new if old == 0 or old > new else old - 1,
        "and": old & new,
        "or": old | new,
        "xor": old ^ new,
    }[how]


WHOLE = [(how, t) for how, types in REDUCE_GLOBAL.items() for t in sorted(types) if t[0] in "usb"]
WHOLE = [(how, t) for how, t in WHOLE if t != "bf16"]


@pytest.mark.parametrize(("how", "type_"), WHOLE)
@given(data=st.data())
def test_whole_numbers_are_combined_by_definition(how: str, type_: str, data: Any) -> None:
    top = (1 << int(type_[1:])) - 1
    value = st.one_of(st.integers(0, top), st.sampled_from([0, 1, top, top // 2, top // 2 + 1]))
    old, new = data.draw(value), data.draw(value)
    assert combine(how, type_, old, new) == whole(how, type_, old, new)


FLOATS: dict[str, tuple[Any, int, int]] = {
    "f16": (np.float16, 16, 0x7FFF),
    "bf16": (ml_dtypes.bfloat16, 16, 0x7FFF),
    "f32": (np.float32, 32, 0x7FFF_FFFF),
    "f64": (np.float64, 64, 0xFFF8_0000_0000_0000),
}


def number(type_: str, bits: int) -> float:
    dtype, width, _ = FLOATS[type_]
    return float(np.array([bits], f"u{width // 8}").view(dtype)[0])


def nearest(type_: str, exact: Fraction) -> int:
    """Bits of the nearest float, ties to even, found by bisection over the non-negative floats."""
    _, width, _ = FLOATS[type_]
    magnitude, sign = abs(exact), int(exact < 0) << (width - 1)
    infinity = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F80_0000, "f64": 0x7FF0 << 48}[type_]
    low, high = 0, infinity
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (middle, high) if Fraction(number(type_, middle)) <= magnitude else (low, middle)
        )
    below = Fraction(number(type_, low))
    step = below - Fraction(number(type_, low - 1)) if high == infinity else None
    above = below + step if step is not None else Fraction(number(type_, high))
    gap = 2 * magnitude - below - above
    return sign | (high if gap > 0 or (gap == 0 and low & 1) else low)


@pytest.mark.parametrize("type_", FLOATS)
@given(data=st.data())
def test_sums_of_floats_are_rounded_once_to_nearest_even(type_: str, data: Any) -> None:
    _, width, nan = FLOATS[type_]
    value = st.one_of(st.integers(0, (1 << width) - 1), st.integers(0, 3))
    old, new = data.draw(value), data.draw(value)
    a, b = number(type_, old), number(type_, new)
    result = combine("add", type_, old, new)
    if math.isnan(a) or math.isnan(b):
        kept = new if math.isnan(b) else old
        assert result == (kept if type_ == "f64" else nan)
    elif math.isinf(a) or math.isinf(b):
        assert result == (nan if a == -b else new if math.isinf(b) else old)
    elif a + b == 0 and Fraction(a) + Fraction(b) == 0:
        assert result == (old & new & (1 << (width - 1)))
    else:
        assert result == nearest(type_, Fraction(a) + Fraction(b))


def test_flushing_sums_of_f32_neither_read_nor_write_subnormals() -> None:
    assert combine("add", "f32", 0x80000001, 0x00710A00) == 0x007109FF
    assert combine("add", "f32.ftz", 0x80000001, 0x00710A00) == 0
    assert combine("add", "f32.ftz", 0x00800001, 0x80800000) == 0


@pytest.mark.parametrize("type_", ["f16", "bf16"])
@pytest.mark.parametrize("how", ["min", "max"])
@given(data=st.data())
def test_extremes_of_floats_prefer_numbers_and_order_zeros(type_: str, how: str, data: Any) -> None:
    value = st.one_of(st.integers(0, 65535), st.sampled_from([0, 0x8000, 0x7C00, 0x7F80, 0xFFFF]))
    old, new = data.draw(value), data.draw(value)
    a, b = number(type_, old), number(type_, new)
    if math.isnan(a) or math.isnan(b):
        expected = old if not math.isnan(a) else new if not math.isnan(b) else 0x7FFF
    else:
        pick = min if how == "min" else max
        order = {bits: (value, not bits >> 15) for bits, value in ((old, a), (new, b))}
        expected = pick((old, new), key=lambda bits: order[bits])
    assert combine(how, type_, old, new) == expected
