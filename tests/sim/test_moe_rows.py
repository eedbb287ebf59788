"""The kernels that bring rows into the order of experts, against humming.route()."""

from __future__ import annotations

import pytest
import torch
from gemm_oracle import poisoned
from moe_cases import weights_of

from humming import Gating, route
from humming.combining import combine
from humming.engine import Site
from humming.engine.experts import ExpertKernels
from humming.engine.prepared import prepare
from humming.selection import find_device

pytestmark = pytest.mark.compile

A100 = "sim:nvidia-a100"


def kernels(dtype: torch.dtype, experts: int = 6) -> ExpertKernels:
    _, down = weights_of("u4-g32-bf16", experts, 64, 64)
    prepared, site = prepare(down, dtype, device=A100), Site.of(find_device(A100, None))
    assert prepared.kernels is not None
    arch = prepared.kernels.planner.backend.profile.target.arch
    return ExpertKernels(site, arch, prepared.layer, Gating.of("swiglu"))


@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("m", "top_k"), [(1, 1), (9, 4), (150, 8)])
def test_sorted_rows_and_back(m: int, top_k: int, ids_dtype: torch.dtype) -> None:
    around, generator = kernels(torch.bfloat16), torch.Generator().manual_seed(m)
    ids = torch.randint(-2, 8, (m, top_k), generator=generator).to(ids_dtype)
    if ids_dtype is torch.int64:
        ids[0, 0] = 2**32
    wanted = route(ids, 6)
    with poisoned():
        found = around.sort(ids, top_k)
    assert torch.equal(found.table, wanted.table)
    assert torch.equal(found.places.view(m, top_k), wanted.places)
    rows = int(found.rows)
    assert rows == int(wanted.table[-1])
    assert torch.equal(found.sources[:rows], wanted.sources[:rows])
    assert bool((found.sources[rows:] >= m).all())

    for width in (64, 13):
        x = torch.randn(m, width, generator=generator).bfloat16()
        with poisoned():
            moved = around.gather(x, found)
        assert torch.equal(moved[:rows], wanted.gather(x)[:rows])
        assert bool(moved[rows:].isnan().all()), "rows that are nobody's are not written"
        weights = torch.rand(m, top_k, generator=generator)
        y = torch.randn(m * top_k, width, generator=generator).bfloat16()
        with poisoned():
            total = around.combine(y, ids, weights, None, found.places)
        assert torch.equal(total, wanted.combine(y, weights))
        gathered = y[wanted.places.clamp(min=0).long()]
        assert torch.equal(total, combine(gathered, ids, 6, weights))


def test_rows_that_have_their_own_source() -> None:
    ids = torch.tensor([[1, 0], [3, 1]], dtype=torch.int32)
    found = kernels(torch.float16, 4).sort(ids, 1)
    assert found.sources.tolist() == [1, 0, 3, 2]
