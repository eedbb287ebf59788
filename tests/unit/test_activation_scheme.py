"""ActivationScheme: its one spelling, its aliases, its refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from humming.errors import ConfigError
from humming.formats.activation import ACTIVATION_ALIASES, ActivationScheme
from humming.formats.table import SCALE_FORMATS, all_formats, number_format

CODES = [f.name for f in all_formats() if 2 <= f.bits <= 8 and f.signed]


@st.composite
def spellings(draw) -> str:
    """The whole grammar, in its canonical form."""
    if draw(st.booleans()) and draw(st.booleans()):
        return draw(st.sampled_from(["f16", "bf16", "f32"]))
    group = draw(st.integers(1, 9999))
    granularity = draw(st.sampled_from(["tensor", "token", f"g{group}"]))
    second = draw(st.sampled_from(["", "tensor", "token"])) if granularity[0] == "g" else ""
    static = draw(st.booleans()) and (second or granularity) == "tensor"
    parts = [draw(st.sampled_from(CODES)), granularity, draw(st.sampled_from(SCALE_FORMATS)),
             second, "static" if static else ""]  # fmt: skip
    return "-".join(part for part in parts if part)


@given(spellings())
def test_str_is_the_inverse_of_parse(text):
    scheme = ActivationScheme.parse(text)
    assert str(scheme) == text
    assert ActivationScheme.parse(str(scheme)) == scheme
    assert ActivationScheme.parse(scheme) is scheme
    assert ActivationScheme.parse(f" {text.upper()} ") == scheme
    assert scheme.is_quantized == (text not in ("f16", "bf16", "f32"))


@given(spellings())
def test_parse_reads_the_parts_where_they_stand(text):
    scheme = ActivationScheme.parse(text)
    parts = text.removesuffix("-static").split("-")
    parts += [""] * (4 - len(parts))
    assert scheme.static == text.endswith("-static")
    assert scheme.format.name == parts[0]
    assert scheme.granularity == parts[1]
    assert (scheme.scale.name if scheme.scale else "") == parts[2]
    assert scheme.second == parts[3]
    assert scheme.group_size == (int(parts[1][1:]) if parts[1].startswith("g") else 0)


@pytest.mark.parametrize("alias", ACTIVATION_ALIASES)
def test_every_alias_means_its_scheme(alias):
    assert str(ActivationScheme.parse(alias)) == ACTIVATION_ALIASES[alias]
    assert ActivationScheme.parse(alias.upper()) == ActivationScheme.parse(alias)


@pytest.mark.parametrize(
    ("bare", "text"),
    [
        ("e4m3fn", "e4m3fn-token-f32"),
        ("e5m2", "e5m2-token-f32"),
        ("s8", "s8-token-f32"),
        ("s4", "s4-token-f32"),
        ("e2m1", "e2m1-g16-e4m3fn-token"),
        ("e0m3", "e0m3-g16-e4m3fn-token"),
        ("float16", "f16"),
        (number_format("bf16"), "bf16"),
        (number_format("e4m3fn"), "e4m3fn-token-f32"),
    ],
)
def test_a_bare_format_gets_its_usual_scales(bare, text):
    assert str(ActivationScheme.parse(bare)) == text


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ("", "format", "a name that `humming formats` lists"),
        ("e9m9", "format", "a name that `humming formats` lists"),
        ("static", "format", "a name that `humming formats` lists"),
        ("s8-token", "activation", "FORMAT[-GRANULARITY-SCALE[-SECOND]][-static]"),
        ("s8-g32-f32-token-token", "activation", "FORMAT[-GRANULARITY-SCALE"),
        ("s8-token-f99", "format", "a name that `humming formats` lists"),
        ("s8-token-u8", "scale", "one of e8m0, e4m3fn"),
        ("s8-channel-f32", "granularity", "tensor, token or gG"),
        ("s8-g0-f32", "granularity", "tensor, token or gG"),
        ("s8-g032-f32", "granularity", "tensor, token or gG"),
        ("s8-gg32-f32", "granularity", "tensor, token or gG"),
        ("s8-g-f32", "granularity", "tensor, token or gG"),
        ("u8-token-f32", "format", "a signed format of 2 to 8 bits"),
        ("e8m0-token-f32", "format", "a signed format of 2 to 8 bits"),
        ("s1-token-f32", "format", "a signed format of 2 to 8 bits"),
        ("f16-token-f32", "format", "a signed format of 2 to 8 bits"),
        ("f16-static", "activation", "a granularity and a scale format"),
        ("s8-token-f32-token", "second", "tensor or token, over groups"),
        ("e2m1-g16-e4m3fn-channel", "second", "tensor or token, over groups"),
        ("s8-token-f32-static", "static", "a stored scale per tensor only"),
        ("s8-g32-f32-static", "static", "a stored scale per tensor only"),
        ("e2m1-g16-e4m3fn-token-static", "static", "a stored scale per tensor only"),
    ],
)
def test_what_is_no_scheme_is_refused_by_field(text, field, message):
    with pytest.raises(ConfigError) as caught:
        ActivationScheme.parse(text)
    assert caught.value.field == field
    assert message in str(caught.value)


@given(st.text(alphabet="sefm1348g-tokensri٣ 6", max_size=24))
def test_any_other_text_is_a_scheme_or_a_config_error(text):
    try:
        scheme = ActivationScheme.parse(text)
    except ConfigError:
        return
    assert ActivationScheme.parse(str(scheme)) == scheme


@pytest.mark.parametrize(
    "fields",
    [
        {"format": "s8"},
        {"format": "f16", "scale": "f32"},
        {"format": "f16", "second": "token"},
        {"format": "f16", "static": True},
    ],
)
def test_without_a_granularity_nothing_else_may_be_set(fields):
    fields = {k: number_format(v) if k in ("format", "scale") else v for k, v in fields.items()}
    with pytest.raises(ConfigError, match="a granularity and a scale format"):
        ActivationScheme(**fields)


def test_a_quantizing_scheme_needs_a_scale_format():
    with pytest.raises(ConfigError, match="one of e8m0"):
        ActivationScheme(format=number_format("s8"), granularity="token")
