"""The zero-column mask of tcgen05.mma.ws (PTX ISA 9.0, 9.7.16.4.3, Table 45).

The manual's examples settle what its field names leave open: "use span" counts columns of B that
are used, "skip span" those that are 0, and a first span of 1 begins with zeros.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["lint_zero_columns", "zero_columns"]

_RESERVED = ((36, 38), (62, 63))


def _field(bits: int, low: int, width: int = 1) -> int:
    return bits >> low & (1 << width) - 1


def zero_columns(bits: int, m: int, n: int) -> tuple[npt.NDArray[np.bool_], int]:
    """Columns of D whose column of B counts as 0, and the shift of B's columns.

    Args:
        bits: the descriptor.
        m: 128, 64 or 32: one, two or four sub-masks side by side.
        n: columns.

    Returns:
        bool [n]; and s: column j of D takes column j + s of B.
    """
    parts = 128 // m
    mask = np.zeros((parts, n // parts), np.bool_)
    if _field(bits, 39):
        zeros, used = _field(bits, 40, 8) + 1, _field(bits, 48, 8) + 1
        for part in range(parts):
            first_zero = bool(_field(bits, 32 + part))
            place = np.arange(n // parts) + _field(bits, 8 * part, 8)
            place %= zeros + used
            mask[part] = place < zeros if first_zero else place >= used
    return mask.reshape(-1), _field(bits, 56, 6)


def lint_zero_columns(bits: int, m: int, max_shift: int) -> tuple[str, ...]:
    """Sentences on what the mask descriptor must not be, naming the bits.

    Args:
        bits: the descriptor.
        m: M of the instruction.
        max_shift: what bits 30-31 of the instruction descriptor allow.
    """
    found = [
        f"mask bits {low}-{high} are reserved and must be 0"
        for low, high in _RESERVED
        if _field(bits, low, high - low + 1)
    ]
    shift, most = _field(bits, 56, 6), min(max_shift, 16 if m == 32 else 32)
    if shift > most:
        found.append(
            f"mask bits 56-61: a shift of {shift} columns; M = {m} and the instruction "
            f"descriptor allow {most}"
        )
    if not _field(bits, 39):
        return tuple(found)
    for part in range(128 // m):
        first_zero = _field(bits, 32 + part)
        span = _field(bits, 40 if first_zero else 48, 8) + 1
        start = _field(bits, 8 * part, 8)
        if start >= span:
            found.append(
                f"mask bits {8 * part}-{8 * part + 7}: a start count of {start} skips "
                f"more than the first span of {span} columns"
            )
    return tuple(found)
