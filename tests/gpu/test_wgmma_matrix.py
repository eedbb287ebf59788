"""Hopper's backend on a Hopper: every combination of numbers and kind of GEMM, against float64.

Compiling takes the time, so this file is run in many processes (`nox -s gpu` does), and a case has
one kernel for all numbers of rows: one of those that a pipeline proposes, by turns. Dense layers go
through all combinations; experts through each combination once, with one kind of GEMM by turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from gemm_data import call_of, weight_of
from gemm_matrix import Case, combinations
from gemm_oracle import LIMITS, limit
from gemm_runs import DEVICE, ON_A_GPU, REHEARSAL, check_calls
from wgmma_layers import config_of

import humming
from humming.backend import KernelBackend, Problem
from humming.configs import GemmKind, TuningConfig
from humming.formats.tensors import TORCH_FLOATS
from humming_sm90.backend import Sm90Backend
from humming_sm90.families import SameWidth

HOPPER = REHEARSAL or (torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0))
pytestmark = [*ON_A_GPU, pytest.mark.skipif(not HOPPER, reason="no CUDA device of capability 9.0")]

SOURCE = "nvidia-h200"
ROWS = (1, 7, 16, 33, 64, 129, 257)
#: Number of rows that tunings are proposed for.
PROPOSED_ROWS = 64
EXPERTS = (GemmKind.INDEXED, GemmKind.GROUPED_CONTIGUOUS, GemmKind.GROUPED_MASKED)
#: Tensor cores of a Hopper add products of 8-bit floats with some 14 bits: errors of results in f32
#: that keep their digits are 1e-4 to 4e-4 (H200, 2026-11-30), though sums are promoted every 128.
SMALL_FLOAT_SUMS = 1e-3
#: Pipelines that decode weights. That of mma.sync has test_mma_matrix.py.
NARROW = tuple(name for name in Sm90Backend.tunings if name not in ("wgmma", "mma"))

#: Where scales of weights and activations of one width come from.
_PAIRS = (("s8", "s8"), *((w, a) for w in ("e4m3fn", "e5m2") for a in ("e4m3fn", "e5m2")))
_WEIGHT_SCALES = (
    "tensor-f32", "channel-f16", "g128-bf16", "b128x128-f32", "b64x128-f32", "g128-f16-channel",
)  # fmt: skip
_ACTIVATION_SCALES = ("tensor-f32", "token-f32", "g128-f32")


@dataclass(frozen=True)
class Trial:
    """A case, and the pipeline that multiplies it."""

    case: Case
    pipeline: str

    def __str__(self) -> str:
        return f"{self.pipeline}-{self.case}"


def _same_width() -> Iterator[Trial]:
    place = 0
    for weight, activation in _PAIRS:
        for scales in _WEIGHT_SCALES:
            for token_scales in _ACTIVATION_SCALES:
                place += 1
                kinds = (GemmKind.DENSE, EXPERTS[(place + place // 3) % 3])
                for kind in kinds if token_scales != "tensor-f32" else kinds[:1]:
                    case = Case(
                        source=SOURCE,
                        weight=f"{weight}-{scales}",
                        activation=f"{activation}-{token_scales}",
                        dtype=tuple(LIMITS)[place % 3],
                        n=(200, 77, 264, 520)[place % 4],
                        k=(1104, 1312, 2248, 1111, 130)[place % 5],
                        kind=kind,
                        bias=place % 2 == 0,
                    )
                    yield Trial(case, _pipeline_of(case, place))


def _pipeline_of(case: Case, place: int) -> str:
    """What multiplies operands of one width: by turns, where there is a choice."""
    return "wgmma" if SameWidth.has(config_of(case)) else NARROW[place % len(NARROW)]


def _narrow() -> Iterator[Trial]:
    plain = [case for case in combinations(SOURCE) if not case.accumulate]
    for number, pipeline in enumerate(NARROW):
        for place, case in enumerate(plain):
            # Experts in one of the pipelines, by turns.
            kinds = (GemmKind.DENSE, EXPERTS[place % 3])[: 1 + (place + number) % 2]
            for kind in kinds:
                trial = Trial(replace(case, kind=kind), pipeline)
                if trial.case.why_not() is None and _has_kernel(trial):
                    yield trial


def _has_kernel(trial: Trial) -> bool:
    """Whether the pipeline multiplies such layers. A cut may give columns an order."""
    case = trial.case
    ordered = replace(case, act_order=True, cut="") if case.cut else case
    return bool(proposed(Sm90Backend(case.profile), ordered, trial.pipeline))


def proposed(backend: KernelBackend, case: Case, pipeline: str) -> list[TuningConfig]:
    """The tunings of one pipeline for the layer of a case."""
    found = backend.candidates(config_of(case), case.compute, Problem(m=PROPOSED_ROWS))
    return [tuning for tuning in found if isinstance(tuning, Sm90Backend.tunings[pipeline])]


@cache
def trials() -> tuple[Trial, ...]:
    """All of them, in a stable order."""
    return tuple(dict.fromkeys([*_same_width(), *_narrow()]))


@pytest.mark.parametrize("trial", trials(), ids=str)
def test_every_combination_equals_float64(trial: Trial) -> None:
    case = trial.case
    weight = weight_of(case, DEVICE)
    calls: dict[object, tuple[torch.Tensor, dict[str, torch.Tensor]]] = {}
    for m in ROWS:
        call = call_of(case, weight, m, DEVICE)
        calls[f"M={m}"] = call.x, call.routing
    activation, tuning = case.activation or None, None
    if REHEARSAL:
        layer = humming.QuantLinear(weight, activation=activation, backend="reference")
    else:
        layer = humming.QuantLinear(weight, activation=activation, backend="sm90")
        tuning = some_tuning(trial, layer)
        layer = humming.QuantLinear(weight, activation=activation, backend="sm90", tuning=tuning)
    allowed = limit(case.dtype)
    if case.activations.format.name in ("e4m3fn", "e5m2"):
        allowed = max(allowed, SMALL_FLOAT_SUMS)
    check_calls(layer, weight, case.activations, calls, allowed)


def some_tuning(trial: Trial, layer: humming.QuantLinear) -> TuningConfig:
    """One of those that the pipeline proposes: by turns, as the case's name says."""
    case = trial.case
    prepared = layer.prepare(TORCH_FLOATS[case.dtype], case.kind)
    backend = prepared.backend
    assert isinstance(backend, KernelBackend)
    fitted = prepared.kernels.planner.layer if prepared.kernels else prepared.layer
    found = backend.candidates(fitted, prepared.compute, Problem(m=PROPOSED_ROWS))
    own = [tuning for tuning in found if isinstance(tuning, backend.tunings[trial.pipeline])]
    assert own, f"{trial.pipeline} proposes nothing for {fitted}"
    return own[case.seed % len(own)]


def test_every_pipeline_and_kind_is_there() -> None:
    found = {(trial.pipeline, trial.case.kind) for trial in trials()}
    assert found >= {("stream", kind) for kind in GemmKind}
    assert found >= {("wgmma", kind) for kind in GemmKind}
    assert {trial.pipeline for trial in trials()} == {"wgmma", *NARROW}
