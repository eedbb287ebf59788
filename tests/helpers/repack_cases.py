"""Weights, their layers and the kernel that lays out their codes, for tests of repacking."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

import core_oracle as oracle

from humming.backend import PackedWeight, RepackSpec
from humming.configs import LayerConfig
from humming.formats.activation import ActivationScheme
from humming.formats.table import number_format
from humming.jit import HeaderRoots, Program, Renderer
from humming.selection import find_profile
from humming.weight import CanonicalWeight
from humming_sm75_sm89.layout import MmaLayout, layout_of
from humming_sm75_sm89.order import fitted
from humming_sm75_sm89.packing import pack_weight
from humming_sm75_sm89.repack import repack_spec

PACKAGES = {name: resources.files(name) for name in ("humming", "humming_sm75_sm89")}
RENDERER = Renderer({name: root / "templates" for name, root in PACKAGES.items()})
HEADERS = HeaderRoots({name: root / "include" / name for name, root in PACKAGES.items()})

ACTIVATIONS = {2: "f16", 4: "s8", 8: "s4"}
#: (bits, unit): every one that there is.
KINDS = [(b, u) for u in ACTIVATIONS for b in range(1, min(8, 32 // u) + 1)]


@dataclass(frozen=True, eq=False)
class Case:
    """A weight that fits, and what to launch for it."""

    weight: CanonicalWeight
    layer: LayerConfig
    layout: MmaLayout
    spec: RepackSpec

    def expected(self) -> PackedWeight:
        """By torch."""
        return pack_weight(self.weight, self.layer, self.layout)


def case(weight: CanonicalWeight, operand: int | str = 2, arch: str = "compute_75") -> Case:
    """The case of a weight with operands of so many numbers per register, or of a format."""
    activation = ACTIVATIONS[operand] if isinstance(operand, int) else operand
    profile = find_profile(profile="family-sm89")
    layer = LayerConfig(
        n=weight.n,
        k=weight.k,
        experts=weight.experts,
        weight=weight.scheme,
        activation=ActivationScheme.parse(activation),
        output=number_format("f16"),
        bias=weight.bias is not None,
        act_order=weight.permutation is not None,
    )
    fit, layer = fitted(weight, layer, profile)
    layout = layout_of(layer, profile)
    assert operand in (layout.unit, layout.target.name)
    spec = repack_spec(fit, layer, layout, arch)
    assert spec is not None, "there is a kernel"
    return Case(fit, layer, layout, spec)


def ordered(bits: int, n: int, k: int, experts: int = 0) -> CanonicalWeight:
    """A K shard under act-order: k of 2k columns, in groups of uneven size."""
    scheme = f"s{bits}-g128-f16"
    return oracle.random_weight(scheme, n, 2 * k, experts, seed=bits, act_order=True).columns(0, k)


def program(spec: RepackSpec, kind: str = "ptx") -> Program:
    """What to compile."""
    source = RENDERER.render(spec.kernel.template, spec.kernel.context)
    headers = HEADERS.closure(source, spec.kernel.name)
    arch = spec.kernel.arch
    return Program(name=spec.kernel.name, source=source, arch=arch, headers=headers, kind=kind)  # type: ignore[arg-type]
