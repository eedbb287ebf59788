"""What is compiled and what comes out: plain values that know no compiler."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

from humming.errors import ConfigError

__all__ = [
    "Binary",
    "Kind",
    "Program",
    "ProgramCompiler",
    "Refusal",
    "Usage",
    "read_usage",
    "standard_of",
    "without_timings",
]

#: "cubin" is machine code for one architecture, "ptx" the portable form that a driver translates.
Kind = Literal["cubin", "ptx"]

_NAME = re.compile(r"[A-Za-z0-9_][\w.+-]*", re.ASCII)
_ARCH = re.compile(r"\w+", re.ASCII)
# What the compilers here decide themselves, what would let a file outside of our roots in, and -G,
# which writes the working folder into the binary.
_OURS = re.compile(
    r"--?(arch|gpu-architecture|gencode|generate-code|gpu-code|code|I|isystem|include|include-path"
    r"|pre-include|o|output|output-file|odir|output-directory|keep|keep-dir|cubin|ptx|fatbin|c"
    r"|G|device-debug|g|debug|optf|options-file|ccbin|compiler-bindir|use-bundled-headers|pch-dir)(=.*|\s.*|)|-I.*"
)


@dataclass(frozen=True, kw_only=True)
class Program:
    """One source text and everything that decides what a compiler makes of it.

    Attributes:
        name: of the kernel, for people and for the compiler's messages; fit for a file name.
        source: CUDA C++ text.
        arch: target architecture as the compiler spells it.
        options: further options, in a spelling that NVRTC and nvcc share.
        headers: name in the source's ``#include <...>``, to bytes; see :mod:`humming.jit.headers`.
        kind: what to make.
    """

    name: str
    source: str
    arch: str
    options: tuple[str, ...] = ()
    headers: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    kind: Kind = "cubin"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError("name", self.name, "letters, digits and . _ + -, as in a file's name")
        if not _ARCH.fullmatch(self.arch):
            raise ConfigError("arch", self.arch, "an architecture as the compiler spells it")
        if self.kind not in ("cubin", "ptx"):
            raise ConfigError("kind", self.kind, '"cubin" or "ptx"')
        for option in self.options:
            if not option.startswith("-") or _OURS.fullmatch(option):
                allowed = "an option that chooses no architecture, folder, file, debugger or output"
                raise ConfigError("options", option, allowed)

    def texts(self) -> tuple[bytes, list[tuple[str, bytes]]]:
        """Source and headers as a compiler gets them.

        Line information holds whole paths, and relative ones become whole with the working folder.
        """
        source, headers = self.source.encode(), list(self.headers)
        if "lineinfo" not in " ".join(self.options):
            return source, headers
        return _placed(f"{self.name}.cu", source), [(n, _placed(n, text)) for n, text in headers]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything above, in hex. Bytes alone count: no path, no time."""
        parts = {
            "name": self.name,
            "source": hashlib.sha256(self.source.encode()).hexdigest(),
            "headers": [
                [name, hashlib.sha256(text).hexdigest()] for name, text in sorted(self.headers)
            ],
            "arch": self.arch,
            "options": self.options,
            "kind": self.kind,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Usage:
    """What one kernel takes, as ptxas reports it; all but the registers in bytes."""

    kernel: str
    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int


@dataclass(frozen=True)
class Binary:
    """What a compiler made of a program.

    Attributes:
        kind: what `data` is.
        data: the machine code, or the text of the PTX in UTF-8.
        log: the compiler's messages, without timings, so that equal programs have equal logs.
        usage: registers, shared memory and spills of each kernel; empty for PTX.
        compiler: name and version of what made it.
    """

    kind: Kind
    data: bytes = field(repr=False)
    log: str = field(repr=False)
    usage: tuple[Usage, ...]
    compiler: str


def _placed(name: str, text: bytes) -> bytes:
    """The text, said to lie where no machine has a folder."""
    return f'#line 1 "/humming/{name}"\n'.encode() + text


class Refusal(Exception):
    """A compiler took a program and refused it: its command line and what it said."""

    def __init__(self, command: str, log: str) -> None:
        self.command, self.log = command, log
        super().__init__(log)


class ProgramCompiler(Protocol):
    """Turns programs into binaries; used by several threads at once."""

    def fingerprint(self) -> str:
        """Name and version, part of every key: what would give other binaries has another.

        Cheap, since a warm start asks for nothing else.

        Raises:
            UnsupportedError: it is not installed; says how to install it.
        """
        ...

    def options(self, program: Program) -> list[str]:
        """All options that the compiler gets for a program, its own choices too; part of the key.

        They hold no path.
        """
        ...

    def load(self) -> str:
        """Get ready to compile; returns the fingerprint, which may be another than first thought.

        Raises:
            UnsupportedError: the compiler can't be used.
        """
        ...

    def compile(self, program: Program) -> Binary:
        """Compile.

        Raises:
            Refusal: the program is wrong.
            UnsupportedError: the compiler can't be used.
        """
        ...


_TIMING = re.compile(r"^ptxas info\s*: Compile time = .*\n?", re.MULTILINE)
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def standard_of(program: Program) -> list[str]:
    """The option for the language, unless the program has one."""
    return [] if any("std=" in option for option in program.options) else ["--std=c++20"]


def without_timings(log: str) -> str:
    """The log less what differs from one run to the next."""
    return _TIMING.sub("", log).strip()


def read_usage(log: str) -> tuple[Usage, ...]:
    """What each kernel takes, from the lines that ptxas prints with ``-v``, sorted by name."""
    found = []
    entry = owner = ""
    stack = stores = loads = 0
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry = owner = match[1]
            stack = stores = loads = 0
        elif match := _PROPERTIES.search(line):
            owner = match[1]  # a function that was not inlined has properties of its own
        elif (match := _SPILLS.search(line)) and owner == entry:
            stack, stores, loads = map(int, match.groups())
        elif entry and (match := _USED.search(line)):
            shared = _SHARED.search(line)
            shared_bytes = int(shared[1]) if shared else 0
            found.append(Usage(entry, int(match[1]), shared_bytes, stack, stores, loads))
            entry = ""
    return tuple(sorted(found, key=lambda usage: usage.kernel))
