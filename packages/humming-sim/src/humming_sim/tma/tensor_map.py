"""Tensor maps: what a TMA instruction knows of the tensor that it reads or writes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from humming_sim.errors import TensorMapError
from humming_sim.tma import restrictions
from humming_sim.tma.elements import GROUP, Element
from humming_sim.tma.encoding import Fields, pack, unpack
from humming_sim.tma.modes import Fill, Interleave, L2Promotion, Swizzle

__all__ = ["TensorMap"]


@dataclass(frozen=True, kw_only=True)
class TensorMap:
    """A tensor in global memory and the box that one instruction moves, as
    ``cuTensorMapEncodeTiled`` describes them. Dimension 0 is the innermost, without a stride.

    Attributes:
        element: type of the elements.
        address: of the tensor in the launch's global memory, bytes.
        dims: size of the tensor, elements.
        strides: of dimensions 1 and up, bytes.
        box: size of the box, elements of the tensor that it spans.
        element_strides: every how many elements of a dimension one is moved; ones if left out.
        swizzle: permutation of the tile in shared memory.
        fill: what elements of the box outside of the tensor read as.
        interleave: only NONE.
        l2_promotion: without effect here.

    Raises:
        TensorMapError: a restriction of ``cuTensorMapEncodeTiled`` is violated; the text has one
            line for each, which says what would be accepted.
    """

    element: Element
    address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...] = ()
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    swizzle: Swizzle = Swizzle.NONE
    fill: Fill = Fill.ZERO
    interleave: Interleave = Interleave.NONE
    l2_promotion: L2Promotion = L2Promotion.NONE

    def __post_init__(self) -> None:
        if not self.element_strides:
            object.__setattr__(self, "element_strides", (1,) * len(self.dims))
        problems = restrictions.problems(self)
        if problems:
            raise TensorMapError("tensor map refused:\n" + "\n".join(f"- {p}" for p in problems))

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements that are moved along each dimension: box / element stride, rounded up.

        Dimension 0 has no element stride (the driver ignores it without interleaving).
        """
        steps = (1, *self.element_strides[1:])
        return tuple(-(-size // step) for size, step in zip(self.box, steps, strict=True))

    @property
    def row_bytes(self) -> int:
        """Bytes of global memory along dimension 0 of the box."""
        return self.box[0] * self.element.bits // 8

    @property
    def shared_row_bytes(self) -> int:
        """Bytes between two rows of the box in shared memory.

        A swizzled tile has one row per span even if its rows are narrower (measured on an H200).
        """
        if self.swizzle is not Swizzle.NONE:
            return self.swizzle.span
        return self.padded_row_bytes

    @property
    def padded_row_bytes(self) -> int:
        """Bytes of shared memory that a box row takes, padding of sub-byte types included."""
        return self.box[0] * self.element.facts.group_shared_bytes // GROUP

    @property
    def transaction_bytes(self) -> int:
        """What a load adds to its mbarrier's completed bytes: the data of the whole box, also of
        parts outside of the tensor, without any padding.
        """
        return self.row_bytes * math.prod(self.counts[1:])

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory from the tile's address to its end, padding included."""
        return self.shared_row_bytes * math.prod(self.counts[1:])

    def encode(self) -> bytes:
        """The 128 bytes to pass to a kernel; see :mod:`humming_sim.tma.encoding`."""
        mode, atomicity = self.swizzle.mode_and_atomicity
        return pack(
            Fields(
                address=self.address,
                dims=_padded(self.dims, 5),
                strides=_padded(self.strides, 4),
                box=_padded(self.box, 5),
                element_strides=_padded(self.element_strides, 5),
                rank_minus_1=self.rank - 1,
                element=int(self.element),
                interleave=int(self.interleave),
                swizzle_mode=mode,
                swizzle_atomicity=atomicity,
                l2_promotion=int(self.l2_promotion),
                fill=int(self.fill),
            )
        )

    @classmethod
    def decode(cls, blob: bytes) -> TensorMap:
        """The map in 128 bytes that :meth:`encode` or ``tensormap.replace`` made.

        Raises:
            TensorMapError: other bytes, or fields that break a restriction.
        """
        return _decoded(blob)


@lru_cache(maxsize=256)  # kernels use the same few maps over and over
def _decoded(blob: bytes) -> TensorMap:
    fields = unpack(blob)
    rank = fields.rank_minus_1 + 1
    try:
        return TensorMap(
            element=Element(fields.element),
            address=fields.address,
            dims=fields.dims[:rank],
            strides=fields.strides[: rank - 1],
            box=fields.box[:rank],
            element_strides=fields.element_strides[:rank],
            swizzle=Swizzle.of_mode_and_atomicity(fields.swizzle_mode, fields.swizzle_atomicity),
            fill=Fill(fields.fill),
            interleave=Interleave(fields.interleave),
            l2_promotion=L2Promotion(fields.l2_promotion),
        )
    except ValueError as error:
        raise TensorMapError(f"tensor map refused:\n- {error}") from None


def _padded(values: tuple[int, ...], length: int) -> tuple[int, ...]:
    return values + (0,) * (length - len(values))
