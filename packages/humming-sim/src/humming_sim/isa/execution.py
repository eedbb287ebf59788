"""Run one wave: make the machine, compile for it, run, and look at what is left over."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.arguments import Bindings
from humming_sim.isa import families
from humming_sim.isa.builder import Environment
from humming_sim.isa.program import compile_kernel
from humming_sim.isa.spaces import PARAM
from humming_sim.machine.code import Block
from humming_sim.machine.frame import Frame
from humming_sim.machine.geometry import WARP, Geometry
from humming_sim.machine.machine import REGISTER_TYPES, Machine
from humming_sim.machine.options import Options
from humming_sim.machine.scheduler import Scheduler
from humming_sim.machine.shared_memory import BASE, RANK_SHIFT, SharedMemory
from humming_sim.ptx.declarations import align_up
from humming_sim.ptx.model import BITS, Kernel, Module
from humming_sim.report import Access, Report

__all__ = ["run_wave"]

families.load()


def run_wave(
    module: Module,
    kernel: Kernel,
    geometry: Geometry,
    bindings: Bindings,
    options: Options,
    dynamic_bytes: int,
) -> Report:
    """Run the clusters of `geometry` and return the wave's report.

    Raises:
        PtxError, UnsupportedInstruction: as :func:`compile_kernel`.
        SimulationFault: at the first finding.
    """
    machine = Machine(kernel, module.target, geometry, bindings.memory, options)
    try:
        return _run(machine, bindings, dynamic_bytes)
    finally:
        # All parts of a machine know it, and so does every compiled instruction: they are freed
        # at once if it forgets them, and otherwise when the garbage collector comes by.
        vars(machine).clear()


def _run(machine: Machine, bindings: Bindings, dynamic_bytes: int) -> Report:
    kernel, geometry = machine.kernel, machine.geometry
    with np.errstate(all="ignore"):
        dynamic_at = align_up(kernel.shared_bytes, max([16, *kernel.dynamic.values()]))
        size = (
            dynamic_at + dynamic_bytes if kernel.dynamic or dynamic_bytes else kernel.shared_bytes
        )
        machine.shared = SharedMemory(machine, size, _uses_async_proxy(kernel))
        for type_ in kernel.registers:
            bits = BITS[type_]
            shape = (geometry.threads, 2) if bits == 128 else (geometry.threads,)
            machine.registers.append(np.zeros(shape, REGISTER_TYPES[bits]))
        environment = Environment(
            symbols=_symbols(kernel, machine, bindings, dynamic_at),
            specials=_specials(machine, size, dynamic_bytes),
            parameters=bindings.parameters,
            local=np.full((geometry.threads, kernel.local_bytes), 0xFF, np.uint8),
        )
        blocks = compile_kernel(machine, environment)
        machine.scheduler = Scheduler(machine, blocks)
        machine.scheduler.run()
        _finish(machine)
        return _report(machine, blocks)


def _uses_async_proxy(kernel: Kernel) -> bool:
    """Whether anything but threads reads shared memory."""
    return any(
        item.words[0] in ("wgmma", "tcgen05") or "bulk" in item.words
        for item in kernel.instructions
    )


def _symbols(
    kernel: Kernel, machine: Machine, bindings: Bindings, dynamic_at: int
) -> dict[str, int | npt.NDArray[np.int64]]:
    size = machine.geometry.cluster_size
    rank = (machine.cta_of % size) << RANK_SHIFT
    symbols: dict[str, int | npt.NDArray[np.int64]] = dict(bindings.variables)
    offsets = {name: variable.offset for name, variable in kernel.shared.items()}
    offsets |= dict.fromkeys(kernel.dynamic, dynamic_at)
    for name, offset in offsets.items():
        symbols[name] = BASE + offset if size == 1 else rank + (BASE + offset)
    symbols |= {name: variable.offset for name, variable in kernel.local.items()}
    symbols |= {name: PARAM + p.offset for name, p in kernel.parameters.items()}
    return symbols


def _specials(machine: Machine, shared: int, dynamic: int) -> dict[str, Any]:
    specials: dict[str, Any] = dict(machine.geometry.specials())
    specials |= {
        "%smid": machine.cta_of.astype(np.uint32),
        "%nsmid": machine.geometry.ctas,
        "%gridid": 1,
        "%total_smem_size": shared,
        "%aggr_smem_size": shared,
        "%dynamic_smem_size": dynamic,
        "%reserved_smem_offset_begin": 0,
        "%reserved_smem_offset_end": BASE,
        "%reserved_smem_offset_cap": BASE,
        "%clock": lambda frame: frame.machine.now,
        "%clock64": lambda frame: frame.machine.now,
        "%clock_hi": 0,
        "%globaltimer": lambda frame: frame.machine.now,
        "%globaltimer_lo": lambda frame: frame.machine.now,
        "%globaltimer_hi": 0,
        "%is_explicit_cluster": int(machine.geometry.cluster_size > 1),
    }
    return specials


def _finish(machine: Machine) -> None:
    """Complete what may complete after the last thread, then check what must not be left."""
    while machine.asyncs.idle():
        pass
    last = Frame(machine, slice(0, WARP), WARP, 0)
    last.at = len(machine.kernel.instructions) - 1
    machine.mbarriers.check_end(last)
    for check in machine.extra.get("at exit", ()):
        check(last)


def _report(machine: Machine, blocks: list[Block]) -> Report:
    report = Report(machine.kernel.name, machine.scheduler.steps, machine.geometry.ctas, 1)
    if not machine.options.count:
        return report
    counts: Counter[str] = Counter()
    instructions = machine.kernel.instructions
    for block in blocks[:-1]:
        for item in instructions[block.first : block.last + 1]:
            counts[item.opcode] += -(-block.visits // WARP)
    report.instructions = counts
    text = {item.line: item.text for item in instructions}
    for line, (space, accesses, used, best) in machine.extra.get("tally", {}).items():
        report.accesses[line] = Access(line, space, text[line], accesses, used, best)
    return report
