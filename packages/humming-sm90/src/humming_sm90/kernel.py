"""The GEMM kernel of a layer as data: the template's variables, arguments and launch shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from humming.backend import UNTILED, Arg, KernelSpec, LaunchShape, MapOf, Problem, TensorMap
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.errors import ConfigError
from humming.formats.number import NumberFormat
from humming.profiles import DeviceProfile
from humming.scheduling import Axis, ceil_div, max_row_tiles
from humming_sm75_sm89.tuning import COUNTER_BYTES
from humming_sm90.layout import PADDED_N, WgmmaLayout
from humming_sm90.parts import parts_workspace
from humming_sm90.tuning import STEP, WgmmaTuning

__all__ = ["ARGS", "INDEXED_ARGS", "GemmContext", "gemm_spec", "shared_bytes", "tile_count"]

#: Parameters of the kernel in their order.
ARGS = tuple(
    Arg(name, kind)
    for name, kind in (
        ("x", "map"), ("x_stride", "i64"), ("x_scales", "ptr"), ("x_groups", "ptr"),
        ("weight", "map"), ("scales", "ptr"), ("channel", "ptr"), ("bias", "ptr"), ("out", "ptr"),
        ("workspace", "ptr"), ("m", "i32"), ("n", "i32"), ("k", "i32"), ("experts", "i32"),
        ("groups", "ptr"),
    )
)  # fmt: skip

#: And those where rows of x are in the order of sorted choices.
INDEXED_ARGS = (*ARGS, Arg("slots", "ptr"))

#: SMs of a device whose profile does not say.
_SOME_SMS = 64
#: Rows of a box of activations, by the mean number of rows of a weight: few boxes, and few rows
#: that no tile has.
_BOXES, _LARGEST_BOX = ((16, 8), (48, 16), (96, 32), (192, 64)), 128
#: What wgmma calls operands.
_PTX_TYPES = {"e4m3fn": "e4m3", "e5m2": "e5m2", "s8": "s8"}


@dataclass(frozen=True, kw_only=True)
class GemmContext:
    """Variables of ``gemm.cu.j2`` and of ``wgmma.cu.j2``, which is a part of it."""

    name: str
    instruction: str
    immediates: str
    sum: str
    constraint: str
    sums: int
    output: NumberFormat
    kind: GemmKind
    indexed: bool
    chunk_n: int
    scale_rows: int
    has_row_groups: bool
    has_channel: bool
    has_bias: bool
    tuning: WgmmaTuning
    raster_axis: Axis
    counter_bytes: int
    threads: int
    padded_n: int
    shared_bytes: int


def shared_bytes(
    layer: LayerConfig, compute: ComputeConfig, layout: WgmmaLayout, tuning: WgmmaTuning
) -> int:
    """Dynamic shared memory without the table of experts."""
    return tuning.shared_bytes(
        row_groups=bool(layer.activation.group_size),
        scales=layout.scale_rows == 1,
    )


def gemm_spec(
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: WgmmaLayout,
    tuning: WgmmaTuning,
) -> KernelSpec:
    """The kernel for any sizes of such a layer.

    Raises:
        ConfigError: the tuning needs more shared memory than the device has.
    """
    needed, most = shared_bytes(layer, compute, layout, tuning), profile.limits.smem_block_bytes
    if most is not None and needed + _table_bytes(layer, compute) > most:
        allowed = f"at most {most} bytes of shared memory, which is what {profile.title} has"
        raise ConfigError("tuning", f"{tuning}, which needs {needed}", allowed)
    if tuning.splits > 1 and compute.gemm is not GemmKind.DENSE:
        raise ConfigError("splits", tuning.splits, "1 where rows are grouped")
    context = _context(layer, compute, layout, tuning)
    return KernelSpec(
        name=context.name,
        template="humming_sm90/gemm.cu.j2",
        context=context,
        arch=profile.target.arch,
        args=INDEXED_ARGS if context.indexed else ARGS,
        launch=_launch(profile, compute, tuning, needed),
        row_tile=UNTILED if context.indexed else tuning.tokens,
        workspace=parts_workspace(
            tuning, lambda problem, layer: tile_count(compute.gemm, layer, problem, tuning)
        ),
        maps={"x": _x_map(layer, compute, tuning), "weight": _weight_map(tuning)},
    )


def _context(
    layer: LayerConfig, compute: ComputeConfig, layout: WgmmaLayout, tuning: WgmmaTuning
) -> GemmContext:
    integers = layer.activation.format.is_integer
    x, weight = (_PTX_TYPES[f.name] for f in (layer.activation.format, layer.weight.code))
    return GemmContext(
        name=_name(layer, compute),
        instruction=f"m64n{tuning.chunk_n}k32.{'s32' if integers else 'f32'}.{x}.{weight}",
        immediates="" if integers else ", 1, 1",  # the signs of both operands
        sum="i32" if integers else "float",
        constraint="r" if integers else "f",
        sums=tuning.chunk_n // 2,
        output=layer.output,
        kind=compute.gemm,
        indexed=compute.gemm is GemmKind.INDEXED,
        chunk_n=tuning.chunk_n,
        scale_rows=layout.scale_rows,
        has_row_groups=bool(layer.activation.group_size),
        has_channel=layout.has_channel,
        has_bias=layout.has_bias,
        tuning=tuning,
        raster_axis=Axis.ROWS,
        counter_bytes=COUNTER_BYTES,
        threads=tuning.threads,
        padded_n=PADDED_N,
        shared_bytes=shared_bytes(layer, compute, layout, tuning),
    )


def _name(layer: LayerConfig, compute: ComputeConfig) -> str:
    return f"sm90.gemm.{compute.gemm.value}.{layer.activation}_{layer.weight}_{layer.output}"


def box_rows(kind: GemmKind, rows: int, experts: int, tokens: int = 128) -> int:
    """Rows of a box of activations; a tile takes as many boxes as hold its rows.

    Args:
        kind: of the call.
        rows: of x; masked: that an expert has room for.
        experts: number of weights.
        tokens: of a tile.

    Rows outside of x cost time (H200, one box of 128 rows, M = 1 and N = K = 8192: 40 us instead of
    29 for M = 128), and so do those of other experts: L2 has to deliver them.
    """
    if kind is GemmKind.DENSE and rows <= tokens:
        return 8 * ceil_div(rows, 8)
    together = kind in (GemmKind.GROUPED_CONTIGUOUS, GemmKind.INDEXED)
    mean = ceil_div(rows, experts) if together else rows
    return min(next((box for most, box in _BOXES if mean <= most), _LARGEST_BOX), tokens)


def _x_map(layer: LayerConfig, compute: ComputeConfig, tuning: WgmmaTuning) -> MapOf:
    """Activations [rows, K] of bytes; what pads a row is outside, whatever it is."""
    experts = max(layer.experts, 1)

    def describe(shape: tuple[int, ...], stride: int) -> TensorMap:
        each = shape[0] // experts if compute.gemm is GemmKind.GROUPED_MASKED else shape[0]
        return TensorMap(
            element="uint8",
            dims=(layer.k, shape[0]),
            strides=(stride,),
            box=(STEP, box_rows(compute.gemm, each, experts, tuning.tokens)),
            swizzle="b128",
            l2_bytes=256,
        )

    return describe


def _weight_map(tuning: WgmmaTuning) -> MapOf:
    """Weights [E, P, G, 64, 128] of bytes; panels behind the last are none of the next expert."""

    def describe(shape: tuple[int, ...], stride: int) -> TensorMap:
        experts, panels, steps, rows, _ = shape
        step = rows * stride
        return TensorMap(
            element="uint8",
            dims=(STEP, rows, steps, panels, experts),
            strides=(stride, step, steps * step, panels * steps * step),
            box=(STEP, rows, 1, tuning.tile_n // rows, 1),
            swizzle="b128",
            l2_bytes=256,
        )

    return describe


def tile_count(kind: GemmKind, layer: LayerConfig, problem: Problem, tuning: WgmmaTuning) -> int:
    """The most tiles that a call can have."""
    rows = max_row_tiles(kind, problem.m, tuning.tokens, max(layer.experts, 1))
    return rows * ceil_div(layer.n, tuning.tile_n)


def _table_bytes(layer: LayerConfig, compute: ComputeConfig) -> int:
    """Where rows are grouped: how many tiles come before each expert's."""
    return 0 if compute.gemm is GemmKind.DENSE else 4 * (layer.experts + 1)


def _launch(
    profile: DeviceProfile, compute: ComputeConfig, tuning: WgmmaTuning, shared: int
) -> Callable[[Problem, LayerConfig], LaunchShape]:
    @lru_cache(maxsize=4096)
    def shape(problem: Problem, layer: LayerConfig) -> LaunchShape:
        tiles = tile_count(compute.gemm, layer, problem, tuning)
        return LaunchShape(
            grid=(min(tiles * tuning.splits, profile.limits.sm_count or _SOME_SMS), 1, 1),
            block=(tuning.threads, 1, 1),
            shared_bytes=shared + _table_bytes(layer, compute),
        )

    return shape
