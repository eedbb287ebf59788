"""Kernels that a layer will need, known before there is a device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from humming.backend import KernelBackend, KernelSpec
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.engine.aligning import align_specs
from humming.engine.choice import Planner
from humming.engine.quantized import quantize_specs
from humming.weight import CanonicalWeight

__all__ = ["needed_kernels"]


def needed_kernels(
    backend: KernelBackend,
    weight: CanonicalWeight,
    layer: LayerConfig,
    compute: ComputeConfig,
    ms: Iterable[int] | None = None,
    top_k: int = 1,
) -> list[KernelSpec]:
    """What a layer compiles for calls with so many tokens, and for packing its weight.

    Args:
        backend: whose kernels.
        weight: on any device. It may hold only some of the layer's experts, which all are alike.
        layer: the numbers.
        compute: the promises.
        ms: numbers of tokens; None is 1 to 8192.
        top_k: choices of a token, if experts are chosen by index.

    Raises:
        UnsupportedError: the backend has no kernel for some size.
    """
    # Where an allocation begins, as on a device: a slice of a file may begin anywhere.
    weight = weight.replace(packed=weight.packed.clone())
    quantizing = quantize_specs(layer, backend.profile)
    experts = layer.experts
    weight, layer = backend.fit(weight, replace(layer, experts=weight.experts))
    planner = Planner(backend, replace(layer, experts=experts), compute)
    specs = [planner.spec(tuning) for tuning in planner.tunings(ms, top_k)]
    if compute.gemm is GemmKind.INDEXED:
        specs += align_specs(specs)
    specs += quantizing
    repack = backend.repack(weight, layer)
    return specs if repack is None else [*specs, repack.kernel]
