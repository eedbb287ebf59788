"""humming-sim: a functional simulator of PTX that finds the faults hardware hides.

>>> import humming_sim
>>> report = humming_sim.launch(ptx, "kernel", grid=1, block=128, args=[a, b, 4])  # doctest: +SKIP

Public names are imported on first use, so that humming and pytest, which load their plugins at
every start, do not load a simulator each time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from humming_sim.arguments import Struct
    from humming_sim.device import Device
    from humming_sim.errors import (
        LaunchError,
        PtxError,
        SimulationFault,
        SimulatorError,
        TensorMapError,
        UnstableResult,
        UnsupportedInstruction,
    )
    from humming_sim.findings import CHECKS, Finding
    from humming_sim.launching import launch
    from humming_sim.report import Access, Report
    from humming_sim.seeds import launch_seeds
    from humming_sim.tensors import TensorMap
    from humming_sim.tma.elements import Element
    from humming_sim.tma.modes import Fill, Swizzle

_HOMES = {
    "humming_sim.arguments": ("Struct",),
    "humming_sim.device": ("Device",),
    "humming_sim.errors": (
        "LaunchError",
        "PtxError",
        "SimulationFault",
        "SimulatorError",
        "TensorMapError",
        "UnstableResult",
        "UnsupportedInstruction",
    ),
    "humming_sim.findings": ("CHECKS", "Finding"),
    "humming_sim.launching": ("launch",),
    "humming_sim.report": ("Access", "Report"),
    "humming_sim.seeds": ("launch_seeds",),
    "humming_sim.tensors": ("TensorMap",),
    "humming_sim.tma.elements": ("Element",),
    "humming_sim.tma.modes": ("Fill", "Swizzle"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "CHECKS",
    "Access",
    "Device",
    "Element",
    "Fill",
    "Finding",
    "LaunchError",
    "PtxError",
    "Report",
    "SimulationFault",
    "SimulatorError",
    "Struct",
    "Swizzle",
    "TensorMap",
    "TensorMapError",
    "UnstableResult",
    "UnsupportedInstruction",
    "launch",
    "launch_seeds",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'humming_sim' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
