"""Launch a kernel in several orders and compare what it computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.arguments import buffers_of
from humming_sim.errors import UnstableResult
from humming_sim.launching import launch
from humming_sim.report import Report

__all__ = ["launch_seeds"]

#: A buffer among the arguments: (argument, what was passed, its memory).
Passed = tuple[int, Any, npt.NDArray[Any]]


def launch_seeds(  # budget: the launch of a kernel has these parts, named as CUDA names them
    ptx: str,
    entry: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence[Any],
    *,
    seeds: int = 3,
    tolerance: float = 0.0,
    **options: Any,
) -> Report:
    """Run a kernel convergent and then in `seeds` random orders, from the same buffers each time.

    Afterwards the buffers hold the results of the convergent run, and if anything is raised, what
    they held before.

    Args:
        ptx, entry, grid, block, args: as for :func:`humming_sim.launch`.
        seeds: how many random orders; their seeds are 1, 2 and so on.
        tolerance: the largest difference between two runs that is all right, as a share of the
            buffer's largest magnitude. 0 asks for the same bits, which is right for a kernel
            without floating-point atomics.
        options: further options of :func:`humming_sim.launch`; not `seed`. With `count`, the
            convergent run is counted.

    Returns:
        The report of the convergent run.

    Raises:
        UnstableResult: runs without a finding gave different results.
        SimulatorError: as :func:`humming_sim.launch`.
    """
    buffers = [row for row in buffers_of(args) if row[2].flags.writeable]
    before = [array.copy() for _, _, array in buffers]
    try:
        report = launch(ptx, entry, grid, block, args, **options)
        results = [array.copy() for _, _, array in buffers]
        for seed in range(1, seeds + 1):
            _put(buffers, before)
            launch(ptx, entry, grid, block, args, seed=seed, **{**options, "count": False})
            for row, expected in zip(buffers, results, strict=True):
                _compare(row, expected, tolerance, f"kernel {entry}, order of seed {seed}")
    except BaseException:
        _put(buffers, before)
        raise
    _put(buffers, results)
    return report


def _put(buffers: Sequence[Passed], contents: Sequence[npt.NDArray[Any]]) -> None:
    for (_, _, array), content in zip(buffers, contents, strict=True):
        array[...] = content


def _compare(buffer: Passed, expected: npt.NDArray[Any], tolerance: float, order: str) -> None:
    """Raise unless a buffer holds what it held after the convergent run."""
    argument, source, array = buffer
    if array.tobytes() == expected.tobytes():
        return
    found, wanted = _values(source, array), _values(source, expected)
    different = _different_bits(array, expected, len(wanted))
    if tolerance > 0:
        size = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0))
        with np.errstate(invalid="ignore"):  # infinity less infinity
            near = np.abs(found - wanted) <= tolerance * size
        different &= ~(near | (found == wanted) | (np.isnan(found) & np.isnan(wanted)))
    if different.any():
        first = int(np.flatnonzero(different)[0])
        raise UnstableResult(
            f"{order}: {int(different.sum())} of {len(wanted)} elements of argument {argument} "
            f"differ from the convergent run, the first at {first}: {found[first]:g} instead of "
            f"{wanted[first]:g}"
        )


def _different_bits(
    array: npt.NDArray[Any], expected: npt.NDArray[Any], count: int
) -> npt.NDArray[np.bool_]:
    """Which of `count` elements differ in any bit."""
    bits = [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in (array, expected)]
    unequal: npt.NDArray[np.bool_] = (bits[0] != bits[1]).reshape(count, -1).any(axis=1)
    return unequal


def _values(source: Any, array: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The numbers in a buffer's memory, flat, as what was passed says they are."""
    if not isinstance(source, np.ndarray):
        import torch

        values: npt.NDArray[np.float64] = (
            torch.from_numpy(array).view(source.dtype).double().numpy()
        )
        return values
    try:
        return array.reshape(-1).astype(np.float64)
    except (TypeError, ValueError):  # records have no order of size; their bytes do
        return array.reshape(-1).view(np.uint8).astype(np.float64)
