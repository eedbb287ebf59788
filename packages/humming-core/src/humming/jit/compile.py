"""Compile programs, one or many at once, without keeping anything."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from humming import settings
from humming.errors import CompileError
from humming.jit.nvcc import Nvcc
from humming.jit.nvrtc import Nvrtc
from humming.jit.program import Binary, Program, ProgramCompiler, Refusal

__all__ = ["chosen_compiler", "compile_many", "compile_program", "default_threads"]

#: More than this many threads gain little, and each takes some 100 MB while it compiles.
_MOST_THREADS = 16


def chosen_compiler() -> ProgramCompiler:
    """The nvcc that HUMMING_NVCC names, else NVRTC."""
    path = settings.text("HUMMING_NVCC")
    return Nvcc(path) if path else Nvrtc()


def default_threads() -> int:
    """How many programs to compile at once: as many as this process has cores, to a limit."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        cores = os.cpu_count() or 1
    return min(cores, _MOST_THREADS)


def compile_program(program: Program, compiler: ProgramCompiler | None = None) -> Binary:
    """Compile one program.

    Raises:
        CompileError: it is wrong; the source is in a temporary file, which the error names.
        UnsupportedError: there is no compiler.
    """
    try:
        return (compiler or chosen_compiler()).compile(program)
    except Refusal as refusal:
        raise compile_error(program, refusal, save_temporarily(program)) from None


def compile_many(
    programs: Sequence[Program],
    threads: int | None = None,
    compiler: ProgramCompiler | None = None,
) -> list[Binary]:
    """Compile programs in several threads; the results are in the order of the programs.

    Raises:
        CompileError: one of them is wrong, the first in order; the others have been compiled too.
        UnsupportedError: there is no compiler.
    """
    shared = compiler or chosen_compiler()
    with ThreadPoolExecutor(threads or default_threads()) as pool:
        return list(pool.map(lambda program: compile_program(program, shared), programs))


def compile_error(program: Program, refusal: Refusal, source: Path | None) -> CompileError:
    """What users see of a refusal."""
    where = source or "not saved, for there was nowhere to save it"
    return CompileError(program.name, program.arch, where, refusal.log, command=refusal.command)


def save_temporarily(program: Program) -> Path | None:
    """Write a source where temporary files go; None if that can't be done."""
    try:
        handle, path = tempfile.mkstemp(prefix=f"humming-{program.name}-", suffix=".cu")
        with open(handle, "wb") as file:
            file.write(program.source.encode())
    except OSError:
        return None
    return Path(path)
