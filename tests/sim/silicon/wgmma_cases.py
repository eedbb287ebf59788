"""wgmma: types, sizes, swizzles, majors, A in shared memory and in registers, negation, scale-d."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from silicon.case import EXACT, Array, Case, Check, Memory, Output, Within
from silicon.elements import WIDTHS, codes, decode, pack
from silicon.mma_cases import ERRORS, RANDOM_KINDS, product_bounds
from silicon.text import kernel, pointers
from silicon.values import small_integers

SWIZZLES = {"none": 0, "128": 1, "64": 2, "32": 3}
SPANS = {"none": 16, "128": 128, "64": 64, "32": 32}
WHY = "PTX ISA 9.0, 9.7.15: the order and the width of the additions are unspecified"
LANES = np.arange(128)


def descriptor(start: int, leading: int, stride: int, swizzle: str) -> int:
    """A shared memory matrix descriptor; byte offsets, `start` relative to the tile."""
    low = start >> 4 | (leading >> 4) << 16
    return low | (stride >> 4) << 32 | SWIZZLES[swizzle] << 62


def k_major(start: int, swizzle: str, extra: int = 0) -> int:
    """Rows of one span, eight to a group; `extra` bytes between groups."""
    if swizzle == "none":
        # Two 16-byte columns of K; the columns lie further apart than all rows do.
        return descriptor(start, 4096 + extra, 128 + extra, swizzle)
    return descriptor(start, 16, 8 * SPANS[swizzle] + extra, swizzle)


def mn_major(start: int, swizzle: str, extra: int = 0) -> int:
    """Columns along M or N: spans of eight k, then more of them, then the next eight k."""
    span = 8 * SPANS[swizzle]
    return descriptor(start, 2048 + extra, span + extra, swizzle)


@dataclass(frozen=True)
class Step:
    """One wgmma: instruction text without operands, and where its operands lie."""

    label: str
    text: str
    b: int
    a: int | None = None  # None: A is in registers
    tail: str = ""
    scale_d: int = 1
    check: Check = EXACT
    middle: str = ""  # the operands of a sparse instruction


@dataclass
class Kernel:
    """The steps of one kernel; all share the tile, the accumulators and A's registers."""

    name: str
    n: int
    accumulator: str
    tile: Array
    initial: Array
    a_registers: Array | None = None
    metadata: Array | None = None
    steps: list[Step] = field(default_factory=list)

    @property
    def registers(self) -> int:
        """Accumulator registers a thread."""
        return self.n // 4 if self.accumulator == "f16" else self.n // 2

    def _load_tile(self) -> list[str]:
        size = self.tile.nbytes
        lines = [
            f".shared .align 1024 .b8 tile[{size}];",
            ".reg .b32 %me, %base, %at, %v<4>, %start; .reg .b64 %g, %o, %start64, %da, %db;",
            ".reg .pred %more, %keep;",
            "mov.u32 %me, %tid.x; mov.u32 %base, tile;",
            "shr.u32 %start, %base, 4; cvt.u64.u32 %start64, %start;",
            "mul.lo.u32 %at, %me, 16;",
            "COPY: cvt.u64.u32 %g, %at; add.s64 %g, %p1, %g;",
            "ld.global.v4.b32 {%v0, %v1, %v2, %v3}, [%g];",
            "add.u32 %start, %base, %at;",
            "st.shared.v4.b32 [%start], {%v0, %v1, %v2, %v3};",
            f"add.u32 %at, %at, 2048; setp.lt.u32 %more, %at, {size}; @%more bra COPY;",
            "fence.proxy.async.shared::cta; bar.sync 0;",
        ]
        if self.a_registers is not None:
            lines.append(".reg .b32 %a<4>; mad.wide.u32 %g, %me, 16, %p3;")
            lines.append("ld.global.v4.b32 {%a0, %a1, %a2, %a3}, [%g];")
        if self.metadata is not None:
            lines.append(".reg .b32 %meta; mad.wide.u32 %g, %me, 4, %p4;")
            lines.append("ld.global.b32 %meta, [%g];")
        return lines

    def _run(self, step: Step, offset: int) -> list[str]:
        count = self.registers
        lines = [f"mad.wide.u32 %g, %me, {4 * count}, %p2;"]
        lines += [f"ld.global.b32 %d{i}, [%g+{4 * i}];" for i in range(count)]
        d = "{" + ", ".join(f"%d{i}" for i in range(count)) + "}"
        lines.append(f"mov.b64 %db, {step.b:#x}; add.s64 %db, %db, %start64;")
        a = "{%a0, %a1, %a2, %a3}"
        if step.a is not None:
            lines.append(f"mov.b64 %da, {step.a:#x}; add.s64 %da, %da, %start64;")
            a = "%da"
        lines.append(f"setp.ne.u32 %keep, {step.scale_d}, 0;")
        lines.append("wgmma.fence.sync.aligned;")
        lines.append(f"{step.text} {d}, {a}, %db,{step.middle} %keep{step.tail};")
        lines.append("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;")
        lines.append(f"mad.wide.u32 %o, %me, {4 * count}, %p0;")
        lines += [f"st.global.b32 [%o+{offset + 4 * i}], %d{i};" for i in range(count)]
        return lines

    def case(self) -> Case:
        """The launch of one warpgroup."""
        arguments = [Memory(self.tile), Memory(self.initial)]
        if self.a_registers is not None:
            arguments.append(Memory(self.a_registers))
        if self.metadata is not None:
            arguments.append(Memory(self.metadata))
        lines = [
            pointers(1 + len(arguments)),
            *self._load_tile(),
            f".reg .b32 %d<{self.registers}>;",
        ]
        outputs, size = [], 128 * 4 * self.registers
        number = "uint16" if self.accumulator == "f16" else "uint32"
        for i, step in enumerate(self.steps):
            lines += self._run(step, i * size)
            count = size // np.dtype(number).itemsize
            outputs.append(Output(step.label, 0, i * size, number, count, step.check))
        kinds = ["u64"] * (1 + len(arguments))
        return Case(
            name=f"wgmma/{self.name}",
            ptx=kernel("\n".join(lines), kinds, target="sm_90a", version="8.4"),
            arguments=(Memory(np.zeros(size * len(outputs), np.uint8)), *arguments),
            outputs=tuple(outputs),
            block=(128, 1, 1),
        )


def tile_bytes(format: str, seed: int, size: int) -> Array:
    """A tile full of small integers (any code for integer formats)."""
    width = WIDTHS[format]
    return pack(codes(format, "integers", seed, size * 8 // width), width)


def start_values(kernel_n: int, accumulator: str, seed: int) -> Array:
    """Accumulators before the instruction: integers up to 9 in size."""
    values = small_integers(seed, 128 * kernel_n // 2, -9, 9)
    if accumulator == "s32":
        return values.astype(np.int32).view(np.uint32)
    if accumulator == "f32":
        return values.astype(np.float32).view(np.uint32)
    return values.astype(np.float16).view(np.uint32)


def registers_of(format: str, seed: int) -> Array:
    """A's four registers of each thread, small integers."""
    width = WIDTHS[format]
    return pack(codes(format, "integers", seed, 128 * 128 // width).reshape(128, -1), width)


def make(
    name: str, n: int, accumulator: str, formats: tuple[str, str], seed: int, size: int
) -> Kernel:
    """A kernel whose tile is `size` bytes of A's format, then `size` times `2` of B's."""
    a = tile_bytes(formats[0], seed, size)
    b = tile_bytes(formats[1], seed + 1, 2 * size)
    tile = np.concatenate([a, b])
    initial = start_values(n, accumulator, seed + 2)
    return Kernel(name, n, accumulator, tile, initial, registers_of(formats[0], seed + 3))


def instruction(n: int, k: int, types: str) -> str:
    """The instruction without its operands."""
    return f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{types}"


def layouts(format: str, seed: int) -> list[Case]:
    """16-bit operands: every swizzle and major of A and B, with and without gaps."""
    n, size, cases = 32, 12288, []
    for swizzle in SWIZZLES:
        kernel = make(f"{format}_swizzle_{swizzle}", n, "f32", (format, format), seed, size)
        text = instruction(n, 16, f"f32.{format}.{format}")
        for ta, tb, extra in itertools.product((0, 1), (0, 1), (0, 1024)):
            place_a, place_b = (mn_major if t else k_major for t in (ta, tb))
            a, b = place_a(0, swizzle, extra), place_b(size, swizzle, extra)
            label = f"{swizzle} A {'MN' if ta else 'K'} B {'MN' if tb else 'K'} gap {extra}"
            kernel.steps.append(Step(label, text, b, a, f", 1, 1, {ta}, {tb}"))
        for tb in (0, 1):
            b = (mn_major if tb else k_major)(size, swizzle)
            label = f"{swizzle} A registers B {'MN' if tb else 'K'}"
            kernel.steps.append(Step(label, text, b, None, f", 1, 1, {tb}"))
        cases.append(kernel.case())
    return cases


def advances() -> Case:
    """Start addresses inside a 128-byte swizzle atom, as a loop over K uses."""
    n, size = 32, 12288
    kernel = make("f16_advance", n, "f32", ("f16", "f16"), 1021, size)
    text = instruction(n, 16, "f32.f16.f16")
    for swizzle, step in (("128", 32), ("128", 64), ("128", 96), ("64", 32)):
        a, b = k_major(step, swizzle), k_major(size + step, swizzle)
        kernel.steps.append(Step(f"{swizzle} K + {step} bytes", text, b, a, ", 1, 1, 0, 0"))
    a, b = k_major(1024, "128"), k_major(size + 2048, "128")
    kernel.steps.append(Step("128 next groups", text, b, a, ", 1, 1, 0, 0"))
    return kernel.case()


def signs() -> Case:
    """Negated operands and scale-d."""
    n, size = 32, 12288
    kernel = make("f16_signs", n, "f32", ("f16", "f16"), 1023, size)
    text = instruction(n, 16, "f32.f16.f16")
    a, b = k_major(0, "128"), k_major(size, "128")
    for scale_a, scale_b, scale_d in itertools.product((1, -1), (1, -1), (1, 0)):
        label = f"scale-d {scale_d} imm-scale-a {scale_a} imm-scale-b {scale_b}"
        tail = f", {scale_a}, {scale_b}"
        kernel.steps.append(Step(label, text, b, a, f"{tail}, 0, 0", scale_d))
        kernel.steps.append(Step(f"{label} registers", text, b, None, f"{tail}, 0", scale_d))
    return kernel.case()


def sizes() -> list[Case]:
    """Several N: fragments of every length."""
    cases = []
    for n in (8, 16, 24, 64, 136, 256):
        kernel = make(f"f16_n{n}", n, "f32", ("f16", "f16"), 1030 + n, 8192)
        text = instruction(n, 16, "f32.f16.f16")
        a, b = k_major(0, "32"), k_major(8192, "32")
        kernel.steps.append(Step(f"n{n}", text, b, a, ", 1, 1, 0, 0"))
        cases.append(kernel.case())
    for n in (8, 24, 32, 48, 224):
        kernel = make(f"s8_n{n}", n, "s32", ("s8", "s8"), 1030 + n, 8192)
        text = instruction(n, 32, "s32.s8.s8")
        kernel.steps.append(Step(f"n{n}", text, k_major(8192, "32"), k_major(0, "32")))
        cases.append(kernel.case())
    return cases


def types() -> list[Case]:
    """Every other type, K-major in every swizzle and with A in registers."""
    table = [("f16", "f16", 16, "f16"), ("bf16", "bf16", 16, "f32"), ("tf32", "tf32", 8, "f32")]
    eights = list(itertools.product(("e4m3", "e5m2"), repeat=2))
    table += [(a, b, 32, d) for d in ("f32", "f16") for a, b in eights]
    table += [(a, b, 32, "s32") for a, b in itertools.product(("s8", "u8"), repeat=2)]
    table += [("b1", "b1", 256, "s32")]
    cases = []
    for a_format, b_format, k, accumulator in table:
        name = f"{a_format}_{b_format}_{accumulator}"
        kernel = make(name, 32, accumulator, (a_format, b_format), 1100 + k, 8192)
        text = instruction(32, k, f"{accumulator}.{a_format}.{b_format}")
        tail = ""
        if accumulator != "s32":
            tail = ", 1, 1, 0, 0" if k == 16 else ", 1, 1"
        text += ".and.popc" if k == 256 else ""
        forms = ("", ".satfinite") if accumulator == "s32" and k == 32 else ("",)
        for swizzle, form in itertools.product(SWIZZLES, forms):
            a, b = k_major(0, swizzle), k_major(8192, swizzle)
            kernel.steps.append(Step(f"{swizzle}{form}", text + form, b, a, tail))
        b = k_major(8192, "128")
        kernel.steps.append(Step("A registers", text, b, None, ", 1, 1, 0" if k == 16 else tail))
        if accumulator == "s32" and k == 32:
            sizes_of = kernel.initial
            sizes_of[::3], sizes_of[1::3] = 0x7FFFFF00, 0x800000FF
        cases.append(kernel.case())
    return cases


def plain_tile(matrix: Array, width: int) -> Array:
    """K-major rows without swizzle: 16-byte columns 4096 bytes apart, groups 128 bytes."""
    rows, count = matrix.shape
    per = 128 // width
    tile = np.zeros((count // per, 4096 // 16, per), np.uint64)
    tile[:, :rows] = matrix.reshape(rows, count // per, per).transpose(1, 0, 2)
    return pack(tile.reshape(-1), width)


def accumulator_lanes(matrix: Array) -> Array:
    """[128, n / 2] per-thread values of a [64, n] accumulator."""
    n = matrix.shape[1]
    index = np.arange(n // 2)
    row = 16 * (LANES // 32) + LANES % 32 // 4
    row = row[:, None] + 8 * (index // 2 % 2)
    return matrix[row, 8 * (index // 4) + 2 * (LANES % 4)[:, None] + index % 2]


def _bounds(a: Array, b: Array, c: Array, format: str, error: float) -> tuple[Array, Array]:
    exact, allowed = product_bounds(a[None], b[None], c[None], (format, format), error)
    return accumulator_lanes(exact[0]).ravel(), accumulator_lanes(allowed[0]).ravel() + 2.0**-24


def random(kind: str, only: str = "") -> list[Case]:
    """Random floats of one kind: results within a bound, and data to fit accumulation to.

    8-bit floats are added with 13 fraction bits: their bound is wider.
    """
    cases = []
    table = [("f16", 16, "f32"), ("f16", 16, "f16"), ("bf16", 16, "f32"), ("tf32", 8, "f32")]
    table += [(f, 32, d) for f in ("e4m3", "e5m2") for d in ("f32", "f16")]
    for format, k, accumulator in table:
        if only not in ("", format):
            continue
        width = WIDTHS[format]
        data = "low" if kind == "every" and accumulator == "f16" else kind
        matrices = [
            codes(format, data, 1200 + rows + k, rows * k).reshape(rows, k) for rows in (64, 32)
        ]
        tile = np.concatenate([plain_tile(matrix, width) for matrix in matrices])
        values = codes(accumulator, data, 1250 + k, 64 * 32).reshape(64, 32)
        lanes = accumulator_lanes(values)
        initial = pack(lanes, 16) if accumulator == "f16" else lanes.astype(np.uint32)
        kernel = Kernel(f"{format}_{accumulator}_{kind}", 32, accumulator, tile, initial)
        text = instruction(32, k, f"{accumulator}.{format}.{format}")
        tail = ", 1, 1, 0, 0" if k == 16 else ", 1, 1"
        a_values, b_values = (decode(matrix, format) for matrix in matrices)
        error = max(2.0**-11 if width == 8 else 0.0, ERRORS[accumulator])
        c_values = decode(values, accumulator)
        compute = partial(_bounds, a_values, b_values, c_values, format, error)
        a = descriptor(0, 4096, 128, "none")
        b = descriptor(tile.nbytes // 2, 4096, 128, "none")
        check = Within(accumulator, compute, WHY)
        kernel.steps.append(Step(text, text, b, a, tail, 1, check))
        cases.append(kernel.case())
    return cases


def cases() -> list[Case]:
    """The family."""
    return [
        *layouts("f16", 1001),
        *layouts("bf16", 1011),
        advances(),
        signs(),
        *sizes(),
        *types(),
        *[case for kind in RANDOM_KINDS for case in random(kind)],
        *random("raw", "tf32"),
    ]
