"""cp.async through launch: what it copies, when, and what is found where it is used wrongly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from copy_kernels import INIT, THREADS, WAIT, counting, fault, load_tile, random, run, store_tile

from humming_sim import PtxError

SEEDS = [None, 0, 1]

#: Each thread's 16 bytes in shared memory (%r0) and in buffer 1 (%rd0).
PLACES = "mad.lo.u32 %r0, %t, 16, %tile; mad.wide.u32 %rd0, %t, 16, %g1;"
DONE = "cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;"
BYTES = 16 * THREADS


def out() -> npt.NDArray[np.uint32]:
    return np.zeros(BYTES // 4, np.uint32)


def run_copy(
    body: str, source: npt.NDArray[np.uint8], seed: int | None = None
) -> npt.NDArray[np.uint8]:
    """What a kernel leaves in the tile, which starts as 0xEE."""
    result, marks = out(), np.full(BYTES, 0xEE, np.uint8)
    before = load_tile(BYTES // 4, 2) + "bar.sync 0;" + PLACES
    run(before + body + store_tile(BYTES // 4), [result, source, marks], seed=seed)
    return result.view(np.uint8).reshape(THREADS, 16)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("kind", "size"), [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)])
def test_a_copy_moves_its_bytes_and_no_others(kind: str, size: int, seed: int | None) -> None:
    source = random(1, BYTES)
    copy = f"cp.async.{kind}.shared.global.L2::128B [%r0], [%rd0], {size};"
    result = run_copy(copy + DONE, source, seed)
    assert (result[:, :size] == source.reshape(THREADS, 16)[:, :size]).all()
    assert (result[:, size:] == 0xEE).all()


@pytest.mark.parametrize("size", [4, 8, 16])
def test_src_size_reads_so_many_bytes_and_fills_with_zeros(size: int) -> None:
    source = random(2, BYTES)
    body = (
        f"rem.u32 %r1, %t, {size + 1}; cp.async.ca.shared::cta.global [%r0], [%rd0], {size}, %r1;"
    )
    result = run_copy(body + DONE, source)
    for thread in range(THREADS):
        read = thread % (size + 1)
        expected = [*source[16 * thread :][:read], *[0] * (size - read), *[0xEE] * (16 - size)]
        assert result[thread].tolist() == expected


def test_ignore_src_fills_with_zeros() -> None:
    source = random(3, BYTES)
    body = """
    and.b32 %r1, %t, 1; setp.eq.u32 %p0, %r1, 1;
    createpolicy.fractional.L2::evict_last.b64 %rd1, 0.5;
    cp.async.cg.shared.global.L2::cache_hint [%r0], [%rd0], 16, %p0, %rd1;
    """
    result = run_copy(body + DONE, source)
    assert (result[0::2] == source.reshape(THREADS, 16)[0::2]).all()
    assert (result[1::2] == 0).all()


def test_nothing_is_read_where_src_size_is_zero() -> None:
    source = random(4, 16)
    body = """
    setp.lt.u32 %p0, %t, 1; selp.u32 %r1, 16, 0, %p0;
    cp.async.cg.shared.global [%r0], [%rd0], 16, %r1;
    """
    result = run_copy(body + DONE, source)  # the buffer ends after thread 0's bytes
    assert (result[0] == source).all()
    assert (result[1:] == 0).all()


TWO_STAGES = """
cp.async.ca.shared.global [%r0], [%rd0], 4; cp.async.commit_group;
cp.async.ca.shared.global [%r0+4], [%rd0+4], 4; cp.async.commit_group;
{wait}
ld.shared.b32 %v, [%r0{offset}];
mad.wide.u32 %x, %t, 4, %g0; st.global.b32 [%x], %v;
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_wait_group_leaves_the_last_groups_pending(seed: int | None) -> None:
    result, source = np.zeros(THREADS, np.uint32), counting(BYTES // 4)
    body = PLACES + TWO_STAGES.format(wait="cp.async.wait_group 1;", offset="")
    run(body, [result, source], seed=seed)
    assert (result == source[::4]).all()


def test_a_wait_that_leaves_the_group_pending_is_found_at_the_read() -> None:
    args = [np.zeros(THREADS, np.uint32), counting(BYTES // 4)]
    for wait in ("cp.async.wait_group 1;", "cp.async.wait_group 2;", ""):
        body = PLACES + TWO_STAGES.format(wait=wait, offset="+4")
        finding = fault(body, args, "async", "ld.shared.b32 %v")
        assert "unfinished asynchronous copy" in finding.message


def test_reading_old_data_of_a_buffer_that_is_being_refilled_is_found() -> None:
    body = PLACES + "st.shared.b32 [%r0], 7; cp.async.ca.shared.global [%r0], [%rd0], 4;"
    body += "ld.shared.b32 %v, [%r0]; st.global.b32 [%g0], %v;"
    fault(body, [out(), counting(BYTES // 4)], "async", "ld.shared.b32")


def test_wait_group_does_not_wait_for_what_is_not_committed_but_wait_all_does() -> None:
    args = [out(), counting(BYTES // 4)]
    copy = PLACES + "cp.async.ca.shared.global [%r0], [%rd0], 4;"
    read = "ld.shared.b32 %v, [%r0]; mad.wide.u32 %x, %t, 4, %g0; st.global.b32 [%x], %v;"
    fault(copy + "cp.async.wait_group 0;" + read, args, "async", "ld.shared")
    run(copy + "cp.async.wait_all;" + read, args)
    assert (args[0][:THREADS] == args[1][::4]).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_each_thread_has_groups_of_its_own(seed: int | None) -> None:
    """Odd threads commit an empty group more, so that the same wait covers their copy."""
    body = (
        PLACES
        + """
    and.b32 %r1, %t, 1; setp.eq.u32 %p0, %r1, 1;
    cp.async.ca.shared.global [%r0], [%rd0], 4; cp.async.commit_group;
    @%p0 cp.async.commit_group;
    cp.async.wait_group 1;
    @{who} ld.shared.b32 %v, [%r0];
    mad.wide.u32 %x, %t, 4, %g0; @{who} st.global.b32 [%x], %v;
    """
    )
    args = [np.zeros(THREADS, np.uint32), counting(BYTES // 4)]
    run(body.format(who="%p0"), args, seed=seed)
    assert (args[0][1::2] == args[1][4::8]).all()
    finding = fault(body.format(who="!%p0"), args, "async", "@!%p0 ld.shared")
    assert finding.lane is not None
    assert finding.lane % 2 == 0


ARRIVE = """
setp.eq.u32 %first, %t, 0;
@%first mbarrier.init.shared::cta.b64 [%bar], {count};
bar.sync 0;
setp.lt.u32 %p0, %t, 32;
@!%p0 bra CONSUME;
mad.lo.u32 %r0, %t, 4, %tile; mad.wide.u32 %rd0, %t, 4, %g1;
cp.async.ca.shared.global [%r0], [%rd0], 4;
cp.async.mbarrier.arrive{noinc}.shared::cta.b64 [%bar];
{also}
bra END;
CONSUME:
{wait}
sub.u32 %r1, %t, 32; mad.lo.u32 %r0, %r1, 4, %tile; ld.shared.b32 %v, [%r0];
mad.wide.u32 %x, %r1, 4, %g0; st.global.b32 [%x], %v;
END:
"""


@pytest.mark.parametrize("seed", [None, *range(6)])
@pytest.mark.parametrize(("noinc", "count"), [(".noinc", 32), ("", 32)])
def test_an_mbarrier_completes_after_the_copies(noinc: str, count: int, seed: int | None) -> None:
    also = "" if noinc else "mbarrier.arrive.shared::cta.b64 _, [%bar];"
    body = ARRIVE.format(count=count, noinc=noinc, also=also, wait=WAIT.format(0))
    args = [np.zeros(32, np.uint32), counting(32)]
    run(body, args, seed=seed)
    assert (args[0] == args[1]).all()


def test_an_mbarrier_that_does_not_count_the_copies_lets_readers_in_early() -> None:
    """With .noinc missing the copies' arrivals make up only for themselves."""
    arrive = "mbarrier.arrive.shared::cta.b64 _, [%bar];"
    body = ARRIVE.format(count=32, noinc=".noinc", also=arrive, wait=WAIT.format(0))
    args = [np.zeros(32, np.uint32), counting(32)]
    finding = fault(body, args, "async", "ld.shared.b32")
    assert "unfinished" in finding.message


def test_too_many_arrivals_by_copies_are_found() -> None:
    body = ARRIVE.format(count=31, noinc=".noinc", also="", wait=WAIT.format(0))
    args = [np.zeros(32, np.uint32), counting(32)]
    fault(body, args, "mbarrier", "cp.async.mbarrier.arrive.noinc")


def test_copied_data_needs_a_proxy_fence_before_an_asynchronous_unit_reads_it() -> None:
    """cp.async writes through the generic proxy, unlike bulk copies."""
    body = INIT + PLACES + "cp.async.cg.shared.global [%r0], [%rd0], 16;" + DONE
    body += "{fence} bar.sync 0;"
    body += "@%first cp.async.bulk.global.shared::cta.bulk_group [%g0], [%tile], 1024;"
    body += "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
    args = [out(), counting(BYTES // 4)]
    run(body.format(fence="fence.proxy.async.shared::cta;"), args)
    assert (args[0] == args[1]).all()
    fault(body.format(fence=""), args, "proxy", "@%first cp.async.bulk.global")


@pytest.mark.parametrize(("step", "used"), [(16, 32), (64, 64)])
def test_counting_sees_the_sectors_that_are_read(step: int, used: int) -> None:
    """A warp's 512 bytes are 16 sectors of 32, or in pieces 64 bytes apart 32."""
    body = f"mad.wide.u32 %rd0, %t, {step}, %g1; mad.lo.u32 %r0, %t, 16, %tile;\n"
    body += "cp.async.cg.shared.global [%r0], [%rd0], 16;\n" + DONE
    report = run(body, [out(), counting(1024)], count=True)
    access = next(a for a in report.accesses.values() if a.text.startswith("cp.async.cg"))
    assert (access.space, access.accesses, access.used, access.best) == ("global", 2, used, 32)


WRONG = {
    "source misaligned": ("cp.async.ca.shared.global [%r0], [%rd0+4], 8;", "alignment"),
    "destination misaligned": ("cp.async.ca.shared.global [%r0+8], [%rd0], 16;", "alignment"),
    "source out of bounds": ("cp.async.cg.shared.global [%r0], [%rd0+16], 16;", "bounds"),
    "partly out of bounds": ("cp.async.cg.shared.global [%r0], [%rd0+16], 16, 5;", "bounds"),
    "destination out of bounds": (
        "cp.async.cg.shared.global [%r0+4096], [%rd0], 16;",
        "bounds",
    ),
    "more bytes than the copy": (
        "mov.u32 %r1, 5;\ncp.async.ca.shared.global [%r0], [%rd0], 4, %r1;",
        "numeric",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_operands_are_found_at_the_copy(name: str) -> None:
    text, check = WRONG[name]
    finding = fault(PLACES + text, [out(), counting(BYTES // 4)], check, "cp.async.c")
    assert finding.lane is not None
    if name == "source out of bounds":
        assert (finding.warp, finding.lane) == (1, 31)


REFUSED = [
    "cp.async.cg.shared.global [%r0], [%rd0], 8;",
    "cp.async.ca.shared.global [%r0], [%rd0], 12;",
    "cp.async.ca.shared.global [%r0], [%rd0], %r1;",
    "cp.async.ca.shared.global.L2::512B [%r0], [%rd0], 16;",
    "cp.async.ca.shared.global.L2::cache_hint [%r0], [%rd0], 16;",
    "cp.async.ca.shared.global [%r0], [%rd0], 16, %r1, %rd0;",
    "cp.async.wait_group %r1;",
    "createpolicy.fractional.L2::evict_mostly.b64 %rd0, 1.0;",
]


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_such_instruction_is_refused_by_its_line(text: str) -> None:
    with pytest.raises(PtxError) as caught:
        run(PLACES + "\n" + text, [out(), out()], legal=False)
    assert caught.value.text == text.rstrip(";")
