"""Sm75Sm89Backend: what it accepts, and how it multiplies that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from humming.backend import Evidence, KernelBackend, KernelSpec, PackedWeight, Problem, RepackSpec
from humming.configs import ComputeConfig, LayerConfig, TuningConfig
from humming.errors import ConfigError
from humming.profiles import DeviceProfile
from humming.validity import layer_why_not
from humming.weight import CanonicalWeight
from humming_sm75_sm89.candidates import proposals
from humming_sm75_sm89.cost import microseconds
from humming_sm75_sm89.kernel import gemm_spec
from humming_sm75_sm89.layout import layout_of, refuse_layout
from humming_sm75_sm89.order import fitted
from humming_sm75_sm89.packing import pack_weight
from humming_sm75_sm89.repack import repack_spec
from humming_sm75_sm89.tuning import MmaTuning

__all__ = ["Sm75Sm89Backend"]

#: Formats that mma.sync multiplies; f32 activations and block-scaled ones are for others.
_ACTIVATIONS = ("f16", "bf16", "e4m3fn", "e5m2", "s8", "s4")


class Sm75Sm89Backend(KernelBackend):
    """mma.sync with weights decoded in registers: every NVIDIA device since compute capability 7.5.

    On newer devices it does what their own backend does not: the instructions are still there.
    """

    name = "sm75_sm89"
    tunings: ClassVar[Mapping[str, type[TuningConfig]]] = {"mma": MmaTuning}

    @classmethod
    def refuse_device(cls, profile: DeviceProfile) -> str | None:
        """None for NVIDIA devices with mma.sync."""
        if profile.vendor != "nvidia":
            return f"for NVIDIA devices; {profile.title} is none"
        if "mma" not in profile.mma:
            return f"for devices with mma; {profile.title} lists {', '.join(profile.mma) or 'none'}"
        return None

    @classmethod
    def evidence(cls, profile: DeviceProfile) -> Evidence:
        """Kernels of every architecture run in the simulator; only part of them ran on a GPU."""
        return Evidence.SIMULATED

    def refuse(self, layer: LayerConfig, compute: ComputeConfig) -> str | None:
        """A sentence for numbers that no kernel here multiplies."""
        reason = layer_why_not(layer, compute, self.profile)
        if reason is not None:
            return reason
        if layer.activation.format.name not in _ACTIVATIONS:
            return f"multiplies {', '.join(_ACTIVATIONS)}, not {layer.activation.format}"
        return refuse_layout(layer, self.profile)

    def fit(
        self, weight: CanonicalWeight, layer: LayerConfig
    ) -> tuple[CanonicalWeight, LayerConfig]:
        """See :func:`humming_sm75_sm89.order.fitted`."""
        return fitted(weight, layer, self.profile)

    def layout(self, layer: LayerConfig) -> str:
        """Id of the layout; see :class:`humming_sm75_sm89.layout.MmaLayout`."""
        return str(layout_of(layer, self.profile))

    def pack(self, weight: CanonicalWeight, layer: LayerConfig) -> PackedWeight:
        """See :func:`humming_sm75_sm89.packing.pack_weight`."""
        return pack_weight(weight, layer, layout_of(layer, self.profile))

    def repack(self, weight: CanonicalWeight, layer: LayerConfig) -> RepackSpec | None:
        """See :func:`humming_sm75_sm89.repack.repack_spec`."""
        layout = layout_of(layer, self.profile)
        return repack_spec(weight, layer, layout, self.profile.target.arch)

    def applies_function(self, layer: LayerConfig) -> bool:
        """In the epilogue that all kernels have."""
        return True

    def candidates(
        self, layer: LayerConfig, compute: ComputeConfig, problem: Problem
    ) -> Iterable[MmaTuning]:
        """See :func:`humming_sm75_sm89.candidates.proposals`."""
        layout = layout_of(layer, self.profile)
        return proposals(self.profile, layer, compute, layout, problem)

    def cost(
        self, layer: LayerConfig, compute: ComputeConfig, problem: Problem, tuning: TuningConfig
    ) -> float:
        """See :func:`humming_sm75_sm89.cost.microseconds`."""
        layout = layout_of(layer, self.profile)
        return microseconds(self.profile, layer, compute, layout, problem, _own(tuning))

    def kernel(
        self, layer: LayerConfig, compute: ComputeConfig, tuning: TuningConfig
    ) -> KernelSpec:
        """See :func:`humming_sm75_sm89.kernel.gemm_spec`."""
        layout = layout_of(layer, self.profile)
        return gemm_spec(self.profile, layer, compute, layout, _own(tuning))


def _own(tuning: TuningConfig) -> MmaTuning:
    if not isinstance(tuning, MmaTuning):
        raise ConfigError("tuning", tuning, "an MmaTuning")
    return tuning
