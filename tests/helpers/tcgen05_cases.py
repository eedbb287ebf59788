"""One tcgen05.mma as a test case: operands in their layouts, and D by plain arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
from tcgen05_ptx import IMAGE, Kernel
from tcgen05_reference import (
    TYPES,
    accumulator_cell,
    random_codes,
    shared_descriptor,
    store_rows,
    store_scales,
    store_units,
    values_of,
)

B_AT = IMAGE + 32768
KINDS = {  # element codes by type; K
    "f16": ({"f16": 0, "bf16": 1}, 16),
    "tf32": ({"tf32": 2}, 8),
    "f8f6f4": ({"e4m3": 0, "e5m2": 1, "e3m4": 2, "e2m3": 3, "e3m2": 4, "e2m1": 5}, 32),
    "i8": ({"u8": 0, "s8": 1}, 32),
    "mxf8f6f4": ({"e4m3": 0, "e5m2": 1, "e3m4": 2, "e2m3": 3, "e3m2": 4, "e2m1": 5}, 32),
    "mxf4": ({"e2m1": 1}, 64),
    "mxf4nvf4": ({"e2m1": 1, "e0m3": 0}, 64),
}
LETTERS = {
    (128, 1, False): "D", (128, 1, True): "D", (64, 1, False): "F", (64, 1, True): "E",
    (32, 1, True): "G", (128, 2, False): "B", (256, 2, False): "A",
}  # fmt: skip
SCALE_TYPES = {"ue8m0": ml_dtypes.float8_e8m0fnu, "ue4m3": ml_dtypes.float8_e4m3fn}


@dataclass
class Case:
    """What is multiplied, and how it is spelled."""

    kind: str
    a: str
    b: str
    m: int = 128
    n: int = 32
    group: int = 1
    ws: bool = False
    d: str = "f32"
    a_layout: tuple = ("128B", "K")
    b_layout: tuple = ("128B", "K")
    a_in_tensor: bool = False
    negate: tuple = (False, False)
    accumulate: bool = True
    scale: str = ""  # words after .block_scale
    scale_type: str = ""
    block: int = 0
    ids: tuple = (0, 0)
    long_k: bool = False
    target: str = "sm_100a"
    extra: str = ""  # operands after enable-input-d
    masks: str = ""  # {disable-output-lane},
    modifiers: str = ""  # collector hints
    lane: int = 0
    seed: int = 0
    columns: int = 0
    halvings: int = 0
    codes: dict = field(default_factory=dict)

    def __post_init__(self):
        self.k = 96 if self.long_k else KINDS[self.kind][1]
        self.packed = self.k >= 64
        self.letter = LETTERS[self.m, self.group, self.ws]
        self.rows, self.half = self.m // self.group, self.n // self.group
        self.at_a, self.at_sa, self.at_sb = self.n, self.n + 12, self.n + 20
        self.columns = 64 if self.n + 36 <= 64 else 1 << (self.n + 35).bit_length()
        rng = np.random.default_rng(self.seed)
        self.codes = {
            "a": random_codes(rng, (self.m, self.k), self.a),
            "b": random_codes(rng, (self.n, self.k), self.b),
        }
        if self.block:
            low, high = (120, 130) if self.scale_type == "ue8m0" else (40, 80)
            for name, rows in (("sa", self.m), ("sb", self.n)):
                self.codes[name] = rng.integers(low, high, (rows, self.k // self.block))
        limit = 2**20 if self.d == "s32" else 64
        self.c = rng.integers(-limit, limit, (self.m, self.n)).astype(np.float64)

    # ------------------------------------------------------------------------- the instruction

    def instruction_bits(self):
        """Tables 42 to 44."""
        kind_codes = KINDS[self.kind][0]
        bits = kind_codes[self.a] << 7 | kind_codes[self.b] << 10 | self.n >> 3 << 17
        bits |= self.negate[0] << 13 | self.negate[1] << 14
        bits |= (self.a_layout[1] == "MN") << 15 | (self.b_layout[1] == "MN") << 16
        if self.block:
            bits |= (self.scale_type == "ue8m0") << 23 | self.m >> 7 << 27
            return bits | self.ids[1] << 4 | self.ids[0] << 29 | self.long_k << 31
        return bits | {"f16": 0, "f32": 1, "s32": 2}[self.d] << 4 | self.m >> 4 << 24

    def opcode(self):
        """The opcode with all its words."""
        words = ["tcgen05.mma", *(["ws"] if self.ws else []), f"cta_group::{self.group}"]
        words += [f"kind::{self.kind}", *(["block_scale"] if self.block else [])]
        return ".".join(words) + self.scale + self.modifiers

    def body(self):
        """%w0 instruction descriptor, %x0 and %x1 matrix descriptors."""
        enable = "%p3" if self.accumulate else "%p4"
        lines = [f"add.u32 %r20, %r12, {self.lane << 16};", f"add.u32 %r21, %r20, {self.at_a};"]
        a = "[%r21]" if self.a_in_tensor else "%x0"
        scales = "[%r22], [%r23], " if self.block else ""
        lines += [f"add.u32 %r22, %r12, {self.at_sa};", f"add.u32 %r23, %r12, {self.at_sb};"]
        operands = f"[%r20], {a}, %x1, %w0, {scales}{self.masks}{enable}{self.extra}"
        return "\n".join([*lines, f"{self.opcode()} {operands};"])

    def kernel(self):
        """The kernel around the instruction."""
        return Kernel(self.body(), self.columns, self.group, self.target)

    # ---------------------------------------------------------------------------- the operands

    def layout(self, name, start):
        """(start, leading, stride, swizzle, major) of dense tiles."""
        swizzle, major = self.a_layout if name == "a" else self.b_layout
        rows = self.rows if name == "a" else self.half
        span = {"none": 16, "32B": 32, "64B": 64, "128B": 128, "128B_32B": 128}[swizzle]
        if major == "K":
            if swizzle == "none":
                return start, 128, 256 if self.k != 96 else 384, swizzle, major
            return start, 16, 8 * span, swizzle, major
        group = 4 if swizzle == "128B_32B" else 8
        if swizzle == "none":  # stride: next rows; leading: next 8 k
            slot = TYPES[self.a if name == "a" else self.b][2]
            return start, 128 * rows * slot // 128, 128, swizzle, major
        return start, span * self.k, span * group, swizzle, major

    def images(self):
        """Shared memory of each CTA, tensor memory of each CTA, and the descriptors."""
        shared = np.full((self.group, 65536), 0xA5, np.uint8)
        tensor = np.zeros((self.group, 128, self.columns), np.uint32)
        layouts = {"a": self.layout("a", 0), "b": self.layout("b", 32768)}
        for cta in range(self.group):
            a = self.codes["a"][cta * self.rows : (cta + 1) * self.rows]
            b = self.codes["b"][cta * self.half : (cta + 1) * self.half]
            store_units(shared[cta], layouts["b"], b, self.b, self.packed)
            if not self.a_in_tensor:
                store_units(shared[cta], layouts["a"], a, self.a, self.packed)
            else:
                self._store_a(tensor[cta], a)
            if self.block:
                sa = self.codes["sa"][cta * self.rows : (cta + 1) * self.rows]
                store_scales(tensor[cta], self.at_sa, sa, self.ids[0])
                store_scales(
                    tensor[cta], self.at_sb, self.codes["sb"], self.ids[1], self.letter == "B"
                )
        for row, column in np.ndindex(self.m, self.n):
            tensor[self.cell(row, column)] = self.word(self.c[row, column])
        wide = []
        for start, leading, stride, swizzle, _ in layouts.values():
            wide.append(shared_descriptor(start + IMAGE, leading, stride, swizzle))
        return shared, tensor, wide

    def _store_a(self, tensor, codes):
        """Layouts with columns of D in several groups of lanes need A in each group."""
        for bank in range({"B": 2, "E": 2, "G": 4}.get(self.letter, 1)):
            column = bank * self.n // {"B": 2, "E": 2, "G": 4}.get(self.letter, 1)

            def lane(row, column=column):
                return accumulator_cell(self.letter, row, column, self.n)[1] + self.lane

            store_rows(tensor, lane, self.at_a, codes, self.a, self.packed)

    def cell(self, row, column):
        """(CTA, lane, column) of an element of D."""
        cta, lane, place = accumulator_cell(self.letter, row, column, self.n)
        return cta, lane + self.lane, place

    def word(self, value):
        """The word that holds a value of D."""
        kind = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[self.d]
        raw = np.array([value]).astype(kind)
        return int(raw.view(f"u{raw.itemsize}")[0])

    # ------------------------------------------------------------------------------ the result

    def factor(self, name):
        """A or B in float64, scaled and with its sign."""
        kind = self.a if name == "a" else self.b
        values = values_of(self.codes[name], kind)
        if self.block:
            codes = self.codes["s" + name].astype(np.uint8)
            scales = codes.view(SCALE_TYPES[self.scale_type]).astype(np.float64)
            values = values * scales.repeat(self.block, 1)
        return -values if self.negate["ab".index(name)] else values

    def product(self):
        """D [M, N] in float64; every sum here is exact."""
        start = self.c / 2**self.halvings if self.accumulate else np.zeros_like(self.c)
        return self.factor("a") @ self.factor("b").T + start

    def expected(self, tensor):
        """Tensor memory afterwards."""
        after, d = tensor.copy(), self.product()
        for row, column in np.ndindex(self.m, self.n):
            after[self.cell(row, column)] = self.word(d[row, column])
        return after

    def run(self, **options):
        """Tensor memory before and after."""
        shared, tensor, wide = self.images()
        after = self.kernel().run(shared, tensor, [self.instruction_bits()], wide, **options)
        return tensor, after
