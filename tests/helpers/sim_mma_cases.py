"""Every legal mma.sync and mma.sp with data whose results are exact, and what they must give.

The reference is written element by element from the manual's formulas (sim_fragments).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from sim_fragments import (
    A_FORMULAS,
    ACCUMULATOR_FORMULAS,
    B_FORMULAS,
    metadata_place,
    quad_pair,
    quad_pair_element,
)
from sim_warp import WarpOp, vector

Array = npt.NDArray[Any]

WARPS = 2
#: dtype, how many bits up a code lies in its container, and its width there.
_FLOATS: dict[str, tuple[Any, int, int]] = {
    "f16": (np.float16, 0, 16),
    "bf16": (ml_dtypes.bfloat16, 0, 16),
    "tf32": (np.float32, 0, 32),
    "f32": (np.float32, 0, 32),
    "f64": (np.float64, 0, 64),
    "e4m3": (ml_dtypes.float8_e4m3fn, 0, 8),
    "e5m2": (ml_dtypes.float8_e5m2, 0, 8),
    "e3m2": (ml_dtypes.float6_e3m2fn, 0, 8),
    "e2m3": (ml_dtypes.float6_e2m3fn, 0, 8),
    "e2m1": (ml_dtypes.float4_e2m1fn, 2, 8),
}
#: Bits of a container that hold no part of the element; they get noise.
_JUNK = {"tf32": 0x1FFF, "e3m2": 0xC0, "e2m3": 0xC0, "e2m1": 0xC3}
_RANGES = {"s8": (-128, 127), "u8": (0, 255), "s4": (-8, 7), "u4": (0, 15), "b1": (0, 1)}
_HALVES = np.arange(-4, 5) / 2


def width_of(type_: str, kind: str = "") -> int:
    """Bits that a register gives an element."""
    if type_ in (*_RANGES, "s32"):
        return int(type_[1:])
    return 4 if kind in ("mxf4", "mxf4nvf4") else _FLOATS[type_][2]


def draw(type_: str, shape: tuple[int, ...], rng: np.random.Generator, kind: str = "") -> Any:
    """Element bits, and the numbers that they are."""
    if type_ in _RANGES:
        values = rng.integers(*_RANGES[type_], shape, endpoint=True)
        return values & (1 << int(type_[1:])) - 1, values
    values = rng.choice(_HALVES, shape)
    dtype, shift, width = _FLOATS[type_]
    codes = values.astype(dtype).view(f"u{np.dtype(dtype).itemsize}").astype(np.uint64)
    if kind in ("mxf4", "mxf4nvf4"):
        return codes, values
    junk = rng.integers(0, 1 << min(width, 32), shape).astype(np.uint64) & _JUNK.get(type_, 0)
    return codes << shift | junk, values


@dataclass(frozen=True)
class Mma:
    """One instruction."""

    shape: tuple[int, int, int]
    types: tuple[str, str, str, str]
    kind: str = ""
    sparse: str = ""
    scales: tuple[int, str] = (0, "")
    words: str = ""
    layouts: tuple[str, str] = ("row", "col")
    selector: int = 0
    ids: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def name(self) -> str:
        """Of its kernel, unique and without dots."""
        m, n, k = self.shape
        parts = [f"m{m}n{n}k{k}", *self.types, *self.layouts, self.kind, self.sparse, self.words]
        parts += [str(part) for part in (*self.scales, self.selector, *self.ids)]
        return "mma_" + "_".join(parts).replace(".", "_").replace("::", "_")

    @property
    def opcode(self) -> str:
        """As PTX spells it."""
        m, n, k = self.shape
        d, a, b, c = self.types
        text = f"mma{'.' * bool(self.sparse)}{self.sparse}.sync.aligned.m{m}n{n}k{k}"
        text += f".{'.'.join(self.layouts)}"
        if self.kind:
            text += f".kind::{self.kind}"
        if self.scales[0]:
            text += f".block_scale.scale_vec::{self.scales[0]}X"
        text += ".satfinite" if "satfinite" in self.words else ""
        text += f".{d}.{a}.{b}.{c}"
        text += f".{self.scales[1]}" if self.scales[0] else ""
        return text + (f".{self.words}" if self.words and "satfinite" not in self.words else "")

    @property
    def width(self) -> int:
        """Of an element of A or B."""
        return width_of(self.types[1], self.kind)

    def counts(self) -> dict[str, int]:
        """Elements per lane of a (stored), b, c and d."""
        m, n, k = self.shape
        if self.shape == (8, 8, 4) and self.types[1] == "f16":
            return {"a": 4, "b": 4, "c": 8, "d": 8}
        stored = k // (1 + bool(self.sparse))
        return {"a": m * stored // 32, "b": n * k // 32, "c": m * n // 32, "d": m * n // 32}

    def widths(self) -> dict[str, int]:
        """Bits of an element of each fragment."""
        d, _, _, c = self.types
        return {"a": self.width, "b": self.width, "c": width_of(c), "d": width_of(d)}

    def op(self) -> WarpOp:
        """The kernel that runs it."""
        widths, counts = self.widths(), self.counts()
        wide = {name: 64 if bits == 64 else 32 for name, bits in widths.items()}
        registers = {name: counts[name] * widths[name] // wide[name] for name in counts}
        operands = [vector(name, registers[name]) for name in "dabc"]
        inputs = {name: registers[name] for name in "abc"}
        if self.sparse:
            inputs["e"] = 1
            operands += ["%e0", str(self.selector)]
        if self.scales[0]:
            inputs |= {"s": 1, "t": 1}
            one, two, three, four = self.ids
            operands += ["%s0", f"{{{one}, {two}}}", "%t0", f"{{{three}, {four}}}"]
        body = f"{self.opcode} {', '.join(operands)};"
        bits = {name: width for name, width in wide.items() if width == 64}
        return WarpOp(self.name, body, inputs, {"d": registers["d"]}, bits)

    # ------------------------------------------------------------------------------- reference

    def place(self, operand: str, lane: int, i: int) -> tuple[int, int, int]:
        """Matrix of the warp, row and column of an element."""
        m, n, k = self.shape
        if self.shape == (8, 8, 4) and self.types[1] == "f16":
            layout = {"a": self.layouts[0], "b": self.layouts[1]}.get(operand)
            layout = layout or self.types[0 if operand == "d" else 3]
            return quad_pair(lane)[0], *quad_pair_element(operand, layout, lane, i)
        stored = k // (1 + bool(self.sparse))
        formula = {
            "a": A_FORMULAS.get((m, stored, self.width)),
            "b": B_FORMULAS.get((k, self.width)),
        }.get(operand) or ACCUMULATOR_FORMULAS[m, n]
        return 0, *formula(lane >> 2, lane % 4, i)

    def fragment(self, operand: str, matrices: Array) -> Array:
        """Registers [W, 32, R] of element bits [W, matrices, rows, columns]."""
        count, width = self.counts()[operand], self.widths()[operand]
        word = 64 if width == 64 else 32
        out = np.zeros((WARPS, 32, count * width // word), np.uint64 if word == 64 else np.uint32)
        for warp, lane, i in np.ndindex(WARPS, 32, count):
            bits = int(matrices[(warp, *self.place(operand, lane, i))])
            register, low = i * width // word, i * width % word
            out[warp, lane, register] |= out.dtype.type(bits << low)
        return out

    def data(self) -> tuple[dict[str, Array], Array]:
        """Inputs, and the fragment of D that they must give."""
        m, n, k = self.shape
        _, a_type, b_type, _ = self.types
        count = 4 if (self.shape == (8, 8, 4) and a_type == "f16") else 1
        rng = np.random.default_rng(sum(map(ord, self.name)))
        stored = k // (1 + bool(self.sparse))
        a_bits, a = draw(a_type, (WARPS, count, m, stored), rng, self.kind)
        b_bits, b = draw(b_type, (WARPS, count, k, n), rng, self.kind)
        c_bits, c = self._accumulators((WARPS, count, m, n), rng)
        values = {"a": self.fragment("a", a_bits), "b": self.fragment("b", b_bits)}
        values["c"] = self.fragment("c", c_bits)
        if self.sparse:
            values["e"], a = self._metadata(a, rng)
        if self.scales[0]:
            a, b = self._scale(a, b, values, rng)
        if "xor" in self.words:
            product = (a[..., :, :, None] != b[..., None, :, :]).sum(-2)
        else:
            product = np.matmul(a, b)
        return values, self.fragment("d", self._finish(product + c))

    def _accumulators(
        self, shape: tuple[int, ...], rng: np.random.Generator
    ) -> tuple[Array, Array]:
        c = self.types[3]
        if c == "s32":
            values = rng.integers(-(1 << 31), 1 << 31, shape)
            values[0, 0, :2] = [[(1 << 31) - 1], [-(1 << 31)]]
            return values & 0xFFFFFFFF, values
        values = rng.integers(-8, 9, shape).astype(np.float64)
        dtype = _FLOATS[c][0]
        return values.astype(dtype).view(f"u{np.dtype(dtype).itemsize}"), values

    def _finish(self, exact: Array) -> Array:
        d = self.types[0]
        if d == "s32":
            if "satfinite" in self.words:
                exact = np.clip(exact, -(1 << 31), (1 << 31) - 1)
            return exact & 0xFFFFFFFF
        dtype = _FLOATS[d][0]
        rounded = exact.astype(dtype)
        assert (rounded.astype(np.float64) == exact).all()
        return rounded.view(f"u{rounded.itemsize}")

    def _metadata(self, stored: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Operand e and the dense A."""
        k = self.shape[2]
        chunk = {32: 2, 16: 4, 8: 4, 4: 8}[self.width]
        words = np.zeros((WARPS, 32, 1), np.uint32)
        dense = np.zeros((*stored.shape[:3], k), stored.dtype)
        for warp, row, c in np.ndindex(WARPS, 16, k // chunk):
            mine = stored[warp, 0, row, c * chunk // 2 : (c + 1) * chunk // 2]
            if chunk == 2:
                places = [int(rng.integers(2))]
                nibble = (0b0100, 0b1110)[places[0]]
            else:
                pair = [int(p) for p in rng.choice(4, 2, replace=False)]
                pair = sorted(pair) if self.sparse.endswith("metadata") else pair
                nibble = pair[0] | pair[1] << 2
                places = [2 * p + i for p in pair for i in range(2)] if chunk == 8 else pair
            dense[warp, 0, row, [c * chunk + p for p in places]] = mine
            lane, low = metadata_place(k, self.width, row, c, self.selector)
            words[warp, lane, 0] |= np.uint32(nibble << low)
        return words, dense

    def _scale(
        self, a: Array, b: Array, values: dict[str, Array], rng: np.random.Generator
    ) -> tuple[Array, Array]:
        """A and B times their block scales; adds the scale words to `values`."""
        count, stype = self.scales
        dtype = ml_dtypes.float8_e8m0fnu if stype == "ue8m0" else ml_dtypes.float8_e4m3fn
        numbers = [0.5, 1.0, 2.0] if stype == "ue8m0" else [0.5, 1.0, 1.5, 2.0]
        a, b = a.astype(np.float64), b.astype(np.float64)
        k = self.shape[2]
        byte_a, thread_a, byte_b, thread_b = self.ids
        for name in "st":
            codes = rng.choice(numbers, (WARPS, 32, 4)).astype(dtype).view(np.uint8)
            values[name] = codes.view(np.uint32)
        for warp, j in itertools.product(range(WARPS), range(k)):
            part = j * count // k
            for row in range(16):
                word = int(values["s"][warp, 4 * (row % 8) + row // 8 + 2 * thread_a, 0])
                a[warp, 0, row, j] *= _code(word >> 8 * (byte_a + part), dtype)
            for column in range(8):
                word = int(values["t"][warp, 4 * column + thread_b, 0])
                b[warp, 0, j, column] *= _code(word >> 8 * (byte_b + part), dtype)
        return a, b


def _code(word: int, dtype: Any) -> float:
    return float(np.array([word & 255], np.uint8).view(dtype)[0])


# ---------------------------------------------------------------------------------------- the cases


def _floats(sparse: str, ks: dict[str, tuple[int, ...]]) -> Iterator[Mma]:
    for type_, accumulators in (("f16", "f16 f32"), ("bf16", "f32"), ("tf32", "f32")):
        for accumulator, k in itertools.product(accumulators.split(), ks[type_]):
            yield Mma((16, 8, k), (accumulator, type_, type_, accumulator), sparse=sparse)


def hopper() -> list[Mma]:
    """What sm_90 assembles."""
    cases = list(_floats("", {"f16": (8, 16), "bf16": (8, 16), "tf32": (4, 8)}))
    for d, c in (("f32", "f32"), ("f16", "f16"), ("f32", "f16")):
        for layouts in itertools.product(("row", "col"), repeat=2):
            cases.append(Mma((8, 8, 4), (d, "f16", "f16", c), layouts=layouts))
    cases += [Mma((m, 8, k), ("f64",) * 4) for m, k in ((8, 4), (16, 4), (16, 8), (16, 16))]
    for a, b in itertools.product(("e4m3", "e5m2"), repeat=2):
        for d, k in itertools.product(("f32", "f16"), (16, 32)):
            cases.append(Mma((16, 8, k), (d, a, b, d)))
    integers = {8: ((8, 16), (16, 16), (16, 32)), 4: ((8, 32), (16, 32), (16, 64))}
    for bits, shapes in integers.items():
        for (m, k), a, b in itertools.product(shapes, "su", "su"):
            types = ("s32", f"{a}{bits}", f"{b}{bits}", "s32")
            cases += [Mma((m, 8, k), types, words=words) for words in ("", "satfinite")]
    for (m, k), op in itertools.product(((8, 128), (16, 128), (16, 256)), ("xor", "and")):
        cases.append(Mma((m, 8, k), ("s32", "b1", "b1", "s32"), words=f"{op}.popc"))
    return cases + _sparse()


def _sparse() -> list[Mma]:
    cases = []
    for sparse in ("sp", "sp::ordered_metadata"):
        cases += _floats(sparse, {"f16": (16, 32), "bf16": (16, 32), "tf32": (8, 16)})
        cases.append(Mma((16, 8, 64), ("f32", "e4m3", "e5m2", "f32"), sparse=sparse))
        for bits, ks in ((8, (32, 64)), (4, (64, 128))):
            types = ("s32", f"s{bits}", f"u{bits}", "s32")
            cases += [Mma((16, 8, k), types, sparse=sparse, words="satfinite") for k in ks]
    selected = [("f16", 16, 3), ("f16", 32, 1), ("tf32", 8, 2), ("tf32", 16, 1)]
    for type_, k, selector in selected:
        types = ("f32", type_, type_, "f32")
        cases.append(Mma((16, 8, k), types, sparse="sp::ordered_metadata", selector=selector))
    types = ("s32", "u8", "s8", "s32")
    return [*cases, Mma((16, 8, 32), types, sparse="sp::ordered_metadata", selector=1)]


def blackwell() -> list[Mma]:
    """What sm_120a adds."""
    small = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
    cases = []
    for i, (a, b) in enumerate(itertools.product(small, repeat=2)):
        d = ("f32", "f16")[i % 2]
        cases.append(Mma((16, 8, 32), (d, a, b, d), "f8f6f4"))
        ids = (i % 4, i % 2, (i + 1) % 4, (i + 2) % 4)
        cases.append(Mma((16, 8, 32), ("f32", a, b, "f32"), "mxf8f6f4", "", (1, "ue8m0"), ids=ids))
    fours = ("f32", "e2m1", "e2m1", "f32")
    for ids in ((0, 0, 0, 0), (2, 1, 0, 3), (0, 1, 2, 2)):
        cases.append(Mma((16, 8, 64), fours, "mxf4", "", (2, "ue8m0"), ids=ids))
        cases.append(Mma((16, 8, 64), fours, "mxf4nvf4", "", (2, "ue8m0"), ids=ids))
    for thread_a, thread_b in ((0, 0), (1, 3)):
        ids = (0, thread_a, 0, thread_b)
        cases.append(Mma((16, 8, 64), fours, "mxf4nvf4", "", (4, "ue4m3"), ids=ids))
    ordered = "sp::ordered_metadata"
    cases.append(Mma((16, 8, 64), ("f32", "e2m1", "e4m3", "f32"), "f8f6f4", ordered))
    cases.append(Mma((16, 8, 64), ("f16", "e3m2", "e2m3", "f16"), "f8f6f4", ordered))
    types = ("f32", "e5m2", "e2m1", "f32")
    cases.append(Mma((16, 8, 64), types, "mxf8f6f4", ordered, (1, "ue8m0"), ids=(3, 1, 1, 2)))
    cases.append(Mma((16, 8, 128), fours, "mxf4nvf4", ordered, (4, "ue4m3"), ids=(0, 1, 0, 2)))
    cases.append(Mma((16, 8, 128), fours, "mxf4", ordered, (2, "ue8m0"), ids=(2, 0, 2, 1)))
    return cases
