"""Both products of a layer of experts, for each layout of rows, and what a call would take."""

from __future__ import annotations

from typing import NamedTuple

from humming.backend import Problem
from humming.configs import GemmKind
from humming.engine.choice import bucket, choose
from humming.engine.kernel_layer import KernelLayer
from humming.errors import ConfigError
from humming.formats.tensors import TORCH_FLOATS

__all__ = ["LAYOUTS", "ExpertProducts", "check_layout"]

#: How rows of activations may lie before both products, if nobody says how they shall.
LAYOUTS = (GemmKind.INDEXED, GemmKind.GROUPED_CONTIGUOUS)
_MASKED = GemmKind.GROUPED_MASKED

#: What bringing rows into order costs beside moving them: a launch.
_LAUNCH_US = 2.0
#: Of a device whose profile says nothing, and what of it a copy reaches.
_DRAM_GBPS = 1000.0
_OF_DRAM = 0.8


def check_layout(layout: GemmKind | None, capacity: int | None) -> None:
    """Check how rows shall lie.

    Args:
        layout: None is one of LAYOUTS.
        capacity: rows of each expert, of masked ones.

    Raises:
        ConfigError: there is no such layout, or it has no capacity.
    """
    known = (*LAYOUTS, _MASKED)
    if layout not in (None, *known):
        raise ConfigError("layout", layout, f"None or one of {', '.join(map(str, known))}")
    if capacity is not None and (layout is not _MASKED or capacity < 1):
        raise ConfigError("capacity", capacity, "1 or more rows, of masked ones")


class ExpertProducts(NamedTuple):
    """The kernels of both products, for one layout of rows."""

    up: KernelLayer
    down: KernelLayer

    @property
    def activates(self) -> bool:
        """Whether the first one's results are those of the function."""
        return self.up.layer.function is not None

    def capacity(self, choices: int, given: int | None) -> int:
        """Rows of each expert: as many as were given, or what holds all choices; 0 if unmasked."""
        return (given or choices) if self.up.gemm is _MASKED else 0

    def microseconds(self, choices: int, top_k: int) -> float:
        """Estimated time of a call, the same for all sizes of a bucket.

        Args:
            choices: (token, choice) pairs.
            top_k: choices of a row of hidden states.
        """
        kind, choices = self.up.gemm, bucket(choices)
        per_row = top_k if kind is GemmKind.INDEXED else 1
        total = _estimate(self.up, choices, per_row) + _estimate(self.down, choices, 1)
        if kind is GemmKind.INDEXED:
            return total
        layer, rates = self.up.layer, self.up.planner.backend.profile.rates
        rate = (rates.dram_gbps or _DRAM_GBPS) * _OF_DRAM * 1e3
        if self.up.operand.in_one_launch(TORCH_FLOATS[layer.output.name]):
            # Rows come into order as they are quantized, top_k times instead of once.
            more = choices * layer.k * layer.activation.format.bits / 8 * (1 - 1 / top_k)
            return total + more / rate
        nbytes = choices * layer.k * layer.output.bits / 8 * (1 + 1 / top_k)
        return total + _LAUNCH_US + nbytes / rate


def _estimate(product: KernelLayer, choices: int, top_k: int) -> float:
    planner, problem = product.planner, Problem(m=choices, top_k=top_k)
    if planner.forced is not None:
        return planner.backend.cost(planner.layer, planner.compute, problem, planner.forced)
    choice = choose(planner.backend, planner.layer, planner.compute, problem)
    return next(cost for cost, tuning in choice.shortlist if tuning == choice.tuning)
