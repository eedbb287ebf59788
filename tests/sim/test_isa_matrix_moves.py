"""ldmatrix, stmatrix and movmatrix through launch."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from sim_scalar import assemble
from sim_warp import WarpOp, module, vector

import humming_sim
from humming_sim import PtxError, SimulationFault, UnsupportedInstruction
from humming_sim.matrices.moves import LOADS, STORES, load, store

PRELUDE = """
.shared .align 16 .b8 tile[1024];
.reg .b32 %base, %to, %row;
mov.u32 %base, tile;
"""
#: Rows go out of order, as addresses of lanes may.
ROW = "mul.lo.u32 %row, %me, 5; and.b32 %row, %row, 31; mad.lo.u32 %row, %row, 16, %base;"
ORDER = np.arange(32) * 5 % 32
FILL = "mad.lo.u32 %to, %me, 32, %base;" + "".join(
    f"st.shared.b32 [%to+{4 * i}], %t{i};" for i in range(8)
)
SYNC = "bar.warp.sync 0xffffffff;"

B8 = "b8x16.b6x16_p32 b8x16.b4x16_p64".split()
LOAD_FORMS = [("m8n8", "b16", t, n) for t, n in itertools.product((False, True), (1, 2, 4))]
LOAD_FORMS_120 = [("m16n16", f, True, n) for f, n in itertools.product(["b8", *B8], (1, 2))]
LOAD_FORMS_120 += [("m8n16", f, False, n) for f, n in itertools.product(B8, (1, 2, 4))]
STORE_FORMS = LOAD_FORMS
STORE_FORMS_120 = [("m16n8", "b8", True, n) for n in (1, 2, 4)]

Form = tuple[str, str, bool, int]


def name_of(form: Form) -> str:
    shape, format_, transposed, count = form
    return f"{shape}_{format_.replace('.', '_')}_{'trans' * transposed}_x{count}"


def words(form: Form) -> str:
    shape, format_, transposed, count = form
    return f"sync.aligned.{shape}.x{count}{'.trans' * transposed}.shared.{format_}"


def load_op(form: Form) -> WarpOp:
    registers = LOADS[form[:3]].registers * form[3]
    body = f"{PRELUDE}{FILL}{SYNC}{ROW} ldmatrix.{words(form)} {vector('d', registers)}, [%row];"
    return WarpOp(f"load_{name_of(form)}", body, {"t": 8}, {"d": registers}, {})


def store_op(form: Form) -> WarpOp:
    count = form[3]
    read = "".join(f"ld.shared.b32 %d{i}, [%to+{4 * i}];" for i in range(8))
    body = f"{PRELUDE}{FILL}{SYNC}{ROW} stmatrix.{words(form)} [%row], {vector('a', count)};"
    return WarpOp(f"store_{name_of(form)}", body + SYNC + read, {"t": 8, "a": count}, {"d": 8}, {})


MOVE = WarpOp("move", "movmatrix.sync.aligned.m8n8.trans.b16 %d0, %a0;", {"a": 1}, {"d": 1}, {})


@functools.cache
def text_of(target: str) -> str:
    loads, stores = (
        (LOAD_FORMS, STORE_FORMS) if target == "sm_90" else (LOAD_FORMS_120, STORE_FORMS_120)
    )
    ops = [*map(load_op, loads), *map(store_op, stores), MOVE]
    return module(ops, target, "8.7")


@pytest.mark.parametrize("target", ["sm_90", "sm_120a"])
def test_the_assembler_takes_every_form(target: str) -> None:
    assemble(text_of(target), target)


def tile(seed: int) -> np.ndarray:
    """32 rows of 16 bytes, as registers of the lanes that store them."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 1 << 32, (1, 32, 8), dtype=np.uint32)


@pytest.mark.parametrize("form", LOAD_FORMS + LOAD_FORMS_120, ids=name_of)
def test_ldmatrix_takes_the_rows_that_its_lanes_name(form: Form) -> None:
    target = "sm_90" if form in LOAD_FORMS else "sm_120a"
    memory = tile(1)
    found = load_op(form).run(text_of(target), {"t": memory})["d"]
    move = LOADS[form[:3]]
    rows = memory.view(np.uint8).reshape(64, 16)[ORDER[: move.rows * form[3]]]
    assert (found == load(move, rows[None])).all()


@pytest.mark.parametrize("form", STORE_FORMS + STORE_FORMS_120, ids=name_of)
def test_stmatrix_writes_the_rows_that_its_lanes_name(form: Form) -> None:
    target = "sm_90" if form in STORE_FORMS else "sm_120a"
    memory, fragments = tile(2), tile(3)[:, :, : form[3]]
    found = store_op(form).run(text_of(target), {"t": memory, "a": fragments})["d"]
    rows = memory.copy().view(np.uint8).reshape(64, 16)
    rows[ORDER[: 8 * form[3]]] = store(STORES[form[:3]], fragments)[0]
    assert (found.view(np.uint8).reshape(64, 16) == rows).all()


def test_movmatrix_transposes() -> None:
    matrix = np.arange(64, dtype=np.uint16).reshape(1, 8, 8)
    found = MOVE.run(text_of("sm_90"), {"a": matrix.view(np.uint32).reshape(1, 32, 1)})["d"]
    assert (found.view(np.uint16).reshape(8, 8) == matrix[0].T).all()


def run(body: str, **options: object) -> np.ndarray:
    op = WarpOp("kernel", PRELUDE + FILL + SYNC + ROW + body, {"t": 8}, {"d": 4}, {})
    return op.run(module([op], "sm_90", "8.7"), {"t": tile(4)}, **options)["d"]


LOAD_4 = "ldmatrix.sync.aligned.m8n8.x4.b16 {%d0, %d1, %d2, %d3}, [%wide];"
GENERIC = ".reg .b64 %wide; cvt.u64.u32 %wide, %row; cvta.shared.u64 %wide, %wide;"


def test_generic_addresses_of_shared_memory_work() -> None:
    plain = "ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16 {%d0, %d1, %d2, %d3}, [%row];"
    assert (run(GENERIC + LOAD_4) == run(plain)).all()


def test_generic_addresses_elsewhere_are_reported() -> None:
    with pytest.raises(SimulationFault, match="outside of shared memory"):
        run(".reg .b64 %wide; cvt.u64.u32 %wide, %row;" + LOAD_4)


def test_rows_need_sixteen_bytes_alignment() -> None:
    with pytest.raises(SimulationFault, match=r"\[alignment\]"):
        run("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%d0, %d1, %d2, %d3}, [%row+8];")


def test_rows_outside_of_the_array_are_reported() -> None:
    with pytest.raises(SimulationFault, match=r"\[bounds\]"):
        run("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%d0, %d1, %d2, %d3}, [%row+1024];")


def test_lanes_beyond_the_matrices_may_name_anything() -> None:
    body = (
        ".reg .pred %high; setp.ge.u32 %high, %me, 8; @%high mov.u32 %row, 0xfffffff0;"
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 %d0, [%row];"
        "mov.u32 %d1, 0; mov.u32 %d2, 0; mov.u32 %d3, 0;"
    )
    rows = tile(4).view(np.uint8).reshape(1, 64, 16)[:, ORDER[:8]]
    assert (run(body)[:, :, :1] == load(LOADS["m8n8", "b16", False], rows)).all()


def test_reading_rows_that_nothing_wrote_is_reported() -> None:
    op = WarpOp(
        "kernel",
        PRELUDE + ROW + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 %d0, [%row];",
        {},
        {"d": 1},
        {},
    )
    text = module([op], "sm_90", "8.7")
    with pytest.raises(SimulationFault, match=r"\[uninitialised\]"):
        op.run(text, {"t": tile(5)})


@pytest.mark.parametrize(("format_", "words"), [("b4x16_p64", 2), ("b6x16_p32", 3)])
def test_padding_of_packed_rows_may_be_unwritten(format_: str, words: int) -> None:
    fill = "mad.lo.u32 %to, %me, 16, %base;"
    fill += "".join(f"st.shared.b32 [%to+{4 * i}], %t{i};" for i in range(words))
    opcode = f"ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.{format_}"
    body = f"{PRELUDE}{fill}{SYNC}{opcode} {vector('d', 4)}, [%to];"
    op = WarpOp("kernel", body, {"t": 4}, {"d": 4}, {})
    memory = tile(7)[:, :, :4]
    found = op.run(module([op], "sm_120a", "8.7"), {"t": memory})["d"]
    rows = memory.copy().view(np.uint8).reshape(1, 32, 16)
    assert (found == load(LOADS["m8n16", f"b8x16.{format_}", False], rows)).all()
    last = f"st.shared.b32 [%to+{4 * words - 4}], %t{words - 1};"
    short = WarpOp("kernel", body.replace(last, ""), {"t": 4}, {"d": 4}, {})
    with pytest.raises(SimulationFault, match=r"\[uninitialised\]"):
        short.run(module([short], "sm_120a", "8.7"), {"t": memory})


def test_int4_rows_of_eight_bytes_widen() -> None:
    body = (
        "mad.lo.u32 %row, %me, 8, %base;"
        "ldmatrix.sync.aligned.m8n16.x4.shared.s8.s4 {%d0, %d1, %d2, %d3}, [%row];"
    )
    rows = tile(4).view(np.uint8).reshape(1, 128, 8)[:, :32]
    assert (run(body) == load(LOADS["m8n16", "s8.s4", False], rows)).all()


def test_forms_that_do_not_exist_are_refused() -> None:
    with pytest.raises(UnsupportedInstruction, match=r"b8 without \.trans"):
        run("ldmatrix.sync.aligned.m16n16.x1.shared.b8 {%d0, %d1}, [%row];")
    with pytest.raises(PtxError, match=r"no \.x4"):
        run("ldmatrix.sync.aligned.m16n16.x4.trans.shared.b8 {%d0, %d1}, [%row];")
    with pytest.raises(PtxError, match="expected 4"):
        run("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%d0, %d1}, [%row];")
    with pytest.raises(PtxError, match=r"needs one of \.m8n8"):
        run("movmatrix.sync.aligned.m16n8.trans.b16 %d0, %d1;")


def test_bank_conflicts_of_matrix_rows_are_counted() -> None:
    body = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%d0, %d1, %d2, %d3}, [%row];"
    op = WarpOp("kernel", PRELUDE + FILL + SYNC + ROW + body, {"t": 8}, {"d": 4}, {})
    out = np.zeros((1, 32, 4), np.uint32)
    report = humming_sim.launch(
        module([op], "sm_90", "8.7"), "kernel", 1, 32, [tile(6), out], count=True
    )
    entries = [access for access in report.accesses.values() if "ldmatrix" in access.text]
    assert [access.space for access in entries] == ["shared"]
