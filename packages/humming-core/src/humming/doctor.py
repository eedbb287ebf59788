"""What humming depends on, examined: each finding says what is there and how to mend it."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from humming import plugins, settings
from humming._clash import find_clash
from humming.errors import HummingError
from humming.jit import chosen_compiler, default_folder, upkeep
from humming.selection import device_names, find_device, select_backend

__all__ = ["FAIL", "OK", "WARN", "Finding", "examine"]

OK, WARN, FAIL = "ok", "warn", "fail"

_OLDEST_TORCH = (2, 7)
_PYTHONS = ((3, 10), (3, 13))
_LIBRARIES = ("numpy", "safetensors", "pluggy", "rich", "jinja2")
_NVRTC = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
_BINDINGS = ("cuda-bindings", "cuda-core")


@dataclass(frozen=True)
class Finding:
    """One row of the examination.

    Attributes:
        subject: what was looked at.
        status: "ok", "warn" (something will not work or be slow) or "fail" (broken).
        found: what is there.
        mend: a sentence or a command that makes it well; "" if it is.
    """

    subject: str
    status: str
    found: str
    mend: str = ""


def examine() -> list[Finding]:
    """Look at everything once; raises nothing that a broken environment could cause."""
    torch = _import_torch()
    driver = _driver_cuda()
    return [
        _python(),
        *_humming(),
        _torch(torch),
        _driver(driver, torch),
        *_guarded("devices", _devices),
        *_guarded("compiler", lambda: _compiler(driver, torch)),
        *_guarded("cache", _cache),
        *_guarded("settings", _settings),
        *_guarded("plugins", _plugins),
        *_guarded("profiles", _profiles),
        _gguf(),
    ]


def _guarded(subject: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """The findings of a check; what it can't get past is the last of them."""
    try:
        yield from check()
    except HummingError as error:
        yield Finding(subject, FAIL, str(error), "correct what the message names")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


# -- Python, humming, torch ------------------------------------------------------------------------


def _python() -> Finding:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    found += f", {sys.executable}"
    oldest, newest = _PYTHONS
    if oldest <= sys.version_info[:2] <= newest:
        return Finding("python", OK, found)
    span = f"{oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
    return Finding("python", WARN, found, f"humming is tested with Python {span}; use one of them")


def _humming() -> Iterator[Finding]:
    version = _version("humming-core") or "a source tree, not installed"
    yield Finding("humming-core", OK, f"{version}, {Path(__file__).parent}")
    clash = find_clash()
    if clash is None:
        yield Finding("import name", OK, "no other distribution owns files of 'humming'")
    else:
        found, _, mend = clash.partition("\n")
        yield Finding("import name", FAIL, found, mend.strip())
    libraries = [f"{name} {_version(name) or 'missing'}" for name in _LIBRARIES]
    yield Finding("libraries", OK, ", ".join(libraries))


def _import_torch() -> Any:
    """The module, or what importing it raised."""
    try:
        return import_module("torch")
    except (ImportError, OSError) as error:  # OSError: a shared library that does not load
        return error


def _torch(torch: Any) -> Finding:
    install = 'python -m pip install "torch>=2.7"'
    if isinstance(torch, Exception):
        return Finding("torch", FAIL, f"can't be imported: {torch}", install)
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    found = f"{torch.__version__}, {built}"
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if release < _OLDEST_TORCH:
        return Finding("torch", FAIL, found, f"humming needs 2.7 or newer: {install}")
    return Finding("torch", OK, found)


# -- devices ---------------------------------------------------------------------------------------


def _driver_cuda() -> tuple[int, int] | None:
    """The newest CUDA version that the NVIDIA driver runs, or None without a driver."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int(0)
    if driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return 0, 0
    return version.value // 1000, version.value % 1000 // 10


def _driver(driver: tuple[int, int] | None, torch: Any) -> Finding:
    if driver is None:
        return Finding("NVIDIA driver", OK, "none: this machine computes on its CPU")
    runs = f"runs CUDA up to {driver[0]}.{driver[1]}"
    if driver == (0, 0):
        return Finding("NVIDIA driver", FAIL, "does not answer", "reinstall the driver, reboot")
    if isinstance(torch, Exception):
        return Finding("NVIDIA driver", OK, runs)
    if torch.version.cuda is None:
        return Finding(
            "NVIDIA driver",
            WARN,
            f"{runs}, but torch is built without CUDA and can't use it",
            f"install a torch built for CUDA {driver[0]} or older",
        )
    if _sees_devices(torch):
        return Finding("NVIDIA driver", OK, runs)
    if int(torch.version.cuda.split(".")[0]) > driver[0]:
        return Finding(
            "NVIDIA driver",
            FAIL,
            f"{runs}, torch is built for {torch.version.cuda}",
            f"update the driver, or install a torch built for CUDA {driver[0]}",
        )
    return Finding(
        "NVIDIA driver",
        WARN,
        f"{runs}, but torch sees no device",
        "see that CUDA_VISIBLE_DEVICES hides none, and that you may open /dev/nvidia*",
    )


def _sees_devices(torch: Any) -> bool:
    with warnings.catch_warnings():  # torch warns of what the finding will say
        warnings.simplefilter("ignore")
        return bool(torch.cuda.is_available())


def _devices() -> Iterator[Finding]:
    names, simulated = device_names()
    for name in names:
        try:
            device = find_device(name)
            backend = select_backend(device=name)
        except HummingError as error:
            yield Finding(f"device {name}", WARN, str(error), "see `humming profiles`")
            continue
        found = f"{device}, profile {device.profile.name}, backend {backend.name}"
        yield Finding(f"device {name}", OK, found)
    if simulated:
        yield Finding("simulated", OK, f"{len(simulated)} devices, which `humming devices` lists")


def _compiler(driver: tuple[int, int] | None, torch: Any) -> Iterator[Finding]:
    """NVRTC and the bindings that call it, from pip, unless a toolkit's nvcc is asked for."""
    nvcc = settings.text("HUMMING_NVCC")
    if nvcc:
        yield Finding("compiler", OK, f"{chosen_compiler().fingerprint()}, {nvcc}")
    else:
        yield _nvrtc(driver, torch)
    if settings.flag("HUMMING_NO_JIT"):
        yield Finding("compiling", OK, "forbidden by HUMMING_NO_JIT: only kept kernels are used")


def _nvrtc(driver: tuple[int, int] | None, torch: Any) -> Finding:
    cuda = None if isinstance(torch, Exception) else torch.version.cuda
    major = cuda.split(".")[0] if cuda else str(driver[0]) if driver else "13"
    extra = "cu12" if major == "12" else "cu13"
    install = f'python -m pip install "humming-core[{extra}]"'
    nvrtc = [f"{name} {version}" for name in _NVRTC if (version := _version(name))]
    bindings = [f"{name} {version}" for name in _BINDINGS if (version := _version(name))]
    if nvrtc and len(bindings) == len(_BINDINGS):
        return Finding("compiler", OK, ", ".join(nvrtc + bindings))
    found = ", ".join(nvrtc + bindings) or "none"
    if driver is None:
        return Finding("compiler", OK, f"{found}; needed only to compile kernels: {install}")
    return Finding("compiler", WARN, f"{found}: kernels can't be compiled", install)


# -- folders, settings, plugins --------------------------------------------------------------------


def _cache() -> Iterator[Finding]:
    """Whether compiled kernels can be kept, and what is kept."""
    yield _cache_folder()
    for folder in map(Path, settings.paths("HUMMING_CACHE_READONLY")):
        if folder.is_dir():
            yield Finding("read-only cache", OK, f"{folder} ({_kept(folder)})")
        else:
            mend = "correct HUMMING_CACHE_READONLY"
            yield Finding("read-only cache", WARN, f"{folder}: there is no such folder", mend)


def _kept(folder: Path) -> str:
    entries = upkeep.entries(folder)
    kernels = sum(entry.binary is not None for entry in entries)
    return f"{kernels} kernels, {sum(entry.nbytes for entry in entries) / 2**20:.1f} MiB"


def _cache_folder() -> Finding:
    folder = default_folder()
    if folder is None:
        mend = "set HUMMING_CACHE_DIR to a folder that you can write to"
        return Finding("cache", WARN, "this user has no home folder", mend)
    there = next((p for p in (folder, *folder.parents) if p.exists()), folder)
    if there.is_dir() and os.access(there, os.W_OK):
        limit = settings.size("HUMMING_CACHE_LIMIT")
        state = _kept(folder) if folder.is_dir() else "will be made when it is needed"
        state += "" if limit is None else f", at most {limit / 2**20:.0f} MiB"
        return Finding("cache", OK, f"{folder} ({state})")
    why = f"{there} is not writable" if there.is_dir() else f"{there} is not a folder"
    mend = "set HUMMING_CACHE_DIR to a folder that you can write to"
    return Finding("cache", WARN, f"{folder}: {why}", mend)


def _settings() -> Iterator[Finding]:
    changed = []
    for name, variable in settings.VARIABLES.items():
        value = settings.text(name)
        if value != variable.default:
            changed.append(f"{name}={value}")
        if variable.default in ("0", "1"):
            settings.flag(name)  # raises what the caller reports
    yield Finding("settings", OK, ", ".join(changed) or "all HUMMING_* variables are unset")
    backend = settings.text("HUMMING_BACKEND")
    if backend and backend not in plugins.backends():
        known = ", ".join(plugins.backends())
        mend = f"unset it, or name one of {known}"
        yield Finding("HUMMING_BACKEND", FAIL, f"{backend!r} is not installed", mend)


def _plugins() -> Iterator[Finding]:
    registry = plugins.load()
    found = ", ".join(f"{plugin.name} {plugin.version}" for plugin in registry.plugins)
    yield Finding("plugins", OK, f"{found}; backends {', '.join(registry.backends)}")
    for failure in registry.failures:
        who = failure.plugin.distribution
        mend = f"python -m pip install --upgrade {who} (or uninstall it)"
        yield Finding(f"plugin {failure.name}", FAIL, failure.reason, mend)


def _profiles() -> Iterator[Finding]:
    yield Finding("profiles", OK, f"{len(plugins.profiles())} device profiles")


def _gguf() -> Finding:
    version = _version("gguf")
    install = 'python -m pip install "humming-core[gguf]"'
    return Finding(
        "gguf", OK, version or f"not installed; needed only to read GGUF files: {install}"
    )
