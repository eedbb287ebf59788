"""Is another distribution's ``humming`` mixed into this one? Asked before anything is imported."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

__all__ = ["find_clash"]

_OTHER = "humming-kernels"
_MEND = (
    "python -m pip uninstall -y humming-kernels && "
    "python -m pip install --force-reinstall --no-deps humming-core"
)


def find_clash() -> str | None:
    """A sentence with the command that mends it, or None if this package is alone."""
    try:
        version = importlib.metadata.version(_OTHER)
    except importlib.metadata.PackageNotFoundError:
        # A broken uninstall leaves its modules without the metadata.
        if not (Path(__file__).parent / "dtypes.py").exists():
            return None
        version = "(its files, without its metadata)"
    return (
        f"{_OTHER} {version} is installed, and its import package is also called 'humming'; "
        f"one environment can hold only one of the two. To keep humming-core:\n  {_MEND}"
    )
