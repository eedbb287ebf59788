"""Which kernels a layer of experts needs, known before there is a device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from humming.backend import KernelBackend, KernelSpec
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.engine.activating import activating
from humming.engine.ahead import needed_kernels
from humming.engine.expert_products import LAYOUTS
from humming.engine.experts import _keys, _spec
from humming.engine.prepared import LayerOptions
from humming.engine.quantized import quantize_specs
from humming.errors import UnsupportedError
from humming.expert_kernels import RowMask
from humming.gating import Gating
from humming.profiles import DeviceProfile
from humming.quantizer import RowSource
from humming.routing import sort_spec
from humming.selection import find_profile, select_backend
from humming.weight import CanonicalWeight

__all__ = ["ExpertSpecs", "Product", "expert_specs", "glue_specs"]

#: Rows of the second product that count, by layout: those of ids of either width, or the first.
_GATED_ROWS = {
    GemmKind.INDEXED: (RowSource.IDS, RowSource.IDS_64),
    GemmKind.GROUPED_CONTIGUOUS: (RowSource.COUNTS,),
}


class Product(NamedTuple):
    """One product of a layer of experts.

    Attributes:
        weight: what is packed; it may hold only some of the layer's experts.
        layer: the numbers.
    """

    weight: CanonicalWeight
    layer: LayerConfig


class ExpertSpecs(NamedTuple):
    """What :func:`expert_specs` found.

    Attributes:
        layouts: of rows, those that both products have kernels for; never empty.
        backends: names of whose kernels the products are, each once.
        kernels: all of them; some may be there twice.
    """

    layouts: tuple[GemmKind, ...]
    backends: tuple[str, ...]
    kernels: list[KernelSpec]


def expert_specs(
    experts: tuple[Product, Product],
    gating: Gating,
    options: LayerOptions,
    *,
    shared: tuple[Product, Product] | None = None,
    ms: Iterable[int] | None = None,
    top_k: int = 1,
) -> ExpertSpecs:
    """What :class:`humming.QuantMoE` can need for calls with so many tokens, in every layout.

    Which layout a size gets is not asked: it costs some kernels that are never used, and holds for
    ``layout=`` too. Packing of the weights is in it.

    Args:
        experts: both products, [E, ..].
        gating: the function between them.
        options: backend, profile (which there must be) and promises.
        shared: both products of experts that see every token.
        ms: numbers of tokens; None is 1 to 8192.
        top_k: choices of a token.

    Raises:
        UnsupportedError: there is no layout for which both products have kernels.
    """
    tokens = list(range(1, 8193) if ms is None else ms)
    choices = [m * top_k for m in tokens]
    layouts: list[GemmKind] = []
    kernels: list[KernelSpec] = []
    backends: list[str] = []
    layers: list[LayerConfig] = []
    refused: UnsupportedError | None = None
    for kind in LAYOUTS:
        # The first product may have a row for each token, or for each choice.
        indexed = kind is GemmKind.INDEXED
        sizes = (tokens, top_k) if indexed else (choices, 1)
        try:
            found = [
                _product(experts[0], options, kind, *sizes, _applied(experts, gating)),
                _product(experts[1], options, kind, choices, 1),
            ]
        except UnsupportedError as error:
            refused = refused or error
            continue
        layouts.append(kind)
        layers = [part.layer for part in found]
        backends += [part.backend for part in found]
        kernels += [spec for part in found for spec in part.kernels]
    if not layouts:
        assert refused is not None, "every layout was refused"
        raise refused
    for product in shared or ():
        applied = _applied(shared, gating) if shared and product is shared[0] else None
        part = _product(product, options, GemmKind.DENSE, tokens, 1, applied)
        layers.append(part.layer)
        backends.append(part.backend)
        kernels += part.kernels
    profile = find_profile(profile=options.profile)
    kernels += glue_specs(tuple(layers), gating, profile, layouts)
    return ExpertSpecs(tuple(layouts), tuple(dict.fromkeys(backends)), kernels)


def glue_specs(
    layers: tuple[LayerConfig, ...],
    gating: Gating,
    profile: DeviceProfile,
    layouts: Iterable[GemmKind],
) -> list[KernelSpec]:
    """What stands before, between and behind the products: sorting, moving, activating, adding up.

    Activations that are quantized are so alone (those kernels are the products' own), behind the
    activation function, or as they are moved.

    Args:
        layers: first and second product; of shared experts too, if there are some. A function that
            a first one applies needs no kernel of its own.
        gating: the function between them.
        profile: of the device.
        layouts: of rows.
    """
    first, second = layers[:2]
    shared, arch = layers[2:], profile.target.arch
    width = shared[1].k if shared and shared[0].function is None else 0
    layouts = tuple(layouts)
    indexed, sorts = (layout in layouts for layout in LAYOUTS)
    keys = _keys(second, width, indexed=indexed, sorts=sorts)
    if first.function is not None:
        keys = [key for key in keys if key[0] != "gate" or key[1] is RowMask.EVERY]
    specs = [_spec(key, second.output, gating, arch) for key in keys]
    for layout in layouts:
        for rows in _GATED_ROWS[layout]:
            specs += quantize_specs(second, profile, gating, rows)
    if sorts:
        specs += [sort_spec(wide, arch) for wide in (False, True)]
        specs += quantize_specs(first, profile, source=RowSource.MAP)
    if width:
        specs += quantize_specs(shared[1], profile, gating)
    return specs


def _applied(pair: tuple[Product, Product], gating: Gating) -> Gating | None:
    """As QuantMoE has it: a first product applies the function if nothing quantizes behind it."""
    return None if pair[1].layer.activation.is_quantized else gating


class _Found(NamedTuple):
    """The backend of a product, its numbers, with a function if it applies one, and its kernels."""

    backend: str
    layer: LayerConfig
    kernels: list[KernelSpec]


def _product(
    product: Product,
    options: LayerOptions,
    kind: GemmKind,
    ms: Iterable[int],
    top_k: int,
    gating: Gating | None = None,
) -> _Found:
    """How a product is computed, and the function behind it if its kernels apply that."""
    compute = replace(options.compute or ComputeConfig(), gemm=kind)
    backend = select_backend(
        options.backend, profile=options.profile, layer=product.layer, compute=compute
    )
    if not isinstance(backend, KernelBackend):
        reason = f"{backend.name}, which would compute {product.layer}, has no kernels"
        raise UnsupportedError(reason)
    weight, layer = product
    if gating is not None:
        weight, layer = activating(backend, weight, layer, gating) or product
    return _Found(backend.name, layer, needed_kernels(backend, weight, layer, compute, ms, top_k))
