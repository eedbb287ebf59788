"""Counts of shared-memory bank conflicts and of global sectors, for the report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.isa.builder import Builder
from humming_sim.machine.frame import Frame
from humming_sim.machine.geometry import WARP

__all__ = ["count_access", "count_rows"]

_BANKS, _BANK_BYTES, _SECTOR = 32, 4, 32

Counter = Callable[[Frame, npt.NDArray[np.int64]], None]


def count_access(b: Builder, space: str, width: int) -> Counter | None:
    """What counts one access per thread of `width` bytes, or None if nothing is counted."""
    if not b.machine.options.count or space not in ("shared", "global"):
        return None
    tally = b.machine.extra.setdefault("tally", {})
    entry = tally.setdefault(b.item.line, [space, 0, 0, 0])
    measure = _wavefronts if space == "shared" else _sectors

    def count(frame: Frame, addresses: npt.NDArray[np.int64]) -> None:
        warps = frame.warps()
        spread, active = warps.spread(addresses), warps.active
        for row, lanes in zip(spread, active, strict=True):
            used, best = measure(row[lanes], width)
            entry[1] += 1
            entry[2] += used
            entry[3] += best

    return count


def count_rows(b: Builder) -> Counter | None:
    """What counts accesses of matrix rows (16 bytes each, eight at a time)."""
    return count_access(b, "shared", 16)


def _wavefronts(addresses: npt.NDArray[np.int64], width: int) -> tuple[int, int]:
    """(wavefronts, the fewest possible) of one warp's access to shared memory.

    Lanes are served in groups of 128 bytes; within a group, words of one bank at different
    addresses take one wavefront each (Volta and later).
    """
    lanes = max(1, _BANKS * _BANK_BYTES // max(width, _BANK_BYTES))
    used = best = 0
    for first in range(0, min(len(addresses), WARP), lanes):
        group = addresses[first : first + lanes]
        words: Any = np.unique((group[:, None] + np.arange(0, width, _BANK_BYTES)) // _BANK_BYTES)
        used += int(np.bincount(words % _BANKS).max())
        best += 1
    return used, best


def _sectors(addresses: npt.NDArray[np.int64], width: int) -> tuple[int, int]:
    """(32-byte sectors touched, the fewest that hold so many bytes) of one warp's access."""
    first, last = addresses // _SECTOR, (addresses + width - 1) // _SECTOR
    used = len(np.unique(np.concatenate([first, last])))
    distinct = len(np.unique(addresses))
    return used, -(-distinct * width // _SECTOR)
