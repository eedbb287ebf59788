"""Every error that humming raises on purpose.

::

    HummingError
    ├── ConfigError (ValueError)   the request is malformed: field, value, what is allowed
    ├── UnsupportedError           well-formed, but nothing installed will do it: a table of reasons
    │   └── NoBackendError
    ├── CheckpointError            a file does not hold what its config promises
    ├── ProfileError               a device profile: file and all problems at once
    ├── PluginError                plugin, distribution, version
    ├── LayoutMismatch             packed for one layout, used with another
    ├── CompileError               kernel, architecture, saved source, compiler log
    ├── LaunchError                kernel, shape, driver name and meaning
    │   └── CaptureError           a kernel was not loaded when the capture of a graph began
    └── NameClashError (ImportError)   another distribution owns files of the ``humming`` package
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "BackendReason",
    "CaptureError",
    "CheckpointError",
    "CompileError",
    "ConfigError",
    "HummingError",
    "LaunchError",
    "LayoutMismatch",
    "NameClashError",
    "NoBackendError",
    "PluginError",
    "ProfileError",
    "UnsupportedError",
]


class HummingError(Exception):
    """Base of all errors below; catch it to catch everything humming refuses."""


class ConfigError(HummingError, ValueError):
    """A malformed request.

    Args:
        field: what was set, in the caller's terms (``"group_size"``).
        value: what it was set to.
        allowed: a noun phrase naming what would be accepted (``"a positive divisor of k"``).
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        super().__init__(f"{field}={value!r}: expected {allowed}")


class UnsupportedError(HummingError):
    """A well-formed request that nothing installed can serve."""


@dataclass(frozen=True)
class BackendReason:
    """One line of a refusal: which backend, from which distribution, and why not."""

    backend: str
    distribution: str
    reason: str


class NoBackendError(UnsupportedError):
    """No backend accepts the device or the layer; lists each backend with its reason."""

    def __init__(self, request: str, reasons: Sequence[BackendReason], hint: str = "") -> None:
        self.request, self.reasons = request, tuple(reasons)
        name_width = max((len(r.backend) for r in reasons), default=0)
        dist_width = max((len(r.distribution) for r in reasons), default=0)
        lines = [f"no backend accepts {request}"]
        lines += [
            f"  {r.backend:<{name_width}}  {r.distribution:<{dist_width}}  {r.reason}"
            for r in self.reasons
        ] or ["  no backend is installed"]
        if hint:
            lines.append(hint)
        super().__init__("\n".join(lines))


class CheckpointError(HummingError):
    """A checkpoint whose files disagree with their own description.

    Args:
        message: what is wrong, naming expected and found.
        tensor: name of the tensor concerned, if one is.
        path: file or directory concerned, if known.
    """

    def __init__(
        self, message: str, *, tensor: str | None = None, path: object | None = None
    ) -> None:
        self.tensor, self.path = tensor, path
        where = f"{path}: " if path is not None else ""
        what = f"tensor {tensor!r}: " if tensor is not None else ""
        super().__init__(f"{where}{what}{message}")


class ProfileError(HummingError):
    """An invalid device profile: all problems of one file at once, each with its key path."""

    def __init__(self, path: object, problems: Sequence[str]) -> None:
        self.path, self.problems = path, tuple(problems)
        super().__init__("\n  ".join([f"{path}: {len(problems)} problem(s)", *problems]))


class PluginError(HummingError):
    """A plugin that can't be used: its name, distribution and version, and what went wrong."""

    def __init__(self, plugin: str, distribution: str, version: str, problem: str) -> None:
        self.plugin, self.distribution, self.version = plugin, distribution, version
        self.problem = problem
        super().__init__(f"plugin {plugin!r} ({distribution} {version}): {problem}")


class LayoutMismatch(HummingError):
    """A weight packed for one layout met a kernel that reads another."""

    def __init__(self, found: str, expected: str) -> None:
        self.found, self.expected = found, expected
        super().__init__(f"weight is packed as {found!r}, the kernel reads {expected!r}")


class CompileError(HummingError):
    """A kernel that does not compile: name, architecture, saved source, log and command line."""

    def __init__(
        self, kernel: str, arch: str, source: object, log: str, *, command: str = ""
    ) -> None:
        self.kernel, self.arch, self.source, self.log = kernel, arch, source, log
        self.command = command
        lines = [f"{kernel} for {arch} does not compile; source: {source}"]
        lines += [f"command: {command}"] if command else []
        super().__init__("\n".join([*lines, log]))


class LaunchError(HummingError):
    """A launch that the driver refused: kernel, launch shape, and the driver's name for it."""

    def __init__(self, kernel: str, shape: str, status: str) -> None:
        self.kernel, self.shape, self.status = kernel, shape, status
        super().__init__(f"{kernel} [{shape}]: {status}")


class CaptureError(LaunchError):
    """A kernel met the capture of a CUDA graph before it was loaded; nothing was changed."""

    def __init__(self, kernel: str, device: str) -> None:
        super().__init__(
            kernel,
            f"loading on {device}",
            "not while a CUDA graph is captured; warm up first: call the layer once with these "
            "sizes outside of the capture",
        )


class NameClashError(HummingError, ImportError):
    """Files of another distribution lie in the ``humming`` package."""
