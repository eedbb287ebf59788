"""The `humming` command, started from outside the package that it is about.

humming-kernels also installs a package called `humming`. If it came later, its `__init__.py` has
replaced ours, and importing anything of `humming` would run that. So the files are looked at first.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

__all__ = ["main"]


def main() -> int:
    """Refuse a mixed installation in one sentence, else hand over to the command line."""
    spec = importlib.util.find_spec("humming")  # finds a top-level package without importing it
    for folder in (spec and spec.submodule_search_locations) or ():
        check = Path(folder) / "_clash.py"
        clash = runpy.run_path(str(check))["find_clash"]() if check.is_file() else None
        if clash is not None:
            sys.stderr.write(f"humming: error: {clash}\n")
            return 1
    from humming.__main__ import main as run

    return run()
