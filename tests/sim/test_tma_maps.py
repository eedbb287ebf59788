"""Tensor maps: what is refused and why, and the 128 bytes that carry them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from humming_sim.errors import TensorMapError
from humming_sim.tma.elements import PACKED, Element
from humming_sim.tma.encoding import MAP_BYTES, replaced
from humming_sim.tma.modes import Fill, Interleave, L2Promotion, Swizzle
from humming_sim.tma.tensor_map import TensorMap

ADDRESS = 0x7F00_0000_0400
PLAIN = {
    "element": Element.FLOAT16,
    "address": ADDRESS,
    "dims": (256, 64),
    "strides": (512,),
    "box": (64, 8),
}
PADDED = PLAIN | {
    "element": Element._16U4_ALIGN16B,
    "dims": (256, 64),
    "strides": (128,),
    "box": (128, 8),
}
SIX = PADDED | {"element": Element._16U6_ALIGN16B, "strides": (192,)}


def make(base: dict[str, Any] = PLAIN, **changes: Any) -> TensorMap:
    return TensorMap(**(base | changes))


@pytest.mark.parametrize("base", [PLAIN, PADDED, SIX])
def test_the_maps_that_the_other_tests_change_are_accepted(base: dict[str, Any]) -> None:
    assert make(base).rank == 2


REFUSED = {
    "address 8": (PLAIN, {"address": ADDRESS + 8}, "multiple of 16"),
    "negative address": (PLAIN, {"address": -16}, "unsigned 64-bit"),
    "padded address 16": (PADDED, {"address": ADDRESS + 16}, "multiple of 32"),
    "no dimensions": (PLAIN, {"dims": (), "strides": (), "box": ()}, "1 to 5"),
    "six dimensions": (PLAIN, {"dims": (8,) * 6}, "1 to 5"),
    "a stride too many": (PLAIN, {"strides": (512, 512)}, "must be 1 for 2 dimensions"),
    "a box too short": (PLAIN, {"box": (64,)}, "must be 2 for 2 dimensions"),
    "element strides too short": (PLAIN, {"element_strides": (1,)}, "must be 2"),
    "empty dimension": (PLAIN, {"dims": (256, 0)}, "1 to 2"),
    "dimension above 2**32": (PLAIN, {"dims": (256, 2**32 + 1)}, "1 to 2"),
    "padded dims[0]": (PADDED, {"dims": (192, 64)}, "multiple of 128"),
    "odd number of nibbles": (
        PLAIN,
        {"element": Element._16U4_ALIGN8B, "dims": (255, 64)},
        "multiple of 2",
    ),
    "stride 264": (PLAIN, {"strides": (264,)}, "multiple of 16"),
    "stride 2**40": (PLAIN, {"strides": (2**40,)}, "below 2"),
    "padded stride 144": (PADDED, {"strides": (144,)}, "multiple of 32"),
    "box 257": (PLAIN, {"box": (64, 257)}, "1 to 256"),
    "box 0": (PLAIN, {"box": (64, 0)}, "1 to 256"),
    "box row of 8 bytes": (PLAIN, {"box": (4, 8)}, "multiple of 16 (8 elements)"),
    "box row of 24 bytes": (PLAIN, {"box": (12, 8)}, "24 bytes"),
    "padded box of 64": (PADDED, {"box": (64, 8)}, "must be 128"),
    "six-bit box of 64": (SIX, {"box": (64, 8)}, "must be 128"),
    "box above shared memory": (
        PLAIN,
        {"dims": (8, 8, 8), "strides": (16, 128), "box": (256, 256, 2)},
        "must be at most 233472",
    ),
    "element stride 9": (PLAIN, {"element_strides": (1, 9)}, "1 to 8"),
    "element stride 0": (PLAIN, {"element_strides": (0, 1)}, "1 to 8"),
    "interleave": (PLAIN, {"interleave": Interleave.B16}, "must be NONE"),
    "row wider than the span": (PLAIN, {"swizzle": Swizzle.B64}, "at most 64"),
    "padded row wider than 64": (PADDED, {"swizzle": Swizzle.B64}, "one of NONE, B128"),
    "padded flip": (PADDED, {"swizzle": Swizzle.B128_ATOM_32B_FLIP_8B}, "one of NONE, B128"),
    "padded nibbles in 64-byte atoms": (PADDED, {"swizzle": Swizzle.B128_ATOM_64B}, "one of"),
    "integers filled with NaN": (
        PLAIN,
        {"element": Element.UINT16, "fill": Fill.NAN},
        "must be ZERO",
    ),
    "nibbles filled with NaN": (PADDED, {"fill": Fill.NAN}, "must be ZERO"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_map_that_the_driver_refuses_is_refused_with_what_would_work(name: str) -> None:
    base, changes, message = REFUSED[name]
    with pytest.raises(TensorMapError) as caught:
        make(base, **changes)
    assert message in str(caught.value)


def test_all_violations_are_named_at_once() -> None:
    with pytest.raises(TensorMapError) as caught:
        make(address=ADDRESS + 4, box=(4, 300), fill=Fill.NAN, element=Element.INT32)
    assert str(caught.value).count("\n- ") == 3  # address, box, fill: 4 words are 16 bytes


ACCEPTED: dict[str, dict[str, Any]] = {
    "largest dimension": {"dims": (2**32, 4), "strides": (2**33,)},
    "largest stride": {"strides": (2**40 - 16,)},
    "overlapping rows": {"strides": (16,)},
    "broadcast": {"strides": (0,)},
    "box beyond the tensor": {"dims": (8, 2)},
    "largest box": {"dims": (256,) * 3, "strides": (512, 2**17), "box": (128, 228, 4)},
    "NaN": {"fill": Fill.NAN},
    "L2 promotion": {"l2_promotion": L2Promotion.B256},
    "narrow row": {"swizzle": Swizzle.B128, "box": (16, 8)},
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_limits_themselves_are_accepted(name: str) -> None:
    assert make(**ACCEPTED[name]).dims


@pytest.mark.parametrize("element", sorted(PACKED))
def test_sub_byte_rows_are_counted_in_global_bytes_and_laid_out_padded(element: Element) -> None:
    bits = {13: 4, 14: 4, 15: 6}[element]
    made = make(element=element, dims=(256, 64), strides=(192,), box=(128, 8))
    assert made.row_bytes == 128 * bits // 8
    assert made.transaction_bytes == 8 * 128 * bits // 8
    assert made.shared_bytes == 8 * (64 if element is Element._16U4_ALIGN8B else 128)


def test_element_strides_divide_the_box_rounding_up_and_leave_dimension_0_alone() -> None:
    made = make(box=(64, 7), element_strides=(2, 3))
    assert made.counts == (64, 3)
    assert made.transaction_bytes == 64 * 2 * 3


def test_a_narrow_swizzled_row_takes_a_whole_span_of_shared_memory() -> None:
    made = make(swizzle=Swizzle.B128, box=(16, 8))
    assert (made.transaction_bytes, made.shared_bytes) == (8 * 32, 8 * 128)


@st.composite
def maps(draw: st.DrawFn) -> TensorMap:
    rank = draw(st.integers(1, 5))
    integers = st.integers
    return TensorMap(
        element=draw(st.sampled_from([e for e in Element if e not in PACKED])),
        address=draw(integers(0, 2**60)) * 16,
        dims=tuple(draw(integers(1, 2**32)) for _ in range(rank)),
        strides=tuple(16 * draw(integers(0, 2**36 - 1)) for _ in range(rank - 1)),
        box=(16, *(draw(integers(1, 4)) for _ in range(rank - 1))),
        element_strides=tuple(draw(integers(1, 8)) for _ in range(rank)),
        swizzle=draw(st.sampled_from([s for s in Swizzle if s.span in (0, 128)])),
        l2_promotion=draw(st.sampled_from(list(L2Promotion))),
    )


@given(maps())
def test_decoding_gives_the_encoded_map(made: TensorMap) -> None:
    blob = made.encode()
    assert len(blob) == MAP_BYTES
    assert TensorMap.decode(blob) == made


@given(maps())
def test_replacing_every_field_of_zero_bytes_builds_the_map(made: TensorMap) -> None:
    made = dataclasses.replace(made, l2_promotion=L2Promotion.NONE)
    mode, atomicity = made.swizzle.mode_and_atomicity
    fields = [
        ("swizzle_mode", mode, 0),
        ("swizzle_atomicity", atomicity, 0),
        ("global_address", made.address, 0),
        ("fill_mode", 0, 0),
        ("interleave_layout", 0, 0),
        ("elemtype", made.element.facts.ptx_code, 0),
        *(("box_dim", size, axis) for axis, size in enumerate(made.box)),
        *(("global_dim", size, axis) for axis, size in enumerate(made.dims)),
        *(("global_stride", stride, axis) for axis, stride in enumerate(made.strides)),
        *(("element_stride", step, axis) for axis, step in enumerate(made.element_strides)),
        ("rank", made.rank - 1, 0),
    ]
    blob = bytes(MAP_BYTES)
    for field, value, ordinal in fields:
        blob = replaced(blob, field, value, ordinal)
    assert TensorMap.decode(blob) == made


#: PTX ISA 9.0, table of tensormap.replace values; the driver numbers some types differently.
PTX_CODES = (
    "UINT8 UINT16 UINT32 INT32 UINT64 INT64 FLOAT16 FLOAT32 FLOAT32_FTZ FLOAT64 BFLOAT16 TFLOAT32 "
    "TFLOAT32_FTZ _16U4_ALIGN8B _16U4_ALIGN16B _16U6_ALIGN16B"
).split()


@pytest.mark.parametrize("code", range(16))
def test_replacing_the_element_type_takes_the_codes_of_ptx(code: int) -> None:
    base = PADDED if "16U" in PTX_CODES[code] else PLAIN
    if code == 15:
        base = SIX
    made = make(base, dims=(2**20, 4), strides=(2**24,))
    blob = replaced(made.encode(), "elemtype", code)
    assert TensorMap.decode(blob).element.name == PTX_CODES[code]


@pytest.mark.parametrize(
    ("field", "value", "ordinal"),
    [
        ("box_dim", 257, 0),
        ("box_dim", 8, 5),
        ("global_dim", 0, 1),
        ("global_stride", 2**40, 0),
        ("global_stride", 16, 4),
        ("element_stride", 9, 1),
        ("elemtype", 16, 0),
        ("interleave_layout", 3, 0),
        ("swizzle_mode", 5, 0),
        ("swizzle_atomicity", 4, 0),
        ("fill_mode", 2, 0),
        ("rank", 5, 0),
        ("colour", 1, 0),
    ],
)
def test_replacing_with_what_does_not_fit_is_refused(field: str, value: int, ordinal: int) -> None:
    with pytest.raises(TensorMapError, match=field):
        replaced(make().encode(), field, value, ordinal)


def test_fields_that_do_not_fit_each_other_are_refused_when_the_map_is_used() -> None:
    blob = replaced(make().encode(), "box_dim", 12, 0)
    with pytest.raises(TensorMapError, match="24 bytes"):
        TensorMap.decode(blob)


@pytest.mark.parametrize(("mode", "atomicity"), [(4, 0), (1, 1), (0, 3)])
def test_swizzle_combinations_that_do_not_exist_here_are_refused(mode: int, atomicity: int) -> None:
    blob = replaced(make().encode(), "swizzle_mode", mode)
    blob = replaced(blob, "swizzle_atomicity", atomicity)
    with pytest.raises(TensorMapError, match="swizzl"):
        TensorMap.decode(blob)


@pytest.mark.parametrize("blob", [bytes(range(128)), bytes(128), b"\1" * 64 + bytes(64)])
def test_foreign_bytes_are_no_map(blob: bytes) -> None:
    with pytest.raises(TensorMapError, match=r"humming_sim\.TensorMap"):
        TensorMap.decode(blob)


def test_foreign_bytes_cannot_be_changed_but_zeros_can() -> None:
    assert replaced(bytes(128), "rank", 1)[:8] == make().encode()[:8]
    with pytest.raises(TensorMapError, match=r"humming_sim\.TensorMap"):
        replaced(bytes(range(128)), "rank", 1)
    with pytest.raises(TensorMapError, match="128 bytes"):
        replaced(bytes(64), "rank", 1)


def test_a_changed_reserved_byte_is_noticed() -> None:
    blob = bytearray(make().encode())
    blob[-1] = 1
    with pytest.raises(TensorMapError, match="opaque"):
        TensorMap.decode(bytes(blob))


def test_a_changed_code_is_noticed() -> None:
    blob = bytearray(make().encode())
    blob[104] = 99
    with pytest.raises(TensorMapError, match="99"):
        TensorMap.decode(bytes(blob))
