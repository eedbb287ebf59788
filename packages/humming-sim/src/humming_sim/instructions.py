"""The page that lists all simulated instructions, made from the registry."""

from __future__ import annotations

import re
from collections.abc import Iterable

from humming_sim.isa import families
from humming_sim.isa.registry import known_opcodes

__all__ = ["page"]

#: Titles of the parts of the PTX manual's chapter of instructions (PTX ISA 9.0).
_PARTS = {
    1: "Integer arithmetic",
    2: "Extended-precision integer arithmetic",
    3: "Floating point",
    4: "Half precision floating point",
    5: "Mixed precision floating point",
    6: "Comparison and selection",
    7: "Half precision comparison",
    8: "Logic and shift",
    9: "Data movement and conversion",
    10: "Texture",
    11: "Surface",
    12: "Control flow",
    13: "Parallel synchronization and communication",
    14: "Matrix instructions of a warp",
    15: "Matrix instructions of a warpgroup (wgmma)",
    16: "Tensor cores of the fifth generation (tcgen05)",
    17: "Stack manipulation",
    18: "Video",
    19: "Video of several lanes",
    20: "Miscellaneous",
}

_HEAD = """\
# Simulated instructions

Made from the code by `humming simulate --coverage --write docs/simulator-instructions.md`; `nox -s
docs` checks that it is current. [simulator.md](simulator.md) says what the simulator is.

A row holds for every instruction that starts with the words on its left; the row with the longest
start counts. Sections are those of the PTX manual, ISA 9.0. An instruction without a row, or with a
modifier that its row does not know, ends the run with its name and its line.
"""


def page() -> str:
    """The page as Markdown."""
    families.load()
    rows: dict[str, list[str]] = {}
    for opcode, entry in known_opcodes().items():
        rows.setdefault(entry.manual, []).append(opcode)
    lines = [_HEAD.rstrip("\n")]
    part = 0
    for manual, opcodes in sorted(rows.items(), key=lambda row: (_section(row[0]), row[0])):
        if _section(manual)[2] != part:
            part = _section(manual)[2]
            lines += ["", f"## {_PARTS[part]}", "", "| instructions | in the manual |", "|---|---|"]
        lines.append(f"| {_code(opcodes)} | {manual} |")
    return "\n".join(lines) + "\n"


def _section(manual: str) -> tuple[int, ...]:
    """The numbers of the first section that a row names, (9, 7, 13, 4)."""
    match = re.match(r"\d+\.\d+\.\d+[.\d]*", manual)
    if match is None:
        raise ValueError(f"{manual!r} does not start with a section of the manual")
    return tuple(int(number) for number in match[0].rstrip(".").split("."))


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
