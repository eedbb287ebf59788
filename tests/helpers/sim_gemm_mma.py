"""Test GEMMs of sm_75 to sm_89 and sm_120: plain loads, cp.async and mma.sync, 4-bit weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from sim_gemms import (
    Argument,
    Buffer,
    Bytes,
    Case,
    Problem,
    Program,
    Result,
    Values,
    empty_result,
    expect_product,
    pack_rows,
    random_codes,
    values_of,
)
from sim_kernels import Define

Builder = Callable[[Problem], Case]


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


@dataclass
class Operand:
    """One random matrix: packed rows, their pitch and the values with block scales applied."""

    rows: Bytes
    pitch: int
    values: Values


def random_operand(shape: tuple[int, int], name: str, rng: np.random.Generator) -> Operand:
    """A random matrix [rows, k] of the element type `name`."""
    codes = random_codes(shape, name, rng)
    rows, pitch = pack_rows(codes, name)
    return Operand(rows, pitch, values_of(codes, name))


# ---------------------------------------------------------------------------------------- gemm_sync


def sync(problem: Problem, element: str = "f16") -> Case:
    """gemm_sync.cu for f16 or s8."""
    m, n, k, rng = problem.m, problem.n, problem.k, problem.rng
    a, b = random_operand((m, k), element, rng), random_operand((n, k), element, rng)
    c, ldc = empty_result(m, n)
    defines: dict[str, Define] = {"INT8": 1} if element == "s8" else {}
    return Case(
        program=Program("gemm_sync.cu", "75", defines),
        buffers={"a": a.rows, "b": b.rows, "c": c},
        arguments=(Buffer("a"), Buffer("b"), Buffer("c"), m, n, k, a.pitch, b.pitch, ldc),
        grid=(_blocks(n, 64), _blocks(m, 64), 1),
        block=128,
        smem=0,
        result=expect_product(a.values, b.values, _result_type(element), ldc),
        unchanged=("a", "b"),
    )


def _result_type(element: str) -> Any:
    return np.int32 if element == "s8" else np.float32


# ------------------------------------------------------------------------------------ gemm_cp_async


@dataclass(frozen=True)
class CpAsync:
    """A variant of gemm_cp_async.cu: its KIND, architecture, element types and block scales."""

    kind: str
    arch: str
    a: str
    b: str
    scale: str = ""
    scale_k: int = 32
    defines: dict[str, Define] = field(default_factory=dict)

    def program(self, **more: Define) -> Program:
        """The source and its macros."""
        defines: dict[str, Define] = {"KIND": self.kind, **self.defines, **more}
        if self.kind in ("FP8", "F8F6F4", "MXF8F6F4"):
            bits = {"e4m3": 8, "e5m2": 8, "e2m3": 6, "e3m2": 6, "e2m1": 4}
            defines |= {"A_TYPE": self.a, "A_BITS": bits[self.a]}
            defines |= {"B_TYPE": self.b, "B_BITS": bits[self.b]}
        return Program("gemm_cp_async.cu", self.arch, defines)

    @property
    def smem(self) -> int:
        """Dynamic shared memory: three stages of 64 + 64 rows of 64 bytes."""
        return int(self.defines.get("STAGES", 3)) * 128 * 64

    def __call__(self, problem: Problem) -> Case:
        """The plain GEMM."""
        m, n, k, rng = problem.m, problem.n, problem.k, problem.rng
        a, b = random_operand((m, k), self.a, rng), random_operand((n, k), self.b, rng)
        c, ldc = empty_result(m, n)
        buffers = {"a": a.rows, "b": b.rows, "c": c}
        arguments: list[Argument] = [Buffer(name) for name in "abc"]
        arguments += [m, n, k, a.pitch, b.pitch, ldc]
        if self.scale:
            scales_a, values_a = random_scales((m, _blocks(k, self.scale_k)), self.scale, rng)
            scales_b, values_b = random_scales((n, _blocks(k, self.scale_k)), self.scale, rng)
            a.values *= np.repeat(values_a, self.scale_k, axis=1)[:, :k]
            b.values *= np.repeat(values_b, self.scale_k, axis=1)[:, :k]
            buffers |= {"sa": scales_a, "sb": scales_b}
            arguments += [Buffer("sa"), Buffer("sb"), scales_a.shape[1], scales_b.shape[1]]
        return Case(
            program=self.program(),
            buffers=buffers,
            arguments=tuple(arguments),
            grid=(_blocks(n, 64), _blocks(m, 64), 1),
            block=128,
            smem=self.smem,
            result=expect_product(a.values, b.values, _result_type(self.a), ldc),
            unchanged=tuple(name for name in buffers if name != "c"),
        )


def scale_codes(shape: tuple[int, int], name: str, rng: np.random.Generator) -> Bytes:
    """Random block scales, each within a few powers of two of one, with an outlier now and then."""
    if name == "ue8m0":
        codes = rng.integers(123, 132, size=shape)
        codes[rng.random(shape) < 0.02] += 6
    else:
        codes = rng.integers(0x28, 0x48, size=shape)
        codes[rng.random(shape) < 0.02] = 0x7E
    return codes.astype(np.uint8)


def random_scales(
    shape: tuple[int, int], name: str, rng: np.random.Generator
) -> tuple[Bytes, Values]:
    """Rows of block scales with three bytes of poison behind each, and what they are worth."""
    codes = scale_codes(shape, name, rng)
    return np.pad(codes, ((0, 0), (0, 3)), constant_values=0xFF), values_of(codes, name)


def indexed(problem: Problem) -> Case:
    """gemm_cp_async.cu with rows of A gathered for experts, ids in blocks of 64 padded by -1.

    problem.m tokens, each chosen by two of four experts; one expert's block is skipped (-1).
    """
    n, k, rng, top_k, experts = problem.n, problem.k, problem.rng, 2, 4
    a = random_operand((problem.m, k), "f16", rng)
    b = random_operand((experts * n, k), "f16", rng)
    chosen = np.argsort(rng.random((problem.m, experts)), axis=1)[:, :top_k].reshape(-1)
    rows, expert_of_block = _sorted_blocks(chosen, experts, rng)
    skipped = int(rng.integers(len(expert_of_block)))
    expert_of_block[skipped] = -1
    c, ldc = empty_result(problem.m * top_k, n)
    result = expect_product(np.repeat(a.values, top_k, axis=0), b.values, np.float32, ldc)
    expert_of_row = np.full(problem.m * top_k, -1)
    for position, row in enumerate(rows):
        if row >= 0:
            expert_of_row[row] = expert_of_block[position // 64]
    columns = np.maximum(expert_of_row, 0)[:, None] * n + np.arange(n)
    values = np.take_along_axis(result.values, columns, axis=1)
    bound = np.take_along_axis(result.bound, columns, axis=1)
    written = np.broadcast_to(expert_of_row[:, None] >= 0, values.shape)
    buffers = {"a": a.rows, "b": b.rows, "c": c}
    buffers |= {"rows": rows.view(np.uint8), "experts": expert_of_block.view(np.uint8)}
    sizes = (len(rows), n, k, a.pitch, b.pitch, ldc)
    return Case(
        program=CpAsync("F16", "80", "f16", "f16").program(INDEXED=1, TOP_K=top_k),
        buffers=buffers,
        arguments=(*(Buffer(x) for x in "abc"), *sizes, Buffer("rows"), Buffer("experts")),
        grid=(_blocks(n, 64), len(expert_of_block), 1),
        block=128,
        smem=3 * 128 * 64,
        result=Result(values, bound, np.float32, ldc, written),
        unchanged=tuple(name for name in buffers if name != "c"),
    )


def _sorted_blocks(
    chosen: npt.NDArray[np.int64], experts: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Row ids by expert, each expert's part padded with -1 to blocks of 64 and shuffled."""
    rows: list[int] = []
    expert_of_block: list[int] = []
    for expert in range(experts):
        mine = [int(i) for i in rng.permutation(np.flatnonzero(chosen == expert))]
        blocks = _blocks(len(mine), 64)
        padded = mine + [-1] * (blocks * 64 - len(mine))
        rows += [int(i) for i in rng.permutation(padded)] if padded else []
        expert_of_block += [expert] * blocks
    return np.array(rows, dtype=np.int32), np.array(expert_of_block, dtype=np.int32)


# --------------------------------------------------------------------------------------- gemm_w4a16


@dataclass(frozen=True)
class W4A16:
    """gemm_w4a16.cu with a scale per `group` (32, 64, ...) elements, and `splits` CTAs along K.

    With no splits (0) the kernel has no semaphores.
    """

    splits: int = 0
    group: int = 64

    def __call__(self, problem: Problem) -> Case:
        """The GEMM with 4-bit weights."""
        m, n, k, rng = problem.m, problem.n, problem.k, problem.rng
        a = random_operand((m, k), "f16", rng)
        codes = rng.integers(0, 16, size=(n, _blocks(k, 32) * 32), dtype=np.uint8)
        codes[:, k:] = 8
        scales = (rng.random((_blocks(k, self.group), n)) * 0.1 + 0.01).astype(np.float16)
        weights = (codes[:, :k].astype(np.int8) - 8).astype(np.float16)
        weights *= np.repeat(scales.T, self.group, axis=1)[:, :k]
        c, ldc = empty_result(m, n)
        tiles = _blocks(m, 32) * _blocks(n, 64)
        buffers = {
            "a": a.rows,
            "w": pack_fragments(codes),
            "scales": scales.view(np.uint8).reshape(-1),
            "c": c,
        }
        defines: dict[str, Define] = {"GROUP": self.group}
        arguments = [*(Buffer(x) for x in buffers), m, n, k, a.pitch // 2, ldc]
        if self.splits:
            buffers["partials"] = np.full(tiles * 32 * 64 * 4, 0xFF, dtype=np.uint8)
            buffers["semaphores"] = np.zeros(tiles * 4, dtype=np.uint8)
            defines["SPLIT_K"] = 1
            arguments += [Buffer("partials"), Buffer("semaphores")]
        return Case(
            program=Program("gemm_w4a16.cu", "80", defines),
            buffers=buffers,
            arguments=tuple(arguments),
            grid=(_blocks(n, 64), _blocks(m, 32), max(self.splits, 1)),
            block=128,
            smem=3 * (32 * 64 * 2 + 64 * 64 // 2),
            result=expect_product(a.values, weights.astype(np.float64), np.float32, ldc),
            unchanged=tuple(name for name in buffers if name not in ("c", "partials")),
        )


def pack_fragments(codes: Bytes) -> Bytes:
    """[n, k] 4-bit codes in the kernel's order: [k / 32][n / 8][lane] words (see gemm_w4a16.cu)."""
    n, k = codes.shape
    padded = np.full((_blocks(n, 8) * 8, k), 8, dtype=np.uint32)
    padded[:n] = codes
    words = np.zeros((k // 32, padded.shape[0] // 8, 32), dtype=np.uint32)
    lanes = np.arange(32)
    for pair in range(4):
        for odd in range(2):
            along = pair // 2 * 16 + pair % 2 * 8 + lanes % 4 * 2 + odd
            for block in range(k // 32):
                picked = padded.reshape(-1, 8, k)[:, lanes // 4, block * 32 + along]
                words[block] |= picked << np.uint32(4 * (pair + 4 * odd))
    return words.view(np.uint8).reshape(-1)
