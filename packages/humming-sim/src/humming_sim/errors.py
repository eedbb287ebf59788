"""Every exception that this package raises; all derive from :class:`SimulatorError`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from humming_sim.findings import Finding

__all__ = [
    "LaunchError",
    "PtxError",
    "SimulationFault",
    "SimulatorError",
    "TensorMapError",
    "UnstableResult",
    "UnsupportedInstruction",
]


class SimulatorError(Exception):
    """Base of everything that humming_sim raises on purpose."""


class PtxError(SimulatorError):
    """Text that is not the PTX it should be; says which line and what was expected."""

    def __init__(self, reason: str, line: int = 0, text: str = "") -> None:
        self.reason = reason
        self.line = line
        self.text = text
        where = f"PTX line {line}: " if line else ""
        shown = f"\n    {text}" if text else ""
        super().__init__(f"{where}{reason}{shown}")


class UnsupportedInstruction(PtxError):
    """Legal PTX that this simulator does not execute; named rather than guessed."""


class LaunchError(SimulatorError):
    """A launch that no device would accept: wrong arguments, sizes or limits."""


class TensorMapError(SimulatorError):
    """A tensor map that the driver's encoder would refuse."""


class SimulationFault(SimulatorError):
    """A kernel did something wrong; :attr:`findings` says what, where and what was expected."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(str(finding) for finding in findings))


class UnstableResult(SimulatorError):
    """Runs of one kernel in different orders, without a finding, gave different results."""
