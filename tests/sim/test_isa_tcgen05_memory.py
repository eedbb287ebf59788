"""tcgen05.ld, st, cp, shift and alloc: what they move and where, one element at a time."""

from __future__ import annotations

import numpy as np
import pytest
from tcgen05_ptx import IMAGE, Kernel, assemble, assembler, bare, launch_bare
from tcgen05_reference import CUTE, shared_descriptor, store_units, unit_address

SHAPES = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}


def cell_of(shape, thread, register, second, step=1):
    """(lane in the warp's quarter, column) by figures 183 to 187; step 2 with halves."""
    if shape == "32x32b":
        return thread, register * step
    if shape == "16x32bx2":
        return thread % 16, register * step + second * (thread // 16)
    if shape == "16x64b":
        lane, column = thread // 4 + 8 * (thread % 2), thread // 2 % 2 + 2 * register
    elif shape == "16x128b":
        lane, column = thread // 4 + 8 * (register % 2), thread % 4 + 4 * (register // 2)
    else:
        lane = thread // 4 + 8 * (register // 2 % 2)
        column = 2 * (thread % 4) + register % 2 + 8 * (register // 4)
    return lane, column * step


def group_of(count):
    return "{" + ", ".join(f"%v{i}" for i in range(count)) + "}"


TRANSFERS = [
    (shape, repeat, halves, 0)
    for shape, most in (("32x32b", 16), ("16x64b", 8), ("16x128b", 8), ("16x256b", 4))
    for repeat, halves in ((1, False), (most, False), (most // 2, True))
] + [("16x32bx2", 4, False, 16), ("16x32bx2", 2, True, 20), ("16x64b", 4, False, 16)]


def transfer(shape, repeat, halves, lane_or_second):
    """Opcode words, registers, the immediate, the first lane, and the columns between halves."""
    second = lane_or_second if shape == "16x32bx2" else 0
    lane = 0 if shape == "16x32bx2" else lane_or_second
    registers = SHAPES[shape] * repeat
    immediate = f", {second}" if shape == "16x32bx2" else ""
    return f"{shape}.x{repeat}", registers, immediate, lane, second


@pytest.mark.parametrize(("shape", "repeat", "halves", "extra"), TRANSFERS)
def test_loads_give_each_register_its_cell(shape, repeat, halves, extra):
    words, registers, immediate, first, second = transfer(shape, repeat, halves, extra)
    pack = ".pack::16b" if halves else ""
    body = f"""add.u32 %r14, %r13, {first << 16};
tcgen05.ld.sync.aligned.{words}{pack}.b32 {group_of(registers)}, [%r14]{immediate};
tcgen05.wait::ld.sync.aligned;
add.u32 %r14, %r13, 64;
tcgen05.st.sync.aligned.32x32b.x{registers}.b32 [%r14], {group_of(registers)};
tcgen05.wait::st.sync.aligned;"""
    kernel = Kernel("", columns=128, warp_body=body)
    before = np.random.default_rng(0).integers(0, 1 << 32, (128, 128)).astype(np.uint32)
    after = kernel.run(tensor=before, seed=repeat if halves else None)[0]
    step = 2 if halves else 1
    for warp, thread, register in np.ndindex(4, 32, registers):
        lane, column = cell_of(shape, thread, register, second, step)
        lane += warp * 32 + first
        wanted = int(before[lane, column])
        if halves:
            wanted = wanted & 0xFFFF | (int(before[lane, column + 1]) & 0xFFFF) << 16
        assert after[warp * 32 + thread, 64 + register] == wanted


@pytest.mark.parametrize(("shape", "repeat", "halves", "extra"), TRANSFERS)
def test_stores_give_each_cell_its_register(shape, repeat, halves, extra):
    words, registers, immediate, first, second = transfer(shape, repeat, halves, extra)
    unpack = ".unpack::16b" if halves else ""
    fill = "\n".join(
        f"mad.lo.u32 %v{i}, %r0, 0x10003, {i << 20 | i + 7};" for i in range(registers)
    )
    body = f"""{fill}
add.u32 %r14, %r13, {first << 16};
tcgen05.st.sync.aligned.{words}{unpack}.b32 [%r14]{immediate}, {group_of(registers)};
tcgen05.wait::st.sync.aligned;"""
    before = np.random.default_rng(0).integers(0, 1 << 32, (128, 64)).astype(np.uint32)
    after = Kernel("", columns=64, warp_body=body).run(tensor=before, seed=extra or None)[0]
    wanted, step = before.copy(), 2 if halves else 1
    for warp, thread, register in np.ndindex(4, 32, registers):
        lane, column = cell_of(shape, thread, register, second, step)
        lane += warp * 32 + first
        value = (warp * 32 + thread) * 0x10003 + (register << 20 | register + 7)
        if halves:
            wanted[lane, column : column + 2] = value & 0xFFFF, value >> 16
        else:
            wanted[lane, column] = value
    np.testing.assert_array_equal(after, wanted)


def test_128_registers_move_at_once():
    body = f"""tcgen05.ld.sync.aligned.32x32b.x128.b32 {group_of(128)}, [%r13];
tcgen05.wait::ld.sync.aligned;
add.u32 %r14, %r13, 128;
tcgen05.st.sync.aligned.32x32b.x128.b32 [%r14], {group_of(128)};
tcgen05.wait::st.sync.aligned;"""
    before = np.random.default_rng(0).integers(0, 1 << 32, (128, 256)).astype(np.uint32)
    after = Kernel("", columns=256, warp_body=body).run(tensor=before)[0]
    np.testing.assert_array_equal(after[:, 128:], before[:, :128])


def test_a_zero_quarter_in_the_address_means_the_warps_own():
    body = """tcgen05.ld.sync.aligned.32x32b.x1.b32 {%v0}, [%r12];
tcgen05.wait::ld.sync.aligned;
add.u32 %r14, %r12, 1;
tcgen05.st.sync.aligned.32x32b.x1.b32 [%r14], {%v0};
tcgen05.wait::st.sync.aligned;"""
    before = np.arange(128 * 64, dtype=np.uint32).reshape(128, 64)
    after = Kernel("", warp_body=body).run(tensor=before)[0]
    np.testing.assert_array_equal(after[:, 1], before[:, 0])


# ----------------------------------------------------------------------------------------------- cp

PLACES = {
    "128x256b": (128, 8, lambda row: [row]),
    "128x128b": (128, 4, lambda row: [row]),
    "4x256b": (4, 8, lambda row: [32 * row]),
    "64x128b.warpx2::02_13": (64, 4, lambda row: [row, row + 64]),
    "64x128b.warpx2::01_23": (
        64, 4, lambda row: [row // 32 * 64 + row % 32, row // 32 * 64 + row % 32 + 32]
    ),
    "32x128b.warpx4": (32, 4, lambda row: [row, row + 32, row + 64, row + 96]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("group", "source", "swizzle"),
    [(1, "", "128B"), (2, "", "none"), (1, "b4x16_p64", "none"), (1, "b6x16_p32", "128B")],
)
@pytest.mark.parametrize("name", PLACES)
def test_copies_place_rows_in_lanes(name, group, source, swizzle):
    rows, columns, lanes = PLACES[name]
    source_words = f".b8x16.{source}" if source else ""
    type_ = {"": "u8", "b4x16_p64": "e2m1", "b6x16_p32": "e2m3"}[source]
    layout = (0, 128, columns // 4 * 128 if swizzle == "none" else 1024, swizzle, "K")
    rng = np.random.default_rng(5)
    bits = {"": 8, "b4x16_p64": 4, "b6x16_p32": 6}[source]
    codes = rng.integers(0, 1 << bits, (group, rows, columns * 4))
    shared = np.full((group, 65536), 0x5A, np.uint8)
    for cta in range(group):
        store_units(shared[cta], layout, codes[cta], type_)
    kernel = Kernel(
        f"add.u32 %r20, %r12, 24;\ntcgen05.cp.cta_group::{group}.{name}{source_words} [%r20], %x0;",
        group=group,
    )
    before = rng.integers(0, 1 << 32, (group, 128, 64)).astype(np.uint32)
    descriptor = shared_descriptor(IMAGE, *layout[1:3], swizzle)
    after = kernel.run(shared, before, wide=[descriptor])
    wanted = before.copy()
    for cta, row, column in np.ndindex(group, rows, columns):
        octets = codes[cta, row, 4 * column : 4 * column + 4] << (2 if bits == 4 else 0)
        for lane in lanes(row):
            wanted[cta, lane, 24 + column] = sum(int(o) << 8 * i for i, o in enumerate(octets))
    np.testing.assert_array_equal(after, wanted)


def test_the_swizzles_of_this_file_are_the_manuals():
    assert CUTE["128B"] == (3, 4, 3)
    assert unit_address((0, 16, 1024, "128B", "K"), 3, 16, 8) == (3 * 128 + (1 ^ 3) * 16, 0)


@pytest.mark.parametrize("group", [1, 2])
def test_shift_moves_eight_columns_of_a_quarter_one_lane_down(group):
    kernel = Kernel(
        f"add.u32 %r20, %r12, {64 << 16 | 8};\ntcgen05.shift.cta_group::{group}.down [%r20];",
        group=group,
    )
    before = np.random.default_rng(6).integers(0, 1 << 32, (group, 128, 64)).astype(np.uint32)
    wanted = before.copy()
    wanted[:, 64:95, 8:16] = before[:, 65:96, 8:16]
    np.testing.assert_array_equal(kernel.run(tensor=before), wanted)


# --------------------------------------------------------------------------------------- allocation


def alloc(columns, slot=0, group=1):
    return (
        f"add.u32 %r16, %r11, {slot};\n"
        f"tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r16], {columns};"
    )


def dealloc(register, columns, group=1):
    return f"tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 {register}, {columns};"


REPORT = """ld.param.u64 %d0, [out];
ld.shared.b32 %r17, [%r11];
st.global.b32 [%d0], %r17;"""


def test_allocations_are_aligned_neighbours_and_reused():
    lines = [alloc(256), "ld.shared.b32 %r20, [%r11];", alloc(128), "ld.shared.b32 %r21, [%r11];"]
    lines += [alloc(32), "ld.shared.b32 %r22, [%r11];", dealloc("%r21", 128), alloc(32)]
    lines += ["ld.shared.b32 %r23, [%r11];", "ld.param.u64 %d0, [out];"]
    lines += [f"st.global.b32 [%d0 + {4 * i}], %r{20 + i};" for i in range(4)]
    lines += [dealloc("%r20", 256), dealloc("%r22", 32), dealloc("%r23", 32)]
    out = launch_bare(bare("\n".join(lines)), threads=32)
    assert out[:4].tolist() == [0, 256, 384, 256]


def test_alloc_waits_until_columns_are_free():
    """Warp 1 frees what warp 0 has, whose second allocation waits for that."""
    body = f"""setp.ne.u32 %p1, %r2, 0;
@%p1 bra SECOND;
{alloc(512)}
ld.shared.b32 %r20, [%r11];
bar.sync 1, 64;
{alloc(512)}
ld.shared.b32 %r21, [%r11];
{dealloc("%r21", 512)}
bra END;
SECOND:
bar.sync 1, 64;
ld.shared.b32 %r20, [%r11];
{dealloc("%r20", 512)}
END:
{REPORT}"""
    for seed in (None, 0, 1):
        assert launch_bare(bare(body), threads=64, seed=seed)[0] == 0


def test_generic_addresses_of_the_result_are_taken():
    body = f"""cvt.u64.u32 %d1, %r11;
cvta.shared.u64 %d1, %d1;
tcgen05.alloc.cta_group::1.sync.aligned.b32 [%d1], 64;
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
{REPORT}
{dealloc("%r17", 64)}"""
    assert launch_bare(bare(body), threads=32)[0] == 0


def test_a_pairs_warps_allocate_and_free_together():
    body = f"""mov.u32 %r15, %cluster_ctarank;
{alloc(64, group=2)}
{REPORT}
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
{dealloc("%r17", 64, group=2)}"""
    for seed in (None, 0, 3):
        launch_bare(bare(body, group=2), group=2, threads=32, seed=seed)


@pytest.mark.skipif(assembler() is None, reason="no ptxas here")
@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
def test_ptxas_takes_loads_copies_and_shifts(target):
    lines = [
        f"tcgen05.ld.sync.aligned.16x32bx2.x2.pack::16b.b32 {group_of(2)}, [%r13], 16;",
        f"tcgen05.st.sync.aligned.16x32bx2.x2.unpack::16b.b32 [%r13], 16, {group_of(2)};",
        f"tcgen05.ld.sync.aligned.16x256b.x8.b32 {group_of(32)}, [%r13];",
    ]
    copies = "\n".join(f"tcgen05.cp.cta_group::1.{name}.b8x16.b6x16_p32 [%r12], %x0;"
                       for name in PLACES)  # fmt: skip
    body = copies + "\ntcgen05.shift.cta_group::1.down [%r12];"
    text = Kernel(body, target=target, warp_body="\n".join(lines)).text()
    assert assemble(text, target) == ""
