"""Small kernels without headers, a compiler that only counts, and an nvcc in shell."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from humming.errors import UnsupportedError
from humming.jit import Binary, Cache, KernelLibrary, Key, Program, Refusal, Usage
from humming.jit.upkeep import path_in

DRIVER = Path(__file__).with_name("jit_driver.py")

SOURCE = """
extern "C" __global__ void scale(float* p) {
  __shared__ float row[64];
  row[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = row[63 - threadIdx.x] * FACTOR;
}
"""

FAKE_NVCC = """#!/bin/sh
if [ "$1" = --version ]; then echo "Cuda compilation tools, release 99.0, V99.0.1"; exit 0; fi
echo "$@" >> "{log}"
for word; do
  case $word in --output-file=*) out=${{word#*=}} ;; esac
done
sleep {sleep}
if grep -q refuse_me "$word"; then echo "$word(1): error: I was asked to refuse"; exit 1; fi
{{ printf 'BINARY OF '; cat "$word"; }} > "$out"
"""


def program(number: int = 0, **fields: Any) -> Program:
    values = {"source": SOURCE.replace("FACTOR", f"{number}.0f"), "arch": "sm_80", **fields}
    return Program(name=values.pop("name", f"test.scale{number}"), **values)


class CountingCompiler:
    """Compiles nothing: the binary is a digest of the program."""

    def __init__(self, version: str = "fake 1.0", seconds: float = 0.0) -> None:
        self.version, self.seconds = version, seconds
        self.compiled: list[str] = []
        self.loaded_version = version
        self.most_at_once = self._at_once = 0
        self._lock = threading.Lock()

    def fingerprint(self) -> str:
        if not self.version:
            raise UnsupportedError("there is no compiler here: install one")
        return self.version

    def options(self, program: Program) -> list[str]:
        return list(program.options)

    def load(self) -> str:
        self.version = self.loaded_version
        return self.version

    def compile(self, program: Program) -> Binary:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        time.sleep(self.seconds)
        with self._lock:
            self._at_once -= 1
            self.compiled.append(program.name)
        if "refuse_me" in program.source:
            raise Refusal(f"fake {program.name}.cu", "line 1: I was asked to refuse")
        return self.binary(program)

    def binary(self, program: Program) -> Binary:
        data = hashlib.sha256(program.source.encode()).digest() * 64
        usage = (Usage(program.name, 32, 256, 0, 0, 0),)
        return Binary(program.kind, data, "a log\nof two lines", usage, self.version)


def library(folder: Path | None, **cache: Any) -> tuple[KernelLibrary, CountingCompiler]:
    """A library that has nothing in memory yet, and its compiler."""
    compiler = CountingCompiler()
    return KernelLibrary(Cache(folder, **cache), compiler), compiler


def file_of(folder: Path, program: Program, ending: str = "", by: str = "fake 1.0") -> Path:
    key = Key.of(program, by, program.options)
    return path_in(folder, key.name, ending or program.kind)


def fake_nvcc(folder: Path, sleep: float = 0.0) -> tuple[Path, Path]:
    """The script, and the file that gets a line whenever it compiles."""
    folder.mkdir(parents=True, exist_ok=True)
    path, log = folder / "nvcc", folder / "compiled.log"
    new = folder / "nvcc.new"  # a running shell goes on reading the old one
    new.write_text(FAKE_NVCC.format(log=log, sleep=sleep))
    new.chmod(0o755)
    new.replace(path)
    return path, log


def compilations(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def environment(folder: Path, **variables: object) -> dict[str, str]:
    """What a process of its own sees: no other settings of ours than these."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HUMMING_")}
    changed = {"HUMMING_CACHE_DIR": folder, "TMPDIR": folder.parent, **variables}
    return kept | {name: str(value) for name, value in changed.items()}


def drive(env: dict[str, str], processes: int, kernels: int) -> list[dict[str, Any]]:
    """Let processes that start at the same moment get the same kernels; what each has to say."""
    command = [sys.executable, str(DRIVER), str(processes), str(kernels)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def start(env: dict[str, str], kernels: int = 1) -> subprocess.Popen[str]:
    """One process that gets kernels; `communicate` has its line."""
    command = [sys.executable, str(DRIVER), "1", str(kernels)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True)
