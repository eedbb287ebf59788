"""Plugins: find them, load each alone, remember what failed, and collect what they offer.

Nothing is loaded until the first accessor is called. A plugin that fails costs only itself: it
becomes a :class:`PluginFailure`, which ``humming plugins`` and every refusal show.
"""

from __future__ import annotations

import difflib
import inspect
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pluggy

from humming import builtin, hooks
from humming.backend import API_VERSION, Backend, Runtime
from humming.errors import PluginError
from humming.formats.number import NumberFormat
from humming.formats.table import register_format
from humming.hooks import hookimpl
from humming.profiles import DeviceIdentity, DeviceProfile, load_folder
from humming.settings import flag, paths

if TYPE_CHECKING:
    from humming.checkpoints.base import CheckpointLoader

__all__ = [
    "InstalledBackend",
    "Plugin",
    "PluginFailure",
    "Registry",
    "backends",
    "failures",
    "hookimpl",
    "identify_device",
    "load",
    "loaders",
    "profiles",
    "runtimes",
]

_log = logging.getLogger("humming")

CORE = "humming-core"


class Plugin(NamedTuple):
    """Who a plugin is: its entry point's name, and the distribution that it came from."""

    name: str
    distribution: str
    version: str

    def error(self, problem: str) -> PluginError:
        """An error that names this plugin."""
        return PluginError(self.name, self.distribution, self.version, problem)


class InstalledBackend(NamedTuple):
    """A backend class and the distribution that offers it."""

    type: type[Backend]
    distribution: str
    version: str


@dataclass(frozen=True)
class PluginFailure:
    """A plugin, or one thing that it offers, that can't be used.

    Attributes:
        plugin: who.
        error: what was raised.
        backend: the backend concerned, if it was that one alone.
    """

    plugin: Plugin
    error: Exception
    backend: str = ""

    @property
    def name(self) -> str:
        """Name by which someone may ask for what failed."""
        return self.backend or self.plugin.name

    @property
    def reason(self) -> str:
        """Why, in one line."""
        if isinstance(self.error, PluginError):
            return f"failed to load: {self.error.problem}"
        message = " ".join(str(self.error).split()) or "no message"
        return f"failed to load: {type(self.error).__name__}: {message}"

    def __str__(self) -> str:
        plugin = self.plugin
        return f"plugin {plugin.name} ({plugin.distribution} {plugin.version}) {self.reason}"


class Registry:
    """The plugins of one set of entry points, and what they offer.

    Args:
        entry_points: of the group ``humming``; core's own things come in addition, first.
    """

    def __init__(self, entry_points: Iterable[metadata.EntryPoint]) -> None:
        self._manager = pluggy.PluginManager(hooks.PROJECT)
        self._manager.add_hookspecs(hooks)
        self._failures: list[PluginFailure] = []
        self._plugins: dict[str, Plugin] = {}
        self._register(Plugin(CORE, CORE, _version(CORE)), lambda: builtin)
        for point in sorted(entry_points, key=lambda point: point.name):
            distribution = point.dist.name if point.dist else "unknown"
            version = point.dist.version if point.dist else "unknown"
            self._register(Plugin(point.name, distribution, version), point.load)
        for plugin, fmt in self._collect("formats", NumberFormat):
            with self._blaming(plugin):
                register_format(fmt)

    # -- what is offered --------------------------------------------------------------------

    @property
    def plugins(self) -> Sequence[Plugin]:
        """Every plugin that loaded, core first."""
        return tuple(self._plugins.values())

    @property
    def failures(self) -> Sequence[PluginFailure]:
        """What could not be used, after everything has been collected."""
        _ = self.backends, self.runtimes, self.profiles, self._loaders
        return tuple(self._failures)

    @cached_property
    def backends(self) -> Mapping[str, InstalledBackend]:
        """Backends by name."""
        found: dict[str, InstalledBackend] = {}
        for plugin, item in self._collect("backends", type):
            name = str(getattr(item, "name", item.__name__))
            problem = _backend_problem(item)
            if problem is None and name in found:
                problem = f"backend {name!r} is offered by {found[name].distribution} already"
            if problem is None:
                found[name] = InstalledBackend(item, plugin.distribution, plugin.version)
            else:
                self._fail(plugin, plugin.error(problem), backend=name)
        return MappingProxyType(found)

    @cached_property
    def runtimes(self) -> Mapping[str, Runtime]:
        """Runtimes by name."""
        found: dict[str, Runtime] = {}
        for plugin, item in self._collect("runtimes", Runtime):
            if item.name in found:
                problem = f"runtime {item.name!r} is offered by another plugin already"
                self._fail(plugin, plugin.error(problem))
            else:
                found[item.name] = item
        return MappingProxyType(found)

    @cached_property
    def profiles(self) -> Mapping[str, DeviceProfile]:
        """Device profiles by name. One of a plugin replaces core's of the same name."""
        found: dict[str, tuple[Plugin, DeviceProfile]] = {}
        for plugin, folder in self._collect("profiles", object):
            with self._blaming(plugin):
                for profile in load_folder(folder):
                    owner = found.get(profile.name, (None,))[0]
                    if owner is not None and owner.name != CORE:
                        raise plugin.error(
                            f"device profile {profile.name!r} is offered by {owner.distribution} "
                            "already"
                        )
                    found[profile.name] = (plugin, profile)
        return MappingProxyType({name: profile for name, (_, profile) in found.items()})

    @property
    def loaders(self) -> Mapping[str, type[CheckpointLoader]]:
        """Checkpoint loaders by quant_method.

        Raises:
            PluginError: two plugins offer a loader for the same quant_method.
        """
        found, clash = self._loaders
        if clash is not None:
            raise clash
        return found

    @cached_property
    def _loaders(self) -> tuple[Mapping[str, type[CheckpointLoader]], PluginError | None]:
        found: dict[str, tuple[Plugin, type[CheckpointLoader]]] = {}
        clash = None
        for plugin, item in self._collect("loaders", type):
            methods = getattr(item, "quant_methods", ())
            if not methods or not callable(getattr(item, "plan", None)):
                self._fail(plugin, plugin.error(f"{item.__name__} is no CheckpointLoader"))
                continue
            for method in methods:
                owner, other = found.setdefault(method, (plugin, item))
                if other is not item:
                    clash = plugin.error(
                        f"loader for quant_method {method!r}: {owner.distribution} "
                        f"{owner.version} offers one already; uninstall one of them"
                    )
                    self._fail(plugin, clash)
        types = {method: item for method, (_, item) in found.items()}
        return MappingProxyType(types), clash

    def identify_device(self, ordinal: int) -> DeviceIdentity | None:
        """First answer of the plugins' probes, those registered last asked first."""
        for plugin, function in reversed(self._implementations("humming_identify_device")):
            with self._blaming(plugin):
                identity = function(ordinal=ordinal)
                if isinstance(identity, DeviceIdentity):
                    return identity
                if identity is not None:
                    raise plugin.error(f"humming_identify_device returned {identity!r}")
        return None

    # -- loading ----------------------------------------------------------------------------

    def _register(self, plugin: Plugin, load: Callable[[], Any]) -> None:
        if plugin.name in self._plugins:
            other = self._plugins[plugin.name].distribution
            self._fail(plugin, plugin.error(f"an entry point of {other} has the same name"))
            return
        with self._blaming(plugin):
            module = load()
            problem = _hook_problem(self._manager, module)
            if problem is not None:
                raise plugin.error(problem)
            self._manager.register(module, name=plugin.name)
            self._plugins[plugin.name] = plugin
        if plugin.name not in self._plugins and self._manager.has_plugin(plugin.name):
            self._manager.unregister(name=plugin.name)  # older pluggy validates after registering

    def _implementations(self, hook: str) -> list[tuple[Plugin, Callable[..., Any]]]:
        caller = getattr(self._manager.hook, hook)
        return [(self._plugins[i.plugin_name], i.function) for i in caller.get_hookimpls()]

    def _collect(self, what: str, kind: Any) -> list[tuple[Plugin, Any]]:
        """All items of a collecting hook; each implementation is called alone."""
        hook = f"humming_register_{what}"
        found: list[tuple[Plugin, Any]] = []
        for plugin, function in self._implementations(hook):
            with self._blaming(plugin):
                items = function()
                if not isinstance(items, Sequence) or isinstance(items, str):
                    raise plugin.error(f"{hook} returned {items!r}, expected a list")
                wrong = [item for item in items if not isinstance(item, kind)]
                if wrong:
                    raise plugin.error(f"{hook} returned {wrong[0]!r} among its items")
                found += [(plugin, item) for item in items]
        return found

    @contextmanager
    def _blaming(self, plugin: Plugin) -> Iterator[None]:
        """Turn what is raised inside into a failure of `plugin`; core's own faults stay raised."""
        try:
            yield
        except Exception as error:
            if plugin.name == CORE:
                raise
            self._fail(plugin, error)

    def _fail(self, plugin: Plugin, error: Exception, backend: str = "") -> None:
        failure = PluginFailure(plugin, error, backend)
        if str(failure) not in map(str, self._failures):  # a probe fails anew on every call
            self._failures.append(failure)
            _log.warning("%s", failure)


def _hook_problem(manager: pluggy.PluginManager, module: object) -> str | None:
    """What is wrong with a plugin's hooks: misspelt, unmarked, or none at all."""
    known = [name for name in vars(hooks) if name.startswith("humming_")]
    marked = [name for name in dir(module) if manager.parse_hookimpl_opts(module, name)]
    for name in marked:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the hooks are {', '.join(known)}"
            return f"there is no hook {name!r}; {hint}"
    for name in known:
        if name not in marked and callable(getattr(module, name, None)):
            return f"{name} is not marked with @hookimpl"
    return None if marked else f"{module!r} implements none of the hooks {', '.join(known)}"


def _backend_problem(item: type[Any]) -> str | None:
    """What keeps a class from being used as a backend."""
    if not issubclass(item, Backend):
        return f"{item.__name__} is no Backend"
    if item.api != API_VERSION:
        return (
            f"backend {getattr(item, 'name', item.__name__)!r} is written for version {item.api} "
            f"of the contract; this humming-core has version {API_VERSION}"
        )
    if inspect.isabstract(item):
        missing = ", ".join(sorted(item.__abstractmethods__))
        return f"backend {item.__name__} does not define {missing}"
    if not re.fullmatch(r"[a-z][a-z0-9_]*", str(getattr(item, "name", ""))):
        return f"backend {item.__name__} needs a lower-case identifier as its name"
    return None


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:  # run from a source tree
        return "not installed"


# -- of this process ---------------------------------------------------------------------------

_lock = threading.RLock()
_loading = threading.local()


def load() -> Registry:
    """The registry of everything installed; made by the first call.

    Raises:
        RuntimeError: called by a plugin while plugins are being loaded.
        ConfigError: HUMMING_NO_PLUGINS is neither 1 nor 0.
    """
    if getattr(_loading, "now", False):
        raise RuntimeError("a plugin asks for plugins while it is being loaded")
    with _lock:
        return _load()


@lru_cache(maxsize=1)
def _load() -> Registry:
    _loading.now = True
    try:
        none = flag("HUMMING_NO_PLUGINS")
        return Registry(() if none else metadata.entry_points(group=hooks.PROJECT))
    finally:
        _loading.now = False


def backends() -> Mapping[str, InstalledBackend]:
    """Installed backends by name: class, distribution, version."""
    return load().backends


def loaders() -> Mapping[str, type[CheckpointLoader]]:
    """Checkpoint loaders by quant_method; PluginError if two plugins claim one."""
    return load().loaders


def runtimes() -> Mapping[str, Runtime]:
    """Runtimes by name."""
    return load().runtimes


def profiles() -> Mapping[str, DeviceProfile]:
    """Device profiles by name; those in HUMMING_PROFILE_PATH replace a plugin's and core's.

    Raises:
        ProfileError: a folder of HUMMING_PROFILE_PATH is missing or holds an invalid profile.
    """
    return {**load().profiles, **_own_profiles(tuple(paths("HUMMING_PROFILE_PATH")))}


@lru_cache(maxsize=4)
def _own_profiles(folders: tuple[str, ...]) -> Mapping[str, DeviceProfile]:
    """Profiles of the user's folders; the first folder wins."""
    found = [profile for folder in reversed(folders) for profile in load_folder(Path(folder))]
    return {profile.name: profile for profile in found}


def failures() -> Sequence[PluginFailure]:
    """Plugins, or parts of them, that can't be used, and why."""
    return load().failures


def identify_device(ordinal: int) -> DeviceIdentity | None:
    """What a visible device says of itself; None if no plugin knows it."""
    return load().identify_device(ordinal)
