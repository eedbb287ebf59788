"""Kernels that apply a function to their results are as lean as those that don't.

The tunings are those of experts' first products on an H200.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from gemm_matrix import Case
from wgmma_layers import H100, config_of

from humming import Gating
from humming.configs import GemmKind, ResultFunction, TuningConfig
from humming.engine.workshop import workshop
from humming.jit import compile_many
from humming.jit.program import Usage
from humming_sm75_sm89.tuning import MmaTuning
from humming_sm90.backend import Sm90Backend
from humming_sm90.stream_tuning import StreamTuning
from humming_sm90.wide_tuning import WideTuning

pytestmark = pytest.mark.compile

INDEXED, SORTED = GemmKind.INDEXED, GemmKind.GROUPED_CONTIGUOUS
OAI = Gating.of("swiglu_oai").of_results()
SWIGLU = Gating.of("swiglu").of_results()


def mma(teams: int, ctas: int, *, folds: bool = True) -> MmaTuning:
    return MmaTuning(warps_k=teams, tokens=8, stage_blocks=1, stages=4, ctas=ctas, folds=folds)


#: Weights, kind, tuning, function.
KERNELS: tuple[tuple[str, GemmKind, TuningConfig, ResultFunction], ...] = (
    ("int4-g128", INDEXED, mma(2, 8), SWIGLU),
    ("int4-g128", INDEXED, mma(4, 4), SWIGLU),
    ("mxfp4", INDEXED, mma(2, 8), OAI),
    ("mxfp4", INDEXED, mma(4, 4, folds=False), OAI),
    ("mxfp4", SORTED, StreamTuning(groups_k=2, tokens=32, stages=3, folds=True), OAI),
    ("int4-g128", SORTED, WideTuning(tokens=48, fits=True, ctas=2, folds=True), SWIGLU),
    ("int4-g128", INDEXED, WideTuning(tokens=160, fits=True, folds=True), SWIGLU),
    ("mxfp4", SORTED, WideTuning(tokens=288, fits=True, stages=3, folds=True), OAI),
)


@cache
def usage(index: int, function: bool) -> Usage:
    scheme, kind, tuning, applied = KERNELS[index]
    case = Case(source=H100, weight=scheme, dtype="bf16", n=1536, k=2048, kind=kind, bias=True)
    layer = config_of(case)
    if function:
        layer = replace(layer, function=applied)
    spec = Sm90Backend(case.profile).kernel(layer, case.compute, tuning)
    (binary,) = compile_many([workshop().program(spec, "cubin")])
    (found,) = binary.usage
    return found


@pytest.mark.parametrize("index", range(len(KERNELS)))
def test_a_function_spills_nothing(index: int) -> None:
    found = usage(index, True)
    assert (found.stack, found.spill_stores, found.spill_loads) == (0, 0, 0)


@pytest.mark.parametrize("index", [1, 3])
def test_a_function_takes_few_registers(index: int) -> None:
    assert usage(index, True).registers <= usage(index, False).registers + 8
