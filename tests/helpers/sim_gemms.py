"""What a test GEMM is: a program, its buffers and arguments, and the float64 result to expect.

A description knows neither the simulator nor a driver. Both take the same arrays and tensor maps.
Matrices are rows of bytes, `pitch` bytes apart; what lies between a row's end and the next row is
poison (0xff: NaN in every float format), so that a kernel which reads too far shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from sim_kernels import Define, compile_ptx, read_kernel

Bytes = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float64]

POISON = 0xFF


@dataclass(frozen=True)
class Problem:
    """Sizes of C[m, n] = A[m, k] * B[n, k]^T, the data's seed and the work items of one CTA."""

    m: int
    n: int
    k: int
    seed: int = 0
    items_per_cta: int = 1

    @property
    def rng(self) -> np.random.Generator:
        """A new generator with the problem's seed."""
        return np.random.default_rng([self.seed, self.m, self.n, self.k])


@dataclass(frozen=True)
class Program:
    """A kernel's source, its macros and the architecture it is for ("90a")."""

    source: str
    arch: str
    defines: Mapping[str, Define] = field(default_factory=dict)

    def text(self) -> str:
        """The CUDA C++ source with its headers pasted in."""
        return read_kernel(self.source)

    def ptx(self) -> str:
        """PTX of the unchanged source."""
        return compile_ptx(self.text(), f"compute_{self.arch}", self.defines)


@dataclass(frozen=True)
class Buffer:
    """An argument: the address of the buffer called `name`."""

    name: str


@dataclass(frozen=True)
class TensorMap:
    """An argument: a tiled tensor map over a buffer, in the terms of cuTensorMapEncodeTiled.

    `dtype` is u8, u32, s32, f16, bf16, f32, u4x16 (16U4_ALIGN8B), u4x16p (16U4_ALIGN16B) or u6x16p
    (16U6_ALIGN16B). Sizes and box are elements, innermost first; strides are bytes, from the second
    dimension on; swizzle is its span in bytes, 0 for none.
    """

    buffer: str
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0


Argument = Buffer | TensorMap | int


@dataclass(frozen=True)
class Result:
    """The matrix that buffer "c" must hold: `values` [m, n] within `bound` [m, n].

    Elements where `written` is False, and all beyond column n, must keep their first bits, except
    for the `spill` columns after n.
    """

    values: Values
    bound: Values
    dtype: Any
    ldc: int
    written: npt.NDArray[np.bool_] | None = None
    spill: int = 0


@dataclass(frozen=True)
class Case:
    """One launch. `int` arguments are 32-bit; buffers are bytes, copied before each launch."""

    program: Program
    buffers: Mapping[str, Bytes]
    arguments: tuple[Argument, ...]
    grid: tuple[int, int, int]
    block: int
    smem: int
    result: Result
    cluster: int = 1
    unchanged: tuple[str, ...] = ()

    def fresh_buffers(self) -> dict[str, Bytes]:
        """Copies of the buffers as they are before the launch."""
        return {name: array.copy() for name, array in self.buffers.items()}

    def faults(self, after: Mapping[str, Bytes], slack: float = 1.0) -> list[str]:
        """What is wrong with the buffers after a launch; bounds are multiplied by `slack`."""
        found = []
        expected = self.result
        m, n = expected.values.shape
        rows = after["c"].view(expected.dtype).reshape(-1, expected.ldc)
        before = self.buffers["c"].view(expected.dtype).reshape(-1, expected.ldc)
        written = np.zeros(rows.shape, dtype=bool)
        written[:m, n : n + expected.spill] = True
        written[:m, :n] = True if expected.written is None else expected.written
        bits = np.dtype(f"u{np.dtype(expected.dtype).itemsize}")
        if not np.array_equal(rows.view(bits)[~written], before.view(bits)[~written]):
            found.append("wrote outside the result")
        got = rows[:m, :n].astype(np.float64)
        with np.errstate(invalid="ignore"):
            wrong = ~(np.abs(got - expected.values) <= expected.bound * slack) & written[:m, :n]
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            found.append(
                f"{int(wrong.sum())} of {m * n} elements wrong; C{at} is {got[at]}, "
                f"not {expected.values[at]} within {expected.bound[at]}"
            )
        for name in self.unchanged:
            if not np.array_equal(after[name], self.buffers[name]):
                found.append(f"changed {name}")
        return found


# ------------------------------------------------------------------------------------ element types

_DTYPES: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "s8": np.int8,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "ue8m0": ml_dtypes.float8_e8m0fnu,
}
_WIDTHS = {16: "f16 bf16", 8: "s8 e4m3 e5m2 e3m4", 6: "e2m3 e3m2", 4: "e2m1 e0m3"}
BITS = {name: bits for bits, names in _WIDTHS.items() for name in names.split()}


def random_codes(shape: tuple[int, int], name: str, rng: np.random.Generator) -> Any:
    """Codes (uint8 or uint16): every finite code for 8 bits and less, else normal with outliers."""
    if BITS[name] == 16:
        values = rng.normal(size=shape)
        values[rng.random(shape) < 0.01] *= 50
        return values.astype(_DTYPES[name]).view(np.uint16)
    codes = rng.integers(0, 1 << BITS[name], size=shape, dtype=np.uint8)
    infinite = ~np.isfinite(values_of(codes, name))
    codes[infinite] = 0x01
    return codes


def values_of(codes: npt.NDArray[Any], name: str) -> Values:
    """What codes are worth, by NumPy and ml_dtypes, or by the formats' descriptions."""
    if name == "ue4m3":
        name = "e4m3"
    if name == "e0m3":  # sign and magnitude
        return np.where(codes & 8, -1.0, 1.0) * (codes & 7)
    if name == "e3m4":  # bias 3; all ones is the only NaN
        exponent, fraction = codes.astype(np.int64) >> 4 & 7, (codes & 15) / 16
        magnitude = (fraction + (exponent > 0)) * 2.0 ** (np.maximum(exponent, 1) - 3)
        magnitude[codes & 0x7F == 0x7F] = np.nan
        return np.where(codes & 0x80, -1.0, 1.0) * magnitude
    return codes.view(_DTYPES[name]).astype(np.float64)


def pack_rows(codes: npt.NDArray[Any], name: str, spare: int = 16) -> tuple[Bytes, int]:
    """Rows of packed elements, low bits first, and their pitch.

    The pitch is a multiple of 32 bytes. At least `spare` bytes of poison follow each row.
    """
    packed = _pack(codes, BITS[name])
    pitch = (packed.shape[1] + spare + 31) // 32 * 32
    rows = np.full((codes.shape[0], pitch), POISON, dtype=np.uint8)
    rows[:, : packed.shape[1]] = packed
    return rows, pitch


def _pack(codes: npt.NDArray[Any], bits: int) -> Bytes:
    codes = np.ascontiguousarray(codes)
    if bits >= 8:
        return codes.view(np.uint8).reshape(codes.shape[0], -1)
    planes = (codes[:, :, None] >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(planes.reshape(codes.shape[0], -1), axis=1, bitorder="little")


def empty_result(rows: int, n: int, itemsize: int = 4, spare: int = 4) -> tuple[Bytes, int]:
    """Poisoned room for C and its row length: `spare` words more than a multiple of 16 bytes."""
    ldc = (n * itemsize + 15) // 16 * 16 // itemsize + spare * 4 // itemsize
    return np.full(rows * ldc * itemsize, POISON, dtype=np.uint8), ldc


def expect_product(a: Values, b: Values, dtype: Any, ldc: int) -> Result:
    """The product in float64, with the error that fp32 sums of at least eight products may have."""
    values = a @ b.T
    if dtype == np.int32:
        bound = np.zeros_like(values)
    else:
        bound = (np.abs(a) @ np.abs(b).T) * ((a.shape[1] / 8 + 4) * 2.0**-24) + 1e-30
    if dtype == np.float16:
        bound += np.abs(values) * 2.0**-11 + 2.0**-24
    return Result(values, bound, dtype, ldc)
