"""Seeded faults: edits of the test kernels, and what the simulator makes of them.

The tables are tests/sim/mutations/*.py. A mutant runs with all its threads together first, then
with seeds, until something is found; what is found first is its outcome.
"""

from __future__ import annotations

import runpy
from dataclasses import dataclass, replace
from pathlib import Path

from sim_gemm_variants import VARIANTS
from sim_gemms import Problem
from sim_kernels import compile_ptx
from sim_launch import simulate

from humming_sim import SimulationFault

TABLES = Path(__file__).resolve().parents[1] / "sim" / "mutations"

#: Runs after the one without a seed. A fault of timing is found by most seeds, not by all.
SEEDS = 6
#: What `caught_by` may hold beside the names of checks: wrong numbers in a run without findings.
RESULT = "result"
NOTHING = "nothing"


@dataclass(frozen=True)
class Mutation:
    """One fault.

    Attributes:
        name: unique, in words.
        variant: a key of VARIANTS.
        edits: pairs of texts; the first must stand exactly once in the kernel's source.
        what: what it does, for the table in the documentation.
        caught_by: the outcomes that are right: names of checks, RESULT, or NOTHING.
        problem: sizes that show it.
        smem: how many bytes of shared memory more than needed (or fewer) the launch gives.
    """

    name: str
    variant: str
    edits: tuple[tuple[str, str], ...]
    what: str
    caught_by: tuple[str, ...]
    problem: Problem
    smem: int = 0

    def source(self) -> str:
        """The kernel's source with the fault in it. Raises ValueError if an edit doesn't fit."""
        text = VARIANTS[self.variant](self.problem).program.text()
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(
                    f"{self.name}: {old!r} stands {text.count(old)} times in the source"
                )
            text = text.replace(old, new)
        return text


@dataclass(frozen=True)
class Outcome:
    """What was found first: a check's name, RESULT or NOTHING; in which run; the finding's text."""

    found: str
    seed: int | None
    message: str


def load() -> list[Mutation]:
    """Every mutation of every table."""
    return [
        row for path in sorted(TABLES.glob("*.py")) for row in runpy.run_path(str(path))["ROWS"]
    ]


def outcome(mutation: Mutation) -> Outcome:
    """Runs a mutant until something is found."""
    case = VARIANTS[mutation.variant](mutation.problem)
    case = replace(case, smem=case.smem + mutation.smem)
    ptx = compile_ptx(mutation.source(), f"compute_{case.program.arch}", case.program.defines)
    for seed in (None, *range(SEEDS)):
        try:
            faults = case.faults(simulate(case, ptx, seed=seed, max_steps=200_000))
        except SimulationFault as fault:
            return Outcome(fault.findings[0].check, seed, str(fault.findings[0]))
        if faults:
            return Outcome(RESULT, seed, "; ".join(faults))
    return Outcome(NOTHING, None, "")
