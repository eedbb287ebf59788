"""select_backend(): who runs a layer, and why nobody else does."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

from humming import plugins
from humming.backend import Backend
from humming.configs import ComputeConfig, LayerConfig
from humming.errors import BackendReason, ConfigError, NoBackendError, UnsupportedError
from humming.profiles import DeviceProfile
from humming.selection.device import Device, find_device
from humming.selection.notice import log, log_once
from humming.settings import text

__all__ = ["Verdict", "select_backend", "verdicts"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one installed backend says of a device and a layer.

    Attributes:
        name: of the backend, or of the plugin that failed.
        distribution: where it comes from.
        version: of the distribution.
        backend: ready for use; None if it refuses.
        reason: why it refuses; "" if it accepts.
        fallback: whether it is chosen only if no other accepts.
    """

    name: str
    distribution: str
    version: str
    backend: Backend | None = None
    reason: str = ""
    fallback: bool = False

    def row(self) -> BackendReason:
        """As a line of a refusal."""
        return BackendReason(
            self.name, f"{self.distribution} {self.version}", self.reason or "would accept"
        )


def verdicts(
    profile: DeviceProfile,
    layer: LayerConfig | None = None,
    compute: ComputeConfig | None = None,
) -> list[Verdict]:
    """What every installed backend says, and every plugin that failed to load."""
    found = []
    for name, (kind, distribution, version) in plugins.backends().items():
        backend, reason = _judge(kind, profile, layer, compute or ComputeConfig())
        found.append(
            Verdict(
                name=name,
                distribution=distribution,
                version=version,
                backend=backend,
                reason=reason,
                fallback=kind.fallback,
            )
        )
    for failure in plugins.failures():
        plugin = failure.plugin
        found.append(
            Verdict(
                name=failure.name,
                distribution=plugin.distribution,
                version=plugin.version,
                reason=failure.reason,
            )
        )
    return found


def _judge(
    kind: type[Backend],
    profile: DeviceProfile,
    layer: LayerConfig | None,
    compute: ComputeConfig,
) -> tuple[Backend | None, str]:
    """The backend and "", or None and its reason."""
    try:
        reason = kind.refuse_device(profile)
        if reason is not None:
            return None, reason
        backend = kind(profile)
        reason = backend.refuse(layer, compute) if layer is not None else None
    except Exception as error:  # somebody else's code: what it raises is its reason, and is shown
        log.warning("backend %s fails to judge %s", kind.name, profile.name, exc_info=True)
        return None, f"fails: {type(error).__name__}: {error}"
    return (backend, "") if reason is None else (None, reason)


def select_backend(
    name: str | None = None,
    *,
    device: object = None,
    profile: str | os.PathLike[str] | DeviceProfile | None = None,
    layer: LayerConfig | None = None,
    compute: ComputeConfig | None = None,
) -> Backend:
    """The backend for a device, and for a layer if one is given.

    In this order: `name`; HUMMING_BACKEND; the one that the profile prefers; the only one that
    accepts. Fallback backends count only if no other accepts, and that is logged once. What
    was named is never replaced by another.

    Args:
        name: of an installed backend.
        device: see :func:`find_device`.
        profile: see :func:`find_device`; plans for hardware that is not there.
        layer: what it must be able to multiply.
        compute: what it must promise; the defaults if None.

    Raises:
        NoBackendError: none accepts; lists each with its version and its reason.
        UnsupportedError: the named one refuses, several accept and none is preferred, or no
            profile matches the device.
        ConfigError: there is no backend, device or profile of that name.
        PluginError: the named backend is there but can't be used.
    """
    where = find_device(device, profile)
    found = verdicts(where.profile, layer, compute)
    request = f"{where}" if layer is None else f"{where} for {layer}"
    name = name or text("HUMMING_BACKEND") or None
    if name is not None:
        return _named_backend(name, found, request)
    preferred = where.profile.target.backend
    accepting = [verdict for verdict in found if verdict.backend is not None]
    first = [v for v in accepting if v.name == preferred]
    others = [v for v in accepting if not v.fallback]
    chosen = first or others or accepting
    if not chosen:
        raise NoBackendError(request, [verdict.row() for verdict in found], _hint(found, preferred))
    if len(chosen) > 1:
        names = ", ".join(f"{v.name} ({v.distribution} {v.version})" for v in chosen)
        raise UnsupportedError(
            f"several backends accept {request}, and its profile prefers none of them: {names}. "
            "Name one in the call or in HUMMING_BACKEND"
        )
    if chosen[0].fallback and chosen[0].name != preferred:
        _log_fallback(chosen[0], found, where, preferred)
    return _backend_of(chosen[0])


def _backend_of(verdict: Verdict) -> Backend:
    assert verdict.backend is not None, "only accepting verdicts get here"
    return verdict.backend


def _named_backend(name: str, found: Sequence[Verdict], request: str) -> Backend:
    named = [verdict for verdict in found if verdict.name == name]
    accepting = [verdict for verdict in named if verdict.backend is not None]
    if accepting:
        return _backend_of(accepting[0])
    for failure in plugins.failures():
        if failure.name == name:
            raise failure.plugin.error(failure.reason) from failure.error
    if not named:
        installed = ", ".join(sorted(verdict.name for verdict in found))
        raise ConfigError("backend", name, f"one that is installed: {installed}")
    refusing = named[0]
    raise NoBackendError(
        f"{request} as {name!r} (a named backend is never replaced)",
        [refusing.row(), *(verdict.row() for verdict in found if verdict is not refusing)],
    )


def _hint(found: Sequence[Verdict], preferred: str) -> str:
    if not preferred or any(verdict.name == preferred for verdict in found):
        return ""
    return f"the backend for this device, {preferred!r}, is not installed"


def _log_fallback(chosen: Verdict, found: Sequence[Verdict], where: Device, preferred: str) -> None:
    reasons = [
        f"{v.name} of {v.distribution} {v.version}: {v.reason}"
        for v in found
        if v.reason and v.name == preferred
    ]
    reasons = reasons or [hint for hint in [_hint(found, preferred)] if hint]
    because = f" ({'; '.join(reasons)})" if reasons else ""
    log_once(
        logging.WARNING if preferred else logging.INFO,
        f"{where}: no other backend accepts, using {chosen.name!r}{because}",
    )
