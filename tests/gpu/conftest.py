"""Several processes share the device here: none keeps memory that it no longer uses."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest
import torch

_KEPT_BYTES = 4 << 30


def _spread_over_gpus() -> None:
    """Give each process of pytest-xdist one of the GPUs, before CUDA starts."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker.startswith("gw") or "CUDA_VISIBLE_DEVICES" in os.environ:
        return
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return
    count = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    if count > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(int(worker[2:]) % count)


_spread_over_gpus()


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """Return what torch's allocator keeps, once that is much."""
    yield
    if torch.cuda.is_initialized() and torch.cuda.memory_reserved() > _KEPT_BYTES:
        torch.cuda.empty_cache()
