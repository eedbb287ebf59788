"""Tensor copies recorded on an H200 (driver 580, CUDA 13.0), computed here again.

tests/helpers/tma_recording.py says what was recorded, tests/helpers/record_tma.py records it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tma_recording import BULK, CASES, OPERANDS, OPERATIONS, digest, memories

from humming_sim.errors import TensorMapError
from humming_sim.tma.bulk import Problem
from humming_sim.tma.elements import Element
from humming_sim.tma.modes import Fill, Interleave, Swizzle
from humming_sim.tma.reductions import STORAGE, reduction
from humming_sim.tma.tensor_map import TensorMap
from humming_sim.tma.tiles import OUTSIDE, fill_bytes, loaded, tiles
from humming_sim.tma.uses import Direction, TensorUse, reduction_type, target_problem, use_problem

SHARED = 0x800
ADDRESS = 0x7F00_0000_0000


def of_kind(*kinds: str) -> Any:
    return pytest.mark.parametrize(
        "case", [case for case in CASES if case["kind"] in kinds], ids=lambda case: case["name"]
    )


def map_of(case: dict[str, Any]) -> TensorMap:
    return TensorMap(
        element=Element(case["type"]),
        address=ADDRESS + case.get("address_offset", 0),
        dims=tuple(case["dims"]),
        strides=tuple(case["strides"]),
        box=tuple(case["box"]),
        element_strides=tuple(case["element_strides"]),
        swizzle=Swizzle(case.get("swizzle", 0)),
        fill=Fill(case.get("fill", 0)),
        interleave=Interleave(case.get("interleave", 0)),
    )


def use_of(case: dict[str, Any]) -> TensorUse:
    operation = case.get("operation", 0)
    rank = len(case["dims"])
    if case["kind"] == "load":
        return TensorUse(Direction.LOAD, operation if 0 < operation < 6 else rank, to_cluster=True)
    name = OPERATIONS[operation] if operation < OPERANDS else ""
    return TensorUse(Direction.REDUCE if name else Direction.STORE, rank, operation=name)


# ----------------------------------------------------------------------------------------- tests


@of_kind("encode", "load", "store", "count")
def test_what_the_encoder_refused_is_refused_and_nothing_else(case: dict[str, Any]) -> None:
    try:
        refused = target_problem(map_of(case), use_of(case), 90) is not None
    except TensorMapError:
        refused = True
    assert refused == (case.get("fault") == "refused by the encoder")


def problem_of(case: dict[str, Any]) -> Problem | None:
    coordinates = np.array([case["coords"]], dtype=np.int64)
    shared = np.array([SHARED + case.get("shared_offset", 0)])
    return use_problem(map_of(case), use_of(case), coordinates, shared)


RAN = [c for c in CASES if c["kind"] in ("load", "store") and "encoder" not in c.get("fault", "")]


@pytest.mark.parametrize("case", RAN, ids=lambda case: case["name"])
def test_copies_that_stopped_the_device_are_problems_and_no_others(case: dict[str, Any]) -> None:
    problem = problem_of(case)
    assert (problem is not None) == ("fault" in case)
    if problem is not None and case["fault"] == "misaligned address":
        assert problem.check == "alignment"


def wide(addresses: npt.NDArray[np.int64], chunk: int) -> npt.NDArray[np.int64]:
    return addresses[:, None] + np.arange(chunk)


@pytest.mark.parametrize("case", [c for c in RAN if "digest" in c], ids=lambda case: case["name"])
def test_a_copy_leaves_memory_as_on_the_device(case: dict[str, Any]) -> None:
    m, use = map_of(case), use_of(case)
    base = np.array([SHARED + case.get("shared_offset", 0)])
    coordinates = np.array([case["coords"]], dtype=np.int64)
    made = tiles(m, coordinates, base, store=use.direction.reads_shared)
    source, shared = memories(case)
    inside = made.global_addresses[0] != OUTSIDE
    there = wide(made.global_addresses[0][inside] - ADDRESS, made.chunk)
    here = wide(made.shared_addresses[0] - SHARED, made.chunk)
    if use.direction is Direction.LOAD:
        shared[here] = fill_bytes(m, made.chunk)
        shared[here[inside]] = loaded(m, source[there])
        assert digest(shared) == case["digest"]
        return
    incoming = shared[here[inside]]
    if use.operation:
        kind = reduction_type(m.element, use.operation)
        assert kind is not None
        old, new = (data.reshape(-1).view(STORAGE[kind]) for data in (source[there], incoming))
        with np.errstate(all="ignore"):
            result = reduction(use.operation, kind)(old, new)
        incoming = result.view(np.uint8).reshape(there.shape)
    source[there] = incoming
    assert digest(source) == case["digest"]


@of_kind("bulk")
def test_a_bulk_reduction_leaves_memory_as_on_the_device(case: dict[str, Any]) -> None:
    how, kind = BULK[case.get("operation", 0)].split(".")
    memory, incoming = memories(case)
    old, new = (side[:4096].view(STORAGE[kind]) for side in (memory, incoming))
    with np.errstate(all="ignore"):
        memory[:4096] = reduction(how, kind)(old, new).view(np.uint8)
    assert digest(memory) == case["digest"]


@of_kind("count")
def test_a_load_completes_as_many_bytes_as_on_the_device(case: dict[str, Any]) -> None:
    assert (map_of(case).transaction_bytes == case["operation"]) == case["complete"]


def test_the_recording_has_every_kind_of_case() -> None:
    kinds = {case["kind"] for case in CASES}
    assert kinds == {"encode", "load", "store", "count", "bulk"}
    assert len(CASES) > 250
