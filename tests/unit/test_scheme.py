"""WeightScheme: its one spelling, its aliases, its refusals."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from humming.errors import ConfigError
from humming.formats.scheme import SCHEME_ALIASES, Granularity, Second, WeightScheme, Zero
from humming.formats.table import SCALE_FORMATS, all_formats, number_format

CODES = [f.name for f in all_formats() if f.bits <= 8 and (f.signed or f.is_integer)]
UNSIGNED = [name for name in CODES if name[0] == "u"]
INTEGERS = [name for name in CODES if name[0] in "us"]
SIZES = st.integers(1, 70000)
GRANULARITIES = st.one_of(
    st.sampled_from(["tensor", "channel"]),
    SIZES.map(lambda g: f"g{g}"),
    st.tuples(st.integers(2, 70000), SIZES).map(lambda b: f"b{b[0]}x{b[1]}"),
)
SECONDS = st.sampled_from(["", "-tensor", "-channel"])


@st.composite
def spellings(draw) -> str:
    """The whole grammar, in its canonical form."""
    zero = draw(st.sampled_from(["", "+z", "+zf"]))
    generic = [f"e{e}m{m}" for e in range(1, 7) for m in range(1, 8 - e)]
    codes = {"": [*CODES, *generic], "+z": UNSIGNED, "+zf": INTEGERS}[zero]
    code = number_format(draw(st.sampled_from(codes))).name  # e4m3 is an alias of e4m3fn
    scales = ("f16", "bf16", "f32") if zero == "+zf" else SCALE_FORMATS
    scale = draw(st.sampled_from(scales))
    return f"{code}{zero}-{draw(GRANULARITIES)}-{scale}{draw(SECONDS)}"


@given(spellings())
def test_str_is_the_inverse_of_parse(text):
    scheme = WeightScheme.parse(text)
    assert str(scheme) == text
    assert WeightScheme.parse(str(scheme)) == scheme
    assert WeightScheme.parse(scheme) is scheme
    assert hash(WeightScheme.parse(f"  {text.upper()} ")) == hash(scheme)


@given(spellings())
def test_parse_reads_the_parts_where_they_stand(text):
    scheme = WeightScheme.parse(text)
    code, granularity, scale, *second = text.split("-")
    assert scheme.code.name == code.partition("+")[0]
    assert scheme.zero == Zero(code.partition("+")[2])
    assert scheme.scale.name == scale
    assert scheme.second == Second(second[0] if second else "")
    sizes = {"tensor": (0, 0), "channel": (1, 0)}
    if granularity not in sizes:
        numbers = tuple(map(int, granularity[1:].split("x")))
        sizes[granularity] = (1, *numbers)[-2:]
    assert (scheme.granularity.n, scheme.granularity.k) == sizes[granularity]


@pytest.mark.parametrize("alias", SCHEME_ALIASES)
def test_every_alias_means_its_scheme(alias):
    scheme = WeightScheme.parse(alias)
    assert str(scheme) == SCHEME_ALIASES[alias]
    assert WeightScheme.parse(alias.upper()) == scheme
    assert WeightScheme.parse(scheme.alias) == scheme


@pytest.mark.parametrize(
    ("alias", "text"),
    [
        ("nvfp4", "e2m1-g16-e4m3fn-tensor"),
        ("mxfp4", "e2m1-g32-e8m0"),
        ("mxfp8", "e4m3fn-g32-e8m0"),
        ("mxint4", "u4-g32-bf16"),
        ("fp8-block", "e4m3fn-b128x128-f32"),
        ("q4_1", "u4+zf-g32-f16"),
        ("int4-g128", "u4-g128-bf16"),
        ("int8-channel", "s8-channel-bf16"),
        ("int3-g64", "u3-g64-bf16"),
    ],
)
def test_aliases_that_users_know(alias, text):
    assert SCHEME_ALIASES[alias] == text


def test_the_first_alias_of_a_scheme_is_the_one_shown():
    assert WeightScheme.parse("u4-g32-bf16").alias == "mxint4"
    assert WeightScheme.parse("u4-g48-bf16").alias is None


def test_spellings_that_mean_the_same_are_equal():
    assert WeightScheme.parse("uint4-g0128-bfloat16") == WeightScheme.parse("u4-g128-bf16")
    assert WeightScheme.parse("u4-b1x128-f16") == WeightScheme.parse("u4-g128-f16")
    assert WeightScheme.parse("fp8_e4m3-tensor-float32") == WeightScheme.parse("fp8")


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ("", "scheme", "CODE[+z|+zf]-GRANULARITY-SCALE[-SECOND] or an alias"),
        ("u4", "scheme", "CODE[+z|+zf]-GRANULARITY-SCALE"),
        ("u4-g128", "scheme", "CODE[+z|+zf]-GRANULARITY-SCALE"),
        ("u4-g128-bf16-tensor-x", "scheme", "CODE[+z|+zf]-GRANULARITY-SCALE"),
        ("u9-g128-bf16", "format", "a name that `humming formats` lists"),
        ("-g128-bf16", "format", "a name that `humming formats` lists"),
        ("u4-g128-f64", "format", "a name that `humming formats` lists"),
        ("u4+-g128-bf16", "zero", "+z (integer) or +zf (float)"),
        ("u4+zz-g128-bf16", "zero", "+z (integer) or +zf (float)"),
        ("u4-g128-bf16-", "second", "tensor or channel"),
        ("u4-g128-bf16-g32", "second", "tensor or channel"),
        ("u4-128-bf16", "granularity", "tensor, channel, gG or bNxK"),
        ("u4-g-bf16", "granularity", "tensor, channel, gG or bNxK"),
        ("u4-b128-bf16", "granularity", "tensor, channel, gG or bNxK"),
        ("u4-g0-bf16", "group_size", "a positive integer"),
        ("u4-b0x128-bf16", "block_n", "a positive integer"),
        ("u4-b128x0-bf16", "block_k", "a positive integer"),
        ("bf16-g128-bf16", "code", "an integer or a signed float of <= 8 bits"),
        ("e8m0-g128-bf16", "code", "an integer or a signed float of <= 8 bits"),
        ("e5m3-g128-bf16", "code", "an integer or a signed float of <= 8 bits"),
        ("u4-g128-e3m4", "scale", "one of e8m0, e4m3fn"),
        ("u4-g128-u8", "scale", "one of e8m0, e4m3fn"),
        ("s4+z-g128-bf16", "zero", "unsigned integer codes with zero points"),
        ("e2m1+z-g128-bf16", "zero", "unsigned integer codes with zero points"),
        ("e2m1+zf-g128-bf16", "zero", "integer codes with float zero points"),
        ("u4+zf-g128-e8m0", "scale", "f16, bf16 or f32 with float zero points"),
        (None, "scheme", "CODE[+z|+zf]-GRANULARITY-SCALE"),
        (4, "scheme", "CODE[+z|+zf]-GRANULARITY-SCALE"),
    ],
)
def test_what_is_no_scheme_is_refused_by_field(text, field, message):
    with pytest.raises(ConfigError) as caught:
        WeightScheme.parse(text)
    assert caught.value.field == field
    assert message in str(caught.value)


@given(st.text(alphabet="u4sefm138gbx+z-tnoracheli l٣", max_size=24))
def test_any_other_text_is_a_scheme_or_a_config_error(text):
    try:
        scheme = WeightScheme.parse(text)
    except ConfigError:
        return
    assert WeightScheme.parse(str(scheme)) == scheme


@pytest.mark.parametrize("sizes", [(-1, 0), (0, 4), (2, 0), (1, -3)])
def test_granularities_that_mean_nothing_are_refused(sizes):
    with pytest.raises(ConfigError, match="tensor, channel, gG or bNxK"):
        Granularity(*sizes)


@pytest.mark.parametrize(
    ("text", "n", "k", "offset", "shape"),
    [
        ("tensor", 5, 7, (0, 0), (1, 1)),
        ("channel", 5, 7, (0, 0), (5, 1)),
        ("g4", 5, 7, (0, 0), (5, 2)),
        ("g4", 5, 7, (0, 3), (5, 3)),
        ("g4", 5, 0, (0, 0), (5, 0)),
        ("b2x3", 5, 7, (0, 0), (3, 3)),
        ("b2x3", 5, 7, (1, 2), (3, 3)),
        ("b2x3", 5, 8, (1, 2), (3, 4)),
        ("b128x128", 129, 257, (0, 0), (2, 3)),
    ],
)
def test_scale_shape_counts_the_blocks_touched(text, n, k, offset, shape):
    assert Granularity.parse(text).scale_shape(n, k, offset) == shape


def test_granularity_answers_what_it_is():
    kinds = {t: Granularity.parse(t) for t in ("tensor", "channel", "g32", "b2x32")}
    assert [t for t, g in kinds.items() if g.is_group] == ["g32"]
    assert [t for t, g in kinds.items() if g.is_block] == ["b2x32"]
    assert [g.extent(9, 64) for g in kinds.values()] == [(9, 64), (1, 64), (1, 32), (2, 32)]


@pytest.mark.parametrize(
    ("text", "midpoint", "zero_bits"),
    [("u4-g32-f16", 8, 0), ("u1-g32-f16", 1, 0), ("u8-g32-f16", 128, 0), ("u4+z-g32-f16", 0, 4),
     ("u4+zf-g32-f16", 0, 16), ("s4-g32-f16", 0, 0), ("s3+zf-g32-f32", 0, 32),
     ("e2m1-g32-f16", 0, 0)],
)  # fmt: skip
def test_midpoint_and_zero_bits(text, midpoint, zero_bits):
    scheme = WeightScheme.parse(text)
    assert (scheme.midpoint, scheme.zero_bits) == (midpoint, zero_bits)


@pytest.mark.parametrize(
    ("text", "n", "k", "bits"),
    [
        ("u4-g128-bf16", 64, 256, 4 + 16 / 128),
        ("u4+z-g64-f16", 64, 256, 4 + (16 + 4) / 64),
        ("u4+zf-g32-f16", 64, 256, 4 + 32 / 32),
        ("nvfp4", 64, 256, 4 + 8 / 16 + 32 / (64 * 256)),
        ("fp8-block", 129, 257, 8 + 6 * 32 / (129 * 257)),
        ("e4m3fn-channel-f32", 8, 100, 8 + 32 / 100),
        ("s4-g32-e4m3fn-channel", 8, 64, 4 + 8 / 32 + 32 / 64),
    ],
)
def test_bits_per_weight_counts_scales_and_zeros(text, n, k, bits):
    assert WeightScheme.parse(text).bits_per_weight(n, k) == pytest.approx(bits, rel=1e-12)


_NO_TORCH = """
import importlib, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch is not to be imported here")
sys.meta_path.insert(0, Refuse())
for module in sys.argv[1:]:
    importlib.import_module("humming." + module)
assert "torch" not in sys.modules
"""


def test_what_describes_numbers_imports_without_torch():
    modules = ("formats.number", "formats.table", "formats.scheme", "formats.activation",
               "configs", "profiles", "validity", "settings", "errors", "backend")  # fmt: skip
    command = [sys.executable, "-c", _NO_TORCH, *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
