"""Sm90Backend: what it accepts, and which family of layers answers for the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from humming.backend import Evidence, KernelBackend, KernelSpec, PackedWeight, Problem, RepackSpec
from humming.configs import ComputeConfig, LayerConfig, TuningConfig
from humming.profiles import DeviceProfile
from humming.validity import layer_why_not
from humming.weight import CanonicalWeight
from humming_sm90.families import FAMILIES, Family

__all__ = ["Sm90Backend"]


class Sm90Backend(KernelBackend):
    """wgmma: compute capability 9.0. See :mod:`humming_sm90.families`."""

    name = "sm90"
    tunings: ClassVar[Mapping[str, type[TuningConfig]]] = {
        name: pipeline.tuning for family in FAMILIES for name, pipeline in family.pipelines.items()
    }

    #: Every layer is of exactly one of them.
    families: ClassVar[tuple[type[Family[Any]], ...]] = FAMILIES

    def __init__(self, profile: DeviceProfile) -> None:
        super().__init__(profile)
        self._families = tuple(family(profile) for family in self.families)

    @classmethod
    def refuse_device(cls, profile: DeviceProfile) -> str | None:
        """The hardware."""
        if profile.vendor != "nvidia":
            return f"for NVIDIA devices; {profile.title} is none"
        if "wgmma" not in profile.mma:
            return f"needs wgmma; {profile.title} lists {', '.join(profile.mma) or 'none'}"
        return None

    @classmethod
    def evidence(cls, profile: DeviceProfile) -> Evidence:
        """All pipelines ran on an H200; other Hoppers differ from it in numbers alone."""
        if cls.refuse_device(profile):
            return Evidence.NONE
        return Evidence.MEASURED if profile.name == "nvidia-h200" else Evidence.SIMULATED

    def refuse(self, layer: LayerConfig, compute: ComputeConfig) -> str | None:
        """A sentence for devices, and for layers that no kernel here multiplies."""
        device = self.refuse_device(self.profile)
        if device is not None:
            return device
        reason = layer_why_not(layer, compute, self.profile)
        return reason or self._family(layer).refuse(layer, compute)

    def fit(
        self, weight: CanonicalWeight, layer: LayerConfig
    ) -> tuple[CanonicalWeight, LayerConfig]:
        """See the family."""
        return self._family(layer).fit(weight, layer)

    def layout(self, layer: LayerConfig) -> str:
        """Id of the family's layout."""
        return str(self._family(layer).layout(layer))

    def pack(self, weight: CanonicalWeight, layer: LayerConfig) -> PackedWeight:
        """See the family."""
        return self._family(layer).pack(weight, layer)

    def repack(self, weight: CanonicalWeight, layer: LayerConfig) -> RepackSpec | None:
        """See the family."""
        return self._family(layer).repack(weight, layer)

    def applies_function(self, layer: LayerConfig) -> bool:
        """See the family."""
        return self._family(layer).applies_function(layer)

    def candidates(
        self, layer: LayerConfig, compute: ComputeConfig, problem: Problem
    ) -> Iterable[TuningConfig]:
        """The proposals of all pipelines of the family."""
        return self._family(layer).candidates(layer, compute, problem)

    def cost(
        self, layer: LayerConfig, compute: ComputeConfig, problem: Problem, tuning: TuningConfig
    ) -> float:
        """By the model of the tuning's pipeline."""
        return self._family(layer).cost(layer, compute, problem, tuning)

    def kernel(
        self, layer: LayerConfig, compute: ComputeConfig, tuning: TuningConfig
    ) -> KernelSpec:
        """Of the tuning's pipeline."""
        return self._family(layer).kernel(layer, compute, tuning)

    def _family(self, layer: LayerConfig) -> Family[Any]:
        return next(family for family in self._families if family.has(layer))
