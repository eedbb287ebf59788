"""Runs single PTX instructions on arrays: each thread computes one element of every result.

The module holds one kernel with all instructions of a test, so that ptxas checks their spelling in
one go and the simulator compiles them once.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import humming_sim

Array = npt.NDArray[Any]

_PLACES = (shutil.which("ptxas"), "/usr/local/cuda/bin/ptxas", "/usr/local/cuda-13.0/bin/ptxas")
PTXAS = next((place for place in _PLACES if place and Path(place).exists()), None)


@dataclass(frozen=True)
class Op:
    """PTX that sets %d (of `width` bits) from the inputs, which are registers %a, %b, ..."""

    body: str
    width: int = 32


def module(
    ops: Sequence[Op], inputs: Mapping[str, Array], target: str, version: str
) -> tuple[str, int]:
    """PTX text, and how many bytes of results each thread stores for each instruction."""
    names = list(inputs)
    pointers = [*(f"in_{name}" for name in names), "out"]
    lines = [f".version {version}", f".target {target}", ".address_size 64"]
    lines += [".visible .entry kernel("]
    lines += [",\n".join(f".param .u64 {name}" for name in pointers), ") {"]
    lines += [".reg .b32 %thread;", ".reg .b64 %place, %pointer;", "mov.u32 %thread, %tid.x;"]
    for name in names:
        size = inputs[name].dtype.itemsize
        lines += [f".reg .b{max(16, 8 * size)} %{name};", f"ld.param.u64 %pointer, [in_{name}];"]
        lines += [
            f"mad.wide.u32 %place, %thread, {size}, %pointer;",
            f"ld.global.b{8 * size} %{name}, [%place];",
        ]
    for index, op in enumerate(ops):
        lines += ["{", f".reg .b{max(op.width, 16)} %d;", op.body]
        lines += ["ld.param.u64 %pointer, [out];", "mad.wide.u32 %place, %thread, 8, %pointer;"]
        count = len(inputs[names[0]])
        offset = index * 8 * count
        lines += [f"st.global.b{op.width} [%place+{offset}], %d;", "}"]
    return "\n".join([*lines, "ret;", "}"]) + "\n", 8


def assemble(text: str, target: str) -> None:
    """Let ptxas, where there is one, refuse what is no PTX."""
    if PTXAS is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(text, encoding="utf-8")
        command = [PTXAS, f"-arch={target}", "-O0", "-o", f"{folder}/kernel.cubin", str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def compute(
    ops: Sequence[Op | str],
    inputs: Mapping[str, Array],
    *,
    target: str = "sm_90",
    version: str = "8.6",
    legal: bool = True,
) -> list[Array]:
    """Results of every instruction as unsigned integers, one array [n] each.

    Args:
        ops: instructions; text stands for one with a 32-bit result.
        inputs: arrays [n], one name each; 8-bit ones lie in 16-bit registers.
        legal: also assemble the module with ptxas.
    """
    rows = [op if isinstance(op, Op) else Op(op) for op in ops]
    text, size = module(rows, inputs, target, version)
    if legal:
        assemble(text, target)
    count = len(next(iter(inputs.values())))
    out = np.zeros(size * count * len(rows), np.uint8)
    block = 1 << max(0, (count - 1).bit_length()) if count < 1024 else 1024
    if count > 1024:
        raise ValueError("one CTA runs at most 1024 elements")
    arrays = [np.ascontiguousarray(np.resize(array, block)) for array in inputs.values()]
    padded = np.zeros(size * (count * len(rows) + block), np.uint8)
    humming_sim.launch(text, "kernel", 1, block, [*arrays, padded])
    out = padded[: len(out)].reshape(len(rows), count, size)
    return [
        np.ascontiguousarray(out[index, :, : row.width // 8]).view(f"u{row.width // 8}")[:, 0]
        for index, row in enumerate(rows)
    ]
