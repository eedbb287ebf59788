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
from humming.jit.program import Binary, Kind

__all__ = ["Workshop", "workshop"]

_CORE = "humming"


@dataclass(frozen=True)
class _Sources:
    """Templates and headers of some packages, and core's."""

    renderer: Renderer
    headers: HeaderRoots

    @classmethod
    def of(cls, packages: Sequence[str]) -> _Sources:
        try:
            roots = {name: resources.files(name) for name in (*packages, _CORE)}
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
        self._sources: dict[tuple[str, ...], _Sources] = {}
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
            sources = self._of_packages(spec.template.partition("/")[0], *spec.packages)
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
        """:meth:`load` of several kernels, compiled and loaded side by side."""
        programs = [self.program(spec, site.kind(spec.arch)) for spec in specs]
        keys = [(*site.key, program.digest) for program in programs]
        every = zip(keys, specs, programs, strict=True)
        missing = {key: (spec, program) for key, spec, program in every if key not in self._loaded}
        if missing:
            if site.capturing():
                spec, _ = next(iter(missing.values()))
                raise CaptureError(spec.name, str(site.device))
            entries = {program.digest: (key, spec) for key, (spec, program) in missing.items()}

            def load(program: Program, binary: Binary) -> None:
                key, spec = entries[program.digest]
                with site.active():  # it is that of a thread
                    self._loaded[key] = site.runtime.load(binary.data, spec.entry)

            # Kernels come by the size of their problems; those of large ones take longest. They are
            # loaded in the threads that compile: a driver may have PTX to translate.
            largest_first = [program for _, program in reversed(missing.values())]
            self.library.get_many(largest_first, then=load)
        return [self._loaded[key] for key in keys]

    def _of_packages(self, *packages: str) -> _Sources:
        with self._lock:
            if packages not in self._sources:
                self._sources[packages] = _Sources.of(packages)
            return self._sources[packages]


@lru_cache(maxsize=1)
def workshop() -> Workshop:
    """The workshop of this process, made by the first call."""
    return Workshop()
