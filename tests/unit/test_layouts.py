"""Plane layouts: packing is a permutation of bits, and unpacking its inverse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from humming.errors import ConfigError
from humming.formats.table import number_format
from humming.layouts import GROUP, PlaneLayout, plane_layout

PLACED = [plane_layout(number_format("e2m1"), number_format(t)) for t in ("bf16", "f16", "e4m3fn")]
FIVES = plane_layout(number_format("u3"), number_format("bf16"))
LAYOUTS = [PlaneLayout(b, u) for u in (2, 4, 8) for b in range(1, min(8, 32 // u) + 1)]
LAYOUTS += [*PLACED, FIVES]

layouts = st.sampled_from(LAYOUTS)


def random_codes(layout: PlaneLayout, seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1 << layout.bits, shape, dtype=torch.uint8, generator=generator)


@given(layouts, st.integers(0, 3), st.integers(0, 2), st.integers(0, 2**32))
def test_unpack_inverts_pack(layout: PlaneLayout, rows: int, groups: int, seed: int) -> None:
    codes = random_codes(layout, seed, rows, groups * GROUP)
    words = layout.pack(codes)
    assert (words.dtype, words.shape) == (torch.int32, (rows, groups * layout.words))
    assert torch.equal(layout.unpack(words), codes)


@given(layouts, st.integers(0, 2**32))
def test_pack_inverts_unpack_so_that_no_bit_is_unused(layout: PlaneLayout, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(-(2**31), 2**31, (2, layout.words), generator=generator).int()
    assert torch.equal(layout.pack(layout.unpack(words)), words)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_pack_puts_each_bit_where_place_says(layout: PlaneLayout) -> None:
    places = [(code, bit) for code in range(GROUP) for bit in range(layout.bits)]
    assert len({layout.place(*place) for place in places}) == 32 * layout.words
    codes = torch.zeros(len(places), GROUP, dtype=torch.uint8)
    for row, (code, bit) in enumerate(places):
        codes[row, code] = 1 << bit
    packed = layout.pack(codes)
    words = (layout.placement.plain(packed) if layout.placement else packed).long() & 0xFFFFFFFF
    for row, place in enumerate(places):
        word, at = layout.place(*place)
        assert words[row].nonzero().flatten().tolist() == [word]
        assert int(words[row, word]) == 1 << at


def test_a_unit_of_four_bits_lies_in_four_nibbles_of_one_word() -> None:
    codes = torch.zeros(GROUP, dtype=torch.uint8)
    codes[2:4] = torch.tensor([0xA, 0x5], dtype=torch.uint8)  # unit 1 of 2 codes
    words = PlaneLayout(4, 2).pack(codes)
    assert words.tolist() == [0x005000A0] + [0] * 15


@pytest.mark.parametrize(
    ("bits", "planes"),
    [(1, ((0, 1),)), (5, ((0, 4), (4, 1))), (7, ((0, 4), (4, 2), (6, 1))), (8, ((0, 8),))],
)
def test_planes_are_the_widest_first(bits: int, planes: tuple[tuple[int, int], ...]) -> None:
    assert PlaneLayout(bits, 2).planes == planes


@pytest.mark.parametrize("layout", PLACED, ids=str)
def test_moves_bring_units_into_their_form(layout: PlaneLayout) -> None:
    placement = layout.placement
    assert placement is not None
    codes = random_codes(layout, 3, GROUP)
    words = (placement.plain(layout.pack(codes)).long() & 0xFFFFFFFF).tolist()
    for index in range(GROUP // layout.unit):
        word, part = divmod(index, len(placement.moves))
        form = 0
        for distance, mask in placement.moves[part]:
            turned = (words[word] << 32 | words[word]) << distance % 32 >> 32
            form ^= turned & mask
        expected = 0
        for j, code in enumerate(codes[layout.unit * index :][: layout.unit].tolist()):
            for bit, to in enumerate(placement.form):
                expected |= (code >> bit & 1) << (layout.slot * j + to)
        assert form == expected


def test_integers_of_three_bits_for_halves_lie_five_to_a_word() -> None:
    for code, target in (("u3", "f16"), ("s3", "bf16")):
        assert plane_layout(number_format(code), number_format(target)) == FIVES
    for code, target in (("u3", "s8"), ("s3", "e4m3fn"), ("e0m2", "bf16"), ("e1m1", "f16")):
        layout = plane_layout(number_format(code), number_format(target))
        assert layout == PlaneLayout(3, layout.unit)
    codes = torch.zeros(GROUP, dtype=torch.uint8)
    codes[32 + 2 * 13 : 32 + 2 * 13 + 2] = torch.tensor([5, 7], dtype=torch.uint8)
    codes[32 + 30 :][:2] = torch.tensor([6, 1], dtype=torch.uint8)  # of tile 1 as well
    words = FIVES.pack(codes).long() & 0xFFFFFFFF
    # Unit 13 at place 4 of word 1, and a bit of unit 15 in each.
    expected = [0, 0, 1 << 31, 5 << 12 | 7 << 28 | 1 << 15, 0, 0, 0, 0, 0, 1 << 15, 0, 0]
    assert words.tolist() == expected


@pytest.mark.parametrize(("bits", "unit"), [(3, 4), (2, 2), (4, 2)])
def test_only_units_of_two_codes_of_three_bits_lie_in_fives(bits: int, unit: int) -> None:
    with pytest.raises(ConfigError, match="fives"):
        PlaneLayout(bits, unit, fives=True)


def test_only_codes_of_four_bits_are_placed() -> None:
    assert plane_layout(number_format("e2m1"), number_format("s8")) == PlaneLayout(4, 4)
    assert plane_layout(number_format("u4"), number_format("bf16")) == PlaneLayout(4, 2)
    for bits, unit in ((3, 2), (4, 4)):
        with pytest.raises(ConfigError, match="placement"):
            PlaneLayout(bits, unit, PLACED[0].placement)


@pytest.mark.parametrize(("bits", "unit"), [(0, 2), (9, 2), (9, 4), (5, 8), (4, 3), (4, 16)])
def test_layouts_that_no_register_holds_are_refused(bits: int, unit: int) -> None:
    with pytest.raises(ConfigError, match=r"codes per register|bits in units"):
        PlaneLayout(bits, unit)


@pytest.mark.parametrize(
    "codes",
    [
        torch.zeros(127, dtype=torch.uint8),
        torch.zeros(128, dtype=torch.int32),
        torch.tensor(0, dtype=torch.uint8),
        torch.full((128,), 8, dtype=torch.uint8),
    ],
)
def test_codes_that_do_not_fit_are_refused(codes: torch.Tensor) -> None:
    with pytest.raises(ConfigError, match="codes"):
        PlaneLayout(3, 2).pack(codes)


@pytest.mark.parametrize("words", [torch.zeros(11).int(), torch.zeros(12), torch.tensor(0).int()])
def test_words_of_other_shapes_are_refused(words: torch.Tensor) -> None:
    with pytest.raises(ConfigError, match="words"):
        PlaneLayout(3, 2).unpack(words)


def test_the_name_tells_layouts_apart() -> None:
    assert len({str(layout) for layout in LAYOUTS}) == len(LAYOUTS)
    assert str(PlaneLayout(4, 2)) == "planes/b4u2"
    assert [str(layout) for layout in PLACED] == [
        f"planes/b4u{name}" for name in ("2-bf16", "2-f16", "4-bytes")
    ]
