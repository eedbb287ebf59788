"""What the arguments of kernels are, by name, and a kernel with all of them bound."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch

from humming.backend import (
    KernelSpec,
    LaunchShape,
    MapOf,
    PreparedLaunch,
    Problem,
    Runtime,
    TensorMap,
)
from humming.configs import LayerConfig
from humming.errors import ConfigError

__all__ = ["ALWAYS", "ARGUMENTS", "Argument", "BoundKernel", "Fixed", "bind", "fixed_values"]


class Argument(NamedTuple):
    """One argument that kernels may have.

    Attributes:
        kind: its kind; see :class:`humming.backend.Arg`.
        source: of its value: the packed "weight", the "layer", or each "call".
        meaning: what it is.
    """

    kind: str
    source: str
    meaning: str


#: All that core binds. A kernel takes what it needs, in its own order; what a layer does not have
#: is a null pointer. Any other name is a tensor of the packed weight, which must have it. Tensors
#: of the packed weight, and x, may be of kind "map" as well.
ARGUMENTS = {
    "x": Argument("ptr", "call", "activations as the kernel reads them, 16-byte aligned rows"),
    "x_stride": Argument("i64", "call", "bytes from one row of x to the next, a multiple of 16"),
    "out": Argument("ptr", "call", "result, [rows, n] contiguous; zeros where rows may be skipped"),
    "m": Argument(
        "i32", "call", "rows; indexed: choices, M * top_k; masked: rows that an expert has room for"
    ),
    "x_scales": Argument("ptr", "call", "f32 [rows of x]: factor of each row; NaN if it had one"),
    "x_groups": Argument("ptr", "call", "f32 [rows of x, ceil(k / group)]: group scales"),
    "workspace": Argument("ptr", "call", "KernelSpec.workspace bytes, its counters zero"),
    "groups": Argument(
        "ptr",
        "call",
        "int32: offsets [E + 1] (contiguous, UNTILED), counts [E] (masked), experts of row tiles; "
        "or the ids, see id_words",
    ),
    "slots": Argument("ptr", "call", "int32: indexed: see IndexedRows.slots, or UNTILED"),
    "row_tiles": Argument("ptr", "call", "int32 [1]: indexed: how many row tiles there are"),
    "id_words": Argument(
        "i32",
        "call",
        "indexed: 0; or, of up to KernelSpec.sorts choices, 32-bit words of each id: groups are "
        "the ids [choices] as they came, slots and row_tiles null",
    ),
    "top_k": Argument("i32", "call", "indexed: choices per row of x; else 1"),
    "n": Argument("i32", "layer", "output features"),
    "k": Argument("i32", "layer", "input features; with an order: stored columns"),
    "experts": Argument("i32", "layer", "number of weights; 1 for a dense layer"),
    "weight": Argument("ptr", "weight", "codes"),
    "scales": Argument("ptr", "weight", "group scales"),
    "zeros": Argument("ptr", "weight", "zero points"),
    "channel": Argument("ptr", "weight", "f32 factor of each output"),
    "bias": Argument("ptr", "weight", "f32, added to each output"),
    "order": Argument("ptr", "weight", "int32: act-order: the input that a stored column meets"),
}

#: Arguments of calls that a kernel may want as a tensor map.
_MAPPED = ("x",)
#: What every kernel of a layer takes.
ALWAYS = ("x", "x_stride", "out", "m")

_FIXED: dict[str, Callable[[LayerConfig], int]] = {
    "n": lambda layer: layer.n,
    "k": lambda layer: layer.k,
    "experts": lambda layer: max(layer.experts, 1),
}
#: What an argument is that no call changes.
Fixed = int | torch.Tensor | tuple[TensorMap, torch.Tensor] | None
#: What an argument of a call is where no call ever has it.
_ABSENT: dict[str, int | None] = {"top_k": 1, "id_words": 0}


@dataclass(frozen=True, eq=False)
class BoundKernel:
    """A loaded kernel whose fixed arguments are packed.

    Attributes:
        spec: what it is.
        launch: takes the values of :data:`ALWAYS`, then those of `extras`, in this order.
        extras: names of the other arguments that change.
        layer: what it belongs to.
    """

    spec: KernelSpec
    launch: PreparedLaunch
    extras: tuple[str, ...]
    layer: LayerConfig
    _shapes: dict[LaunchShape, LaunchShape] = field(default_factory=dict, repr=False)

    def shape(self, problem: Problem) -> LaunchShape:
        """The launch shape of a problem; the same object for equal ones, which is faster."""
        shape = self.spec.launch(problem, self.layer)
        return self._shapes.setdefault(shape, shape)

    def workspace(self, problem: Problem) -> int:
        """Bytes of scratch memory that a problem needs."""
        if self.spec.workspace is None or "workspace" not in self.extras:
            return 0
        return self.spec.workspace(problem, self.layer)


def bind(
    runtime: Runtime,
    handle: object,
    spec: KernelSpec,
    layer: LayerConfig,
    tensors: Mapping[str, torch.Tensor],
    given: Collection[str],
) -> BoundKernel:
    """Pack a kernel's fixed arguments.

    Args:
        runtime: loaded the kernel.
        handle: the kernel, of :meth:`Runtime.load`.
        spec: what it is.
        layer: the numbers.
        tensors: of the packed weight.
        given: names of the arguments that the layer's calls give, beside :data:`ALWAYS`.

    Raises:
        ConfigError: an argument that nobody knows, of another kind, without a description of its
            map, or a missing one of ALWAYS.
        CaptureError: the kernel is not loaded on the tensors' device, in a capture.
    """
    names = [arg.name for arg in spec.args]
    for name in ALWAYS:
        if names.count(name) != 1:
            raise ConfigError(f"args of {spec.name}", names, f"each of {', '.join(ALWAYS)} once")
    extras = tuple(name for name in ARGUMENTS if name in given and name in names)
    changing = [names.index(name) for name in (*ALWAYS, *extras)]
    values = [*fixed_values(spec, layer, tensors).values()]
    kinds = [arg.kind for arg in spec.args]
    launch = runtime.prepare(handle, kinds, values, {}, changing)
    if kinds[names.index("x")] == "map":
        launch = _mapping_x(launch, spec)
    return BoundKernel(spec, launch, extras, layer)


def fixed_values(
    spec: KernelSpec, layer: LayerConfig, tensors: Mapping[str, torch.Tensor]
) -> dict[str, Fixed]:
    """What the arguments of a kernel are that no call changes; others have a placeholder.

    Raises:
        ConfigError: as :func:`bind`.
    """
    return {arg.name: _fixed(spec, i, layer, tensors) for i, arg in enumerate(spec.args)}


def _fixed(
    spec: KernelSpec, index: int, layer: LayerConfig, tensors: Mapping[str, torch.Tensor]
) -> Fixed:
    """The value of an argument, or a placeholder for one that changes."""
    name, kind = spec.args[index]
    known = ARGUMENTS.get(name)
    if known is None and name not in tensors:
        allowed = f"one of {', '.join(ARGUMENTS)}, or a tensor of the packed weight"
        raise ConfigError(f"argument {index} of {spec.name}", name, allowed)
    expected = ["ptr" if known is None else known.kind]
    expected += ["map"] * (known is None or known.source == "weight" or name in _MAPPED)
    if kind not in expected:
        allowed = " or ".join(f'kind "{kind}"' for kind in expected)
        raise ConfigError(f"argument {name} of {spec.name}", kind, allowed)
    if kind == "map" and name not in spec.maps:
        allowed = f"a description of {name}, which is a tensor map"
        raise ConfigError(f"maps of {spec.name}", sorted(spec.maps), allowed)
    if kind == "map" and name in tensors:
        tensor = tensors[name]
        row = tensor.stride(-2) * tensor.element_size()
        return spec.maps[name](tuple(tensor.shape), row), tensor
    if known is None or known.source == "weight":
        return tensors.get(name)
    if name == "k" and "order" in tensors:  # stored columns, holes between groups included
        return int(tensors["order"].shape[-1])
    if known.source == "layer":
        return _FIXED[name](layer)
    return _ABSENT.get(name)


def _mapping_x(launch: PreparedLaunch, spec: KernelSpec) -> PreparedLaunch:
    """A launch that is given x as it is, and gives the kernel its tensor map."""
    describe: MapOf = lru_cache(maxsize=4096)(spec.maps["x"])

    def mapped(shape: LaunchShape, *changed: object) -> None:
        x, stride, *others = changed  # as ALWAYS has them
        assert isinstance(x, torch.Tensor), "the engine gives x as a tensor"
        assert isinstance(stride, int), "and its rows' distance as a number"
        launch(shape, (describe(tuple(x.shape), stride), x), stride, *others)

    return mapped
