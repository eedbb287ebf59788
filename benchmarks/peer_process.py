"""humming-kernels in a process of its own: its package has our name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["lines_of_humming_kernels"]


def lines_of_humming_kernels(
    folder: Path, jobs: Sequence[dict[str, Any]], seconds: float
) -> Iterator[str]:
    """What it prints of jobs, as it comes.

    Args:
        folder: of ``pip install --target FOLDER humming-kernels``.
        jobs: see ``peers/humming_kernels.py``.
        seconds: after which it begins nothing more.
    """
    script = Path(__file__).parent / "peers" / "humming_kernels.py"
    # Without PYTHONPATH, which leads to our package.
    command = ["env", "-u", "PYTHONPATH", sys.executable, "-u", str(script), str(folder)]
    with subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None, "it is a pipe"
        assert process.stdout is not None, "it is a pipe"
        with process.stdin as pipe:
            json.dump({"jobs": jobs, "seconds": seconds}, pipe)
        for line in process.stdout:
            yield line.rstrip("\n")
