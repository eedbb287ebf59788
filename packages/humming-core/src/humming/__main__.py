"""``python -m humming`` and the command ``humming``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from humming._clash import find_clash

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; see :func:`humming.cli.app.run`.

    Args:
        argv: arguments without the program's name; None takes the process's own.
    """
    clash = find_clash()
    if clash is not None:
        sys.stderr.write(f"humming: error: {clash}\n")
        return 1
    # Only now: in a clash the package that this imports from may be the other distribution's.
    from humming.cli.app import run

    return run(sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
