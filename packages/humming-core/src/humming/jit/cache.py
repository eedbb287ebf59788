"""Compiled kernels in folders: found by what they are made of, kept safely, never trusted blindly.

A folder can be moved, copied to another machine, put on a shared disk, and used by any number of
processes at once, which may be killed at any moment. docs/cache.md says how for users.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from humming import settings
from humming.jit import upkeep
from humming.jit.entry import DamagedEntry, decode, encode
from humming.jit.locks import exclusive
from humming.jit.program import Binary, Kind, Program

__all__ = ["Cache", "Key", "default_folder"]

_LOG = logging.getLogger("humming.jit")

#: A kernel's time of last use is written down at most this often.
_USED_EVERY_S = 3600.0


@dataclass(frozen=True)
class Key:
    """What a kernel is kept as: what it is made of and what made it, in hex.

    Attributes:
        program: digest of the program.
        compiler: digest of the compiler's name, version and full options.
        kind: of binary; the ending of the file.
    """

    program: str
    compiler: str
    kind: Kind

    @classmethod
    def of(cls, program: Program, fingerprint: str, options: Sequence[str] = ()) -> Key:
        """The key of a program, and of the compiler with this fingerprint and its options."""
        made_by = "\n".join([fingerprint, *options])
        return cls(program.digest, hashlib.sha256(made_by.encode()).hexdigest()[:8], program.kind)

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return f"{self.program}-{self.compiler}"


class Cache:
    """One folder that is written and searched first, and others that are only searched.

    Trouble with a folder is never an error: kernels are then not kept, and a warning says why,
    once.

    Args:
        folder: made when it is needed; None keeps nothing.
        readonly: searched after it, in order.
        limit: bytes above which kernels that were not used for longest are removed; None is none.
    """

    #: How long to wait for somebody else who compiles the same kernel.
    patience_s = 30.0

    def __init__(
        self, folder: Path | None, readonly: Sequence[Path] = (), limit: int | None = None
    ) -> None:
        self.folder = folder
        self.readonly = tuple(readonly)
        self.limit = limit
        self._nbytes: int | None = None  # unknown until something is stored
        self._warned: set[Path] = set()

    @classmethod
    def from_settings(cls) -> Cache:
        """The folders and the limit of the HUMMING_CACHE_* variables."""
        return cls(
            default_folder(),
            [Path(folder) for folder in settings.paths("HUMMING_CACHE_READONLY")],
            settings.size("HUMMING_CACHE_LIMIT"),
        )

    def find(self, key: Key) -> Binary | None:
        """The kept binary, or None. A damaged file is as good as none, and logged once."""
        folders = self.readonly if self.folder is None else (self.folder, *self.readonly)
        return next(filter(None, (self._read(folder, key) for folder in folders)), None)

    def find_or_mend(self, key: Key) -> Binary | None:
        """As :meth:`find`, and remove a damaged file; for who has the lock and will replace it."""
        found = self.find(key)
        path = self._path(key, key.kind)
        if found is None and path is not None:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        return found

    def find_of_any_compiler(self, key: Key) -> Binary | None:
        """The same program as another compiler, or another version, made it; or None."""
        folders = self.readonly if self.folder is None else (self.folder, *self.readonly)
        found = (self._read(folder, k) for folder in folders for k in _others(folder, key))
        return next(filter(None, found), None)

    def store(self, key: Key, program: Program, binary: Binary) -> Path | None:
        """Keep a binary; returns its file, or None with a warning if that can't be done."""
        path = self._path(key, key.kind)
        if path is None:
            return None
        content = encode(key.name, program, binary)
        try:
            _write(path, content, durable=True)
        except OSError as error:
            self._warn_unkept(error)
            return None
        self.save_log(key, f"{binary.compiler}\n{binary.log}\n")
        self._make_room(len(content) + len(program.source) + len(binary.log))
        return path

    def save_source(self, key: Key, program: Program) -> Path | None:
        """Write the source beside where its binary will be, for people; returns its file."""
        return self._save(key, "cu", program.source)

    def save_log(self, key: Key, text: str) -> None:
        """Write what a compiler said, beside the source, for people."""
        self._save(key, "log", text)

    def lock(self, key: Key) -> AbstractContextManager[bool]:
        """Held while compiling, so that processes which need the same kernel compile it once."""
        path = self._path(key, "lock")
        if path is None:
            return contextlib.nullcontext(False)
        with contextlib.suppress(OSError):  # storing will say what is wrong
            path.parent.mkdir(parents=True, exist_ok=True)
        return exclusive(path, self.patience_s)

    # -- one file ----------------------------------------------------------------------------------

    def _path(self, key: Key, ending: str) -> Path | None:
        return None if self.folder is None else upkeep.path_in(self.folder, key.name, ending)

    def _read(self, folder: Path, key: Key) -> Binary | None:
        path = upkeep.path_in(folder, key.name, key.kind)
        try:
            with path.open("rb") as file:
                content = file.read()
                used = os.fstat(file.fileno()).st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._warn(path, "%s can't be read and is not used: %s", path, error.strerror)
            return None
        try:
            binary = decode(key.name, content)
        except DamagedEntry as damage:
            self._warn(path, "%s is damaged and is not used: %s", path, damage)
            return None
        if folder is self.folder and time.time() - used > _USED_EVERY_S:
            with contextlib.suppress(OSError):  # a disk that can be read but not written
                os.utime(path)
        return binary

    def _save(self, key: Key, ending: str, text: str) -> Path | None:
        """Write something that is only for people; None if that can't be done."""
        path = self._path(key, ending)
        if path is None:
            return None
        try:
            _write(path, text.encode(errors="replace"), durable=False)
        except OSError as error:
            self._warn_unkept(error)
            return None
        return path

    def _make_room(self, added: int) -> None:
        """Keep below the limit; the first time, also remove what killed processes left behind."""
        assert self.folder is not None, "something was just stored in it"
        known = None if self._nbytes is None else self._nbytes + added
        if known is None or (self.limit is not None and known > self.limit):
            known = upkeep.tidy(self.folder, self.limit)
        self._nbytes = known

    def _warn_unkept(self, error: OSError) -> None:
        assert self.folder is not None, "something could not be written in it"
        self._warn(
            self.folder,
            "compiled kernels can't be kept in %s (%s): this process keeps them in memory, and "
            "every other compiles them again; HUMMING_CACHE_DIR names another folder",
            self.folder,
            error.strerror or error,
        )

    def _warn(self, what: Path, message: str, *values: object) -> None:
        """Log a warning about a file or folder, the first time."""
        if what not in self._warned:
            self._warned.add(what)
            _LOG.warning(message, *values)


def default_folder() -> Path | None:
    """The folder that HUMMING_CACHE_DIR names, else one in the home folder; None without a home."""
    named = settings.text("HUMMING_CACHE_DIR")
    try:
        # Absolute, since the working folder may change before the cache is used.
        return Path(named or "~/.cache/humming").expanduser().absolute()
    except RuntimeError:  # a user without a home
        _LOG.warning("this user has no home folder: kernels are kept only in memory, "
                     "unless HUMMING_CACHE_DIR names a folder")  # fmt: skip
        return None


def _others(folder: Path, key: Key) -> list[Key]:
    """Keys of the same program and other compilers, in an order that is always the same."""
    beside = upkeep.path_in(folder, key.name, key.kind).parent
    try:
        names = sorted(entry.name for entry in beside.glob(f"{key.program}-*.{key.kind}"))
    except OSError:
        return []
    return [Key(key.program, name.split(".")[0].rsplit("-", 1)[1], key.kind) for name in names]


def _write(path: Path, content: bytes, *, durable: bool) -> None:
    """Put a whole file in place at once; whoever opens it sees all of it or what was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.stem}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    # Not tempfile, whose files nobody else may read: a folder may be shared.
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
