"""The parts of tests/sim/silicon: a changed, missing or wrong recording never passes unseen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from silicon import compare, elements, recording, values
from silicon.case import EXACT, Bytes, Case, Exact, Memory, Output, SameNumber, Scalar, Within
from silicon.catalogue import FAMILIES, family

NAN, OTHER_NAN, INFINITY, ONE = 0x7FC00000, 0xFFC00001, 0x7F800000, 0x3F800000


def words(*numbers: int) -> Bytes:
    return np.array(numbers, np.uint32).view(np.uint8)


def small_case(*numbers: int, check: object = EXACT) -> Case:
    output = Output("row", 0, 0, "uint32", len(numbers), check)  # type: ignore[arg-type]
    return Case("kit/one", "ptx", (Memory(np.zeros(8)), Scalar(3)), (output,), (32, 1, 1))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_file_holds_exactly_the_cases_of_its_family(name: str) -> None:
    about = recording.about(name)
    assert about["device"] == "NVIDIA H200"
    assert {"driver", "cuda", "date"} <= set(about)
    assert about["digests"] == {case.name: case.digest() for case in family(name).values()}


def test_there_are_no_other_files_and_they_stay_small() -> None:
    files = list(Path(recording.FOLDER).iterdir())
    assert sorted(path.stem for path in files) == sorted(FAMILIES)
    assert sum(path.stat().st_size for path in files) < 4_000_000


def test_every_case_belongs_to_the_family_that_its_name_says() -> None:
    for name in FAMILIES:
        assert {case.family for case in family(name).values()} == {name}


@pytest.mark.parametrize(
    "change",
    [
        lambda case: replace(case, ptx=case.ptx + " "),
        lambda case: replace(case, arguments=(*case.arguments, Scalar(1))),
        lambda case: replace(case, block=(256, 1, 1)),
        lambda case: replace(case, shared=16),
    ],
    ids=["ptx", "arguments", "block", "shared"],
)
def test_a_changed_case_asks_to_be_recorded_again(change: object) -> None:
    case = family("warp")["warp/votes"]
    assert recording.is_recorded("warp", case)
    with pytest.raises(recording.NotRecorded, match=r"has changed.*silicon\.record"):
        recording.recorded("warp", change(case))  # type: ignore[operator]


def test_changed_input_bytes_ask_too() -> None:
    case = family("warp")["warp/votes"]
    first, second, *rest = case.arguments
    assert isinstance(second, Memory)
    changed = replace(case, arguments=(first, Memory(second.data + 1), *rest))
    assert not recording.is_recorded("warp", changed)


@pytest.mark.parametrize("name", ["warp", "no_such_family"])
def test_a_case_that_was_never_recorded_is_no_pass(name: str) -> None:
    with pytest.raises(recording.NotRecorded, match="has no recording"):
        recording.recorded(name, small_case(1))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_packed_outputs_come_back(dtype: str) -> None:
    outputs = (Output("a", 0, 0, dtype, 37), Output("b", 0, 512, "uint16", 5))
    size = 37 * np.dtype(dtype).itemsize + 10
    for data in (
        values.noise(1, size, 8),
        np.arange(size, dtype=np.uint8),
        np.zeros(size, np.uint8),
    ):
        case = Case("kit/pack", "", (), outputs, (32, 1, 1))
        assert recording.unpack(case, recording.pack(case, data)).tolist() == data.tolist()


def test_every_form_of_packing_comes_back() -> None:
    case = small_case(*range(9))
    data = words(5, 4, 9, 2**32 - 1, 0, 7, 7, 7, 1)
    for how in (recording.PLAIN, recording.PLANES, recording.STEPS):
        packed = recording.packed_as(case, data, how)
        assert recording.unpack(case, packed).tolist() == data.tolist()


def test_one_wrong_bit_is_found_and_named() -> None:
    case = small_case(0, 0, 0, 0)
    lines = compare.disagreements(case, words(1, 2, 3, 4), words(1, 2, 7, 5))
    assert lines == ["row: 2 of 4 differ, first at 2: recorded 0x00000003, got 0x00000007"]


def test_a_disagreement_in_a_later_output_is_found() -> None:
    outputs = (Output("a", 0, 0, "uint32", 1), Output("b", 0, 16, "uint16", 2))
    case = Case("kit/two", "", (), outputs, (32, 1, 1))
    first, second = words(1, 2 << 16 | 3), words(1, 9 << 16 | 3)
    assert [line[:6] for line in compare.disagreements(case, first, second)] == ["b: 1 o"]


@pytest.mark.parametrize(
    ("format", "first", "second", "same"),
    [
        ("f32", NAN, OTHER_NAN, True),
        ("f32", NAN, INFINITY, False),
        ("f32", 0x80000000, 0, False),
        ("f16x2", 0x7E003C00, 0xFE013C00, True),
        ("f16x2", 0x7E003C00, 0x7E003C01, False),
        ("bf16x2", 0x7FC03F80, 0x7F803F80, False),
    ],
)
def test_same_number_forgives_nan_payloads_only(
    format: str, first: int, second: int, same: bool
) -> None:
    case = small_case(0, check=SameNumber(format))
    assert (compare.disagreements(case, words(first), words(second)) == []) is same


def bound(reference: float, allowed: float) -> Within:
    return Within("f32", lambda: (np.array([reference]), np.array([allowed])), "kit")


@pytest.mark.parametrize(
    ("recorded", "got", "check", "passes"),
    [
        (ONE, ONE + 1, bound(1.0, 2e-7), True),
        (ONE, ONE + 2, bound(1.0, 2e-7), False),
        (ONE + 2, ONE, bound(1.0, 2e-7), False),
        (NAN, NAN, bound(1.0, 2e-7), False),
        (NAN, OTHER_NAN, bound(np.nan, 1.0), True),
        (NAN, ONE, bound(np.nan, 1.0), False),
        (INFINITY, INFINITY, bound(2.0**128, 0.0), True),
        (INFINITY, 0x7F7FFFFF, bound(2.0**128, 2.0**104), True),
        (INFINITY, 0x7F7FFFFF, bound(2.0**128, 2.0**103), False),
        (INFINITY, 0xFF800000, bound(np.inf, 1.0), False),
    ],
)
def test_bounds_hold_for_both_sides(recorded: int, got: int, check: Within, passes: bool) -> None:
    case = small_case(0, check=check)
    assert (compare.disagreements(case, words(recorded), words(got)) == []) is passes


def test_the_generator_gives_the_same_numbers_for_ever() -> None:
    assert values.noise(7, 2).tolist() == [15560780269448554835, 17941688219713927643]
    assert values.noise(7, 1, 8).tolist() == [15560780269448554835 >> 56]


@pytest.mark.parametrize("format", ["f16", "bf16", "tf32", "e4m3", "e5m2", "f32", "f64"])
def test_encoded_numbers_decode_to_themselves(format: str) -> None:
    numbers = np.array([0.0, 1.0, -1.0, 3.0, -4.0, 0.5, 1.5, -0.25])
    assert elements.decode(elements.encode(numbers, format), format).tolist() == numbers.tolist()


def test_outputs_that_allow_something_say_why() -> None:
    checks = [
        output.check for name in FAMILIES for c in family(name).values() for output in c.outputs
    ]
    exact = sum(isinstance(check, Exact) for check in checks)
    assert exact > len(checks) * 3 // 4
    assert all(check.why for check in checks if isinstance(check, Within))
