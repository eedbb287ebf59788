"""Sm75Sm89Backend: what it accepts; it has no kernels yet."""

from __future__ import annotations

from humming.backend import Backend
from humming.configs import ComputeConfig, LayerConfig
from humming.profiles import DeviceProfile

__all__ = ["Sm75Sm89Backend"]


class Sm75Sm89Backend(Backend):
    """mma.sync with weights decoded in registers: compute capability 7.5 to 8.9."""

    name = "sm75_sm89"

    @classmethod
    def refuse_device(cls, profile: DeviceProfile) -> str | None:
        """The hardware first; devices that would fit are refused for want of kernels."""
        if profile.vendor != "nvidia":
            return f"for NVIDIA devices; {profile.title} is none"
        if profile.mma != ("mma",):
            return f"for devices with mma alone; {profile.title} lists {', '.join(profile.mma)}"
        return "no kernels in this version"

    def refuse(self, layer: LayerConfig, compute: ComputeConfig) -> str | None:
        """Every layer, like every device."""
        return self.refuse_device(self.profile)
