"""The operators ``humming::linear`` and ``humming::experts``: layers as torch.compile sees them.

Calls that are not being traced go past it, since a dispatcher takes longer than a launch.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Protocol

import torch

from humming.errors import ConfigError

__all__ = ["Experts", "Layer", "experts", "linear", "register"]

Optional = torch.Tensor | None


class Layer(Protocol):
    """What the operator needs of a layer."""

    def multiply(
        self, x: torch.Tensor, ids: Optional, offsets: Optional, counts: Optional
    ) -> torch.Tensor:
        """The product; routing as in :func:`humming.matmul`."""
        ...

    def result_shape(
        self, x: torch.Tensor, ids: Optional, offsets: Optional, counts: Optional
    ) -> tuple[int, ...]:
        """The shape of :meth:`multiply`'s result; raises ConfigError if the arguments don't fit."""
        ...


class Experts(Protocol):
    """What the operator needs of a layer of experts."""

    def compute(
        self, hidden: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor
    ) -> torch.Tensor:
        """What the layer gives, [M, H]; raises ConfigError if the arguments don't fit."""
        ...

    def check(
        self, hidden: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor
    ) -> None:
        """Raises ConfigError if the arguments don't fit; looks at no number of theirs."""
        ...


# A graph holds a number, for which this finds the layer: its weight is not the graph's to move.
_LAYERS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count(1)


def register(layer: Layer | Experts) -> int:
    """A number by which its operator finds a layer for as long as that lives."""
    number = next(_NUMBERS)
    _LAYERS[number] = layer
    return number


@torch.library.custom_op(
    "humming::linear",
    mutates_args=(),
    schema="(Tensor x, int layer, Tensor? ids, Tensor? offsets, Tensor? counts) -> Tensor",
)
def linear(
    x: torch.Tensor, layer: int, ids: Optional, offsets: Optional, counts: Optional
) -> torch.Tensor:
    """Multiply by the layer of this number."""
    found: torch.Tensor = _find(layer).multiply(x, ids, offsets, counts)
    return found


@linear.register_fake
def _linear_shape(
    x: torch.Tensor, layer: int, ids: Optional, offsets: Optional, counts: Optional
) -> torch.Tensor:
    return x.new_empty(_find(layer).result_shape(x, ids, offsets, counts))


@torch.library.custom_op(
    "humming::experts",
    mutates_args=(),
    schema="(Tensor hidden, int layer, Tensor topk_ids, Tensor topk_weights) -> Tensor",
)
def experts(
    hidden: torch.Tensor, layer: int, topk_ids: torch.Tensor, topk_weights: torch.Tensor
) -> torch.Tensor:
    """Apply the experts of the layer of this number."""
    found: torch.Tensor = _find(layer).compute(hidden, topk_ids, topk_weights)
    return found


@experts.register_fake
def _experts_shape(
    hidden: torch.Tensor, layer: int, topk_ids: torch.Tensor, topk_weights: torch.Tensor
) -> torch.Tensor:
    _find(layer).check(hidden, topk_ids, topk_weights)
    return torch.empty_like(hidden, memory_format=torch.contiguous_format)


def _find(number: int) -> Any:
    layer = _LAYERS.get(number)
    if layer is None:
        raise ConfigError("layer", number, "the number of a layer that still exists")
    return layer
