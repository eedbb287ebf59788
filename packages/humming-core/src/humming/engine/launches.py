"""Kernels launched one after another, most of whose arguments are known before the call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from operator import itemgetter
from typing import NamedTuple

import torch

from humming.backend import KernelSpec, LaunchShape, PreparedLaunch
from humming.engine.site import Site
from humming.engine.workshop import workshop
from humming.scheduling import ceil_div

__all__ = ["Given", "Launches", "Memory", "Part", "Step", "Value", "View", "own_step"]

#: Parts of scratch memory begin at multiples of this many bytes: a line of the L2 twice over.
_PART_BYTES = 256


class Given(NamedTuple):
    """A value that each call gives.

    Attributes:
        place: in the call.
    """

    place: int


class Part(NamedTuple):
    """Memory of a call, which holds nothing before it.

    Attributes:
        offset: of its first byte in the memory of all parts.
        shape: in elements.
        strides: the same, of rows without gaps.
        dtype: of elements.
    """

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def end(self) -> int:
        """The byte behind it."""
        return self.offset + prod(self.shape) * self.dtype.itemsize


class View(NamedTuple):
    """A part as a tensor: what describes an argument (a tensor map) asks for its shape."""

    part: Part


_CHANGING = (Given, Part, View)
#: An argument: what changes, or what never does.
Value = Given | Part | View | torch.Tensor | int | None

#: A launch, its shape, and the arguments that change, in their order.
Step = tuple[PreparedLaunch, LaunchShape, Sequence[Value]]
#: The same with what takes the arguments out of all values of a call.
_Bound = tuple[PreparedLaunch, LaunchShape, Callable[[list[object]], tuple[object, ...]]]


def own_step(site: Site, spec: KernelSpec, shape: LaunchShape, values: Mapping[str, Value]) -> Step:
    """A launch of one of core's own kernels; what no call changes is packed by now.

    Args:
        site: where.
        spec: the kernel.
        shape: of its grid.
        values: of all of its arguments; of others, too.

    Raises:
        CaptureError: the kernel is not loaded, in the capture of a graph.
    """
    handle = workshop().load(spec, site)
    arguments = [values[arg.name] for arg in spec.args]
    changing = [place for place, value in enumerate(arguments) if isinstance(value, _CHANGING)]
    with site.active():
        launch = site.runtime.prepare(
            handle, [arg.kind for arg in spec.args], arguments, {}, changing
        )
    return launch, shape, [arguments[place] for place in changing]


class Launches:
    """Launches one after another that share one allocation.

    Kernels of CUDA's driver get parts by their address, which is what a launch would ask a tensor
    for: to make the tensors would take longer than to launch. Other runtimes get tensors.

    Safe in several threads. In the capture of a graph the memory is the graph's own.

    Args:
        site: where.
        steps: in their order, each with two arguments at least.
        given: how many values a call gives.
    """

    def __init__(self, site: Site, steps: Sequence[Step], given: int) -> None:
        self._device, self._addressed = site.device, _takes_addresses(site)
        every = [value for _, _, values in steps for value in values]
        parts = list(dict.fromkeys(value for value in every if isinstance(value, Part)))
        views = list(dict.fromkeys(value.part for value in every if isinstance(value, View)))
        self._parts, self._views = parts, views
        self._offsets = [part.offset for part in parts]
        end = max((part.end for part in (*parts, *views)), default=0)
        self._nbytes = ceil_div(end, _PART_BYTES) * _PART_BYTES  # whole elements of any dtype
        fixed: list[object] = []

        def place(value: Value) -> int:
            if isinstance(value, Given):
                return value.place
            if isinstance(value, Part):
                return given + parts.index(value)
            if isinstance(value, View):
                return given + len(parts) + views.index(value.part)
            fixed.append(value)
            return given + len(parts) + len(views) + len(fixed) - 1

        self._steps: list[_Bound] = [
            (launch, shape, itemgetter(*map(place, values))) for launch, shape, values in steps
        ]
        self._fixed = tuple(fixed)

    def __call__(self, *given: object) -> None:
        """Launch all of it on the current stream."""
        memory = torch.empty(self._nbytes, dtype=torch.uint8, device=self._device)
        if self._addressed:
            base = memory.data_ptr()
            parts: list[object] = [base + offset for offset in self._offsets]
        else:
            parts = [_tensor(memory, part) for part in self._parts]
        views = [_tensor(memory, part) for part in self._views]
        values = [*given, *parts, *views, *self._fixed]
        for launch, shape, arguments in self._steps:
            launch(shape, *arguments(values))


def _takes_addresses(site: Site) -> bool:
    return site.runtime.name == "cuda"


def _tensor(memory: torch.Tensor, part: Part) -> torch.Tensor:
    typed = memory if part.dtype is torch.uint8 else memory.view(part.dtype)
    return typed.as_strided(part.shape, part.strides, part.offset // part.dtype.itemsize)


class Memory:
    """Lays out parts, one behind the other."""

    def __init__(self, start: int = 0) -> None:
        self.end = start

    def part(self, shape: tuple[int, ...], dtype: torch.dtype) -> Part:
        """Memory that is nobody else's."""
        strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
        found = Part(self.end, shape, strides, dtype)
        self.end = ceil_div(found.end, _PART_BYTES) * _PART_BYTES
        return found
