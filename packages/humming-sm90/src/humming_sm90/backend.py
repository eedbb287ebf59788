"""Sm90Backend: what it accepts, and how it multiplies that."""

from __future__ import annotations

from collections.abc import Iterable

from humming.backend import Evidence, KernelBackend, KernelSpec, PackedWeight, Problem
from humming.configs import ComputeConfig, GemmKind, LayerConfig, TuningConfig
from humming.errors import ConfigError
from humming.profiles import DeviceProfile
from humming.validity import layer_why_not
from humming.weight import CanonicalWeight
from humming_sm90.candidates import proposals
from humming_sm90.cost import microseconds
from humming_sm90.kernel import gemm_spec
from humming_sm90.layout import layout_of, refuse_layout
from humming_sm90.packing import fitted, pack_weight
from humming_sm90.tuning import WgmmaTuning

__all__ = ["Sm90Backend"]


class Sm90Backend(KernelBackend):
    """wgmma fed by TMA: compute capability 9.0. So far for operands of 8 bits, both of them.

    Attributes:
        not_yet: why no device gets these kernels; None once they have run on one.
    """

    name = "sm90"
    tuning_type = WgmmaTuning
    # They were only simulated: nothing was measured yet.
    not_yet: str | None = "only simulated so far: no GPU has run its kernels"

    @classmethod
    def refuse_device(cls, profile: DeviceProfile) -> str | None:
        """The hardware first, then what devices that would fit are refused for."""
        if profile.vendor != "nvidia":
            return f"for NVIDIA devices; {profile.title} is none"
        if "wgmma" not in profile.mma:
            return f"needs wgmma; {profile.title} lists {', '.join(profile.mma) or 'none'}"
        return cls.not_yet

    @classmethod
    def evidence(cls, profile: DeviceProfile) -> Evidence:
        """Kernels run in the simulator."""
        return Evidence.NONE if cls.refuse_device(profile) else Evidence.SIMULATED

    def refuse(self, layer: LayerConfig, compute: ComputeConfig) -> str | None:
        """A sentence for devices, and for numbers that no kernel here multiplies."""
        device = self.refuse_device(self.profile)
        if device is not None:
            return device
        reason = layer_why_not(layer, compute, self.profile)
        if reason is not None:
            return reason
        if compute.gemm is GemmKind.INDEXED:
            return "rows of activations chosen by index: TMA copies rows that lie together"
        return refuse_layout(layer)

    def fit(
        self, weight: CanonicalWeight, layer: LayerConfig
    ) -> tuple[CanonicalWeight, LayerConfig]:
        """See :func:`humming_sm90.packing.fitted`."""
        return fitted(weight, layer)

    def layout(self, layer: LayerConfig) -> str:
        """Id of the layout; see :class:`humming_sm90.layout.WgmmaLayout`."""
        return str(layout_of(layer))

    def pack(self, weight: CanonicalWeight, layer: LayerConfig) -> PackedWeight:
        """See :func:`humming_sm90.packing.pack_weight`."""
        return pack_weight(weight, layer, layout_of(layer))

    def candidates(
        self, layer: LayerConfig, compute: ComputeConfig, problem: Problem
    ) -> Iterable[WgmmaTuning]:
        """See :func:`humming_sm90.candidates.proposals`."""
        return proposals(self.profile, layer, compute, layout_of(layer))

    def cost(
        self, layer: LayerConfig, compute: ComputeConfig, problem: Problem, tuning: TuningConfig
    ) -> float:
        """See :func:`humming_sm90.cost.microseconds`."""
        layout = layout_of(layer)
        return microseconds(self.profile, layer, compute, layout, problem, _own(tuning))

    def kernel(
        self, layer: LayerConfig, compute: ComputeConfig, tuning: TuningConfig
    ) -> KernelSpec:
        """See :func:`humming_sm90.kernel.gemm_spec`."""
        return gemm_spec(self.profile, layer, compute, layout_of(layer), _own(tuning))


def _own(tuning: TuningConfig) -> WgmmaTuning:
    if not isinstance(tuning, WgmmaTuning):
        raise ConfigError("tuning", tuning, "a WgmmaTuning")
    return tuning
