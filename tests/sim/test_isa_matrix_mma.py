"""mma.sync and mma.sp through launch: every form, and what is refused or reported."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from sim_mma_cases import Mma, blackwell, hopper
from sim_scalar import assemble
from sim_warp import WarpOp, module

import humming_sim
from humming_sim import PtxError, SimulationFault, UnsupportedInstruction

TARGETS = {"sm_90": ("8.7", hopper), "sm_120a": ("8.7", blackwell)}


@functools.cache
def text_of(target: str) -> str:
    version, cases = TARGETS[target]
    return module([case.op() for case in cases()], target, version)


@pytest.mark.parametrize("target", TARGETS)
def test_the_assembler_takes_every_form(target: str) -> None:
    assemble(text_of(target), target)


def check(case: Mma, target: str) -> None:
    values, wanted = case.data()
    found = case.op().run(text_of(target), values)["d"]
    assert (found == wanted).all(), case.opcode


@pytest.mark.parametrize("case", hopper(), ids=lambda case: case.name)
def test_every_form_of_hopper_computes_what_the_manual_says(case: Mma) -> None:
    check(case, "sm_90")


@pytest.mark.parametrize("case", blackwell(), ids=lambda case: case.name)
def test_every_form_of_sm120_computes_what_the_manual_says(case: Mma) -> None:
    check(case, "sm_120a")


def single(body: str, target: str = "sm_120a") -> tuple[str, WarpOp]:
    op = WarpOp("kernel", body, {"a": 4, "b": 4, "c": 4}, {"d": 4}, {})
    return module([op], target, "8.7"), op


def run(body: str, *, target: str = "sm_120a", **values: Any) -> np.ndarray:
    text, op = single(body, target)
    shape = {"a": 4, "b": 4, "c": 4}
    inputs = {name: np.zeros((1, 32, count), np.uint32) for name, count in shape.items()}
    return op.run(text, inputs | values)["d"]


D, A, B, C = "{%d0,%d1,%d2,%d3}", "{%a0,%a1,%a2,%a3}", "{%b0,%b1}", "{%c0,%c1,%c2,%c3}"
F16 = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
MXF4 = (
    "mma.sync.aligned.kind::mxf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue8m0"
)


@pytest.mark.parametrize(
    "opcode",
    [
        "mma.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32",
        "mma.sync.aligned.m16n8k16.row.col.satfinite.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e2m1.f32",
        "mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::2X.m16n8k64.row.col"
        ".f32.e2m1.e2m1.f32.ue4m3",
        "mma.sync.aligned.kind::mxf4.m16n8k64.row.col.f32.e2m1.e2m1.f32",
    ],
)
def test_forms_that_do_not_exist_are_refused(opcode: str) -> None:
    with pytest.raises(PtxError, match=r"PTX line \d+"):
        run(f"{opcode} {D}, {A}, {B}, {C};")


def test_words_that_nobody_knows_are_named() -> None:
    with pytest.raises(UnsupportedInstruction, match=r"\.sideways"):
        run(f"{F16.replace('.aligned', '.aligned.sideways')} {D}, {A}, {B}, {C};")


def test_a_fragment_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(PtxError, match="2 members in a group; expected 4"):
        run(f"{F16} {D}, {{%a0, %a1}}, {B}, {C};")


def test_a_warp_whose_lanes_have_exited_cannot_multiply() -> None:
    body = f".reg .pred %low; setp.lt.u32 %low, %me, 16; @!%low exit; {F16} {D}, {A}, {B}, {C};"
    with pytest.raises(SimulationFault, match=r"\[convergence\] all 32 lanes"):
        run(body)


def test_a_guard_that_splits_a_warp_is_reported() -> None:
    body = f".reg .pred %low; setp.lt.u32 %low, %me, 16; @%low {F16} {D}, {A}, {B}, {C};"
    with pytest.raises(SimulationFault, match="all 32 lanes"):
        run(body)


def test_scale_selectors_may_come_from_registers() -> None:
    ids = ".reg .b16 %x, %y; mov.b16 %x, 2; mov.b16 %y, 1;"
    one = np.full((1, 32, 4), 0x22222222, np.uint32)  # 1.0 everywhere
    scale = np.full((1, 32, 4), 0x80807F7F, np.uint32)  # bytes 2 and 3 are 2.0
    b = np.concatenate([one[:, :, :2], scale[:, :, :2]], 2)
    for word in ("%b2", "{%b2}"):
        body = f"{ids} {MXF4} {D}, {A}, {B}, {C}, {word}, {{%x, %y}}, {word}, {{0, 0}};"
        assert (run(body, a=one, b=b).view(np.float32) == 128).all()


@pytest.mark.parametrize(
    ("ids", "named"), [("{1, 0}", "byte-id-a is 1"), ("{0, 2}", "thread-id-a")]
)
def test_scale_selectors_out_of_range_are_reported(ids: str, named: str) -> None:
    with pytest.raises(SimulationFault, match=named):
        run(f"{MXF4} {D}, {A}, {B}, {C}, %c0, {ids}, %c0, {{0, 0}};")


def test_scale_selectors_that_differ_in_a_warp_are_reported() -> None:
    ids = ".reg .b16 %x; cvt.u16.u32 %x, %me; and.b16 %x, %x, 2;"
    with pytest.raises(SimulationFault, match="different scale selectors"):
        run(f"{ids} {MXF4} {D}, {A}, {B}, {C}, %c0, {{%x, 0}}, %c0, {{0, 0}};")


def test_metadata_that_names_one_place_twice_is_reported() -> None:
    opcode = "mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    body = f"{opcode} {D}, {{%a0, %a1}}, {B}, {C}, %c0, 0;"
    with pytest.raises(SimulationFault, match=r"\[numeric\].*row 0, chunk 0"):
        run(body)


def test_a_sparsity_selector_out_of_range_is_refused() -> None:
    opcode = "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32"
    with pytest.raises(PtxError, match="expected 1 at most"):
        run(f"{opcode} {D}, {A}, {{%b0,%b1,%b2,%b3}}, {C}, %c0, 2;")


def test_hidden_formats_have_names() -> None:
    # Codes 1 of e0m3 are 1.0; two in the middle of each byte.
    opcode = "mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.f32.e0m3.e3m4.f32"
    a = np.full((1, 32, 4), 0x0C0C0C0C, np.uint32)  # 3.0
    b = np.full((1, 32, 4), 0x30303030, np.uint32)  # 1.0 in e3m4
    assert (run(f"{opcode} {D}, {A}, {B}, {C};", a=a, b=b).view(np.float32) == 96).all()


def test_hardware_accumulation_truncates() -> None:
    a = np.full((1, 32, 4), 0x3C003C00, np.uint32)
    b = np.zeros((1, 32, 4), np.uint32)
    b[:] = 0x00013C00  # 1.0 and 2**-24 alternate
    c = np.full((1, 32, 4), np.float32(2.0**23).view(np.uint32), np.uint32)
    text, op = single(f"{F16} {D}, {A}, {B}, {C};", "sm_90")
    found = [
        op.run(text, {"a": a, "b": b, "c": c}, accumulation=how)["d"].view(np.float32)
        for how in ("exact", "hardware")
    ]
    assert (found[0] == 2.0**23 + 8).all()
    assert (found[1] == 2.0**23 + 8).all()
    c[:] = np.float32(2.0**25).view(np.uint32)
    exact, narrow = (
        op.run(text, {"a": a * 0 + 0x3C003C00, "b": b * 0 + 0x3D003D00, "c": c}, accumulation=how)
        for how in ("exact", "hardware")
    )
    assert (exact["d"].view(np.float32) == 2.0**25 + 20).all()
    assert (narrow["d"].view(np.float32) == 2.0**25 + 16).all()


def test_launches_read_a_kernel_by_its_name() -> None:
    text, _ = single(f"{F16} {D}, {A}, {B}, {C};")
    with pytest.raises(humming_sim.SimulatorError):
        humming_sim.launch(text, "other", 1, 32, [])
