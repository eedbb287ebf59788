"""NVRTC as pip installs it, called through cuda-python: no toolkit, no driver, no GPU."""

from __future__ import annotations

import ctypes
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

from humming.errors import UnsupportedError
from humming.jit.program import (
    Binary,
    Program,
    Refusal,
    read_usage,
    standard_of,
    without_timings,
)

__all__ = ["Nvrtc"]

#: The distribution that holds NVRTC, by the major version of the bindings.
_DISTRIBUTIONS = {"12": "nvidia-cuda-nvrtc-cu12", "13": "nvidia-cuda-nvrtc"}
_BINDINGS = "cuda-bindings"
_INSTALL = (
    'python -m pip install "humming-core[cu13]" (or [cu12], for a torch built for CUDA 12; '
    "or set HUMMING_NVCC to the path of an nvcc)"
)
# NVRTC looks for "x.cuh" in the working folder and keeps results in a cache of its own, unless
# told not to: both would let something in that is not in the key. Lambdas with auto parameters are
# host functions to NVRTC 13.0 (not to 13.5) unless it is told what functions are by default.
_OPTIONS = ("--no-source-include", "--no-cache", "--device-as-default-execution-space")


class Nvrtc:
    """The compiler of :class:`humming.jit.Program` that is used unless another is asked for.

    Threads compile side by side: the call leaves Python's lock, and NVRTC has none of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._api: Any = None
        self._fingerprint = ""

    def fingerprint(self) -> str:
        """Its name and version, from what pip knows, so that nothing large is loaded for it."""
        if not self._fingerprint:
            version = _installed_version()
            if version is None:
                self._load()  # a toolkit's or conda's; asks the library itself
            else:
                self._fingerprint = f"nvrtc {version}"
        return self._fingerprint

    def options(self, program: Program) -> list[str]:
        """Architecture, language, and what keeps everything out that is not in the key."""
        virtual = program.kind == "ptx"
        arch = program.arch.replace("sm_", "compute_", 1) if virtual else program.arch
        usage = [] if virtual else ["--ptxas-options=-v"]
        own = [f"--gpu-architecture={arch}", *standard_of(program), *usage, *_OPTIONS]
        return [*own, *program.options]

    def load(self) -> str:
        """Load the library, which takes some 0.3 s, and ask its version."""
        self._load()
        return self._fingerprint

    def compile(self, program: Program) -> Binary:
        """Compile in this thread; see :class:`humming.jit.ProgramCompiler`."""
        api = self._load()
        options = self.options(program)
        command = f"{self.fingerprint()}: {' '.join(options)} {program.name}.cu"
        source, headers = program.texts()
        status, handle = api.nvrtcCreateProgram(
            source,
            f"{program.name}.cu".encode(),
            len(headers),
            [text for _, text in headers],
            [name.encode() for name, _ in headers],
        )
        _expect_success(api, status, command)
        try:
            (status,) = api.nvrtcCompileProgram(
                handle, len(options), [option.encode() for option in options]
            )
            said = _output(api, handle, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            log = without_timings(said)
            if status != api.nvrtcResult.NVRTC_SUCCESS:
                raise Refusal(command, log or _meaning(api, status))
            data = _output(api, handle, program.kind.upper())
        finally:
            api.nvrtcDestroyProgram(handle)
        if program.kind == "ptx":
            data = data.rstrip(b"\0")
        return Binary(program.kind, data, log, read_usage(log), self.fingerprint())

    def _load(self) -> Any:
        """The bindings with the library loaded; corrects the fingerprint if it is another's."""
        with self._lock:
            if self._api is not None:
                return self._api
            try:
                _load_builtins()
                from cuda.bindings import nvrtc

                _, major, minor = nvrtc.nvrtcVersion()
            except (ImportError, OSError, RuntimeError) as error:
                raise UnsupportedError(
                    f"there is no compiler for kernels: {error}\ninstall one: {_INSTALL}"
                ) from error
            loaded, version = f"{major}.{minor}", _installed_version() or ""
            if version.split(".")[:2] != loaded.split("."):
                version = f"{loaded} (not pip's)"
            self._fingerprint = f"nvrtc {version}"
            self._api = nvrtc
            return nvrtc


def _installed_version() -> str | None:
    """The version of pip's NVRTC that the installed bindings load, or None."""
    try:
        major = metadata.version(_BINDINGS).split(".")[0]
        return metadata.version(_DISTRIBUTIONS[major])
    except (metadata.PackageNotFoundError, KeyError):
        return None


def _load_builtins() -> None:
    """Load NVRTC and what it needs beside it.

    NVRTC 13.0 looks for its builtins by name alone, which finds them only if they are loaded.
    """
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib
    except ImportError:
        return  # the bindings find the library themselves, or say why not
    path = load_nvidia_dynamic_lib("nvrtc").abs_path
    if path is not None:
        for builtins in sorted(Path(path).parent.glob("libnvrtc-builtins.so*")):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)


def _output(api: Any, handle: Any, what: str) -> bytes:
    """One of the program's results: ``"CUBIN"``, ``"PTX"`` or ``"ProgramLog"``."""
    status, size = getattr(api, f"nvrtcGet{what}Size")(handle)
    _expect_success(api, status, what)
    data = bytearray(size)
    (status,) = getattr(api, f"nvrtcGet{what}")(handle, data)
    _expect_success(api, status, what)
    return bytes(data)


def _expect_success(api: Any, status: Any, doing: str) -> None:
    if status != api.nvrtcResult.NVRTC_SUCCESS:
        raise Refusal(doing, _meaning(api, status))


def _meaning(api: Any, status: Any) -> str:
    _, text = api.nvrtcGetErrorString(status)
    return text.decode() if isinstance(text, bytes) else str(text)
