"""Addresses of tiles against a reference that walks the box element by element."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humming_sim.tma.elements import Element
from humming_sim.tma.modes import Fill, Swizzle, swizzled
from humming_sim.tma.tensor_map import TensorMap
from humming_sim.tma.tiles import OUTSIDE, fill_bytes, loaded, pack_six_bits, tiles

BASE = 1 << 20

# PTX ISA 9.0, 5.5.7: what each 16 bytes of a line hold, line after line, counted in 16 bytes. Of
# the three modes with larger atoms the manual prints whole atoms; they are split here.
PATTERNS = {
    Swizzle.NONE: ["01234567"],
    Swizzle.B32: ["01234567", "10325476"],
    Swizzle.B64: ["01234567", "10325476", "23016745", "32107654"],
    Swizzle.B128: (
        "01234567 10325476 23016745 32107654 45670123 54761032 67452301 76543210".split()
    ),
    Swizzle.B128_ATOM_32B: ["01234567", "23016745", "45670123", "67452301"],
    Swizzle.B128_ATOM_32B_FLIP_8B: ["01234567", "23016745", "45670123", "67452301"],
    Swizzle.B128_ATOM_64B: ["01234567", "45670123"],
}


def place(address: int, swizzle: Swizzle) -> int:
    """Where a byte goes, looked up in the manual's tables."""
    line, byte = divmod(address, 128)
    row = PATTERNS[swizzle][line % len(PATTERNS[swizzle])]
    inside = byte % 16
    if swizzle is Swizzle.B128_ATOM_32B_FLIP_8B and line % 2:
        inside = (inside + 8) % 16
    return line * 128 + row.index(str(byte // 16)) * 16 + inside


@pytest.mark.parametrize("swizzle", list(Swizzle))
def test_swizzles_are_the_tables_of_the_manual(swizzle: Swizzle) -> None:
    addresses = np.arange(4096, dtype=np.int64)
    assert swizzled(addresses, swizzle).tolist() == [place(a, swizzle) for a in range(4096)]


@pytest.mark.parametrize("swizzle", list(Swizzle))
def test_swizzles_repeat_with_their_period_and_keep_their_atoms(swizzle: Swizzle) -> None:
    addresses = np.arange(0, 8192, swizzle.atom, dtype=np.int64)
    moved = swizzled(addresses, swizzle)
    assert (moved % swizzle.atom == 0).all()
    assert (swizzled(addresses + swizzle.period, swizzle) == moved + swizzle.period).all()
    assert sorted(moved.tolist()) == addresses.tolist()


def expected_image(
    m: TensorMap, memory: bytes, coordinates: tuple[int, ...], shared: int, gathered: bool = False
) -> dict[int, int]:
    """Shared byte address -> value, by PTX ISA 9.0, 5.5.3; whole bytes only."""
    image: dict[int, int] = {}
    bits = m.element.bits
    size = bits // 8
    if gathered:
        rows = [(row,) for row in coordinates[1:]]
    else:
        steps = m.element_strides
        spans = [range(0, m.box[axis], steps[axis]) for axis in range(1, m.rank)]
        grid = itertools.product(*reversed(spans))
        rows = [
            tuple(coordinates[axis + 1] + o for axis, o in enumerate(reversed(point)))
            for point in grid
        ]
    pitch = m.swizzle.span or m.box[0] * size
    nan = (0x7FF7).to_bytes(2, "little") * 4
    for r, row in enumerate(rows):
        for column in range(m.box[0]):
            point = (coordinates[0] + column, *row)
            inside = all(0 <= c < d for c, d in zip(point, m.dims, strict=True))
            at = m.address + point[0] * size
            at += sum(c * s for c, s in zip(point[1:], m.strides, strict=True))
            blank = nan[:size] if m.fill is Fill.NAN else bytes(size)
            value = memory[at - BASE : at - BASE + size] if inside else blank
            for k in range(size):
                where = place(shared + r * pitch + column * size + k, m.swizzle)
                assert where not in image
                image[where] = value[k]
    return image


def found_image(
    m: TensorMap, memory: bytes, coordinates: tuple[int, ...], shared: int, gathered: bool = False
) -> dict[int, int]:
    """The same through the code under test."""
    made = tiles(m, np.array([coordinates]), np.array([shared]), gathered=gathered)
    image: dict[int, int] = {}
    assert made.chunk == made.shared_chunk
    pairs = zip(made.global_addresses[0].tolist(), made.shared_addresses[0].tolist(), strict=True)
    for source, target in pairs:
        assert target % made.chunk == 0
        if source == OUTSIDE:
            data = bytes(fill_bytes(m, made.chunk))
        else:
            assert source % made.chunk == 0
            data = memory[source - BASE : source - BASE + made.chunk]
        assert len(data) == made.chunk
        for k, value in enumerate(data):
            assert target + k not in image
            image[target + k] = value
    return image


MEMORY = np.random.default_rng(1).integers(0, 256, 1 << 20, dtype=np.uint8).tobytes()


@st.composite
def cases(draw: st.DrawFn) -> tuple[TensorMap, tuple[int, ...], int]:
    element = draw(st.sampled_from(["UINT8", "FLOAT16", "INT32", "FLOAT64", "BFLOAT16"]))
    rank = draw(st.integers(1, 5))
    swizzle = draw(st.sampled_from(list(Swizzle)))
    unit = 128 // Element[element].bits  # elements in 16 bytes
    widest = max(swizzle.span // 16, 1) if swizzle.span else 4
    box = (unit * draw(st.integers(1, widest)), *(draw(st.integers(1, 4)) for _ in range(rank - 1)))
    dims = tuple(draw(st.integers(1, 40)) for _ in range(rank))
    row = -(-dims[0] // unit) * 16
    strides = []
    for size in dims[1:]:
        strides.append(row + 16 * draw(st.integers(0, 1)))
        row = strides[-1] * size if strides[-1] * size < 4000 else strides[-1]
    floats = Element[element].facts.floating
    made = TensorMap(
        element=Element[element],
        address=BASE + 16 * draw(st.integers(0, 4)),
        dims=dims,
        strides=tuple(strides),
        box=box,
        element_strides=tuple(draw(st.sampled_from([1, 1, 2, 3])) for _ in range(rank)),
        swizzle=swizzle,
        fill=Fill.NAN if floats and draw(st.booleans()) else Fill.ZERO,
    )
    first = unit * draw(st.integers(-2, 5))
    coordinates = (first, *(draw(st.integers(-3, 20)) for _ in range(rank - 1)))
    return made, coordinates, 128 * draw(st.integers(8, 24))


@settings(max_examples=300, deadline=None)
@given(cases())
def test_a_loaded_tile_is_what_the_walk_over_its_elements_gives(
    case: tuple[TensorMap, tuple[int, ...], int],
) -> None:
    m, coordinates, shared = case
    m = TensorMap(**(vars(m) | {"element_strides": (1, *m.element_strides[1:])}))
    expected = expected_image(m, MEMORY, coordinates, shared)
    assert found_image(m, MEMORY, coordinates, shared) == expected
    assert len(expected) == m.transaction_bytes


def test_the_element_stride_of_dimension_0_does_nothing() -> None:
    plain = matrix(element_strides=(1, 2))
    strided = matrix(element_strides=(3, 2))
    coordinates, shared = np.array([[8, 1]]), np.array([1024])
    for a, b in zip(
        vars(tiles(plain, coordinates, shared)).values(),
        vars(tiles(strided, coordinates, shared)).values(),
        strict=True,
    ):
        assert np.array_equal(a, b)


def matrix(**changes: Any) -> TensorMap:
    base: dict[str, Any] = {
        "element": Element.FLOAT16,
        "address": BASE,
        "dims": (100, 50),
        "strides": (256,),
        "box": (64, 8),
    }
    return TensorMap(**(base | changes))


@pytest.mark.parametrize("swizzle", [Swizzle.NONE, Swizzle.B128])
@pytest.mark.parametrize("rows", [(1, 2, 3, 4), (9, 0, 49, 5), (-1, 50, 7, 7)])
@pytest.mark.parametrize("column", [0, 64, -8])
def test_gather4_takes_four_rows(swizzle: Swizzle, rows: tuple[int, ...], column: int) -> None:
    m = matrix(box=(64, 1), swizzle=swizzle)
    coordinates = (column, *rows)
    expected = expected_image(m, MEMORY, coordinates, 2048, gathered=True)
    assert found_image(m, MEMORY, coordinates, 2048, gathered=True) == expected
    assert len(expected) == 4 * m.transaction_bytes


def test_many_tiles_at_once_are_the_tiles_one_by_one() -> None:
    m = matrix(swizzle=Swizzle.B128)
    coordinates = np.array([[0, 0], [64, 44], [32, -2], [8, 3]])
    shared = np.array([1024, 2048, 8192 + 128, 1024])
    together = tiles(m, coordinates, shared)
    for k in range(4):
        alone = tiles(m, coordinates[k : k + 1], shared[k : k + 1])
        step = alone.chunk // together.chunk
        assert np.array_equal(together.global_addresses[k][::step], alone.global_addresses[0])
        assert np.array_equal(together.shared_addresses[k][::step], alone.shared_addresses[0])


def test_a_tile_inside_moves_in_16_bytes_and_one_across_an_odd_end_in_less() -> None:
    inside = tiles(matrix(), np.array([[0, 0]]), np.array([1024]))
    across = tiles(matrix(), np.array([[64, 0]]), np.array([1024]))
    assert (inside.chunk, inside.global_addresses.shape) == (16, (1, 64))
    assert (across.chunk, across.global_addresses.shape) == (8, (1, 128))


@pytest.mark.parametrize(("element", "size", "ends"), [("UINT8", 50, 64), ("FLOAT16", 29, 64)])
def test_stores_end_at_the_16_bytes_in_which_a_tensor_row_ends(
    element: str, size: int, ends: int
) -> None:
    m = matrix(element=Element[element], dims=(size, 50), box=(128 // (ends // 32), 2))
    made = tiles(m, np.array([[0, 0]]), np.array([1024]), store=True)
    inside = made.global_addresses[made.global_addresses != OUTSIDE]
    assert made.chunk == 16
    assert inside.tolist() == [BASE + row * 256 + at for row in (0, 1) for at in range(0, ends, 16)]


def test_coordinates_at_the_ends_of_32_bits_are_outside() -> None:
    for end in (-(2**31), 2**31 - 64):
        made = tiles(matrix(), np.array([[end, end]]), np.array([1024]))
        assert (made.global_addresses == OUTSIDE).all()


# ------------------------------------------------------------------------------- sub-byte elements


def nibbles(element: Element, swizzle: Swizzle = Swizzle.B128) -> TensorMap:
    dims, box, strides = (384, 20), (128, 8), (384,)
    return TensorMap(
        element=element, address=BASE, dims=dims, box=box, strides=strides, swizzle=swizzle
    )


def bytes_by_address(made: Any) -> dict[int, tuple[int, int]]:
    """Shared byte -> (global byte or OUTSIDE, chunk)."""
    out = {}
    pairs = zip(made.global_addresses[0].tolist(), made.shared_addresses[0].tolist(), strict=True)
    for source, target in pairs:
        for k in range(made.chunk):
            assert target + k not in out
            out[target + k] = source if source == OUTSIDE else source + k
    return out


@pytest.mark.parametrize("swizzle", [Swizzle.NONE, Swizzle.B128, Swizzle.B128_ATOM_32B])
@pytest.mark.parametrize(
    ("element", "data"), [(Element._16U4_ALIGN16B, 8), (Element._16U6_ALIGN16B, 12)]
)
def test_padded_types_put_each_sixteen_elements_at_the_start_of_16_bytes(
    element: Element, data: int, swizzle: Swizzle
) -> None:
    m = nibbles(element, swizzle)
    made = tiles(m, np.array([[128, 15]]), np.array([1024]))
    expected = {}
    for row, group, byte in itertools.product(range(8), range(8), range(data)):
        source = BASE + (15 + row) * 384 + (8 + group) * data + byte
        at = place(1024 + row * 128 + group * 16 + byte, swizzle)
        expected[at] = source if 15 + row < 20 else OUTSIDE
    assert bytes_by_address(made) == expected


def test_packed_nibbles_are_copied_as_they_are() -> None:
    m = nibbles(Element._16U4_ALIGN8B, Swizzle.B64)
    made = tiles(m, np.array([[320, 0]]), np.array([1024]))
    expected = {}
    for row, byte in itertools.product(range(8), range(64)):
        source = BASE + row * 384 + 160 + byte
        expected[place(1024 + row * 64 + byte, Swizzle.B64)] = source if byte < 32 else OUTSIDE
    assert bytes_by_address(made) == expected


def test_stores_of_six_bits_read_sixteen_bytes_for_three_words() -> None:
    m = nibbles(Element._16U6_ALIGN16B)
    made = tiles(m, np.array([[0, 0]]), np.array([1024]), store=True)
    assert (made.chunk, made.shared_chunk) == (4, 16)
    assert made.global_addresses.shape == (1, 8 * 8 * 3)
    expected = [place(1024 + k * 16, Swizzle.B128) for k in range(64)]
    assert made.shared_addresses[0].tolist() == expected
    first = [BASE + 4 * k for k in range(24)]
    assert made.global_addresses[0, :24].tolist() == first


@given(st.lists(st.integers(0, 255), min_size=16, max_size=16))
def test_packing_six_bits_joins_the_low_bits(values: list[int]) -> None:
    packed = pack_six_bits(np.array([values], dtype=np.uint8))
    number = sum((value & 63) << (6 * k) for k, value in enumerate(values))
    assert packed.tolist() == [list(number.to_bytes(12, "little"))]


# ------------------------------------------------------------------------------------ loaded values


def tf32_of(value: int) -> int:
    """Round a float32 to TF32, to nearest even, by its definition on whole numbers."""
    magnitude = value & 0x7FFF_FFFF
    if magnitude > 0x7F80_0000:
        return 0x7FFF_E000
    low, kept = magnitude & 0x1FFF, magnitude >> 13
    if low > 0x1000 or (low == 0x1000 and kept & 1):
        kept += 1
    return (value & 0x8000_0000) | kept << 13


SPECIAL = [0, 0x8000_0000, 1, 0x7F7F_FFFF, 0xFF80_0000, 0x7FC0_0000, 0xFFFF_FFFF, 0x007F_FFFF]


@pytest.mark.parametrize("element", [Element.TFLOAT32, Element.TFLOAT32_FTZ])
@given(data=st.lists(st.integers(0, 2**32 - 1), min_size=8, max_size=8))
def test_tf32_loads_round_to_nearest_even(element: Element, data: list[int]) -> None:
    words: npt.NDArray[np.uint32] = np.array([data, SPECIAL], dtype=np.uint32)
    result = loaded(matrix(element=element, box=(32, 8)), words)
    assert result.tolist() == [[tf32_of(v) for v in data], [tf32_of(v) for v in SPECIAL]]


def test_other_loads_change_nothing() -> None:
    words = np.array(SPECIAL, dtype=np.uint32)
    for element in (Element.FLOAT32, Element.FLOAT32_FTZ, Element.UINT32):
        assert loaded(matrix(element=element, box=(32, 8)), words).tolist() == SPECIAL
