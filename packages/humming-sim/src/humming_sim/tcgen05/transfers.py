"""What tcgen05.ld, st, cp and shift move: lanes and columns of tensor memory.

PTX ISA 9.0, 9.7.16.2.3 (data movement shapes), 9.7.16.8 (ld, st, packing) and 9.7.16.9 (cp with
decompression, shift).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from humming_sim.matrices.packing import expand_padded
from humming_sim.tcgen05.shared_descriptor import OperandUse

__all__ = [
    "COPIES",
    "FRAGMENTS",
    "SHIFT_COLUMNS",
    "SHIFT_LANES",
    "CopyShape",
    "Fragment",
    "copied_words",
    "fragment",
    "merge_halves",
    "split_halves",
]

Ints = npt.NDArray[np.intp]

#: Registers of one repetition by shape of ld and st.
FRAGMENTS = MappingProxyType(
    {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1},
)
_MOST_REGISTERS = 128

#: tcgen05.shift moves this many columns of this many neighbouring lanes.
SHIFT_LANES = 32
SHIFT_COLUMNS = 8


@dataclass(frozen=True)
class Fragment:
    """Which cell each register of a warp's ld or st is, counted from its address.

    Attributes:
        lanes: [32 threads, registers, 1].
        columns: [32 threads, registers, 1], or 2 neighbours of which a register has the low halves.
        height: lanes from the address.
        width: columns from the address.
    """

    lanes: Ints
    columns: Ints
    height: int
    width: int


@lru_cache(maxsize=512)
def fragment(shape: str, repeat: int, halves: bool = False, second: int = 0) -> Fragment:
    """The fragment of one shape.

    Args:
        shape: key of :data:`FRAGMENTS`.
        repeat: `.x1` to `.x128`.
        halves: `.pack::16b` or `.unpack::16b`.
        second: of .16x32bx2: columns from the first access to the second.

    Raises:
        ValueError: no such shape, or too many registers.
    """
    registers = FRAGMENTS.get(shape, 0) * repeat
    if not 0 < registers <= _MOST_REGISTERS or repeat & (repeat - 1):
        raise ValueError(f"tcgen05.ld and st have no .{shape}.x{repeat}")
    thread, register = np.meshgrid(np.arange(32), np.arange(registers), indexing="ij")
    lane, column, offset = _CELL[shape](thread, register)
    step = 2 if halves else 1
    columns = (column * step + offset * second)[:, :, None] + np.arange(step)
    return Fragment(
        lanes=lane[:, :, None],
        columns=columns,
        height=int(lane.max()) + 1,
        width=int(columns.max()) + 1,
    )


#: Lane, column, and number of the access of (thread, register).
_CELL: dict[str, Callable[[Ints, Ints], tuple[Ints, Ints, Ints | int]]] = {
    "32x32b": lambda t, r: (t, r, 0),
    "16x64b": lambda t, r: (t // 4 + t % 2 * 8, t // 2 % 2 + r * 2, 0),
    "16x128b": lambda t, r: (t // 4 + r % 2 * 8, t % 4 + r // 2 * 4, 0),
    "16x256b": lambda t, r: (t // 4 + r // 2 % 2 * 8, t % 4 * 2 + r % 2 + r // 4 * 8, 0),
    "16x32bx2": lambda t, r: (t % 16, r, t // 16),
}


def merge_halves(cells: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Registers from cells [..., 1 or 2]: two low halves are packed, the first cell's low."""
    if cells.shape[-1] == 1:
        return cells[..., 0]
    low = np.uint32(0xFFFF)
    packed: npt.NDArray[np.uint32] = cells[..., 0] & low | (cells[..., 1] & low) << np.uint32(16)
    return packed


def split_halves(registers: npt.NDArray[np.uint32], cells: int) -> npt.NDArray[np.uint32]:
    """Cells [..., 1 or 2] that registers are stored to; halves are extended with zeros."""
    if cells == 1:
        return registers[..., None]
    return np.stack([registers & np.uint32(0xFFFF), registers >> np.uint32(16)], axis=-1)


# ------------------------------------------------------------------------------------ tcgen05.cp


@dataclass(frozen=True)
class CopyShape:
    """One `.shape` with its `.multicast` of tcgen05.cp.

    Attributes:
        lanes: lanes that each row of the source goes to, [rows, copies], from the address's lane.
        columns: columns of tensor memory.
    """

    lanes: Ints
    columns: int

    @property
    def use(self) -> OperandUse:
        """What the shared memory descriptor is used for."""
        return OperandUse(rows=len(self.lanes), k=self.columns * 4, bits=8)


def _rows(count: int, first: int = 0, step: int = 1) -> list[int]:
    return list(range(first, first + count * step, step))


def _shape(columns: int, *copies: list[int]) -> CopyShape:
    lanes = np.array(copies, np.intp).T
    lanes.setflags(write=False)
    return CopyShape(lanes, columns)


#: By ".shape" and ".shape.multicast".
COPIES = MappingProxyType(
    {
        "128x256b": _shape(8, _rows(128)),
        "128x128b": _shape(4, _rows(128)),
        "4x256b": _shape(8, _rows(4, step=32)),
        "64x128b.warpx2::02_13": _shape(4, _rows(64), _rows(64, 64)),
        "64x128b.warpx2::01_23": _shape(
            4, _rows(32) + _rows(32, 64), _rows(32, 32) + _rows(32, 96)
        ),
        "32x128b.warpx4": _shape(4, *(_rows(32, 32 * warp) for warp in range(4))),
    }
)

#: Bits of an element by source format, and where the element lies in its byte afterwards.
_FORMATS = {"b4x16_p64": (4, 2), "b6x16_p32": (6, 0)}


def copied_words(units: npt.NDArray[np.uint8], source: str = "") -> npt.NDArray[np.uint32]:
    """Words for tensor memory from the bytes of the source.

    Args:
        units: bytes [rows, units, 16].
        source: "" or the `.src_fmt` that is decompressed: 16 elements at the start of each unit
            come to a byte each, 4-bit ones in its bits 2-5.

    Returns:
        uint32 [rows, 4 * units].

    Raises:
        ValueError: no such format.
    """
    if source:
        if source not in _FORMATS:
            raise ValueError(f"tcgen05.cp decompresses no .{source}")
        bits, shift = _FORMATS[source]
        units = expand_padded(units, bits) << np.uint8(shift)
    rows = np.ascontiguousarray(units, np.uint8).reshape(len(units), -1)
    return rows.view(np.uint32)
