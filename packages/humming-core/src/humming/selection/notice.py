"""Log messages that a process sees once."""

from __future__ import annotations

import logging
from functools import lru_cache

__all__ = ["log", "log_once"]

log = logging.getLogger("humming")


@lru_cache(maxsize=1024)
def log_once(level: int, message: str) -> None:
    """Log `message` unless this very message has been logged before."""
    log.log(level, message)
