"""All families of instructions; importing one enters its instructions in the registry."""

from __future__ import annotations

import importlib
import pkgutil

import humming_sim.isa

__all__ = ["load"]


def load() -> None:
    """Import every module of the package, so that all instructions are known."""
    for module in pkgutil.iter_modules(humming_sim.isa.__path__):
        importlib.import_module(f"humming_sim.isa.{module.name}")
