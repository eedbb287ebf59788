"""The instruction descriptor and the zero-column mask, bit by bit."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from humming_sim.tcgen05.forms import KINDS, MmaForm
from humming_sim.tcgen05.instruction_descriptor import decode, lint
from humming_sim.tcgen05.zero_columns import lint_zero_columns, zero_columns

PLAIN = ("f16", "tf32", "f8f6f4", "i8")
LEGAL = {
    "f16": MmaForm("f16"),
    "tf32": MmaForm("tf32"),
    "f8f6f4": MmaForm("f8f6f4"),
    "i8": MmaForm("i8"),
    "mxf8f6f4": MmaForm("mxf8f6f4"),
    "mxf4": MmaForm("mxf4"),
    "mxf4nvf4": MmaForm("mxf4nvf4", scale="block16"),
}
#: A faultless descriptor of each kind: M = N = 128.
BASE = {
    "f16": 1 << 4 | 16 << 17 | 8 << 24,
    "tf32": 1 << 4 | 2 << 7 | 2 << 10 | 16 << 17 | 8 << 24,
    "f8f6f4": 1 << 4 | 16 << 17 | 8 << 24,
    "i8": 2 << 4 | 1 << 7 | 1 << 10 | 16 << 17 | 8 << 24,
    "mxf8f6f4": 16 << 17 | 1 << 23 | 1 << 27,
    "mxf4": 1 << 7 | 1 << 10 | 16 << 17 | 1 << 23 | 1 << 27,
    "mxf4nvf4": 1 << 7 | 1 << 10 | 16 << 17 | 1 << 27,
}


@pytest.mark.parametrize("kind", BASE)
def test_a_plain_descriptor_has_no_faults(kind):
    assert lint(BASE[kind], LEGAL[kind]) == ()
    descriptor = decode(BASE[kind], LEGAL[kind])
    assert (descriptor.m, descriptor.n) == (128, 128)
    assert descriptor.k == {"f16": 16, "tf32": 8, "mxf4": 64, "mxf4nvf4": 64}.get(kind, 32)


def test_the_descriptor_that_ran_in_the_prototype_reads_as_f16_128_by_128():
    descriptor = decode(0x08200010, MmaForm("f16"))
    assert (descriptor.m, descriptor.n, descriptor.k) == (128, 128, 16)
    assert (descriptor.d_type, descriptor.a_type, descriptor.b_type) == ("f32", "f16", "f16")


@pytest.mark.parametrize(
    ("kind", "low", "width", "codes"),
    [
        ("f16", 7, 3, {0: "f16", 1: "bf16"}),
        ("tf32", 7, 3, {2: "tf32"}),
        ("i8", 10, 3, {0: "u8", 1: "s8"}),
        ("f8f6f4", 7, 3, {0: "e4m3", 1: "e5m2", 2: "e3m4", 3: "e2m3", 4: "e3m2", 5: "e2m1"}),
        ("mxf8f6f4", 10, 3, {0: "e4m3", 1: "e5m2", 2: "e3m4", 3: "e2m3", 4: "e3m2", 5: "e2m1"}),
        ("mxf4", 7, 3, {1: "e2m1"}),
        ("mxf4nvf4", 10, 2, {0: "e0m3", 1: "e2m1"}),
    ],
)
def test_every_type_code_reads_as_its_type_or_is_reported(kind, low, width, codes):
    side = "a_type" if low == 7 else "b_type"
    for code in range(1 << width):
        bits = BASE[kind] & ~((1 << width) - 1 << low) | code << low
        assert getattr(decode(bits, LEGAL[kind]), side) == codes.get(code, "")
        named = [line for line in lint(bits, LEGAL[kind]) if f"type {code}" in line]
        assert bool(named) == (code not in codes)


@pytest.mark.parametrize("kind", BASE)
def test_bits_that_no_field_has_are_reported_as_reserved(kind):
    reserved = {
        **{plain: {6, 23, 29} for plain in PLAIN},
        "mxf8f6f4": {0, 1, 3, 6, 24, 25, 26, 31},
        "mxf4": {0, 1, 3, 6, 12, 24, 25, 26},
        "mxf4nvf4": {0, 1, 3, 6, 12, 24, 25, 26},
    }[kind]
    for bit in range(32):
        lines = lint(BASE[kind] ^ 1 << bit, LEGAL[kind])
        assert any(f"bit {bit} is reserved" in line for line in lines) == (bit in reserved)


def test_flags_read_from_their_own_bits():
    names = {13: "negate_a", 14: "negate_b", 15: "transpose_a", 16: "transpose_b", 2: "sparse"}
    for bit, name in names.items():
        descriptor = decode(BASE["f8f6f4"] | 1 << bit, LEGAL["f8f6f4"])
        assert [other for other in names.values() if getattr(descriptor, other)] == [name]


@pytest.mark.parametrize(
    ("kind", "bits", "words"),
    [
        ("f16", 1 << 2, "bit 2: A is sparse"),
        ("f16", 1, "bits 0-1: a sparsity selector"),
        ("f16", 1 << 3, "bit 3: saturation"),
        ("f16", 1 << 7, "bits 7-12: A and B are one f16 and one bf16"),
        ("f16", 2 << 4, "bits 4-5: D type 3"),
        ("tf32", 2 << 4, "bits 4-5: D type 3"),
        ("i8", 1 << 13, "bit 13: kind::i8 can't negate"),
        ("mxf4", 1 << 15, "bit 15: kind::mxf4 takes K-major"),
        ("mxf4nvf4", 1 << 16, "bit 16: kind::mxf4nvf4 takes K-major"),
        ("f8f6f4", 1 << 30, "bits 30-31: a shift of B is for .ws"),
        ("mxf8f6f4", 1 << 23, "bit 23: ue4m3 scales"),
        ("mxf4", 1 << 23, "bit 23: ue4m3 scales"),
    ],
)
def test_what_a_kind_cannot_do_is_named_with_its_bits(kind, bits, words):
    lines = lint(BASE[kind] ^ bits, LEGAL[kind])
    assert [line for line in lines if words in line], lines


def test_f16_sums_of_bf16_operands_are_reported():
    assert any(
        "bf16 operands" in line
        for line in lint(1 << 7 | 1 << 10 | 16 << 17 | 8 << 24, MmaForm("f16"))
    )


def shapes(form, m_shift, m_unit, n_bits=6):
    """Every (M, N) that lint takes, by asking it for each."""
    field = 24 if m_unit == 16 else 27
    found = set()
    for m, n in itertools.product(range(1, 1 << m_shift), range(1, 1 << n_bits)):
        bits = BASE[form.kind] & ~((1 << m_shift) - 1 << field | 0x3F << 17)
        bits |= m << field | n << 17
        if not lint(bits, form):
            found.add((m * m_unit, n * 8))
    return found


EIGHTS = tuple(range(8, 257, 8))


@pytest.mark.parametrize(
    ("form", "ms", "ns"),
    [
        (MmaForm("f16"), (64, 128), EIGHTS),
        (MmaForm("tf32", 2), (128, 256), EIGHTS[1::2]),
        (MmaForm("f8f6f4", ws=True), (32, 64, 128), (64, 128, 256)),
        (MmaForm("i8"), (64, 128), (8, 16, 24, *range(32, 257, 16))),
        (MmaForm("i8", 2), (128, 256), tuple(range(32, 257, 32))),
        (MmaForm("mxf8f6f4"), (128,), EIGHTS),
        (MmaForm("mxf4", 2), (128, 256), EIGHTS[1::2]),
        (MmaForm("mxf4nvf4", 2, scale="4X"), (128, 256), EIGHTS[1::2]),
    ],
)
def test_shapes_are_those_of_table_39(form, ms, ns):
    unit = 128 if form.row.scaled else 16
    assert shapes(form, 2 if unit == 128 else 5, unit) == set(itertools.product(ms, ns))


def test_an_mn_major_8_bit_b_takes_coarser_n():
    for form, step in ((MmaForm("f8f6f4"), 16), (MmaForm("f8f6f4", 2), 32)):
        m = 8 * form.cta_group
        for n in range(1, 33):
            bits = 1 << 4 | 1 << 16 | n << 17 | m << 24
            assert bool(lint(bits, form)) == (n * 8 % step != 0)


def test_k_96_needs_sm103_its_m_and_a_block_word():
    bits = BASE["mxf4"] | 1 << 31
    assert decode(bits, LEGAL["mxf4"]).k == 96
    assert any("sm_103a" in line for line in lint(bits, MmaForm("mxf4")))
    assert lint(bits, MmaForm("mxf4", target=103)) == ()
    assert decode(bits, MmaForm("mxf4")).scales == 3
    nvfp4 = MmaForm("mxf4nvf4", scale="block16", target=103)
    assert decode(BASE["mxf4nvf4"] | 1 << 31, nvfp4).scales == 6
    assert any(".scale_vec" in line for line in lint(bits, MmaForm("mxf4", scale="2X", target=103)))
    pair = bits & ~(3 << 27) | 1 << 27
    assert any("M = 256" in line for line in lint(pair, MmaForm("mxf4", 2, target=103)))
    assert lint(pair ^ 3 << 27, MmaForm("mxf4", 2, target=103)) == ()


@pytest.mark.parametrize(
    ("form", "extra", "ids"),
    [
        (MmaForm("mxf8f6f4"), 0, {0, 1, 2, 3}),
        (MmaForm("mxf4"), 0, {0, 2}),
        (MmaForm("mxf4nvf4", scale="block16"), 0, {0}),
        (MmaForm("mxf4nvf4", scale="4X"), 0, {0}),
        (MmaForm("mxf4nvf4", scale="block32"), 1 << 23, {0, 2}),
        (MmaForm("mxf4", target=103), 1 << 31, {0, 1, 2, 3}),
        (MmaForm("mxf4nvf4", scale="block16", target=103), 1 << 31, {0, 2}),
    ],
)
def test_scale_ids_are_those_of_the_layout(form, extra, ids):
    for value in range(4):
        for low, side in ((4, "scale_b_id"), (29, "scale_a_id")):
            bits = BASE[form.kind] | extra | value << low
            assert getattr(decode(bits, form), side) == value
            assert any("scale id" in line for line in lint(bits, form)) == (value not in ids)


def test_hidden_types_can_be_switched_off_and_are_bound_to_targets():
    bits = BASE["f8f6f4"] | 2 << 7
    assert lint(bits, MmaForm("f8f6f4")) == ()
    assert "hidden types are off" in lint(bits, MmaForm("f8f6f4", hidden=False))[0]
    assert decode(bits, MmaForm("f8f6f4", hidden=False)).a_type == ""
    assert "not on sm_110" in lint(bits, MmaForm("f8f6f4", target=110))[0]
    packed = BASE["mxf4nvf4"] & ~(1 << 10)
    assert lint(packed, MmaForm("mxf4nvf4", scale="block16")) == ()
    wide = MmaForm("mxf4nvf4", scale="block32")
    assert any("needs .block16" in line for line in lint(packed | 1 << 23, wide))
    assert any("type 0" in line for line in lint(BASE["mxf4"] & ~(1 << 10), MmaForm("mxf4")))


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (MmaForm("mxf4nvf4"), "needs .block16 or .block32"),
        (MmaForm("mxf8f6f4", scale="block16"), "takes block32, 1X"),
        (MmaForm("f16", scale="1X"), "takes no scales"),
        (MmaForm("mxf4", ws=True), ".ws doesn't go with"),
        (MmaForm("f16", 2, ws=True), ".ws doesn't go with"),
        (MmaForm("i8", target=103), "not on sm_103"),
    ],
)
def test_words_that_do_not_go_together_are_named(form, words):
    assert any(words in line for line in lint(BASE[form.kind], form))


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 2**32 - 1), st.booleans())
def test_no_bit_pattern_breaks_decode_or_lint(kind, bits, ws):
    form = MmaForm(kind, ws=ws, scale=LEGAL[kind].scale)
    decode(bits, form)
    assert all(isinstance(line, str) for line in lint(bits, form))


def mask_bits(starts, firsts, nonzero, skip, use, shift):
    """Table 45, low to high."""
    bits = nonzero << 39 | skip << 40 | use << 48 | shift << 56
    for part, (start, first) in enumerate(zip(starts, firsts, strict=True)):
        bits |= start << 8 * part | first << 32 + part
    return bits


def parse(text):
    """The manual prints masks with column 0 last."""
    return [digit == "1" for digit in reversed(text.replace(" ", ""))]


@pytest.mark.parametrize(
    ("m", "bits", "parts", "shift"),
    [
        (128, mask_bits([0], [0], 0, 4, 3, 0), ["0000 0000"], 0),
        (128, mask_bits([0], [0], 1, 2, 3, 0), ["111 0000 111 0000"], 0),
        (64, mask_bits([0, 0], [1, 0], 1, 2, 3, 0),
         ["111 0000 111 0000 111", "0000 111 0000 111 0000"], 0),
        (32, mask_bits([0, 1, 2, 1], [1, 1, 0, 0], 1, 2, 3, 2),
         ["0000 111 0000 111", "0000 111 0000 11", "111 0000 111 00", "111 0000 111 000"], 2),
    ],
)  # fmt: skip
def test_zero_column_masks_are_the_manuals_examples(m, bits, parts, shift):
    mask, moved = zero_columns(bits, m, 128)
    assert moved == shift
    width = 128 // len(parts)
    for part, text in enumerate(parts):
        wanted = parse(text)
        assert mask[part * width :][: len(wanted)].tolist() == wanted


def test_zero_column_masks_with_impossible_fields_are_reported():
    fine = mask_bits([0], [0], 1, 2, 3, 8)
    assert lint_zero_columns(fine, 128, 8) == ()
    assert "mask bits 36-38" in lint_zero_columns(fine | 1 << 37, 128, 8)[0]
    assert "mask bits 56-61" in lint_zero_columns(fine, 128, 0)[0]
    assert "allow 16" in lint_zero_columns(mask_bits([0], [0], 0, 0, 0, 17), 32, 32)[0]
    assert "start count of 4" in lint_zero_columns(mask_bits([4], [0], 1, 2, 3, 0), 128, 0)[0]
    assert lint_zero_columns(mask_bits([4], [0], 0, 2, 3, 0), 128, 0) == ()
