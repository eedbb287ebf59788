"""Kernels launched one after another, most of whose arguments are known before the call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import NamedTuple

import torch

from humming.backend import Address, KernelSpec, LaunchShape, PreparedLaunch, TensorMap
from humming.engine.site import Site
from humming.engine.workshop import workshop
from humming.scheduling import ceil_div

__all__ = ["Given", "Launches", "Mapped", "Memory", "Part", "Step", "Value", "own_step"]

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


class Mapped(NamedTuple):
    """What a call gives or has in its memory, behind a tensor map."""

    of: Given | Part
    map: TensorMap


#: An argument that each call has elsewhere.
Changing = Given | Part | Mapped
#: An argument: what changes, or what never does.
Value = Changing | torch.Tensor | int | tuple[TensorMap, torch.Tensor] | None

#: A launch that nobody else uses, its shape, and what its changing slots get, in their order.
Step = tuple[PreparedLaunch, LaunchShape, Sequence[Changing]]


def own_step(site: Site, spec: KernelSpec, shape: LaunchShape, values: Mapping[str, Value]) -> Step:
    """A launch of a kernel; what no call changes is packed by now.

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
    changing = {place: v for place, v in enumerate(arguments) if isinstance(v, Changing)}
    with site.active():
        launch = site.runtime.prepare(
            handle, [arg.kind for arg in spec.args], arguments, {}, [*changing]
        )
    return launch, shape, [*changing.values()]


class Launches:
    """Launches one after another that share one allocation.

    A runtime with chains gets parts by their address: to make the tensors would take longer than to
    launch. Other runtimes get tensors.

    Safe in several threads. In the capture of a graph the memory is the graph's own.

    Args:
        site: where.
        steps: in their order.
        given: how many values a call gives.
    """

    def __init__(self, site: Site, steps: Sequence[Step], given: int) -> None:
        self._device, self._steps = site.device, steps
        slots = [value for _, _, values in steps for value in values]
        held = [value.of if isinstance(value, Mapped) else value for value in slots]
        self._parts = list(dict.fromkeys(value for value in held if isinstance(value, Part)))
        end = max((part.end for part in self._parts), default=0)
        self._nbytes = ceil_div(end, _PART_BYTES) * _PART_BYTES  # whole elements of any dtype
        chain = getattr(site.runtime, "chain", None)
        self._chain: Callable[[list[int]], None] | None = None
        if chain is not None:
            links = [
                (launch, shape, [_address(value, given) for value in values])
                for launch, shape, values in steps
            ]
            self._chain = chain(links)

    def __call__(self, *given: torch.Tensor | None) -> None:
        """Launch all of it on the current stream."""
        memory = torch.empty(self._nbytes, dtype=torch.uint8, device=self._device)
        if self._chain is not None:
            bases = [0 if value is None else value.data_ptr() for value in (*given, memory)]
            self._chain(bases)
            return
        parts = {part: _tensor(memory, part) for part in self._parts}
        for launch, shape, values in self._steps:
            launch(shape, *(_found(value, given, parts) for value in values))


def _address(value: Changing, given: int) -> Address:
    """Where a value is; the call's memory is the base behind those that it gives."""
    if isinstance(value, Mapped):
        return _address(value.of, given)._replace(map=value.map)
    return Address(value.place) if isinstance(value, Given) else Address(given, value.offset)


def _found(
    value: Changing, given: Sequence[torch.Tensor | None], parts: Mapping[Part, torch.Tensor]
) -> object:
    if isinstance(value, Mapped):
        return value.map, _found(value.of, given, parts)
    return given[value.place] if isinstance(value, Given) else parts[value]


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
