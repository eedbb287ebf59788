"""The kernel that quantizes activations: humming.activations.quantize_rows in one launch.

Also of rows that an activation function (humming.gating) or a Hadamard transform gives, and of
chosen rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, partial
from typing import NamedTuple

from humming.activations import hadamard_factor
from humming.backend import Arg, KernelSpec, LaunchShape, Problem
from humming.configs import LayerConfig
from humming.errors import ConfigError, UnsupportedError
from humming.formats.activation import ActivationScheme
from humming.formats.number import NumberFormat, Specials
from humming.formats.tensors import scale_reach
from humming.gating import Gating
from humming.scheduling import ceil_div

__all__ = [
    "SOURCES",
    "QuantizeOptions",
    "QuantizeTuning",
    "RowSizes",
    "RowSource",
    "quantize_refusal",
    "quantize_spec",
    "quantize_tunings",
    "row_sizes",
]

#: Formats of activations that the kernel reads.
SOURCES = ("f16", "bf16", "f32")

_ROW_BYTES = 16
_OCTET = 8
_LARGEST_GROUP = 1024
#: Threads of a team that computes more than codes, at most. From there on, and wherever much is
#: computed, the compiler is told that one CTA is enough: else it spills to have more (NVRTC 13).
_BUSY_THREADS = 512
#: Eights of a row that is long, where codes take much computing.
_WIDE_OCTETS = 1024
_INT_LIMIT = 2**31
_ACROSS = "groups of {} behind a Hadamard transform: a power of two"


class RowScale(Enum):
    """Where the scale of a whole row comes from; twin of ``include/humming/quantize/rows.cuh``."""

    NONE = "none"
    TOKEN = "token"
    STORED = "stored"


class RowSource(Enum):
    """Which row of x each output row is made of; the value is the policy's C++ name.

    Rows that are not written keep what their memory holds.
    """

    EVERY = "humming::EveryRow"  # its own, all of them
    IDS = "humming::RowsOfExperts<humming::i32>"  # its own if table[row] is one of `limit` experts
    IDS_64 = "humming::RowsOfExperts<humming::i64>"
    COUNTS = "humming::CountedRows"  # its own if of [E, limit] rows it is one of the table[e] first
    MAP = "humming::MappedRows"  # row table[row] if that is one of `limit` rows


class RowSizes(NamedTuple):
    """What one row becomes.

    Attributes:
        code_bytes: of codes, up to a multiple of 16.
        groups: group scales; 0 without groups.
    """

    code_bytes: int
    groups: int


class QuantizeTuning(NamedTuple):
    """How rows are spread over threads.

    Attributes:
        vectors: eight elements each that a thread loads at a time, at most; a thread needs that
            many registers times four (f32: eight) for them.
        threads: of a team, which has a row, at most.
        cta: threads of a CTA at least; small teams share one.
    """

    vectors: int
    threads: int
    cta: int = 256


@dataclass(frozen=True)
class QuantizeOptions:
    """What else a quantizing kernel does.

    Attributes:
        native: whether the device has instructions that convert to formats of eight bits.
        gating: what is applied before, rounded to the source's format.
        hadamard: of how many neighbours each the Hadamard transform is taken before that is
            quantized (behind `gating`), rounded likewise; 0 for none.
        rows: which rows of x are read.
        tuning: instead of the first of :func:`quantize_tunings`.
    """

    native: bool = False
    gating: Gating | None = None
    hadamard: int = 0
    rows: RowSource = RowSource.EVERY
    tuning: QuantizeTuning | None = None


_PLAIN = QuantizeOptions()


@dataclass(frozen=True)
class _Context:
    name: str
    source: NumberFormat
    code: NumberFormat
    scale: NumberFormat
    row_scale: RowScale
    reach: float
    group: int
    gating: Gating | None
    hadamard: int
    rows: str
    native: bool
    threads: int
    vectors: int
    teams: int
    one_tile: bool
    roomy: bool


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
    if scheme.hadamard and group & (group - 1):
        return _ACROSS.format(group)
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


def quantize_tunings(
    scheme: ActivationScheme, source: NumberFormat, k: int
) -> tuple[QuantizeTuning, ...]:
    """What is worth timing, the default first.

    A multiprocessor needs some 40 KB of loads under way, and has none when all of its warps wait
    for one another; so a thread has a few loads, and a CTA few threads, but so many that starting
    them is not what takes the time: some 270 start per us, where that was measured. Where codes
    take much computing a thread has more, so that less else is computed. A row whose scale is that
    of all its numbers is read a second time if its team can't keep it.

    Args:
        scheme: what to quantize to.
        source: format of the activations.
        k: elements of a row of codes.
    """
    few, many = (2, 4) if source.bits > 16 else (4, 8)
    usual = [
        QuantizeTuning(few, 512),
        QuantizeTuning(many, 512),
        QuantizeTuning(many, 1024),
        QuantizeTuning(few // 2, 1024),
        QuantizeTuning(few, 512, 128),
        QuantizeTuning(2 * many, 256),
    ]
    octets, whole, tiles = ceil_div(k, _OCTET), usual[:2], QuantizeTuning(few, 256)
    if "token" in (scheme.granularity, scheme.second):
        whole, tiles = usual[:3], usual[2]
    if _computes_much(scheme, source, octets):
        whole = whole[1:]
    first = next((t for t in whole if t.vectors * t.threads >= octets), tiles)
    return first, *(tuning for tuning in [*usual, tiles] if tuning != first)


def _computes_much(scheme: ActivationScheme, source: NumberFormat, octets: int) -> bool:
    """Whether more numbers of a thread were faster where that was measured."""
    if source.bits > 16:
        return True  # a thread has half as many
    if scheme.format.name != "e2m1":
        return False
    # Two levels of scales leave little time; bf16 is cut to the largest code two at a time.
    is_busy = bool(scheme.second) and not (scheme.static and source.name == "bf16")
    return is_busy or octets > _WIDE_OCTETS


def quantize_spec(
    scheme: ActivationScheme,
    source: NumberFormat,
    k: int,
    arch: str,
    options: QuantizeOptions = _PLAIN,
) -> KernelSpec:
    """What :func:`humming.activations.quantize_rows` does, as a kernel, bit for bit.

    Its arguments: ``x``, rows of k elements that are next to one another; ``x_stride``, elements
    from one row to the next; ``stored``, f32 scales of a static scheme, ``stored_step`` (0 or 1)
    from one row's to the next row's; ``codes``, uint8 [rows, code_bytes], which it writes with one
    code per byte or, of at most four bits, with two, the first in the low nibble, and zeros behind
    a row's end; ``scales``, f32 [rows], the factor of each row, NaN if one of its numbers is;
    ``groups``, f32 [rows, groups], the stored group scales; ``rows`` that are written; ``k``; and
    ``table`` and ``limit`` of a :class:`RowSource`. Sizes are those of :func:`row_sizes`; codes
    begin at a multiple of 16.

    With a function before it, x has ``gating.inputs(k)`` elements in a row. What the function gives
    is rounded to the source's format, so that codes are those of two kernels one after the other.

    Args:
        scheme: what to quantize to.
        source: format of the activations, one of SOURCES.
        k: elements of a row of codes; kernels for other k differ only in how a row is spread over
            threads.
        arch: target architecture as the compiler spells it.
        options: what else it does.

    Raises:
        UnsupportedError: see :func:`quantize_refusal`.
        ConfigError: another source, no k, blocks that are not transformed; by `launch`: more rows
            than int32 can count.
    """
    reason = quantize_refusal(scheme)
    if reason is not None:
        raise UnsupportedError(reason)
    if source.name not in SOURCES:
        raise ConfigError("source", source.name, f"one of {', '.join(SOURCES)}")
    if not 0 < k < _INT_LIMIT // 2 - _LARGEST_GROUP:
        raise ConfigError("k", k, "a positive number of elements")
    scheme, options = _with_hadamard(scheme, k, options)
    context = _context(scheme, source, k, options)
    names = {"x": "ptr", "x_stride": "i64", "stored": "ptr", "stored_step": "i32", "codes": "ptr"}
    names |= {"scales": "ptr", "groups": "ptr", "rows": "i32", "k": "i32"}
    names |= {"table": "ptr", "limit": "i32"}
    return KernelSpec(
        name=context.name,
        template="humming/quantize.cu.j2",
        context=context,
        arch=arch,
        args=tuple(Arg(name, kind) for name, kind in names.items()),
        launch=partial(_launch, context.threads, context.teams),
        entry="quantize_rows",
    )


def _with_hadamard(
    scheme: ActivationScheme, k: int, options: QuantizeOptions
) -> tuple[ActivationScheme, QuantizeOptions]:
    """Both, checked: the transform of a scheme is that of the options, as it is one kernel."""
    block = scheme.hadamard or options.hadamard
    if not block:
        return scheme, options
    if scheme.hadamard and options.hadamard:
        raise ConfigError("hadamard", options.hadamard, f"none beside that of {scheme}")
    hadamard_factor(block)
    if k % block:
        raise ConfigError("k", k, f"a multiple of {block}, as blocks are transformed")
    if scheme.group_size & (scheme.group_size - 1):
        raise UnsupportedError(_ACROSS.format(scheme.group_size))
    return replace(scheme, hadamard=0), replace(options, hadamard=block)


def _context(
    scheme: ActivationScheme, source: NumberFormat, k: int, options: QuantizeOptions
) -> _Context:
    assert scheme.scale is not None, "a scheme that quantizes has a scale format"
    tuning = options.tuning or quantize_tunings(scheme, source, k)[0]
    inputs = options.gating.function.inputs if options.gating else 1
    vectors = max(1, tuning.vectors // inputs, options.hadamard // (32 * _OCTET))
    busy = options.gating is not None or options.hadamard > 0
    # More threads leave too few registers to compute much with.
    most = _BUSY_THREADS if busy else tuning.threads
    limits = tuning._replace(vectors=vectors, threads=min(most, tuning.threads))
    threads, vectors, whole = _team(scheme.group_size, ceil_div(k, _OCTET), limits, options)
    token = "token" in (scheme.granularity, scheme.second)
    where = RowScale.TOKEN if token else RowScale.STORED if scheme.static else RowScale.NONE
    reach = scale_reach(scheme.scale) if scheme.second else 1.0
    teams = max(1, tuning.cta // threads)
    shape = f"{threads}x{vectors}" + (f"x{teams}" if teams > 1 else "")
    parts = [str(source), str(scheme).replace("-", "_"), shape]
    parts += [] if whole else ["tiles"]
    parts += [f"hadamard{options.hadamard}"] if options.hadamard else []
    parts += [options.rows.name.lower()] if options.rows is not RowSource.EVERY else []
    if options.gating:
        parts += [options.gating.function.name]
        parts += ["interleaved"] if options.gating.interleaved else []
    return _Context(
        name=f"humming.quantize.{'_'.join(parts)}",
        source=source,
        code=scheme.format,
        scale=scheme.scale,
        row_scale=where,
        reach=reach,
        group=scheme.group_size,
        gating=options.gating,
        hadamard=options.hadamard,
        rows=options.rows.value,
        native=options.native,
        threads=threads,
        vectors=vectors,
        teams=teams,
        one_tile=whole,
        roomy=threads >= _BUSY_THREADS or busy or not options.native,
    )


def _team(
    group: int, octets: int, limits: QuantizeTuning, options: QuantizeOptions
) -> tuple[int, int, bool]:
    """Threads that share a row, how many times eight elements each has of it at a time, and whether
    the row is then done."""
    per_group = max(1, group // _OCTET)
    lanes = 32 if per_group > 32 else 32 // per_group * per_group
    # Vectors of a group, or of a block that is transformed.
    joined = max(1, per_group // 32, options.hadamard // (32 * _OCTET))
    shares = max(1, limits.vectors // joined)
    warps = min(ceil_div(octets, lanes * joined * shares), limits.threads // 32)
    # As few as that many warps need.
    shares = min(shares, ceil_div(octets, lanes * joined * warps))
    return 32 * warps, joined * shares, warps * lanes * joined * shares >= octets


def _launch(threads: int, teams: int, problem: Problem, layer: LayerConfig) -> LaunchShape:
    if not 0 < problem.m < _INT_LIMIT:
        raise ConfigError("m", problem.m, f"1 to {_INT_LIMIT - 1} rows")
    return _shape(ceil_div(problem.m, teams), threads * teams)


@cache
def _shape(ctas: int, threads: int) -> LaunchShape:
    return LaunchShape(grid=(ctas, 1, 1), block=(threads, 1, 1))
