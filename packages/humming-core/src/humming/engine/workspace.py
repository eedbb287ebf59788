"""Scratch memory of kernels, zero before its first use, for each stream its own."""

from __future__ import annotations

import threading
from functools import lru_cache

import torch

from humming.engine.site import Site

__all__ = ["Workspaces", "workspaces"]

#: Sizes on a GPU are multiples of this, so that a slightly larger problem needs no other memory.
_STEP_BYTES = 1 << 20


class Workspaces:
    """Memory that a backend's kernels on one stream share: each leaves counters zero for the next.

    Two streams never share one, and two backends may keep counters in different places. In the
    capture of a graph memory comes from the graph's own pool, and the graph sets it to zero: it may
    run on any stream later.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, int | None, int], torch.Tensor] = {}

    def take(self, site: Site, backend: str, nbytes: int) -> torch.Tensor:
        """At least `nbytes` for a launch on the site's current stream."""
        if site.capturing():
            return torch.zeros(nbytes, dtype=torch.uint8, device=site.device)
        key = backend, site.device.index, site.stream()
        found = self._kept.get(key)
        if found is None or found.numel() < nbytes:
            with self._lock:
                step = _STEP_BYTES if site.device.type == "cuda" else 1
                size = -(-nbytes // step) * step
                # What it replaces is freed in the order of this stream, on which it was made.
                found = torch.zeros(size, dtype=torch.uint8, device=site.device)
                self._kept[key] = found
        return found


@lru_cache(maxsize=1)
def workspaces() -> Workspaces:
    """The scratch memory of this process."""
    return Workspaces()
