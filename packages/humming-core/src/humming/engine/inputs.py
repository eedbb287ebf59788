"""What a call of a layer is given: which kind of GEMM it means, and whether shapes fit."""

from __future__ import annotations

import torch

from humming.configs import GemmKind
from humming.errors import ConfigError
from humming.weight import CanonicalWeight

__all__ = ["ROUTING", "Routing", "check_ids", "check_input", "check_routing", "gemm_kind", "given"]

#: Keyword of the routing tensor, by kind of GEMM.
ROUTING = {
    GemmKind.INDEXED: "expert_ids",
    GemmKind.GROUPED_CONTIGUOUS: "expert_offsets",
    GemmKind.GROUPED_MASKED: "expert_counts",
}
Routing = dict[str, torch.Tensor]


def given(*tensors: torch.Tensor | None) -> Routing:
    """The routing tensors that were passed, by keyword; in the order of :data:`ROUTING`."""
    pairs = zip(ROUTING.values(), tensors, strict=True)
    return {name: tensor for name, tensor in pairs if tensor is not None}


def gemm_kind(weight: CanonicalWeight, routing: Routing) -> GemmKind:
    """The kind of GEMM that the given routing tensors mean.

    Raises:
        ConfigError: none of them is needed, or exactly one.
    """
    if not weight.experts:
        if routing:
            raise ConfigError(next(iter(routing)), "given", "no routing: the weight has no experts")
        return GemmKind.DENSE
    if len(routing) != 1:
        names = ", ".join(ROUTING.values())
        raise ConfigError("routing", sorted(routing), f"exactly one of {names} with experts")
    return next(kind for kind, name in ROUTING.items() if name in routing)


def check_input(x: torch.Tensor, weight: CanonicalWeight) -> None:
    """Check the shape and the device of activations.

    Raises:
        ConfigError: they do not fit.
    """
    if x.dim() < 1 or x.shape[-1] != weight.k:
        raise ConfigError("x", list(x.shape), f"a last dimension of k={weight.k}")
    if x.device != weight.device:
        raise ConfigError("x", str(x.device), f"a tensor on {weight.device}, where the weight is")


def check_routing(kind: GemmKind, x: torch.Tensor, routing: torch.Tensor, experts: int) -> None:
    """Check dtype, device and shape of a routing tensor.

    Raises:
        ConfigError: they do not fit.
    """
    name = ROUTING[kind]
    if routing.dtype not in (torch.int32, torch.int64):
        raise ConfigError(name, routing.dtype, "an int32 or int64 tensor")
    if routing.device != x.device:
        raise ConfigError(name, str(routing.device), f"a tensor on {x.device}, as x")
    shapes = {
        GemmKind.INDEXED: (
            routing.dim() == 2
            and (x.dim() == 2 or (x.dim() == 3 and x.shape[1] == routing.shape[1]))
            and x.shape[0] == routing.shape[0],
            "[M, top_k] beside x [M, K] or [M, top_k, K]",
        ),
        GemmKind.GROUPED_CONTIGUOUS: (
            tuple(routing.shape) == (experts + 1,) and x.dim() == 2,
            f"[{experts + 1}] offsets beside x [M, K]",
        ),
        GemmKind.GROUPED_MASKED: (
            tuple(routing.shape) == (experts,) and x.dim() == 3 and x.shape[0] == experts,
            f"[{experts}] counts beside x [{experts}, capacity, K]",
        ),
    }
    fits, expected = shapes[kind]
    if not fits:
        raise ConfigError(name, f"{list(routing.shape)} beside x {list(x.shape)}", expected)


def check_ids(ids: torch.Tensor, experts: int) -> None:
    """Check the values of ``expert_ids``, which waits for the device.

    Raises:
        ConfigError: one is no expert and not -1.
    """
    if ids.numel():
        low, high = int(ids.min()), int(ids.max())
        if low < -1 or high >= experts:
            allowed = f"ids from -1 (skip) to {experts - 1}"
            raise ConfigError("expert_ids", (low, high), allowed)
