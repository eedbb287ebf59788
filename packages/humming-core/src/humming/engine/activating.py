"""Layers whose kernels apply an activation function to their own results, before they are rounded.

A thread of a product of matrices holds results of rows that are 8 apart. So gates and ups are put
in turn, 8 of each: then a gate and its up meet without leaving the thread.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from humming.backend import KernelBackend
from humming.configs import LayerConfig
from humming.gating import Gating
from humming.weight import CanonicalWeight

__all__ = ["activating"]

#: Gates, or ups, that lie together.
_RUN = 8


def activating(
    backend: KernelBackend, weight: CanonicalWeight, layer: LayerConfig, gating: Gating
) -> tuple[CanonicalWeight, LayerConfig] | None:
    """A weight and its layer with the function; None if it takes a kernel of its own.

    Args:
        backend: whose kernels.
        weight: its outputs are what goes into the function, in the order that this says.
        layer: the numbers.
        gating: the function.
    """
    gated, whole = gating.function.gated, 2 * _RUN
    if gated and (layer.n % whole or weight.scheme.granularity.n > 1):
        return None
    layer = replace(layer, function=gating.of_results())
    if not backend.applies_function(layer):
        return None
    return (weight.with_rows(_in_turn(weight, gating)) if gated else weight), layer


def _in_turn(weight: CanonicalWeight, gating: Gating) -> torch.Tensor:
    """int64 [N]: which of the weight's outputs come one after the other."""
    outputs = torch.arange(weight.n, device=weight.device)
    pairs = outputs.view(-1, 2) if gating.interleaved else outputs.view(2, -1).T
    runs = pairs.reshape(-1, _RUN, 2)
    return runs.transpose(1, 2).flatten()
