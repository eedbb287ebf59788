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

__all__ = ["StreamContext", "refuse_stream", "stream_spec"]

_PACKAGE = "humming_sm75_sm89"


@dataclass(frozen=True, kw_only=True)
class StreamContext(GemmContext):
    """Variables of ``stream.cu.j2`` and of ``wgmma_registers.cu.j2``, which is a part of it."""

    register_instruction: str
    register_sums: int
    register_sum: str
    register_constraint: str
    register_immediates: str


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
        context=_context(spec, layer, layout, tuning),
    )


def _context(
    spec: KernelSpec, layer: LayerConfig, layout: MmaLayout, tuning: StreamTuning
) -> StreamContext:
    plain, found = spec.context, instruction_of(layer, layout)
    assert isinstance(plain, GemmContext)
    assert found is not None, "refuse_stream() checked it"
    fields = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)}
    fields["name"] = spec.name.replace("sm75_sm89.gemm", "sm90.stream", 1)
    return StreamContext(
        **fields,
        register_instruction=f"m64n{tuning.tokens}k{found.k}.{found.types}",
        register_sums=tuning.tokens // 2,
        register_sum=found.sum,
        register_constraint=found.constraint,
        register_immediates=found.immediates,
    )
