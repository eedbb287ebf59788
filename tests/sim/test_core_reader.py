"""Reading PTX text."""

import pytest

from humming_sim.errors import PtxError, UnsupportedInstruction
from humming_sim.ptx.model import Address, Group, Immediate, Pair, Register, Sink, Special, Symbol
from humming_sim.ptx.reader import read_module

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"


def kernel(body, parameters="", directives="", before=""):
    text = f"{HEAD}{before}\n.visible .entry k({parameters})\n{directives}\n{{\n{body}\n}}\n"
    return read_module(text).kernels["k"]


def only(body, registers=".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<4>;"):
    (item,) = kernel(f"{registers}\n{body}").instructions
    return item


def test_head_gives_version_and_target():
    module = read_module(HEAD)
    assert (module.version, module.target, module.kernels) == ((9, 0), "sm_90a", {})


@pytest.mark.parametrize("text", ["", "int main() {}", ".version 9.0", ".target sm_80"])
def test_text_without_a_head_is_refused(text):
    with pytest.raises(PtxError, match=r"starts with \.version and \.target"):
        read_module(text)


def test_parameters_are_laid_out_with_their_alignment():
    found = kernel(
        "ret;",
        ".param .u8 a, .param .u64 .ptr .global .align 1 b,\n"
        ".param .align 64 .b8 m[128], .param .f32 s",
    ).parameters
    assert [(p.offset, p.size) for p in found.values()] == [(0, 1), (8, 8), (64, 128), (192, 4)]


def test_shared_variables_are_placed_in_order_and_a_dynamic_array_is_not():
    k = kernel(
        ".shared .align 8 .b8 x[12]; .shared .align 16 .b8 y[4]; .shared .u32 z; ret;",
        before=".extern .shared .align 1024 .b8 pool[];",
    )
    assert {n: v.offset for n, v in k.shared.items()} == {"x": 0, "y": 16, "z": 20}
    assert k.shared_bytes == 24
    assert k.dynamic == {"pool": 1024}


def test_directives_and_comments():
    k = kernel("/* a ; } */ ret; // }", directives=".maxntid 128, 1, 1\n.reqnctapercluster 2\n")
    assert k.directives == {"maxntid": (128, 1, 1), "reqnctapercluster": (2,)}
    assert [item.opcode for item in k.instructions] == ["ret"]


def test_every_kind_of_operand():
    item = only("shfl.sync.idx.b32 %r1|%p1, %r2, 3, 0x1f, -1;")
    assert isinstance(item.operands[0], Pair)
    assert [type(operand) for operand in item.operands[1:]] == [Register] + [Immediate] * 3
    assert [o.value for o in item.operands[2:]] == [3, 31, -1]
    item = only("ld.shared.v2.b32 {%r1, _}, [%r3+-16];")
    group, address = item.operands
    assert isinstance(group, Group)
    assert isinstance(group.items[1], Sink)
    assert (address.base.name, address.offset) == ("%r3", -16)
    item = only("mov.u32 %r1, %tid.x;")
    assert item.operands[1] == Special("%tid.x")
    item = only("ld.param.u64 %rd1, [k_param_0+8];")
    assert item.operands[1] == Address(Symbol("k_param_0"), 8)
    item = only("@!%p2 selp.b32 %r1, %r2, %r3, !%p1;")
    assert item.guard.name == "%p2"
    assert item.guard.negated
    assert item.operands[3].negated


@pytest.mark.parametrize(
    ("text", "value", "kind"),
    [
        ("17", 17, "int"),
        ("-3", -3, "int"),
        ("0x1FU", 31, "int"),
        ("0b101", 5, "int"),
        ("017", 15, "int"),
        ("0f3F800000", 0x3F800000, "f32"),
        ("0d3FF0000000000000", 0x3FF0000000000000, "f64"),
        ("1.5", 0x3FF8000000000000, "f64"),
    ],
)
def test_literals(text, value, kind):
    assert only(f"mov.b32 %r1, {text};").operands[1] == Immediate(value, kind)


def test_tensor_coordinates_are_extras_of_the_address():
    item = only(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%r1], [%rd1, {%r2, 64}], [%r3];"
    )
    assert "mbarrier::complete_tx::bytes" in item.words
    (coordinates,) = item.operands[1].extras
    assert [type(c) for c in coordinates.items] == [Register, Immediate]


def test_labels_of_inner_blocks_are_their_own():
    k = kernel(
        ".reg .pred %p;\n"
        "{ W: @%p bra D; bra W; D: }\n"
        "{ W: @%p bra D; bra W; D: }\n"
        "bra END;\nEND: ret;"
    )
    targets = [k.labels[item.operands[0].name] for item in k.instructions[:5]]
    assert targets == [2, 0, 4, 2, 5]


def test_registers_of_inner_blocks_hide_outer_ones():
    k = kernel(
        ".reg .b32 %r<3>; mov.b32 %r1, 1; { .reg .b32 %r1; mov.b32 %r1, 2; } mov.b32 %r1, 3;"
    )
    outer, inner, again = (item.operands[0].index for item in k.instructions)
    assert outer == again != inner


def test_lines_are_those_of_the_text():
    text = HEAD + ".visible .entry k()\n{\n\n  ret;\n}\n"
    assert read_module(text).kernels["k"].instructions[0].line == 7


def test_module_variables_keep_their_bytes_and_links():
    module = read_module(
        HEAD
        + ".const .align 4 .u32 t[2] = {1, 0x80000000};\n.global .f32 f = 0f40490FDB;\n"
        + ".global .u64 p[2] = {generic(t), t+4};\n"
    )
    assert module.variables["t"].data == bytes([1, 0, 0, 0, 0, 0, 0, 0x80])
    assert module.variables["f"].data == bytes([0xDB, 0x0F, 0x49, 0x40])
    assert module.variables["p"].links == ((0, "t", 0), (8, "t", 4))


def test_functions_and_debug_sections_are_skipped():
    module = read_module(
        HEAD
        + ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n"
        + '.func f() { ret; }\n.file 1 "a.cu"\n'
        + ".visible .entry k() { .loc 1 2 3\n ret; }\n.section .debug_str { .b8 1, 2 }\n"
    )
    assert list(module.kernels) == ["k"]


@pytest.mark.parametrize(
    ("body", "message", "line"),
    [
        ("mov.b32 %q, 1;", "register", 6),
        ("bra NOWHERE;", "no label NOWHERE", 6),
        ("@%r1 ret;", "no predicate", 6),
        (".reg .f128 %x;", "no registers that are known", 6),
    ],
)
def test_errors_name_the_line(body, message, line):
    from humming_sim import launch

    text = HEAD + ".visible .entry k()\n{\n" + f"{body}\n" + ".reg .b32 %r<2>;\nret;\n}\n"
    with pytest.raises(PtxError, match=message) as error:
        launch(text, "k", 1, 32, [])
    assert error.value.line == line


def test_an_unknown_directive_is_named():
    with pytest.raises(UnsupportedInstruction, match="calltargets"):
        kernel(".calltargets f;")


MMA = "mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.f32.{}.f32"
OPERANDS = " {%f0,%f0,%f0,%f0},{%r0,%r0,%r0,%r0},{%r0,%r0},{%f0,%f0,%f0,%f0};"


def test_a_stand_in_type_is_read_as_what_it_stands_for():
    registers = ".reg .b32 %r<2>; .reg .f32 %f<2>;"
    marked = "// stand-in: e3m2.e2m1 is e3m4.e0m3\n" + MMA.format("e3m2.e2m1") + OPERANDS
    plain = MMA.format("e3m2.e2m1") + OPERANDS
    first, second = kernel(f"{registers}\n{marked}{plain}").instructions
    assert first.opcode == MMA.format("e3m4.e0m3")
    assert second.opcode == MMA.format("e3m2.e2m1")


def test_a_stand_in_that_the_instruction_does_not_have_is_an_error():
    with pytest.raises(PtxError, match=r"stand-in for \.e3m2"):
        only("/* stand-in: e3m2 is e3m4 */ add.u32 %r1, %r2, %r3;")
