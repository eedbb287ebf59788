"""Tensor memory of every CTA: 128 lanes x 512 columns of 32 bits (PTX ISA 9.0, 9.7.16.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from humming_sim.machine.machine import Machine

__all__ = ["COLUMNS", "LANES", "TensorMemory"]

LANES, COLUMNS = 128, 512


class TensorMemory:
    """Tensor memory of a wave.

    Attributes:
        data: [CTAs, 128, 512] of uint32.
        written: which words something has written, of the same shape.
        allocated: which columns are allocated, [CTAs, 512].
    """

    def __init__(self, machine: Machine) -> None:
        ctas = machine.geometry.ctas
        self.data = np.full((ctas, LANES, COLUMNS), 0xFFFFFFFF, np.uint32)
        self.written = np.zeros((ctas, LANES, COLUMNS), np.bool_)
        self.allocated = np.zeros((ctas, COLUMNS), np.bool_)
