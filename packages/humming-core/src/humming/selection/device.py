"""find_device(): from what a caller writes to a device and its profile."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from humming import devices, plugins
from humming.errors import ConfigError, HummingError, UnsupportedError
from humming.profiles import DeviceIdentity, DeviceProfile, best_matches, load_profile
from humming.selection.notice import log_once

__all__ = ["Device", "device_names", "find_device", "find_profile"]


@dataclass(frozen=True, kw_only=True)
class Device:
    """Where work would run.

    Attributes:
        profile: the facts, with the live device's own limits.
        identity: the live device; None if only the profile was named.
        runtime: name of the runtime that knows the device; "" for the host.
    """

    profile: DeviceProfile
    identity: DeviceIdentity | None = None
    runtime: str = ""

    def __str__(self) -> str:
        return self.identity.name if self.identity else self.profile.title


def find_device(
    device: object = None, profile: str | os.PathLike[str] | DeviceProfile | None = None
) -> Device:
    """The device that is meant, and its profile.

    Args:
        device: None (the current GPU, else the host), an ordinal, anything that reads as
            ``"cuda:1"``, ``"cpu"``, or ``"RUNTIME:DEVICE"``, such as a simulator's.
        profile: use these facts instead of looking for them: a profile's name, a TOML file, or
            a profile. Without `device` it stands for hardware that is not there.

    Raises:
        ConfigError: there is no such device, runtime or profile.
        UnsupportedError: no profile matches the device, or several do.
        ProfileError: the named file is no valid profile.
    """
    if profile is not None and device is None:
        return Device(profile=_named_profile(profile))
    runtime, identity = _identify(device)
    facts = _matching_profile(identity) if profile is None else _named_profile(profile)
    facts, different = facts.with_live_limits(identity)
    for key, (stated, live) in different.items():
        log_once(
            logging.WARNING,
            f"{identity.name}: {key} is {live}, profile {facts.name} says {stated}; using {live}",
        )
    return Device(profile=facts, identity=identity, runtime=runtime)


def find_profile(
    device: object = None, profile: str | os.PathLike[str] | DeviceProfile | None = None
) -> DeviceProfile:
    """The facts about a device; see :func:`find_device`."""
    return find_device(device, profile).profile


def device_names() -> tuple[list[str], list[str]]:
    """What `device` may be: names of the devices that are there, the host first; simulated ones."""
    there = ["cpu"]
    simulated: list[str] = []
    for name, runtime in plugins.runtimes().items():
        try:
            found = [(device, runtime.identify(device)) for device in runtime.devices()]
        except HummingError as error:  # the others' devices are there all the same
            log_once(logging.WARNING, f"runtime {name} can't list its devices: {error}")
            continue
        for device, identity in found:
            is_simulated = identity is not None and identity.torch_device == "cpu"
            (simulated if is_simulated else there).append(f"{name}:{device}")
    return there, simulated


def _identify(device: object) -> tuple[str, DeviceIdentity]:
    """Runtime and identity of a live device."""
    host = DeviceIdentity(name="host CPU", vendor="cpu", capability=(0, 0), limits={})
    spelled = f"cuda:{device}" if _is_ordinal(device) else str(device)
    if device is None or spelled == "cuda":
        ordinal = devices.current()
        if ordinal is not None:
            spelled = f"cuda:{ordinal}"
        elif device is None:
            spelled = "cpu"
    if spelled == "cpu":
        return "", host
    name, _, rest = spelled.partition(":")
    if name == "cuda":  # vendors' probes are asked too, not this runtime alone
        identity = plugins.identify_device(int(rest)) if rest.isdecimal() else None
    elif name in plugins.runtimes() and rest:
        identity = plugins.runtimes()[name].identify(rest)
    else:
        known = ", ".join(f"{runtime}:DEVICE" for runtime in plugins.runtimes())
        raise ConfigError("device", spelled, f"an ordinal, cpu, {known}")
    if identity is None:
        there, simulated = device_names()
        there += [device for device in simulated if device.startswith(f"{name}:")]
        raise ConfigError("device", spelled, f"a device that is there: {', '.join(there)}")
    return name, identity


def _is_ordinal(device: object) -> bool:
    return isinstance(device, int) and not isinstance(device, bool)


def _named_profile(profile: str | os.PathLike[str] | DeviceProfile) -> DeviceProfile:
    if isinstance(profile, DeviceProfile):
        return profile
    spelled = os.fspath(profile)
    if spelled.endswith(".toml"):
        return load_profile(Path(spelled))
    known = plugins.profiles()
    if spelled not in known:
        names = ", ".join(sorted(known))
        raise ConfigError("profile", spelled, f"a .toml file or one of {names}")
    return known[spelled]


def _matching_profile(device: DeviceIdentity) -> DeviceProfile:
    known = list(plugins.profiles().values())
    found = best_matches(known, device)
    if len(found) == 1:
        return found[0]
    who = f"{device.name} (vendor {device.vendor}, capability {_dotted(device.capability)})"
    if found:
        names = ", ".join(f"{profile.name} ({profile.path})" for profile in found)
        raise UnsupportedError(f"several device profiles match {who} equally well: {names}")
    same_vendor = {p.capability for p in known if p.vendor == device.vendor and p.capability}
    covered = ", ".join(_dotted(c) for c in sorted(same_vendor)) or "none of this vendor"
    raise UnsupportedError(
        f"{who} is not supported: no device profile matches it. Capabilities with a profile: "
        f"{covered}. A profile in a folder of HUMMING_PROFILE_PATH adds a device"
    )


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
