"""The table of formats: names, aliases, generic eXmY, registration."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch

from humming.errors import ConfigError
from humming.formats import table
from humming.formats.table import SCALE_FORMATS, all_formats, number_format, register_format

ALL = list(all_formats())


def test_the_table_has_every_format_of_the_mission():
    wanted = {f"{sign}{bits}" for sign in "su" for bits in range(1, 9)}
    wanted |= {f"e0m{mantissa}" for mantissa in range(1, 8)}
    wanted |= {"e2m1", "e2m3", "e3m2", "e3m4", "e4m3fn", "e5m2", *SCALE_FORMATS}
    assert wanted <= {fmt.name for fmt in ALL}
    assert set(SCALE_FORMATS) >= {"e8m0", "e4m3fn", "e5m2", "e5m3", "f16", "bf16", "f32"}


def test_no_spelling_means_two_formats():
    spellings = [s.lower() for fmt in ALL for s in {fmt.name, *fmt.aliases}]
    assert [s for s, count in Counter(spellings).items() if count > 1] == []


@pytest.mark.parametrize("fmt", ALL, ids=str)
def test_every_spelling_finds_its_format_in_any_case(fmt):
    for spelling in (fmt, fmt.name, *fmt.aliases):
        assert number_format(spelling) is fmt
        assert number_format(f" {str(spelling).upper()} ") is fmt


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.int8, "s8"),
        (torch.uint8, "u8"),
        (torch.float16, "f16"),
        (torch.bfloat16, "bf16"),
        (torch.float32, "f32"),
        (torch.float8_e4m3fn, "e4m3fn"),
        (torch.float8_e5m2, "e5m2"),
        (torch.float8_e4m3fnuz, "e4m3fnuz"),
        (torch.float8_e5m2fnuz, "e5m2fnuz"),
        (torch.float8_e8m0fnu, "e8m0"),
        (np.dtype(np.float16), "f16"),
        (np.dtype(np.int8), "s8"),
    ],
)
def test_dtypes_are_spellings(dtype, name):
    assert number_format(dtype).name == name


@pytest.mark.parametrize("name", ["e1m1", "e1m6", "e2m5", "e3m3", "e5m1", "e6m1", "e2m4"])
def test_a_generic_float_has_no_specials_and_the_usual_bias(name):
    fmt = number_format(name)
    exponent = int(name[1])
    assert str(fmt) == name
    assert fmt.bits == 1 + exponent + int(name[3])
    assert fmt.bias == 2 ** (exponent - 1) - 1
    assert np.isfinite(fmt.decode(np.arange(1 << fmt.bits))).all()
    assert number_format(name) == fmt
    assert fmt.name not in {f.name for f in ALL}


@pytest.mark.parametrize(
    "spelling",
    ["", "e4m4", "e8m1", "e0m8", "e03m4", "e4m03", "e7m0", "u9", "s0", "f64", "float64", "e3m4 x",
     "float8_e3m4", "float8_e4m3b11fnuz", None, 4, torch.float64, torch.int32],
)  # fmt: skip
def test_unknown_names_are_refused_and_named(spelling):
    with pytest.raises(ConfigError, match="a name that `humming formats` lists") as caught:
        number_format(spelling)
    assert caught.value.field == "format"
    assert caught.value.value == str(spelling)


@pytest.fixture
def scratch_table(monkeypatch):
    monkeypatch.setattr(table, "_BY_NAME", dict(table._BY_NAME))
    monkeypatch.setattr(table, "_FORMATS", dict(table._FORMATS))


@pytest.mark.usefixtures("scratch_table")
def test_a_plugin_may_add_a_format_and_the_same_row_again():
    added = dataclasses.replace(number_format("e2m2"), name="acme5", aliases=("acme",))
    register_format(added)
    register_format(added)
    assert number_format("ACME") is added
    assert list(all_formats())[-1] is added


@pytest.mark.usefixtures("scratch_table")
@pytest.mark.parametrize("change", [{"name": "e2m1"}, {"name": "x", "aliases": ("FP4",)}])
def test_a_taken_name_or_alias_is_refused_and_nothing_is_added(change):
    before = list(all_formats())
    with pytest.raises(ConfigError, match="a name not taken by"):
        register_format(dataclasses.replace(number_format("e2m2"), **change))
    assert list(all_formats()) == before
    assert number_format("fp4").name == "e2m1"
