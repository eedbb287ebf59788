"""From kernels as data to kernels that can be launched: rendered, compiled and loaded once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from humming.backend import KernelSpec
from humming.engine.site import Site
from humming.errors import CaptureError
from humming.jit import HeaderRoots, KernelLibrary, Program, Renderer
from humming.jit.program import Kind

__all__ = ["Workshop", "workshop"]

_CORE = "humming"


@dataclass(frozen=True)
class _Sources:
    """Templates and headers of one package, and core's."""

    renderer: Renderer
    headers: HeaderRoots

    @classmethod
    def of(cls, package: str) -> _Sources:
        try:
            roots = {name: resources.files(name) for name in (package, _CORE)}
        except ModuleNotFoundError:  # rendering will say that there is no such template
            roots = {_CORE: resources.files(_CORE)}
        return cls(
            Renderer({name: root / "templates" for name, root in roots.items()}),
            HeaderRoots({name: root / "include" / name for name, root in roots.items()}),
        )


class Workshop:
    """Makes kernels, and keeps what it made for as long as it lives.

    Args:
        library: compiles and keeps binaries; as the settings say if None.
    """

    def __init__(self, library: KernelLibrary | None = None) -> None:
        self.library = library or KernelLibrary()
        self._lock = threading.Lock()
        self._sources: dict[str, _Sources] = {}
        self._programs: dict[tuple[object, ...], Program] = {}
        self._loaded: dict[tuple[str, str, str], object] = {}

    def program(self, spec: KernelSpec, kind: Kind) -> Program:
        """The source of a kernel and all that decides what a compiler makes of it.

        Raises:
            CompileError: its template can't be rendered, or includes what is not there.
        """
        key = (spec.name, spec.template, spec.context, spec.arch, kind)
        found = self._programs.get(key)
        if found is None:
            sources = self._of_package(spec.template.partition("/")[0])
            source = sources.renderer.render(spec.template, spec.context)
            found = Program(
                name=spec.name,
                source=source,
                arch=spec.arch,
                headers=sources.headers.closure(source, spec.name),
                kind=kind,
            )
            self._programs[key] = found
        return found

    def load(self, spec: KernelSpec, site: Site) -> object:
        """The runtime's handle of a kernel, compiled and loaded if it is not yet.

        Raises:
            CaptureError: it is not, and the device's current stream is being captured.
            CompileError, UnsupportedError: see :meth:`KernelLibrary.get`.
        """
        return self.load_all([spec], site)[0]

    def load_all(self, specs: Sequence[KernelSpec], site: Site) -> list[object]:
        """:meth:`load` of several kernels, compiled side by side."""
        programs = [self.program(spec, site.kind(spec.arch)) for spec in specs]
        keys = [(*site.key, program.digest) for program in programs]
        if any(key not in self._loaded for key in keys):
            if site.capturing():
                missing = zip(specs, keys, strict=True)
                name = next(spec.name for spec, key in missing if key not in self._loaded)
                raise CaptureError(name, str(site.device))
            binaries = self.library.get_many(programs)
            with site.active():
                for spec, key, binary in zip(specs, keys, binaries, strict=True):
                    if key not in self._loaded:
                        self._loaded[key] = site.runtime.load(binary.data, spec.entry)
        return [self._loaded[key] for key in keys]

    def _of_package(self, package: str) -> _Sources:
        with self._lock:
            if package not in self._sources:
                self._sources[package] = _Sources.of(package)
            return self._sources[package]


@lru_cache(maxsize=1)
def workshop() -> Workshop:
    """The workshop of this process, made by the first call."""
    return Workshop()
