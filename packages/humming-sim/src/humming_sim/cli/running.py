"""Run the kernel that the arguments describe, and show its results, counts or findings."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from humming_sim.cli.output import Printer, columns
from humming_sim.cli.values import Argument, make_argument
from humming_sim.errors import SimulationFault
from humming_sim.machine.options import ALL_CHECKS
from humming_sim.ptx.model import Kernel
from humming_sim.ptx.reader import read_module
from humming_sim.report import Report
from humming_sim.seeds import launch_seeds

__all__ = ["run_kernel"]

#: Elements shown of each buffer.
_SHOWN = 8


def run_kernel(ptx: str, args: argparse.Namespace, output: Printer) -> int:
    """Run a kernel of PTX text; 1 if it did something wrong.

    Raises:
        argparse.ArgumentError: the arguments do not say which kernel, or how many threads.
        SimulatorError: the launch is refused, or results depend on the order.
    """
    kernel = _chosen(list(read_module(ptx).kernels.values()), args.entry)
    arguments = [make_argument(spec, index) for index, spec in enumerate(args.specs)]
    before = [argument.codes.copy() for argument in arguments]
    start = time.perf_counter()
    try:
        report = launch_seeds(
            ptx,
            kernel.name,
            args.grid or 1,
            args.block or _required_block(kernel),
            [argument.value for argument in arguments],
            seeds=args.seeds,
            tolerance=args.tolerance,
            cluster=args.cluster,
            smem=args.smem,
            device=args.device,
            checks=ALL_CHECKS - set(args.skip),
            count=args.report,
            accumulation=args.accumulation,
        )
    except SimulationFault as fault:
        output.data({"kernel": kernel.name, "findings": [asdict(f) for f in fault.findings]})
        for finding in fault.findings:
            output.line(str(finding))
        return 1
    seconds = time.perf_counter() - start
    buffers = [
        _shown(index, argument, old)
        for index, (argument, old) in enumerate(zip(arguments, before, strict=True))
        if argument.is_buffer
    ]
    if args.out:
        saved: dict[str, Any] = {f"arg{i}": a.codes for i, a in enumerate(arguments) if a.is_buffer}
        np.savez(args.out, **saved)
    data = {"ctas": report.ctas, "steps": report.steps, "seconds": seconds, "seeds": args.seeds}
    counts = _counts(report) if args.report else {}
    output.data({"kernel": kernel.name, "findings": [], **data, "buffers": buffers, **counts})
    orders = f"; {args.seeds} random orders agree" if args.seeds else ""
    output.line(f"kernel {kernel.name}: {report.ctas} CTAs in {seconds:.2f} s, no finding{orders}")
    _print_buffers(buffers, output)
    if args.report:
        _print_counts(report, output)
    return 0


def _chosen(kernels: Sequence[Kernel], name: str | None) -> Kernel:
    found = [kernel for kernel in kernels if name in (None, kernel.name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(kernel.name for kernel in kernels) or "none"
    said = "name one with --entry" if name is None else f"there is no {name!r}"
    raise argparse.ArgumentError(None, f"{said}: the kernels of the file are {names}")


def _required_block(kernel: Kernel) -> tuple[int, ...]:
    required = kernel.directives.get("reqntid")
    if not required:
        raise argparse.ArgumentError(None, f"--block is missing: {kernel.name} requires none")
    return required


def _shown(index: int, argument: Argument, before: Any) -> dict[str, Any]:
    size = argument.codes.dtype.itemsize
    bits = [codes.view(np.uint8).reshape(-1, size) for codes in (argument.codes, before)]
    return {
        "index": index,
        "type": argument.type,
        "count": len(argument.codes),
        "changed": int((bits[0] != bits[1]).any(axis=1).sum()),
        "first": argument.numbers(_SHOWN),
    }


def _print_buffers(buffers: Sequence[dict[str, Any]], output: Printer) -> None:
    rows: list[Sequence[object]] = [("argument", "type", "elements", "changed", "first of them")]
    for row in buffers:
        first = " ".join(f"{n:g}" if isinstance(n, float) else str(n) for n in row["first"])
        rows.append((row["index"], row["type"], row["count"], row["changed"], first))
    output.line()
    for line in columns(rows):
        output.line(line)


def _counts(report: Report) -> dict[str, Any]:
    return {
        "instructions": dict(report.instructions),
        "accesses": [asdict(access) for access in report.accesses.values()],
        "bank_conflicts": report.bank_conflicts,
    }


def _print_counts(report: Report, output: Printer) -> None:
    """Accesses in the order of their lines, instructions with the most frequent first."""
    rows: list[Sequence[object]] = [("line", "space", "accesses", "used", "fewest", "instruction")]
    rows += [
        (a.line, a.space, a.accesses, a.used, a.best, a.text)
        for _, a in sorted(report.accesses.items())
    ]
    output.line("\nMemory: sectors of 32 bytes (global) and wavefronts (shared)")
    for line in columns(rows):
        output.line(line)
    output.line(f"\nBank conflicts: {report.bank_conflicts}")
    output.line("\nInstructions executed by warps")
    for line in columns([(count, opcode) for opcode, count in report.instructions.most_common()]):
        output.line(line)
