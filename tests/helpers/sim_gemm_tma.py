"""Test GEMMs of sm_90a and sm_100a: TMA with wgmma and with tcgen05."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sim_gemm_mma import scale_codes
from sim_gemms import (
    BITS,
    Argument,
    Buffer,
    Bytes,
    Case,
    Problem,
    Program,
    TensorMap,
    Values,
    empty_result,
    expect_product,
    pack_rows,
    random_codes,
    values_of,
)
from sim_kernels import Define

_MAP_TYPES = {16: "f16", 8: "u8", 6: "u6x16p", 4: "u4x16p"}


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


@dataclass
class MappedOperand:
    """One random matrix in global memory, its tensor map and its values [rows, k]."""

    rows: Bytes
    tensor_map: TensorMap
    values: Values


@dataclass(frozen=True)
class Tile:
    """How an operand is loaded: rows and elements of K per box; `transposed`: [K, rows]."""

    rows: int
    k: int
    packed4: bool = False
    transposed: bool = False
    swizzle: int = 128


def mapped_operand(
    buffer: str, shape: tuple[int, int], element: str, tile: Tile, rng: np.random.Generator
) -> MappedOperand:
    """A random matrix of `shape` [rows, k]."""
    codes = random_codes(shape, element, rng)
    rows, pitch = pack_rows(codes.T if tile.transposed else codes, element)
    dtype = "bf16" if element == "bf16" else _MAP_TYPES[BITS[element]]
    tensor_map = TensorMap(
        buffer=buffer,
        dtype="u4x16" if tile.packed4 else dtype,
        sizes=shape if tile.transposed else shape[::-1],
        strides=(pitch,),
        box=(64, tile.k) if tile.transposed else (tile.k, tile.rows),
        swizzle=tile.swizzle,
    )
    return MappedOperand(rows, tensor_map, values_of(codes, element))


# --------------------------------------------------------------------------------------- gemm_wgmma


@dataclass(frozen=True)
class Wgmma:
    """A variant of gemm_wgmma.cu."""

    element: str = "f16"
    cluster: int = 1
    a_registers: bool = False
    transposed_b: bool = False
    half_result: bool = False

    @property
    def result_type(self) -> Any:
        """Element type of C."""
        if self.half_result:
            return np.float16
        return np.int32 if self.element == "s8" else np.float32

    def program(self) -> Program:
        """The source and its macros."""
        defines: dict[str, Define] = {"TYPE": self.element.upper(), "CLUSTER": self.cluster}
        for name in ("a_registers", "transposed_b", "half_result"):
            if getattr(self, name):
                defines[name.upper()] = 1
        return Program("gemm_wgmma.cu", "90a", defines)

    def __call__(self, problem: Problem) -> Case:
        """The GEMM, persistent over problem.items_per_cta blocks of 128 x 64."""
        m, n, k, rng = problem.m, problem.n, problem.k, problem.rng
        width = 128 * 8 // BITS[self.element]
        tile_b = Tile(64, width, transposed=self.transposed_b)
        a = mapped_operand("a", (m, k), self.element, Tile(128 // self.cluster, width), rng)
        b = mapped_operand("b", (n, k), self.element, tile_b, rng)
        itemsize = np.dtype(self.result_type).itemsize
        c, ldc = empty_result(m, n, itemsize)
        result_map = TensorMap(
            buffer="c",
            dtype={"float16": "f16", "float32": "f32", "int32": "s32"}[self.result_type.__name__],
            sizes=(n, m),
            strides=(ldc * itemsize,),
            box=(128 // itemsize, 64),
            swizzle=128,
        )
        items = _blocks(m, 128) * _blocks(n, 64 * self.cluster)
        result = expect_product(a.values, b.values, self.result_type, ldc)
        # TMA stores whole 16-byte pieces of a row (seen on an H200).
        result = replace(result, spill=-n % (16 // itemsize))
        return Case(
            program=self.program(),
            buffers={"a": a.rows, "b": b.rows, "c": c},
            arguments=(a.tensor_map, b.tensor_map, result_map, m, n, k),
            grid=(_blocks(items, problem.items_per_cta) * self.cluster, 1, 1),
            block=384,
            smem=4 * (128 + 64) * 128 + 2 * 64 * 128,
            result=result,
            cluster=self.cluster,
            unchanged=("a", "b"),
        )


# ------------------------------------------------------------------------------------- gemm_tcgen05

#: Codes of the instruction descriptor; those of packed 4-bit kinds differ.
_FORMATS = {"e4m3": 0, "e5m2": 1, "e3m4": 2, "e2m3": 3, "e3m2": 4, "e2m1": 5}
_FORMATS |= {"f16": 0, "bf16": 1, "s8": 1}
_PACKED_FORMATS = {"e0m3": 0, "e2m1": 1}


@dataclass(frozen=True)
class Tcgen05:
    """A variant of gemm_tcgen05.cu. `scale` is the type of the block scales, "" for none."""

    kind: str = "F16"
    a: str = "f16"
    b: str = "f16"
    scale: str = ""
    columns: int = 128
    pair: bool = False
    a_tmem: bool = False
    transposed_b: bool = False
    k96: bool = False

    @property
    def packed4(self) -> bool:
        """Whether both operands are packed two to a byte."""
        return self.kind in ("MXF4", "NVF4")

    @property
    def width(self) -> int:
        """Elements of K per tile."""
        if self.packed4:
            return 384 if self.k96 else 256
        return 64 if BITS[self.a] == 16 else 128

    @property
    def scale_k(self) -> int:
        """Elements of K per block scale."""
        return 16 if self.kind == "NVF4" else 32

    @property
    def atoms(self) -> int:
        """Atoms of four scales per row and tile."""
        return self.width // self.scale_k // 4 if self.scale else 0

    def program(self) -> Program:
        """The source and its macros."""
        defines: dict[str, Define] = {"KIND": self.kind, "BN": self.columns}
        formats = _PACKED_FORMATS if self.packed4 else _FORMATS
        defines |= {"A_FORMAT": formats[self.a], "A_BITS": BITS[self.a]}
        defines |= {"B_FORMAT": formats[self.b], "B_BITS": BITS[self.b]}
        for name in ("pair", "a_tmem", "transposed_b", "k96"):
            if getattr(self, name):
                defines[name.upper()] = 1
        return Program("gemm_tcgen05.cu", "103a" if self.k96 else "100a", defines)

    @property
    def smem(self) -> int:
        """Dynamic shared memory: three stages of both operands and their scales."""
        row = 192 if self.k96 else 128
        ctas = 2 if self.pair else 1
        scales = self.atoms * 512 * (1 + _blocks(self.columns, 128))
        return 3 * ((128 + self.columns // ctas) * row + _blocks(scales, 1024) * 1024)

    def _operand(
        self, buffer: str, shape: tuple[int, int], element: str, rng: np.random.Generator
    ) -> MappedOperand:
        rows = 128 if buffer == "a" else self.columns // (2 if self.pair else 1)
        tile = Tile(rows, self.width, self.packed4, self.transposed_b and buffer == "b")
        if self.k96:
            tile = Tile(rows, 32, packed4=True, swizzle=0)
        return mapped_operand(buffer, shape, element, tile, rng)

    def __call__(self, problem: Problem) -> Case:
        """The GEMM, persistent over problem.items_per_cta blocks of 128 (pair: 256) x `columns`."""
        m, n, k, rng = problem.m, problem.n, problem.k, problem.rng
        ctas = 2 if self.pair else 1
        a = self._operand("a", (m, k), self.a, rng)
        b = self._operand("b", (n, k), self.b, rng)
        dtype = np.int32 if self.a == "s8" else np.float32
        c, ldc = empty_result(m, n)
        buffers = {"a": a.rows, "b": b.rows, "c": c}
        arguments: list[Argument] = [a.tensor_map, b.tensor_map, Buffer("c"), m, n, k, ldc]
        for operand, rows in ((a, 128 * ctas), (b, self.columns)) if self.scale else ():
            name = "s" + operand.tensor_map.buffer
            buffers[name] = self._scale(operand, rows, rng)
            arguments.append(self._scale_argument(name, buffers[name]))
        items = _blocks(m, 128 * ctas) * _blocks(n, self.columns)
        return Case(
            program=self.program(),
            buffers=buffers,
            arguments=tuple(arguments),
            grid=(_blocks(items, problem.items_per_cta) * ctas, 1, 1),
            block=320 if self.a_tmem else 192,
            smem=self.smem,
            result=expect_product(a.values, b.values, dtype, ldc),
            cluster=ctas,
            unchanged=tuple(name for name in buffers if name != "c"),
        )

    def _scale(self, operand: MappedOperand, block: int, rng: np.random.Generator) -> Bytes:
        """Scales the operand's values by random block scales and returns these as atoms.

        Rows are padded to tiles of `block` and these to 128; K to whole tiles; with ones.
        """
        rows, k = operand.values.shape
        scales = scale_codes((rows, _blocks(k, self.scale_k)), self.scale, rng)
        values = np.repeat(values_of(scales, self.scale), self.scale_k, axis=1)
        operand.values *= values[:, :k]
        one = 127 if self.scale == "ue8m0" else 0x38
        all_rows = _blocks(_blocks(rows, block) * block, 128) * 128
        padded = np.full((all_rows, _blocks(k, self.width) * self.atoms * 4), one, np.uint8)
        padded[:rows, : scales.shape[1]] = scales
        # [block of 128][quarter][row in quarter][atom][scale] -> [block][atom][row][quarter][scale]
        split = padded.reshape(-1, 4, 32, padded.shape[1] // 4, 4)
        return np.ascontiguousarray(split.transpose(0, 3, 2, 1, 4)).reshape(-1)

    def _scale_argument(self, name: str, atoms: Bytes) -> Argument:
        if not self.pair:
            return Buffer(name)
        return TensorMap(name, "u32", (128, atoms.size // 512), (512,), (128, self.atoms))
