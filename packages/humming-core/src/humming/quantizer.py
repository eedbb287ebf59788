"""The kernel that quantizes activations: humming.activations.quantize_rows in one launch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from typing import NamedTuple

from humming.backend import Arg, KernelSpec, LaunchShape, Problem
from humming.configs import LayerConfig
from humming.errors import ConfigError, UnsupportedError
from humming.formats.activation import ActivationScheme
from humming.formats.number import NumberFormat, Specials
from humming.formats.tensors import scale_reach
from humming.scheduling import ceil_div

__all__ = ["SOURCES", "RowSizes", "quantize_refusal", "quantize_spec", "row_sizes"]

#: Formats of activations that the kernel reads.
SOURCES = ("f16", "bf16", "f32")

_ROW_BYTES = 16
_OCTET = 8
_LARGEST_GROUP = 1024
_MAX_THREADS = 512
#: What a warp works on at least, so that not all threads of a row are warps of their own.
_WARPS_PER_CTA = 4
_INT_LIMIT = 2**31


class RowScale(Enum):
    """Where the scale of a whole row comes from; twin of ``include/humming/quantize/rows.cuh``."""

    NONE = "none"
    TOKEN = "token"
    STORED = "stored"


class RowSizes(NamedTuple):
    """What one row becomes.

    Attributes:
        code_bytes: of codes, up to a multiple of 16.
        groups: group scales; 0 without groups.
    """

    code_bytes: int
    groups: int


@dataclass(frozen=True)
class _Context:
    name: str
    source: NumberFormat
    code: NumberFormat
    scale: NumberFormat
    row_scale: RowScale
    reach: float
    group: int
    threads: int
    vectors: int
    teams: int


def quantize_refusal(scheme: ActivationScheme) -> str | None:
    """None if there is a kernel for a scheme, or a sentence that says why not."""
    if not scheme.is_quantized:
        return f"{scheme} activations are not quantized"
    fmt, group = scheme.format, scheme.group_size
    if fmt.is_float and (fmt.mantissa == 0 or fmt.specials is Specials.FNUZ):
        return f"codes of {fmt} are rounded by no kernel"
    if not scheme.static and "tensor" in (scheme.granularity, scheme.second):
        return "a scale of all rows needs a pass over all of them before the first code"
    if group > _LARGEST_GROUP:
        return f"groups of {group}: at most {_LARGEST_GROUP}"
    if group % _OCTET or (group > 32 * _OCTET and group & (group - 1)):
        return f"groups of {group}: a multiple of {_OCTET}, and above 256 a power of two"
    return None


def row_sizes(scheme: ActivationScheme, k: int) -> RowSizes:
    """What a row of k activations becomes.

    Args:
        scheme: a quantizing scheme.
        k: elements of the row.
    """
    code_bytes = k if scheme.format.bits > 4 else ceil_div(k, 2)
    groups = ceil_div(k, scheme.group_size) if scheme.group_size else 0
    return RowSizes(ceil_div(code_bytes, _ROW_BYTES) * _ROW_BYTES, groups)


def quantize_spec(scheme: ActivationScheme, source: NumberFormat, k: int, arch: str) -> KernelSpec:
    """What :func:`humming.activations.quantize_rows` does, as a kernel, bit for bit.

    Its arguments: ``x``, rows of k elements that are next to one another; ``x_stride``, elements
    from one row to the next; ``stored``, f32 scales of a static scheme, ``stored_step`` (0 or 1)
    from one row's to the next row's; ``codes``, uint8 [rows, code_bytes], which it writes with one
    code per byte or, of at most four bits, with two, the first in the low nibble, and zeros behind
    a row's end; ``scales``, f32 [rows], the factor of each row, NaN if one of its numbers is;
    ``groups``, f32 [rows, groups], the stored group scales; ``rows``; and ``k``. Sizes are those of
    :func:`row_sizes`; codes begin at a multiple of 16.

    Args:
        scheme: what to quantize to.
        source: format of the activations, one of SOURCES.
        k: elements of a row; kernels for other k differ only in how a row is spread over threads.
        arch: target architecture as the compiler spells it.

    Raises:
        UnsupportedError: see :func:`quantize_refusal`.
        ConfigError: another source, no k; by `launch`: more rows than int32 can count.
    """
    reason = quantize_refusal(scheme)
    if reason is not None:
        raise UnsupportedError(reason)
    if source.name not in SOURCES:
        raise ConfigError("source", source.name, f"one of {', '.join(SOURCES)}")
    if not 0 < k < _INT_LIMIT - _LARGEST_GROUP:
        raise ConfigError("k", k, "a positive number of elements")
    context = _context(scheme, source, k)
    names = {"x": "ptr", "x_stride": "i64", "stored": "ptr", "stored_step": "i32", "codes": "ptr"}
    names |= {"scales": "ptr", "groups": "ptr", "rows": "i32", "k": "i32"}
    return KernelSpec(
        name=context.name,
        template="humming/quantize.cu.j2",
        context=context,
        arch=arch,
        args=tuple(Arg(name, kind) for name, kind in names.items()),
        launch=partial(_launch, context.threads, context.teams),
        entry="quantize_rows",
    )


def _context(scheme: ActivationScheme, source: NumberFormat, k: int) -> _Context:
    assert scheme.scale is not None, "a scheme that quantizes has a scale format"
    threads, vectors = _team(scheme.group_size, ceil_div(k, _OCTET))
    token = "token" in (scheme.granularity, scheme.second)
    where = RowScale.TOKEN if token else RowScale.STORED if scheme.static else RowScale.NONE
    reach = scale_reach(scheme.scale) if scheme.second else 1.0
    shape = f"{threads}x{vectors}"
    return _Context(
        name=f"humming.quantize.{source}_{str(scheme).replace('-', '_')}_{shape}",
        source=source,
        code=scheme.format,
        scale=scheme.scale,
        row_scale=where,
        reach=reach,
        group=scheme.group_size,
        threads=threads,
        vectors=vectors,
        teams=_WARPS_PER_CTA if threads == 32 else 1,
    )


def _team(group: int, octets: int) -> tuple[int, int]:
    """Threads that share a row, and how many times eight elements each has of it at a time."""
    per_group = max(1, group // _OCTET)
    lanes = 32 if per_group > 32 else 32 // per_group * per_group
    vectors = max(2, per_group // 32)
    warps = ceil_div(octets, lanes * vectors)
    if warps > _MAX_THREADS // 32:
        vectors = 4
        warps = min(ceil_div(octets, lanes * vectors), _MAX_THREADS // 32)
    return 32 * warps, vectors


def _launch(threads: int, teams: int, problem: Problem, layer: LayerConfig) -> LaunchShape:
    if not 0 < problem.m < _INT_LIMIT:
        raise ConfigError("m", problem.m, f"1 to {_INT_LIMIT - 1} rows")
    return _shape(ceil_div(problem.m, teams), threads * teams)


@cache
def _shape(ctas: int, threads: int) -> LaunchShape:
    return LaunchShape(grid=(ctas, 1, 1), block=(threads, 1, 1))
