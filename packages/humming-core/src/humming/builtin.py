"""What humming-core itself contributes, through the same hooks as any plugin; registered first."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module, resources
from typing import TYPE_CHECKING

from humming.backend import Backend, Runtime
from humming.hooks import hookimpl
from humming.profiles import DeviceIdentity

if TYPE_CHECKING:
    import sys

    from humming.checkpoints.base import CheckpointLoader

    if sys.version_info >= (3, 11):
        from importlib.resources.abc import Traversable
    else:
        from importlib.abc import Traversable

__all__: list[str] = []

#: Checkpoint families that core reads: MODULE:CLASS.
_LOADERS = (
    "humming.checkpoints.auto_round:AutoRoundLoader",
    "humming.checkpoints.awq:AwqLoader",
    "humming.checkpoints.bitnet:BitnetLoader",
    "humming.checkpoints.compressed_tensors:CompressedTensorsLoader",
    "humming.checkpoints.fp8:Fp8Loader",
    "humming.checkpoints.gguf:GgufLoader",
    "humming.checkpoints.gptq:GptqLoader",
    "humming.checkpoints.humming_form:HummingLoader",
    "humming.checkpoints.modelopt:ModelOptLoader",
    "humming.checkpoints.mxfp4:Mxfp4Loader",
    "humming.checkpoints.quark:QuarkLoader",
)


@hookimpl
def humming_register_backends() -> Sequence[type[Backend]]:
    """The reference backend, which runs anywhere."""
    from humming.reference import ReferenceBackend

    return [ReferenceBackend]


@hookimpl
def humming_register_loaders() -> Sequence[type[CheckpointLoader]]:
    """One loader per checkpoint family."""
    rows = (row.split(":") for row in _LOADERS)
    return [getattr(import_module(module), name) for module, name in rows]


@hookimpl
def humming_register_profiles() -> Sequence[Traversable]:
    """The folder ``device_profiles`` of the repository, which the wheel carries."""
    return [resources.files("humming") / "device_profiles"]


@hookimpl
def humming_register_runtimes() -> Sequence[Runtime]:
    """The CUDA driver."""
    from humming.launching import CudaRuntime

    return [CudaRuntime()]


@hookimpl
def humming_identify_device(ordinal: int) -> DeviceIdentity | None:
    """The built-in CUDA probe, asked after every vendor's own."""
    from humming.devices import identify

    return identify(ordinal)
