"""Sm90Backend: what it accepts; it has no kernels yet."""

from __future__ import annotations

from humming.backend import Backend
from humming.configs import ComputeConfig, LayerConfig
from humming.profiles import DeviceProfile

__all__ = ["Sm90Backend"]


class Sm90Backend(Backend):
    """wgmma fed by TMA: compute capability 9.0."""

    name = "sm90"

    @classmethod
    def refuse_device(cls, profile: DeviceProfile) -> str | None:
        """The hardware first; devices that would fit are refused for want of kernels."""
        if profile.vendor != "nvidia":
            return f"for NVIDIA devices; {profile.title} is none"
        if "wgmma" not in profile.mma:
            return f"needs wgmma; {profile.title} lists {', '.join(profile.mma) or 'none'}"
        return "no kernels in this version"

    def refuse(self, layer: LayerConfig, compute: ComputeConfig) -> str | None:
        """Every layer, like every device."""
        return self.refuse_device(self.profile)
