"""Tensor copies through launch, against indexing with NumPy, and what is found in wrong ones."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from copy_kernels import (
    CLUSTER_SYNC,
    EXPECT,
    INIT,
    TILE,
    WAIT,
    counting,
    fault,
    load_tile,
    random,
    run,
    store_tile,
)

from humming_sim import PtxError, TensorMap, UnsupportedInstruction

SEEDS = [None, 0, 1]
FENCE = "fence.proxy.async.shared::cta; bar.sync 0;"
END = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
LOAD = "cp.async.bulk.tensor.{0}d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.{0}d.global.shared::cta.tile.bulk_group"


def load(rank: int, coordinates: str, bytes_: int, at: str = "%tile") -> str:
    text = EXPECT.format(bytes_)
    return text + f"@%first {LOAD.format(rank)} [{at}], [%m0, {{{coordinates}}}], [%bar];"


def store(rank: int, coordinates: str, what: str = STORE, policy: str = "") -> str:
    return f"@%first {what.format(rank)} [%m0, {{{coordinates}}}], [%tile]{policy};" + END


def matrix(array: npt.NDArray[Any], box: tuple[int, int], **changes: Any) -> TensorMap:
    """A map of a matrix [rows, columns]."""
    names = {2: "float16", 4: "uint32", 8: "int64", 1: "uint8"}
    base: dict[str, Any] = {
        "buffer": array,
        "element": names[array.itemsize],
        "dims": array.shape[::-1],
        "strides": (array.strides[0],),
        "box": box,
    }
    return TensorMap(**(base | changes))


def tile_of(array: npt.NDArray[Any], first: tuple[int, int], shape: tuple[int, int]) -> Any:
    """A tile of a matrix from (row, column) on; zeros outside."""
    out = np.zeros(shape, array.dtype)
    for row in range(shape[0]):
        for column in range(shape[1]):
            r, c = row + first[0], column + first[1]
            if 0 <= r < array.shape[0] and 0 <= c < array.shape[1]:
                out[row, column] = array[r, c]
    return out


def image(tile: npt.NDArray[Any], span: int) -> npt.NDArray[np.uint8]:
    """Bytes of shared memory of a tile whose rows are `span` bytes, swizzled in 16-byte chunks."""
    raw = np.ascontiguousarray(tile).view(np.uint8).reshape(-1, 16)
    out = np.zeros_like(raw)
    for chunk in range(len(raw)):
        line = chunk * 16 // 128
        out[chunk ^ (line % (span // 16) if span else 0)] = raw[chunk]
    return out.reshape(-1)


# ----------------------------------------------------------------------------------------- loads


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("first", [(0, 0), (8, 16), (-3, -8), (60, 96)])
@pytest.mark.parametrize(("swizzle", "columns"), [("none", 64), ("b128", 64), ("b64", 32)])
def test_a_matrix_tile_is_loaded(
    swizzle: str, columns: int, first: tuple[int, int], seed: int | None
) -> None:
    source, result = random(1, 64 * 100, np.uint16), np.zeros(1024, np.uint32)
    source = np.pad(source.reshape(64, 100), ((0, 0), (0, 4)))
    array = source.view(np.float16)
    tensor = matrix(array, (columns, 16), dims=(100, 64), swizzle=swizzle)
    size = 16 * columns * 2
    body = INIT + load(2, f"{first[1]}, {first[0]}", size) + WAIT.format(0) + store_tile(size // 4)
    run(body, [tensor, result], seed=seed)
    tile = tile_of(source[:, :100], first, (16, columns))
    span = {"none": 0, "b128": 128, "b64": 64}[swizzle]
    assert (result.view(np.uint8)[:size] == image(tile, span)).all()


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_tensors_of_other_ranks_are_loaded(rank: int) -> None:
    shape = (3, 4, 5, 6, 32)[-rank:]
    source = random(2, int(np.prod(shape)), np.uint32).reshape(shape)
    box = (1, 2, 1, 3, 16)[-rank:]
    first = (2, 1, 4, 2, 12)[-rank:]
    tensor = TensorMap(
        buffer=source,
        element="uint32",
        dims=shape[::-1],
        strides=source.strides[-2::-1],
        box=box[::-1],
    )
    size = int(np.prod(box)) * 4
    coordinates = ", ".join(map(str, first[::-1]))
    result = np.zeros(1024, np.uint32)
    body = INIT + load(rank, coordinates, size) + WAIT.format(0) + store_tile(size // 4)
    run(body, [tensor, result])
    expected = source[tuple(slice(f, f + b) for f, b in zip(first, box, strict=True))]
    assert (result[: size // 4] == expected.reshape(-1)).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_cta_loads_its_own_tile_with_run_time_coordinates(seed: int | None) -> None:
    source, result = counting(64 * 64).reshape(64, 64), np.zeros((4, 256), np.uint32)
    body = INIT + "mov.u32 %r0, %ctaid.x; mul.lo.u32 %r1, %r0, 8; mul.lo.u32 %r2, %r0, 16;"
    body += load(2, "%r1, %r2", 1024) + WAIT.format(0) + "mov.u32 %rank, %r0;"
    body += store_tile(256, 0, 1024)
    run(body, [matrix(source, (16, 16)), result], grid=4, seed=seed)
    for cta in range(4):
        expected = tile_of(source, (16 * cta, 8 * cta), (16, 16))
        assert (result[cta] == expected.reshape(-1)).all()


def test_different_threads_may_use_different_maps() -> None:
    first, second = counting(256).reshape(16, 16), counting(256, start=1000).reshape(16, 16)
    result = np.zeros(64, np.uint32)
    body = INIT + EXPECT.format(256) + "setp.eq.u32 %p0, %t, 0; selp.b64 %x, %m0, %m1, %p0;"
    body += "mad.lo.u32 %r0, %t, 128, %tile; setp.lt.u32 %p1, %t, 2;"
    body += f"@%p1 {LOAD.format(2)} [%r0], [%x, {{%t, 4}}], [%bar];"
    body = body.replace("{%t, 4}", "{0, 4}") + WAIT.format(0) + store_tile(64)
    run(body, [matrix(first, (4, 8)), matrix(second, (4, 8)), result])
    assert (result[:32] == first[4:12, :4].reshape(-1)).all()
    assert (result[32:] == second[4:12, :4].reshape(-1)).all()


def test_nan_fills_what_lies_outside() -> None:
    source, result = np.ones((8, 8), np.float16), np.zeros(64, np.uint32)
    body = INIT + load(2, "0, 4", 128) + WAIT.format(0) + store_tile(32)
    run(body, [matrix(source, (8, 8), fill="nan"), result])
    halves = result.view(np.uint16)[:64]
    assert (halves[:32] == 0x3C00).all()
    assert (halves[32:] == 0x7FF7).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_gather4_loads_four_rows(seed: int | None) -> None:
    source, result = counting(32 * 16).reshape(32, 16), np.zeros(64, np.uint32)
    text = LOAD.format(2).replace(".tile.", ".tile::gather4.")
    body = INIT + EXPECT.format(256)
    body += f"@%first {text} [%tile], [%m0, {{0, 30, 2, -1, 7}}], [%bar];"
    body += WAIT.format(0) + store_tile(64)
    run(body, [matrix(source, (16, 1)), result], target="sm_100a", seed=seed)
    zero = np.zeros(16, np.uint32)
    assert (result.reshape(4, 16) == [source[30], source[2], zero, source[7]]).all()


@pytest.mark.parametrize(
    ("element", "bits", "data"), [("16u4_align16b", 4, 8), ("16u6_align16b", 6, 12)]
)
def test_sub_byte_elements_are_spread_over_16_bytes(element: str, bits: int, data: int) -> None:
    source = random(3, 16 * 256 * bits // 8).reshape(16, -1)
    tensor = TensorMap(
        buffer=source,
        element=element,
        dims=(256, 16),
        strides=(source.strides[0],),
        box=(128, 8),
    )
    result = np.full(1024, 0xFFFFFFFF, np.uint32)
    # Only the data is read back: nobody writes the padding.
    reads = "mad.lo.u32 %at, %t, 16, %tile; mad.wide.u32 %x, %t, 16, %g0;"
    for byte in range(0, data, 4):
        reads += f"ld.shared.b32 %v, [%at+{byte}]; st.global.b32 [%x+{byte}], %v;"
    body = INIT + load(2, "128, 4", 8 * 128 * bits // 8) + WAIT.format(0) + reads
    run(body, [tensor, result], target="sm_100a")
    found = result.view(np.uint8).reshape(-1, 16)[:64, :data]
    assert (found == source[4:12, 8 * data :].reshape(64, data)).all()
    padding = reads + f"ld.shared.b32 %v, [%at+{data}]; st.global.b32 [%x], %v;"
    body = body.replace(reads, padding)
    fault(body, [tensor, result], "uninitialised", "ld.shared.b32", target="sm_100a")


# ---------------------------------------------------------------------------------------- stores


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("first", [(0, 0), (8, 16), (60, 96)])
def test_a_matrix_tile_is_stored_inside_of_the_tensor(
    first: tuple[int, int], seed: int | None
) -> None:
    target, source = np.zeros((64, 112), np.uint16), random(4, TILE, np.uint8).view(np.uint32)
    tile = source.view(np.uint16)[:1024].reshape(16, 64)
    tensor = matrix(target.view(np.float16), (64, 16), swizzle="b128")
    body = INIT + load_tile(512, 0) + FENCE + store(2, f"{first[1]}, {first[0]}")
    run(body, [tensor, np.ascontiguousarray(image(tile, 128)).view(np.uint32)], seed=seed)
    expected = np.zeros_like(target)
    rows, columns = min(16, 64 - first[0]), min(64, 112 - first[1])
    expected[first[0] :, first[1] :][:16, :64] = tile[:rows, :columns]
    assert (target == expected).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_cta_stores_its_own_tile_and_none_outside(seed: int | None) -> None:
    """Four CTAs store below each other into a tensor of 40 rows; the last lies outside."""
    target, source = np.zeros((64, 16), np.uint32), counting(256)
    body = INIT + load_tile(256, 0) + FENCE + "mov.u32 %r0, %ctaid.x; mul.lo.u32 %r1, %r0, 16;"
    body += store(2, "0, %r1")
    run(body, [matrix(target, (16, 16), dims=(16, 40)), source], grid=4, seed=seed)
    tile = source.reshape(16, 16)
    assert (target == np.vstack([tile, tile, tile[:8], np.zeros((24, 16))])).all()


def test_a_row_that_ends_inside_of_16_bytes_is_stored_to_the_end_of_them() -> None:
    target, source = np.zeros((16, 24), np.uint16), counting(128)
    policy = "createpolicy.fractional.L2::evict_first.b64 %x;"
    text = store(2, "0, 0", STORE + ".L2::cache_hint", ", %x")
    body = INIT + load_tile(128, 0) + FENCE + policy + text
    run(body, [matrix(target.view(np.float16), (16, 16), dims=(10, 16)), source])
    assert (target[:, :16] == source.view(np.uint16).reshape(16, 16)).all()
    assert (target[:, 16:] == 0).all()


def test_scatter4_stores_four_rows() -> None:
    target, source = np.zeros((32, 16), np.uint32), counting(64)
    text = STORE.replace(".tile.", ".tile::scatter4.")
    body = INIT + load_tile(64, 0) + FENCE + store(2, "0, 30, 2, 40, 7", text)
    run(body, [matrix(target, (16, 1)), source], target="sm_100a")
    expected = np.zeros_like(target)
    expected[[30, 2, 7]] = source.reshape(4, 16)[[0, 1, 3]]
    assert (target == expected).all()


def test_six_bit_elements_are_packed_on_the_way_out() -> None:
    target, source = np.zeros((8, 96), np.uint8), random(5, 1024)
    tensor = TensorMap(
        buffer=target, element="16u6_align16b", dims=(128, 8), strides=(96,), box=(128, 8)
    )
    body = INIT + load_tile(256, 0) + FENCE + store(2, "0, 0")
    run(body, [tensor, source], target="sm_100a")
    for row in range(8):
        packed = sum(int(v & 63) << (6 * k) for k, v in enumerate(source[128 * row :][:128]))
        assert target[row].tobytes() == packed.to_bytes(96, "little")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", ["add", "max"])
def test_a_tile_is_combined_with_the_tensor(how: str, seed: int | None) -> None:
    rng = np.random.default_rng(6)
    before = rng.normal(size=(16, 64)).astype(ml_dtypes.bfloat16)
    coming = rng.normal(size=(16, 64)).astype(ml_dtypes.bfloat16)
    target = before.view(np.uint16).copy()
    tensor = matrix(target, (64, 16), element="bfloat16", dims=(64, 12))
    text = f"cp.reduce.async.bulk.tensor.{{0}}d.global.shared::cta.{how}.tile.bulk_group"
    body = INIT + load_tile(512, 0) + FENCE + store(2, "0, 0", text)
    run(body, [tensor, np.ascontiguousarray(coming).view(np.uint32)], seed=seed)
    wide = {"add": np.add, "max": np.maximum}[how](before.astype("f4"), coming.astype("f4"))
    assert (target[:12] == wide.astype(ml_dtypes.bfloat16).view(np.uint16)[:12]).all()
    assert (target[12:] == before.view(np.uint16)[12:]).all()


# ---------------------------------------------------------------------------------------- clusters

PAIR = "cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile"
PAIR += ".mbarrier::complete_tx::bytes"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pair_of_ctas_counts_all_bytes_at_the_even_cta(seed: int | None) -> None:
    """Each CTA loads its rows; both signal the even CTA's mbarrier (address bit 24 cleared)."""
    source, result = counting(512).reshape(32, 16), np.zeros((2, 256), np.uint32)
    body = INIT + CLUSTER_SYNC + "setp.eq.u32 %p0, %rank, 0; and.pred %p1, %p0, %first;"
    body += "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 2048;"
    body += "and.b32 %r1, %bar, 0xFEFFFFFF; mul.lo.u32 %r2, %rank, 16;"
    body += f"@%first {PAIR} [%tile], [%m0, {{0, %r2}}], [%r1];"
    body += "@!%p0 bra DONE;" + WAIT.format(0) + "DONE:" + CLUSTER_SYNC + store_tile(256, 0, 1024)
    run(body, [matrix(source, (16, 16)), result], target="sm_100a", cluster=2, seed=seed)
    assert (result.reshape(-1) == source.reshape(-1)).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_multicast_tile_reaches_both_ctas(seed: int | None) -> None:
    source, result = counting(256).reshape(16, 16), np.zeros((2, 256), np.uint32)
    text = LOAD.format(2).replace("shared::cta", "shared::cluster") + ".multicast::cluster"
    body = INIT + CLUSTER_SYNC + EXPECT.format(1024) + "mov.b16 %h0, 3;"
    body += "setp.eq.and.u32 %p0, %rank, 1, %first;"
    body += f"@%p0 {text} [%tile], [%m0, {{0, 0}}], [%bar], %h0;"
    body += WAIT.format(0) + store_tile(256, 0, 1024) + CLUSTER_SYNC
    run(body, [matrix(source, (16, 16)), result], cluster=2, seed=seed)
    assert (result == source.reshape(-1)).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_multicast_of_a_pair_signals_the_ctas_of_one_parity(seed: int | None) -> None:
    """CTA 2 sends a tile to all four; the mbarriers of CTAs 0 and 2 count two tiles each."""
    source, result = counting(256).reshape(16, 16), np.zeros((4, 256), np.uint32)
    text = PAIR + ".multicast::cluster.L2::cache_hint"
    body = INIT + CLUSTER_SYNC + "and.b32 %r2, %rank, 1; setp.eq.u32 %p0, %r2, 0;"
    body += "and.pred %p1, %p0, %first; createpolicy.fractional.L2::evict_last.b64 %x;"
    body += "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 2048; mov.b16 %h0, 15;"
    body += "setp.eq.and.u32 %p2, %rank, 2, %first;"
    body += f"@%p2 {text} [%tile], [%m0, {{0, 0}}], [%bar], %h0, %x;"
    body += "@!%p0 bra DONE;" + WAIT.format(0) + "DONE:" + CLUSTER_SYNC + store_tile(256, 0, 1024)
    run(body, [matrix(source, (16, 16)), result], target="sm_100a", cluster=4, seed=seed)
    assert (result == source.reshape(-1)).all()


def test_without_cta_group_2_the_mbarrier_must_be_beside_the_data() -> None:
    body = INIT + CLUSTER_SYNC + "xor.b32 %r8, %rank, 1; mapa.shared::cluster.u32 %r1, %bar, %r8;"
    text = PAIR.replace(".cta_group::2", ".cta_group::1")
    body += f"@%first {text} [%tile], [%m0, {{0, 0}}], [%r1];" + WAIT.format(0)
    source = counting(256).reshape(16, 16)
    args = [matrix(source, (16, 16)), np.zeros(4, np.uint32)]
    fault(body, args, "cluster", f"@%first {text}", target="sm_100a", cluster=2)


# ---------------------------------------------------------------------------------------- faults


def wide() -> npt.NDArray[np.uint32]:
    return counting(64 * 64).reshape(64, 64)


FAULTS: dict[str, tuple[str, str, str]] = {
    "a misaligned tile": (load(2, "0, 0", 1024, "%tile+64"), "alignment", LOAD.format(2)),
    "a tile beyond shared memory": (load(2, "0, 0", 1024, "%tile+4096"), "bounds", LOAD.format(2)),
    "a column inside of 16 bytes": (load(2, "2, 0", 1024), "alignment", LOAD.format(2)),
    "a map of another rank": (load(3, "0, 0, 0", 1024), "descriptor", LOAD.format(3)),
    "a store at negative coordinates": (store(2, "0, -4"), "bounds", STORE.format(2)),
    "a reduction of another type": (
        store(2, "0, 0", "cp.reduce.async.bulk.tensor.{0}d.global.shared::cta.dec.bulk_group"),
        "descriptor",
        "cp.reduce.async.bulk.tensor.2d",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_wrong_uses_are_found_at_the_copy(name: str) -> None:
    text, check, at = FAULTS[name]
    tensor = matrix(wide(), (16, 16), element="int32")
    body = INIT + load_tile(256, 0) + FENCE + text + WAIT.format(0)
    fault(body, [tensor, counting(1024)], check, f"@%first {at}")


def test_a_tensor_that_its_buffer_does_not_hold_is_found() -> None:
    tensor = matrix(wide(), (16, 16), dims=(64, 128))
    finding = fault(
        INIT + load(2, "0, 60", 1024) + WAIT.format(0),
        [tensor, counting(4)],
        "bounds",
        f"@%first {LOAD.format(2)}",
    )
    assert finding.space == "global"


def test_a_store_without_a_proxy_fence_is_found() -> None:
    body = INIT + load_tile(256, 0) + "bar.sync 0;" + store(2, "0, 0")
    args = [matrix(wide(), (16, 16)), counting(1024)]
    fault(body, args, "proxy", f"@%first {STORE.format(2)}")


def test_a_tile_that_changes_before_it_is_stored_is_found() -> None:
    text = store(2, "0, 0").replace(END, "")
    body = INIT + load_tile(256, 0) + FENCE + text + "cp.async.bulk.commit_group;"
    body += "@%first st.shared.b32 [%tile], 5; cp.async.bulk.wait_group 0;"
    args = [matrix(wide(), (16, 16)), counting(1024)]
    fault(body, args, "async", f"@%first {STORE.format(2)}")


@pytest.mark.parametrize("announced", [1008, 1040])
def test_announcing_other_than_the_bytes_of_the_box_is_found(announced: int) -> None:
    body = INIT + load(2, "0, 0", announced) + WAIT.format(0)
    fault(body, [matrix(wide(), (16, 16)), counting(4)], "deadlock", "mbarrier.try_wait")


def test_reading_a_tile_too_early_is_found_at_the_read() -> None:
    body = INIT + load(2, "0, 0", 1024) + store_tile(256) + WAIT.format(0)
    fault(body, [matrix(wide(), (16, 16)), counting(1024)], "async", "@%some ld.shared")


@pytest.mark.parametrize(
    ("element", "swizzle"), [("uint32", "b128_atom_32b"), ("16u4_align8b", "none")]
)
def test_maps_that_hopper_does_not_know_are_found_on_sm_90a(element: str, swizzle: str) -> None:
    tensor = matrix(wide(), (32, 8), element=element, swizzle=swizzle)
    body = INIT + load(2, "0, 0", 1024) + WAIT.format(0)
    finding = fault(body, [tensor, counting(4)], "descriptor", f"@%first {LOAD.format(2)}")
    assert "10.0" in finding.message


@pytest.mark.parametrize(
    "text",
    [
        LOAD.format(2) + " [%tile], [%m0], [%bar];",
        LOAD.format(2) + " [%tile], [%m0, {0, 0, 0}], [%bar];",
        LOAD.format(3).replace(".tile.", ".tile::gather4.")
        + " [%tile], [%m0, {0, 0, 0, 0, 0}], [%bar];",
        LOAD.format(2) + ".later [%tile], [%m0, {0, 0}], [%bar];",
        STORE.format(2) + " [%tile], [%m0, {0, 0}];",
    ],
)
def test_what_is_no_such_instruction_is_refused(text: str) -> None:
    with pytest.raises(PtxError) as caught:
        run(text, [matrix(wide(), (16, 16)), counting(4)], legal=False)
    assert caught.value.line > 0


@pytest.mark.parametrize("mode", ["im2col", "im2col::w"])
def test_im2col_is_refused_by_name(mode: str) -> None:
    text = (
        LOAD.format(3).replace(".tile.", f".{mode}.") + " [%tile], [%m0, {0, 0, 0}], [%bar], {%h0};"
    )
    with pytest.raises(UnsupportedInstruction, match=mode):
        run(text, [matrix(wide(), (16, 16)), counting(4)], legal=False)


def test_a_prefetch_checks_its_map_and_coordinates() -> None:
    text = "prefetch.tensormap [%m0]; createpolicy.fractional.L2::evict_last.b64 %x;"
    text += "cp.async.bulk.prefetch.tensor.2d.L2.global.tile.L2::cache_hint [%m0, {{4, 0}}], %x;"
    text += "cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%m0, {{{0}, 0}}];"
    args = [matrix(wide(), (16, 16)), counting(4)]
    run(text.format(4), args)
    fault(text.format(3), args, "alignment", "cp.async.bulk.prefetch.tensor")
