"""What lies in a folder of kernels: listing, checking, making room, clearing.

Only files with the names that we give are ever touched, whatever folder is named.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from humming.jit.entry import DamagedEntry, decode

__all__ = ["Entry", "clear", "entries", "path_in", "tidy", "verify"]

_FOLDER = "kernels"
_FILE = re.compile(
    r"\.?(?P<key>[0-9a-f]{64}-[0-9a-f]{8})\.(?P<ending>cubin|ptx|cu|log|lock|[0-9]+-[0-9a-f]+\.tmp)"
)
_BINARIES = ("cubin", "ptx")
#: Unfinished files and locks of processes that are surely gone.
_LEFT_BEHIND_S = 3600.0
#: What is left of the limit after making room, so that not every new kernel makes room again.
_FILLED = 0.9


@dataclass(frozen=True)
class Entry:
    """Everything that a folder holds of one kernel.

    Attributes:
        key: the name of its files.
        files: all of them; one is the binary, unless its compilation failed.
        nbytes: of all files together.
        used: when it was last used, in seconds since 1970.
    """

    key: str
    files: tuple[Path, ...]
    nbytes: int
    used: float

    @property
    def binary(self) -> Path | None:
        """The file with the kernel, or None: a source that a compiler refused."""
        return next((path for path in self.files if path.suffix[1:] in _BINARIES), None)


def path_in(folder: Path, key: str, ending: str) -> Path:
    """Where the file of a kernel lies."""
    return folder / _FOLDER / key[:2] / f"{key}.{ending}"


def entries(folder: Path) -> list[Entry]:
    """All kernels in a folder, and all refused sources, the least recently used first."""
    found: dict[str, list[tuple[Path, os.stat_result]]] = {}
    for path, key, ending, facts in _files(folder):
        if not _is_passing(ending):
            found.setdefault(key, []).append((path, facts))
    listed = []
    for key, files in found.items():
        times = [f.st_mtime for path, f in files if path.suffix[1:] in _BINARIES]
        used = max(times or [f.st_mtime for _, f in files])
        paths = tuple(sorted(path for path, _ in files))
        listed.append(Entry(key, paths, sum(f.st_size for _, f in files), used))
    return sorted(listed, key=lambda entry: (entry.used, entry.key))


def verify(folder: Path) -> Iterator[tuple[Path, str]]:
    """Every kernel of a folder, with what is wrong with it, or "" if it is whole."""
    for entry in entries(folder):
        if entry.binary is None:
            continue
        try:
            decode(entry.key, entry.binary.read_bytes())
        except FileNotFoundError:
            continue  # removed by somebody since
        except (DamagedEntry, OSError) as damage:
            yield entry.binary, str(damage)
        else:
            yield entry.binary, ""


def clear(folder: Path) -> tuple[int, int]:
    """Remove every kernel of a folder; returns how many, and how many bytes of files."""
    kernels = nbytes = 0
    for path, _, ending, facts in list(_files(folder)):
        path.unlink(missing_ok=True)
        kernels += ending in _BINARIES
        nbytes += facts.st_size
    for beside in _folders(folder):
        with contextlib.suppress(OSError):  # something that is not ours lies in it
            beside.rmdir()
    with contextlib.suppress(OSError):
        (folder / _FOLDER).rmdir()
    return kernels, nbytes


def tidy(folder: Path, limit: int | None) -> int:
    """Remove what killed processes left, and above the limit the least recently used kernels.

    Returns:
        How many bytes there are now.
    """
    now = time.time()
    for path, _, ending, facts in list(_files(folder)):
        if _is_passing(ending) and now - facts.st_mtime > _LEFT_BEHIND_S:
            _remove(path)
    listed = entries(folder)
    total = sum(entry.nbytes for entry in listed)
    if limit is None or total <= limit:
        return total
    # Needs no lock: two processes at once choose the same kernels.
    for entry in listed:
        for path in entry.files:
            _remove(path)
        total -= entry.nbytes
        if total <= limit * _FILLED:
            break
    return total


def facts_of(path: Path) -> dict[str, object]:
    """The facts in the last line of a kernel's file, unchecked; empty if there is none."""
    try:
        line = path.read_bytes().rsplit(b"\n", 2)[1]
        found = json.loads(line[line.index(b"{") :])
    except (OSError, ValueError, IndexError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_passing(ending: str) -> bool:
    """Whether such a file is there only while somebody works."""
    return ending == "lock" or ending.endswith("tmp")


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # another process removes it too, or the disk is read-only
        path.unlink()


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder / _FOLDER) as found:
            return sorted(Path(entry.path) for entry in found if entry.is_dir())
    except OSError:
        return []


def _files(folder: Path) -> Iterator[tuple[Path, str, str, os.stat_result]]:
    """Each file of ours: its path, key, ending and facts."""
    for beside in _folders(folder):
        try:
            with os.scandir(beside) as found:
                listed = list(found)
        except OSError:
            continue
        for entry in listed:
            name = _FILE.fullmatch(entry.name)
            with contextlib.suppress(FileNotFoundError):  # gone since
                if name is not None:
                    facts = entry.stat(follow_symlinks=False)
                    yield Path(entry.path), name["key"], name["ending"], facts
