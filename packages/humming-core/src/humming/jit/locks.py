"""One process at a time, by a lock that the system takes back when its holder dies."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["exclusive"]

# What a file system says that has no locks: then all go ahead, and the worst is double work.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05


@contextlib.contextmanager
def exclusive(path: Path, patience_s: float) -> Iterator[bool]:
    """Hold the lock file `path` for the body, which is told whether it does.

    It does not where files can't be made or locked, nor after waiting for `patience_s`: a holder
    that neither finishes nor dies must not stop everybody else.
    """
    handle = _acquire(path, time.monotonic() + patience_s)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            with contextlib.suppress(OSError):  # while it is ours still: nobody else removes it
                path.unlink()
            os.close(handle)  # also unlocks, unless a forked child has it open
            # The child, if any, has a file without a name, which nobody will wait for.


def _acquire(path: Path, deadline: float) -> int | None:
    """An open and locked file, or None."""
    if sys.platform == "win32":
        return None
    import fcntl

    pause = _FIRST_PAUSE_S
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same(handle, path):
                return handle
            os.close(handle)  # its last holder has removed it since we opened it
            continue
        except OSError as error:
            os.close(handle)
            if error.errno in _NO_LOCKS or time.monotonic() > deadline:
                return None
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _is_same(handle: int, path: Path) -> bool:
    """Whether the open file is what the name stands for now."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(handle), there)
