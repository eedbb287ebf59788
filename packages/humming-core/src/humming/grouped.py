"""Products of rows that route() has brought into order."""

from __future__ import annotations

from typing import Any

import torch

from humming.combining import Routes
from humming.engine.inputs import ROUTING
from humming.errors import ConfigError
from humming.layer import matmul
from humming.weight import CanonicalWeight

__all__ = ["grouped_matmul"]


def grouped_matmul(
    x: torch.Tensor, weight: CanonicalWeight, routes: Routes, **options: Any
) -> torch.Tensor:
    """:func:`humming.matmul` of rows that :func:`humming.route` has brought into order.

    Args:
        x: activations as ``routes.gather()`` gives them.
        weight: [E, N, K].
        routes: which expert each row meets.
        options: of :func:`humming.matmul`: activation, backend, device, ...

    Returns:
        [M, top_k, N] (indexed), [M * top_k, N] (contiguous) or [E, capacity, N] (masked), in the
        dtype of x; rows that are nobody's are zero.

    Raises:
        ConfigError, UnsupportedError: as of :func:`humming.matmul`; other experts than the weight;
            an option that says again which rows are whose.
    """
    if given := sorted(options.keys() & set(ROUTING.values())):
        raise ConfigError(
            given[0], "given", f"no such option: routes have {ROUTING[routes.layout]}"
        )
    if weight.experts != routes.experts:
        raise ConfigError("routes", f"{routes.experts} experts", f"{weight.experts}, as the weight")
    return matmul(x, weight, **{ROUTING[routes.layout]: routes.table, **options})
