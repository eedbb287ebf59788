"""Which lanes and columns of tensor memory D and A take (PTX ISA 9.0, 9.7.16.10.5).

The manual's layouts A to G cut D into blocks: some rows and some columns of D in neighbouring
lanes and columns of one CTA's tensor memory. Lanes that hold the columns [N/2, N) of D multiply
the A that is stored in those same lanes, which is why A is stored once per column block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from humming_sim.tcgen05.forms import MmaForm

__all__ = [
    "COLUMNS",
    "LANES",
    "Block",
    "Layout",
    "accumulator_layout",
    "split_address",
]

#: Lanes and 32-bit columns of a CTA's tensor memory.
LANES = 128
COLUMNS = 512


def split_address(address: int) -> tuple[int, int]:
    """Lane and column of a tensor memory address (PTX ISA 9.0, 9.7.16.1.1)."""
    return address >> 16 & 0xFFFF, address & 0xFFFF


@dataclass(frozen=True)
class Block:
    """A part of D in one CTA's tensor memory, and the A that makes it.

    Attributes:
        cta: 0 or 1 in the pair.
        rows: rows of this CTA's half of D (all of D in cta_group::1), [first, last).
        columns: columns of D, [first, last); in tensor memory they begin at D's column.
        lane: lane of the first row, counted from D's lane.
    """

    cta: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    lane: int

    @property
    def lanes(self) -> slice:
        """Lanes, counted from D's lane."""
        return slice(self.lane, self.lane + self.rows[1] - self.rows[0])


@dataclass(frozen=True)
class Layout:
    """A layout of the manual.

    Attributes:
        letter: "A", "B", "D", "E", "F" or "G".
        rows: rows of A and D in each CTA.
        columns: columns of tensor memory that D takes.
        blocks: what is where.
        alignments: lanes at which D (and A) may begin.
    """

    letter: str
    rows: int
    columns: int
    blocks: tuple[Block, ...]
    alignments: tuple[int, ...] = (0,)


#: By M, CTA group and .ws: letter, blocks of columns, rows that stay together, lanes from those
#: rows to the next.
_LAYOUTS = {
    (32, 1, True): ("G", 4, 32, 32),
    (64, 1, True): ("E", 2, 64, 64),
    (128, 1, True): ("D", 1, 128, 128),
    (64, 1, False): ("F", 1, 16, 32),
    (128, 1, False): ("D", 1, 128, 128),
    (128, 2, False): ("B", 2, 64, 64),
    (256, 2, False): ("A", 1, 128, 128),
}


@lru_cache(maxsize=512)
def accumulator_layout(m: int, n: int, form: MmaForm) -> Layout:
    """The layout of D of a dense instruction.

    Raises:
        ValueError: no layout has this M.
    """
    key = (m, form.cta_group, form.ws)
    if key not in _LAYOUTS:
        raise ValueError(f"no tensor memory layout for M = {m}, cta_group::{form.cta_group}")
    letter, banks, together, pitch = _LAYOUTS[key]
    rows, width = m // form.cta_group, n // banks
    blocks = [
        Block(cta, (row, row + together), (bank * width, (bank + 1) * width), lane)
        for cta in range(form.cta_group)
        for bank in range(banks)
        for row, lane in zip(
            range(0, rows, together), range(bank * rows, LANES, pitch), strict=False
        )
    ]
    return Layout(letter, rows, width, tuple(blocks), (0, 16) if letter == "F" else (0,))
