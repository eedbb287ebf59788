"""Kernels of one warpgroup around wgmma: a tile in shared memory, accumulators in and out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sim_fragments import ACCUMULATOR_FORMULAS
from sim_operands import SPAN, write
from sim_warp import WarpOp, vector

Array = npt.NDArray[Any]

TILE = 24576  # bytes; A from 0, B from 8192
B_START = 8192
MODES = {"none": 0, "128B": 1, "64B": 2, "32B": 3}
FENCE = "wgmma.fence.sync.aligned;"
COMMIT = "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"
PROXY = "fence.proxy.async.shared::cta;"
BARRIER = "bar.sync 0;"


@dataclass(frozen=True)
class Place:
    """A canonical layout and where the operand starts in the tile."""

    swizzle: str
    major: str
    leading: int
    stride: int
    start: int = 0

    def descriptor(self) -> int:
        """Without the address of the tile."""
        value = self.start >> 4 | self.leading >> 4 << 16 | self.stride >> 4 << 32
        return value | MODES[self.swizzle] << 62


def k_major(swizzle: str, start: int = 0) -> Place:
    """Dense groups of eight rows."""
    if swizzle == "none":
        return Place(swizzle, "K", 4096, 128, start)
    return Place(swizzle, "K", 16, 8 * SPAN[swizzle], start)


def mn_major(swizzle: str, start: int = 0) -> Place:
    """Spans of rows 2048 bytes apart, groups of eight k next to each other."""
    span = 8 * SPAN[swizzle]
    return Place(swizzle, "MN", 2048, span, start)


def descriptor(name: str, constant: int) -> str:
    """PTX that makes %`name` of a descriptor relative to the tile."""
    return f"mov.b64 %{name}, {constant:#x}; add.s64 %{name}, %{name}, %tile64;"


def prelude(before_use: str = PROXY + BARRIER) -> str:
    """The tile into shared memory, and descriptors' registers."""
    count = TILE // 512
    lines = [
        f".shared .align 1024 .b8 tile[{TILE}];",
        ".reg .b32 %base, %to; .reg .b64 %da, %db, %tile64; .reg .pred %on, %off;",
        "mov.u32 %base, tile; shr.u32 %to, %base, 4; cvt.u64.u32 %tile64, %to;",
        "setp.eq.u32 %on, 0, 0; setp.ne.u32 %off, 0, 0;",
        f"mad.lo.u32 %to, %me, {4 * count}, %base;",
        *(f"st.shared.b32 [%to+{4 * i}], %t{i};" for i in range(count)),
    ]
    return "\n".join(lines) + "\n" + before_use


def kernel(name: str, body: str, registers: int, before_use: str = PROXY + BARRIER) -> WarpOp:
    """Accumulators come in %c, A's registers in %a; `body` leaves its results in %c.

    They are copied to the output %d afterwards.
    """
    copy = "".join(f"mov.b32 %d{i}, %c{i};" for i in range(registers))
    inputs = {"t": TILE // 512, "a": 4, "c": registers}
    return WarpOp(name, prelude(before_use) + body + copy, inputs, {"d": registers}, {})


def tile_words(memory: Array) -> Array:
    """Bytes of the tile as the registers of the threads that store them."""
    return memory.view(np.uint32).reshape(4, 32, -1)


def tile_of(parts: Sequence[tuple[Place, Array]], bits: int) -> Array:
    """A tile that holds matrices of element bits [rows, k]."""
    memory = np.zeros(TILE, np.uint8)
    for place, matrix in parts:
        write(memory, place.start, place, matrix, bits)
    return memory


def spread(matrix: Array, bits: int) -> Array:
    """Accumulators [64, n] of element bits as registers [4, 32, R]."""
    n = matrix.shape[1]
    formula = ACCUMULATOR_FORMULAS[16, 256]
    out = np.zeros((4, 32, n * bits // 64), np.uint32)
    for warp, lane, i in np.ndindex(4, 32, n // 2):
        row, column = formula(lane >> 2, lane % 4, i)
        value = int(matrix[16 * warp + row, column])
        out[warp, lane, i * bits // 32] |= np.uint32(value << i * bits % 32)
    return out


def c_registers(count: int) -> str:
    """``{%c0, ...}``."""
    return vector("c", count)
