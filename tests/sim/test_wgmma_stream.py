"""Streaming kernels in the simulator: narrow weights by wgmma with registers as its A operand.

Sizes are small, and none is a multiple of a tile. What the simulator calls a fault (a race, memory
that nobody wrote, an access outside of a buffer) fails a test as a wrong number does. The device
has two SMs, so that CTAs go from tile to tile where a grid has no more than the device holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from gemm_data import call_of, weight_of
from gemm_matrix import Case
from gemm_oracle import limit
from gemm_runs import check_calls
from wgmma_layers import H100, in_order_of, layer_of

from humming.configs import GemmKind
from humming.formats.scheme import Zero
from humming_sm90.stream_tuning import StreamTuning

pytestmark = pytest.mark.compile

KINDS = tuple(GemmKind)
#: n, k: the last tile is never whole, nor the last unit of K; 77 and 261 are odd.
SHAPES = ((72, 200), (136, 712), (100, 392), (77, 261))

#: One warpgroup a team and two, one team and several, each N of wgmma, two stages and many.
SMALL = StreamTuning(groups_n=1, groups_k=2, tokens=16, stages=3)
CUTS = (
    SMALL,
    StreamTuning(groups_n=1, groups_k=1, tokens=32, stages=2),
    StreamTuning(groups_n=2, groups_k=2, tokens=64, stages=2),
    StreamTuning(groups_n=2, groups_k=1, tokens=128, stages=4),
    StreamTuning(groups_n=1, groups_k=4, tokens=16, stages=4),
    StreamTuning(groups_n=1, groups_k=3, tokens=32, stages=2, ctas=1, raster=1),
)

#: Weights and the format of activations: each width of codes, and each place where scales are.
WEIGHTS = (
    ("u4-g128-bf16", "bf16"), ("u4+z-g64-f16", "f16"), ("u4+zf-g32-f16", "f16"),
    ("e2m1-g32-e8m0", "f16"), ("e2m1-g16-e4m3fn-tensor", "bf16"), ("u3-g32-e8m0", "bf16"),
    ("u5-g64-f16", "f16"), ("s8-channel-f32", "bf16"), ("u8+z-g32-f16", "bf16"),
    ("e4m3fn-b128x128-f32", "bf16"), ("e4m3fn-channel-f32", "f16"), ("e5m2-tensor-f32", "f16"),
    ("u2+z-g128-bf16", "bf16"), ("u1-channel-f16", "f16"), ("u6-g16-f32", "bf16"),
    ("u7+z-g256-f32", "f16"), ("s4+zf-g64-bf16", "bf16"), ("u4-g32-f16", "bf16"),
)  # fmt: skip

#: Weights and activations of 8 bits: codes that are operands themselves, and others.
QUANTIZED = (
    ("e4m3fn-channel-f32", "e4m3fn-token-f32"), ("s8-channel-f32", "s8-token-f32"),
    ("e5m2-g64-f32", "e4m3fn-token-f32"), ("u4-g128-bf16", "s8-token-f32"),
    ("s4-channel-f32", "e4m3fn-token-f32"), ("e2m1-g32-e8m0", "e4m3fn-token-f32"),
    ("u6+z-g64-f16", "s8-token-f32"), ("u2-g32-bf16", "e5m2-token-f32"),
)  # fmt: skip

#: What bf16 operands take up.
FOLDED = (
    "u4-g128-bf16", "u4+z-g64-bf16", "e2m1-g32-e8m0", "e2m1-g16-e4m3fn-tensor", "u3-g32-bf16",
    "u8-g64-bf16",
)  # fmt: skip

#: Fields of a case beside its weight.
OPTIONS: tuple[dict[str, Any], ...] = (
    {"act_order": True},
    {"act_order": True, "cut": "k1of3", "k": 384, "bias": True},
    {"cut": "k1of3", "k": 576, "weight": "u4+z-g128-f16"},
    {"smooth": True},
)


@dataclass(frozen=True)
class Trial:
    """A case, how many tokens it has, and the tuning to use."""

    case: Case
    m: int
    tuning: StreamTuning

    def __str__(self) -> str:
        tuning = str(self.tuning).replace(" ", "_").replace(",", "")
        return f"{self.case}-m{self.m}-{tuning}"


def _turn(choices: tuple[Any, ...], place: int) -> Any:
    return choices[place % len(choices)]


def _trial(place: int, weight: str, tuning: StreamTuning, **fields: Any) -> Trial:
    n, k = _turn(SHAPES, place)
    values = {"n": n, "k": k, "dtype": "bf16", "bias": place % 2 == 1, "weight": weight, **fields}
    m = tuning.tokens + 1 + place if place % 3 else max(1, place % tuning.tokens)
    return Trial(Case(source=H100, **values), m, tuning)


def _trials() -> Iterator[Trial]:
    for place, (weight, dtype) in enumerate(WEIGHTS):
        kind = KINDS[place % 4]
        yield _trial(place, weight, _turn(CUTS, place), dtype=dtype, kind=kind)
    for place, (weight, activation) in enumerate(QUANTIZED):
        # Beside weights, so that each kind meets cuts with even and with odd numbers.
        tuning, kind = _turn(CUTS, place), KINDS[(place + 1) % 4]
        yield _trial(place, weight, tuning, activation=activation, kind=kind)
    for place, weight in enumerate(FOLDED):
        tuning = replace(_turn(CUTS, place + 1), folds=True)
        yield _trial(place, weight, tuning, kind=KINDS[(place + 1) % 4])
    for place, kind in enumerate((KINDS[1], KINDS[0])):
        tuning, activation = replace(_turn(CUTS, place), folds=True), "e4m3fn-token-f32"
        yield _trial(place, "e2m1-g32-e8m0", tuning, activation=activation, kind=kind)
    for place, fields in enumerate(OPTIONS):
        tuning = replace(_turn(CUTS, place), stages=2)
        yield _trial(place, **{"weight": "u4-g64-f16", "tuning": tuning, "dtype": "f16", **fields})
    # More units than all stages of all teams, and more blocks than a window of the layout.
    yield Trial(Case(source=H100, weight="u4-g128-bf16", n=72, k=2248), 5, CUTS[4])
    parts = ({"splits": 2}, {"splits": 5, "groups_k": 1}, {"min_run": 1, "folds": True})
    for place, part in enumerate(parts):
        yield _trial(place + 1, "u4-g128-bf16", replace(SMALL, **part), k=1312)


TRIALS = list(dict.fromkeys(_trials()))


def check(trial: Trial, seed: int | None) -> torch.Tensor:
    """Run a trial and compare with float64."""
    case = trial.case
    weight = weight_of(case, "cpu")
    layer = layer_of(case, weight, trial.tuning)
    call = call_of(case, weight, trial.m, "cpu")
    calls: dict[object, tuple[torch.Tensor, dict[str, torch.Tensor]]] = {
        trial.m: (call.x, call.routing)
    }
    with in_order_of(seed):
        return check_calls(layer, weight, case.activations, calls, limit(case.dtype))[trial.m]


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_every_component_equals_float64_in_any_order(trial: Trial) -> None:
    assert trial.case.why_not() is None
    check(trial, trial.case.seed % 1000 if trial.m % 8 == 1 else None)


#: Sums of groups and folded scales, gathered and not.
SHUFFLED = [trial for trial in TRIALS if trial.case.k < 400 and trial.tuning.groups_k > 1][::5]


@pytest.mark.parametrize("trial", SHUFFLED, ids=str)
def test_results_are_the_same_bits_in_any_order_of_events(trial: Trial) -> None:
    assert torch.equal(check(trial, None), check(trial, trial.case.seed % 1000))


def test_the_table_has_every_component() -> None:
    """What the trials are for."""
    cases, tunings = [t.case for t in TRIALS], [t.tuning for t in TRIALS]
    assert {c.kind for c in cases} == set(KINDS)
    assert {c.scheme.zero for c in cases} == set(Zero)
    assert {c.scheme.code.bits for c in cases} == set(range(1, 9))
    assert {t.tokens for t in tunings} == {16, 32, 64, 128}
    assert {t.groups_n for t in tunings} == {1, 2}
    assert {t.groups_k for t in tunings} == {1, 2, 3, 4}
    assert any(t.splits > 1 for t in tunings)
    assert any(t.min_run for t in tunings)
    assert {t.m > t.tuning.tokens for t in TRIALS} == {False, True}


def test_what_the_backend_chooses_runs() -> None:
    case = _trial(1, "u4-g128-bf16", SMALL).case
    weight = weight_of(case, "cpu")
    call = call_of(case, weight, 20, "cpu")
    check_calls(layer_of(case, weight), weight, case.activations, {20: (call.x, call.routing)})
