"""humming's backend for T-Head accelerators: a plugin of humming-core."""

from __future__ import annotations

from collections.abc import Sequence

from humming.backend import Backend
from humming.plugins import hookimpl
from humming.profiles import DeviceIdentity


@hookimpl
def humming_register_backends() -> Sequence[type[Backend]]:
    """The backend of this package."""
    from humming_thead.backend import TheadBackend

    return [TheadBackend]


@hookimpl
def humming_identify_device(ordinal: int) -> DeviceIdentity | None:
    """A T-Head accelerator that its CUDA-compatible driver shows as a CUDA device."""
    from humming_thead.probe import identify

    return identify(ordinal)
