"""What an instruction may do with a tensor map.

PTX ISA 9.0, 9.7.9.27.1 (restrictions on tensor copies, cp.async.bulk.tensor and its relatives); the
swizzles of padded types as in the driver's documentation of ``cuTensorMapEncodeTiled``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from humming_sim.tma.bulk import REDUCE_TENSOR, Problem
from humming_sim.tma.elements import PACKED, Element
from humming_sim.tma.modes import Swizzle
from humming_sim.tma.restrictions import PADDED_BOX
from humming_sim.tma.tensor_map import TensorMap

__all__ = ["Direction", "TensorUse", "reduction_type", "target_problem", "use_problem"]

Addresses = npt.NDArray[np.int64]

#: What the shared address of a tile is a multiple of, bytes.
TILE_ALIGNMENT = 128


class Direction(Enum):
    """Which way a tensor copy goes."""

    LOAD = "load"
    STORE = "store"
    REDUCE = "reduce"
    PREFETCH = "prefetch"

    @property
    def reads_shared(self) -> bool:
        """Whether shared memory is the source."""
        return self in (Direction.STORE, Direction.REDUCE)


@dataclass(frozen=True)
class TensorUse:
    """What an instruction's text says of a tensor copy.

    Attributes:
        direction: which way it goes.
        rank: its ``.dim``.
        gathered: whether it is ``.tile::gather4`` or ``.tile::scatter4``.
        operation: of a reduction, such as "add"; else empty.
        to_cluster: whether its destination is ``.shared::cluster``.
    """

    direction: Direction
    rank: int
    gathered: bool = False
    operation: str = ""
    to_cluster: bool = False


def use_problem(
    tensor_map: TensorMap, use: TensorUse, coordinates: Addresses, shared: Addresses | None
) -> Problem | None:
    """The first thing wrong with n tensor copies through one map, or None.

    Args:
        tensor_map: the map.
        use: the instruction.
        coordinates: int64 [n, rank], or [n, 5] (column and four rows) if gathered.
        shared: int64 [n], where the tiles lie in shared memory; None for a prefetch.
    """
    for message in _map_problems(tensor_map, use):
        return Problem("descriptor", message)
    if shared is not None and (shared % TILE_ALIGNMENT).any():
        index = int(np.argmax(shared % TILE_ALIGNMENT != 0))
        message = f"a tile in shared memory must start at a multiple of {TILE_ALIGNMENT} bytes"
        return Problem("alignment", message, index, "shared", int(shared[index]))
    return _coordinate_problem(tensor_map, use, coordinates)


def _map_problems(m: TensorMap, use: TensorUse) -> Iterator[str]:
    if m.rank != use.rank:
        yield f"the instruction is .{use.rank}d, its tensor map has {m.rank} dimensions"
    if use.gathered and m.box[1:] != (1,):
        yield f"gather4 and scatter4 need a box of one row, not {m.box[1:]}"
    if use.direction.reads_shared and m.element is Element._16U4_ALIGN16B:
        yield f"{m.element.title} can only be loaded; store 16U4_ALIGN8B"
    unstored = m.element.padded and m.swizzle is Swizzle.B128_ATOM_64B
    if unstored and not use.direction.reads_shared:
        yield f"{m.element.title} with swizzle {m.swizzle.name} can only be stored"
    if use.direction is Direction.REDUCE and reduction_type(m.element, use.operation) is None:
        types = ", ".join(sorted(REDUCE_TENSOR[use.operation]))
        yield f".{use.operation} of {m.element.title}; it takes tensors of {types}"


def _coordinate_problem(m: TensorMap, use: TensorUse, coordinates: Addresses) -> Problem | None:
    if use.direction.reads_shared and (coordinates < 0).any():
        index = int(np.argmax((coordinates < 0).any(axis=1)))
        message = f"the coordinates of a store must not be negative: {_shown(coordinates[index])}"
        return Problem("bounds", message, index)
    divisor = PADDED_BOX if m.element.padded else 128 // m.element.bits
    wrong = coordinates[:, 0] % divisor != 0
    if wrong.any():
        index = int(np.argmax(wrong))
        message = (
            f"a box must start at a multiple of 16 bytes of its row: the first coordinate at a "
            f"multiple of {divisor} for {m.element.title}, not {_shown(coordinates[index])}"
        )
        return Problem("alignment", message, index)
    return None


def _shown(coordinates: Addresses) -> str:
    return "{" + ", ".join(str(int(value)) for value in coordinates) + "}"


def reduction_type(element: Element, operation: str) -> str | None:
    """The type, as in "u32", in which tensors of `element` are reduced; None if they can't be."""
    allowed = REDUCE_TENSOR[operation]
    return next((name for name in element.facts.reduced_as if name in allowed), None)


def target_problem(tensor_map: TensorMap, use: TensorUse, architecture: int) -> str | None:
    """Why devices of this architecture (compute capability, as in 90 or 120) don't take the map.

    Sub-byte elements and atoms other than 16 bytes came with 10.0. Architecture 12.x loads such
    tiles only into ``.shared::cta``.
    """
    extras = []
    if tensor_map.element in PACKED:
        extras.append(f"elements {tensor_map.element.title}")
    if tensor_map.swizzle > Swizzle.B128:
        extras.append(f"swizzle {tensor_map.swizzle.name}")
    if not extras:
        return None
    what = " and ".join(extras)
    if architecture < 100:
        return f"{what} need compute capability 10.0, this device has {architecture / 10:.1f}"
    if architecture // 10 == 12 and use.direction is Direction.LOAD and use.to_cluster:
        return f"{what} can only be loaded into .shared::cta on compute capability 12.x"
    return None
