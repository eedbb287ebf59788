"""Rendering: values become C++ literals, mistakes name template and line, and nothing is random."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from humming.errors import CompileError
from humming.jit import Renderer
from humming.jit.render import cpp, cxx


class Split(Enum):
    NONE = 0
    STREAM_K = 1


class Level(IntEnum):
    HIGH = 3


@dataclass(frozen=True)
class Context:
    name: str = "gemm"
    tile: tuple[int, ...] = (16, 128)
    weight: object = dataclasses.field(default_factory=lambda: SimpleNamespace(cxx="humming::U4"))
    split: Split = Split.STREAM_K


ENTRY = """{% import "core/macros.j2" as h -%}
// {{ name }}
{{ h.constant("kSplit", split) }}
using Weight = {{ weight | cxx }};
{% for size in tile %}
static_assert({{ size | cpp }} > 0);
{% endfor %}
"""
MACROS = """{% macro constant(name, value) %}
static constexpr auto {{ name }} = {{ value | cpp }};
{%- endmacro %}
"""


def renderer(tmp_path: Path, entry: str = ENTRY) -> Renderer:
    for name, text in (("core/macros.j2", MACROS), ("plug/deep/gemm.cu.j2", entry)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Renderer({"core": tmp_path / "core", "plug": tmp_path / "plug"})


def test_a_template_is_rendered_from_the_fields_of_its_context(tmp_path: Path) -> None:
    text = renderer(tmp_path).render("plug/deep/gemm.cu.j2", Context())
    assert text == (
        "// gemm\nstatic constexpr auto kSplit = Split::kStreamK;\nusing Weight = humming::U4;\n"
        "static_assert(16 > 0);\nstatic_assert(128 > 0);\n"
    )


def test_the_text_is_the_same_wherever_the_templates_lie(tmp_path: Path) -> None:
    texts = {renderer(tmp_path / place).render("plug/deep/gemm.cu.j2", Context()) for place in "ab"}
    assert len(texts) == 1
    assert str(tmp_path) not in texts.pop()


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        (True, "true"), (False, "false"), (0, "0"), (-7, "-7"),
        (2**31 - 1, "2147483647"), (2**31, "2147483648ll"), (-(2**31), "-2147483648ll"),
        (2**63 - 1, "9223372036854775807ll"), (2**63, "9223372036854775808ull"),
        (0.5, "0.5f"), (1.0, "1.0f"), (1e-05, "1e-05f"), (1e22, "1e+22f"), (-0.0, "-0.0f"),
        ("a\"b\\c\n?", '"a\\042b\\134c\\012\\077"'), ("é1", '"\\303\\2511"'),
        (Split.STREAM_K, "Split::kStreamK"), (Level.HIGH, "Level::kHigh"),
        ((1, (2, True)), "{1, {2, true}}"), ((), "{}"),
    ],
)  # fmt: skip
def test_values_become_literals(value: object, literal: str) -> None:
    assert cpp(value) == literal


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 2**64, -(2**63)])
def test_numbers_without_a_literal_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"literal|fit"):
        cpp(value)


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, object()])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match="cpp"):
        cpp(value)


def test_types_are_names() -> None:
    assert cxx("humming::Tile<16, int*>") == "humming::Tile<16, int*>"
    for wrong in ("int; evil()", "", "1a"):
        with pytest.raises(ValueError, match="not the name"):
            cxx(wrong)
    with pytest.raises(TypeError, match="no attribute cxx"):
        cxx(3)


@pytest.mark.parametrize(
    ("entry", "line", "why"),
    [
        ("ok\n{{ tiles }}\n", 2, "'tiles' is undefined"),
        ("ok\n\n{{ weight.cpp_name }}", 3, "has no attribute 'cpp_name'"),
        ("{{ tiles | cpp }}", 1, "Undefined"),
        ("{{ tiles | cxx }}", 1, "Undefined"),
        ("{{ weight | cpp }}", 1, "nothing that the filter cpp can write"),
        ("ok\n{% for %}", 2, "Expected an expression"),
        ("{{ lipsum() }}", 1, "'lipsum' is undefined"),
    ],
)
def test_a_mistake_names_template_and_line(tmp_path: Path, entry: str, line: int, why: str) -> None:
    with pytest.raises(CompileError) as caught:
        renderer(tmp_path, entry).render("plug/deep/gemm.cu.j2", Context())
    assert caught.value.source == f"plug/deep/gemm.cu.j2, line {line}"
    assert why in caught.value.log


def test_a_mistake_in_a_macro_names_the_macros_line(tmp_path: Path) -> None:
    entry = '{% import "core/macros.j2" as h %}{{ h.constant("k", none) }}'
    with pytest.raises(CompileError) as caught:
        renderer(tmp_path, entry).render("plug/deep/gemm.cu.j2", Context())
    assert caught.value.source == "core/macros.j2, line 2"


@pytest.mark.parametrize("name", ["plug/none.j2", "nobody/x.j2", "plug/../core/macros.j2", "x.j2"])
def test_a_template_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(CompileError, match=f"there is no template {name}"):
        renderer(tmp_path).render(name, Context())


@dataclass
class Thawed:
    name: str = "x"


@pytest.mark.parametrize("context", [Thawed(), {"name": "x"}, Context])
def test_a_context_is_a_frozen_dataclass(tmp_path: Path, context: Any) -> None:
    with pytest.raises(TypeError, match="frozen dataclass"):
        renderer(tmp_path).render("plug/deep/gemm.cu.j2", context)
