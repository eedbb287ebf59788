"""A, B and their scales of one tcgen05.mma, read when it executes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from humming_sim.isa.tcgen05_pipe import read_units
from humming_sim.isa.tcgen05_state import TensorCores
from humming_sim.machine.frame import Frame
from humming_sim.matrices.products import Operand
from humming_sim.tcgen05.accumulators import Block, Layout, split_address
from humming_sim.tcgen05.block_scales import ScaleCells, read_scales, scale_cells
from humming_sim.tcgen05.instruction_descriptor import InstructionDescriptor
from humming_sim.tcgen05.operands import (
    Storage,
    matrix_from_shared,
    matrix_from_tensor,
    padding_set,
    storage,
)
from humming_sim.tcgen05.product import factor, padding_of_scales
from humming_sim.tcgen05.zero_columns import zero_columns

__all__ = ["Factors", "Sources"]


@dataclass(frozen=True)
class Sources:
    """Where the factors are, as the instruction's operands say.

    Attributes:
        a, b: shared memory descriptors; A's may be a tensor memory address.
        scales: tensor memory addresses of A's and B's scales.
        a_in_tensor_memory: which of the two it is.
        zero_columns: descriptor of the columns of B that count as 0.
    """

    a: int
    b: int
    scales: tuple[int, int] | None
    a_in_tensor_memory: bool
    zero_columns: int

    def spans(self, descriptor: InstructionDescriptor, layout: Layout) -> list[tuple[int, int]]:
        """(first, width) of the columns of tensor memory that are read."""
        out = []
        if self.a_in_tensor_memory:
            out.append((split_address(self.a)[1], storage(descriptor, "a").columns))
        if self.scales is not None:
            cells = _scale_cells(descriptor, layout.rows, layout.letter)
            for address, part in zip(self.scales, cells, strict=True):
                out.append((split_address(address)[1], part.width))
        return out


def _scale_cells(
    descriptor: InstructionDescriptor, rows: int, letter: str
) -> tuple[ScaleCells, ScaleCells]:
    count = descriptor.scales
    return (
        scale_cells(rows, count, descriptor.scale_a_id),
        scale_cells(descriptor.n, count, descriptor.scale_b_id, letter == "B"),
    )


class Factors:
    """A and B of an executing product, from all CTAs that take part."""

    def __init__(
        self,
        cores: TensorCores,
        frame: Frame,
        members: tuple[int, ...],
        descriptor: InstructionDescriptor,
        sources: Sources,
    ) -> None:
        self._cores, self._frame, self._members = cores, frame, members
        self._descriptor, self._sources = descriptor, sources
        self._stored_a = storage(descriptor, "a")
        self._a: dict[int, npt.NDArray[np.float64]] = {}
        self._scales: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}
        self._b = self._read_b()

    def of(
        self, block: Block, layout: Layout, keep: npt.NDArray[np.bool_] | None
    ) -> tuple[Operand, Operand]:
        """The rows of A (those of `keep`) and columns of B that make a block of D."""
        what = self._descriptor
        rows, columns = slice(*block.rows), slice(*block.columns)
        a = self._rows_of_a(block, layout)
        scales_a = scales_b = None
        if self._sources.scales is not None:
            cells = _scale_cells(what, layout.rows, layout.letter)
            scales_a = self._codes(block.cta, 0, cells[0])[rows]
            scales_b = self._codes(block.cta, 1, cells[1])[columns]
        if keep is not None:
            a = a[keep]
            scales_a = None if scales_a is None else scales_a[keep]
        return (
            factor(a, what.a_type, scales_a, what),
            factor(self._b[columns], what.b_type, scales_b, what),
        )

    # ------------------------------------------------------------------------------------ B

    def _read_b(self) -> npt.NDArray[np.float64]:
        """B [N, K]; each CTA of a pair holds half of its rows."""
        what, stored = self._descriptor, storage(self._descriptor, "b")
        mask, shift = None, 0
        if self._sources.zero_columns:
            mask, shift = zero_columns(self._sources.zero_columns, what.m, what.n)
        rows = what.n // len(self._members) + shift
        parts = [self._shared(cta, self._sources.b, stored, rows) for cta in self._members]
        b = np.concatenate(parts)[shift:]
        if mask is not None:
            b[mask] = 0.0
        return b

    def _shared(self, cta: int, bits: int, stored: Storage, rows: int) -> npt.NDArray[np.float64]:
        use = stored.use(rows, self._cores.target)
        units = read_units(self._frame, cta, bits, use, stored.width if stored.padded else 0)
        return matrix_from_shared(units, stored)

    # ------------------------------------------------------------------------------------ A

    def _rows_of_a(self, block: Block, layout: Layout) -> npt.NDArray[np.float64]:
        cta = self._members[block.cta]
        if not self._sources.a_in_tensor_memory:
            if cta not in self._a:
                self._a[cta] = self._shared(cta, self._sources.a, self._stored_a, layout.rows)
            return self._a[cta][slice(*block.rows)]
        lane, column = split_address(self._sources.a)
        lanes = slice(lane + block.lanes.start, lane + block.lanes.stop)
        stored = self._stored_a
        self._cores.need(self._frame, cta, column, stored.columns)
        words = self._cores.read(self._frame, cta, lanes, slice(column, column + stored.columns))
        if padding_set(words, stored):
            self._frame.machine.report(
                self._frame, "numeric",
                f"A in tensor memory has bits set outside of its {stored.type} elements",
                space="tmem", address=self._sources.a, cta=cta,
            )  # fmt: skip
        return matrix_from_tensor(np.ascontiguousarray(words), stored)

    # ------------------------------------------------------------------------------- scales

    def _codes(self, member: int, which: int, cells: ScaleCells) -> npt.NDArray[np.uint8]:
        """Scales of a CTA's rows of A (0), or of all columns of B as that CTA has them (1)."""
        key = (member, which)
        if key not in self._scales:
            self._scales[key] = self._read_codes(self._members[member], which, cells)
        return self._scales[key]

    def _read_codes(self, cta: int, which: int, cells: ScaleCells) -> npt.NDArray[np.uint8]:
        if self._sources.scales is None:
            raise ValueError("the product has no scales")
        address = self._sources.scales[which]
        lane, column = split_address(address)
        self._cores.need(self._frame, cta, column, cells.width)
        words = self._cores.read(self._frame, cta, lane + cells.lanes, column + cells.columns)
        codes, differ = read_scales(words, cells)
        name = "AB"[which]
        if differ.any():
            row = int(np.argmax(differ.any(1)))
            self._report(cta, address, f"the scale of {name}'s row {row} is not the same in all "
                         "32-lane partitions of tensor memory")  # fmt: skip
        if padding_of_scales(codes, self._descriptor.scale_type).any():
            self._report(cta, address, f"a scale of {name} has bit 7 set, which ue4m3 doesn't have")
        return codes

    def _report(self, cta: int, address: int, message: str) -> None:
        self._frame.machine.report(
            self._frame, "numeric", message, space="tmem", address=address, cta=cta
        )
