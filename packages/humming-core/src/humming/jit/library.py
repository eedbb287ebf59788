"""The kernels of this process: each is found or compiled once, whoever asks and however often."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from humming import settings
from humming.errors import UnsupportedError
from humming.jit.cache import Cache, Key
from humming.jit.compile import (
    chosen_compiler,
    compile_error,
    default_threads,
    save_temporarily,
)
from humming.jit.program import Binary, Program, ProgramCompiler, Refusal

__all__ = ["KernelLibrary"]

_LOG = logging.getLogger("humming.jit")


class _Built(NamedTuple):
    program: Program
    kept: Path | None


class KernelLibrary:
    """Programs to binaries, from memory, from the cache, or from the compiler.

    Args:
        cache: where kernels are kept; as the settings say if None.
        compiler: what compiles; as the settings say if None.
    """

    def __init__(self, cache: Cache | None = None, compiler: ProgramCompiler | None = None) -> None:
        self.cache = cache or Cache.from_settings()
        self.compiler = compiler or chosen_compiler()
        self._lock = threading.Lock()
        self._known: dict[str, Binary] = {}
        # By process too: a fork has none of the threads that others wait for.
        self._pending: dict[tuple[int, str], Future[Binary]] = {}

    def get(self, program: Program) -> Binary:
        """The binary of a program; logs one line if that takes compiling.

        Raises:
            CompileError: the program is wrong; names source, command line and log.
            UnsupportedError: it would have to be compiled, and HUMMING_NO_JIT forbids that or
                there is no compiler.
        """
        return self.get_many([program], threads=1)[0]

    def get_many(
        self,
        programs: Sequence[Program],
        threads: int | None = None,
        then: Callable[[Program, Binary], object] = lambda program, binary: None,
    ) -> list[Binary]:
        """The binaries of programs, compiled several at once; logs one line for all of them.

        Args:
            programs: begun in this order.
            threads: how many at once; None is :func:`default_threads`.
            then: what is done with each, in the thread that got it, while others are compiled.

        Raises:
            CompileError, UnsupportedError: as :meth:`get`, for the first in order that fails; the
                others have been compiled and kept. So for what `then` raises.
        """
        built: list[_Built] = []

        def work(program: Program) -> Binary:
            binary = self._get(program, built)
            then(program, binary)
            return binary

        start = time.perf_counter()
        count = min(threads or default_threads(), len({program.digest for program in programs}))
        try:
            if len(programs) < 2:
                return [work(program) for program in programs]
            # Not pool.map: at the first error it would cancel what has not started.
            with ThreadPoolExecutor(count) as pool:
                futures = [pool.submit(work, program) for program in programs]
            return [future.result() for future in futures]
        finally:
            if built:
                self._log_build(built, time.perf_counter() - start)

    def _get(self, program: Program, built: list[_Built]) -> Binary:
        """One binary; of threads that ask for it at once, one works and the others wait."""
        slot = os.getpid(), program.digest
        with self._lock:
            known = self._known.get(program.digest)
            if known is not None:
                return known
            awaited = self._pending.get(slot)
            if awaited is None:
                mine = self._pending[slot] = Future()
        if awaited is not None:
            return awaited.result()
        try:
            binary = self._find_or_build(program, built)
        except BaseException as error:
            with self._lock:
                del self._pending[slot]
            mine.set_exception(error)
            raise
        with self._lock:
            self._known[program.digest] = binary
            del self._pending[slot]
        mine.set_result(binary)
        return binary

    def _find_or_build(self, program: Program, built: list[_Built]) -> Binary:
        may_compile = not settings.flag("HUMMING_NO_JIT")
        try:
            key = self._key(program, self.compiler.fingerprint())
        except UnsupportedError as missing:
            return self._find_otherwise(Key.of(program, ""), program, str(missing))
        found = self.cache.find(key)
        if found is not None:
            return found
        if not may_compile:
            return self._find_otherwise(key, program, "HUMMING_NO_JIT forbids compiling it")
        with self.cache.lock(key):
            # Whoever had the lock before may have compiled it.
            found = self.cache.find_or_mend(key)
            if found is not None:
                return found
            exact = self._key(program, self.compiler.load())
            if exact == key:
                return self._build(key, program, built)
        with self.cache.lock(exact):
            return self.cache.find_or_mend(exact) or self._build(exact, program, built)

    def _key(self, program: Program, fingerprint: str) -> Key:
        return Key.of(program, fingerprint, self.compiler.options(program))

    def _find_otherwise(self, key: Key, program: Program, why: str) -> Binary:
        """For a process that can't compile, what another compiler made is better than nothing."""
        found = self.cache.find_of_any_compiler(key)
        if found is not None:
            return found
        folders = [str(folder) for folder in (self.cache.folder, *self.cache.readonly) if folder]
        raise UnsupportedError(
            f"{program.name} for {program.arch} is not among the compiled kernels "
            f"(looked in {', '.join(folders) or 'memory alone'}), and {why}"
        )

    def _build(self, key: Key, program: Program, built: list[_Built]) -> Binary:
        source = self.cache.save_source(key, program)
        try:
            binary = self.compiler.compile(program)
        except Refusal as refusal:
            self.cache.save_log(key, f"{refusal.command}\n{refusal.log}\n")
            saved = source or save_temporarily(program)
            raise compile_error(program, refusal, saved) from None
        built.append(_Built(program, self.cache.store(key, program, binary)))
        return binary

    def _log_build(self, built: Sequence[_Built], seconds: float) -> None:
        first = built[0].program
        what = first.name if len(built) == 1 else f"{len(built)} kernels"
        arch = ", ".join(sorted({program.arch for program, _ in built}))
        where = "memory" if any(kept is None for _, kept in built) else self.cache.folder
        by = self.compiler.fingerprint()
        _LOG.info("%s compiled %s for %s in %.2f s, kept in %s", by, what, arch, seconds, where)
