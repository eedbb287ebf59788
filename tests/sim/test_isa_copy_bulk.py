"""Bulk copies and reductions of one CTA through launch, and what is found in wrong ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from copy_kernels import EXPECT, INIT, WAIT, counting, fault, load_tile, random, run, store_tile

from humming_sim import PtxError

SEEDS = [None, 0, 1]
FENCE = "fence.proxy.async.shared::cta; bar.sync 0;"
COMMIT = "cp.async.bulk.commit_group;"
END = COMMIT + "cp.async.bulk.wait_group 0;"

#: Thread 0 copies {0} bytes from buffer 1 to the tile.
LOAD = (
    "@%first cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%tile], [%g1], {0}, "
    "[%bar];"
)
#: Thread 0 copies {0} bytes of the tile to buffer 0.
STORE = "@%first cp.async.bulk.global.shared::cta.bulk_group [%g0], [%tile], {0};"


def zeros(count: int = 1024) -> npt.NDArray[np.uint32]:
    return np.zeros(count, np.uint32)


# ----------------------------------------------------------------------------------------- loads


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [16, 32, 4096])
def test_a_load_brings_its_bytes_and_completes_the_mbarrier(size: int, seed: int | None) -> None:
    result, source = zeros(), counting(1024)
    body = INIT + EXPECT.format(size) + LOAD.format(size) + WAIT.format(0) + store_tile(size // 4)
    run(body, [result, source], seed=seed)
    assert (result[: size // 4] == source[: size // 4]).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_several_threads_load_pieces_of_their_own(seed: int | None) -> None:
    """64 threads load 64 bytes each; their sizes come from registers."""
    body = INIT + EXPECT.format(4096)
    body += """
    mad.lo.u32 %r0, %t, 64, %tile; mad.wide.u32 %rd0, %t, 64, %g1; mov.u32 %r1, 64;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%rd0], %r1, [%bar];
    """
    result, source = zeros(), counting(1024)
    run(body + WAIT.format(0) + store_tile(), [result, source], seed=seed)
    assert (result == source).all()


def test_a_cache_policy_changes_nothing() -> None:
    policy = "createpolicy.fractional.L2::evict_first.b64 %rd1;"
    load = LOAD.replace("bytes [", "bytes.L2::cache_hint [").replace("[%bar]", "[%bar], %rd1")
    result, source = zeros(), counting(1024)
    body = INIT + policy + EXPECT.format(64) + load.format(64) + WAIT.format(0) + store_tile(16)
    run(body, [result, source])
    assert (result[:16] == source[:16]).all()


def test_reading_the_tile_before_the_mbarrier_is_found_at_the_read() -> None:
    body = INIT + EXPECT.format(64) + LOAD.format(64) + store_tile(16) + WAIT.format(0)
    finding = fault(body, [zeros(), counting(1024)], "async", "@%some ld.shared.b32")
    assert "unfinished" in finding.message


def test_reading_after_waiting_for_the_wrong_parity_is_found() -> None:
    wait = WAIT.format(0).replace("[%bar], 0", "[%bar], 1")
    body = INIT + EXPECT.format(64) + LOAD.format(64) + wait + store_tile(16)
    fault(body, [zeros(), counting(1024)], "async", "@%some ld.shared.b32")


def test_announcing_too_few_bytes_is_found() -> None:
    body = INIT + EXPECT.format(48) + LOAD.format(64) + WAIT.format(0) + store_tile(16)
    finding = fault(body, [zeros(), counting(1024)], "deadlock", "mbarrier.try_wait")
    assert "-16 bytes" in finding.message


def test_announcing_too_many_bytes_is_found() -> None:
    body = INIT + EXPECT.format(80) + LOAD.format(64) + WAIT.format(0) + store_tile(16)
    finding = fault(body, [zeros(), counting(1024)], "deadlock", "mbarrier.try_wait")
    assert "16 bytes" in finding.message


def test_leaving_before_a_load_has_come_is_found_at_the_load() -> None:
    body = INIT + EXPECT.format(64) + LOAD.format(64)
    finding = fault(body, [zeros(), counting(1024)], "exit", "@%first cp.async.bulk.shared::cta")
    assert "still in flight" in finding.message


def test_an_mbarrier_whose_initialisation_is_not_fenced_is_found() -> None:
    init = INIT.replace("fence.mbarrier_init.release.cluster;", "")
    body = init + EXPECT.format(64) + LOAD.format(64) + WAIT.format(0)
    fault(body, [zeros(), counting(1024)], "fence", "@%first cp.async.bulk.shared::cta")


def test_an_mbarrier_that_was_never_initialised_is_found() -> None:
    body = "setp.eq.u32 %first, %t, 0;" + LOAD.format(64)
    fault(body, [zeros(), counting(1024)], "mbarrier", "@%first cp.async.bulk.shared::cta")


WRONG_LOADS: dict[str, tuple[str, str, str]] = {
    "size of 24": ("{0}", "%r1", "alignment"),
    "size of 4 GiB": ("{0}", "%r2", "bounds"),
    "destination at 8": ("[%tile]", "[%tile+8]", "alignment"),
    "source at 4": ("[%g1]", "[%g1+4]", "alignment"),
    "source beyond the buffer": ("[%g1]", "[%g1+4080]", "bounds"),
    "destination beyond shared memory": ("[%tile]", "[%tile+4096]", "bounds"),
}


@pytest.mark.parametrize("name", WRONG_LOADS)
def test_wrong_operands_of_a_load_are_found(name: str) -> None:
    old, new, check = WRONG_LOADS[name]
    load = LOAD.replace(old, new).replace("{0}", "64")
    body = (
        INIT
        + EXPECT.format(64)
        + "mov.u32 %r1, 24; mov.u32 %r2, 0xFFFFFFF0;"
        + load
        + WAIT.format(0)
    )
    finding = fault(body, [zeros(), counting(1024)], check, "@%first cp.async.bulk.shared::cta")
    assert (finding.warp, finding.lane) in ((0, 0), (0, None))
    assert name.startswith("size") or finding.address is not None


# ---------------------------------------------------------------------------------------- stores


@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_writes_its_bytes(seed: int | None) -> None:
    result, source = zeros(), counting(1024)
    run(INIT + load_tile(1024, 1) + FENCE + STORE.format(2048) + END, [result, source], seed=seed)
    assert (result[:512] == source[:512]).all()
    assert (result[512:] == 0).all()


def test_a_store_without_a_proxy_fence_is_found_at_the_store() -> None:
    for fence in ("", "bar.sync 0;", "fence.proxy.async.global; bar.sync 0;"):
        body = INIT + load_tile(1024, 1) + fence + STORE.format(2048) + END
        fault(body, [zeros(), counting(1024)], "proxy", "@%first cp.async.bulk.global")


def test_a_fence_that_comes_after_the_store_does_not_help() -> None:
    body = INIT + load_tile(1024, 1) + "bar.sync 0;" + STORE.format(2048) + FENCE + END
    fault(body, [zeros(), counting(1024)], "proxy", "@%first cp.async.bulk.global")


def test_storing_what_nothing_wrote_is_found() -> None:
    body = INIT + FENCE + STORE.format(64) + END
    fault(body, [zeros(), counting(1024)], "uninitialised", "@%first cp.async.bulk.global")


CHANGE = "@%first st.shared.b32 [%tile+32], 99;"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_source_may_change_once_it_has_been_read(seed: int | None) -> None:
    body = INIT + load_tile(1024, 1) + FENCE + STORE.format(2048) + COMMIT
    body += "cp.async.bulk.wait_group.read 0;" + CHANGE + "cp.async.bulk.wait_group 0;"
    result, source = zeros(), counting(1024)
    run(body, [result, source], seed=seed)
    assert (result[:512] == source[:512]).all()


@pytest.mark.parametrize("wait", ["", "cp.async.bulk.wait_group.read 1;"])
def test_a_source_that_changes_before_it_has_been_read_is_found_at_the_store(wait: str) -> None:
    body = INIT + load_tile(1024, 1) + FENCE + STORE.format(2048) + COMMIT
    body += wait + CHANGE + "cp.async.bulk.wait_group 0;"
    finding = fault(body, [zeros(), counting(1024)], "async", "@%first cp.async.bulk.global")
    assert "changed" in finding.message
    assert finding.space == "shared"


def test_a_source_that_another_load_overwrites_is_found_too() -> None:
    body = INIT + load_tile(1024, 1) + FENCE + STORE.format(2048) + COMMIT
    body += EXPECT.format(64) + LOAD.format(64).replace("[%g1]", "[%g1+64]") + WAIT.format(0)
    body += "cp.async.bulk.wait_group 0;"
    finding = fault(body, [zeros(), counting(1024)], "async", "@%first cp.async.bulk.shared::cta")
    assert "has not read yet" in finding.message


def test_leaving_before_a_store_has_read_its_source_is_found() -> None:
    start = INIT + load_tile(1024, 1) + FENCE + STORE.format(64) + COMMIT
    finding = fault(start, [zeros(), counting(1024)], "exit", "@%first cp.async.bulk.global")
    assert "wait_group.read" in finding.message
    run(start + "cp.async.bulk.wait_group.read 0;", [zeros(), counting(1024)])


def test_waiting_without_a_commit_does_not_wait() -> None:
    body = INIT + load_tile(1024, 1) + FENCE + STORE.format(64) + "cp.async.bulk.wait_group 0;"
    fault(body, [zeros(), counting(1024)], "exit", "@%first cp.async.bulk.global")


@pytest.mark.parametrize("seed", SEEDS)
def test_results_are_in_memory_after_wait_group_and_groups_count(seed: int | None) -> None:
    """The last of two groups may be pending; the first has been written."""
    body = INIT + load_tile(1024, 1) + FENCE + STORE.format(64) + COMMIT
    body += STORE.format(64).replace("[%g0]", "[%g0+64]") + COMMIT
    body += "cp.async.bulk.wait_group 1; @%first ld.global.b32 %v, [%g0+4];"
    body += "@%first st.global.b32 [%g0+1024], %v; cp.async.bulk.wait_group 0;"
    result, source = zeros(), counting(1024)
    run(body, [result, source], seed=seed)
    assert result[256] == source[1]
    assert (result[16:32] == source[:16]).all()


def test_a_store_beyond_its_buffer_is_found() -> None:
    body = INIT + load_tile(1024, 1) + FENCE + STORE.format(64) + END
    finding = fault(body, [zeros(8), counting(1024)], "bounds", "@%first cp.async.bulk.global")
    assert "32 bytes" in finding.message


def test_a_store_to_a_read_only_buffer_is_found() -> None:
    target = zeros()
    target.flags.writeable = False
    body = INIT + load_tile(1024, 1) + FENCE + STORE.format(64) + END
    fault(body, [target, counting(1024)], "bounds", "@%first cp.async.bulk.global")


def test_a_byte_mask_chooses_bytes_of_each_16() -> None:
    store = "mov.b16 %h0, 0x8105; @%first cp.async.bulk.global.shared::cta.bulk_group.cp_mask"
    store += " [%g0], [%tile], 64, %h0;"
    result, source = np.full(64, 0xEE, np.uint8), random(5, 4096)
    body = INIT + load_tile(16, 1) + FENCE + store + END
    run(body, [result, source], target="sm_100a")
    chosen = np.tile([0x8105 >> k & 1 for k in range(16)], 4).astype(bool)
    assert (result == np.where(chosen, source[:64], 0xEE)).all()


# ------------------------------------------------------------------------------------ reductions

SUMS: list[tuple[str, Any]] = [
    ("add.u32", lambda old, new: old + new),
    ("add.u64", lambda old, new: old + new),
    ("min.s32", lambda old, new: np.minimum(old.view(np.int32), new.view(np.int32))),
    ("max.u64", np.maximum),
    ("xor.b64", np.bitwise_xor),
    ("inc.u32", lambda old, new: np.where(old >= new, 0, old + 1).astype(np.uint32)),
]


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize(("name", "reference"), SUMS)
def test_a_reduction_combines_whole_numbers(name: str, reference: Any, seed: int | None) -> None:
    dtype = np.dtype(f"u{int(name[-2:]) // 8}")
    result, source = random(6, 4096).view(dtype), random(7, 4096).view(dtype)
    expected = result.copy()
    count = 2048 // dtype.itemsize
    expected[:count] = reference(result[:count], source[:count]).view(dtype)
    reduce = "@%first cp.reduce.async.bulk.global.shared::cta.bulk_group." + name
    body = INIT + load_tile(1024, 1) + FENCE + reduce + " [%g0], [%tile], 2048;" + END
    run(body, [result, source], seed=seed)
    assert (result == expected).all()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("add.noftz.f16", np.float16), ("add.f32", np.float32), ("add.f64", np.float64)],
)
def test_a_reduction_adds_floats(name: str, dtype: Any) -> None:
    rng = np.random.default_rng(8)
    result, source = (rng.normal(size=256).astype(dtype) for _ in range(2))
    expected = result + source
    reduce = "@%first cp.reduce.async.bulk.global.shared::cta.bulk_group." + name
    size = 256 * np.dtype(dtype).itemsize
    body = INIT + load_tile(size // 4, 1) + FENCE + reduce + f" [%g0], [%tile], {size};" + END
    run(body, [result, source])
    assert (result == expected).all()


@pytest.mark.parametrize("name", ["add.s64", "min.f32", "and.u32", "add.f8"])
def test_reductions_that_do_not_exist_are_refused(name: str) -> None:
    text = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{name} [%g0], [%tile], 64;"
    with pytest.raises(PtxError) as caught:
        run(text, [zeros()], legal=False)
    assert caught.value.line > 0


# ------------------------------------------------------------------------------------------ others


def test_a_prefetch_only_checks_its_operands() -> None:
    run("cp.async.bulk.prefetch.L2.global [%g0], 64;", [zeros()])
    wrong = "cp.async.bulk.prefetch.L2.global [%g0+8], 64;"
    fault(wrong, [zeros()], "alignment", "cp.async.bulk.prefetch")


def test_st_bulk_clears_shared_memory() -> None:
    body = INIT + load_tile(1024, 1) + "bar.sync 0;"
    body += "@%first st.bulk.weak.shared::cta [%tile+8], 2048, 0; bar.sync 0;" + store_tile()
    result, source = zeros(), counting(1024)
    run(body, [result, source], target="sm_100")
    assert (result[2:514] == 0).all()
    assert (result[514:] == source[514:]).all()
    assert (result[:2] == source[:2]).all()


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("st.bulk.shared::cta [%tile+4], 64, 0;", "alignment"),
        ("mov.u64 %rd0, 12; st.bulk.shared::cta [%tile], %rd0, 0;", "alignment"),
        ("st.bulk.shared::cta [%tile], 8192, 0;", "bounds"),
    ],
)
def test_wrong_ranges_of_st_bulk_are_found(text: str, check: str) -> None:
    fault(text, [zeros()], check, "st.bulk", target="sm_100")


@pytest.mark.parametrize(
    "text",
    [
        "cp.async.bulk.global.global.bulk_group [%g0], [%g0], 16;",
        "cp.async.bulk.shared::cta.global [%tile], [%g0], 16, [%bar];",
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%tile], [%g0], 16;",
        "cp.async.bulk.global.shared::cta.bulk_group.later [%g0], [%tile], 16;",
        "cp.async.bulk.wait_group %r0;",
        "st.bulk.shared::cta [%tile], 64, 1;",
    ],
)
def test_what_is_no_such_instruction_is_refused(text: str) -> None:
    with pytest.raises(PtxError) as caught:
        run(text, [zeros()], legal=False)
    assert caught.value.line > 0
