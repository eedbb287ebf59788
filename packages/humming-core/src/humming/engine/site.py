"""Where the kernels of a layer run: a runtime, a device, and what torch says of its stream."""

from __future__ import annotations

import re
import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from humming import plugins
from humming.backend import Runtime
from humming.errors import ConfigError, UnsupportedError
from humming.jit.program import Kind
from humming.selection import Device

__all__ = ["Site"]

#: Architectures as NVIDIA's compilers spell them: major, minor, and a letter if it is for one
#: device alone.
_ARCH = re.compile(r"[a-z]+_(\d+)(\d)([a-z]?)")


@dataclass(frozen=True)
class Site:
    """A device with the runtime that loads and launches kernels there.

    Attributes:
        runtime: what loads and launches.
        device: where the tensors are.
        capability: of the live device; (0, 0) if it has no such notion.
    """

    runtime: Runtime
    device: torch.device
    capability: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, found: Device) -> Site:
        """The site that a device means.

        Raises:
            UnsupportedError: nothing launches kernels there.
        """
        runtime = plugins.runtimes().get(found.runtime)
        if runtime is None or found.identity is None:
            simulated = f"device='sim:{found.profile.name}'"
            raise UnsupportedError(
                f"there is nothing to launch kernels with on {found}; with humming-sim installed, "
                f"{simulated} simulates a device, and backend='reference' needs no kernels"
            )
        device = torch.device(found.identity.torch_device)
        return cls(runtime, device, found.identity.capability)

    @property
    def key(self) -> tuple[str, str]:
        """What tells sites apart."""
        return self.runtime.name, str(self.device)

    def check(self, device: torch.device, what: str) -> None:
        """Check that something is on this site's device.

        Raises:
            ConfigError: it is elsewhere.
        """
        if device != self.device:
            allowed = f"a tensor on {self.device}, where {self.runtime.name} computes"
            raise ConfigError(what, str(device), allowed)

    def kind(self, arch: str) -> Kind:
        """What to compile for this site: machine code if the device runs it, else PTX.

        A runtime whose attribute `portable` is true takes PTX alone. A driver translates PTX of an
        older architecture; that is how a profile of another device runs on this one.
        """
        if getattr(self.runtime, "portable", False):
            return "ptx"
        parts = _ARCH.fullmatch(arch)
        if parts is None or self.capability == (0, 0):
            return "cubin"
        target = int(parts[1]), int(parts[2])
        newer_minor = target[0] == self.capability[0] and target[1] <= self.capability[1]
        return "cubin" if target == self.capability or (newer_minor and not parts[3]) else "ptx"

    def active(self) -> AbstractContextManager[Any]:
        """Makes the device the current one: a runtime loads there."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def capturing(self) -> bool:
        """Whether the device's current stream is being captured into a graph."""
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def stream(self) -> int:
        """What tells apart work that may run at the same time: a stream, or a thread on the CPU."""
        if self.device.type == "cuda":
            # 0.15 us; torch.cuda.current_stream() makes an object of it, 4.9 us.
            return int(torch._C._cuda_getCurrentRawStream(self.device.index))
        return threading.get_ident()
