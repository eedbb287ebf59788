"""Order, divergence, barriers and waits."""

import numpy as np
import pytest
from ptx_snippets import run

from humming_sim import SimulationFault

SEEDS = [None, 0, 1, 2]


def out(n=32):
    return np.zeros(n, np.uint32)


STORE = "mul.wide.u32 %rd9, %r0, 4; add.s64 %rd9, %rd9, %rd0; st.global.u32 [%rd9], %r9;"


@pytest.mark.parametrize("seed", SEEDS)
def test_each_thread_takes_its_own_way_and_all_meet_again(seed):
    result = out(64)
    run(
        """
        mov.u32 %r9, 1;
        setp.lt.u32 %p1, %r0, 10; @%p1 bra LOW;
        and.b32 %r1, %r0, 1; setp.eq.u32 %p2, %r1, 0; @%p2 bra EVEN;
        mov.u32 %r9, 30; bra MEET;
        EVEN: mov.u32 %r9, 20; bra MEET;
        LOW: mov.u32 %r9, 10;
        MEET: activemask.b32 %r3;
        popc.b32 %r3, %r3; add.u32 %r9, %r9, %r3;
        """
        + STORE,
        [result],
        block=64,
        seed=seed,
    )
    t = np.arange(64)
    expected = np.where(t < 10, 10, np.where(t % 2 == 0, 20, 30)) + 32
    assert (result == expected).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_loops_run_as_often_as_each_thread_says(seed):
    result = out()
    run(
        """
        mov.u32 %r9, 0; mov.u32 %r1, 0;
        LOOP: setp.ge.u32 %p1, %r1, %r0; @%p1 bra DONE;
        add.u32 %r9, %r9, %r1; add.u32 %r1, %r1, 1; bra LOOP;
        DONE:
        """
        + STORE,
        [result],
        seed=seed,
    )
    t = np.arange(32)
    assert (result == t * (t - 1) // 2).all()


def test_a_list_of_targets():
    result = out()
    run(
        """
        and.b32 %r1, %r0, 3;
        ts: .branchtargets A, B, A, C;
        brx.idx %r1, ts;
        A: mov.u32 %r9, 1; bra END;
        B: mov.u32 %r9, 2; bra END;
        C: mov.u32 %r9, 3;
        END:
        """
        + STORE,
        [result],
    )
    assert (result == np.tile([1, 2, 1, 3], 8)).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_barrier_makes_all_wait_for_the_last(seed):
    result = out(128)
    run(
        """
        .shared .align 4 .b8 s[512];
        mov.u32 %r1, s; mad.lo.u32 %r2, %r0, 4, %r1; st.shared.u32 [%r2], %r0;
        bar.sync 0;
        xor.b32 %r3, %r0, 127; mad.lo.u32 %r2, %r3, 4, %r1; ld.shared.u32 %r9, [%r2];
        """
        + STORE,
        [result],
        block=128,
        seed=seed,
    )
    assert (result == np.arange(128)[::-1]).all()


def test_without_the_barrier_a_random_order_reads_too_early():
    body = """
        .shared .align 4 .b8 s[512];
        mov.u32 %r1, s; mad.lo.u32 %r2, %r0, 4, %r1; st.shared.u32 [%r2], %r0;
        xor.b32 %r3, %r0, 127; mad.lo.u32 %r2, %r3, 4, %r1; ld.shared.u32 %r9, [%r2];
        """
    with pytest.raises(SimulationFault, match="shared memory that nothing wrote") as fault:
        run(body + STORE, [out(128)], block=128, seed=0)
    (finding,) = fault.value.findings
    assert (finding.check, finding.space) == ("uninitialised", "shared")
    assert finding.text.startswith("ld.shared")


@pytest.mark.parametrize("seed", SEEDS)
def test_named_barriers_and_arrivals(seed):
    result = out(96)
    run(
        """
        .shared .align 4 .b8 s[4];
        mov.u32 %r1, s; mov.u32 %r9, 0;
        setp.lt.u32 %p1, %r0, 32; @!%p1 bra WAIT;
        setp.eq.u32 %p2, %r0, 0; @%p2 st.shared.u32 [%r1], 7;
        bar.arrive 3, 96; bra END;
        WAIT: bar.sync 3, 96; ld.shared.u32 %r9, [%r1];
        END:
        """
        + STORE,
        [result],
        block=96,
        seed=seed,
    )
    assert (result == np.repeat([0, 7, 7], 32)).all()


@pytest.mark.parametrize(("how", "expected"), [("popc", 40), ("and", 0), ("or", 1)])
def test_barriers_that_reduce(how, expected):
    result = out(64)
    kind = "u32 %r9" if how == "popc" else "pred %p2"
    after = "" if how == "popc" else "selp.u32 %r9, 1, 0, %p2;"
    run(
        f"setp.lt.u32 %p1, %r0, 40; bar.red.{how}.{kind}, 0, %p1; {after}" + STORE,
        [result],
        block=64,
    )
    assert (result == expected).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_threads_that_left_are_not_waited_for(seed):
    result = out(64)
    run(
        "setp.lt.u32 %p1, %r0, 32; @%p1 bra OUT; bar.sync 0; mov.u32 %r9, 5;" + STORE + "OUT:",
        [result],
        block=64,
        seed=seed,
    )
    assert (result == np.repeat([0, 5], 32)).all()


def test_a_barrier_that_some_never_reach_is_a_deadlock_that_says_who_waits():
    with pytest.raises(SimulationFault, match=r"barrier 1 has 32 of 64 threads") as fault:
        run(
            "setp.lt.u32 %p1, %r0, 32; @%p1 bar.sync 1, 64; @!%p1 bar.sync 2, 64;",
            [out()],
            block=64,
        )
    assert fault.value.findings[0].check == "deadlock"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_wait_for_another_cta_ends_when_it_has_written(seed):
    result = out(2)
    run(
        """
        setp.ne.u32 %p1, %r0, 0; @%p1 bra OUT;
        mov.u32 %r1, %ctaid.x; setp.eq.u32 %p2, %r1, 1; @%p2 bra WRITE;
        SPIN: ld.acquire.gpu.global.u32 %r2, [%rd0]; setp.eq.u32 %p3, %r2, 0; @%p3 bra SPIN;
        add.u32 %r2, %r2, 1; st.global.u32 [%rd0+4], %r2; bra OUT;
        WRITE: st.release.gpu.global.u32 [%rd0], 9;
        OUT:
        """,
        [result],
        grid=2,
        seed=seed,
    )
    assert result.tolist() == [9, 10]


def test_a_wait_for_what_nobody_writes_is_a_deadlock():
    with pytest.raises(SimulationFault, match="polls for a change"):
        run(
            "SPIN: ld.volatile.global.u32 %r2, [%rd0]; setp.eq.u32 %p3, %r2, 0; @%p3 bra SPIN;",
            [out()],
        )


def test_a_lock_taken_by_compare_and_swap_passes_from_thread_to_thread():
    result = out(2)
    run(
        """
        TRY: atom.global.cas.b32 %r1, [%rd0], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra TRY;
        ld.global.u32 %r2, [%rd0+4]; add.u32 %r2, %r2, 1; st.global.u32 [%rd0+4], %r2;
        atom.global.exch.b32 %r3, [%rd0], 0;
        """,
        [result],
        block=64,
        grid=2,
    )
    assert result.tolist() == [0, 128]


@pytest.mark.parametrize("seed", SEEDS)
def test_lanes_wait_for_the_others_at_a_warp_barrier_and_shuffle(seed):
    result = out()
    run(
        """
        mov.u32 %r9, %r0;
        setp.eq.u32 %p1, %r0, 3; @!%p1 bra MEET;
        mov.u32 %r1, 0;
        SLOW: add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 50; @%p2 bra SLOW;
        mov.u32 %r9, 77;
        MEET: shfl.sync.idx.b32 %r9, %r9, 3, 31, -1;
        """
        + STORE,
        [result],
        seed=seed,
    )
    assert (result == 77).all()


def test_a_mask_that_names_a_lane_that_left_or_oneself_not_is_found():
    with pytest.raises(SimulationFault, match="membermask names lane 5"):
        run(
            "setp.eq.u32 %p1, %r0, 5; @%p1 bra OUT; shfl.sync.idx.b32 %r1, %r0, 0, 31, -1; OUT:",
            [out()],
        )
    with pytest.raises(SimulationFault, match="own membermask"):
        run("shfl.sync.idx.b32 %r1, %r0, 0, 31, 0xff;", [out()])


def test_parts_of_a_warp_may_shuffle_by_themselves():
    result = out()
    run(
        """
        setp.lt.u32 %p1, %r0, 16; @%p1 bra LOW;
        shfl.sync.idx.b32 %r9, %r0, 20, 31, 0xffff0000; bra END;
        LOW: shfl.sync.idx.b32 %r9, %r0, 4, 31, 0x0000ffff;
        END:
        """
        + STORE,
        [result],
    )
    assert (result == np.repeat([4, 20], 16)).all()


def test_trap_and_failed_assertions_are_findings():
    with pytest.raises(SimulationFault, match="aborted itself"):
        run("setp.eq.u32 %p1, %r0, 9; @%p1 trap;", [out()])


def test_a_kernel_that_never_ends_is_given_up():
    with pytest.raises(SimulationFault, match="given up"):
        run("LOOP: add.u32 %r1, %r0, 1; bra LOOP;", [out()], max_steps=1000)


@pytest.mark.parametrize("seed", range(8))
def test_a_long_loop_over_registers_alone_is_no_deadlock(seed):
    """Collatz's sequence: lanes part often, and nothing in memory changes."""
    result = out()
    run(
        """
        add.u32 %r1, %r0, 27; mov.u32 %r9, 0;
        LOOP: setp.eq.u32 %p1, %r1, 1; @%p1 bra DONE;
        and.b32 %r2, %r1, 1; setp.eq.u32 %p2, %r2, 0; @%p2 bra EVEN;
        mad.lo.u32 %r1, %r1, 3, 1; bra NEXT;
        EVEN: shr.u32 %r1, %r1, 1;
        NEXT: add.u32 %r9, %r9, 1; bra LOOP;
        DONE:
        """
        + STORE,
        [result],
        seed=seed,
    )

    def steps(n):
        count = 0
        while n != 1:
            n, count = (n // 2 if n % 2 == 0 else 3 * n + 1), count + 1
        return count

    assert result.tolist() == [steps(n + 27) for n in range(32)]
