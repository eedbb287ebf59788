"""route() and grouped_matmul(): the same sums whatever the layout, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from gemm_oracle import check, limit
from moe_cases import hidden_of, router, weights_of

import humming
from humming.combining import route
from humming.configs import GemmKind
from humming.errors import ConfigError

LAYOUTS = (GemmKind.INDEXED, GemmKind.GROUPED_CONTIGUOUS, GemmKind.GROUPED_MASKED)
E = 6


def ids_of(m: int, top_k: int) -> torch.Tensor:
    """Some nobody's, some far away, some chosen twice."""
    ids = torch.randint(-1, E + 1, (m, top_k), generator=torch.Generator().manual_seed(m))
    ids[::5] = 3
    ids[1::7, 0] = 2**32 + 1
    return ids


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("m", "top_k"), [(1, 1), (12, 2), (7, 8), (0, 2)])
def test_sums_are_those_of_pairs(layout: GemmKind, m: int, top_k: int) -> None:
    _, weight = weights_of("u4-g32-bf16", E, 64, 96, bias=0.01)
    x, ids = hidden_of(m, 96, torch.float32), ids_of(m, top_k)
    _, weights = router(m, top_k, max(E, top_k))
    routes = humming.route(ids, E, layout)
    y = humming.grouped_matmul(routes.gather(x), weight, routes, backend="reference")
    found = routes.combine(y, weights)
    assert found.shape == (m, 64)
    dense, expected = weight.dequantize().double(), torch.zeros(m, 64, dtype=torch.float64)
    bias = weight.bias
    assert bias is not None
    for token in range(m):
        for choice in range(top_k):
            expert = int(ids[token, choice])
            if 0 <= expert < E:
                row = dense[expert] @ x[token].double() + bias[expert].double()
                expected[token] += weights[token, choice].double() * row
    if m:
        check(found, expected, limit("f32"), layout)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_tables_of_sorted_rows(dtype: torch.dtype) -> None:
    ids = torch.tensor([[2, 0], [-1, 2], [0, 5]], dtype=dtype)
    found = route(ids, 3)
    assert found.table.tolist() == [0, 2, 2, 4]
    assert found.sources.tolist() == [0, 2, 0, 1, 6, 6]
    assert found.places.tolist() == [[2, 0], [-1, 3], [1, -1]]
    assert {t.dtype for t in (found.table, found.sources, found.places)} == {torch.int32}


def test_tables_of_masked_rows_and_too_little_room() -> None:
    ids = torch.tensor([[2, 0], [2, -1], [0, 5]])
    found = route(ids, 3, GemmKind.GROUPED_MASKED, capacity=2)
    assert found.table.tolist() == [2, 0, 2]
    assert found.sources.tolist() == [0, 2, 6, 6, 0, 1]
    assert found.places.tolist() == [[4, 0], [5, -1], [1, -1]]
    with pytest.raises(ConfigError, match="capacity=1: expected 2 or more: so often expert 0"):
        humming.route(ids, 3, GemmKind.GROUPED_MASKED, capacity=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(3, 2), 4), "topk_ids"),
        ((torch.zeros(3, dtype=torch.int32), 4), "topk_ids"),
        ((torch.zeros(3, 2, dtype=torch.int32), 0), "experts"),
        ((torch.zeros(3, 2, dtype=torch.int32), 4, GemmKind.DENSE), "layout"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        route(*arguments)  # type: ignore[arg-type]


def test_pieces_that_do_not_fit_each_other_are_refused() -> None:
    ids = torch.zeros(3, 2, dtype=torch.int32)
    for options in ({"capacity": 2}, {"layout": GemmKind.GROUPED_MASKED, "capacity": 0}):
        with pytest.raises(ConfigError, match="capacity"):
            humming.route(ids, 4, **options)
    with pytest.raises(ConfigError, match=r"capacity=.*fewer than 2\^31 rows of all 4"):
        humming.route(ids, 4, GemmKind.GROUPED_MASKED, capacity=2**29)
    routes = route(ids, 4)
    with pytest.raises(ConfigError, match=r"x=\[4, 8\]"):
        routes.gather(torch.zeros(4, 8))
    with pytest.raises(ConfigError, match="6 rows"):
        routes.combine(torch.zeros(5, 8))
    _, weight = weights_of("u4-g32-bf16", E, 64, 96)
    with pytest.raises(ConfigError, match="6, as the weight"):
        humming.grouped_matmul(torch.zeros(6, 96), weight, routes)
    again = {"expert_ids": ids}
    with pytest.raises(ConfigError, match="expert_ids='given'"):
        humming.grouped_matmul(torch.zeros(6, 96), weight, routes, **again)
