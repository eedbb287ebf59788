"""What a launch refuses, and how arguments arrive."""

import gc

import numpy as np
import pytest
from ptx_snippets import module, run

import humming_sim
from humming_sim import Device, LaunchError, Struct, UnsupportedInstruction

ONE = np.zeros(1, np.uint32)
DEVICE = Device(name="small", arch="sm_80", shared_bytes=1000, max_cluster=1, registers=65536)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": 0}, "positive"),
        ({"grid": (1, 2, 3, 4)}, "one to three"),
        ({"grid": (1, 65536)}, r"grid.y=65536; the limit is 65535"),
        ({"block": 1025}, r"block.x=1025"),
        ({"block": (64, 32)}, "2048 threads"),
        ({"block": 256, "directives": ".maxntid 128"}, "maxntid"),
        ({"block": 64, "directives": ".reqntid 128"}, "requires block"),
        ({"smem": -1}, "negative"),
        ({"cluster": 2, "grid": 2, "directives": ".reqnctapercluster 4"}, "requires clusters"),
        ({"smem": 1001, "target": "sm_80", "device": DEVICE}, "1001 dynamic.*has 1000"),
        ({"grid": 2, "cluster": 2, "target": "sm_80", "device": DEVICE}, "2 CTAs; small takes 1"),
        ({"target": "sm_90a", "device": DEVICE}, "doesn't run on small"),
        ({"accumulation": "exactly"}, "'exact' or 'hardware'"),
    ],
)
def test_a_launch_that_cannot_be_is_refused(options, message):
    with pytest.raises(LaunchError, match=message):
        run("", [ONE], **options)


def test_an_unknown_kernel_is_refused_with_those_that_exist():
    with pytest.raises(LaunchError, match="no kernel 'q' in the PTX; it has k"):
        humming_sim.launch(module(""), "q", 1, 32, [ONE])


@pytest.mark.parametrize(
    ("target", "arch", "runs"),
    [
        ("sm_75", "sm_90a", True),
        ("sm_90", "sm_80", False),
        ("sm_90a", "sm_100a", False),
        ("sm_100f", "sm_103a", True),
        ("sm_103f", "sm_100a", False),
        ("sm_100f", "sm_120a", False),
        ("sm_120f", "sm_121a", True),
        ("sm_100a", "sm_103a", False),
    ],
)
def test_ptx_runs_where_its_target_allows(target, arch, runs):
    from humming_sim.device import runs_on

    assert runs_on(target, arch) is runs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([ONE], "has 2 parameters, and 1 arguments came"),
        ([ONE, 2**33], "cannot hold 8589934592"),
        ([ONE, np.float64(1)], "was given 8 bytes"),
        ([ONE, "text"], "type str"),
        ([np.zeros((4, 4))[:, ::2], 1], "not contiguous"),
        ([ONE, b"12345"], "was given 5 bytes"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(LaunchError, match=message):
        humming_sim.launch(module("", 1, ["u32"]), "k", 1, 32, arguments)


def test_numbers_arrive_as_their_parameters_say():
    ptx = module("", 1, ["f32", "s32", "f64"]).replace("ld.param.f64 %r34", "ld.param.f64 %fd1")
    ptx = ptx.replace("ld.param.f32 %r32", "ld.param.f32 %f1").replace(
        "ret;",
        "st.global.f32 [%rd0], %f1; st.global.u32 [%rd0+4], %r33; "
        "st.global.f64 [%rd0+8], %fd1; ret;",
    )
    result = np.zeros(2, np.float64)
    humming_sim.launch(ptx, "k", 1, 1, [result, 1.5, -3, 2.25])
    assert result[:1].view(np.float32)[0] == 1.5
    assert result[:1].view(np.int32)[1] == -3
    assert result[1] == 2.25


def test_pointers_inside_of_a_struct_point_to_their_buffers():
    ptx = module("ld.param.u64 %rd1, [s+8]; ld.param.u32 %r1, [s]; st.global.u32 [%rd1], %r1;", 0)
    ptx = ptx.replace(".entry k()", ".entry k(.param .align 8 .b8 s[16])")
    data = np.zeros(4, np.uint32)
    humming_sim.launch(ptx, "k", 1, 1, [Struct((7).to_bytes(16, "little"), {8: (data, 4)})])
    assert data.tolist() == [0, 7, 0, 0]
    with pytest.raises(LaunchError, match="16-byte struct"):
        humming_sim.launch(ptx, "k", 1, 1, [Struct(bytes(16), {12: data})])


def test_an_instruction_that_is_not_simulated_is_named_before_anything_runs():
    with pytest.raises(UnsupportedInstruction, match=r"tex.2d.*not simulated") as error:
        run(
            "st.global.u32 [%rd0], 1; tex.2d.v4.f32.s32 {%f1,%f2,%f3,%f4}, [%rd0, {%r1,%r2}];",
            [ONE],
        )
    assert error.value.line > 0
    assert ONE[0] == 0


def test_an_unknown_modifier_is_named():
    with pytest.raises(UnsupportedInstruction, match=r"\.magic of ld"):
        run("ld.global.magic.u32 %r1, [%rd0];", [ONE])


def test_a_large_grid_runs_in_waves_with_the_same_result(monkeypatch):
    monkeypatch.setattr("humming_sim.launching._WAVE_BYTES", 1 << 16)
    result = np.zeros(100, np.uint32)
    report = run(
        "mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd1, %rd0;"
        "st.global.u32 [%rd1], %r1;",
        [result],
        grid=100,
    )
    assert (result == np.arange(100)).all()
    assert report.waves > 1
    assert report.ctas == 100


def test_special_registers_of_three_dimensions():
    result = np.zeros((2 * 3 * 2 * 12, 7), np.uint32)
    run(
        """
        mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ctaid.y;
        mov.u32 %r5, %ctaid.z; mov.u32 %r6, %laneid; mov.u32 %r7, %nctaid.y;
        mad.lo.u32 %r10, %r5, 3, %r4; mad.lo.u32 %r10, %r10, 2, %r3;
        mad.lo.u32 %r11, %r2, 4, %r1; mad.lo.u32 %r10, %r10, 12, %r11; mul.wide.u32 %rd1, %r10, 28;
        add.s64 %rd1, %rd1, %rd0; st.global.u32 [%rd1], %r1; st.global.u32 [%rd1+4], %r2;
        st.global.u32 [%rd1+8], %r3; st.global.u32 [%rd1+12], %r4; st.global.u32 [%rd1+16], %r5;
        st.global.u32 [%rd1+20], %r6; st.global.u32 [%rd1+24], %r7;
        """,
        [result],
        grid=(2, 3, 2),
        block=(4, 3),
    )
    rows = iter(result.tolist())
    for z in range(2):
        for y in range(3):
            for x in range(2):
                for j in range(3):
                    for i in range(4):
                        assert next(rows) == [i, j, x, y, z, 4 * j + i, 3]


@pytest.mark.parametrize(
    ("check", "body"),
    [
        ("bounds", "ld.global.u32 %r1, [%rd0+1000000];"),
        ("deadlock", "setp.eq.u32 %p1, %r0, 0; @%p1 bar.sync 1, 64;"),
        ("mbarrier", ".shared .align 8 .b8 m[8]; mov.u32 %r1, m; mbarrier.inval.shared.b64 [%r1];"),
        ("trap", "LOOP: add.u32 %r1, %r0, 1; bra LOOP;"),
    ],
)
def test_faults_after_which_nothing_can_go_on_are_reported_whatever_is_checked(check, body):
    with pytest.raises(humming_sim.SimulationFault) as fault:
        run(body, [ONE], checks=(), max_steps=100)
    assert fault.value.findings[0].check == check


@pytest.mark.parametrize("seed", [None, 1])
def test_a_launch_leaves_nothing_to_the_garbage_collector(seed):
    body = "mov.u32 %r0, %tid.x; bar.sync 0; setp.lt.u32 %p0, %r0, 16; @%p0 bra DONE; DONE: ret;"
    run(body, [ONE], seed=seed)  # what is made once
    gc.collect()
    gc.disable()
    try:
        run(body, [ONE], seed=seed)
        assert gc.collect() == 0
    finally:
        gc.enable()
