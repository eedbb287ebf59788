"""mbarriers and clusters."""

import numpy as np
import pytest
from ptx_snippets import run

from humming_sim import LaunchError, SimulationFault

SEEDS = [None, 0, 1, 2]
STORE = "mul.wide.u32 %rd9, %r0, 4; add.s64 %rd9, %rd9, %rd0; st.global.u32 [%rd9], %r9;"
#: A loop that waits for parity %r20 of the mbarrier at %r21.
WAIT = "W{0}: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r21], %r20; @!%p9 bra W{0};"


def check_of(fault):
    return fault.value.findings[0].check


def out(n=64):
    return np.zeros(n, np.uint32)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("wait", ["try_wait", "test_wait"])
def test_consumers_wait_for_every_arrival_phase_after_phase(seed, wait):
    """Warp 0 writes three values one after the other, warp 1 adds them up."""
    loop = WAIT.replace("try_wait", wait)
    result = out()
    run(
        f"""
        .shared .align 8 .b8 full[8]; .shared .align 8 .b8 empty[8]; .shared .align 4 .b8 v[128];
        mov.u32 %r1, full; mov.u32 %r2, empty; mov.u32 %r3, v; mov.u32 %r9, 0; mov.u32 %r4, 0;
        setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared::cta.b64 [%r1], 32;
        @%p1 mbarrier.init.shared::cta.b64 [%r2], 32; bar.sync 0;
        and.b32 %r5, %r0, 31; mad.lo.u32 %r6, %r5, 4, %r3;
        setp.ge.u32 %p2, %r0, 32; @%p2 bra CONSUME;
        PRODUCE: and.b32 %r20, %r4, 1; xor.b32 %r20, %r20, 1; mov.u32 %r21, %r2; {loop.format(0)}
        mad.lo.u32 %r7, %r4, 100, %r5; st.shared.u32 [%r6], %r7;
        mbarrier.arrive.shared::cta.b64 %rd5, [%r1];
        add.u32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, 3; @%p3 bra PRODUCE; bra END;
        CONSUME: and.b32 %r20, %r4, 1; mov.u32 %r21, %r1; {loop.format(1)}
        ld.shared.u32 %r7, [%r6]; add.u32 %r9, %r9, %r7;
        mbarrier.arrive.shared::cta.b64 %rd5, [%r2];
        add.u32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, 3; @%p3 bra CONSUME;
        END:
        """
        + STORE,
        [result],
        block=64,
        seed=seed,
    )
    assert (result == np.concatenate([np.zeros(32), np.arange(32) * 3 + 300])).all()


def test_a_state_waits_for_its_own_phase():
    result = out(32)
    run(
        """
        .shared .align 8 .b8 m[8]; mov.u32 %r1, m; setp.eq.u32 %p1, %r0, 0;
        @%p1 mbarrier.init.shared.b64 [%r1], 32; bar.sync 0;
        mbarrier.arrive.shared.b64 %rd5, [%r1];
        W: mbarrier.test_wait.shared.b64 %p2, [%r1], %rd5; @!%p2 bra W; selp.u32 %r9, 1, 0, %p2;
        """
        + STORE,
        [result],
    )
    assert (result == 1).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("mbarrier.arrive.shared.b64 %rd5, [%r1];", "no mbarrier.init made one"),
        ("mbarrier.init.shared.b64 [%r1], 0;", "outside of 1..1048575"),
        ("mbarrier.init.shared.b64 [%r1], 1; mbarrier.arrive.shared.b64 %rd5, [%r1], 2;",
         "2 arrivals in a phase that needs 1"),
        ("mbarrier.init.shared.b64 [%r1], 1; mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 16;",
         "16 bytes were announced and never came"),
        ("mbarrier.init.shared.b64 [%r1], 1; mbarrier.inval.shared.b64 [%r1];"
         "mbarrier.arrive.shared.b64 %rd5, [%r1];", "no mbarrier.init"),
        ("mbarrier.init.shared.b64 [%r1], 2; mov.u32 %r20, 2; mov.u32 %r21, %r1;" + WAIT.format(0),
         "parity is 0 or 1"),
    ],
)  # fmt: skip
def test_misuse_is_found(body, message):
    with pytest.raises(SimulationFault, match=message) as fault:
        run(".shared .align 8 .b8 m[8]; mov.u32 %r1, m;" + body, [out()], block=1)
    assert check_of(fault) == "mbarrier"


def test_a_wait_that_nobody_ends_says_what_the_barrier_lacks():
    with pytest.raises(SimulationFault, match="needs 1 of 33 arrivals and 0 bytes") as fault:
        run(
            ".shared .align 8 .b8 m[8]; mov.u32 %r21, m; setp.eq.u32 %p1, %r0, 0; mov.u32 %r20, 0;"
            "@%p1 mbarrier.init.shared.b64 [%r21], 33; bar.sync 0;"
            "mbarrier.arrive.shared.b64 %rd5, [%r21];" + WAIT.format(0),
            [out()],
        )
    assert check_of(fault) == "deadlock"


def test_a_kernel_that_does_not_look_at_the_wait_s_result_is_found_with_some_seed():
    body = """
        .shared .align 8 .b8 m[8]; .shared .align 4 .b8 v[4]; mov.u32 %r21, m; mov.u32 %r3, v;
        mov.u32 %r20, 0; setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared.b64 [%r21], 32;
        bar.sync 0; setp.lt.u32 %p2, %r0, 32; @%p2 bra WRITE;
        mbarrier.try_wait.parity.shared.b64 %p9, [%r21], %r20; ld.shared.u32 %r9, [%r3]; bra END;
        WRITE: st.shared.u32 [%r3], 7; mbarrier.arrive.shared.b64 %rd5, [%r21]; END:
        """

    def fails(seed):
        try:
            run(body, [out()], block=64, seed=seed)
        except SimulationFault as fault:
            return fault.findings[0].check == "uninitialised"
        return False

    assert any(fails(seed) for seed in range(20))


@pytest.mark.parametrize("seed", SEEDS)
def test_ctas_of_a_cluster_reach_each_other_s_shared_memory(seed):
    result = out(128)
    run(
        """
        .shared .align 4 .b8 s[128]; mov.u32 %r1, s; mov.u32 %r2, %cluster_ctarank;
        mad.lo.u32 %r3, %r0, 4, %r1; mad.lo.u32 %r4, %r2, 1000, %r0; st.shared.u32 [%r3], %r4;
        barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
        xor.b32 %r5, %r2, 1; mapa.shared::cluster.u32 %r6, %r3, %r5;
        ld.shared::cluster.u32 %r9, [%r6];
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        mov.u32 %r7, %ctaid.x; mad.lo.u32 %r8, %r7, 32, %r0; mul.wide.u32 %rd9, %r8, 4;
        add.s64 %rd9, %rd9, %rd0; st.global.u32 [%rd9], %r9;
        """,
        [result],
        grid=4,
        cluster=2,
        seed=seed,
    )
    lane, cta = np.arange(32), np.arange(4)[:, None]
    assert (result.reshape(4, 32) == ((cta + 1) % 2) * 1000 + lane).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_an_arrival_at_another_cta_s_mbarrier_wakes_it(seed):
    result = out(2)
    run(
        """
        .shared .align 8 .b8 m[8]; mov.u32 %r21, m; mov.u32 %r2, %cluster_ctarank; mov.u32 %r20, 0;
        mbarrier.init.shared::cta.b64 [%r21], 1; fence.mbarrier_init.release.cluster;
        barrier.cluster.arrive; barrier.cluster.wait;
        xor.b32 %r5, %r2, 1; mapa.shared::cluster.u32 %r6, %r21, %r5;
        mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];
        """
        + WAIT.format(0)
        + """
        mul.wide.u32 %rd9, %r2, 4; add.s64 %rd9, %rd9, %rd0; st.global.u32 [%rd9], 1;
        barrier.cluster.arrive; barrier.cluster.wait;
        """,
        [result],
        grid=2,
        block=1,
        cluster=2,
        seed=seed,
    )
    assert result.tolist() == [1, 1]


def test_a_peer_s_mbarrier_that_was_not_fenced_is_found():
    with pytest.raises(SimulationFault, match=r"fence\.mbarrier_init") as fault:
        run(
            """
            .shared .align 8 .b8 m[8]; mov.u32 %r1, m; mbarrier.init.shared::cta.b64 [%r1], 1;
            mov.u32 %r2, %cluster_ctarank; xor.b32 %r2, %r2, 1;
            bar.sync 0; mapa.shared::cluster.u32 %r6, %r1, %r2;
            mbarrier.arrive.shared::cluster.b64 _, [%r6];
            """,
            [out()],
            grid=2,
            block=1,
            cluster=2,
        )
    assert check_of(fault) == "fence"


def test_shared_memory_of_a_cta_that_left_or_is_not_there_is_found():
    body = """
        .shared .align 4 .b8 s[4]; mov.u32 %r1, s; st.shared.u32 [%r1], 1;
        mov.u32 %r2, %cluster_ctarank; setp.eq.u32 %p1, %r2, 1; @%p1 bra END;
        mov.u32 %r4, 0; SLOW: add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 9; @%p2 bra SLOW;
        mapa.shared::cluster.u32 %r6, %r1, {}; ld.shared::cluster.u32 %r9, [%r6]; END:
        """

    def checks_found(rank):
        for seed in range(10):
            try:
                run(body.format(rank), [out()], grid=2, block=1, cluster=2, seed=seed)
            except SimulationFault as fault:
                yield fault.findings[0]

    left = [found for found in checks_found(1) if "has exited" in found.message]
    absent = [found for found in checks_found(2) if "CTA 2 of a cluster of 2" in found.message]
    assert {found.check for found in left} == {found.check for found in absent} == {"cluster"}
    assert len(absent) == 10


def test_one_s_own_window_is_not_the_neighbour_s():
    with pytest.raises(SimulationFault, match="::cta means one's own"):
        run(
            ".shared .align 4 .b8 s[4]; mov.u32 %r1, s; mapa.shared::cluster.u32 %r1, %r1, 1;"
            "mov.u32 %r2, %cluster_ctarank; setp.eq.u32 %p1, %r2, 0; @%p1 st.shared.u32 [%r1], 1;",
            [out()],
            grid=2,
            cluster=2,
        )


def test_arriving_twice_at_the_cluster_barrier_is_found():
    with pytest.raises(SimulationFault, match="twice without waiting"):
        run("barrier.cluster.arrive; barrier.cluster.arrive;", [out()], grid=2, cluster=2)


def test_registers_are_traded_within_what_the_cta_has():
    trade = "setp.lt.u32 %p1, %r0, 128; @%p1 bra A; setmaxnreg.inc.sync.aligned.u32 {}; bra B;"
    trade += "A: setmaxnreg.dec.sync.aligned.u32 40; B: bar.sync 0;"
    limits = {"directives": ".maxntid 384 .maxnreg 168", "block": 384}
    run(trade.format(232), [out()], **limits)
    with pytest.raises(SimulationFault, match="waits for 240 registers"):
        run(trade.format(240), [out()], **limits)


@pytest.mark.parametrize("grid", [3, (2, 2)])
def test_a_grid_is_made_of_whole_clusters(grid):
    with pytest.raises(LaunchError, match=r"no multiple of cluster"):
        run("", [out()], grid=grid, cluster=(1, 3) if grid != 3 else 2)


def test_a_wait_that_nothing_can_end_gives_up_as_its_time_limit_would():
    result = out(1)
    run(
        """
        .shared .align 8 .b8 m[8]; mov.u32 %r21, m; mov.u32 %r20, 0;
        mbarrier.init.shared.b64 [%r21], 1;
        mbarrier.try_wait.parity.shared.b64 %p9, [%r21], %r20; selp.u32 %r9, 5, 6, %p9;
        """
        + STORE,
        [result],
        block=1,
    )
    assert result.tolist() == [6]
