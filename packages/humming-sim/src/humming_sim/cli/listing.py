"""``--list``: the kernels of a PTX file, what they take and require, and what would stop them."""

from __future__ import annotations

from typing import Any

from humming_sim.cli.output import Printer, columns
from humming_sim.errors import UnsupportedInstruction
from humming_sim.isa import families
from humming_sim.isa.registry import find
from humming_sim.ptx.model import Kernel
from humming_sim.ptx.reader import read_module

__all__ = ["list_kernels"]


def list_kernels(ptx: str, output: Printer) -> int:
    """Print every kernel; 1 if one holds an instruction that is not simulated.

    Raises:
        PtxError: this is no PTX.
    """
    families.load()
    module = read_module(ptx)
    kernels = [_describe(kernel) for kernel in module.kernels.values()]
    output.data({"target": module.target, "kernels": kernels})
    output.line(f"PTX {'.'.join(map(str, module.version))} for {module.target}")
    for kernel in kernels:
        output.line(f"\n{kernel['name']}")
        rows = [(p["name"], f".{p['type']}", f"{p['bytes']} bytes") for p in kernel["parameters"]]
        for line in columns(rows) if rows else ["no parameters"]:
            output.line(f"  {line}")
        output.line(
            f"  {kernel['instructions']} instructions, {kernel['shared_bytes']} bytes of shared "
            f"memory{' and a dynamic part' if kernel['dynamic'] else ''}"
        )
        for name, numbers in kernel["directives"].items():
            output.line(f"  .{name} {', '.join(map(str, numbers))}")
        if kernel["unsupported"]:
            output.line(f"  not simulated: {', '.join(kernel['unsupported'])}")
    return 1 if any(kernel["unsupported"] for kernel in kernels) else 0


def _describe(kernel: Kernel) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "parameters": [
            {"name": p.name, "type": p.type, "bytes": p.size} for p in kernel.parameters.values()
        ],
        "instructions": len(kernel.instructions),
        "shared_bytes": kernel.shared_bytes,
        "dynamic": bool(kernel.dynamic),
        "directives": {name: list(numbers) for name, numbers in kernel.directives.items()},
        "unsupported": sorted(set(_unsupported(kernel))),
    }


def _unsupported(kernel: Kernel) -> list[str]:
    found = []
    for item in kernel.instructions:
        try:
            find(item)
        except UnsupportedInstruction:
            found.append(item.opcode)
    return found
