"""The GEMM kernel of a layer as data: the template's variables, arguments and launch shapes."""

from __future__ import annotations

from dataclasses import dataclass

from humming.backend import Arg, KernelSpec
from humming.configs import ComputeConfig, GemmKind, LayerConfig, ResultFunction
from humming.errors import ConfigError
from humming.formats.number import NumberFormat
from humming.formats.scheme import Zero
from humming.profiles import DeviceProfile
from humming.scheduling import Axis, Partition, Split
from humming_sm75_sm89.folding import can_fold
from humming_sm75_sm89.launches import FEW_CHOICES, FEW_EXPERTS, Cut, launch_of, workspace_of
from humming_sm75_sm89.layout import MmaLayout
from humming_sm75_sm89.tuning import COUNTER_BYTES

__all__ = ["ARGS", "GemmContext", "gemm_spec", "generation", "promotes"]

#: Parameters of the kernel in their order.
ARGS = tuple(
    Arg(name, kind)
    for name, kind in (
        ("x", "ptr"), ("x_stride", "i64"), ("x_scales", "ptr"), ("x_groups", "ptr"),
        ("order", "ptr"), ("weight", "ptr"), ("scales", "ptr"), ("zeros", "ptr"),
        ("channel", "ptr"), ("bias", "ptr"), ("out", "ptr"), ("workspace", "ptr"),
        ("m", "i32"), ("n", "i32"), ("k", "i32"), ("experts", "i32"), ("top_k", "i32"),
        ("groups", "ptr"), ("slots", "ptr"), ("row_tiles", "ptr"), ("id_words", "i32"),
    )
)  # fmt: skip

#: K per scale where all of K shares one, so that one kernel serves every K.
_ALL = 1 << 30


@dataclass(frozen=True, kw_only=True)
class GemmContext:
    """Variables of ``gemm.cu.j2``."""

    name: str
    weight: NumberFormat
    target: NumberFormat
    activation: NumberFormat
    scale: NumberFormat
    output: NumberFormat
    accumulator: str
    generation: int
    kind: GemmKind
    zero: Zero
    group: int
    zero_group: int
    activation_group: int
    has_order: bool
    has_channel: bool
    has_bias: bool
    has_row_scales: bool
    function: ResultFunction | None
    tuning: Cut
    partition: Partition
    raster_axis: Axis
    sorts_few: bool
    counter_bytes: int
    shared_bytes: int


def generation(profile: DeviceProfile) -> int:
    """The newest of the instruction sets 75, 80 and 89 that the device has."""
    capability = profile.capability or (0, 0)
    return 89 if capability >= (8, 9) else 80 if capability >= (8, 0) else 75


def accumulator(layer: LayerConfig, compute: ComputeConfig) -> str:
    """Type of the running sums in C++."""
    if layer.activation.format.is_integer:
        return "humming::i32"
    half = compute.accumulate is not None and compute.accumulate.name == "f16"
    return "humming::sm75_sm89::Half" if half else "float"


def promotes(layer: LayerConfig, layout: MmaLayout, tuning: Cut) -> bool:
    """Whether sums are brought to f32 block by block; as ``Sizes::kPromotes``, f16 sums apart."""
    short = layout.target.name in ("e4m3fn", "e5m2")
    scaled = layout.has_scales and not tuning.folds
    return short or scaled or bool(layer.activation.group_size)


def gemm_spec(
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: MmaLayout,
    tuning: Cut,
) -> KernelSpec:
    """The kernel for any sizes of such a layer.

    Backends that build on this one give it another template, and tunings of their own.

    Raises:
        ConfigError: the tuning needs more shared memory than the device has, or folds scales where
            only sums of a group can take them.
    """
    activation = layer.activation
    _check(profile, layer, layout, tuning)
    whole = layout.grid.k128
    context = GemmContext(
        name=_name(layer, compute),
        weight=layout.code,
        target=layout.target,
        activation=activation.format,
        scale=layout.scale,
        output=layer.output,
        accumulator=accumulator(layer, compute),
        generation=generation(profile),
        kind=compute.gemm,
        zero=layer.weight.zero,
        group=_ALL if layout.group >= whole else layout.group,
        zero_group=_ALL if layout.zero_group >= whole else layout.zero_group,
        activation_group=activation.group_size or 0,
        has_order=layout.has_order,
        has_channel=layout.has_channel,
        has_bias=layout.has_bias,
        has_row_scales=_has_row_scales(layer),
        function=layer.function,
        tuning=tuning,
        partition=tuning.partition,
        raster_axis=Axis.COLUMNS,
        sorts_few=_sorts_few(compute, layout, tuning),
        counter_bytes=COUNTER_BYTES,
        shared_bytes=tuning.shared_bytes(
            activation.format.bits, layer.output.bits, experts=layer.experts > 0
        ),
    )
    return KernelSpec(
        name=context.name,
        template="humming_sm75_sm89/gemm.cu.j2",
        context=context,
        arch=profile.target.arch,
        args=ARGS,
        launch=launch_of(profile, compute, tuning, context.shared_bytes),
        row_tile=tuning.tile_m,
        workspace=workspace_of(profile, compute, tuning),
        sorts=FEW_CHOICES if context.sorts_few else 0,
    )


def _check(profile: DeviceProfile, layer: LayerConfig, layout: MmaLayout, tuning: Cut) -> None:
    bits = layer.activation.format.bits, layer.output.bits
    needed = tuning.shared_bytes(*bits, experts=layer.experts > 0)
    most = profile.limits.smem_block_bytes
    if most is not None and needed > most:
        allowed = f"at most {most} bytes of shared memory, which is what {profile.title} has"
        raise ConfigError("tuning", f"{tuning}, which needs {needed}", allowed)
    if tuning.folds and not can_fold(layer, layout):
        raise ConfigError("folds", True, f"False for {layer}: its scales don't fit into operands")


def _sorts_few(compute: ComputeConfig, layout: MmaLayout, tuning: Cut) -> bool:
    """Whether the kernel finds the tiles of few choices by itself.

    Those with an order have no registers left for it.
    """
    whole = tuning.partition.split is Split.DATA_PARALLEL and not layout.has_order
    return compute.gemm is GemmKind.INDEXED and whole and layout.experts <= FEW_EXPERTS


def _has_row_scales(layer: LayerConfig) -> bool:
    """Whether activations have a factor per row: of the token, the tensor, or a second level."""
    activation = layer.activation
    return activation.is_quantized


def _name(layer: LayerConfig, compute: ComputeConfig) -> str:
    scheme = str(layer.weight).replace("+", "_")
    name = "" if layer.function is None else f"_{layer.function.name}"
    numbers = f"{layer.activation}_{scheme}_{layer.output}{name}"
    return f"sm75_sm89.gemm.{compute.gemm.value}.{numbers}"
