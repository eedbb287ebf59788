"""The wide kernels in the simulator: every component of them, in any order of events.

Sizes are small, and none is a multiple of a tile. What the simulator calls a fault (a race, memory
that nobody wrote, a barrier left waiting) fails a test as a wrong number does. The device has two
SMs, so that CTAs go from tile to tile and the ring goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from gemm_data import call_of, weight_of
from gemm_matrix import Case
from gemm_oracle import limit
from gemm_runs import check_calls
from wgmma_layers import H100, in_order_of
from wide_runs import wide_layer

from humming.configs import GemmKind
from humming_sm90.wide_tuning import WideTuning

pytestmark = pytest.mark.compile

DENSE, CONTIGUOUS, MASKED = (
    GemmKind.DENSE,
    GemmKind.GROUPED_CONTIGUOUS,
    GemmKind.GROUPED_MASKED,
)
KINDS = (DENSE, CONTIGUOUS, MASKED)
#: n, k, m: the last row of tiles and the last step are never whole. In the last tile of 300 and 77
#: both panels are there, in that of 180 and 301 the second is not. 301 and 77 leave results whose
#: rows don't begin at multiples of 16 bytes.
SIZES = ((300, 392, 70), (77, 261, 130), (180, 130, 13), (301, 328, 40))

#: Weights, activations, and whether scales are folded: each way to decode, each width
#: of planes, each place where scales and zero points go.
PRODUCTS = (
    ("u4-g128-bf16", "bf16", True),
    ("u4-g128-bf16", "bf16", False),
    ("u4+z-g64-bf16", "bf16", True),
    ("u4-g128-f16", "f16", False),
    ("u4+z-g64-f16", "f16", False),
    ("e2m1-g32-e8m0", "bf16", True),
    ("e2m1-g32-e8m0", "f16", False),
    ("e2m1-g16-e4m3fn-tensor", "bf16", True),
    ("e2m1-g16-e4m3fn-tensor", "f16", False),
    ("u3-g64-f16", "f16", False),
    ("u5+z-channel-f16", "bf16", False),
    ("s6-channel-f32", "f16", False),
    ("u7-g32-bf16", "bf16", True),
    ("u2-g32-f32", "bf16", False),
    ("u1-g128-e8m0", "bf16", True),
    ("s8-channel-f32", "bf16", False),
    ("u8+z-g32-f16", "f16", False),
    ("e4m3fn-channel-f32", "bf16", False),
    ("e4m3fn-b128x128-bf16", "bf16", True),
    ("e3m2-tensor-f32", "f16", False),
    ("u4+zf-g32-f16", "f16", False),
    ("u4+zf-channel-bf16", "bf16", False),
    ("e5m2-g256-f32", "bf16", False),
    ("e4m3fn-channel-f32", "e4m3fn-token-f32", False),
    ("s8-channel-f32", "s8-token-f32", False),
    ("e5m2-tensor-f32", "e4m3fn-token-f32", False),
    ("u4-g128-bf16", "s8-token-f32", False),
    ("s4-channel-f32", "e4m3fn-tensor-f32", False),
    ("e2m1-g32-e8m0", "e4m3fn-token-f32", False),
    ("e2m1-g32-e8m0", "e4m3fn-token-f32", True),
    ("e2m1-g32-e4m3fn-tensor", "s8-token-f32", False),
    ("u6+z-g64-f16", "s8-token-f32", False),
    ("u3-g128-bf16", "e5m2-token-f32", False),
    ("u4+zf-g64-f16", "s8-token-f32", False),
    ("e4m3fn-b128x128-f32", "e5m2-token-f32", False),
)


#: Tokens, stages, CTAs of an SM, parts of K, tiles in a band.
TILES = (
    WideTuning(tokens=64, stages=3, raster=1),
    WideTuning(tokens=128, stages=4),
    WideTuning(tokens=256, stages=3),
    WideTuning(tokens=128, stages=3, raster=1),
    WideTuning(tokens=64, stages=3, splits=2),
    WideTuning(tokens=16, stages=3, ctas=2),
    WideTuning(tokens=32, fits=True, stages=4, ctas=2),
)


@dataclass(frozen=True)
class Trial:
    """A case, how many rows of activations it has, and the tuning to use."""

    case: Case
    m: int
    tuning: WideTuning

    def __str__(self) -> str:
        tuning = f"t{self.tuning.tokens}s{self.tuning.splits}"
        return f"{self.case}-m{self.m}-{tuning}" + "-folded" * self.tuning.folds


def _trial(product: int, place: int, kind: GemmKind, tuning: WideTuning) -> Trial:
    weight, x, folds = PRODUCTS[product]
    n, k, m = SIZES[place % len(SIZES)]
    numbers = {"dtype": x} if "-" not in x else {"activation": x, "dtype": "bf16"}
    case = Case(source=H100, weight=weight, n=n, k=k, kind=kind, bias=place % 2 == 0, **numbers)
    return Trial(case, m, replace(tuning, folds=folds))


def _trials() -> Iterator[Trial]:
    for place in range(len(PRODUCTS)):
        kind = KINDS[place % 4] if place % 4 < len(KINDS) else DENSE
        yield _trial(place, place, kind, TILES[place % len(TILES)])


TRIALS = list(dict.fromkeys(_trials()))


def test_each_kind_meets_each_tile() -> None:
    met = {(trial.case.kind, replace(trial.tuning, folds=False)) for trial in TRIALS}
    assert met >= {(kind, tile) for kind in KINDS for tile in TILES}


def check(trial: Trial, seed: int | None) -> torch.Tensor:
    """Run a trial and compare with float64."""
    case = trial.case
    weight = weight_of(case, "cpu")
    layer = wide_layer(case, weight, trial.tuning)
    call = call_of(case, weight, trial.m, "cpu")
    calls: dict[object, tuple[torch.Tensor, dict[str, torch.Tensor]]] = {
        trial.m: (call.x, call.routing)
    }
    with in_order_of(seed):
        results = check_calls(layer, weight, case.activations, calls, limit(case.dtype))
    return results[trial.m]


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_every_component_equals_float64(trial: Trial) -> None:
    assert trial.case.why_not() is None
    check(trial, None)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_results_are_the_same_bits_in_any_order_of_events(tile: WideTuning) -> None:
    place = TILES.index(tile)
    trial = _trial((0, 3, 7, 2, 1, 29, 26)[place], place, KINDS[place % 3], tile)
    together = check(trial, None)
    shuffled = check(trial, trial.case.seed % 1000)
    assert torch.equal(together, shuffled)


@pytest.mark.parametrize("product", [0, 3], ids=lambda product: PRODUCTS[product][0])
def test_a_row_has_the_same_bits_whatever_the_tile_and_the_other_rows(product: int) -> None:
    trial = _trial(product, 2, DENSE, TILES[0])
    weight = weight_of(trial.case, "cpu")
    x = call_of(trial.case, weight, 70, "cpu").x
    tiles = [replace(tile, folds=trial.tuning.folds) for tile in TILES if tile.splits == 1]
    results = [wide_layer(trial.case, weight, tile)(x) for tile in tiles]
    part = wide_layer(trial.case, weight, tiles[0])(x[50:69])
    for result in results[1:]:
        assert torch.equal(results[0], result)
    assert torch.equal(results[0][50:69], part)


def test_several_windows_of_blocks_and_tiles_of_tokens() -> None:
    case = Case(source=H100, weight="u4-g128-bf16", n=136, k=2120, bias=True)
    check(Trial(case, 258, replace(TILES[2], folds=True)), None)
    check(Trial(case, 20, replace(TILES[0], folds=True, splits=5)), None)


def test_more_parts_than_there_are_steps_and_counters_that_start_again() -> None:
    case = Case(source=H100, weight="u4-g128-bf16", n=200, k=200)
    weight = weight_of(case, "cpu")
    layer = wide_layer(case, weight, WideTuning(tokens=64, stages=3, splits=8))
    x = call_of(case, weight, 70, "cpu").x
    calls: dict[object, tuple[torch.Tensor, dict[str, torch.Tensor]]] = {
        name: (x, {}) for name in ("first", "second")
    }
    results = check_calls(layer, weight, case.activations, calls)
    assert torch.equal(results["first"], results["second"])


def test_activations_of_three_dimensions() -> None:
    case = Case(source=H100, weight="s8-channel-f32", n=64, k=128)
    weight = weight_of(case, "cpu")
    layer = wide_layer(case, weight, TILES[0])
    x = call_of(case, weight, 70, "cpu").x
    assert torch.equal(layer(x.view(2, 35, 128)).view(70, 64), layer(x))


def test_what_the_backend_chooses_runs() -> None:
    for product in (0, 3):
        trial = _trial(product, 1, DENSE, TILES[0])
        weight = weight_of(trial.case, "cpu")
        call = call_of(trial.case, weight, trial.m, "cpu")
        layer = wide_layer(trial.case, weight, None)
        check_calls(layer, weight, trial.case.activations, {trial.m: (call.x, call.routing)})


def test_results_in_f32() -> None:
    """Activations in bf16 by request, results as wide as what they were made of."""
    case = Case(source=H100, weight="u4-g128-bf16", activation="bf16", dtype="f32", n=77, k=261)
    for tuning in (TILES[0], TILES[4]):
        check(Trial(case, 70, tuning), None)


def test_a_row_that_is_not_a_number_spoils_no_other() -> None:
    case = Case(source=H100, weight="u4-g128-bf16", n=77, k=130)
    weight = weight_of(case, "cpu")
    layer = wide_layer(case, weight, replace(TILES[1], folds=True))
    x = call_of(case, weight, 9, "cpu").x
    spoiled = x.clone()
    spoiled[4, 129] = torch.nan
    result, expected = layer(spoiled), layer(x)
    assert bool(result[4].isnan().all())
    others = [row for row in range(9) if row != 4]
    assert torch.equal(result[others], expected[others])


@pytest.mark.parametrize(
    ("scheme", "codes"),
    [("e2m1-g32-e8m0", (63, 127, 151)), ("e2m1-g16-e4m3fn", (0x01, 0x38, 0x7E))],
)
def test_scales_at_the_ends_of_their_format(scheme: str, codes: tuple[int, ...]) -> None:
    """Folded: smallest and largest ones are exact. Negative ones and NaN are not folded."""
    case = Case(source=H100, weight=scheme, n=77, k=130)
    weight = weight_of(case, "cpu")
    scales = weight.scales.clone()
    numbers = scales.view(torch.uint8)
    for row, code in enumerate(codes):
        numbers[row * 8 : row * 8 + 5] = code
    weight = weight.replace(scales=scales)
    x = call_of(case, weight, 9, "cpu").x
    layer = wide_layer(case, weight, replace(TILES[0], folds=True))
    check_calls(layer, weight, case.activations, {"ends": (x, {})})
