"""Sm100Backend and Sm120Backend: what they accept; they have no kernels yet."""

from __future__ import annotations

from typing import ClassVar

from humming.backend import Backend
from humming.configs import ComputeConfig, LayerConfig
from humming.profiles import DeviceProfile

__all__ = ["Sm100Backend", "Sm120Backend"]


class _BlackwellBackend(Backend):
    """What both have in common: a vendor and one instruction that they can't do without."""

    instruction: ClassVar[str]

    @classmethod
    def refuse_device(cls, profile: DeviceProfile) -> str | None:
        """The hardware first; devices that would fit are refused for want of kernels."""
        if profile.vendor != "nvidia":
            return f"for NVIDIA devices; {profile.title} is none"
        if cls.instruction not in profile.mma:
            return f"needs {cls.instruction}; {profile.title} lists {', '.join(profile.mma)}"
        return "no kernels in this version"

    def refuse(self, layer: LayerConfig, compute: ComputeConfig) -> str | None:
        """Every layer, like every device."""
        return self.refuse_device(self.profile)


class Sm100Backend(_BlackwellBackend):
    """tcgen05 with tensor memory: compute capability 10.0, 10.3 and 11.0."""

    name = "sm100"
    instruction = "tcgen05"


class Sm120Backend(_BlackwellBackend):
    """Block-scaled mma.sync: compute capability 12.0 and 12.1."""

    name = "sm120"
    instruction = "mxmma"
