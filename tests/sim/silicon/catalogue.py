"""All cases, by family."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from silicon import (
    approximate_cases,
    async_cases,
    atomic_cases,
    cluster_cases,
    convert_cases,
    float_cases,
    gemm_cases,
    integer_cases,
    matrix_move_cases,
    memory_cases,
    mma_cases,
    sparse_cases,
    tma_cases,
    warp_cases,
    wgmma_cases,
)
from silicon.case import Case

# A recording's file holds what one entry makes.
FAMILIES: dict[str, Callable[[], list[Case]]] = {
    "integer": integer_cases.cases,
    "float": float_cases.cases,
    "convert": convert_cases.cases,
    "approximate": approximate_cases.cases,
    "warp": warp_cases.cases,
    "atomic": atomic_cases.cases,
    "memory": memory_cases.cases,
    "matrix_move": matrix_move_cases.cases,
    "mma": mma_cases.cases,
    "wgmma": wgmma_cases.cases,
    "sparse": sparse_cases.cases,
    "async": async_cases.cases,
    "tma": tma_cases.cases,
    "cluster": cluster_cases.cases,
    "gemm": gemm_cases.cases,
}


@cache
def family(name: str) -> dict[str, Case]:
    """The cases of one family by name.

    Raises:
        ValueError: if two cases have one name.
    """
    cases = FAMILIES[name]()
    named = {case.name: case for case in cases}
    if len(named) != len(cases):
        raise ValueError(f"family {name} has two cases of one name")
    return named
