"""Element types of tensor maps.

Facts from the driver's ``CUtensorMapDataType``, PTX ISA 9.0, 5.5.1 (tensor element types and the
padding of sub-byte types) and 9.7.9.28 (codes of ``tensormap.replace``). Measured on an H200, since
no text says it: the NaN that fills, the rounding of TF32 loads, and which types are reduced how.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["GROUP", "OOB_NAN", "PACKED", "Element", "ElementFacts"]

#: Packed types move in groups of this many elements.
GROUP = 16

#: 16 bits that, repeated, fill elements outside of the tensor in mode NAN, whatever their type.
OOB_NAN = 0x7FF7


class Element(IntEnum):
    """An element type; the values are those of the driver's ``CUtensorMapDataType``."""

    UINT8 = 0
    UINT16 = 1
    UINT32 = 2
    INT32 = 3
    UINT64 = 4
    INT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT32_FTZ = 10
    TFLOAT32 = 11
    TFLOAT32_FTZ = 12
    _16U4_ALIGN8B = 13
    _16U4_ALIGN16B = 14
    _16U6_ALIGN16B = 15

    @property
    def facts(self) -> ElementFacts:
        """The row of this type."""
        return _FACTS[self]

    @property
    def bits(self) -> int:
        """Bits of one element in global memory."""
        return _FACTS[self].bits

    @property
    def title(self) -> str:
        """The name as the driver writes it."""
        return self.name.lstrip("_")

    @property
    def padded(self) -> bool:
        """Whether shared memory holds sixteen elements in 16 bytes with unused bits between."""
        return _FACTS[self].group_shared_bytes * 8 > GROUP * _FACTS[self].bits

    @classmethod
    def of_ptx_code(cls, code: int) -> Element:
        """The type that ``tensormap.replace.tile.elemtype`` calls `code`.

        Raises:
            ValueError: no type has that code.
        """
        for element, facts in _FACTS.items():
            if facts.ptx_code == code:
                return element
        raise ValueError(f"{code} is no element type of tensormap.replace; they are 0 to 15")


@dataclass(frozen=True)
class ElementFacts:
    """What is known of one element type.

    Attributes:
        ptx_name: its name in the PTX manual.
        ptx_code: its code for ``tensormap.replace.tile.elemtype``.
        bits: of one element in global memory.
        reduced_as: types under which ``cp.reduce.async.bulk.tensor`` knows it; f32.ftz flushes
            subnormal operands and results.
        floating: whether NaN can fill.
        rounds: whether a load rounds float32 to TF32.
        group_shared_bytes: bytes that sixteen elements take in shared memory.
    """

    ptx_name: str
    ptx_code: int
    bits: int
    reduced_as: tuple[str, ...]
    floating: bool
    rounds: bool
    group_shared_bytes: int


def _whole(name: str, code: int, bits: int, reduced_as: str) -> ElementFacts:
    return ElementFacts(name, code, bits, tuple(reduced_as.split()), False, False, 2 * bits)


def _float(name: str, code: int, bits: int, reduced_as: str) -> ElementFacts:
    rounds = name.startswith("tf32")
    return ElementFacts(name, code, bits, tuple(reduced_as.split()), True, rounds, 2 * bits)


def _packed(name: str, code: int, bits: int, group_shared_bytes: int) -> ElementFacts:
    return ElementFacts(name, code, bits, (), False, False, group_shared_bytes)


_FACTS = {
    Element.UINT8: _whole("u8", 0, 8, ""),
    Element.UINT16: _whole("u16", 1, 16, ""),
    Element.UINT32: _whole("u32", 2, 32, "u32 b32"),
    Element.INT32: _whole("s32", 3, 32, "s32 b32"),
    Element.UINT64: _whole("u64", 4, 64, "u64 b64"),
    Element.INT64: _whole("s64", 5, 64, "s64"),
    Element.FLOAT16: _float("f16", 6, 16, "f16"),
    Element.FLOAT32: _float("f32", 7, 32, "f32"),
    Element.FLOAT64: _float("f64", 9, 64, "f64"),
    Element.BFLOAT16: _float("bf16", 10, 16, "bf16"),
    Element.FLOAT32_FTZ: _float("f32.ftz", 8, 32, "f32.ftz"),
    Element.TFLOAT32: _float("tf32", 11, 32, "f32"),
    Element.TFLOAT32_FTZ: _float("tf32.ftz", 12, 32, "f32.ftz"),
    Element._16U4_ALIGN8B: _packed("b4x16", 13, 4, 8),
    Element._16U4_ALIGN16B: _packed("b4x16_p64", 14, 4, 16),
    Element._16U6_ALIGN16B: _packed("b6x16_p32", 15, 6, 16),
}

#: Types whose elements are smaller than a byte.
PACKED = frozenset(element for element in Element if element.bits < 8)
