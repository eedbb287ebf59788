"""Layers multiplied by the wide kernels in the simulator, whatever the backend would choose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from gemm_matrix import Case
from wgmma_layers import H100, config_of, few_sms

from humming.backend import KernelSpec, Problem
from humming.configs import ComputeConfig, LayerConfig, TuningConfig
from humming.engine.kernel_layer import KernelLayer
from humming.engine.site import Site
from humming.selection import find_device
from humming.weight import CanonicalWeight
from humming_sm75_sm89.backend import Sm75Sm89Backend
from humming_sm75_sm89.layout import MmaLayout, layout_of
from humming_sm90.wide_candidates import microseconds, proposals
from humming_sm90.wide_kernel import wide_spec
from humming_sm90.wide_tuning import WideTuning


class WideBackend(Sm75Sm89Backend):
    """Weights as they are packed for mma.sync, multiplied by the wide kernels alone."""

    name = "sm90"
    tuning_type: ClassVar[type[TuningConfig]] = WideTuning
    tunings: ClassVar[Mapping[str, type[TuningConfig]]] = {"wide": WideTuning}

    def candidates(
        self, layer: LayerConfig, compute: ComputeConfig, problem: Problem
    ) -> Iterable[WideTuning]:
        return proposals(self.profile, layer, compute, self._layout(layer), problem)

    def cost(
        self, layer: LayerConfig, compute: ComputeConfig, problem: Problem, tuning: TuningConfig
    ) -> float:
        assert isinstance(tuning, WideTuning)
        layout = self._layout(layer)
        return microseconds(self.profile, layer, compute, layout, problem, tuning)

    def kernel(
        self, layer: LayerConfig, compute: ComputeConfig, tuning: TuningConfig
    ) -> KernelSpec:
        assert isinstance(tuning, WideTuning)
        return wide_spec(self.profile, layer, compute, self._layout(layer), tuning)

    def _layout(self, layer: LayerConfig) -> MmaLayout:
        return layout_of(layer, self.profile)


def wide_layer(case: Case, weight: CanonicalWeight, tuning: WideTuning | None) -> KernelLayer:
    """The layer of a case on a simulated H100 of two SMs."""
    found = find_device(f"sim:{H100}", few_sms())
    layer = config_of(case)
    backend = WideBackend(found.profile)
    return KernelLayer.make(backend, weight, layer, case.compute, Site.of(found), tuning=tuning)
