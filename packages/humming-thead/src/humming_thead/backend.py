"""TheadBackend: what it accepts; it has no kernels yet."""

from __future__ import annotations

from humming.backend import Backend
from humming.configs import ComputeConfig, LayerConfig
from humming.profiles import DeviceProfile

__all__ = ["TheadBackend"]


class TheadBackend(Backend):
    """ppu.mma.sync of T-Head's PPU."""

    name = "thead"

    @classmethod
    def refuse_device(cls, profile: DeviceProfile) -> str | None:
        """The hardware first; devices that would fit are refused for want of kernels."""
        if profile.vendor != "thead":
            return f"for T-Head devices; {profile.title} is none"
        if "ppu_mma" not in profile.mma:
            return f"needs ppu_mma; {profile.title} lists {', '.join(profile.mma) or 'none'}"
        return "no kernels in this version"

    def refuse(self, layer: LayerConfig, compute: ComputeConfig) -> str | None:
        """Every layer, like every device."""
        return self.refuse_device(self.profile)
