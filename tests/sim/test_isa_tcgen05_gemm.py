"""GEMM-like sequences of tcgen05 instructions, and the rarer operands of tcgen05.mma."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tcgen05_cases import KINDS, SCALE_TYPES, Case
from tcgen05_ptx import IMAGE, Kernel
from tcgen05_reference import (
    cute_swizzle,
    random_codes,
    shared_descriptor,
    store_units,
    values_of,
)

STEPS, N = 4, 64
B_AT, SA_AT, SB_AT = 16384, 32768, 40960


def scale_atoms(codes):
    """Atoms of 128 rows x 4 scales, 512 bytes: byte (r % 32) * 16 + r / 32 * 4 + j."""
    count = codes.shape[1]
    atoms = np.zeros((-(-count // 4), 512), np.uint8)
    for (row, j), code in np.ndenumerate(codes):
        atoms[j // 4, row % 32 * 16 + row // 32 * 4 + j % 4] = code
    return atoms


class Gemm:
    """C[128, 64] = A * B over four steps of K, scales copied from shared memory each step."""

    def __init__(self, kind, a, b, block=0, scale_type="", word=""):
        self.kind, self.a, self.b, self.block = kind, a, b, block
        self.scale_type, self.word = scale_type, word
        self.packed = kind.startswith("mxf4")
        self.k = KINDS[kind][1]
        rng = np.random.default_rng(11)
        self.codes_a = random_codes(rng, (128, self.k * STEPS), a)
        self.codes_b = random_codes(rng, (N, self.k * STEPS), b)
        if block:
            low, high = (124, 130) if scale_type == "ue8m0" else (48, 72)
            self.sa = rng.integers(low, high, (128, self.k * STEPS // block))
            self.sb = rng.integers(low, high, (N, self.k * STEPS // block))

    def shared(self):
        memory = np.zeros(65536, np.uint8)
        for start, codes, kind in ((0, self.codes_a, self.a), (B_AT, self.codes_b, self.b)):
            store_units(memory, (start, 16, 1024, "128B", "K"), codes, kind, self.packed)
        if self.block:
            for start, codes in ((SA_AT, self.sa), (SB_AT, self.sb)):
                atoms = scale_atoms(codes).reshape(-1)
                memory[start : start + len(atoms)] = atoms
        return memory

    def instruction(self, scale_id):
        types = KINDS[self.kind][0]
        bits = types[self.a] << 7 | types[self.b] << 10 | N >> 3 << 17
        if self.block:
            bits |= (self.scale_type == "ue8m0") << 23 | 1 << 27
            return bits | scale_id << 4 | scale_id << 29
        return bits | (2 if self.kind == "i8" else 1) << 4 | 8 << 24

    def body(self):
        """Scales of a step lie in the same columns each time: copies and products are in order."""
        lines = [f"add.u32 %r22, %r12, {N};", f"add.u32 %r23, %r12, {N + 4};"]
        per_step = self.k // self.block if self.block else 0
        opcode = f"tcgen05.mma.cta_group::1.kind::{self.kind}"
        opcode += f".block_scale{self.word}" if self.block else ""
        for step in range(STEPS):
            scales = "[%r22], [%r23], " if self.block else ""
            if self.block and step * per_step % 4 == 0:
                lines += self._copies(step * per_step // 4)
            bits = self.instruction(step * per_step % 4)
            enable = "%p3" if step else "%p4"
            lines += [
                f"mov.u32 %r24, {bits};",
                f"add.u64 %d21, %x0, {2 * step};",
                f"add.u64 %d22, %x1, {2 * step};",
                f"{opcode} [%r12], %d21, %d22, %r24, {scales}{enable};",
            ]
        return "\n".join(lines)

    def _copies(self, atom):
        lines = []
        for register, start in (("%r22", SA_AT), ("%r23", SB_AT)):
            at = shared_descriptor(IMAGE + start + 512 * atom, 16, 128, "none")
            copy = f"tcgen05.cp.cta_group::1.32x128b.warpx4 [{register}], %d20;"
            lines += [f"mov.u64 %d20, {at};", copy]
        return lines

    def expected(self):
        a, b = values_of(self.codes_a, self.a), values_of(self.codes_b, self.b)
        if self.block:
            opinion = SCALE_TYPES[self.scale_type]
            a, b = (
                values * codes.astype(np.uint8).view(opinion).astype(float).repeat(self.block, 1)
                for values, codes in ((a, self.sa), (b, self.sb))
            )
        return a @ b.T

    def run(self, **options):
        wide = [shared_descriptor(IMAGE + at, 16, 1024, "128B") for at in (0, B_AT)]
        kernel = Kernel(self.body(), columns=128)
        after = kernel.run(self.shared(), wide=wide, **options)[0, :, :N]
        return after.view(np.int32 if self.kind == "i8" else np.float32)


GEMMS = {
    "f16": Gemm("f16", "f16", "f16"),
    "tf32": Gemm("tf32", "tf32", "tf32"),
    "f8f6f4": Gemm("f8f6f4", "e4m3", "e3m2"),
    "i8": Gemm("i8", "s8", "s8"),
    "mxf8f6f4": Gemm("mxf8f6f4", "e2m1", "e4m3", 32, "ue8m0", ".block32"),
    "mxf4": Gemm("mxf4", "e2m1", "e2m1", 32, "ue8m0", ".block32"),
    "mxf4nvf4": Gemm("mxf4nvf4", "e2m1", "e2m1", 16, "ue4m3", ".block16"),
    "e0m3": Gemm("mxf4nvf4", "e0m3", "e0m3", 16, "ue4m3", ".block16"),
}


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("name", GEMMS)
def test_steps_of_k_add_up(name, seed):
    gemm = GEMMS[name]
    np.testing.assert_array_equal(gemm.run(seed=seed), gemm.expected())


def test_hardware_sums_keep_fewer_bits():
    # One large product and many small ones: 25 bits below the largest are kept, then truncated.
    case = Case("f8f6f4", "e5m2", "e5m2", accumulate=False)
    case.codes["a"][:] = 0x3C  # 1.0
    case.codes["b"][:] = np.array([0x78, *[0x08] * 31])  # 2**15, 2**-13
    _, exact = case.run()
    _, narrow = case.run(accumulation="hardware")
    low, high = (values[0, 0, 0].view(np.float32) for values in (narrow, exact))
    assert high == np.float32(2.0**15 + 31 * 2.0**-13) != 2.0**15
    assert low == 2.0**15


# ---------------------------------------------------------------------------- rarer operands


@pytest.mark.parametrize("group", [1, 2])
def test_disabled_lanes_keep_what_they_have(group):
    masks = [0x0000FFFF, 0, 0x80000001, 0xFFFFFFFF, 1, 2, 4, 8][: 4 * group]
    case = Case("f16", "f16", "f16", m=128 * group, group=group,
                masks="{" + ", ".join(f"%w{i + 1}" for i in range(4 * group)) + "}, ")  # fmt: skip
    shared, tensor, wide = case.images()
    words = [case.instruction_bits(), *masks]
    after = case.kernel().run(shared, tensor, words, wide)
    wanted = case.expected(tensor)
    for cta, lane in np.ndindex(group, 128):
        if masks[4 * cta + lane // 32] >> lane % 32 & 1:
            wanted[cta, lane] = tensor[cta, lane]
    np.testing.assert_array_equal(after, wanted)


@pytest.mark.parametrize(("m", "starts", "firsts"), [(128, 0, 0), (64, 0x0100, 0b01), (32, 2, 0)])
def test_zero_columns_of_ws_have_no_product(m, starts, firsts):
    """Spans of 4 used and 3 zero columns, shifted by 8; table 45."""
    case = Case("f16", "f16", "f16", m=m, n=64, ws=True, extra=", %x2")
    rng = np.random.default_rng(3)
    longer = random_codes(rng, (72, 16), "f16")
    case.half, case.codes["b"] = 72, longer
    shared, tensor, wide = case.images()
    mask = starts | firsts << 32 | 1 << 39 | 2 << 40 | 3 << 48 | 8 << 56
    words = [case.instruction_bits() | 1 << 30]
    after = case.kernel().run(shared, tensor, words, [*wide, mask])
    b = values_of(longer[8:], "f16")
    parts = 128 // m
    for column in range(64):
        part, inner = divmod(column, 64 // parts)
        place = (inner + (starts >> 8 * part & 255)) % 7
        if place < 3 if firsts >> part & 1 else place >= 4:
            b[column] = 0
    d = values_of(case.codes["a"], "f16") @ b.T + case.c
    for row, column in np.ndindex(m, 64):
        assert after[case.cell(row, column)] == case.word(d[row, column])


def test_rows_of_48_bytes_may_go_on_at_an_absolute_address():
    """K = 96 from byte 96 of the 128-byte lines, the rest in a second tile."""
    case = Case("mxf4nvf4", "e2m1", "e2m1", scale=".block16", block=16, scale_type="ue4m3",
                long_k=True, target="sm_103a")  # fmt: skip
    shared, tensor, _ = case.images()
    shared[:] = 0
    tiles = {"a": (0, 16384), "b": (32768, 36864)}
    for name, (first, second) in tiles.items():
        for (row, k), code in np.ndenumerate(case.codes[name]):
            byte = 96 + k // 2
            base = first + byte if byte < 128 else second + byte - 128
            address = cute_swizzle("128B", base + row % 8 * 128 + row // 8 * 1024)
            shared[0, address] |= code << 4 * (k % 2)
    wide = [shared_descriptor(IMAGE + 96 + first, IMAGE + second, 1024, absolute=1)
            for first, second in tiles.values()]  # fmt: skip
    after = case.kernel().run(shared, tensor, [case.instruction_bits()], wide)
    np.testing.assert_array_equal(after, case.expected(tensor))


def test_nan_in_a_scale_reaches_d():
    case = Case("mxf8f6f4", "e4m3", "e4m3", scale=".block32", block=32, scale_type="ue8m0")
    case.codes["sa"][5] = 255
    before, after = case.run()
    d = after[0, :, : case.n].view(np.float32)
    assert np.isnan(d[5]).all()
    assert (after[0, 5, : case.n] == 0x7FFFFFFF).all()
    assert np.isfinite(np.delete(d, 5, 0)).all()
    assert not np.array_equal(before, after)
    assert np.isnan(np.array([255], np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(float)[0])
