"""The wgmma kernels in the simulator: every component of them, in any order of events.

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
from gemm_oracle import LIMITS, limit
from gemm_runs import check_calls
from wgmma_layers import H100, in_order_of, layer_of

from humming.configs import GemmKind
from humming_sm90.tuning import WgmmaTuning

pytestmark = pytest.mark.compile

KINDS = DENSE, INDEXED, CONTIGUOUS, MASKED = tuple(GemmKind)
TILES = (
    WgmmaTuning(tile_n=64, stages=3, raster=1),
    WgmmaTuning(tile_n=128, stages=2),
    WgmmaTuning(tile_n=256, stages=4),
)
#: Of dense layers alone: fewer tokens, parts of K, both.
DENSE_TILES = (
    WgmmaTuning(tile_n=64, tokens=64, stages=3, splits=3),
    WgmmaTuning(tile_n=128, tokens=64, stages=2),
    WgmmaTuning(tile_n=256, stages=2, splits=2),
    WgmmaTuning(tile_n=64, tokens=64, stages=4, raster=1),
    WgmmaTuning(tile_n=128, stages=3, splits=2),
    WgmmaTuning(tile_n=256, tokens=64, stages=2, splits=2),
)
#: n, k, m: the last row of tiles and the last step are never whole; 301 and 77 leave results whose
#: rows don't begin at multiples of 16 bytes.
SIZES = ((300, 392, 40), (77, 261, 150), (520, 130, 13), (301, 520, 129))

#: Weights and activations: each pair of formats, each place where scales come from.
PRODUCTS = (
    ("s8-channel-f16", "s8-g128-bf16"),
    ("s8-g128-f32", "s8-token-bf16"),
    ("s8-g128-f16", "s8-token-f32"),
    ("s8-b128x128-bf16", "s8-g128-f32"),
    ("s8-channel-f32", "s8-g128-f32"),
    ("e4m3fn-channel-f32", "e4m3fn-g128-f32"),
    ("e4m3fn-b128x128-f32", "e4m3fn-g128-f32"),
    ("e4m3fn-g128-bf16", "e5m2-g128-f32"),
    ("e5m2-g128-f16", "e4m3fn-token-f32"),
    ("e5m2-b64x128-f32", "e5m2-token-f32"),
    ("e5m2-tensor-f32", "e5m2-g128-e8m0"),
    ("e4m3fn-g128-bf16-channel", "e4m3fn-token-f32"),
    ("e4m3fn-channel-f32-channel", "e4m3fn-g128-f32"),
)


@dataclass(frozen=True)
class Trial:
    """A case, how many rows of activations it has, and the tuning to use."""

    case: Case
    m: int
    tuning: WgmmaTuning

    def __str__(self) -> str:
        tuning = self.tuning
        return f"{self.case}-m{self.m}-n{tuning.tile_n}t{tuning.tokens}s{tuning.splits}"


def _case(product: tuple[str, str], place: int, kind: GemmKind) -> tuple[Case, int]:
    weight, activation = product
    n, k, m = SIZES[place % len(SIZES)]
    dtype = tuple(LIMITS)[place % len(LIMITS)]
    case = Case(
        source=H100,
        weight=weight,
        activation=activation,
        dtype=dtype,
        n=n,
        k=k,
        kind=kind,
        bias=place % 2 == 0,
    )
    return case, m


def _trials() -> Iterator[Trial]:
    for place, product in enumerate(PRODUCTS):
        dense = (*TILES, *DENSE_TILES)[place % 9]
        yield Trial(*_case(product, place, DENSE), dense)
        tile = TILES[(place + place // 3) % 3]
        yield Trial(*_case(product, place + 1 + place // 4, KINDS[place % 3 + 1]), tile)


TRIALS = list(dict.fromkeys(_trials()))


def test_each_kind_meets_each_tile() -> None:
    met = {(trial.case.kind, trial.tuning) for trial in TRIALS}
    of_all = {(kind, tile) for kind in KINDS for tile in TILES}
    assert met == of_all | {(DENSE, tile) for tile in DENSE_TILES}


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
        results = check_calls(layer, weight, case.activations, calls, limit(case.dtype))
    return results[trial.m]


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_every_component_equals_float64(trial: Trial) -> None:
    assert trial.case.why_not() is None
    check(trial, None)


#: Of the products: each way that scales come.
SHUFFLED = (0, 2, 3, 5, 6, 7)


@pytest.mark.parametrize("place", SHUFFLED, ids=lambda place: "-x-".join(PRODUCTS[place]))
def test_results_are_the_same_bits_in_any_order_of_events(place: int) -> None:
    case, m = _case(PRODUCTS[place], place % 2, KINDS[place % 4])
    tuning = WgmmaTuning(tile_n=(128, 64)[place % 2], stages=2 + place % 2)
    trial = Trial(case, m, tuning)
    together = check(trial, None)
    shuffled = check(trial, case.seed % 1000)
    assert torch.equal(together, shuffled)


@pytest.mark.parametrize("product", [PRODUCTS[0], PRODUCTS[7]], ids="-x-".join)
def test_a_row_has_the_same_bits_whatever_the_tile_and_the_other_rows(
    product: tuple[str, str],
) -> None:
    case, _ = _case(product, 0, DENSE)
    weight = weight_of(case, "cpu")
    x = call_of(case, weight, 140, "cpu").x
    results = [layer_of(case, weight, tile)(x) for tile in TILES]
    results += [layer_of(case, weight, tile)(x) for tile in DENSE_TILES if tile.splits == 1]
    results += [layer_of(case, weight, TILES[0])(x[100:139])]
    *others, some = results[1:]
    assert all(torch.equal(results[0], other) for other in others)
    assert torch.equal(results[0][100:139], some)


@pytest.mark.parametrize(("tile", "k"), [(DENSE_TILES[0], 392), (DENSE_TILES[4], 100)], ids=str)
def test_parts_of_k_are_added_in_one_order_and_counters_start_again(
    tile: WgmmaTuning, k: int
) -> None:
    """In any order of events; with more parts than steps."""
    case = replace(_case(PRODUCTS[6], 0, DENSE)[0], k=k)
    weight = weight_of(case, "cpu")
    layer = layer_of(case, weight, tile)
    x = call_of(case, weight, 70, "cpu").x
    calls: dict[object, tuple[torch.Tensor, dict[str, torch.Tensor]]] = {
        name: (x, {}) for name in ("first", "second")
    }
    results = check_calls(layer, weight, case.activations, calls, limit(case.dtype))
    with in_order_of(k):
        shuffled = layer(x)
    assert torch.equal(results["first"], results["second"])
    assert torch.equal(results["first"], shuffled)


@pytest.mark.parametrize("cut", ["n1of4", "n3of4", "k1of3"])
def test_tensor_parallel_cuts_of_blocks(cut: str) -> None:
    """Along N inside a block of rows, and along K between blocks."""
    case = Case(
        source=H100,
        weight="e4m3fn-b128x128-f32",
        activation="e4m3fn-g128-f32",
        n=384 - 128 * (cut == "n3of4"),
        k=384,
        cut=cut,
        bias=True,
    )
    check(Trial(case, 20, TILES[1]), None)


def test_what_the_backend_chooses_runs() -> None:
    case, m = _case(PRODUCTS[5], 0, DENSE)
    weight = weight_of(case, "cpu")
    layer = layer_of(case, weight)
    call = call_of(case, weight, m, "cpu")
    check_calls(layer, weight, case.activations, {m: (call.x, call.routing)})


def test_integers_that_are_not_numbers_and_large_sums() -> None:
    """A row with a NaN is NaN and no other is; sums of 2^21 per step are exact."""
    case = Case(source=H100, weight="s8-g128-f32", activation="s8-token-f32", dtype="f32", k=256)
    weight = weight_of(case, "cpu")
    weight = weight.replace(
        packed=torch.full_like(weight.packed, 0x80), scales=torch.ones_like(weight.scales)
    )
    x = torch.full((3, 256), -1.0)
    x[1, 7] = torch.nan
    result = layer_of(case, weight, TILES[1])(x)
    assert bool(result[1].isnan().all())
    torch.testing.assert_close(result[[0, 2]], torch.full((2, case.n), 256.0 * 128.0))
