"""Whole GEMMs: the simulator's test kernels for SM75 to SM90, as NVRTC made them once.

Their PTX is kept in gemm_ptx.xz, so that another NVRTC changes nothing here. After a change
of a kernel: python -m silicon.gemm_cases (needs NVRTC), then record family gemm again.
"""

from __future__ import annotations

import lzma
import re
from typing import Any

import numpy as np
from sim_gemm_variants import VARIANTS
from sim_gemms import Buffer, Problem, Result, TensorMap
from sim_gemms import Case as Gemm

from silicon.case import EXACT, Argument, Array, Case, Check, Map, Memory, Output, Scalar, Within
from silicon.recording import FOLDER

SOURCES = FOLDER.parent / "gemm_ptx.xz"
#: What the driver of the recordings reads.
VERSION = ".version 9.0"
#: No size is a multiple of a tile; 104 columns fill 16 bytes in every type of result, since what
#: a tensor store writes beyond them is whatever lay in shared memory.
PROBLEM = Problem(150, 104, 200)
NAMES = [name for name in VARIANTS if name.startswith(("sync", "cp-async", "w4a16", "wgmma"))]
_ELEMENTS = {"u8": "uint8", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "s32": "int32"}
#: How much of the bound for fp32 sums: tensor cores cut off where the bound rounds, and wgmma of
#: fp8 keeps 13 bits of each term instead of 24.
_SLACK = {"wgmma-e4m3": 2.0**11}
_SEPARATOR = "\n// ======== "


def gemms() -> dict[str, Gemm]:
    """The GEMMs that an H200 can run, by name."""
    made = {name: VARIANTS[name](PROBLEM) for name in NAMES}
    return {
        name: case for name, case in made.items() if case.program.arch in "75 80 89 90a".split()
    }


def sources() -> dict[str, str]:
    """The kept PTX of each GEMM by name."""
    text = lzma.decompress(SOURCES.read_bytes()).decode()
    parts = [part.split("\n", 1) for part in text.split(_SEPARATOR)[1:]]
    return {name.strip(): ptx for name, ptx in parts}


def write_sources() -> None:
    """Compile every GEMM and keep its PTX."""
    text = ""
    for name, case in gemms().items():
        ptx = re.sub(r"\.version \d+\.\d+", VERSION, case.program.ptx())
        text += f"{_SEPARATOR}{name}\n{ptx}"
    SOURCES.write_bytes(lzma.compress(text.encode(), preset=9))


def cases() -> list[Case]:
    """The GEMMs whose PTX is kept."""
    kept = sources()
    return [_case(name, gemm, kept[name]) for name, gemm in gemms().items()]


def _case(name: str, gemm: Gemm, ptx: str) -> Case:
    places = {
        argument.name: position
        for position, argument in enumerate(gemm.arguments)
        if isinstance(argument, Buffer)
    }
    # A buffer that only a tensor map names comes as an argument that the kernel doesn't take.
    extra = [name for name in gemm.buffers if name not in places]
    arguments = [_argument(argument, gemm, places, extra) for argument in gemm.arguments]
    hidden = tuple(Memory(gemm.buffers[name]) for name in extra)
    where = places.get("c", len(arguments) + extra.index("c") if "c" in extra else 0)
    return Case(
        name=f"gemm/{name.replace('-', '_')}",
        ptx=ptx,
        arguments=tuple(arguments),
        outputs=(_output(gemm.result, where, gemm.buffers["c"].nbytes, _SLACK.get(name, 4)),),
        block=(gemm.block, 1, 1),
        grid=gemm.grid,
        cluster=(gemm.cluster, 1, 1),
        shared=gemm.smem,
        entry="gemm",
        hidden=hidden,
    )


def _argument(argument: Any, gemm: Gemm, places: dict[str, int], extra: list[str]) -> Argument:
    if isinstance(argument, Buffer):
        return Memory(gemm.buffers[argument.name])
    if not isinstance(argument, TensorMap):
        return Scalar(argument, "int32")
    memory = places.get(argument.buffer)
    if memory is None:
        memory = len(gemm.arguments) + extra.index(argument.buffer)
    return Map(
        memory,
        _ELEMENTS[argument.dtype],
        argument.sizes,
        argument.strides,
        argument.box,
        swizzle=str(argument.swizzle) if argument.swizzle else "none",
    )


def _output(result: Result, argument: int, size: int, slack: float) -> Output:
    width = np.dtype(result.dtype).itemsize
    check: Check = EXACT
    if np.dtype(result.dtype).kind == "f":
        why = "one rounding per matrix instruction, sums of K in any order"
        check = Within(f"f{8 * width}", lambda: _bounds(result, size // width, slack), why)
    return Output("c", argument, 0, f"u{width}", size // width, check)


def _bounds(result: Result, count: int, slack: float) -> tuple[Array, Array]:
    """Reference and allowed error of every element; NaN, that is unchanged, outside of C."""
    reference = np.full((count // result.ldc, result.ldc), np.nan)
    allowed = np.zeros_like(reference)
    m, n = result.values.shape
    inside = np.ones((m, n), np.bool_) if result.written is None else result.written
    reference[:m, :n][inside] = result.values[inside]
    allowed[:m, :n] = result.bound * slack
    return reference.reshape(-1), allowed.reshape(-1)


if __name__ == "__main__":
    write_sources()
