"""Runs the test GEMMs (sim_gemms.Case) in the simulator."""

from __future__ import annotations

from typing import Any

from sim_gemms import Buffer, Bytes, Case, TensorMap

import humming_sim

_ELEMENTS = {
    "u8": "UINT8",
    "u32": "UINT32",
    "s32": "INT32",
    "f16": "FLOAT16",
    "bf16": "BFLOAT16",
    "f32": "FLOAT32",
    "u4x16": "16U4_ALIGN8B",
    "u4x16p": "16U4_ALIGN16B",
    "u6x16p": "16U6_ALIGN16B",
}


def simulate(case: Case, ptx: str | None = None, **options: Any) -> dict[str, Bytes]:
    """The buffers after a launch of `ptx` (the case's own if None), with launch()'s options.

    Raises SimulatorError, as launch() does.
    """
    buffers = case.fresh_buffers()
    humming_sim.launch(
        case.program.ptx() if ptx is None else ptx,
        "gemm",
        case.grid,
        case.block,
        [_argument(argument, buffers) for argument in case.arguments],
        cluster=case.cluster if case.cluster > 1 else None,
        smem=case.smem,
        **options,
    )
    return buffers


def _argument(argument: Any, buffers: dict[str, Bytes]) -> Any:
    if isinstance(argument, Buffer):
        return buffers[argument.name]
    if isinstance(argument, TensorMap):
        return humming_sim.TensorMap(
            buffer=buffers[argument.buffer],
            element=_ELEMENTS[argument.dtype],
            dims=argument.sizes,
            strides=argument.strides,
            box=argument.box,
            swizzle=f"b{argument.swizzle}" if argument.swizzle else "none",
        )
    return argument
