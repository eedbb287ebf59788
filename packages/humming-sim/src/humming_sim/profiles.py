"""Devices by the names of humming's profiles; the only facts that come from humming-core."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from humming_sim.device import Device, target_parts
from humming_sim.errors import LaunchError

if TYPE_CHECKING:
    from humming.profiles import DeviceProfile

__all__ = ["device_from_profile", "device_of", "limits_of", "simulated"]

#: The oldest architecture whose kernels are simulated.
_OLDEST = 75


def device_of(device: Device | str | None) -> Device | None:
    """A device as given, or by the name of a humming profile ("nvidia-b200").

    Raises:
        LaunchError: see :func:`device_from_profile`.
    """
    return device_from_profile(device) if isinstance(device, str) else device


def device_from_profile(name: str) -> Device:
    """The limits of a device by the name of its humming profile.

    Raises:
        LaunchError: humming-core, which has the profiles, is absent; it knows no such profile; or
            the profile's device is none that is simulated.
    """
    known = _profiles(name)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "`humming profiles` lists them"
        raise LaunchError(f"there is no device profile {name!r}; {hint}")
    possible = simulated(known)
    if name not in possible:
        title = known[name].title
        raise LaunchError(f"{title} ({name!r}) is not simulated; there are {', '.join(possible)}")
    return limits_of(possible[name])


def simulated(profiles: Mapping[str, DeviceProfile]) -> dict[str, DeviceProfile]:
    """Those profiles whose devices are simulated, sorted by name."""
    return {name: profile for name, profile in sorted(profiles.items()) if _is_simulated(profile)}


def limits_of(profile: DeviceProfile) -> Device:
    """A simulated profile's limits; what it leaves out is what every device has."""
    limits = profile.limits
    stated = {"registers": limits.registers, "max_cluster": limits.max_cluster}
    return Device(
        name=profile.title,
        arch=profile.target.arch,
        shared_bytes=limits.smem_block_bytes or 0,
        **{key: value for key, value in stated.items() if value is not None},
    )


def _profiles(wanted: str) -> Mapping[str, DeviceProfile]:
    # Only here: humming-sim is complete without humming-core as long as nobody names a profile.
    try:
        from humming import plugins
        from humming.errors import HummingError
    except ImportError as error:
        raise LaunchError(
            f"device={wanted!r} is the name of a humming profile, and humming-core can't be "
            f"imported ({error}). Install humming-sim[humming], or give a humming_sim.Device"
        ) from error
    try:
        return plugins.profiles()
    except HummingError as error:
        raise LaunchError(f"device profiles can't be read: {error}") from error


def _is_simulated(profile: DeviceProfile) -> bool:
    if profile.vendor != "nvidia" or profile.limits.smem_block_bytes is None:
        return False
    try:
        return target_parts(profile.target.arch)[0] >= _OLDEST
    except LaunchError:  # a user's profile may name none
        return False
