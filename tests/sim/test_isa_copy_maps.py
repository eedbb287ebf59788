"""Tensor maps that a kernel makes or changes itself, and cache policies."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from copy_kernels import EXPECT, INIT, WAIT, counting, fault, run, store_tile

from humming_sim import PtxError, TensorMap

SEEDS = [None, 0, 1]

#: One warp copies the map at %m0 (a parameter) to the tile, 4 bytes a lane.
FETCH = """
setp.lt.u32 %p0, %t, 32;
mad.lo.u32 %r0, %t, 4, %tile; mad.wide.u32 %rd0, %t, 4, %m0;
@%p0 ld.b32 %v, [%rd0]; @%p0 st.shared.b32 [%r0], %v;
bar.sync 0;
"""
#: One warp copies the map in the tile to buffer 1 and releases it.
PUBLISH = """
bar.sync 0;
setp.ge.u32 %p1, %t, 32; @%p1 bra PUBLISHED;
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned
    [%g1], [%tile], 128;
PUBLISHED:
bar.sync 0;
"""
ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu [%g1], 128;"
REPLACE = "@%first tensormap.replace.tile.{0}.shared::cta.b1024.{1} [%tile], {2};"
#: Thread 0 loads a tile of 16 x 8 words through the map in buffer 1.
LOAD = (
    EXPECT.format(512)
    + """
@%first cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
    [%tile+1024], [%g1, {0, 4}], [%bar];
"""
    + WAIT.format(0)
    + "add.u32 %tile, %tile, 1024;"
    + store_tile(128)
)


def tensor(array: npt.NDArray[Any], **changes: Any) -> TensorMap:
    base: dict[str, Any] = {
        "buffer": array,
        "element": "uint32",
        "dims": (64, 32),
        "strides": (256,),
        "box": (16, 8),
    }
    return TensorMap(**(base | changes))


def arguments() -> list[Any]:
    """A map of buffer 2, the result, a place for a map, the map's buffer, and another matrix."""
    matrix = counting(64 * 32).reshape(32, 64)
    other = counting(64 * 32, start=10_000).reshape(32, 64)
    place = np.zeros(256, np.uint8)
    return [tensor(matrix), np.zeros(128, np.uint32), place, matrix, other]


def matrices(args: list[Any]) -> list[npt.NDArray[Any]]:
    return [args[3][4:12, :16].reshape(-1), args[4][4:12, :16].reshape(-1)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_map_with_another_address_loads_from_there(seed: int | None) -> None:
    args = arguments()
    body = INIT + FETCH + REPLACE.format("global_address", "b64", "%g3") + PUBLISH
    run(body + ACQUIRE + LOAD, args, seed=seed)
    assert (args[1] == matrices(args)[1]).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_map_is_made_from_nothing(seed: int | None) -> None:
    """As Triton does: 128 zero bytes, then every field."""
    fields = [
        ("global_address", "b64", "%g3"),
        ("rank", "b32", "1"),
        ("box_dim", "b32", "0, 16"),
        ("box_dim", "b32", "1, 8"),
        ("global_dim", "b32", "0, 64"),
        ("global_dim", "b32", "1, 32"),
        ("global_stride", "b64", "0, 256"),
        ("element_stride", "b32", "0, 1"),
        ("element_stride", "b32", "1, 1"),
        ("elemtype", "b32", "2"),
        ("interleave_layout", "b32", "0"),
        ("swizzle_mode", "b32", "0"),
        ("fill_mode", "b32", "0"),
    ]
    zero = "setp.lt.u32 %p0, %t, 32; mad.lo.u32 %r0, %t, 4, %tile; @%p0 st.shared.b32 [%r0], 0;"
    zero += "bar.sync 0;"
    changes = "".join(REPLACE.format(*field) for field in fields)
    args = arguments()
    run(INIT + zero + changes + PUBLISH + ACQUIRE + LOAD, args, seed=seed)
    assert (args[1] == matrices(args)[1]).all()


def test_a_map_in_global_memory_is_changed_in_place() -> None:
    """The map comes as bytes in a buffer; release and acquire fences make the change visible."""
    args = arguments()
    copy = "setp.lt.u32 %p0, %t, 32; mad.wide.u32 %rd0, %t, 4, %m0; mad.wide.u32 %rd1, %t, 4, %g1;"
    copy += "@%p0 ld.b32 %v, [%rd0]; @%p0 st.global.b32 [%rd1], %v; bar.sync 0;"
    change = "@%first tensormap.replace.tile.global_address.global.b1024.b64 [%g1], %g3;"
    release = "@%first fence.proxy.tensormap::generic.release.gpu;"
    run(INIT + copy + change + release + ACQUIRE + LOAD, args)
    assert (args[1] == matrices(args)[1]).all()
    finding = fault(INIT + copy + change + ACQUIRE + LOAD, arguments(), "proxy", "@%first cp.async")
    assert "release" in finding.message
    body = INIT + copy + change + release + "bar.sync 0;" + LOAD
    finding = fault(body, arguments(), "proxy", "@%first cp.async")
    assert "acquire" in finding.message


def test_a_published_map_must_be_acquired() -> None:
    body = INIT + FETCH + REPLACE.format("global_address", "b64", "%g3") + PUBLISH + LOAD
    fault(body, arguments(), "proxy", "@%first cp.async.bulk.tensor")


WRONG: dict[str, tuple[str, str]] = {
    "a box above 256": (REPLACE.format("box_dim", "b32", "0, 257"), "box_dim"),
    "an element type that is none": (REPLACE.format("elemtype", "b32", "16"), "elemtype"),
}


@pytest.mark.parametrize("name", WRONG)
def test_values_that_do_not_fit_are_found_at_the_change(name: str) -> None:
    change, message = WRONG[name]
    body = INIT + FETCH + change + PUBLISH + ACQUIRE + LOAD
    finding = fault(body, arguments(), "descriptor", "@%first tensormap.replace", legal=False)
    assert message in finding.message


def test_fields_that_do_not_fit_each_other_are_found_at_the_copy() -> None:
    body = INIT + FETCH + REPLACE.format("swizzle_mode", "b32", "1") + PUBLISH + ACQUIRE + LOAD
    finding = fault(body, arguments(), "descriptor", "@%first cp.async.bulk.tensor")
    assert "at most 32 with swizzle B32" in finding.message


def test_bytes_that_are_no_map_are_found() -> None:
    args = arguments()
    args[2][:] = np.arange(256)
    finding = fault(INIT + LOAD, args, "descriptor", "@%first cp.async.bulk.tensor")
    assert "humming_sim.TensorMap" in finding.message


@pytest.mark.parametrize(
    ("place", "check", "message"),
    [
        ("cvt.u64.u32 %x, %tile; cvta.shared.u64 %x, %x;", "descriptor", "shared memory"),
        ("add.s64 %x, %g1, 32;", "alignment", "multiple of 64"),
        ("add.s64 %x, %g1, 512;", "bounds", "buffer"),
    ],
)
def test_a_map_that_lies_in_the_wrong_place_is_found(place: str, check: str, message: str) -> None:
    body = INIT + place + LOAD.replace("[%g1,", "[%x,")
    finding = fault(body, arguments(), check, "@%first cp.async.bulk.tensor")
    assert message in finding.message


def test_a_warp_publishes_a_map_together() -> None:
    part = PUBLISH.replace("setp.ge.u32 %p1, %t, 32;", "setp.ge.u32 %p1, %t, 31;")
    finding = fault(INIT + FETCH + part + ACQUIRE + LOAD, arguments(), "deadlock", "")
    assert "tensormap.cp_fenceproxy" in finding.message
    assert "31 threads" in finding.message


@pytest.mark.parametrize(
    "text",
    [
        "tensormap.replace.tile.rank.shared::cta.b1024.b64 [%tile], %rd0;",
        "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%tile], %r0, 8;",
        "tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%tile], %r0;",
        "tensormap.replace.tile.colour.shared::cta.b1024.b32 [%tile], 1;",
        "fence.proxy.tensormap::generic.acquire.gpu [%g0], 64;",
        "fence.proxy.tensormap::generic.acquire.gpu;",
    ],
)
def test_what_is_no_such_instruction_is_refused(text: str) -> None:
    with pytest.raises(PtxError) as caught:
        run(text, arguments(), legal=False)
    assert caught.value.line > 0


# ----------------------------------------------------------------------------------- cache policies

POLICIES = [
    "createpolicy.fractional.L2::evict_last.b64 %x;",
    "createpolicy.fractional.L2::evict_first.L2::evict_unchanged.b64 %x, 0.5;",
    "createpolicy.range.global.L2::evict_last.L2::evict_first.b64 %x, [%g0], 256, 512;",
    "createpolicy.cvt.L2.b64 %x, %g0;",
]


@pytest.mark.parametrize("text", POLICIES)
def test_policies_are_made_and_may_be_used(text: str) -> None:
    result = np.zeros(4, np.uint32)
    run(
        text + "@!%first ld.global.L2::cache_hint.b32 %v, [%g0], %x;".replace("@!%first ", ""),
        [result],
    )


@pytest.mark.parametrize(
    "text",
    [
        "mov.f32 %f0, 0f00000000; createpolicy.fractional.L2::evict_last.b64 %x, %f0;",
        "mov.f32 %f0, 0f40000000; createpolicy.fractional.L2::evict_last.b64 %x, %f0;",
        "mov.u32 %r0, 512; createpolicy.range.L2::evict_last.b64 %x, [%g0], %r0, 256;",
    ],
)
def test_policies_of_impossible_extents_are_found(text: str) -> None:
    fault(text, [np.zeros(4, np.uint32)], "numeric", "createpolicy")
