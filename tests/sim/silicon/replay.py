"""Runs a case in the simulator."""

from __future__ import annotations

from typing import Any

import humming_sim
from silicon import compare, recording
from silicon.case import Bytes, Case, Map, Memory, Scalar

#: Where the recordings come from: PTX for older targets runs there too.
H200 = humming_sim.Device(name="NVIDIA H200", arch="sm_90a", shared_bytes=232448, max_cluster=8)


def simulate(case: Case, seed: int | None = None, accumulation: str = "exact") -> Bytes:
    """The output bytes of a case, as the simulator makes them.

    Raises:
        humming_sim.SimulatorError: if it finds fault with the case or lacks an instruction.
    """
    memories = {
        position: argument.start()
        for position, argument in enumerate((*case.arguments, *case.hidden))
        if isinstance(argument, Memory)
    }
    humming_sim.launch(
        case.ptx,
        case.entry,
        case.grid,
        case.block,
        [_argument(argument, memories, i) for i, argument in enumerate(case.arguments)],
        cluster=None if case.cluster == (1, 1, 1) else case.cluster,
        smem=case.shared,
        device=H200,
        seed=seed,
        accumulation=accumulation,
    )
    return case.output_bytes(memories)


def _argument(argument: Any, memories: dict[int, Bytes], position: int) -> Any:
    if isinstance(argument, Memory):
        return memories[position]
    if isinstance(argument, Scalar):
        return argument.array()[0]
    return _map(argument, memories[argument.memory])


def _map(spec: Map, buffer: Bytes) -> humming_sim.TensorMap:
    return humming_sim.TensorMap(
        buffer=buffer,
        element=spec.element,
        dims=spec.dims,
        strides=spec.strides,
        box=spec.box,
        element_strides=spec.element_strides(),
        swizzle=spec.swizzle,
        fill=spec.fill,
        offset=spec.offset,
    )


def replay(family: str, case: Case, seed: int | None = None) -> list[str]:
    """Where the simulator and the recording of a case disagree; empty if nowhere.

    Raises:
        recording.NotRecorded: if there is no recording of this very case.
    """
    expected = recording.recorded(family, case)
    return compare.disagreements(case, expected, simulate(case, seed))
