"""The mma.sync kernels in the simulator: every component of them, on each generation, in any order.

Sizes are small, and none is a multiple of a tile. What the simulator calls a fault (a race, memory
that nobody wrote, an access outside of a buffer) fails a test as a wrong number does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from gemm_data import call_of, weight_of
from gemm_matrix import Case
from gemm_oracle import limit
from gemm_runs import check_calls, layer_of
from wgmma_layers import config_of, in_order_of

from humming.configs import GemmKind
from humming.engine.workshop import workshop
from humming.formats.scheme import Zero
from humming.formats.table import SCALE_FORMATS
from humming.jit import compile_program
from humming_sm75_sm89.backend import Sm75Sm89Backend
from humming_sm75_sm89.tuning import MmaTuning

pytestmark = pytest.mark.compile

T4, A100, L40S = "nvidia-t4", "nvidia-a100", "nvidia-l40s"
GENERATIONS = (T4, A100, L40S)
#: Beside FP8 these two run the same PTX, as a test below says: what is tried there goes by turns.
ALIKE = (A100, L40S)
KINDS = tuple(GemmKind)
#: By turns: one row, part of a tile, several tiles.
ROWS = (1, 13, 40)
SHAPES = ((72, 200), (136, 328), (100, 392), (77, 261))


@dataclass(frozen=True)
class Trial:
    """A case, and the tuning to use; None is what the backend chooses."""

    case: Case
    tuning: MmaTuning | None = None

    @property
    def m(self) -> int:
        """Rows of activations; for a shape of warps more than one."""
        return _turn(ROWS[1:] if self.tuning else ROWS, self.case.seed)

    def __str__(self) -> str:
        tuning = f"-{self.tuning}".replace(" ", "_").replace(",", "") if self.tuning else ""
        return f"{self.case}{tuning}"


#: What each weight format takes to decode, apply scales and zero points.
WEIGHTS = (
    "u4-g128-f16", "u4+z-g64-f16", "u4+zf-g32-f16", "s8-channel-f32", "u3-g32-e8m0",
    "u1-channel-f16", "u7+z-g128-f32", "e2m1-g32-e8m0", "e3m2-g32-e8m0", "e2m3-g64-bf16",
    "e4m3fn-b128x128-f32",
    "e5m2-tensor-f32", "e0m3-channel-bf16", "e2m1-g16-e4m3fn-tensor", "u6-g16-f32", "u2+zf-g16-f32",
    "s2-tensor-f32", "u8+z-g32-f16", "u5-g64-e5m2", "s6-g128-e5m3", "e4m3fnuz-channel-f32",
    "u8-channel-bf16", "u4-g64-f16-channel", "s4+zf-channel-f32", "e3m4-g32-f32", "u4-b32x64-f32",
)  # fmt: skip

#: (weight, activations, the first generation that has them)
PRODUCTS = (
    ("s8-channel-f32", "s8-token-f32", T4),
    ("u4-g128-bf16", "s8-token-f32", T4),
    ("u4-g128-bf16", "s8-g128-f32", A100),
    ("u4+z-g64-f16", "s8-g32-f32", A100),
    ("u7+z-channel-f32", "s8-tensor-f32", T4),
    ("e2m1-g32-e8m0", "s8-token-f32", T4),
    ("s3-tensor-f32", "s8-g64-bf16", A100),
    ("u4-b128x128-f32", "s8-g256-f32", A100),
    ("s4-channel-f32", "s4-token-f32", T4),
    ("u4-g128-f16", "s4-token-f32", A100),
    ("u3+z-g64-f16", "s4-g128-f32", A100),
    ("e4m3fn-b128x128-f32", "e4m3fn-g128-f32", L40S),
    ("e4m3fn-channel-f32", "e4m3fn-token-f32", L40S),
    ("u4-g128-bf16", "e4m3fn-token-f32", L40S),
    ("u4+z-g64-bf16", "e4m3fn-g64-f32", L40S),
    ("e2m1-g32-e8m0", "e4m3fn-g32-e8m0", L40S),
    ("e3m2-g64-bf16", "e4m3fn-token-f32", L40S),
    ("e5m2-channel-f32", "e5m2-token-f32", L40S),
    ("e4m3fn-g128-f32", "e5m2-g128-f32", L40S),
    ("u4-g32-e8m0", "e5m2-tensor-f32", L40S),
)

#: Shapes of warps, teams and rings, beside those that the backend chooses for such sizes.
TUNINGS = (
    MmaTuning(warps_k=1, stages=2),
    MmaTuning(warps_n=2, warps_m=1, warps_k=1, tokens=8, stages=2),
    MmaTuning(warps_n=1, warps_m=2, warps_k=2, tokens=16, stages=2),
    MmaTuning(warps_n=2, warps_m=2, warps_k=1, tokens=32, stages=2),
    MmaTuning(warps_n=1, warps_m=1, warps_k=1, tokens=64, stages=2),
    MmaTuning(warps_k=2, splits=2, stages=2),
    MmaTuning(warps_n=2, warps_k=1, tokens=16, min_run=1, stages=2),
)

#: Codes of 3 bits, which have an order of their own for 16-bit operands, and of fewer, of which
#: teams request whole units, 2 to 4 of them: (weight, dtype, tuning).
FEW_BITS = (
    ("u3-g128-bf16", "bf16", MmaTuning(warps_k=2, stages=2, folds=True)),
    ("u3+z-g64-bf16", "bf16", MmaTuning(warps_k=1, stages=2, folds=True)),
    ("u3+z-g64-f16", "f16", None),
    ("s3+zf-g32-f16", "bf16", None),
    ("u2-g128-bf16", "bf16", MmaTuning(warps_k=1, stages=2, stage_blocks=1, folds=True)),
    ("u2+z-g64-f16", "f16", MmaTuning(warps_n=2, warps_k=1, stages=3)),
    ("u1-g32-f16", "f16", MmaTuning(warps_k=1, stages=2, stage_blocks=1)),
    ("s2-channel-f32", "bf16", MmaTuning(warps_m=2, warps_k=1, tokens=16, stages=2)),
)

#: Fields of a Case that are tried on one generation each, by turns.
OPTIONS: Sequence[Mapping[str, Any]] = (
    {"act_order": True},
    {"act_order": True, "cut": "k1of3", "k": 384, "bias": True},
    {"act_order": True, "activation": "s8-token-f32"},
    {"cut": "k1of3", "k": 576, "weight": "u4+z-g128-f16"},
    {"cut": "n1of4", "n": 320, "weight": "u4-b128x128-f16", "bias": True},
    {"accumulate": "f16", "dtype": "f16"},
    {"accumulate": "f16", "dtype": "f16", "weight": "s8-channel-f16"},
    {"smooth": True, "activation": "s8-token-f32"},
    {"activation": "s8-tensor-f32-static"},
)


def _turn(choices: Sequence[Any], place: int) -> Any:
    return choices[place % len(choices)]


def _case(source: str, weight: str, place: int, **fields: Any) -> Case:
    n, k = _turn(SHAPES, place)
    dtype = "f16" if source == T4 or place // 3 % 2 == 0 else "bf16"
    values = {"n": n, "k": k, "dtype": dtype, "bias": place % 2 == 1, **fields}
    return Case(source=source, weight=weight, **values)


def _kind(place: int) -> GemmKind:
    """By turns, but each shape meets each kind."""
    return _turn(KINDS, place + place // 4)


def _trials() -> Iterator[Trial]:
    for place, weight in enumerate(WEIGHTS):
        yield Trial(_case(_turn(GENERATIONS, place), weight, place, kind=_kind(place)))
    for place, (weight, activation, first) in enumerate(PRODUCTS):
        source = _turn(GENERATIONS[GENERATIONS.index(first) :], place % 2 * place)
        # One dynamic scale over all experts is refused.
        kind = KINDS[0] if "-tensor-" in activation else _kind(place + 1)
        yield Trial(_case(source, weight, place, activation=activation, kind=kind))
    for place, source in enumerate(GENERATIONS):
        for kind in KINDS:
            yield Trial(_case(source, "u4-g64-f16", place, kind=kind, activation="s8-token-f32"))
    for turn, tuning in enumerate(TUNINGS):
        pair = (T4, _turn(ALIKE, turn // 2))
        floats, integers = pair if turn % 2 else pair[::-1]
        yield Trial(_case(floats, "u4-g128-f16", turn), tuning)
        yield Trial(_case(integers, "s8-channel-f32", turn, activation="s8-g64-f32"), tuning)
    for place, tuning in enumerate(TUNINGS[1:5]):
        folded, source = replace(tuning, folds=True), _turn(ALIKE, place // 2)
        weight = _turn(("u4+z-g64-bf16", "e2m1-g32-e8m0"), place)
        yield Trial(_case(source, weight, place, dtype="bf16"), folded)
    for place, (weight, dtype, few) in enumerate(FEW_BITS):
        yield Trial(_case(_turn(ALIKE, place), weight, place, dtype=dtype), few)
    for place, (kind, tuning) in enumerate(zip(KINDS[1:], TUNINGS[-3:], strict=True)):
        yield Trial(_case(_turn(GENERATIONS, place), "u4-g32-f16", place, kind=kind), tuning)
    for number, fields in enumerate(OPTIONS):
        # Sums of another format are another instruction on a T4, anything else is code of one.
        two = (T4, _turn(ALIKE, number)) if "accumulate" in fields else ()
        for source in two or (_turn(GENERATIONS, number),):
            yield Trial(_case(source, **{"weight": "u4-g64-f16", "place": number, **fields}))


def _valid() -> list[Trial]:
    return [trial for trial in dict.fromkeys(_trials()) if trial.case.why_not() is None]


TRIALS = _valid()


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_every_component_equals_float64_in_any_order(trial: Trial) -> None:
    case, m = trial.case, trial.m
    weight = weight_of(case, "cpu")
    layer = layer_of(case, weight, f"sim:{case.source}", trial.tuning)
    call = call_of(case, weight, m, "cpu")
    most = limit(case.dtype, case.accumulate)
    with in_order_of(case.seed % 1000):
        check_calls(layer, weight, case.activations, {f"M={m}": (call.x, call.routing)}, most)


@pytest.mark.parametrize("activation", ["", "s8-token-f32"])
def test_two_generations_run_the_same_ptx(activation: str) -> None:
    """But for what they are called; then what the simulator says of one holds for the other."""
    texts = set()
    for source in ALIKE:
        case = Case(source=source, weight="u4-g64-f16", activation=activation, act_order=True)
        backend = Sm75Sm89Backend(case.profile)
        spec = backend.kernel(config_of(case), case.compute, TUNINGS[-1])
        ptx = compile_program(workshop().program(spec, "ptx")).data.decode()
        texts.add(re.sub(r"\.target sm_\d+|Li8[09]E", "", ptx))
    assert len(texts) == 1


def test_the_table_has_every_component() -> None:
    """What the trials are for; a row that validity refuses must not take a component away."""
    cases = [trial.case for trial in TRIALS]
    of_generation = {source: [c for c in cases if c.source == source] for source in GENERATIONS}
    for source, own in of_generation.items():
        listed = set(own[0].profile.activations)
        assert {c.activations.format.name for c in own} == listed, source
        assert {c.kind for c in own} == set(GemmKind)
        assert any(c.act_order for c in own)
        assert any(c.accumulate for c in own)
    met = {(c.source, c.kind, c.activations.format.bits < 16) for c in cases}
    assert len(met) == len(GENERATIONS) * len(KINDS) * 2
    assert {((c.n, c.k), c.kind) for c in cases} >= {(s, kind) for s in SHAPES for kind in KINDS}
    assert {(t.case.kind, t.m) for t in TRIALS} == {(k, m) for k in KINDS for m in ROWS}
    assert {(c.weight, c.activation) for c in cases} >= {
        *((weight, "") for weight in WEIGHTS),
        *((weight, activation) for weight, activation, _ in PRODUCTS),
    }
    assert {c.scheme.zero for c in cases} == set(Zero)
    assert {c.scheme.scale.name for c in cases} == set(SCALE_FORMATS)
    assert {c.scheme.code.bits for c in cases} == set(range(1, 9))
