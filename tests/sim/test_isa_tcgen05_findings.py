"""What the tcgen05 instructions report: one fault put into a kernel that has none."""

from __future__ import annotations

import numpy as np
import pytest
from tcgen05_cases import Case
from tcgen05_ptx import Kernel, bare, fault_of, launch_bare

import humming_sim

ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r11], {};"
FREE = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 {}, {};"
GET = "ld.shared.b32 %r12, [%r11];"
LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%v0}}, [{}];\ntcgen05.wait::ld.sync.aligned;"
STORE = "tcgen05.st.sync.aligned.32x32b.x1.b32 [{}], {{%r0}};\ntcgen05.wait::st.sync.aligned;"
GIVE_UP = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"
DONE = FREE.format("%r12", 64)


def body_of(*lines):
    return "\n".join([ALLOC.format(64), GET, *lines])


@pytest.mark.parametrize(
    ("lines", "check", "words"),
    [
        ([], "tmem", "columns [0, 64) of tensor memory are never deallocated"),
        ([FREE.format("%r12", 32)], "tmem", "deallocates 32 columns at 0x0; allocated are 64"),
        (["add.u32 %r13, %r12, 32;", FREE.format("%r13", 64)], "tmem", "at 0x20"),
        ([DONE, DONE], "tmem", "allocated are none"),
        ([GIVE_UP, ALLOC.format(32)], "tmem", "after tcgen05.relinquish_alloc_permit"),
        ([ALLOC.format(128)], "tmem", "128 columns after 64"),
        ([ALLOC.format(48)], "tmem", "48 columns; a power of two"),
        ([ALLOC.format(16)], "tmem", "16 columns; a power of two"),
        (["add.u32 %r13, %r12, 64;", LOAD.format("%r13")], "tmem", "64 is not allocated"),
        (["add.u32 %r13, %r12, 512;", LOAD.format("%r13")], "bounds", "there are 512"),
        ([LOAD.format("%r12")], "uninitialised", "lane 0, column 0 of tensor memory"),
        (["add.u32 %r13, %r12, 0x200000;", LOAD.format("%r13")], "tmem", "reaches lanes [0, 32)"),
        (["add.u32 %r13, %r12, 0x10000;", LOAD.format("%r13")], "tmem", "leave the quarter"),
        (["add.u32 %r13, %r12, %r0;", LOAD.format("%r13")], "convergence", "the same address"),
        ([STORE.format("%r12"), DONE, LOAD.format("%r12")], "tmem", "is not allocated"),
        (
            [STORE.format("%r12"), DONE, ALLOC.format(64), LOAD.format("%r12")],
            "uninitialised", "lane 0, column 0 of tensor memory",
        ),
        (
            ["tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;"],
            "tmem", "cta_group::2 in a kernel that used cta_group::1",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("seed", [None, 2])
def test_one_warps_faults_are_named(lines, check, words, seed):
    text = bare(body_of(*lines))
    finding = fault_of(lambda: launch_bare(text, threads=32, seed=seed))
    assert finding.check == check
    assert words in finding.message


def test_the_faultless_body_runs():
    launch_bare(bare(body_of(STORE.format("%r12"), LOAD.format("%r12"), DONE)), threads=32)


def test_allocation_by_a_second_warp_is_reported():
    finding = fault_of(lambda: launch_bare(bare(ALLOC.format(32)), threads=64))
    assert finding.check == "tmem"
    assert "warp 0 has allocated before" in finding.message


def test_more_columns_than_there_are_is_a_deadlock_that_says_so():
    text = bare(body_of(ALLOC.format(64).replace("64", "512")))
    finding = fault_of(lambda: launch_bare(text, threads=32, checks={"deadlock"}))
    assert finding.check == "deadlock"
    assert "512 neighbouring columns of tensor memory are not free" in finding.message


def test_half_a_pair_waits_for_its_peer():
    body = """mov.u32 %r15, %cluster_ctarank;
setp.ne.u32 %p1, %r15, 0;
@%p1 bra END;
tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r11], 32;
END:"""
    text = bare(body, group=2)
    finding = fault_of(lambda: launch_bare(text, group=2, threads=32))
    assert finding.check == "deadlock"
    assert "a warp of the peer CTA has not come" in finding.message


def test_a_pair_needs_a_cluster():
    text = bare("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r11], 32;")
    assert fault_of(lambda: launch_bare(text, threads=32)).check == "cluster"


def test_a_loaded_register_that_is_used_before_the_wait_is_reported():
    load, wait = LOAD.format("%r12").split("\n")
    early = body_of(STORE.format("%r12"), load, "add.u32 %r20, %v0, 1;", wait, DONE)
    finding = fault_of(lambda: launch_bare(bare(early), threads=32))
    assert finding.check == "tcgen05-wait"
    assert "used before tcgen05.wait::ld, at PTX line" in finding.message
    # A copy is what compilers put there; it gets the value.
    copy = ["mov.b32 %r20, %v0;", wait, "ld.param.u64 %d0, [out];", "mul.wide.u32 %d1, %r0, 4;",
            "add.u64 %d0, %d0, %d1;", "st.global.b32 [%d0], %r20;", DONE]  # fmt: skip
    text = bare(body_of(STORE.format("%r12"), load, *copy))
    assert launch_bare(text, threads=32)[:32].tolist() == list(range(32))
    used = bare(body_of(STORE.format("%r12"), load, copy[0], *copy[2:]))
    assert fault_of(lambda: launch_bare(used, threads=32)).check == "tcgen05-wait"


def test_a_load_that_nobody_waits_for_is_reported():
    text = bare(body_of(STORE.format("%r12"), LOAD.format("%r12").split("\n")[0], DONE))
    finding = fault_of(lambda: launch_bare(text, threads=32))
    assert finding.check == "exit"
    assert "exits before tcgen05.wait::ld" in finding.message


def test_a_load_that_outlives_its_columns_is_reported():
    load, wait = LOAD.format("%r12").split("\n")
    text = bare(body_of(STORE.format("%r12"), load, DONE, wait))
    finding = fault_of(lambda: launch_bare(text, threads=32))
    assert finding.check == "tmem"
    assert finding.text.startswith("tcgen05.ld")


def test_generic_addresses_of_mbarriers_are_taken():
    generic = F16.kernel().commit.replace(".shared::cluster", "").replace("%r10", "%d1")
    generic = f"cvt.u64.u32 %d1, %r10; cvta.shared.u64 %d1, %d1; {generic}"
    run(F16, (F16.kernel().commit, generic))


def test_a_warp_fences_between_its_own_shift_and_load():
    stores = STORE.replace("x1", "x8").replace("{{%r0}}", "{{" + ", ".join(["%r0"] * 8) + "}}")
    issue = """setp.ne.u32 %p1, %r0, 0;
@%p1 bra ISSUED;
mbarrier.init.shared.b64 [%r10], 1;
fence.mbarrier_init.release.cluster;
tcgen05.shift.cta_group::1.down [%r12];
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r10];
ISSUED:
bar.warp.sync 0xffffffff;
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p7, [%r10], 0;
@!%p7 bra WAIT;"""
    lines = [stores.format("%r12"), issue, "tcgen05.fence::after_thread_sync;",
             LOAD.format("%r12"), DONE]  # fmt: skip
    launch_bare(bare(body_of(*lines)), threads=32)
    del lines[2]
    finding = fault_of(lambda: launch_bare(bare(body_of(*lines)), threads=32))
    assert finding.check == "tcgen05-fence"


# -------------------------------------------------------------------------- around one product


F16 = Case("f16", "f16", "f16")
NVFP4 = Case("mxf4nvf4", "e2m1", "e2m1", scale=".block16", block=16, scale_type="ue4m3")


def run(case, change=None, bits=None, wide=None, tensor=None, **options):
    """Run a case with its text, descriptors or tensor memory changed."""
    shared, before, descriptors = case.images()
    text = case.kernel().text()
    changed = text if change is None else text.replace(*change)
    assert change is None or changed != text
    if tensor is not None:
        tensor(case, before)
    return case.kernel().run(
        shared, before, [case.instruction_bits() if bits is None else bits],
        descriptors if wide is None else wide(*descriptors), text=changed, **options,
    )  # fmt: skip


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_the_kernel_around_a_product_has_no_faults(seed):
    run(F16, seed=seed)
    run(NVFP4, seed=seed)


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (F16.instruction_bits() | 1 << 23, "bit 23 is reserved"),
        (F16.instruction_bits() | 1 << 2, "bit 2: A is sparse"),
        (F16.instruction_bits() ^ 1 << 24, "bits 24-28: M = 144"),
        (F16.instruction_bits() & ~(63 << 17), "bits 17-22: N = 0"),
    ],
)
def test_instruction_descriptors_are_checked(bits, words):
    finding = fault_of(lambda: run(F16, bits=bits))
    assert finding.check == "descriptor"
    assert words in finding.message
    assert "tcgen05.mma" in finding.text


@pytest.mark.parametrize(
    ("wide", "words"),
    [
        (lambda a, b: (a | 1 << 14, b), "A: descriptor bits 14-15 are reserved"),
        (lambda a, b: (a, b & ~(1 << 46)), "B: descriptor bits 46-48"),
        (lambda a, b: (a, b | 1 << 61), "B: descriptor bits 61-63: swizzle code 3"),
        (lambda a, b: (a + 8, b), "A: descriptor bits 0-13: address 0x880 is in line 1"),
        (lambda a, b: (a, b + 7), "leave it"),
    ],
)
def test_matrix_descriptors_are_checked(wide, words):
    finding = fault_of(lambda: run(F16, wide=wide))
    assert finding.check == "descriptor"
    assert words in finding.message


@pytest.mark.parametrize(
    ("case", "change", "check", "words"),
    [
        (F16, ("fence.proxy.async;", ""), "proxy", "no fence.proxy.async"),
        (F16, ("add.u32 %r20, %r12, 0;", "add.u32 %r20, %r12, 0x100000;"), "alignment",
         "D begins at lane 16; layout D begins at 0"),
        (F16, ("add.u32 %r20, %r12, 0;", "add.u32 %r20, %r12, 128;"), "tmem", "is not allocated"),
        (NVFP4, ("add.u32 %r22, %r12, 44;", "add.u32 %r22, %r12, 125;"), "tmem",
         "columns [125, 129)"),
        (F16, (F16.kernel().commit, ""), "deadlock", "no thread can go on"),
        (F16, ("fence.mbarrier_init.release.cluster;\n", ""), "fence", "no fence.mbarrier_init"),
        (F16, ("tcgen05.fence::after_thread_sync;", ""), "tcgen05-fence", "after_thread_sync"),
        (F16, ("tcgen05.wait::st.sync.aligned;\n\ntcgen05.fence::before_thread_sync;",
               "tcgen05.wait::st.sync.aligned;"), "tcgen05-fence", "before_thread_sync"),
    ],
)  # fmt: skip
def test_faults_around_a_product_are_named(case, change, check, words):
    without = set(humming_sim.CHECKS) - {"proxy", "fence"} | {check}
    finding = fault_of(lambda: run(case, change, checks=without))
    assert finding.check == check
    assert words in finding.message


def test_the_check_of_fences_can_be_left_out():
    change = ("tcgen05.fence::after_thread_sync;", "")
    run(F16, change, checks=set(humming_sim.CHECKS) - {"tcgen05-fence"})


def test_leaving_before_the_product_is_done_is_reported():
    text = F16.kernel().text()
    wait = text[text.index("WAIT:") : text.index("bra WAIT;") + len("bra WAIT;")]
    finding = fault_of(lambda: run(F16, (wait, "bar.sync 0; exit;"), checks={"exit"}))
    assert finding.check == "exit"
    assert "exits before this tensor core operation" in finding.message


def test_a_store_that_nobody_waited_for_shows_with_some_seed():
    change = ("tcgen05.wait::st.sync.aligned;\n\n", "")
    checks = set(humming_sim.CHECKS) - {"tcgen05-fence"}
    found = set()
    for seed in range(8):
        try:
            run(F16, change, seed=seed, checks=checks)
        except humming_sim.SimulationFault as fault:
            found.add(fault.findings[0].check)
    assert found & {"uninitialised", "async"}


@pytest.mark.parametrize(
    ("case", "spoil", "words"),
    [
        (NVFP4, lambda case, t: spoil_bit(t, 33, case.at_sa, 8), "the scale of A's row 1"),
        (NVFP4, lambda case, t: spoil_bit(t, slice(None), case.at_sb, 7), "bit 7 set"),
        (Case("f8f6f4", "e2m1", "e4m3", a_in_tensor=True),
         lambda case, t: spoil_bit(t, 9, case.at_a, 1), "outside of its e2m1 elements"),
    ],
)  # fmt: skip
def test_operands_without_a_meaning_are_reported(case, spoil, words):
    finding = fault_of(lambda: run(case, tensor=spoil))
    assert finding.check == "numeric"
    assert words in finding.message


def spoil_bit(tensor, lanes, column, bit):
    tensor[:, lanes, column] ^= np.uint32(1 << bit)


def test_scale_addresses_may_carry_the_scale_id():
    case = Case("mxf8f6f4", "e4m3", "e4m3", scale=".block32", block=32, scale_type="ue8m0",
                ids=(1, 3))  # fmt: skip
    tagged = f"add.u32 %r22, %r12, {case.at_sa | 1 << 30};"
    plain = f"add.u32 %r22, %r12, {case.at_sa};"
    _, before, _ = case.images()
    np.testing.assert_array_equal(run(case, (plain, tagged)), case.expected(before))
    other = tagged.replace(str(case.at_sa | 1 << 30), str(case.at_sa | 2 << 30))
    finding = fault_of(lambda: run(case, (plain, other)))
    assert finding.check == "descriptor"
    assert "carries scale id 2" in finding.message


def test_a_multicast_beyond_the_cluster_is_reported():
    pair = Case("f16", "f16", "f16", group=2)
    finding = fault_of(lambda: run(pair, ("mov.u16 %h0, 3;", "mov.u16 %h0, 7;")))
    assert finding.check == "cluster"
    assert "the cluster has 2" in finding.message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("tcgen05.mma.sp.cta_group::1.kind::f16 [%r12], %x0, %x1, [%r13], %w0, %p3;", "sparse"),
        ("tcgen05.mma.cta_group::1.kind::f16.ashift [%r12], [%r13], %x1, %w0, %p3;", "ashift"),
        ("tcgen05.mma.cta_group::1.kind::ti16 [%r12], %x0, %x1, %w0, %p3;", "needs one of"),
        ("tcgen05.mma.cta_group::1.kind::mxf4 [%r12], %x0, %x1, %w0, %p3;", ".block_scale"),
        ("tcgen05.mma.cta_group::1.kind::f16 [%r12], %x0, %x1, %w0, %p3, 16;", "0 to 15"),
        ("tcgen05.mma.cta_group::1.kind::i8 [%r12], %x0, %x1, %w0, %p3, 1;", "doesn't exist"),
        ("tcgen05.mma.cta_group::1.kind::f16 [%r12], %x0, %x1, %w0;", "too few"),
        ("tcgen05.cp.cta_group::1.64x128b [%r12], %x0;", "the shapes are"),
        ("tcgen05.ld.red.sync.aligned.32x32b.x2.max.f32 {%v0, %v1}, %v2, [%r12];", "ld.red"),
        ("tcgen05.ld.sync.aligned.16x256b.x64.b32 {%v0}, [%r12];", "have no .16x256b.x64"),
    ],
)
def test_what_is_not_simulated_or_not_legal_is_refused_by_name(body, words):
    kernel = Kernel(body)
    with pytest.raises(humming_sim.PtxError, match=words.replace(".", r"\.")):
        kernel.run()
