"""The kernel for many tokens and decoded weights as data: variables, arguments, launch shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from humming.backend import UNTILED, Arg, KernelSpec, LaunchShape, Problem, TensorMap
from humming.configs import ComputeConfig, GemmKind, LayerConfig, ResultFunction
from humming.errors import ConfigError
from humming.formats.number import NumberFormat
from humming.formats.scheme import Zero
from humming.profiles import DeviceProfile
from humming.scheduling import Axis, ceil_div, max_row_tiles
from humming_sm75_sm89.folding import can_fold
from humming_sm75_sm89.layout import MmaLayout
from humming_sm75_sm89.tuning import COUNTER_BYTES
from humming_sm90.instructions import INSTRUCTIONS, instruction_of
from humming_sm90.parts import parts_workspace
from humming_sm90.stream_tuning import StreamTuning
from humming_sm90.wide_tuning import TILE_N, WideTuning, step_of

__all__ = [
    "ARGS",
    "INDEXED_ARGS",
    "WideContext",
    "chunk",
    "promotes",
    "promotes_all",
    "refuse_wide",
    "shared_bytes",
    "shared_limit",
    "tile_count",
    "wide_spec",
    "width",
    "widths",
]

#: Parameters of the kernel in their order.
ARGS = tuple(
    Arg(name, kind)
    for name, kind in (
        ("x", "map"), ("x_stride", "i64"), ("x_scales", "ptr"), ("weight", "ptr"),
        ("scales", "ptr"), ("zeros", "ptr"), ("channel", "ptr"), ("bias", "ptr"), ("out", "ptr"),
        ("workspace", "ptr"), ("m", "i32"), ("n", "i32"), ("k", "i32"), ("experts", "i32"),
        ("groups", "ptr"),
    )
)  # fmt: skip
#: And those where rows of x are in the order of sorted choices.
INDEXED_ARGS = (*ARGS, Arg("slots", "ptr"))

#: K per scale where all of K shares one, so that one kernel serves every K.
_ALL = 1 << 30
#: Shared memory that the system keeps of every CTA.
_RESERVED_BYTES = 1024
#: SMs of a device whose profile does not say.
_SOME_SMS = 64
#: What tensor maps call activations of 16 bits; others are bytes to them.
_ELEMENTS = {"f16": "float16", "bf16": "bfloat16"}
#: The most that an instruction takes.
_MMA_TOKENS = 256
#: Registers of sums of an interval: of so many tokens there is room for beside the totals.
_PROMOTED_TOKENS = 64
#: Tiles are cut to so many tokens. By 32, those of 288 took 3 to 6 % longer (256 experts of 4096 x
#: 7168, int4 by bf16, 264 and 512 rows each); by 8 they take 80 % longer to compile, for 1.5 % of
#: their MMAs.
_GRAIN = 16
#: Those that experts with 128 rows on average have, to so many: 3 % of their MMAs, and 1 to 4 % of
#: their time (4096 tokens with 8 choices each, 2026-12-01).
_FINE, _FINE_TILE = 8, 160


@dataclass(frozen=True, kw_only=True)
class WideContext:
    """Variables of ``wide.cu.j2`` and of ``wgmma_group.cu.j2``, which is a part of it."""

    name: str
    weight: NumberFormat
    target: NumberFormat
    scale: NumberFormat
    output: NumberFormat
    kind: GemmKind
    indexed: bool
    zero: Zero
    group: int
    zero_group: int
    promotes_all: bool
    has_row_scales: bool
    has_channel: bool
    has_bias: bool
    function: ResultFunction | None
    tile_n: int
    tuning: WideTuning
    counter_bytes: int
    raster_axis: Axis
    threads: int
    shared_bytes: int
    mma_types: str
    mma_k: int
    mma_immediates: str
    mma_sum: str
    mma_constraint: str
    mma_widths: tuple[int, ...]
    mma_counts: tuple[int, ...]


def refuse_wide(layer: LayerConfig, compute: ComputeConfig, layout: MmaLayout) -> str | None:
    """None if there is a kernel of this kind, or why there is none."""
    if instruction_of(layer, layout) is None:
        pairs = ", ".join(f"{weight} by {x}" for weight, x in INSTRUCTIONS)
        return f"multiplies {pairs}, not {layout.target} by {layer.activation.format}"
    if layer.activation.group_size:
        return f"{layer.activation} activations have scales of groups"
    if layout.has_order:
        return "columns in another order: activations are copied as they lie in memory"
    if compute.accumulate is not None and compute.accumulate.name == "f16":
        return "sums in f16; these are in f32"
    return None


def promotes_all(layer: LayerConfig, compute: ComputeConfig, layout: MmaLayout) -> bool:
    """Whether sums of 128 of K are added in f32 even if no scale asks for that.

    Tensor cores sum 8-bit floats with some 14 bits. That error, 2e-3 for K = 8192 (H200), is near
    the rounding of bf16 results, and cuBLAS's fast accumulation has it too. Results of f16 and f32,
    and callers who ask for sums of f32, get better ones.
    """
    short = layout.target.name in ("e4m3fn", "e5m2")
    return short and (layer.output.name != "bf16" or compute.accumulate is not None)


def promotes(
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: MmaLayout,
    tuning: WideTuning | StreamTuning,
) -> bool:
    """Whether sums of an interval are brought to f32 before the next; as ``Plan::kPromotes``."""
    scaled = layout.has_scales and not tuning.folds
    zeros = layout.weight.zero is Zero.FLOAT
    return scaled or zeros or promotes_all(layer, compute, layout)


def chunk(layer: LayerConfig, compute: ComputeConfig, layout: MmaLayout, tuning: WideTuning) -> int:
    """Tokens that one MMA takes."""
    if promotes(layer, compute, layout, tuning):
        return min(tuning.tokens, _PROMOTED_TOKENS)
    return tuning.tokens if tuning.tokens <= _MMA_TOKENS else tuning.tokens // 2


def widths(
    layer: LayerConfig, compute: ComputeConfig, layout: MmaLayout, tuning: WideTuning
) -> tuple[int, ...]:
    """Tokens that an MMA may take, ascending: the last is a chunk.

    Where it takes a whole tile there are several, if the tuning fits. Rows that make more than one
    tile fill more than half of each, so that there are none for less; of a tile that takes two, one
    of them may have any part. Each adds to the time that the kernel takes to compile.
    """
    whole = chunk(layer, compute, layout, tuning)
    if not tuning.fits or promotes(layer, compute, layout, tuning):
        return (whole,)
    grain = _FINE if tuning.tokens == _FINE_TILE else _GRAIN
    least = grain if whole < tuning.tokens else whole // (2 * grain) * grain
    return tuple(range(least, whole + 1, grain))


def width(  # budget: what decides it, and rows
    layer: LayerConfig, compute: ComputeConfig, layout: MmaLayout, tuning: WideTuning, rows: int
) -> int:
    """Tokens that are multiplied for a tile of so many rows."""
    if not tuning.fits:
        return tuning.tokens
    found = widths(layer, compute, layout, tuning)
    whole = (rows - 1) // found[-1] * found[-1]
    return whole + next(one for one in found if one >= rows - whole)


def wide_spec(
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: MmaLayout,
    tuning: WideTuning,
) -> KernelSpec:
    """The kernel for any sizes of such a layer.

    Raises:
        ConfigError: there is no such kernel, the tuning needs more shared memory than the device
            has, or folds scales where only sums of a group can take them.
    """
    _check(profile, layer, compute, layout, tuning)
    context = _context(layer, compute, layout, tuning)
    indexed = context.indexed
    return KernelSpec(
        name=context.name,
        template="humming_sm90/wide.cu.j2",
        context=context,
        arch=profile.target.arch,
        args=INDEXED_ARGS if indexed else ARGS,
        launch=_launch(profile, compute, tuning, context.shared_bytes),
        row_tile=UNTILED if indexed else tuning.tile_m,
        workspace=parts_workspace(
            tuning, lambda problem, layer: tile_count(compute.gemm, layer, problem, tuning)
        ),
        maps={"x": _x_map(layer, layout, tuning)},
    )


def _check(
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: MmaLayout,
    tuning: WideTuning,
) -> None:
    refusal = refuse_wide(layer, compute, layout)
    if refusal is not None:
        raise ConfigError("tuning", str(tuning), f"one for another kernel: {refusal}")
    needed = shared_bytes(layer, compute, layout, tuning)
    most = shared_limit(profile, tuning)
    if most is not None and needed > most:
        allowed = f"at most {most} bytes of shared memory, which is what {profile.title} has"
        raise ConfigError("tuning", f"{tuning}, which needs {needed}", allowed)
    if tuning.tokens % chunk(layer, compute, layout, tuning):
        allowed = f"a multiple of {_PROMOTED_TOKENS} where sums of so many tokens are scaled"
        raise ConfigError("tokens", tuning.tokens, allowed)
    if tuning.folds and not can_fold(layer, layout):
        raise ConfigError("folds", True, f"False for {layer}: its scales don't fit into operands")


def _context(
    layer: LayerConfig, compute: ComputeConfig, layout: MmaLayout, tuning: WideTuning
) -> WideContext:
    whole = layout.grid.k128
    instruction = instruction_of(layer, layout)
    assert instruction is not None, "_check() refused it"
    return WideContext(
        name=_name(layer, compute),
        weight=layout.code,
        target=layout.target,
        scale=layout.scale,
        output=layer.output,
        kind=compute.gemm,
        indexed=compute.gemm is GemmKind.INDEXED,
        zero=layer.weight.zero,
        group=_ALL if layout.group >= whole else layout.group,
        zero_group=_ALL if layout.zero_group >= whole else layout.zero_group,
        promotes_all=promotes_all(layer, compute, layout),
        has_row_scales=layer.activation.is_quantized,
        has_channel=layout.has_channel,
        has_bias=layout.has_bias,
        function=layer.function,
        tile_n=TILE_N,
        tuning=tuning,
        counter_bytes=COUNTER_BYTES,
        raster_axis=Axis.ROWS,
        threads=tuning.threads,
        shared_bytes=_fixed_bytes(layer, compute, layout, tuning),
        mma_types=instruction.types,
        mma_k=instruction.k,
        mma_immediates=instruction.immediates,
        mma_sum=instruction.sum,
        mma_constraint=instruction.constraint,
        mma_widths=widths(layer, compute, layout, tuning),
        mma_counts=(1, 2, 4) if promotes(layer, compute, layout, tuning) else (4,),
    )


def _name(layer: LayerConfig, compute: ComputeConfig) -> str:
    scheme = str(layer.weight).replace("+", "_")
    name = "" if layer.function is None else f"_{layer.function.name}"
    return f"sm90.wide.{compute.gemm.value}.{layer.activation}_{scheme}_{layer.output}{name}"


def _x_map(
    layer: LayerConfig, layout: MmaLayout, tuning: WideTuning
) -> Callable[[tuple[int, ...], int], TensorMap]:
    """Activations [.., K]; what pads a row is outside, whatever it is."""

    def describe(shape: tuple[int, ...], stride: int) -> TensorMap:
        return TensorMap(
            element=_ELEMENTS.get(layer.activation.format.name, "uint8"),
            dims=(layer.k, prod(shape[:-1])),
            strides=(stride,),
            box=(step_of(layout), tuning.box),
            swizzle="b128",
            l2_bytes=256,
        )

    return describe


def tile_count(kind: GemmKind, layer: LayerConfig, problem: Problem, tuning: WideTuning) -> int:
    """The most tiles that a call can have."""
    rows = max_row_tiles(kind, problem.m, tuning.tile_m, max(layer.experts, 1))
    return rows * ceil_div(layer.n, tuning.tile_n)


def shared_bytes(
    layer: LayerConfig, compute: ComputeConfig, layout: MmaLayout, tuning: WideTuning
) -> int:
    """Dynamic shared memory of a CTA."""
    return _fixed_bytes(layer, compute, layout, tuning) + _table_bytes(layer, compute)


def _fixed_bytes(
    layer: LayerConfig, compute: ComputeConfig, layout: MmaLayout, tuning: WideTuning
) -> int:
    """The same without the table of experts."""
    indexed, scaled = compute.gemm is GemmKind.INDEXED, layer.activation.is_quantized
    return tuning.shared_bytes(layout, indexed=indexed, scaled=scaled)


def shared_limit(profile: DeviceProfile, tuning: WideTuning) -> int | None:
    """What one of the CTAs of an SM may have; None if the profile does not say."""
    block, sm = profile.limits.smem_block_bytes, profile.limits.smem_sm_bytes
    if block is None or tuning.ctas == 1:
        return block
    return min(block, (sm or block) // tuning.ctas - _RESERVED_BYTES)


def _table_bytes(layer: LayerConfig, compute: ComputeConfig) -> int:
    """Where rows are grouped: how many tiles come before each expert's."""
    return 0 if compute.gemm is GemmKind.DENSE else 4 * (layer.experts + 1)


def _launch(
    profile: DeviceProfile, compute: ComputeConfig, tuning: WideTuning, shared: int
) -> Callable[[Problem, LayerConfig], LaunchShape]:
    sms = profile.limits.sm_count or _SOME_SMS

    @lru_cache(maxsize=4096)
    def shape(problem: Problem, layer: LayerConfig) -> LaunchShape:
        tiles = tile_count(compute.gemm, layer, problem, tuning)
        return LaunchShape(
            grid=(min(tiles * tuning.splits, tuning.ctas * sms), 1, 1),
            block=(tuning.threads, 1, 1),
            shared_bytes=shared + _table_bytes(layer, compute),
        )

    return shape
