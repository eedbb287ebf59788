"""A weight as the kernels of a backend read it: laid out once, on the device."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from humming.backend import KernelBackend, PackedWeight, RepackSpec
from humming.configs import LayerConfig
from humming.engine.site import Site
from humming.engine.workshop import workshop
from humming.errors import ConfigError, LayoutMismatch
from humming.weight import CanonicalWeight

__all__ = ["packed_tensors", "repacked"]


def packed_tensors(
    backend: KernelBackend, weight: CanonicalWeight, layer: LayerConfig, site: Site
) -> Mapping[str, torch.Tensor]:
    """The packed tensors of a weight, which :meth:`KernelBackend.fit` gave.

    On a GPU by the backend's kernel, if it has one.

    Raises:
        LayoutMismatch: the backend packs for another layout than its kernels read.
        ConfigError: a tensor is not contiguous, or elsewhere.
    """
    expected = backend.layout(layer)
    repack = backend.repack(weight, layer) if site.device.type == "cuda" else None
    if repack is None:
        packed = backend.pack(weight, layer)
    else:
        packed = PackedWeight(expected, repacked(repack, weight, site))
    if packed.layout != expected:
        raise LayoutMismatch(packed.layout, expected)
    for name, tensor in packed.tensors.items():
        if not tensor.is_contiguous() or tensor.device != site.device:
            found = f"{list(tensor.stride())} strides on {tensor.device}"
            raise ConfigError(f"packed {name}", found, f"a contiguous tensor on {site.device}")
    return dict(packed.tensors)


def repacked(spec: RepackSpec, weight: CanonicalWeight, site: Site) -> dict[str, torch.Tensor]:
    """All packed tensors of a weight, the codes laid out by a kernel."""
    out = torch.empty(spec.out_shape, dtype=torch.int32, device=site.device)
    values = {**spec.values, "packed": weight.packed.contiguous(), "out": out}
    missing = [arg.name for arg in spec.kernel.args if arg.name not in values]
    if missing:
        allowed = f"arguments among {', '.join(sorted(values))}"
        raise ConfigError(f"args of {spec.kernel.name}", missing, allowed)
    with site.active():
        handle = workshop().load(spec.kernel, site)
        kinds = [kind for _, kind in spec.kernel.args]
        args = [values[name] for name, _ in spec.kernel.args]
        site.runtime.prepare(handle, kinds, args, {})(spec.shape)
    return {**spec.beside, spec.name: out}
