"""wgmma through launch: results by the manual's formulas, and the faults that are found."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
from sim_fragments import A_FORMULAS, metadata_place
from sim_mma_cases import draw
from sim_scalar import assemble
from sim_warp import WarpOp, module
from sim_wgmma import (
    B_START,
    BARRIER,
    COMMIT,
    FENCE,
    PROXY,
    WAIT,
    Place,
    c_registers,
    descriptor,
    k_major,
    kernel,
    mn_major,
    spread,
    tile_of,
    tile_words,
)

from humming_sim import CHECKS, PtxError, SimulationFault, UnsupportedInstruction

A_REGISTERS = "{%a0, %a1, %a2, %a3}"
N = 24


class Case:
    """One wgmma of m64n24 with random operands."""

    def __init__(
        self,
        types: tuple[str, str, str],
        a: Place | None,
        b: Place,
        tail: str = "",
        words: str = "",
    ) -> None:
        self.types, self.a, self.b, self.tail, self.words = types, a, b, tail, words
        self.bits = {"f16": 16, "bf16": 16, "tf32": 32}.get(types[1], 8)
        self.k = 256 // self.bits
        self.d_bits = 16 if types[0] == "f16" else 32

    @property
    def name(self) -> str:
        where = "registers" if self.a is None else f"{self.a.swizzle}_{self.a.major}"
        parts = (*self.types, where, self.b.swizzle, self.b.major, self.words)
        return "wgmma_" + "_".join(parts) + self.tail.replace(", ", "_")

    def op(self) -> WarpOp:
        a = "%da" if self.a else A_REGISTERS
        opcode = f"wgmma.mma_async.sync.aligned.m64n{N}k{self.k}.{'.'.join(self.types)}{self.words}"
        count = N * self.d_bits // 64
        body = descriptor("da", self.a.descriptor()) if self.a else ""
        body += descriptor("db", self.b.descriptor())
        body += f"{FENCE}{opcode} {c_registers(count)}, {a}, %db, %on{self.tail};{COMMIT}{WAIT}"
        return kernel(f"case{id(self)}", body, count)

    def data(self) -> tuple[dict[str, Any], Any]:
        rng = np.random.default_rng(len(self.name))
        a_bits, a = draw(self.types[1], (64, self.k), rng)
        b_bits, b = draw(self.types[2], (N, self.k), rng)
        signs = [int(part) for part in self.tail.split(",")[1:3]] or [1, 1]
        parts = [(self.b, b_bits)] + ([(self.a, a_bits)] if self.a else [])
        registers = np.zeros((4, 32, 4), np.uint32)
        formula = A_FORMULAS[16, self.k, self.bits]
        for warp, lane, i in np.ndindex(4, 32, self.k // 2):
            row, column = formula(lane >> 2, lane % 4, i)
            value = int(a_bits[16 * warp + row, column])
            registers[warp, lane, i * self.bits // 32] |= np.uint32(value << i * self.bits % 32)
        c = rng.integers(-8, 9, (64, N))
        exact = signs[0] * signs[1] * (a @ b.T) + c
        dtype = {"f16": np.float16, "f32": np.float32, "s32": np.int32}[self.types[0]]
        raw = f"u{self.d_bits // 8}"
        inputs = {
            "t": tile_words(tile_of(parts, self.bits)),
            "a": registers,
            "c": spread(c.astype(dtype).view(raw), self.d_bits),
        }
        return inputs, spread(exact.astype(dtype).view(raw), self.d_bits)


def _cases() -> list[Case]:
    cases = []
    for swizzle, a, b in itertools.product(("none", "32B", "64B", "128B"), (0, 1), (0, 1)):
        places = [(k_major, mn_major)[t](swizzle, s) for t, s in ((a, 0), (b, B_START))]
        cases.append(Case(("f32", "f16", "f16"), *places, f", 1, 1, {a}, {b}"))
    plain = k_major("128B"), k_major("64B", B_START)
    advanced = k_major("128B", 64), k_major("64B", B_START + 32)
    cases.append(Case(("f16", "f16", "f16"), *advanced, ", -1, 1, 0, 0"))
    cases.append(Case(("f32", "bf16", "bf16"), *plain, ", 1, -1, 0, 0"))
    cases.append(Case(("f32", "f16", "f16"), None, mn_major("64B", B_START), ", -1, -1, 1"))
    for types in (("f32", "tf32", "tf32"), ("f32", "e4m3", "e5m2"), ("f16", "e5m2", "e5m2")):
        cases += [Case(types, a, plain[1], ", 1, -1") for a in (plain[0], None)]
    for types in (("s32", "s8", "u8"), ("s32", "u8", "u8")):
        cases += [
            Case(types, a, plain[1], words=w) for a in (plain[0], None) for w in ("", ".satfinite")
        ]
    return cases


CASES = _cases()


@functools.cache
def text_of() -> str:
    return module([case.op() for case in CASES], "sm_90a", "8.4")


def test_the_assembler_takes_every_form() -> None:
    assemble(text_of(), "sm_90a")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_are_what_the_manual_says(case: Case) -> None:
    values, wanted = case.data()
    assert (case.op().run(text_of(), values)["d"] == wanted).all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES[::7], ids=lambda case: case.name)
def test_results_are_the_same_in_random_order(case: Case, seed: int) -> None:
    values, wanted = case.data()
    assert (case.op().run(text_of(), values, seed=seed)["d"] == wanted).all()


# -------------------------------------------------------------------------------- a simple kernel

F16 = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
MAKE = descriptor("da", k_major("128B").descriptor())
MAKE += descriptor("db", k_major("128B", B_START).descriptor())


def mma(c: str = "{%c0,%c1,%c2,%c3}", a: str = "%da", on: str = "%on") -> str:
    tail = ", 1, 1, 0, 0" if a == "%da" else ", 1, 1, 0"
    return f"{F16} {c}, {a}, %db, {on}{tail};"


def run(body: str, before_use: str = PROXY + BARRIER, **options: Any) -> np.ndarray:
    """Every element of A and B is 1: each instruction adds 16 to D."""
    op = kernel("kernel", MAKE + body, 4, before_use)
    ones = np.full((4, 32, 48), 0x3C003C00, np.uint32)
    values = {"t": ones, "a": ones[:, :, :4], "c": np.zeros((4, 32, 4), np.uint32)}
    text = module([op], "sm_90a", "8.4")
    return op.run(text, values, **options)["d"].view(np.float32)


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_instructions_add_up_in_their_order(seed: int | None) -> None:
    assert (run(FENCE + mma() * 3 + COMMIT + WAIT, seed=seed) == 48).all()


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_scale_d_false_overwrites(seed: int | None) -> None:
    found = run(FENCE + mma() * 2 + mma(on="%off") + mma() + COMMIT + WAIT, seed=seed)
    assert (found == 32).all()
    assert (run(FENCE + mma(on="0") + COMMIT + WAIT, seed=seed) == 16).all()


def test_accumulators_may_be_unwritten_without_scale_d() -> None:
    fresh = ".reg .b32 %x<4>;"
    c = "{%x0,%x1,%x2,%x3}"
    copy = "".join(f"mov.b32 %c{i}, %x{i};" for i in range(4))
    assert (run(fresh + FENCE + mma(c, on="%off") + COMMIT + WAIT + copy) == 16).all()
    with pytest.raises(SimulationFault, match="register %x0 is read and nothing wrote it"):
        run(fresh + FENCE + mma(c) + COMMIT + WAIT + copy)


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_wait_group_leaves_the_latest_groups_in_flight(seed: int | None) -> None:
    second = ".reg .b32 %x<4>; mov.b32 %x0, 0; mov.b32 %x1, 0; mov.b32 %x2, 0; mov.b32 %x3, 0;"
    issue = FENCE + mma() + COMMIT + mma("{%x0,%x1,%x2,%x3}") + COMMIT
    wait = "wgmma.wait_group.sync.aligned 1;"
    use = "add.u32 %c0, %c0, 0;"
    assert (run(second + issue + wait + use + WAIT, seed=seed) == 16).all()
    with pytest.raises(SimulationFault, match=r"\[async\] register %x0 belongs"):
        run(second + issue + wait + "add.u32 %x0, %x0, 0;" + WAIT, seed=seed)


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("access", ["add.u32 %to, %c2, 1;", "mov.b32 %c2, 0;"])
def test_accumulators_used_before_the_wait_are_reported(access: str, seed: int | None) -> None:
    with pytest.raises(SimulationFault, match=r"\[async\] register %c2 belongs"):
        run(FENCE + mma() + COMMIT + access + WAIT, seed=seed)


def test_a_fragments_overwritten_before_the_wait_are_reported() -> None:
    with pytest.raises(SimulationFault, match=r"\[async\] register %a1 belongs"):
        run(FENCE + mma(a=A_REGISTERS) + COMMIT + "mov.b32 %a1, 0;" + WAIT)


def test_a_wait_without_commit_waits_for_nothing() -> None:
    with pytest.raises(SimulationFault, match=r"\[async\] register %c0"):
        run(FENCE + mma() + WAIT)


def test_exit_before_the_wait_is_reported() -> None:
    with pytest.raises(SimulationFault, match="exits before this wgmma"):
        run(FENCE + mma() + COMMIT + "exit;")


def test_a_missing_fence_is_reported() -> None:
    with pytest.raises(SimulationFault, match=r"no wgmma\.fence lies between"):
        run("mov.b32 %c0, 0;" + mma() + COMMIT + WAIT)
    again = FENCE + mma() + COMMIT + WAIT + "mov.b32 %c0, 0;" + mma() + COMMIT + WAIT
    with pytest.raises(SimulationFault, match=r"no wgmma\.fence lies between"):
        run(again)


def test_a_compiler_may_move_register_writes_across_the_fence() -> None:
    assert (run(FENCE + "mov.b32 %c0, 0;" + mma() + COMMIT + WAIT) == 16).all()


def test_accumulators_need_no_fence_between_instructions() -> None:
    first = FENCE + mma() + COMMIT + WAIT
    assert (run(first + mma() + COMMIT + WAIT) == 32).all()


def test_a_missing_proxy_fence_is_reported() -> None:
    with pytest.raises(SimulationFault, match=r"\[proxy\]"):
        run(FENCE + mma() + COMMIT + WAIT, before_use=BARRIER)


def test_a_missing_barrier_is_found_in_random_orders() -> None:
    checks = []
    for seed in range(8):
        try:
            run(FENCE + mma() + COMMIT + WAIT, before_use=PROXY, seed=seed)
        except SimulationFault as fault:
            checks.append(fault.findings[0].check)
    assert len(checks) >= 3
    assert set(checks) <= {"uninitialised", "proxy"}


def test_operands_must_be_there_when_the_instruction_is_issued() -> None:
    late = "".join(f"st.shared.b32 [%to+{4 * i}], %t{i};" for i in range(48)) + PROXY + BARRIER
    op = kernel("kernel", MAKE + FENCE + mma() + COMMIT + late + WAIT, 4)
    body = op.body.replace("st.shared", "//st.shared", 48)
    broken = WarpOp("kernel", body.replace(";//", ";\n//"), op.inputs, op.outputs, {})
    ones = np.full((4, 32, 48), 0x3C003C00, np.uint32)
    values = {"t": ones, "a": ones[:, :, :4], "c": np.zeros((4, 32, 4), np.uint32)}
    with pytest.raises(SimulationFault, match=r"\[uninitialised\] 16 bytes of shared memory"):
        broken.run(module([broken], "sm_90a", "8.4"), values)


def test_memory_overwritten_before_the_wait_is_read_late() -> None:
    # The generic write comes before the late read, so the result is not 16.
    change = "mov.b32 %to, 0; st.shared.b32 [%base], %to;" + PROXY + BARRIER
    assert not (run(FENCE + mma() + COMMIT + change + WAIT) == 16).all()


@pytest.mark.parametrize(
    ("bit", "named"), [(14, "bits 14-15"), (47, "bits 46-48"), (61, "bits 52-61")]
)
def test_reserved_descriptor_bits_are_reported(bit: int, named: str) -> None:
    with pytest.raises(SimulationFault, match=rf"\[descriptor\].*{named}"):
        run(f"or.b64 %da, %da, {1 << bit:#x};" + FENCE + mma() + COMMIT + WAIT)


def test_a_descriptor_beyond_shared_memory_is_reported() -> None:
    with pytest.raises(SimulationFault, match=r"\[bounds\]"):
        run("add.s64 %db, %db, 1000;" + FENCE + mma() + COMMIT + WAIT)


@pytest.mark.parametrize("seed", [None, 0])
def test_descriptors_that_differ_are_reported(seed: int | None) -> None:
    lanes = "cvt.u64.u32 %da, %me; and.b64 %da, %da, 1; add.s64 %db, %db, %da;"
    with pytest.raises(SimulationFault, match="different matrix descriptors"):
        run(lanes + FENCE + mma() + COMMIT + WAIT, seed=seed)


def test_descriptors_that_differ_between_warps_are_reported() -> None:
    warps = "cvt.u64.u32 %da, %me; shr.b64 %da, %da, 5; shl.b64 %da, %da, 6; add.s64 %db, %db, %da;"
    with pytest.raises(SimulationFault, match="warps of a warpgroup give different"):
        run(warps + FENCE + mma(a=A_REGISTERS) + COMMIT + WAIT)


@pytest.mark.parametrize("seed", [None, 0])
def test_a_warp_that_skips_the_instruction_is_reported(seed: int | None) -> None:
    skip = ".reg .pred %first; setp.lt.u32 %first, %me, 32; @%first bra DONE;"
    with pytest.raises(SimulationFault, match=r"warpgroup 0.*\[0, 1, 1, 1\]"):
        run(skip + FENCE + mma() + COMMIT + WAIT + "DONE:", seed=seed)


def test_a_check_that_is_off_stays_silent() -> None:
    body = FENCE + mma() + COMMIT + "mov.b32 %to, %c0;" + WAIT
    assert (run(body, checks=set(CHECKS) - {"async"}) == 16).all()


@pytest.mark.parametrize(
    ("instruction", "named"),
    [
        ("m64n8k32.f32.f16.f16 {%c0,%c1,%c2,%c3}, %da, %db, %on, 1, 1, 0, 0", "k32 is no depth"),
        ("m64n8k16.f16.bf16.bf16 {%c0,%c1}, %da, %db, %on, 1, 1, 0, 0", "no wgmma of bf16"),
        ("m64n40k32.s32.s8.s8 {%c0,%c1}, %da, %db, %on", "n40 is no size"),
        ("m64n8k16.f32.f16.f16 {%c0,%c1}, %da, %db, %on, 1, 1, 0, 0", "expected 4"),
        ("m64n8k16.f32.f16.f16 {%c0,%c1,%c2,%c3}, %da, %db, %on, 1, 2, 0, 0", "1 or -1"),
        ("m64n8k16.f32.f16.f16 {%c0,%c1,%c2,%c3}, %da, %db, %on, 1, 1, 0, 2", "0 or 1"),
        ("m64n8k16.f32.f16.f16 {%c0,%c1,%c2,%c3}, %da, %db, %on", "operands; expected"),
    ],
)
def test_forms_that_do_not_exist_are_refused(instruction: str, named: str) -> None:
    with pytest.raises(PtxError, match=named):
        run(f"wgmma.mma_async.sync.aligned.{instruction};")


def test_unknown_words_are_named() -> None:
    with pytest.raises(UnsupportedInstruction, match="sideways"):
        run(mma().replace("aligned", "aligned.sideways"))


# ----------------------------------------------------------------------------------------- sparse


@pytest.mark.parametrize(("type_", "bits"), [("f16", 16), ("tf32", 32), ("e4m3", 8), ("s8", 8)])
@pytest.mark.parametrize("in_registers", [False, True])
def test_sparse_a_is_spread_by_its_metadata(type_: str, bits: int, in_registers: bool) -> None:
    k, d = 512 // bits, "s32" if type_ == "s8" else "f32"
    rng = np.random.default_rng(bits)
    a_bits, stored = draw(type_, (64, k // 2), rng)
    b_bits, b = draw(type_, (8, k), rng)
    chunk = 2 if bits == 32 else 4
    words, dense = np.zeros((4, 32, 1), np.uint32), np.zeros((64, k))
    for row, c in np.ndindex(64, k // chunk):
        places = [int(rng.integers(2))] if bits == 32 else sorted(rng.choice(4, 2, replace=False))
        nibble = (4, 14)[places[0]] if bits == 32 else int(places[0] | places[1] << 2)
        dense[row, [c * chunk + p for p in places]] = stored[row, c * chunk // 2 :][: len(places)]
        lane, low = metadata_place(k, bits, row % 16, c, 0)
        words[row // 16, lane, 0] |= np.uint32(nibble << low)
    a_place, b_place = k_major("64B"), k_major("128B", B_START)
    tile = tile_of([(a_place, a_bits), (b_place, b_bits)], bits)
    registers = np.zeros((4, 32, 4), np.uint32)
    for warp, lane, i in np.ndindex(4, 32, k // 4):
        row, column = A_FORMULAS[16, k // 2, bits](lane >> 2, lane % 4, i)
        value = int(a_bits[16 * warp + row, column])
        registers[warp, lane, i * bits // 32] |= np.uint32(value << i * bits % 32)
    tail = {16: ", 1, 1, 0" if in_registers else ", 1, 1, 0, 0"}.get(bits, ", 1, 1")
    tail = "" if d == "s32" else tail
    a = A_REGISTERS if in_registers else "%da"
    opcode = f"wgmma.mma_async.sp.sync.aligned.m64n8k{k}.{d}.{type_}.{type_}"
    body = descriptor("da", a_place.descriptor()) + descriptor("db", b_place.descriptor())
    body += f"{FENCE}{opcode} {{%c0,%c1,%c2,%c3}}, {a}, %db, %e0, 0, %on{tail};{COMMIT}{WAIT}"
    op = kernel("kernel", body, 4)
    op = WarpOp("kernel", op.body, {**op.inputs, "e": 1}, op.outputs, {})
    text = module([op], "sm_90a", "8.4")
    assemble(text, "sm_90a")
    zero = np.zeros((4, 32, 4), np.uint32)
    values = {"t": tile_words(tile), "a": registers, "c": zero, "e": words}
    exact = dense @ b.T
    wanted = exact.astype(np.int32 if d == "s32" else np.float32).view(np.uint32)
    assert (op.run(text, values)["d"] == spread(wanted, 32)).all()
