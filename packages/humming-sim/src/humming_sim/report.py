"""What a run that found no fault says of itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Access", "Report"]


@dataclass
class Access:
    """Accesses of one PTX line: `used` against the `best` possible for so many bytes.

    For shared memory the unit is a wavefront (so used - best are bank conflicts), for global
    memory a sector of 32 bytes.
    """

    line: int
    space: str
    text: str = ""
    accesses: int = 0
    used: int = 0
    best: int = 0


@dataclass
class Report:
    """Of one launch.

    Attributes:
        kernel: entry name.
        steps: blocks of instructions executed.
        ctas: CTAs run.
        waves: in how many portions they ran.
        instructions: warp instructions executed by opcode (with count=True).
        accesses: shared and global accesses by PTX line (with count=True).
    """

    kernel: str
    steps: int = 0
    ctas: int = 0
    waves: int = 0
    instructions: Counter[str] = field(default_factory=Counter)
    accesses: dict[int, Access] = field(default_factory=dict)

    def add(self, other: Report) -> None:
        """Add what another wave of the same kernel says."""
        self.steps += other.steps
        self.ctas += other.ctas
        self.waves += other.waves
        self.instructions += other.instructions
        for line, access in other.accesses.items():
            mine = self.accesses.setdefault(line, Access(line, access.space, access.text))
            mine.accesses += access.accesses
            mine.used += access.used
            mine.best += access.best

    @property
    def bank_conflicts(self) -> int:
        """Wavefronts of shared memory beyond the fewest possible."""
        return sum(a.used - a.best for a in self.accesses.values() if a.space == "shared")
