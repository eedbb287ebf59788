"""Acme's devices: a simulated one, and those that the CUDA driver would show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from humming.backend import LaunchShape, PreparedLaunch
from humming.errors import UnsupportedError
from humming.profiles import DeviceIdentity

__all__ = ["AcmeSimulator", "identify_cuda"]


class AcmeSimulator:
    """A runtime with one device; what runs on it runs in torch, on the host."""

    name = "acmesim"

    def identify(self, device: str) -> DeviceIdentity | None:
        """The device called "one"."""
        if device != "one":
            return None
        limits = {"sm_count": 4}
        return DeviceIdentity(name="ACME One", vendor="acme", capability=(1, 0), limits=limits)

    def devices(self) -> Sequence[str]:
        """Names that :meth:`identify` knows."""
        return ["one"]

    def load(self, binary: bytes, entry: str) -> object:
        """The backend describes no kernels, so there is nothing to load."""
        raise UnsupportedError(f"loading {entry}: Acme's simulator runs no kernels")

    def launch(
        self, kernel: object, shape: LaunchShape, args: Sequence[object], options: Mapping[str, int]
    ) -> None:
        """See :meth:`load`."""
        raise UnsupportedError("launching: Acme's simulator runs no kernels")

    def prepare(
        self,
        kernel: object,
        kinds: Sequence[str],
        args: Sequence[object],
        options: Mapping[str, int],
        changing: Sequence[int] = (),
    ) -> PreparedLaunch:
        """See :meth:`load`."""
        raise UnsupportedError("preparing: Acme's simulator runs no kernels")


def identify_cuda(ordinal: int) -> DeviceIdentity | None:
    """Device `ordinal` if its name says that Acme made it, else None: ask the next plugin."""
    import torch

    if not torch.cuda.is_available() or not 0 <= ordinal < torch.cuda.device_count():
        return None
    name = torch.cuda.get_device_name(ordinal)
    if not name.startswith("ACME "):
        return None
    return DeviceIdentity(
        name=name,
        vendor="acme",
        capability=torch.cuda.get_device_capability(ordinal),
        limits={},
        torch_device=f"cuda:{ordinal}",
    )
