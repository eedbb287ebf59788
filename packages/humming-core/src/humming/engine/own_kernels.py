"""Core's own kernels, launched alone: where, and loaded once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import NamedTuple

from humming.backend import KernelSpec, PreparedLaunch
from humming.engine.prepared import Profile
from humming.engine.site import Site
from humming.engine.workshop import workshop
from humming.errors import UnsupportedError
from humming.profiles import DeviceProfile
from humming.selection import Device, find_device

__all__ = ["OwnKernel", "Place", "own_kernel", "place_of"]


class Place(NamedTuple):
    """Where kernels run, and what is known of it."""

    site: Site
    profile: DeviceProfile


class OwnKernel(NamedTuple):
    """A kernel that is loaded; its launch takes all of its arguments."""

    spec: KernelSpec
    launch: PreparedLaunch


def place_of(device: str, profile: Profile | None = None) -> Place | None:
    """Where kernels run for tensors on a device; None if that is the host, or no profile's.

    Args:
        device: as of :func:`humming.selection.find_device`.
        profile: instead of the device's own.

    Raises:
        ConfigError: there is no such device or profile.
    """
    found = _known(device) if profile is None else find_device(device, profile)
    if found is None or found.identity is None or not found.runtime:
        return None
    return Place(Site.of(found), found.profile)


@lru_cache(maxsize=64)
def _known(device: str) -> Device | None:
    """A device, looked for once: that asks every plugin."""
    try:
        return find_device(device)
    except UnsupportedError:
        return None


@lru_cache(maxsize=1024)
def own_kernel(site: Site, make: Callable[..., KernelSpec], *given: Hashable) -> OwnKernel:
    """The kernel that `make` describes, given so much, compiled and loaded by the first call.

    Raises:
        CaptureError: it is not loaded, in the capture of a graph.
        CompileError, UnsupportedError: it can't be compiled.
    """
    spec = make(*given)
    handle = workshop().load(spec, site)
    kinds, every = [arg.kind for arg in spec.args], range(len(spec.args))
    with site.active():
        launch = site.runtime.prepare(handle, kinds, [None] * len(kinds), {}, every)
    return OwnKernel(spec, launch)
