"""A vendor's plugin for humming; see README.md. Nothing is imported before it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from humming.plugins import hookimpl

if TYPE_CHECKING:
    from humming.backend import Backend, Runtime
    from humming.checkpoints.base import CheckpointLoader
    from humming.formats.number import NumberFormat
    from humming.profiles import DeviceIdentity


@hookimpl
def humming_register_backends() -> Sequence[type[Backend]]:
    """One backend."""
    from humming_acme.backend import AcmeBackend

    return [AcmeBackend]


@hookimpl
def humming_register_formats() -> Sequence[NumberFormat]:
    """One number format."""
    from humming_acme.formats import ACME8

    return [ACME8]


@hookimpl
def humming_register_loaders() -> Sequence[type[CheckpointLoader]]:
    """One checkpoint family."""
    from humming_acme.loader import AcmeLoader

    return [AcmeLoader]


@hookimpl
def humming_register_profiles() -> Sequence[Any]:
    """One folder of TOML files."""
    return [resources.files("humming_acme") / "device_profiles"]


@hookimpl
def humming_register_runtimes() -> Sequence[Runtime]:
    """A simulator, reached as ``device="acmesim:one"``."""
    from humming_acme.runtime import AcmeSimulator

    return [AcmeSimulator()]


@hookimpl
def humming_identify_device(ordinal: int) -> DeviceIdentity | None:
    """Acme devices that the CUDA driver shows; asked before core's own probe."""
    from humming_acme.runtime import identify_cuda

    return identify_cuda(ordinal)
