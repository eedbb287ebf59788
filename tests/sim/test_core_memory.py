"""Memory spaces, bounds, alignment and what nothing wrote."""

import numpy as np
import pytest
from ptx_snippets import module, run

import humming_sim
from humming_sim import LaunchError, SimulationFault


def finding(fault):
    (only,) = fault.value.findings
    return only


def test_a_load_one_element_past_a_buffer_names_buffer_thread_and_line():
    data = np.arange(32, dtype=np.float32)
    body = "mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd1, %rd0; ld.global.f32 %f1, [%rd1+4];"
    with pytest.raises(SimulationFault, match="byte 128 of buffer argument 0, which has 128") as f:
        run(body, [data])
    found = finding(f)
    assert (found.check, found.space, found.lane, found.warp) == ("bounds", "global", 31, 0)
    assert found.text == "ld.global.f32 %f1, [%rd1+4]"
    assert found.line == module(body).splitlines().index(body) + 1


@pytest.mark.parametrize("size", [1, 3, 4097])
def test_every_byte_of_a_buffer_may_be_written_and_none_beyond(size):
    data = np.zeros(size, np.uint8)
    run(f"mov.u16 %h1, 9; st.global.u8 [%rd0+{size - 1}], %h1;", [data], block=1)
    assert data[-1] == 9
    with pytest.raises(SimulationFault, match=f"byte {size} of buffer"):
        run(f"mov.u16 %h1, 9; st.global.u8 [%rd0+{size}], %h1;", [data], block=1)
    with pytest.raises(SimulationFault, match="bounds"):
        run("mov.u16 %h1, 9; st.global.u8 [%rd0+-1], %h1;", [data], block=1)


def test_a_fault_leaves_the_caller_s_buffers_alone():
    data = np.zeros(4, np.uint32)
    with pytest.raises(SimulationFault):
        run("st.global.u32 [%rd0], 1; st.global.u32 [%rd0+16], 1;", [data])
    assert (data == 0).all()


def test_a_read_only_array_is_not_written():
    data = np.zeros(4, np.uint32)
    data.flags.writeable = False
    with pytest.raises(SimulationFault, match="read-only"):
        run("st.global.u32 [%rd0], 1;", [data])


def test_two_buffers_of_one_memory_are_one():
    data = np.arange(4, dtype=np.uint32)
    run(
        "ld.global.u32 %r1, [%rd0]; add.u32 %r1, %r1, 5; st.global.u32 [%rd1+4], %r1;", [data, data]
    )
    assert data.tolist() == [0, 5, 2, 3]


@pytest.mark.parametrize("space", ["global", "shared", "local"])
@pytest.mark.parametrize("vector", ["v2.b32", "v4.b32", "b64", "b16"])
def test_misaligned_accesses_are_found(space, vector):
    regs = {"v2.b32": "{%r1,%r2}", "v4.b32": "{%r1,%r2,%r3,%r4}", "b64": "%rd5", "b16": "%h1"}
    base = {"global": "%rd0", "shared": "%r9", "local": "%r9"}[space]
    body = f"""
        .shared .align 16 .b8 s[64]; .local .align 16 .b8 l[64];
        mov.u32 %r9, {"l" if space == "local" else "s"};
        ld.{space}.{vector} {regs[vector]}, [{base}+1];
        """
    with pytest.raises(SimulationFault) as f:
        run(body, [np.zeros(64, np.uint8)], checks=["alignment"])
    assert finding(f).check == "alignment"
    assert finding(f).space == space


def test_shared_memory_has_bounds_at_both_ends():
    body = ".shared .align 16 .b8 s[64]; mov.u32 %r9, s; st.shared.u32 [%r9+{}], %r0;"
    run(body.format(60), [np.zeros(1)])
    for offset in (64, -4):
        with pytest.raises(SimulationFault, match="the CTA has"):
            run(body.format(offset), [np.zeros(1)])


def test_dynamic_shared_memory_is_as_large_as_the_launch_says():
    body = "mov.u32 %r9, pool; st.shared.u32 [%r9+1020], %r0; ld.shared.u32 %r1, [%r9+1020];"
    before = ".extern .shared .align 128 .b8 pool[];"
    run(body, [np.zeros(1)], before=before, smem=1024)
    with pytest.raises(SimulationFault, match="shared offset"):
        run(body, [np.zeros(1)], before=before, smem=1020)


def test_shared_memory_of_ctas_is_their_own():
    result = np.zeros(4, np.uint32)
    run(
        """
        .shared .align 4 .b8 s[4]; mov.u32 %r9, s; mov.u32 %r1, %ctaid.x; st.shared.u32 [%r9], %r1;
        bar.sync 0; ld.shared.u32 %r2, [%r9]; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd1, %rd0;
        st.global.u32 [%rd1], %r2;
        """,
        [result],
        grid=4,
    )
    assert result.tolist() == [0, 1, 2, 3]


def test_local_memory_is_each_thread_s_and_reachable_by_generic_addresses():
    result = np.zeros(32, np.uint32)
    run(
        """
        .local .align 8 .b8 l[16]; mov.u64 %rd1, l; cvta.local.u64 %rd2, %rd1;
        st.local.u32 [%rd1+4], %r0; ld.u32 %r1, [%rd2+4]; add.u32 %r1, %r1, 1;
        mul.wide.u32 %rd3, %r0, 4; add.s64 %rd3, %rd3, %rd0; st.u32 [%rd3], %r1;
        """,
        [result],
    )
    assert (result == np.arange(1, 33)).all()


def test_generic_addresses_reach_shared_and_global_memory_in_one_instruction():
    result = np.zeros(32, np.uint32)
    run(
        """
        .shared .align 4 .b8 s[128]; mov.u64 %rd1, s; cvta.shared.u64 %rd1, %rd1;
        mul.wide.u32 %rd3, %r0, 4; add.s64 %rd1, %rd1, %rd3; add.s64 %rd2, %rd0, %rd3;
        and.b32 %r1, %r0, 1; setp.eq.u32 %p1, %r1, 0; selp.b64 %rd4, %rd1, %rd2, %p1;
        st.u32 [%rd1], 100; st.u32 [%rd4], %r0; isspacep.shared %p2, %rd4;
        ld.u32 %r2, [%rd1]; @%p2 st.u32 [%rd2], %r2;
        """,
        [result],
    )
    assert (result == np.arange(32)).all()


def test_vectors_and_narrow_types_extend_as_their_type_says():
    data = np.array([0xFF, 0x80, 0x7F, 1, 0xFE, 0xFF, 0xFF, 0x7F], np.uint8)
    result = np.zeros(8, np.uint32)
    run(
        """
        ld.global.v4.s8 {%r1,%r2,%r3,%r4}, [%rd0]; ld.global.u8 %r5, [%rd0];
        ld.global.v2.s16 {%r6,%r7}, [%rd0+4]; ld.global.u16 %r8, [%rd0+4];
        st.global.v4.u32 [%rd1], {%r1,%r2,%r3,%r4}; st.global.v4.u32 [%rd1+16], {%r5,%r6,%r7,%r8};
        """,
        [data, result],
        block=1,
    )
    assert result.view(np.int32).tolist() == [-1, -128, 127, 1, 255, -2, 32767, 65534]


def test_constants_and_globals_of_the_module_are_there_and_constants_read_only():
    before = ".const .align 4 .u32 table[2] = {11, 22};\n.global .align 4 .u32 counter = 5;"
    result = np.zeros(2, np.uint32)
    run(
        "ld.const.u32 %r1, [table+4]; ld.global.u32 %r2, [counter]; add.u32 %r2, %r2, 1;"
        "st.global.u32 [counter], %r2; ld.global.u32 %r3, [counter];"
        "st.global.v2.u32 [%rd0], {%r1, %r3};",
        [result],
        block=1,
        before=before,
    )
    assert result.tolist() == [22, 6]
    with pytest.raises(SimulationFault, match="read-only"):
        run("mov.u64 %rd1, table; st.global.u32 [%rd1], 1;", [result], before=before)


def test_a_register_that_nothing_wrote_is_found_where_it_is_used_not_where_it_is_copied():
    with pytest.raises(SimulationFault, match="register %r1 is read") as f:
        run("add.u32 %r2, %r1, 1;", [np.zeros(1)])
    assert finding(f).check == "uninitialised"
    run("mov.b32 %r2, %r1;", [np.zeros(1)])
    with pytest.raises(SimulationFault, match="register %r3 is read") as f:
        run("mov.b32 %r2, %r1; mov.b32 %r3, %r2; st.global.u32 [%rd0], %r3;", [np.zeros(1)])


def test_a_register_written_on_every_path_that_is_taken_is_fine():
    body = """
        setp.lt.u32 %p1, %r0, {}; @%p1 mov.u32 %r1, 4; @%p1 add.u32 %r2, %r1, 1;
        setp.lt.u32 %p2, %r0, 5; @!%p2 bra END; st.global.u32 [%rd0], %r2; END:
        """
    run(body.format(5), [np.zeros(1)])
    with pytest.raises(SimulationFault, match="register %r2") as f:
        run(body.format(4), [np.zeros(1)])
    assert finding(f).lane == 4


def test_a_check_that_is_off_finds_nothing():
    run("add.u32 %r2, %r1, 1;", [np.zeros(1)], checks=["bounds"])
    with pytest.raises(LaunchError, match="no checks"):
        run("", [np.zeros(1)], checks=["bonds"])


def test_atomics_of_many_threads_add_up():
    result = np.zeros(3, np.uint32)
    run(
        "atom.global.add.u32 %r1, [%rd0], 1; red.global.max.u32 [%rd0+4], %r0;"
        ".shared .align 4 .b8 s[4]; mov.u32 %r9, s; setp.eq.u32 %p1, %r0, 0;"
        "@%p1 st.shared.u32 [%r9], 0; bar.sync 0; atom.shared.inc.u32 %r2, [%r9], 1000; bar.sync 0;"
        "ld.shared.u32 %r3, [%r9]; @%p1 st.global.u32 [%rd0+8], %r3;",
        [result],
        block=96,
    )
    assert result.tolist() == [96, 95, 96]


def test_counts_show_bank_conflicts_and_sectors():
    body = """
        .shared .align 16 .b8 s[4096]; mov.u32 %r9, s; mad.lo.u32 %r1, %r0, {}, %r9;
        st.shared.u32 [%r1], %r0; mul.wide.u32 %rd1, %r0, {}; add.s64 %rd1, %rd1, %rd0;
        ld.global.u32 %r2, [%rd1];
        """
    buffer = np.zeros(1024, np.uint32)
    good = run(body.format(4, 4), [buffer], count=True)
    bad = run(body.format(128, 128), [buffer], count=True)
    assert good.bank_conflicts == 0
    assert bad.bank_conflicts == 31
    used = [next(a.used for a in r.accesses.values() if a.space == "global") for r in (good, bad)]
    assert used == [4, 32]
    assert good.instructions["st.shared.u32"] == 1


def test_torch_tensors_of_any_dtype_are_buffers():
    torch = pytest.importorskip("torch")
    data = torch.zeros(4, dtype=torch.bfloat16)
    humming_sim.launch(
        module("mov.u16 %h1, 0x3f80; st.global.u16 [%rd0+2], %h1;"), "k", 1, 1, [data]
    )
    assert data.tolist() == [0, 1, 0, 0]
