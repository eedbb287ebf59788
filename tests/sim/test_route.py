"""humming.route by the kernel: the tables of the reference, and products of rows in any layout."""

from __future__ import annotations

import pytest
import torch
from gemm_oracle import check, limit, poisoned
from moe_cases import hidden_of, router, weights_of

import humming
from humming import ConfigError, GemmKind, Routes, combining, grouped_matmul
from humming.backend import KernelSpec
from humming.engine.workshop import Workshop

pytestmark = pytest.mark.compile

A100 = "sim:nvidia-a100"
LAYOUTS = (GemmKind.INDEXED, GemmKind.GROUPED_CONTIGUOUS, GemmKind.GROUPED_MASKED)
MASKED = GemmKind.GROUPED_MASKED


def ids_of(m: int, top_k: int, experts: int, dtype: torch.dtype) -> torch.Tensor:
    """Some nobody's, some far away, some chosen twice."""
    rng = torch.Generator().manual_seed(m)
    ids = torch.randint(-1, experts + 1, (m, top_k), generator=rng).to(dtype)
    ids[::5] = experts - 1
    if dtype is torch.int64:
        ids[1::7, 0] = 2**32 + 1
    return ids


def same(found: Routes, wanted: Routes) -> None:
    assert (found.layout, found.experts) == (wanted.layout, wanted.experts)
    for name in ("table", "sources", "places"):
        mine, theirs = getattr(found, name), getattr(wanted, name)
        assert mine.dtype == torch.int32
        assert torch.equal(mine, theirs), name


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("m", "top_k", "experts"), [(1, 1, 1), (12, 2, 6), (130, 8, 384)])
def test_tables_are_those_of_the_reference(
    layout: GemmKind, dtype: torch.dtype, m: int, top_k: int, experts: int
) -> None:
    ids = ids_of(m, top_k, experts, dtype)
    rooms = (None, m * top_k + 3) if layout is MASKED and m < 100 else (None,)
    if layout is MASKED and m > 100:
        rooms = (int(ids.eq(experts - 1).sum()),)
    for capacity in rooms:
        wanted = combining.route(ids, experts, layout, capacity=capacity)
        with poisoned():
            found = humming.route(ids, experts, layout, capacity=capacity, device=A100)
        same(found, wanted)


def test_what_has_no_room_has_no_row() -> None:
    ids = torch.tensor([[2, 0], [2, 2], [0, 5]])
    found = humming.route(ids, 3, MASKED, capacity=2, device=A100)
    assert found.table.tolist() == [2, 0, 2]
    assert found.sources.tolist() == [0, 2, 6, 6, 0, 1]
    assert found.places.tolist() == [[4, 0], [5, -1], [1, -1]]


def test_it_is_one_kernel_and_nothing_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[KernelSpec] = []
    load = Workshop.load

    def counting(self: Workshop, spec: KernelSpec, site: object) -> object:
        loaded.append(spec)
        return load(self, spec, site)  # type: ignore[arg-type]

    monkeypatch.setattr(Workshop, "load", counting)
    humming.engine.own_kernels.own_kernel.cache_clear()
    monkeypatch.setattr(combining, "route", None)
    for layout in LAYOUTS:
        loaded.clear()
        humming.route(ids_of(3, 2, 4, torch.int32), 4, layout, device=A100)
        assert [spec.entry for spec in loaded] == ["sort_rows"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_in_every_layout(layout: GemmKind) -> None:
    experts, m, top_k = 4, 7, 2
    _, weight = weights_of("u4-g32-bf16", experts, 64, 64, bias=0.01)
    x, ids = hidden_of(m, 64, torch.bfloat16), ids_of(m, top_k, experts, torch.int64)
    _, weights = router(m, top_k, experts)
    capacity = m if layout is MASKED else None
    routes = humming.route(ids, experts, layout, capacity=capacity, device=A100)
    with poisoned():
        y = grouped_matmul(routes.gather(x), weight, routes, device=A100)
    wanted = combining.route(ids, experts, GemmKind.INDEXED)
    rows = grouped_matmul(x.float(), weight, wanted, backend="reference")
    check(routes.combine(y, weights), wanted.combine(rows, weights).double(), 2 * limit("bf16"))


def test_where_there_is_no_kernel_torch_sorts() -> None:
    many = torch.tensor([[1500, 3], [-1, 1024]])
    same(humming.route(many, 2000, device=A100), combining.route(many, 2000))
    none = torch.empty(0, 2, dtype=torch.int32)
    same(humming.route(none, 4, device=A100), combining.route(none, 4))
    with pytest.raises(ConfigError, match="device"):
        humming.route(many, 4, device="sim:nobody")
    with pytest.raises(ConfigError, match="topk_ids='meta'"):
        humming.route(many.to("meta"), 4, device=A100)
