"""The kernels that sort choices of experts: into tiles of rows, or into rows as products want."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from humming.backend import UNTILED, Arg, KernelSpec, LaunchShape, Problem
from humming.configs import GemmKind, LayerConfig
from humming.errors import ConfigError, UnsupportedError
from humming.scheduling import ceil_div, max_row_tiles

__all__ = ["MAX_EXPERTS", "AlignedSizes", "align_spec", "aligned_sizes", "route_spec", "sort_spec"]

#: The most experts that the kernel can count.
MAX_EXPERTS = 1024

_THREADS = 1024
#: Choices that are worth a CTA. It costs next to nothing, for each CTA counts all choices anyway;
#: with more than this many CTAs the counting is most of the time.
_CHOICES_PER_CTA = 32
_MAX_CTAS = 32
_INT_LIMIT = 2**31


class AlignedSizes(NamedTuple):
    """Elements of what the kernel writes, enough whatever the ids are.

    Attributes:
        slots: of ``slots``.
        row_tiles: of ``tile_experts``.
    """

    slots: int
    row_tiles: int


@dataclass(frozen=True)
class _Context:
    name: str
    id: str
    row_tile: int
    threads: int = _THREADS
    max_experts: int = MAX_EXPERTS
    rows: str = "contiguous"


def align_spec(row_tile: int, ids_64bit: bool, arch: str) -> KernelSpec:
    """What :func:`humming.scheduling.align_rows` does, as a kernel.

    Its arguments: ``ids``, the expert of each choice, int32 or int64; ``slots``, ``tile_experts``
    and ``row_tiles``, the int32 tensors that it writes, the first two with :func:`aligned_sizes`
    elements, the last with one; and the numbers of ``choices`` and ``experts``. The result is the
    same on every run. What lies behind the last row of tiles is not written.

    Without tiles, ``slots`` are the sorted choices alone, ``tile_experts`` where those of each
    expert begin [experts + 1], and ``row_tiles`` how many they are.

    Args:
        row_tile: rows of a tile, or UNTILED.
        ids_64bit: whether ids are int64 instead of int32.
        arch: target architecture as the compiler spells it.

    Raises:
        ConfigError: a tile without rows; by `launch`: more choices than int32 can count.
        UnsupportedError: by `launch`: more than MAX_EXPERTS experts.
    """
    if row_tile < 0:
        raise ConfigError("row_tile", row_tile, f"a positive number of rows, or {UNTILED} for none")
    name = f"humming.align_rows.{'i64' if ids_64bit else 'i32'}_m{row_tile}"
    return KernelSpec(
        name=name,
        template="humming/align_rows.cu.j2",
        context=_Context(name, "humming::i64" if ids_64bit else "humming::i32", row_tile),
        arch=arch,
        args=(
            Arg("ids", "ptr"),
            Arg("slots", "ptr"),
            Arg("tile_experts", "ptr"),
            Arg("row_tiles", "ptr"),
            Arg("choices", "i32"),
            Arg("experts", "i32"),
        ),
        launch=_launch,
        row_tile=row_tile,
        entry="align_rows",
    )


def sort_spec(ids_64bit: bool, arch: str) -> KernelSpec:
    """What :func:`humming.combining.route` does, as a kernel, for contiguous products.

    Its arguments: ``ids`` as of :func:`align_spec`; the int32 tensors that it writes, whole:
    ``sources`` and ``places`` with as many elements as there are choices, ``offsets`` with one more
    than there are experts, and ``rows`` with one; and the numbers of ``choices``, ``experts`` and
    choices ``per_source``, that is per row of activations.

    Args:
        ids_64bit: whether ids are int64 instead of int32.
        arch: target architecture as the compiler spells it.

    Raises:
        ConfigError, UnsupportedError: by `launch`, as of :func:`align_spec`.
    """
    name = f"humming.sort_rows.{'i64' if ids_64bit else 'i32'}"
    pointers = ("ids", "sources", "places", "offsets", "rows")
    return KernelSpec(
        name=name,
        template="humming/sort_rows.cu.j2",
        context=_Context(name, "humming::i64" if ids_64bit else "humming::i32", 1),
        arch=arch,
        args=(
            *(Arg(pointer, "ptr") for pointer in pointers),
            Arg("choices", "i32"),
            Arg("experts", "i32"),
            Arg("per_source", "i32"),
        ),
        launch=_launch,
        entry="sort_rows",
    )


def route_spec(layout: GemmKind, ids_64bit: bool, arch: str) -> KernelSpec:
    """What :func:`humming.combining.route` does, as a kernel, for products of any layout.

    That of contiguous rows is :func:`sort_spec`. The others' arguments: ``ids``, ``sources``,
    ``places``; ``table``, the int32 ids [choices] (indexed) or counts [experts] (masked); the
    numbers of ``choices``, ``experts`` and choices ``per_source``; and, of masked rows, the
    ``capacity`` of each expert. Choices beyond it get no row.

    Args:
        layout: INDEXED, GROUPED_CONTIGUOUS or GROUPED_MASKED.
        ids_64bit, arch: as of :func:`sort_spec`.

    Raises:
        ConfigError: another layout; by `launch`, as of :func:`align_spec`.
        UnsupportedError: by `launch`, if rows are sorted, as of :func:`align_spec`.
    """
    if layout is GemmKind.GROUPED_CONTIGUOUS:
        return sort_spec(ids_64bit, arch)
    if layout is GemmKind.DENSE:
        raise ConfigError("layout", layout, "a layout of experts")
    indexed = layout is GemmKind.INDEXED
    width, rows = "i64" if ids_64bit else "i32", "indexed" if indexed else "masked"
    name = f"humming.sort_rows.{rows}_{width}"
    numbers = ("choices", "experts", "per_source", *(() if indexed else ("capacity",)))
    return KernelSpec(
        name=name,
        template="humming/sort_rows.cu.j2",
        context=_Context(name, f"humming::{width}", 1, rows=rows),
        arch=arch,
        args=(
            *(Arg(pointer, "ptr") for pointer in ("ids", "sources", "places", "table")),
            *(Arg(number, "i32") for number in numbers),
        ),
        launch=_launch_unsorted if indexed else _launch,
        entry="sort_rows",
    )


def aligned_sizes(choices: int, experts: int, row_tile: int) -> AlignedSizes:
    """How large the tensors are that the kernel of :func:`align_spec` writes.

    Args:
        choices: (token, choice) pairs.
        experts: number of experts.
        row_tile: rows of a tile, or UNTILED.
    """
    if row_tile == UNTILED:
        return AlignedSizes(slots=choices, row_tiles=experts + 1)
    tiles = max_row_tiles(GemmKind.INDEXED, choices, row_tile, experts)
    return AlignedSizes(slots=tiles * row_tile, row_tiles=tiles)


def _launch(problem: Problem, layer: LayerConfig) -> LaunchShape:
    if layer.experts > MAX_EXPERTS:
        raise UnsupportedError(
            f"rows are sorted by up to {MAX_EXPERTS} experts, and the layer has {layer.experts}"
        )
    _check_choices(problem)
    return _shape(max(1, min(ceil_div(problem.m, _CHOICES_PER_CTA), _MAX_CTAS)))


def _launch_unsorted(problem: Problem, layer: LayerConfig) -> LaunchShape:
    _check_choices(problem)
    return _shape(max(1, min(ceil_div(problem.m, _THREADS), _MAX_CTAS)))


def _check_choices(problem: Problem) -> None:
    if not 0 <= problem.m < _INT_LIMIT:
        raise ConfigError("m", problem.m, f"0 to {_INT_LIMIT - 1} choices")


@cache
def _shape(ctas: int) -> LaunchShape:
    return LaunchShape(grid=(ctas, 1, 1), block=(_THREADS, 1, 1))
