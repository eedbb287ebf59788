"""Several processes share the device here: none keeps memory that it no longer uses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

_KEPT_BYTES = 4 << 30


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """Return what torch's allocator keeps, once that is much."""
    yield
    if torch.cuda.is_initialized() and torch.cuda.memory_reserved() > _KEPT_BYTES:
        torch.cuda.empty_cache()
