"""What the profile reader refuses, with all problems of a file at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from humming.errors import ProfileError
from humming.profiles import DeviceProfile, load_folder, load_profile

GOOD = """
schema = 1
title = "Some Device"

[match]
vendor = "some"
capability = [3, 1]
product = '^Some (Device|Thing)$'
reported = ["Some Device"]

[target]
arch = "some_31"
backend = "some"

[limits]
sm_count = 7
registers = 65_536

[rates]
dram_gbps = 12.5
tensor_tflops = { f16 = 1, s8 = 2.5 }

[features]
mma = ["mma"]
activations = ["f16", "s8"]
tma = false
pdl = true

[[tuning.some]]
when = { a = "f16", m = [1, 16] }
use = { tile = [16, 64, 64] }
source = "benchmarks/x.json"

[[tuning.some]]
when = { a = "f16" }
use = { tile = [64, 64, 64] }
source = "benchmarks/x.json"

[sources]
limits = "the manual"
rates = "the data sheet"
"rates.tensor_tflops.s8" = "the other data sheet"
"""


def read(folder: Path, text: str, name: str = "some-device.toml") -> DeviceProfile:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return load_profile(file)


def problems(folder: Path, text: str, name: str = "some-device.toml") -> tuple[str, ...]:
    with pytest.raises(ProfileError) as caught:
        read(folder, text, name)
    assert str(folder / name) in str(caught.value)
    for problem in caught.value.problems:
        assert problem in str(caught.value)
    return caught.value.problems


def test_a_good_profile_says_what_the_file_says(tmp_path: Path) -> None:
    profile = read(tmp_path, GOOD)
    assert (profile.name, profile.title, profile.vendor) == ("some-device", "Some Device", "some")
    assert (profile.capability, profile.match.keys) == ((3, 1), 3)
    assert (profile.target.arch, profile.target.backend) == ("some_31", "some")
    assert (profile.limits.sm_count, profile.limits.threads) == (7, None)
    assert profile.rates.dram_gbps == 12.5
    assert dict(profile.rates.tensor_tflops) == {"f16": 1.0, "s8": 2.5}
    assert (profile.mma, profile.activations) == (("mma",), ("f16", "s8"))
    assert (profile.features.tma, profile.features.pdl) == (False, True)
    first, second = profile.tuning["some"]
    assert first.when["m"] == [1, 16]
    assert second.use == {"tile": [64, 64, 64]}
    assert profile.sources["limits"] == "the manual"


#: What is changed, into what, and the one problem that this makes.
CHANGES = [
    ("schema = 1", "", "schema: missing"),
    ("schema = 1", "schema = 2", "schema: 2: this version of humming reads 1"),
    ("schema = 1", "schema = true", "schema: True: expected a whole number"),
    ('title = "Some Device"', "", "title: missing"),
    ('title = "Some Device"', 'title = " "', "title: empty"),
    ('title = "Some Device"', "title = 3", "title: 3: expected a text"),
    ('title = "Some Device"', 'title = "x"\ncolour = 1', "colour: unknown key"),
    ('vendor = "some"', "", "match.vendor: missing"),
    ("[3, 1]", "[3]", "match.capability: [3]: expected [major, minor]"),
    ("[3, 1]", "[3, true]", "match.capability: [3, True]"),
    ("[3, 1]", "3.1", "match.capability: 3.1"),
    ("'^Some (Device|Thing)$'", "'Some Device'", "match.product: 'Some Device': expected an anch"),
    ("'^Some (Device|Thing)$'", "'^Some (Device$'", "match.product: '^Some (Device$': missing )"),
    ('reported = ["Some Device"]', "", "match.reported: missing"),
    ('["Some Device"]', '["Any Device"]', "match.reported: 'Any Device' does not match"),
    ('["Some Device"]', '["Some Device", 1]', "match.reported: ['Some Device', 1]: expected a li"),
    ('arch = "some_31"', 'arhc = "some_31"', "target.arhc: unknown key; known here: arch, backend"),
    ("sm_count = 7", "sm_count = 7.0", "limits.sm_count: 7.0: expected a whole number"),
    ("sm_count = 7", "sm_count = -7", "limits.sm_count: -7: expected a whole number that is not"),
    ("sm_count = 7", 'sm_count = "7"', "limits.sm_count: '7': expected a whole number"),
    ("12.5", "0", "rates.dram_gbps: 0: expected a positive number"),
    ("12.5", "inf", "rates.dram_gbps: inf: expected a positive number"),
    ("12.5", "nan", "rates.dram_gbps: nan: expected a positive number"),
    ("f16 = 1,", "f16 = 1, bf16 = 1,", "rates.tensor_tflops.bf16: not listed in features.activ"),
    ('mma = ["mma"]', "", "features.mma: missing"),
    ('mma = ["mma"]', 'mma = ["mma", "mma"]', "features.mma: ['mma', 'mma']: an entry appears twi"),
    ('["f16", "s8"]', '["f16", "s8", "e9m9"]', "features.activations: format='e9m9'"),
    ('["f16", "s8"]', '["f16", "s8", "e4m3"]', "features.activations: 'e4m3' is spelled 'e4m3fn'"),
    ("tma = false", "", "features.tma: missing: expected true or false"),
    ("tma = false", "tma = 0", "features.tma: 0: expected true or false"),
    ('use = { tile = [16, 64, 64] }', "use = {}", "tuning.some[0].use: empty"),
    ('source = "benchmarks/x.json"\n\n[s', 'sauce = ""\n\n[s', "tuning.some[1].source: missing"),
    ("m = [1, 16]", "m = [16, 1]", "tuning.some[0].when.m: [16, 1] is empty: the row can never"),
    ("m = [1, 16]", "m = [1, 2, 3]", "tuning.some[0].when.m: [1, 2, 3]: expected a range"),
    ("m = [1, 16]", "m = 1.5", "tuning.some[0].when.m: 1.5: expected a text, a number or a range"),
    (', m = [1, 16]', "", "tuning.some[1].when: row 0 matches whatever this row does"),
    ('limits = "the manual"', "", "limits.sm_count: no source"),
    ('limits = "the manual"', 'limits = ""', "sources.limits: empty"),
    ('rates = "the data sheet"', "", "rates.dram_gbps: no source: add 'rates.dram_gbps' or"),
    ('"rates.tensor_tflops.s8"', '"rates.l2_mib"', "sources.rates.l2_mib: there is no such numb"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "problem"), CHANGES)
def test_one_mistake_is_told_with_its_key_path(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    assert old in GOOD
    found = problems(tmp_path, GOOD.replace(old, new, 1))
    assert any(text.startswith(problem) for text in found), found


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("sm_count = 7", "sm_counts = 7").replace("[3, 1]", "[3]")
    text = text.replace("tma = false", "tma = 0").replace('"f16", "s8"', '"f17", "s8"')
    found = problems(tmp_path, text)
    starts = ("limits.sm_counts:", "match.capability:", "features.tma:", "features.activations:")
    for start in (*starts, "rates.tensor_tflops.f16:"):
        assert any(problem.startswith(start) for problem in found), start
    assert len(found) == 5


@pytest.mark.parametrize("name", ["Some.toml", "-x.toml", "a b.toml", "a_b.toml"])
def test_a_file_name_that_is_no_profile_name_is_refused(tmp_path: Path, name: str) -> None:
    assert "file name" in problems(tmp_path, GOOD, name)[0]


def test_reported_names_without_an_expression_are_refused(tmp_path: Path) -> None:
    text = GOOD.replace("product = '^Some (Device|Thing)$'", "")
    assert problems(tmp_path, text) == ("match.reported: given without product",)


def test_a_row_for_part_of_an_earlier_range_can_never_match(tmp_path: Path) -> None:
    text = GOOD.replace('when = { a = "f16" }', 'when = { a = "f16", m = [2, 3], k = 9 }')
    assert "row 0 matches" in problems(tmp_path, text)[0]
    text = GOOD.replace('when = { a = "f16" }', 'when = { a = "f16", m = 16 }')
    assert "row 0 matches" in problems(tmp_path, text)[0]


@pytest.mark.parametrize("condition", ["m = [2, 17]", "m = 17", 'm = "x"', "k = 4"])
def test_a_row_that_an_earlier_one_leaves_something_is_fine(tmp_path: Path, condition: str) -> None:
    text = GOOD.replace('when = { a = "f16" }', f'when = {{ a = "f16", {condition} }}')
    assert len(read(tmp_path, text).tuning["some"]) == 2


@pytest.mark.parametrize("text", ["a = ", "a = 1\na = 2", "[x"])
def test_what_is_no_toml_is_refused(tmp_path: Path, text: str) -> None:
    assert len(problems(tmp_path, text)) == 1


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ProfileError, match="utf-8"):
        load_profile(file)


def test_a_missing_file_or_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no such folder"):
        load_folder(tmp_path / "nothing")
    with pytest.raises(ProfileError, match=r"x\.toml"):
        load_profile(tmp_path / "x.toml")


def test_a_folder_is_read_in_order_of_names_and_ignores_other_files(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.toml").write_text(GOOD, encoding="utf-8")
    (tmp_path / "README.md").write_text("hello", encoding="utf-8")
    assert [profile.name for profile in load_folder(tmp_path)] == ["a", "b"]
