"""The kernels around the products of experts: rows in order, activation function, weighted sum."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache

from humming.backend import Arg, KernelSpec, LaunchShape, Problem
from humming.configs import LayerConfig
from humming.errors import ConfigError
from humming.formats.number import NumberFormat
from humming.gating import Gating
from humming.scheduling import ceil_div

__all__ = ["CHUNK", "RowMask", "combine_spec", "gate_spec", "gather_spec"]

#: Numbers that a thread computes; rows that are multiples of it are read 16 bytes at a time.
CHUNK = 8

_THREADS = 256
#: Widths of a CTA in threads; what is left of its threads is further rows.
_WIDTHS = (128, 64, 32, 16, 8)
_GRID_Y = 65535
_INT_LIMIT = 2**31
_TYPES = {"f16": "humming::F16", "bf16": "humming::Bf16", "f32": "humming::F32"}


class RowMask(Enum):
    """Which rows are computed; others are not written. The value is the policy's C++ name."""

    EVERY = "humming::EveryRow"
    IDS = "humming::RowsOfExperts<humming::i32>"  # rows whose id is an expert's
    IDS_64 = "humming::RowsOfExperts<humming::i64>"
    COUNTS = "humming::CountedRows"  # of [E, capacity] rows the first counts[e]


@dataclass(frozen=True)
class _GateContext:
    name: str
    element: str
    mask: str
    whole: bool
    gated: bool
    interleaved: bool
    parameters: tuple[tuple[str, float], ...]
    expression: str
    threads: int = _THREADS
    chunk: int = CHUNK


@dataclass(frozen=True)
class _CombineContext:
    name: str
    element: str
    id: str
    whole: bool
    placed: bool
    threads: int = _THREADS
    chunk: int = CHUNK


@dataclass(frozen=True)
class _GatherContext:
    name: str
    element: str
    whole: bool
    threads: int = _THREADS
    chunk: int = CHUNK


def gate_spec(
    gating: Gating, element: NumberFormat, mask: RowMask, whole: bool, arch: str
) -> KernelSpec:
    """What :class:`Gating` does, as a kernel.

    Its arguments: ``x``, rows of inputs, ``x_stride`` bytes apart; ``out``, rows of outputs without
    gaps; ``mask``, ids [rows] or counts [E], and its ``limit``, the number of experts or the
    capacity; ``rows`` and ``width``, of the outputs. `launch` takes the rows as ``m`` and the
    outputs as ``n``.

    Computed in float32, with CUDA's own erfcf and a fast exponential, and rounded once. What comes
    before the rounding is within 2^-15 of the result: most of that is the argument of an
    exponential that has more digits than float32, far out where the result is next to nothing.
    Rounding to f16 may take 2^-11.

    Args:
        gating: the function.
        element: f16, bf16 or f32, of inputs and outputs.
        mask: which rows count.
        whole: rows and outputs are whole chunks of CHUNK numbers at multiples of 16 bytes.
        arch: target architecture as the compiler spells it.
    """
    function = gating.function
    layout = "_interleaved" if gating.interleaved else ""
    tail = "" if whole else "_tail"
    rows = mask.name.lower()
    name = f"humming.gate_rows.{function.name}{layout}_{element.name}_{rows}{tail}"
    context = _GateContext(
        name,
        _type_of(element),
        mask.value,
        whole,
        function.gated,
        gating.interleaved,
        gating.parameters,
        function.cuda,
    )
    return KernelSpec(
        name=name,
        template="humming/gate_rows.cu.j2",
        context=context,
        arch=arch,
        args=(
            Arg("x", "ptr"),
            Arg("x_stride", "i64"),
            Arg("out", "ptr"),
            Arg("mask", "ptr"),
            Arg("limit", "i32"),
            Arg("rows", "i32"),
            Arg("width", "i32"),
        ),
        launch=_launch,
        entry="gate_rows",
    )


def gather_spec(element: NumberFormat, whole: bool, arch: str) -> KernelSpec:
    """Rows in another order, as a kernel: row i of the result is row sources[i] // per_source.

    Its arguments: ``x`` and ``x_stride`` as of :func:`gate_spec`; ``sources``, int32; ``out``, rows
    without gaps; ``limit``, how many rows x has; ``rows`` and ``width``; ``per_source``; and
    what scales of rows there are, or null: ``scales``, f32 [rows], to ``scales_out``, and
    ``groups``, f32 [rows, group_count], to ``groups_out``. Rows whose source is none of x are not
    written, others keep every bit, whatever the numbers are: codes of other widths are numbers of
    16 bits here. `launch` takes the rows as ``m`` and the width as ``n``.

    Args:
        element: f16, bf16 or f32.
        whole: as in :func:`gate_spec`.
        arch: target architecture as the compiler spells it.
    """
    name = f"humming.gather_rows.{element.name}{'' if whole else '_tail'}"
    return KernelSpec(
        name=name,
        template="humming/gather_rows.cu.j2",
        context=_GatherContext(name, _type_of(element), whole),
        arch=arch,
        args=(
            Arg("x", "ptr"),
            Arg("x_stride", "i64"),
            Arg("sources", "ptr"),
            Arg("out", "ptr"),
            Arg("limit", "i32"),
            Arg("rows", "i32"),
            Arg("width", "i32"),
            Arg("per_source", "i32"),
            Arg("scales", "ptr"),
            Arg("scales_out", "ptr"),
            Arg("groups", "ptr"),
            Arg("groups_out", "ptr"),
            Arg("group_count", "i32"),
        ),
        launch=_launch,
        entry="gather_rows",
    )


def combine_spec(
    element: NumberFormat, ids_64bit: bool, whole: bool, arch: str, *, placed: bool = False
) -> KernelSpec:
    """What :func:`humming.combining.combine` does, as a kernel, to the bit.

    Its arguments: ``y``, [M, top_k, H]; ``ids``, int32 or int64; ``weights``, float32 or null;
    ``shared``, [M, H] or null; ``out``; and the numbers of ``tokens``, ``top_k``, ``experts`` and
    the ``width`` H; and, if `placed`, ``places``, int32 [M, top_k], the row of y of each choice,
    anything where it is nobody's. `launch` takes the tokens as ``m`` and the width as ``n``.

    Args:
        element: f16, bf16 or f32, of y, shared and out.
        ids_64bit: whether ids are int64 instead of int32.
        whole: as in :func:`gate_spec`.
        arch: target architecture as the compiler spells it.
        placed: whether rows of y are in another order than choices.
    """
    ids, tail = "i64" if ids_64bit else "i32", "" if whole else "_tail"
    name = f"humming.combine_rows.{element.name}_{ids}{'_placed' if placed else ''}{tail}"
    return KernelSpec(
        name=name,
        template="humming/combine_rows.cu.j2",
        context=_CombineContext(name, _type_of(element), f"humming::{ids}", whole, placed),
        arch=arch,
        args=(
            Arg("y", "ptr"),
            Arg("ids", "ptr"),
            Arg("weights", "ptr"),
            Arg("shared", "ptr"),
            Arg("out", "ptr"),
            Arg("tokens", "i32"),
            Arg("top_k", "i32"),
            Arg("experts", "i32"),
            Arg("width", "i32"),
            *([Arg("places", "ptr")] if placed else []),
        ),
        launch=_launch,
        entry="combine_rows",
    )


def _type_of(element: NumberFormat) -> str:
    if element.name not in _TYPES:
        raise ConfigError("element", element.name, f"one of {', '.join(_TYPES)}")
    return _TYPES[element.name]


def _launch(problem: Problem, layer: LayerConfig) -> LaunchShape:
    """CTAs for rows of so many outputs: `m` of them, `n` wide."""
    if not 0 < problem.m < _INT_LIMIT:
        raise ConfigError("rows", problem.m, f"1 to {_INT_LIMIT - 1} rows")
    return _shape(problem.m, layer.n)


@cache
def _shape(rows: int, width: int) -> LaunchShape:
    chunks = ceil_div(width, CHUNK)
    # The widest of those that leave the fewest threads without a chunk.
    wide = min(_WIDTHS, key=lambda threads: ceil_div(chunks, threads) * threads)
    columns = ceil_div(chunks, wide)
    if columns > _GRID_Y:
        raise ConfigError("width", width, f"at most {_GRID_Y * wide * CHUNK} numbers")
    high = _THREADS // wide
    return LaunchShape(grid=(ceil_div(rows, high), columns, 1), block=(wide, high, 1))
