"""The streaming kernel of a layer as data: the skeleton's, with wgmma in the place of mma.sync."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from humming.backend import KernelSpec
from humming.configs import ComputeConfig, LayerConfig
from humming.errors import ConfigError
from humming.profiles import DeviceProfile
from humming_sm75_sm89.kernel import GemmContext, gemm_spec
from humming_sm75_sm89.layout import MmaLayout
from humming_sm90.instructions import INSTRUCTIONS, instruction_of
from humming_sm90.stream_tuning import StreamTuning
from humming_sm90.wide_kernel import promotes, promotes_all

__all__ = ["StreamContext", "promotes", "refuse_stream", "stream_spec", "widths"]

_PACKAGE = "humming_sm75_sm89"


@dataclass(frozen=True, kw_only=True)
class StreamContext(GemmContext):
    """Variables of ``stream.cu.j2`` and of ``wgmma_group.cu.j2``, which is a part of it."""

    keeps_short_sums: bool
    mma_types: str
    mma_k: int
    mma_immediates: str
    mma_sum: str
    mma_constraint: str
    mma_widths: tuple[int, ...]
    mma_counts: tuple[int, ...]


def refuse_stream(layer: LayerConfig, compute: ComputeConfig, layout: MmaLayout) -> str | None:
    """None if these kernels multiply such a layer, or why not."""
    if instruction_of(layer, layout) is None:
        pairs = ", ".join(f"{weight} by {x}" for weight, x in INSTRUCTIONS)
        return f"streaming multiplies {pairs}, not {layout.target} by {layer.activation.format}"
    if layer.activation.group_size:
        return f"streaming scales sums by rows of activations, not by groups ({layer.activation})"
    if compute.accumulate is not None and compute.accumulate.name == "f16":
        return "streaming sums in f32, not in f16"
    return None


def stream_spec(
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: MmaLayout,
    tuning: StreamTuning,
) -> KernelSpec:
    """The kernel for any sizes of such a layer.

    Raises:
        ConfigError: the tuning does not fit the device, or these numbers.
    """
    refusal = refuse_stream(layer, compute, layout)
    if refusal:
        raise ConfigError("tuning", tuning, f"another: {refusal}")
    spec = gemm_spec(profile, layer, compute, layout, tuning)
    return dataclasses.replace(
        spec,
        name=spec.name.replace("sm75_sm89.gemm", "sm90.stream", 1),
        template="humming_sm90/stream.cu.j2",
        packages=(_PACKAGE,),
        sorts=0,
        context=_context(spec, layer, compute, layout, tuning),
    )


def _context(
    spec: KernelSpec,
    layer: LayerConfig,
    compute: ComputeConfig,
    layout: MmaLayout,
    tuning: StreamTuning,
) -> StreamContext:
    plain, found = spec.context, instruction_of(layer, layout)
    assert isinstance(plain, GemmContext)
    assert found is not None, "refuse_stream() checked it"
    fields = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)}
    fields["sorts_few"] = False  # with it ptxas 13.5 makes the loop 40 instructions longer
    fields["name"] = spec.name.replace("sm75_sm89.gemm", "sm90.stream", 1)
    return StreamContext(
        **fields,
        keeps_short_sums=not promotes_all(layer, compute, layout),
        mma_types=found.types,
        mma_k=found.k,
        mma_immediates=found.immediates,
        mma_sum=found.sum,
        mma_constraint=found.constraint,
        mma_widths=widths(layer, compute, layout, tuning),
        mma_counts=(1, 2, 4),
    )


def widths(
    layer: LayerConfig, compute: ComputeConfig, layout: MmaLayout, tuning: StreamTuning
) -> tuple[int, ...]:
    """Tokens that MMAs of a kernel take: up to 4 widths where experts have different numbers.

    One where sums are promoted: of several ways to start such MMAs ptxas 13.5 makes one after the
    other.
    """
    if not layer.experts or promotes(layer, compute, layout, tuning):
        return (tuning.tokens,)
    step = max(tuning.tokens // 4, 8)
    return tuple(range(step, tuning.tokens + 1, step))
