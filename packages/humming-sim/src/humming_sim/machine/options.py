"""How a launch is executed and what is checked."""

from __future__ import annotations

from dataclasses import dataclass

from humming_sim.findings import CHECKS, OPTIONAL_CHECKS

__all__ = ["ALL_CHECKS", "Options"]

ALL_CHECKS = frozenset(CHECKS) - OPTIONAL_CHECKS


@dataclass(frozen=True)
class Options:
    """How to run.

    Attributes:
        seed: None runs all threads together and completes asynchronous work as late as it may;
            a number runs warps in a random order with completions at random legal moments.
        checks: the checks that are on.
        count: collect bank conflicts, coalescing and executed instructions.
        max_steps: blocks of instructions executed before the run is given up.
        accumulation: "exact" (one rounding per matrix instruction) or "hardware".
        arch: architecture of the device, whose tensor cores "hardware" means; "" is the PTX's.
    """

    seed: int | None = None
    checks: frozenset[str] = ALL_CHECKS
    count: bool = False
    max_steps: int = 20_000_000
    accumulation: str = "exact"
    arch: str = ""
