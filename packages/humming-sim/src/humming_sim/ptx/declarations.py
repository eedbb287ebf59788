"""Declarations of variables, parameters and registers (PTX ISA 9.0, 5.4 variables)."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from humming_sim.errors import PtxError
from humming_sim.ptx.model import BITS, Parameter, Variable
from humming_sim.ptx.operands import split_operands

__all__ = ["Declaration", "align_up", "parse_declaration", "parse_parameters", "parse_registers"]

_DECLARATION = re.compile(
    r"^\s*(?P<linking>(?:\.(?:extern|visible|weak|common)\s+)*)"
    r"\.(?P<space>shared|local|global|const|param)\s*"
    r"(?P<attributes>(?:\.(?:align\s+\d+|v[248]|attribute\s*\([^)]*\)|managed)\s*)*)"
    r"\.(?P<type>\w+)\s+"
    r"(?:\.ptr\s*(?:\.(?:global|const|shared|local)\s*)?)?(?:\.align\s+\d+\s+)?"
    r"(?P<name>[%$\w]+)\s*(?P<dims>(?:\[[^\]]*\]\s*)*)"
    r"(?:=\s*(?P<init>.*))?$",
    re.S,
)
_FLOAT = re.compile(r"0[fFdD]([0-9a-fA-F]+)$")


@dataclass(frozen=True)
class Declaration:
    """One declared variable before its place in the space is known."""

    name: str
    space: str
    type: str
    size: int
    align: int
    extern: bool
    data: bytes
    links: tuple[tuple[int, str, int], ...]

    def at(self, offset: int) -> Variable:
        """The variable at a byte offset of its space."""
        return Variable(self.name, self.space, offset, self.size, self.align, self.data, self.links)


def align_up(value: int, align: int) -> int:
    """The least multiple of `align` that is not below `value`."""
    return -(-value // align) * align


def parse_declaration(text: str) -> Declaration:
    """A variable's declaration without its semicolon.

    Raises:
        PtxError: if it is none, or of a type without a size.
    """
    match = _DECLARATION.match(text)
    if match is None or match["type"] not in BITS:
        raise PtxError(f"{' '.join(text.split())!r} declares nothing that is known here")
    lanes = re.search(r"\.v(\d)", match["attributes"])
    element = BITS[match["type"]] // 8
    width = element * (int(lanes[1]) if lanes else 1)
    count, dims = 1, re.findall(r"\[([^\]]*)\]", match["dims"])
    for dim in dims:
        count *= int(dim, 0) if dim.strip() else 0
    data, links = _initial(match["init"], match["type"]) if match["init"] else (b"", ())
    if not count and data:
        count = len(data) // width
    aligned = re.search(r"\.align\s+(\d+)", match["attributes"])
    return Declaration(
        name=match["name"],
        space=match["space"],
        type=match["type"],
        size=width * count,
        align=int(aligned[1]) if aligned else width,
        extern="extern" in match["linking"],
        data=data,
        links=links,
    )


def _initial(text: str, type_: str) -> tuple[bytes, tuple[tuple[int, str, int], ...]]:
    """Bytes of an initialiser, and the places in it that hold addresses of symbols."""
    size = BITS[type_] // 8
    data, links = bytearray(), []
    for item in _flat(text):
        if match := _FLOAT.match(item):
            data += int(match[1], 16).to_bytes(size, "little")
        elif re.match(r"[+-]?\d", item):
            if type_.startswith("f"):
                data += struct.pack({4: "<f", 8: "<d"}[size], float(item))
            else:
                data += (int(item.rstrip("U"), 0) % (1 << 8 * size)).to_bytes(size, "little")
        else:
            name = re.match(r"(?:generic\()?\s*([$\w]+)\)?\s*(?:\+\s*(\d+))?", item)
            if name is None:
                raise PtxError(f"{item!r} initialises nothing")
            links.append((len(data), name[1], int(name[2] or 0)))
            data += bytes(size)
    return bytes(data), tuple(links)


def _flat(text: str) -> list[str]:
    text = text.strip()
    if not text.startswith("{"):
        return [text]
    return [item for part in split_operands(text[1:-1]) for item in _flat(part)]


def parse_parameters(text: str) -> tuple[dict[str, Parameter], int]:
    """A parameter list, with offsets as the driver lays them out, and its bytes in all."""
    parameters: dict[str, Parameter] = {}
    offset = 0
    for part in split_operands(text):
        declared = parse_declaration(part)
        offset = align_up(offset, declared.align)
        parameters[declared.name] = Parameter(
            declared.name, declared.type, offset, declared.size, declared.align
        )
        offset += declared.size
    return parameters, offset


def parse_registers(text: str) -> list[tuple[str, str, int | None]]:
    """``.reg .b32 %r<5>, %x`` as (name, type, count or None).

    Raises:
        PtxError: for a type that is not known, or vector registers.
    """
    match = re.match(r"\s*\.reg\s+\.(\w+)\s+(.*)$", text, re.S)
    if match is None or match[1] not in BITS:
        raise PtxError(f"{' '.join(text.split())!r} declares no registers that are known here")
    out: list[tuple[str, str, int | None]] = []
    for name in match[2].split(","):
        counted = re.match(r"\s*([%$\w]+)\s*<\s*(\d+)\s*>\s*$", name)
        if counted:
            out.append((counted[1], match[1], int(counted[2])))
        else:
            out.append((name.strip(), match[1], None))
    return out
