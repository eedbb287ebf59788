"""How many rows the experts of a call get: unknown to the host, so chosen at random here."""

from __future__ import annotations

from functools import lru_cache
from math import exp, sqrt

from humming.backend import Problem
from humming.configs import ComputeConfig, GemmKind, LayerConfig

__all__ = ["Spread", "spread"]

#: (experts, rows of each) of those that have rows.
Spread = tuple[tuple[float, int], ...]

#: Means up to which numbers of rows are counted one by one.
_FEW = 4.0
#: Middles of eight equal parts of a normal distribution, in standard deviations.
_MIDDLES = (-1.534, -0.887, -0.489, -0.157, 0.157, 0.489, 0.887, 1.534)


def spread(layer: LayerConfig, compute: ComputeConfig, problem: Problem) -> Spread:
    """Rows of all weights of a call that have some.

    Rows of masked problems may be as many as there is room for; choices of the others are taken to
    be independent, so that an expert's rows are nearly Poisson-distributed.
    """
    if compute.gemm is GemmKind.DENSE:
        return ((1.0, problem.m),)
    if compute.gemm is GemmKind.GROUPED_MASKED:
        return ((float(max(layer.experts, 1)), problem.m),)
    return _chosen(max(layer.experts, 1), problem.m)


@lru_cache(maxsize=1024)
def _chosen(experts: int, choices: int) -> Spread:
    mean = choices / experts
    if mean > _FEW:
        rows = [max(round(mean + middle * sqrt(mean)), 1) for middle in _MIDDLES]
        return tuple((experts / len(rows), count) for count in rows)
    found, probability, rows_of_one = [], exp(-mean), 0
    while rows_of_one < min(choices, 4 * _FEW):
        rows_of_one += 1
        probability *= mean / rows_of_one
        found.append((experts * probability, rows_of_one))
    return tuple(found)
