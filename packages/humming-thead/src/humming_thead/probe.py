"""Recognise T-Head accelerators among the devices that torch sees."""

from __future__ import annotations

from humming.profiles import DeviceIdentity

__all__ = ["identify"]

#: How the names begin that the driver reports (humming-kernels 0.1.20; T-Head publishes nothing).
_PREFIXES = ("PPU", "ZW")

#: Names of limits, and of the attributes of torch's device properties that hold them. The number
#: of multiprocessors is missing: humming-kernels replaces what this driver reports.
_LIMITS = {
    "registers": "regs_per_multiprocessor",
    "threads": "max_threads_per_multi_processor",
}


def identify(ordinal: int) -> DeviceIdentity | None:
    """What device `ordinal` says of itself; None if it is no T-Head accelerator."""
    import torch

    if not torch.cuda.is_available() or not 0 <= ordinal < torch.cuda.device_count():
        return None
    properties = torch.cuda.get_device_properties(ordinal)
    if not str(properties.name).startswith(_PREFIXES):
        return None
    return DeviceIdentity(
        name=str(properties.name),
        vendor="thead",
        capability=(int(properties.major), int(properties.minor)),
        limits={k: int(getattr(properties, v)) for k, v in _LIMITS.items()},
        torch_device=f"cuda:{ordinal}",
    )
