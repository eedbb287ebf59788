"""Block scales of mma.sync (PTX ISA 9.0, 9.7.14.3, block scaling for mma.sync)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.numbers.formats import decode

__all__ = ["lint_selector", "scale_a", "scale_b"]

_ROW = np.arange(16)
_COLUMN = np.arange(8)


def scale_a(
    words: npt.NDArray[np.uint32], byte_id: Any, thread_id: Any, count: int, scale_type: str
) -> npt.NDArray[np.float64]:
    """Scales of A.

    Row r comes from lane 4 * (r % 8) + r / 8, plus 2 if `thread_id` is 1.

    Args:
        words: scale-a-data [W, 32].
        byte_id: first byte that counts, int or [W].
        thread_id: 0 or 1, int or [W].
        count: scales per row: 1, 2 or 4.
        scale_type: "ue8m0" or "ue4m3".

    Returns:
        float64 [W, 16, count].
    """
    lanes = 4 * (_ROW % 8) + _ROW // 8 + 2 * np.reshape(thread_id, (-1, 1))
    return _pick(words, lanes, byte_id, count, scale_type)


def scale_b(
    words: npt.NDArray[np.uint32], byte_id: Any, thread_id: Any, count: int, scale_type: str
) -> npt.NDArray[np.float64]:
    """Scales of B: column n comes from lane 4 * n + `thread_id` (0 to 3); float64 [W, count, 8].

    See :func:`scale_a` for the arguments.
    """
    lanes = 4 * _COLUMN + np.reshape(thread_id, (-1, 1))
    picked = _pick(words, lanes, byte_id, count, scale_type)
    return np.swapaxes(picked, 1, 2)


def _pick(
    words: npt.NDArray[np.uint32], lanes: npt.NDArray[Any], byte_id: Any, count: int, name: str
) -> npt.NDArray[np.float64]:
    lanes = np.broadcast_to(lanes, (len(words), lanes.shape[1]))
    chosen = np.take_along_axis(words, lanes, axis=1)
    octets = np.ascontiguousarray(chosen).view(np.uint8).reshape(*chosen.shape, 4)
    first = np.reshape(np.asarray(byte_id), (-1, 1, 1)) + np.arange(count)
    index = np.broadcast_to(first, (*chosen.shape, count))
    return decode(name, np.take_along_axis(octets, index, axis=2))


def lint_selector(count: int, byte_id: int, thread_id: int, operand: str) -> list[str]:
    """What is wrong with the selector {byte-id, thread-id} of operand "a" or "b"."""
    bytes_allowed = {1: (0, 1, 2, 3), 2: (0, 2), 4: (0,)}[count]
    threads_allowed = (0, 1) if operand == "a" else (0, 1, 2, 3)
    messages = []
    if byte_id not in bytes_allowed:
        messages.append(f"byte-id-{operand} is {byte_id}, expected one of {bytes_allowed}")
    if thread_id not in threads_allowed:
        messages.append(f"thread-id-{operand} is {thread_id}, expected one of {threads_allowed}")
    return messages
