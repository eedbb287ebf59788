"""What is rounded on the way through a layer of experts, and its other kernels at any width.

tests/gpu/test_moe.py compares with an oracle that folds what kernels fold. That it rounds where
they do, and that this is all there is between a result and an exact one, is shown here.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gemm_oracle import check, measure, poisoned
from moe_cases import Oracle, activated, folds_of, hidden_of, weights_of

from humming import Gating, QuantMoE
from humming.combining import combine
from humming.engine import Site
from humming.engine.experts import ExpertKernels
from humming.engine.prepared import prepare
from humming.selection import find_device

pytestmark = pytest.mark.compile

A100 = "sim:nvidia-a100"
BF16 = torch.bfloat16


@pytest.mark.parametrize("scheme", ["u4-g32-bf16", "u4+z-g32-bf16", "u4-g32-e4m3fn-tensor"])
def test_kernels_that_fold_differ_from_the_oracle_by_the_last_rounding(scheme: str) -> None:
    experts, m, top_k = 128, 33, 2
    oracle = Oracle(*weights_of(scheme, experts, 256, 128))
    layer, x = QuantMoE(oracle.gate_up, oracle.down, device=A100), hidden_of(m, 256, BF16)
    oracle = activated(oracle, layer, BF16)
    assert oracle.activates
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(-1, experts, (m, top_k), generator=generator)
    weights = torch.rand(m, top_k, generator=generator)
    folds = folds_of(layer, BF16, m, top_k)
    assert folds == (True, True, False, False)
    with poisoned():
        found = layer(x, ids, weights)
    check(found, replace(oracle, folds=folds)(x, ids, weights), 2.5e-3)
    if scheme != "u4-g32-e4m3fn-tensor":  # whose products have no more digits than bf16
        unfolded = measure(found, oracle(x, ids, weights))
        assert unfolded[0] > 3e-3, "folding is a rounding that the oracle knows"
    check(found, oracle.exact(x, ids, weights), 1.5e-2)


def test_rows_are_activated_and_added_up_at_any_width() -> None:
    """Of another layer's than the one they were made for: shared experts, T14 on a GPU."""
    _, down = weights_of("u4-g32-bf16", 8, 64, 64)
    prepared, site = prepare(down, BF16, device=A100), Site.of(find_device(A100, None))
    assert prepared.kernels is not None
    arch = prepared.kernels.planner.backend.profile.target.arch
    kernels = ExpertKernels(site, arch, prepared.layer, Gating.of("swiglu"))
    generator = torch.Generator().manual_seed(0)
    for width in (40, 64, 2056, 3001):
        y = torch.randn(5, 3, width, generator=generator).to(BF16)
        ids = torch.randint(-1, 8, (5, 3), generator=generator)
        weights = torch.rand(5, 3, generator=generator)
        with poisoned():
            found = kernels.combine(y, ids, weights, None)
            gated = kernels.gate(y.flatten(0, 1)[:, : width // 2 * 2].contiguous())
        assert torch.equal(found, combine(y, ids, 8, weights)), width
        wanted = Gating.of("swiglu")(y.flatten(0, 1)[:, : width // 2 * 2])
        assert torch.allclose(gated.float(), wanted.float(), rtol=8e-3, atol=1e-6), width
