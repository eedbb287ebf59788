"""What a plugin may implement: six hooks, and the marker that says "this is one".

A plugin is a module (or object) named by an entry point of the group ``humming``. Its functions
of these names carry :data:`hookimpl`, and import what they return inside the function: loading a
plugin must not load its kernels. :mod:`humming.plugins` finds, loads and calls them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pluggy

from humming.backend import Backend, Runtime
from humming.formats.number import NumberFormat
from humming.profiles import DeviceIdentity

if TYPE_CHECKING:
    from humming.checkpoints.base import CheckpointLoader

    if sys.version_info >= (3, 11):
        from importlib.resources.abc import Traversable
    else:
        from importlib.abc import Traversable

__all__ = ["PROJECT", "hookimpl"]

#: Name of the entry-point group, and pluggy's name for who defines these hooks.
PROJECT = "humming"

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Marks a function of a plugin as the implementation of the hook of its name.
hookimpl = cast("Callable[[_Function], _Function]", pluggy.HookimplMarker(PROJECT))
_hookspec = cast("Callable[[_Function], _Function]", pluggy.HookspecMarker(PROJECT))


@_hookspec
def humming_register_backends() -> Sequence[type[Backend]]:  # type: ignore[empty-body]
    """Backend classes this plugin offers. Names must be unique across plugins."""


@_hookspec
def humming_register_formats() -> Sequence[NumberFormat]:  # type: ignore[empty-body]
    """Extra number formats. A name already taken must be the identical row, else PluginError."""


@_hookspec
def humming_register_loaders() -> Sequence[type[CheckpointLoader]]:  # type: ignore[empty-body]
    """Checkpoint loaders, keyed by the quant_method strings they accept."""


@_hookspec
def humming_register_profiles() -> Sequence[Traversable]:  # type: ignore[empty-body]
    """Folders of ``*.toml`` device profiles. A data-only plugin may implement just this."""


@_hookspec
def humming_register_runtimes() -> Sequence[Runtime]:  # type: ignore[empty-body]
    """Runtimes: what loads and launches binaries, and knows devices that CUDA does not."""


@_hookspec
def humming_identify_device(ordinal: int) -> DeviceIdentity | None:
    """Name, vendor, capability and live limits of a visible device, or None to pass.

    Asked in reverse order of registration, so a vendor is asked before the built-in CUDA probe;
    the first answer counts.
    """
