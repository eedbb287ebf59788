"""The built-in CUDA probe: which devices torch sees, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from humming.backend import LaunchShape
from humming.errors import UnsupportedError
from humming.profiles import DeviceIdentity

__all__ = ["CudaRuntime", "count", "current", "identify"]

#: Names of limits, and of the attributes of torch's device properties that hold them.
_LIMITS = {
    "sm_count": "multi_processor_count",
    "smem_block_bytes": "shared_memory_per_block_optin",
    "smem_sm_bytes": "shared_memory_per_multiprocessor",
    "registers": "regs_per_multiprocessor",
    "threads": "max_threads_per_multi_processor",
}


def count() -> int:
    """How many devices are visible to torch; 0 without a driver."""
    import torch

    # torch.version.hip: builds for other vendors answer to the name "cuda" as well.
    if torch.version.cuda is None or not torch.cuda.is_available():
        return 0
    return torch.cuda.device_count()


def current() -> int | None:
    """Ordinal of torch's current device, or None without any."""
    import torch

    return torch.cuda.current_device() if count() else None


def identify(ordinal: int) -> DeviceIdentity | None:
    """What device `ordinal` says of itself, or None if there is none."""
    import torch

    if not 0 <= ordinal < count():
        return None
    properties = torch.cuda.get_device_properties(ordinal)
    limits = {
        name: int(getattr(properties, attribute))
        for name, attribute in _LIMITS.items()
        if hasattr(properties, attribute)  # older torch knows fewer
    }
    return DeviceIdentity(
        name=str(properties.name),
        vendor="nvidia",
        capability=(int(properties.major), int(properties.minor)),
        limits=limits,
        torch_device=f"cuda:{ordinal}",
    )


class CudaRuntime:
    """The CUDA driver as a :class:`humming.backend.Runtime`."""

    name = "cuda"

    def identify(self, device: str) -> DeviceIdentity | None:
        """Device of an ordinal in digits."""
        return identify(int(device)) if device.isdecimal() else None

    def devices(self) -> Sequence[str]:
        """Ordinals of all visible devices."""
        return [str(ordinal) for ordinal in range(count())]

    def load(self, binary: bytes, entry: str) -> object:
        """Not in this version: no backend describes kernels yet, so nothing needs loading.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(f"loading {entry}: this version of humming launches no kernels")

    def launch(
        self, kernel: object, shape: LaunchShape, args: Sequence[object], options: Mapping[str, int]
    ) -> None:
        """Not in this version; see :meth:`load`.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("launching: this version of humming launches no kernels")
