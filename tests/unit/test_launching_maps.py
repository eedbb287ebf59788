"""Tensor maps: what is refused before the driver is asked, and what it is asked."""

from __future__ import annotations

from typing import Any

import pytest
from fake_driver import CUBIN, FakeDriver, FakeTensor

from humming.backend import LaunchShape, TensorMap
from humming.errors import ConfigError, LaunchError
from humming.launching import ELEMENTS, SWIZZLES, CudaRuntime, MapEncoder, problems
from humming_sim.errors import TensorMapError
from humming_sim.tma.elements import Element as SimElement
from humming_sim.tma.modes import Fill as SimFill
from humming_sim.tma.modes import Swizzle as SimSwizzle
from humming_sim.tma.tensor_map import TensorMap as SimMap

PLAIN = TensorMap(element="bfloat16", dims=(64, 20), strides=(128,), box=(64, 8), swizzle="b128")


def changed(**fields: Any) -> TensorMap:
    return TensorMap(**{**vars(PLAIN), **fields})


WRONG = [
    ({"element": "bf16"}, "element 'bf16', must be one of uint8, "),
    ({"swizzle": "128"}, "swizzle '128', must be one of none, b32"),
    ({"fill": "one"}, "fill 'one', must be one of zero, nan"),
    ({"l2_bytes": 1}, "l2_bytes 1, must be one of 0, 64, 128, 256"),
    ({"dims": ()}, "0 dimensions, must be 1 to 5"),
    ({"box": (64,)}, "1 box sizes and 1 strides, must be 2 and 1 for 2 dimensions"),
    ({"dims": (64, 0)}, r"dims[1] 0, must be 1 to 2**32"),
    ({"strides": (120,)}, "stride 120 of dimension 1, must be a multiple of 16 below 2**40"),
    ({"strides": (2**40,)}, "must be a multiple of 16 below 2**40"),
    ({"box": (64, 257)}, "box[1] 257, must be 1 to 256"),
    ({"box": (4, 8)}, "box[0] has 8 bytes, must be a multiple of 16"),
    ({"box": (128, 8)}, "box[0] takes 256 bytes, must be at most 128 with swizzle b128"),
    ({"box": (256, 256), "swizzle": "none", "element": "float32"}, "must be at most 233472"),
    ({"element": "uint16", "fill": "nan"}, "fill nan, must be zero for uint16"),
    ({"element": "16u4_align8b", "dims": (63, 20)}, "dims[0] 63, must be a multiple of 2 for"),
    ({"element": "16u4_align16b"}, "dims[0] 64, must be a multiple of 128 for 16u4_align16b"),
    ({"element": "16u6_align16b"}, "box[0] 64, must be 128 for 16u6_align16b"),
    (
        {"element": "16u6_align16b", "swizzle": "b64"},
        "swizzle b64, must be one of none, b128, b128_atom_32b, b128_atom_64b",
    ),
]


@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_what_the_driver_would_refuse_is_said_before(fields: Any, message: str) -> None:
    fake = FakeDriver()
    with pytest.raises(ConfigError) as caught:
        MapEncoder(fake.driver()).encode(changed(**fields), 0)
    assert message in str(caught.value)
    assert not fake.calls


def test_an_address_off_its_unit_is_refused() -> None:
    assert problems(PLAIN, 8) == ["address 0x8, must be a multiple of 16 for bfloat16"]
    padded = TensorMap(element="16u4_align16b", dims=(128,), box=(128,))
    assert problems(padded, 16) == ["address 0x10, must be a multiple of 32 for 16u4_align16b"]
    assert not problems(padded, 32)


def of_the_simulator(m: TensorMap, address: int) -> SimMap:
    elements = {element.title.lower(): element for element in SimElement}
    swizzles = {swizzle.name.lower(): swizzle for swizzle in SimSwizzle}
    return SimMap(
        element=elements[m.element],
        address=address,
        dims=m.dims,
        strides=m.strides,
        box=m.box,
        swizzle=swizzles[m.swizzle],
        fill=SimFill[m.fill.upper()],
    )


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_the_simulators_rules_are_the_same(element: str, swizzle: str) -> None:
    """Two statements of one document, compared where they could differ."""
    seen = set()
    for fill in ("zero", "nan"):
        for width, dim, stride, address in (
            (8, 64, 128, 16),
            (16, 64, 32, 32),
            (32, 128, 48, 64),
            (64, 63, 64, 0),
            (128, 256, 128, 32),
            (128, 256, 128, 16),
            (256, 256, 2**40, 8),
        ):
            m = TensorMap(
                element=element,
                dims=(dim, 9),
                strides=(stride,),
                box=(width, 8),
                swizzle=swizzle,
                fill=fill,
            )
            try:
                of_the_simulator(m, address)
                refused = False
            except TensorMapError:
                refused = True
            assert bool(problems(m, address)) == refused, (m, address, problems(m, address))
            seen.add(refused)
    assert True in seen


def test_the_driver_is_told_all_and_asked_once() -> None:
    fake = FakeDriver()
    encoder = MapEncoder(fake.driver())
    assert encoder.encode(PLAIN, 256) == tuple(range(256, 272))
    encoder.encode(PLAIN, 256)
    asked = [call for call in fake.calls if isinstance(call, tuple)]
    assert asked == [
        (
            "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16",
            2,
            256,
            [64, 20],
            [128],
            [64, 8],
            [1, 1],
            "CU_TENSOR_MAP_INTERLEAVE_NONE",
            "CU_TENSOR_MAP_SWIZZLE_128B",
            "CU_TENSOR_MAP_L2_PROMOTION_L2_128B",
            "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
        )
    ]
    encoder.encode(PLAIN, 512)
    assert fake.calls.count("cuTensorMapEncodeTiled") == 2


def test_a_refusal_that_no_rule_foresees_is_the_drivers() -> None:
    fake = FakeDriver()
    fake.fails["cuTensorMapEncodeTiled"] = [1]
    with pytest.raises(LaunchError, match=r"INVALID_VALUE.*the device may lack bfloat16 or b128"):
        MapEncoder(fake.driver()).encode(PLAIN, 0)


def test_a_map_is_packed_into_its_slot_and_may_change() -> None:
    fake = FakeDriver((4, 128, 8))
    runtime = CudaRuntime(fake.driver())
    kernel = runtime.load(CUBIN, "k")
    args = (5, None, None)
    run = runtime.prepare(kernel, ("i32", "map", "ptr"), args, {}, changing=(1,))
    run(LaunchShape(grid=(1, 1, 1), block=(1, 1, 1)), (PLAIN, FakeTensor(4096)))
    packed = fake.launches[0].packed
    assert packed[1] == b"".join((4096 + i).to_bytes(8, "little") for i in range(16))
    assert packed[0] == (5).to_bytes(4, "little")
    assert packed[2] == bytes(8)
    assert "1 map 128 bytes" in str(run.arguments)
