"""Asynchronous copies, stores and reductions between the CTAs of a cluster, through launch."""

from __future__ import annotations

from typing import Any

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

SEEDS = [None, 0, 1]
START = INIT + CLUSTER_SYNC
FENCE = "fence.proxy.async.shared::cta; bar.sync 0;"

#: %r0, %r1: tile and mbarrier of CTA %r8 of the cluster.
MAP = "mapa.shared::cluster.u32 %r0, %tile, %r8; mapa.shared::cluster.u32 %r1, %bar, %r8;"
PEER = "xor.b32 %r8, %rank, 1;" + MAP


def results(ctas: int = 2) -> npt.NDArray[np.uint32]:
    return np.zeros(ctas * TILE // 4, np.uint32)


# ------------------------------------------------------------------------- copies between CTAs


@pytest.mark.parametrize("seed", SEEDS)
def test_a_load_goes_to_another_cta_and_its_mbarrier(seed: int | None) -> None:
    load = "@%first cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    load += " [%r0], [%rd0], 1024, [%r1];"
    address = "mul.lo.u32 %r2, %rank, 1024; cvt.u64.u32 %rd0, %r2; add.s64 %rd0, %g1, %rd0;"
    body = START + PEER + address + EXPECT.format(1024) + load + WAIT.format(0)
    body += store_tile(256, 0, TILE) + CLUSTER_SYNC
    result, source = results(), counting(512)
    run(body, [result, source], cluster=2, seed=seed)
    assert (result[:256] == source[256:]).all()
    assert (result[1024:1280] == source[:256]).all()


MULTICAST = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mask", [0b1111, 0b0101, 0b1000])
def test_a_multicast_reaches_the_ctas_of_its_mask(mask: int, seed: int | None) -> None:
    """CTA 0 sends; the others only wait if they are in the mask."""
    body = START + f"mov.b16 %h0, {mask}; mov.u32 %r3, {mask}; shr.b32 %r3, %r3, %rank;"
    body += "and.b32 %r3, %r3, 1; setp.eq.u32 %p1, %r3, 1; @!%p1 bra SKIP;"
    body += EXPECT.format(256) + "SKIP: setp.eq.and.u32 %p2, %rank, 0, %first;"
    body += f"@%p2 {MULTICAST} [%tile], [%g1], 256, [%bar], %h0; @!%p1 bra DONE;"
    body += WAIT.format(0) + store_tile(64, 0, TILE) + "DONE:" + CLUSTER_SYNC
    result, source = results(4), counting(64)
    run(body, [result, source], cluster=4, seed=seed)
    for cta in range(4):
        expected = source if mask >> cta & 1 else 0
        assert (result[1024 * cta : 1024 * cta + 64] == expected).all()


SEND = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
REDUCE = "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("text", "combines"), [(SEND, False), (REDUCE, True)])
def test_shared_memory_is_sent_to_the_peer(text: str, combines: bool, seed: int | None) -> None:
    """The upper half of a tile goes to, or is added to, the lower half of the peer's."""
    body = START + load_tile(1024, 1) + FENCE + CLUSTER_SYNC + PEER + "add.u32 %r2, %tile, 2048;"
    body += EXPECT.format(2048) + f"@%first {text} [%r0], [%r2], 2048, [%r1];" + WAIT.format(0)
    body += store_tile(512, 0, TILE) + CLUSTER_SYNC
    result, source = results(), counting(1024)
    run(body, [result, source], cluster=2, seed=seed)
    expected = source[512:] + (source[:512] if combines else 0)
    assert (result[:512] == expected).all()
    assert (result[1024:1536] == expected).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("type_", "lanes"), [("b32", 1), ("u64", 1), ("f32", 4), ("b64", 2)])
def test_st_async_stores_at_the_peer_and_counts_bytes(
    type_: str, lanes: int, seed: int | None
) -> None:
    width = int(type_[1:]) // 8 * lanes
    load = {4: "ld.shared.b32 %v", 8: "ld.shared.b64 %x", 16: ""}[width]
    vector = f".v{lanes}" if lanes > 1 else ""
    registers = {"b32": ["%v"], "u64": ["%x"], "f32": [f"%f{i}" for i in range(4)]}
    names = registers.get(type_, ["%rd4", "%rd5"])
    values = names[0] if lanes == 1 else "{" + ", ".join(names) + "}"
    body = START + load_tile(1024, 1) + CLUSTER_SYNC + PEER
    body += f"mad.lo.u32 %at, %t, {width}, %tile; mad.lo.u32 %r2, %t, {width}, %r0;"
    body += f"{load}, [%at];" if lanes == 1 else f"ld.shared{vector}.{type_} {values}, [%at];"
    body += "add.u32 %r2, %r2, 2048;" + EXPECT.format(64 * width)
    body += f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{vector}.{type_}"
    body += f" [%r2], {values}, [%r1];" + WAIT.format(0) + store_tile(1024, 0, TILE) + CLUSTER_SYNC
    result, source = results(), counting(1024)
    run(body, [result, source], cluster=2, seed=seed)
    assert (result[512 : 512 + 16 * width] == source[: 16 * width]).all()
    assert (result[1536 : 1536 + 16 * width] == source[: 16 * width]).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("text", "start", "expected"),
    [
        ("add.u32", 5, 5 + sum(range(64))),
        ("max.s32", -3, 63),
        ("min.u32", 50, 0),
        ("or.b32", 1, 63),
        ("inc.u32", 0, None),
    ],
)
def test_red_async_combines_all_lanes_at_the_peer(
    text: str, start: int, expected: int | None, seed: int | None
) -> None:
    """All 64 threads reduce their index into the first word of the peer's tile."""
    body = START + f"@%first st.shared.b32 [%tile], {start};" + CLUSTER_SYNC + PEER
    body += EXPECT.format(256) + "red.async.relaxed.cluster.shared::cluster"
    body += f".mbarrier::complete_tx::bytes.{text} [%r0], %t, [%r1];" + WAIT.format(0)
    body += store_tile(1, 0, TILE) + CLUSTER_SYNC
    result = results()
    run(body, [result], cluster=2, seed=seed)
    if expected is None:
        assert result[0] <= 64
    else:
        assert result[[0, 1024]].view(np.int32).tolist() == [expected, expected]


@pytest.mark.parametrize("seed", SEEDS)
def test_st_async_and_red_async_with_release_go_to_global_memory(seed: int | None) -> None:
    body = "mad.wide.u32 %x, %t, 4, %g0; st.async.release.gpu.global.u32 [%x], %t;"
    body += "red.async.release.gpu.global.add.u32 [%g0+256], %t;"
    result = np.zeros(65, np.uint32)
    run(body, [result], target="sm_100", seed=seed)
    assert (result[:64] == np.arange(64)).all()
    assert result[64] == sum(range(64))


# ---------------------------------------------------------------------------------------- faults

TAIL = EXPECT.format(64) + WAIT.format(0) + CLUSTER_SYNC
LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"

FAULTS: dict[str, tuple[str, str]] = {
    "the mbarrier of another CTA than the data": (
        f"@%first {LOAD} [%tile], [%g1], 64, [%r1];",
        "cluster",
    ),
    "own data, .shared::cta, but the peer's address": (
        "@%first cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
        " [%r0], [%g1], 64, [%r1];",
        "cluster",
    ),
    "a CTA beyond the cluster": (
        f"add.u32 %r0, %r0, 0x2000000; add.u32 %r1, %r1, 0x2000000;"
        f"@%first {LOAD} [%r0], [%g1], 64, [%r1];",
        "cluster",
    ),
    "a mask beyond the cluster": (
        f"mov.b16 %h0, 5; @%first {MULTICAST} [%tile], [%g1], 64, [%bar], %h0;",
        "cluster",
    ),
    "an empty mask": (
        f"mov.b16 %h0, 0; @%first {MULTICAST} [%tile], [%g1], 64, [%bar], %h0;",
        "cluster",
    ),
    "sending to oneself": (f"@%first {SEND} [%tile+2048], [%tile], 64, [%bar];", "cluster"),
    "sending without a fence": (f"@%first {SEND} [%r0], [%tile], 64, [%r1];", "proxy"),
    "sending what the peer does not have": (
        f"@%first {SEND} [%r0+4096], [%tile], 64, [%r1];",
        "bounds",
    ),
    "a misaligned st.async": (
        "@%first st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r0+2], %t, [%r1];",
        "alignment",
    ),
    "reducing what nothing wrote": (
        "@%first red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32"
        " [%r0+1024], %t, [%r1];",
        "uninitialised",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_wrong_copies_between_ctas_are_found_at_the_copy(name: str) -> None:
    text, check = FAULTS[name]
    body = START + load_tile(64, 1) + CLUSTER_SYNC + PEER + "\n" + text + TAIL
    start = "@%first " + text.split("@%first ")[1].split(" ")[0]
    fault(body, [results(), counting(1024)], check, start, cluster=2)


def test_st_async_outside_of_a_cluster_is_found() -> None:
    text = "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%tile], %t, [%bar];"
    fault(INIT + text, [results()], "cluster", "st.async")


def test_a_copy_to_a_cta_that_has_exited_is_found() -> None:
    """CTA 1 leaves at once, CTA 0 writes there later."""
    wait = "".join(f"bar.sync {k};" for k in range(1, 9))
    body = START + "setp.eq.u32 %p1, %rank, 1; @%p1 exit;" + wait + "mov.u32 %r8, 1;" + MAP
    body += f"@%first {LOAD} [%r0], [%g1], 64, [%r1];" + wait
    fault(body, [results(), counting(64)], "cluster", f"@%first {LOAD}", cluster=2)


def test_reading_what_the_peer_is_about_to_send_is_found() -> None:
    body = START + load_tile(1024, 1) + FENCE + CLUSTER_SYNC + PEER + "add.u32 %r2, %tile, 2048;"
    body += EXPECT.format(2048) + f"@%first {SEND} [%r0], [%r2], 2048, [%r1];" + CLUSTER_SYNC
    body += store_tile(512, 0, TILE) + WAIT.format(0) + CLUSTER_SYNC
    fault(body, [results(), counting(1024)], "async", "@%some ld.shared", cluster=2)


def test_changing_what_is_being_sent_is_found() -> None:
    body = START + load_tile(1024, 1) + FENCE + CLUSTER_SYNC + PEER + "add.u32 %r2, %tile, 2048;"
    body += EXPECT.format(2048) + f"@%first {SEND} [%r0], [%r2], 2048, [%r1];"
    body += "@%first st.shared.b32 [%tile+2052], 77;" + WAIT.format(0) + CLUSTER_SYNC
    fault(body, [results(), counting(1024)], "async", f"@%first {SEND}", cluster=2)


def some(seed: int) -> Any:
    return random(seed, 4096)


def test_clusters_of_one_grid_do_not_mix() -> None:
    """Two clusters of two; each sends within itself."""
    body = START + load_tile(1024, 1) + FENCE + CLUSTER_SYNC + PEER + "add.u32 %r2, %tile, 2048;"
    body += EXPECT.format(2048) + f"@%first {SEND} [%r0], [%r2], 2048, [%r1];" + WAIT.format(0)
    body += "mov.u32 %rank, %ctaid.x;" + store_tile(512, 0, TILE) + CLUSTER_SYNC
    result, source = results(4), some(9).view(np.uint32)
    run(body, [result, source], cluster=2, grid=4)
    for cta in range(4):
        assert (result[1024 * cta : 1024 * cta + 512] == source[512:]).all()
