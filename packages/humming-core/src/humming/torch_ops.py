"""The operators ``humming::linear`` and ``humming::experts``: layers as torch.compile sees them.

A graph gets a layer as its *handle*, a buffer of one number on the weight's device, whose address
says which layer it is. So a graph holds nothing of one layer alone, and blocks of equal layers are
traced once; and CUDA graphs see an address that stays. What shapes follow from is passed beside it.

Calls that are not being traced go past it, since a dispatcher takes longer than a launch.
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from humming.engine.experts import check_experts
from humming.engine.inputs import check_input, check_routing, gemm_kind, given
from humming.errors import ConfigError
from humming.weight import CanonicalWeight

__all__ = ["HANDLE", "Experts", "Layer", "experts", "linear", "register", "without_handle"]

Optional = torch.Tensor | None

#: Name of the buffer that is a layer's handle.
HANDLE = "_handle"


class Layer(Protocol):
    """What the operator needs of a layer."""

    def multiply(
        self, x: torch.Tensor, ids: Optional, offsets: Optional, counts: Optional
    ) -> torch.Tensor:
        """The product; routing as in :func:`humming.matmul`."""
        ...


class Experts(Protocol):
    """What the operator needs of a layer of experts."""

    def compute(
        self, hidden: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor
    ) -> torch.Tensor:
        """What the layer gives, [M, H]; raises ConfigError if the arguments don't fit."""
        ...


class _Facts(NamedTuple):
    """Of a weight, what says whether the arguments of a call fit."""

    experts: int
    k: int
    device: torch.device


# Layers by the address of their handle, and by the number that is in it.
_BY_ADDRESS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_BY_NUMBER: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def register(module: nn.Module, device: torch.device) -> None:
    """Give a layer a new handle, by which its operator finds it for as long as it lives.

    Args:
        module: a :class:`Layer` or :class:`Experts`.
        device: of its weight.
    """
    number = secrets.randbits(63)  # nor is it that of a layer in another process
    handle = torch.full((1,), number, dtype=torch.int64, device=device)
    module.register_buffer(HANDLE, handle, persistent=False)
    if not (handle.is_meta or isinstance(handle, FakeTensor)):  # else nothing can be computed
        _BY_ADDRESS[handle.data_ptr()] = _BY_NUMBER[number] = module


def without_handle(state: dict[str, Any]) -> dict[str, Any]:
    """What a copy of a module may have of its attributes: all but the handle."""
    buffers = {name: tensor for name, tensor in state["_buffers"].items() if name != HANDLE}
    return {**state, "_buffers": buffers}


@torch.library.custom_op(
    "humming::linear",
    mutates_args=(),
    schema="(Tensor x, Tensor layer, int[] shape, Tensor? ids, Tensor? offsets, Tensor? counts)"
    " -> Tensor",
)
def linear(  # budget: the arguments of a layer, and which one
    x: torch.Tensor,
    layer: torch.Tensor,
    shape: Sequence[int],
    ids: Optional,
    offsets: Optional,
    counts: Optional,
) -> torch.Tensor:
    """Multiply by the layer of a handle, whose weight is `shape`: experts, N and K."""
    found: torch.Tensor = _find(layer).multiply(x, ids, offsets, counts)
    return found


@linear.register_fake
def _linear_shape(  # budget: as above
    x: torch.Tensor,
    layer: torch.Tensor,
    shape: Sequence[int],
    ids: Optional,
    offsets: Optional,
    counts: Optional,
) -> torch.Tensor:
    experts, n, k = shape
    # Of a weight the checks read these alone, and here there is no other.
    weight = cast(CanonicalWeight, _Facts(experts, k, layer.device))
    routing = given(ids, offsets, counts)
    kind = gemm_kind(weight, routing)
    check_input(x, weight)
    for tensor in routing.values():
        check_routing(kind, x, tensor, experts)
    return x.new_empty((*(x.shape[:-1] if ids is None else ids.shape), n))


@torch.library.custom_op(
    "humming::experts",
    mutates_args=(),
    schema="(Tensor hidden, Tensor layer, int width, Tensor topk_ids, Tensor topk_weights)"
    " -> Tensor",
)
def experts(
    hidden: torch.Tensor,
    layer: torch.Tensor,
    width: int,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
) -> torch.Tensor:
    """Apply the experts of the layer of a handle, whose hidden states are `width` wide."""
    found: torch.Tensor = _find(layer).compute(hidden, topk_ids, topk_weights)
    return found


@experts.register_fake
def _experts_shape(
    hidden: torch.Tensor,
    layer: torch.Tensor,
    width: int,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
) -> torch.Tensor:
    check_experts(hidden, topk_ids, topk_weights, width, layer.device)
    return torch.empty_like(hidden, memory_format=torch.contiguous_format)


def _find(handle: torch.Tensor) -> Any:
    address = handle.data_ptr()
    layer = _BY_ADDRESS.get(address)
    # A layer that got another handle is no longer where the old one was; that may be anything now.
    if layer is not None and layer.get_buffer(HANDLE).data_ptr() == address:
        return layer
    return _find_by_number(handle)


def _find_by_number(handle: torch.Tensor) -> Any:
    """The layer of a copy of a handle, as tools make them; waits for the device."""
    if handle.is_cuda and torch.cuda.is_current_stream_capturing():
        raise ConfigError("layer", "a copy of its handle", "the handle, in the capture of a graph")
    layer = _BY_NUMBER.get(int(handle))
    if layer is None:
        raise ConfigError("layer", handle, "the handle of a layer that still exists")
    return layer
