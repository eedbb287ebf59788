"""Layers made ready: activation type, backend and weight settled for one kind of call."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

from humming.backend import Backend, EagerBackend, KernelBackend
from humming.configs import ComputeConfig, GemmKind, LayerConfig, TuningConfig
from humming.engine.activating import activating
from humming.engine.kernel_layer import KernelLayer, Shelf
from humming.engine.site import Site
from humming.errors import ConfigError, UnsupportedError
from humming.formats.activation import ActivationScheme
from humming.formats.number import NumberFormat
from humming.formats.table import number_format
from humming.formats.tensors import TORCH_FLOATS
from humming.gating import Gating
from humming.profiles import DeviceProfile
from humming.selection import find_device, resolve_activation, select_backend
from humming.weight import CanonicalWeight

__all__ = ["LayerOptions", "PreparedLayer", "Profile", "prepare", "prepared_layer", "usual_kind"]

_LOG = logging.getLogger("humming.layer")

_DTYPES = tuple(TORCH_FLOATS.values())
#: What names a device profile.
Profile = str | os.PathLike[str] | DeviceProfile


@dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """What a caller may choose, and leaves open with None.

    Attributes:
        activation: what activations are quantized to, instead of what the checkpoint asks for; then
            nothing is replaced silently.
        backend: name; else :func:`humming.select_backend` selects.
        device: where to compute, if tensors do not say: ``"sim:NAME"`` is a simulated device, whose
            tensors are on the CPU.
        profile: facts to use instead of the device's own: kernels for an older device run on a
            newer one.
        tuning: of the backend's kernels, for every size; else the best for each.
        compute: promises. The kind of GEMM follows from the routing.
        allow_fallback: whether a wider activation type may stand in for one that the device lacks.
            Else yes for what the checkpoint asks (unless HUMMING_ALLOW_FALLBACK=0), and no for
            `activation`.
    """

    activation: ActivationScheme | None = None
    backend: str | None = None
    device: object = None
    profile: Profile | None = None
    tuning: TuningConfig | None = None
    compute: ComputeConfig | None = None
    allow_fallback: bool | None = None


@dataclass(frozen=True)
class PreparedLayer:
    """A weight made ready for one backend, one activation dtype and one kind of GEMM.

    Attributes:
        backend: who computes.
        layer: the numbers it multiplies, activation fallback included, and the function of them.
        compute: the promises it keeps.
        run: activations (and routing) to results.
        kernels: what `run` is, if the backend describes kernels.
    """

    backend: Backend
    layer: LayerConfig
    compute: ComputeConfig
    run: Callable[..., torch.Tensor]
    kernels: KernelLayer | None = None

    def warm_up(self, ms: Iterable[int] | None = None, top_k: int = 1) -> None:
        """Compile and load what calls of these sizes need; see :meth:`KernelLayer.warm_up`."""
        if self.kernels is not None:
            self.kernels.warm_up(ms, top_k)

    def serves(self, gemm: GemmKind, options: LayerOptions, device: torch.device) -> bool:
        """Whether its backend would be chosen for another kind of GEMM, too.

        Args:
            gemm: the kind.
            options: of the layer.
            device: of its weight.
        """
        try:
            other = select_backend(
                options.backend,
                device=str(device) if options.device is None else options.device,
                profile=options.profile,
                layer=self.layer,
                compute=replace(self.compute, gemm=gemm),
            )
        except UnsupportedError:
            return False
        return other.name == self.backend.name


def prepare(  # budget: one keyword for each of LayerOptions
    weight: CanonicalWeight,
    dtype: torch.dtype,
    *,
    activation: str | ActivationScheme | None = None,
    backend: str | None = None,
    device: object = None,
    profile: Profile | None = None,
    tuning: TuningConfig | None = None,
    compute: ComputeConfig | None = None,
    allow_fallback: bool | None = None,
) -> PreparedLayer:
    """Choose activation type and backend for `weight` and make it ready.

    Args:
        weight: on the device where it shall run.
        dtype: of activations and result: float16, bfloat16 or float32.
        activation, backend, device, profile, tuning, allow_fallback: see :class:`LayerOptions`.
        compute: promises; None is a dense product, or an indexed one with experts.

    Raises:
        ConfigError: an unknown dtype or name.
        UnsupportedError: no backend does it; says which refused and why.
    """
    options = LayerOptions(
        activation=None if activation is None else ActivationScheme.parse(activation),
        backend=backend,
        device=device,
        profile=profile,
        tuning=tuning,
        compute=compute,
        allow_fallback=allow_fallback,
    )
    compute = compute or ComputeConfig(gemm=usual_kind(weight))
    return prepared_layer(weight, dtype, options, compute, {})


def usual_kind(weight: CanonicalWeight) -> GemmKind:
    """The kind of GEMM of a weight if nothing is said: dense, or indexed with experts."""
    return GemmKind.INDEXED if weight.experts else GemmKind.DENSE


def prepared_layer(
    weight: CanonicalWeight,
    dtype: torch.dtype,
    options: LayerOptions,
    compute: ComputeConfig,
    shelf: Shelf,
    gating: Gating | None = None,
) -> PreparedLayer:
    """:func:`prepare`, with packed tensors of this weight taken from and put on a shelf.

    Args:
        weight, dtype, compute: as of :func:`prepare`.
        options: all its others.
        shelf: of this weight.
        gating: kernels shall apply it to their results, if they can: then it is `layer.function`.
    """
    if dtype not in _DTYPES:
        raise ConfigError("dtype", dtype, " or ".join(map(str, _DTYPES)))
    output = number_format(dtype)
    device = str(weight.device) if options.device is None else options.device
    found = find_device(device, options.profile)
    asked = weight.activation or ActivationScheme(format=output)
    if not asked.is_quantized:  # a checkpoint's "f16" means unquantized: the model's own dtype
        asked = ActivationScheme(format=output)
    resolved = resolve_activation(
        asked,
        found.profile,
        weight=weight.scheme,
        output=output,
        override=options.activation,
        allow_fallback=options.allow_fallback,
    )
    if resolved.static and weight.input_scale is None:
        raise ConfigError(
            "activation", str(resolved), "a dynamic scheme: this weight stores no input_scale"
        )
    if resolved.hadamard and weight.k % resolved.hadamard:
        allowed = f"blocks of which k={weight.k} is a multiple"
        raise ConfigError("activation", str(resolved), allowed)
    layer = _layer_config(weight, resolved, output)
    chosen = select_backend(
        options.backend, device=device, profile=options.profile, layer=layer, compute=compute
    )
    _LOG.debug("%s: %s", layer, chosen.name)
    if isinstance(chosen, KernelBackend):
        if gating is not None:
            weight, layer = activating(chosen, weight, layer, gating) or (weight, layer)
        kernels = KernelLayer.make(
            chosen, weight, layer, compute, Site.of(found), tuning=options.tuning, shelf=shelf
        )
        return PreparedLayer(chosen, layer, compute, kernels, kernels)
    assert isinstance(chosen, EagerBackend), "there are two kinds of backends"
    if options.tuning is not None:
        raise ConfigError("tuning", options.tuning, f"None: {chosen.name} has no kernels to tune")
    return PreparedLayer(chosen, layer, compute, chosen.prepare(weight, layer, compute))


def _layer_config(
    weight: CanonicalWeight, activation: ActivationScheme, output: NumberFormat
) -> LayerConfig:
    """The numbers that a layer over `weight` multiplies."""
    return LayerConfig(
        n=weight.n,
        k=weight.k,
        experts=weight.experts,
        weight=weight.scheme,
        activation=activation,
        output=output,
        bias=weight.bias is not None,
        act_order=weight.permutation is not None,
    )
