"""nvcc of a CUDA toolkit, for who asks for it with HUMMING_NVCC."""

from __future__ import annotations

import re
import subprocess
import tempfile
import threading
from pathlib import Path

from humming import settings
from humming.errors import ConfigError, UnsupportedError
from humming.jit.program import (
    Binary,
    Program,
    Refusal,
    read_usage,
    standard_of,
    without_timings,
)

__all__ = ["Nvcc"]

_VERSION = re.compile(r"\bV(\d+\.\d+\.\d+)")
#: nvcc adds what these hold to every command, and the key would not know.
_HIDDEN_OPTIONS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")


class Nvcc:
    """One nvcc as a compiler of :class:`humming.jit.Program`.

    Args:
        path: of the program, not of the toolkit.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._fingerprint = ""

    def fingerprint(self) -> str:
        """Its name and version; runs it once."""
        with self._lock:
            if not self._fingerprint:
                if not self._path.is_file():
                    raise ConfigError("HUMMING_NVCC", str(self._path), "the path of an nvcc")
                done = self._run(["--version"], Path(tempfile.gettempdir()))
                found = _VERSION.search(done.stdout)
                if found is None:
                    raise UnsupportedError(
                        f"{self._path} --version names no version: {done.stdout.strip()!r}"
                    )
                self._fingerprint = f"nvcc {found[1]}"
            return self._fingerprint

    def options(self, program: Program) -> list[str]:
        """Relative names alone, so that no path enters what it makes."""
        virtual = program.kind == "ptx"
        arch = program.arch.replace("sm_", "compute_", 1) if virtual else program.arch
        return [
            f"--{program.kind}",
            f"--gpu-architecture={arch}",
            *standard_of(program),
            "--ptxas-options=-v",
            *program.options,
            "--include-path=include",
            f"--output-file=out.{program.kind}",
        ]

    def load(self) -> str:
        """Nothing to load: as :meth:`fingerprint`."""
        return self.fingerprint()

    def compile(self, program: Program) -> Binary:
        """Compile in a folder of its own; see :class:`humming.jit.ProgramCompiler`."""
        made_by = self.fingerprint()
        with tempfile.TemporaryDirectory(prefix="humming-") as folder:
            work = Path(folder)
            source, headers = program.texts()
            for name, text in headers:
                header = work / "include" / name
                header.parent.mkdir(parents=True, exist_ok=True)
                header.write_bytes(text)
            (work / f"{program.name}.cu").write_bytes(source)
            arguments = [*self.options(program), f"{program.name}.cu"]
            done = self._run(arguments, work)
            log = without_timings(done.stdout)
            result = work / f"out.{program.kind}"
            if done.returncode != 0 or not result.is_file():
                command = " ".join([str(self._path), *arguments])
                raise Refusal(command, log or f"exit status {done.returncode}, and no message")
            return Binary(program.kind, result.read_bytes(), log, read_usage(log), made_by)

    def _run(self, arguments: list[str], work: Path) -> subprocess.CompletedProcess[str]:
        """Run it, with what it says on both streams in one text."""
        try:
            return subprocess.run(
                [str(self._path.absolute()), *arguments],
                cwd=work,
                env=settings.child_environment(without=_HIDDEN_OPTIONS),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
            )
        except OSError as error:
            raise UnsupportedError(f"{self._path} can't be run: {error}") from error
