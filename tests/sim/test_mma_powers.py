"""e2m1 times powers of two as operands of e4m3fn: exact, so that products are as in float64."""

from __future__ import annotations

import pytest
import torch
from gemm_data import call_of, weight_of
from gemm_matrix import Case
from gemm_oracle import limit
from gemm_runs import check_calls, layer_of

from humming.configs import GemmKind
from humming.weight import CanonicalWeight
from humming_sm75_sm89.tuning import MmaTuning

pytestmark = pytest.mark.compile

DEVICE = "nvidia-l40s"
TUNINGS = (
    MmaTuning(warps_k=2, stages=2, folds=True),
    MmaTuning(warps_n=2, warps_m=2, warps_k=1, tokens=32, stages=2, folds=True),
    MmaTuning(warps_k=1, tokens=16, splits=2, stages=2, folds=True),
)
CASES = (
    ("e2m1-g32-e8m0", GemmKind.DENSE, {"act_order": True}),
    ("e2m1-g64-e8m0-channel", GemmKind.INDEXED, {}),
    ("e2m1-g32-e8m0-tensor", GemmKind.GROUPED_CONTIGUOUS, {"bias": True}),
    ("e2m1-b16x128-e8m0", GemmKind.GROUPED_MASKED, {}),
)


def spread(weight: CanonicalWeight, seed: int) -> CanonicalWeight:
    """The weight with rows of very different sizes, and scales of a row up to 2^11 apart."""
    generator = torch.Generator().manual_seed(seed)
    shape = weight.scales.shape
    rows = torch.randint(117, 127, (*shape[:-1], 1), generator=generator)
    scales = rows + torch.randint(0, 12, shape, generator=generator)
    return weight.replace(scales=scales.to(torch.uint8))


#: Each case with one tuning, and each tuning with a dense product and one of experts.
TRIALS = [(TUNINGS[place % 3], *case) for place, case in enumerate((*CASES, CASES[0], CASES[0]))]


@pytest.mark.parametrize(("tuning", "scheme", "kind", "fields"), TRIALS)
def test_products_equal_float64(
    tuning: MmaTuning, scheme: str, kind: GemmKind, fields: dict[str, bool]
) -> None:
    case = Case(
        source=DEVICE,
        weight=scheme,
        activation="e4m3fn-token-f32",
        n=100,
        k=328,
        kind=kind,
        dtype="bf16",
        **fields,
    )
    assert case.why_not() is None
    weight = spread(weight_of(case, "cpu"), seed=case.seed)
    layer = layer_of(case, weight, f"sim:{DEVICE}", tuning)
    for m in (1, 40):
        call = call_of(case, weight, m, "cpu")
        calls = {f"M={m}": (call.x, call.routing)}
        check_calls(layer, weight, case.activations, calls, limit(case.dtype))
