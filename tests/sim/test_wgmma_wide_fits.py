"""Wide kernels that fit their tiles to the rows that experts have, in the simulator.

What the simulator calls a fault fails a test as a wrong number does: shared memory that nobody
copied to, or a barrier that waits for more bytes than come.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gemm_data import call_of, random_activations, random_weight, weight_of
from gemm_matrix import Case
from gemm_oracle import limit
from gemm_runs import check_calls
from wgmma_layers import H100, config_of, few_sms, in_order_of
from wide_runs import WideBackend, wide_layer

import humming
import humming_sim
import humming_sm90
from humming.configs import GemmKind
from humming.engine.kernel_layer import KernelLayer
from humming.engine.site import Site
from humming.formats.tensors import TORCH_FLOATS
from humming.jit import HeaderRoots, Program, compile_program
from humming.selection import find_device
from humming_sm90.wide_tuning import WideTuning

HEADERS = HeaderRoots(
    {
        package.__name__: Path(package.__file__).parent / "include" / package.__name__
        for package in (humming, humming_sm90)
        if package.__file__
    }
)
pytestmark = pytest.mark.compile

DENSE, INDEXED, CONTIGUOUS, MASKED = GemmKind
#: Of the experts: none, one, and around the ends of parts of tiles.
ROWS = (0, 1, 63, 65, 129, 200, 257)
#: Weights, activations, whether scales are folded, tokens of a tile, kind.
TRIALS = (
    ("u4-g128-bf16", "bf16", True, 288, CONTIGUOUS),
    ("u4-g128-bf16", "bf16", False, 192, MASKED),
    ("u4+zf-g32-f16", "f16", False, 128, CONTIGUOUS),
    ("e2m1-g32-e8m0", "e4m3fn-token-f32", True, 160, MASKED),
    ("s4-g128-f32", "s8-token-f32", False, 192, CONTIGUOUS),
    ("e4m3fn-channel-f32", "e4m3fn-token-f32", False, 128, CONTIGUOUS),
    ("s8-channel-f32", "s8-token-f32", False, 64, MASKED),
    ("u4-g128-bf16", "bf16", True, 256, INDEXED),
    ("e2m1-g32-e8m0", "e4m3fn-token-f32", True, 160, INDEXED),
    ("u4+z-g32-f16", "f16", False, 64, INDEXED),
    ("e2m1-g32-e8m0", "e4m3fn-token-f32", True, 32, CONTIGUOUS),
    ("u4-g128-bf16", "e4m3fn-token-f32", False, 48, MASKED),
    ("u4-g128-bf16", "bf16", True, 16, INDEXED),
)
#: Choices of a token, where experts are chosen by index.
TOP_K = 4


def numbers_of(x: str) -> dict[str, str]:
    return {"activation": x, "dtype": "bf16"} if "-" in x else {"dtype": x}


def expert_call(
    case: Case, generator: torch.Generator
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Activations of ROWS, and some that belong to none."""
    dtype = TORCH_FLOATS[case.dtype]
    if case.kind is MASKED:
        x = random_activations((len(ROWS), max(ROWS), case.k), generator, dtype, "cpu")
        return x, {"expert_counts": torch.tensor(ROWS, dtype=torch.int32)}
    if case.kind is INDEXED:
        ids = torch.tensor([i for i, rows in enumerate(ROWS) for _ in range(rows)] + [-1] * 5)
        ids = ids[torch.randperm(len(ids), generator=generator)].view(-1, TOP_K)
        return random_activations((len(ids), case.k), generator, dtype, "cpu"), {"expert_ids": ids}
    offsets = torch.tensor((0, *ROWS)).cumsum(0).to(torch.int32)
    x = random_activations((sum(ROWS) + 5, case.k), generator, dtype, "cpu")
    return x, {"expert_offsets": offsets}


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: f"{trial[0]}-x-{trial[1]}-t{trial[3]}")
def test_experts_with_any_number_of_rows_equal_float64(
    trial: tuple[str, str, bool, int, GemmKind],
) -> None:
    scheme, activation, folds, tokens, kind = trial
    numbers = numbers_of(activation)
    case = Case(source=H100, weight=scheme, n=77, k=200, kind=kind, **numbers)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(case.seed)
    weight = random_weight(case.scheme, case.n, case.k, generator, experts=len(ROWS))
    config = replace(config_of(case), experts=len(ROWS))
    found = find_device(f"sim:{H100}", few_sms())
    ctas = 2 if tokens < 64 else 1
    tuning = WideTuning(tokens=tokens, fits=tokens > 16, stages=3, ctas=ctas, folds=folds)
    site = Site.of(found)
    layer = KernelLayer.make(
        WideBackend(found.profile), weight, config, case.compute, site, tuning=tuning
    )
    calls: dict[object, tuple[torch.Tensor, dict[str, torch.Tensor]]] = {
        kind: expert_call(case, generator)
    }
    check_calls(layer, weight, case.activations, calls, limit(case.dtype))


@pytest.mark.parametrize(
    ("tuning", "m", "seed"),
    [
        (WideTuning(tokens=160, fits=True, stages=3, folds=True), 170, 5),
        (WideTuning(tokens=128, fits=True, stages=3, splits=2), 130, None),
        (WideTuning(tokens=128, fits=True, stages=3, splits=2, folds=True), 70, 7),
    ],
    ids=["evenly", "parts", "folded-parts"],
)
def test_the_bits_are_those_of_whole_tiles(tuning: WideTuning, m: int, seed: int | None) -> None:
    """In any order of events."""
    case = Case(source=H100, weight="u4-g128-bf16", n=180, k=392, bias=True)
    weight = weight_of(case, "cpu")
    x = call_of(case, weight, m, "cpu").x
    whole = replace(tuning, fits=False)
    with in_order_of(seed):
        fitting = wide_layer(case, weight, tuning)(x)
    assert torch.equal(fitting, wide_layer(case, weight, whole)(x))


# -- the walk --------------------------------------------------------------------------------------

WALK = """
#include <humming_sm90/tiles.cuh>
using namespace humming;
struct Args { i32 m, n, k, experts; i32 const* groups; };
struct Policy {
  static constexpr GemmKind kKind = GemmKind::kGroupedContiguous;
  static constexpr Raster kRaster{8, Axis::kRows};
  static constexpr int kTileN = 128;
};
extern "C" __global__ void walk(i32 m, i32 n, i32 experts, i32 const* groups, i32* out) {
  extern __shared__ int prefix[];
  Args const args{m, n, 0, experts, groups};
  sm90::Tiles<Policy, 128, Args, EVEN> const tiles(args, prefix);
  if (threadIdx.x == 0)
    for (u32 number = 0; number < tiles.count(); ++number) {
      sm90::Tile const tile = tiles.tile(number);
      out[3 * number] = tile.expert;
      out[3 * number + 1] = int(tile.first);
      out[3 * number + 2] = tile.count;
    }
}
"""


def walked(even: int) -> list[tuple[int, int, int]]:
    """Expert, first row and number of rows of each tile of 128 rows of ROWS."""
    source = WALK.replace("EVEN", str(even))
    program = Program(
        name="walk",
        source=source,
        arch="compute_90a",
        headers=HEADERS.closure(source, "walk"),
        kind="ptx",
    )
    offsets = np.concatenate([[0], np.cumsum(ROWS)]).astype(np.int32)
    tiles = np.full((32, 3), -1, np.int32)
    arguments = [sum(ROWS), 100, len(ROWS), offsets, tiles]
    code = compile_program(program).data.decode()
    humming_sim.launch(code, "walk", 1, 32, arguments, smem=offsets.nbytes)
    return [(int(tile[0]), int(tile[1]), int(tile[2])) for tile in tiles if tile[0] >= 0]


@pytest.mark.parametrize("even", [0, 16, 64])
def test_tiles_of_an_expert_have_as_many_rows_each(even: int) -> None:
    expected = []
    for expert, rows in enumerate(ROWS):
        count = -(-rows // 128)
        each = -(-rows // (even * count)) * even if even and rows else 128
        first = sum(ROWS[:expert])
        for begin in range(0, rows, each):
            expected.append((expert, first + begin, min(each, rows - begin)))
        assert len([tile for tile in expected if tile[0] == expert]) == count
    assert walked(even) == expected
