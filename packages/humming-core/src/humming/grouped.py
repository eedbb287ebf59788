"""Choices of experts brought into order, and products of rows that are."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from humming import combining
from humming.backend import Problem
from humming.combining import Routes, check_route
from humming.configs import GemmKind, LayerConfig
from humming.engine import Profile
from humming.engine.inputs import ROUTING
from humming.engine.own_kernels import Place, own_kernel, place_of
from humming.errors import ConfigError
from humming.formats.activation import ActivationScheme
from humming.formats.scheme import WeightScheme
from humming.formats.table import number_format
from humming.layer import matmul
from humming.routing import MAX_EXPERTS, route_spec
from humming.weight import CanonicalWeight

__all__ = ["grouped_matmul", "route"]


def route(
    topk_ids: torch.Tensor,
    experts: int,
    layout: GemmKind = GemmKind.GROUPED_CONTIGUOUS,
    *,
    capacity: int | None = None,
    device: object = None,
    profile: Profile | None = None,
) -> Routes:
    """Sort the choices of tokens by expert, each expert's in ascending order.

    Ids that are no expert (-1, remote) get no row. The same expert may be chosen twice. On a device
    with kernels it is one launch (of up to 1024 experts), and nothing waits for the device;
    elsewhere torch computes the same.

    Args:
        topk_ids: int32 or int64 [M, top_k].
        experts: how many there are.
        layout: INDEXED (rows stay where they are), GROUPED_CONTIGUOUS (rows lie together, each
            expert's behind those of the expert before) or GROUPED_MASKED (each expert has so many
            rows, of which the first count).
        capacity: masked: rows of each expert; None is M * top_k, which holds anything. An expert
            that is chosen more often is an error, which only torch on the CPU notices: elsewhere
            the choices that come last have no row, a place of -1, and contribute nothing.
        device: where, if tensors do not say: ``"sim:NAME"`` is a simulated device.
        profile: facts to use instead of the device's own.

    Raises:
        ConfigError: a shape, dtype, device, layout or number that does not fit.
        CaptureError: the kernel is not loaded, in the capture of a graph.
    """
    check_route(topk_ids, experts, layout, capacity)
    place = place_of(str(topk_ids.device if device is None else device), profile)
    if place is not None:
        place.site.check(topk_ids.device, "topk_ids")
        countable = layout is GemmKind.INDEXED or experts <= MAX_EXPERTS
        if countable and topk_ids.numel():
            room = topk_ids.numel() if capacity is None else capacity
            return _by_kernel(topk_ids, experts, layout, room, place)
    return combining.route(topk_ids, experts, layout, capacity=capacity)


def _by_kernel(
    ids: torch.Tensor, experts: int, layout: GemmKind, room: int, place: Place
) -> Routes:
    (tokens, top_k), choices = ids.shape, ids.numel()
    arch, wide = place.profile.target.arch, ids.dtype == torch.int64
    spec, launch = own_kernel(place.site, route_spec, layout, wide, arch)
    masked = layout is GemmKind.GROUPED_MASKED

    def table(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int32, device=ids.device)

    places = table(tokens, top_k)
    sources = table(experts * room if masked else choices)
    shapes = {GemmKind.INDEXED: (tokens, top_k), GemmKind.GROUPED_MASKED: (experts,)}
    found = table(*shapes.get(layout, (experts + 1,)))
    # The kernel of contiguous rows counts them, too.
    written = (found, table(1)) if layout is GemmKind.GROUPED_CONTIGUOUS else (found,)
    sizes = (choices, experts, top_k, *((room,) if masked else ()))
    shape = spec.launch(Problem(m=choices), _layer(experts))
    launch(shape, ids.contiguous(), sources, places, *written, *sizes)
    return Routes(layout, found, sources, places, experts)


@lru_cache(maxsize=64)
def _layer(experts: int) -> LayerConfig:
    """What a launch wants to know of a layer: its experts."""
    output = number_format("f32")
    return LayerConfig(
        n=1,
        k=1,
        experts=experts,
        weight=WeightScheme.parse("s8-channel-f32"),
        activation=ActivationScheme(format=output),
        output=output,
    )


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
