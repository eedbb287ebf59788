"""CUDA C++ to PTX for the simulator's tests: NVRTC from pip through ctypes, no driver and no GPU.

The sources lie in tests/sim/kernels. They include no CUDA header; `#include "x.cuh"` of a file
beside them is pasted in before the compiler sees the text, so that a mutation reaches it too.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[1] / "sim" / "kernels"

_DISTRIBUTION = "nvidia-cuda-nvrtc"
_LIBRARY = re.compile(r"(libnvrtc\.so\.\d+|nvrtc64_\d+_\d+\.dll)")
_BUILTINS = re.compile(r"(libnvrtc-builtins\.so\.[\d.]+|nvrtc-builtins64_\d+\.dll)")
_INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)

Define = int | str


class CompileError(Exception):
    """NVRTC refused a source; the message holds its log."""


def read_kernel(name: str) -> str:
    """The text of tests/sim/kernels/`name` with its own headers pasted in."""
    text = (KERNELS / name).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda found: read_kernel(found[1]), text)


def compile_ptx(source: str, arch: str, defines: Mapping[str, Define] | None = None) -> str:
    """PTX of CUDA C++ text for a virtual architecture, such as "compute_90a".

    Raises CompileError with the compiler's log.
    """
    return _compile(source, arch, _frozen(defines), "PTX").rstrip(b"\0").decode()


def compile_cubin(source: str, arch: str, defines: Mapping[str, Define] | None = None) -> bytes:
    """The binary for a real architecture, such as "sm_90a": proof that ptxas takes the PTX.

    Raises CompileError with the compiler's log.
    """
    return _compile(source, arch, _frozen(defines), "CUBIN")


def _frozen(defines: Mapping[str, Define] | None) -> tuple[tuple[str, Define], ...]:
    return tuple(sorted((defines or {}).items()))


@cache
def _compile(source: str, arch: str, defines: tuple[tuple[str, Define], ...], kind: str) -> bytes:
    options = [f"--gpu-architecture={arch}", "--std=c++17"]
    options += [f"-D{name}={value}" for name, value in defines]
    encoded = [option.encode() for option in options]
    library = _library()
    program = ctypes.c_void_p()
    status = library.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None
    )
    if status:
        raise CompileError(f"nvrtcCreateProgram returned {status}")
    try:
        array = (ctypes.c_char_p * len(encoded))(*encoded)
        status = library.nvrtcCompileProgram(program, len(encoded), array)
        if status:
            raise CompileError(
                f"{arch} {dict(defines)}:\n{_output(program, 'ProgramLog').decode()}"
            )
        return _output(program, kind)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _output(program: ctypes.c_void_p, what: str) -> bytes:
    """One of the program's outputs: PTX, CUBIN or ProgramLog."""
    library = _library()
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw if what == "CUBIN" else buffer.value


@cache
def _library() -> ctypes.CDLL:
    """NVRTC from the pip package, its builtins loaded first because 13.0 looks for them by name."""
    files = importlib.metadata.files(_DISTRIBUTION) or []
    found: dict[re.Pattern[str], Path] = {}
    for pattern in (_BUILTINS, _LIBRARY):
        paths = [Path(str(file.locate())) for file in files if pattern.fullmatch(file.name)]
        if not paths:
            raise FileNotFoundError(f"{_DISTRIBUTION} holds no file like {pattern.pattern}")
        found[pattern] = paths[0]
    ctypes.CDLL(str(found[_BUILTINS]), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(found[_LIBRARY]))
