"""The public call: run a kernel of a PTX text on NumPy arrays or CPU tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from humming_sim.arguments import bind_arguments
from humming_sim.device import Device, runs_on
from humming_sim.errors import LaunchError
from humming_sim.findings import CHECKS
from humming_sim.isa.execution import run_wave
from humming_sim.machine.geometry import Geometry, Shape
from humming_sim.machine.options import ALL_CHECKS, Options
from humming_sim.profiles import device_of
from humming_sim.ptx.model import Kernel, Module
from humming_sim.ptx.reader import read_module
from humming_sim.report import Report

__all__ = ["launch", "module_of"]

#: Bytes of simulator state that one wave of CTAs may take, about.
_WAVE_BYTES = 1 << 30
_GRID_LIMITS = (2**31 - 1, 65535, 65535)
_BLOCK_LIMITS = (1024, 1024, 64)


def launch(  # budget: the launch of a kernel has these parts, named as CUDA names them
    ptx: str,
    entry: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Any],
    *,
    cluster: int | Sequence[int] | None = None,
    smem: int = 0,
    device: Device | str | None = None,
    seed: int | None = None,
    checks: Iterable[str] | None = None,
    count: bool = False,
    accumulation: str = "exact",
    max_steps: int = 20_000_000,
) -> Report:
    """Run a kernel and write its results into the buffers among `args`.

    Args:
        ptx: PTX text, as NVRTC or nvcc make it.
        entry: name of the kernel in it.
        grid, block, cluster: one to three numbers each; cluster defaults to what the kernel
            requires (.reqnctapercluster), else none.
        args: one per kernel parameter: NumPy arrays or CPU tensors are buffers and become pointers;
            ints and floats (or NumPy scalars) become scalars; bytes become structs;
            :class:`TensorMap` becomes a 128-byte map. One buffer may appear several times.
        smem: bytes of dynamic shared memory.
        device: a :class:`Device`, or the name of a humming profile, whose limits count.
        seed: None runs all threads together (fast, deterministic); a number runs warps in a random
            order with asynchronous work completing at random legal times. Use several.
        checks: names from :data:`humming_sim.CHECKS` that are on; None is all.
        count: count bank conflicts, memory sectors and executed instructions.
        accumulation: "exact" rounds each matrix instruction once; "hardware" truncates as
            measured on devices, where that is known.
        max_steps: blocks of instructions after which a run is given up.

    Raises:
        PtxError: if the text is not PTX.
        UnsupportedInstruction: if the kernel holds an instruction that is not simulated.
        LaunchError: if no device, or not this one, would accept the launch.
        SimulationFault: if the kernel did something wrong; buffers keep what they had before.
    """
    module = module_of(ptx)
    kernel = module.kernels.get(entry)
    if kernel is None:
        raise LaunchError(f"no kernel {entry!r} in the PTX; it has {', '.join(module.kernels)}")
    limits = device_of(device)
    shapes = _shapes(kernel, grid, block, cluster)
    _check_shape(kernel, shapes, smem)
    if limits is not None:
        _check_device(module, kernel, shapes, smem, limits)
    bindings = bind_arguments(module, kernel, args)
    arch = "" if limits is None else limits.arch
    options = Options(seed, _checks(checks), count, max_steps, _accumulation(accumulation), arch)
    report = Report(kernel.name)
    clusters = int(np.prod(shapes[0])) // int(np.prod(shapes[2]))
    step = _clusters_per_wave(kernel, shapes, smem)
    for first in range(0, clusters, step):
        geometry = Geometry(*shapes, first, min(first + step, clusters))
        report.add(run_wave(module, kernel, geometry, bindings, options, smem))
    bindings.copy_back()
    return report


@lru_cache(maxsize=32)
def module_of(ptx: str) -> Module:
    """What :func:`read_module` makes of PTX, which is not changed afterwards; kept for a while."""
    return read_module(ptx)


def _checks(names: Iterable[str] | None) -> frozenset[str]:
    if names is None:
        return ALL_CHECKS
    chosen = frozenset(names)
    unknown = chosen - set(CHECKS)
    if unknown:
        raise LaunchError(f"no checks {sorted(unknown)}; there are {', '.join(CHECKS)}")
    return chosen


def _accumulation(name: str) -> str:
    if name not in ("exact", "hardware"):
        raise LaunchError(f"accumulation={name!r}; it is 'exact' or 'hardware'")
    return name


def _shape(name: str, value: int | Sequence[int]) -> Shape:
    numbers = [value] if isinstance(value, int) else [int(number) for number in value]
    if not 1 <= len(numbers) <= 3 or min(numbers) < 1:
        raise LaunchError(f"{name}={value!r}; it has one to three positive numbers")
    x, y, z = [*numbers, 1, 1][:3]
    return x, y, z


def _shapes(
    kernel: Kernel,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    cluster: int | Sequence[int] | None,
) -> tuple[Shape, Shape, Shape]:
    required = _three(kernel.directives.get("reqnctapercluster", ()))
    given = None if cluster is None else _shape("cluster", cluster)
    if required and given and required != given:
        raise LaunchError(f"kernel {kernel.name} requires clusters of {required}, not {given}")
    return _shape("grid", grid), _shape("block", block), given or required or (1, 1, 1)


def _three(numbers: tuple[int, ...]) -> Shape | None:
    if not numbers:
        return None
    x, y, z = [*numbers, 1, 1][:3]
    return x, y, z


def _check_shape(kernel: Kernel, shapes: tuple[Shape, Shape, Shape], smem: int) -> None:
    grid, block, cluster = shapes
    for name, shape, limits in (("grid", grid, _GRID_LIMITS), ("block", block, _BLOCK_LIMITS)):
        for axis, size, limit in zip("xyz", shape, limits, strict=True):
            if size > limit:
                raise LaunchError(f"{name}.{axis}={size}; the limit is {limit}")
    if int(np.prod(block)) > 1024:
        raise LaunchError(f"block={block} has {int(np.prod(block))} threads; the limit is 1024")
    for axis, size, part in zip("xyz", grid, cluster, strict=True):
        if size % part:
            raise LaunchError(f"grid.{axis}={size} is no multiple of cluster.{axis}={part}")
    most, exact = (_three(kernel.directives.get(n, ())) for n in ("maxntid", "reqntid"))
    if most and int(np.prod(block)) > int(np.prod(most)):
        raise LaunchError(
            f"block={block} has more threads than kernel {kernel.name} allows (.maxntid {most})"
        )
    if exact and block != exact:
        raise LaunchError(f"kernel {kernel.name} requires block={exact}, not {block}")
    if smem < 0:
        raise LaunchError(f"smem={smem}; it cannot be negative")


def _check_device(
    module: Module, kernel: Kernel, shapes: tuple[Shape, Shape, Shape], smem: int, device: Device
) -> None:
    if not runs_on(module.target, device.arch):
        raise LaunchError(f"PTX for {module.target} doesn't run on {device.name} ({device.arch})")
    shared = kernel.shared_bytes + smem
    if shared > device.shared_bytes:
        raise LaunchError(
            f"kernel {kernel.name} needs {shared} bytes of shared memory ({kernel.shared_bytes} "
            f"static, {smem} dynamic); {device.name} has {device.shared_bytes} for a CTA"
        )
    size = int(np.prod(shapes[2]))
    if size > device.max_cluster:
        raise LaunchError(
            f"cluster={shapes[2]} has {size} CTAs; {device.name} takes {device.max_cluster}"
        )
    threads = int(np.prod(shapes[1]))
    if threads > device.threads:
        raise LaunchError(f"block={shapes[1]} is over {device.name}'s {device.threads} threads")
    registers = kernel.directives.get("maxnreg", (0,))[0] * threads
    if registers > device.registers:
        raise LaunchError(
            f".maxnreg asks for {registers} registers a CTA; {device.name} has {device.registers}"
        )


def _clusters_per_wave(kernel: Kernel, shapes: tuple[Shape, Shape, Shape], smem: int) -> int:
    """How many clusters run at once, from what their state takes."""
    threads = -(-int(np.prod(shapes[1])) // 32) * 32
    cta = threads * (4 * len(kernel.registers) + kernel.local_bytes + 64)
    cta += 3 * (kernel.shared_bytes + smem + 2048)
    if any(item.words[0] == "tcgen05" for item in kernel.instructions):
        cta += 128 * 512 * 5
    return max(1, _WAVE_BYTES // (cta * int(np.prod(shapes[2]))))
