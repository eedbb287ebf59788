"""The built-in CUDA probe: which devices torch sees, and what they say of themselves."""

from __future__ import annotations

from humming.profiles import DeviceIdentity

__all__ = ["count", "current", "identify"]

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
