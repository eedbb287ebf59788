"""Choices of experts, sorted into row tiles on the device: what indexed kernels read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from humming.backend import KernelSpec, PreparedLaunch, Problem
from humming.configs import LayerConfig
from humming.engine.site import Site
from humming.engine.workshop import workshop
from humming.routing import align_spec, aligned_sizes

__all__ = ["Aligner", "Alignment", "align_specs"]

#: Arguments of the kernel, in the order of a call.
_ARGS = ("ids", "slots", "tile_experts", "row_tiles", "choices", "experts")


class Alignment(NamedTuple):
    """See :class:`humming.scheduling.IndexedRows`; all int32, as large as they could have to be.

    Attributes:
        experts: of each row tile.
        slots: row_tile of them for each row tile.
        row_tiles: [1], how many of them there are.
    """

    experts: torch.Tensor
    slots: torch.Tensor
    row_tiles: torch.Tensor


class Aligner:
    """Sorts the choices of calls of one layer, by a kernel of core's own."""

    def __init__(self, site: Site, layer: LayerConfig) -> None:
        self._site, self._layer = site, layer
        self._kernels: dict[tuple[int, str, bool], tuple[KernelSpec, PreparedLaunch]] = {}

    def __call__(self, ids: torch.Tensor, kernel: KernelSpec) -> Alignment:
        """Sort for a kernel that will read the result.

        Args:
            ids: int32 or int64 [M, top_k], contiguous.
            kernel: its row tiles count.
        """
        spec, launch = self._kernel(kernel.row_tile, kernel.arch, ids.dtype == torch.int64)
        choices, experts = ids.numel(), self._layer.experts
        sizes = aligned_sizes(choices, experts, kernel.row_tile)
        found = Alignment(
            ids.new_empty(sizes.row_tiles, dtype=torch.int32),
            ids.new_empty(sizes.slots, dtype=torch.int32),
            ids.new_empty(1, dtype=torch.int32),
        )
        shape = spec.launch(Problem(m=choices, top_k=ids.shape[1]), self._layer)
        launch(shape, ids, found.slots, found.experts, found.row_tiles, choices, experts)
        return found

    def _kernel(self, row_tile: int, arch: str, wide: bool) -> tuple[KernelSpec, PreparedLaunch]:
        key = row_tile, arch, wide
        if key not in self._kernels:
            spec = align_spec(row_tile, wide, arch)
            site = self._site
            handle = workshop().load(spec, site)
            kinds = [arg.kind for arg in spec.args]
            names = [arg.name for arg in spec.args]
            order = [names.index(name) for name in _ARGS]
            with site.active():
                launch = site.runtime.prepare(handle, kinds, [None] * len(kinds), {}, order)
            self._kernels[key] = spec, launch
        return self._kernels[key]


def align_specs(kernels: Iterable[KernelSpec]) -> list[KernelSpec]:
    """The kernels that sort choices for these, ids of either width."""
    keys = sorted({(kernel.row_tile, kernel.arch) for kernel in kernels})
    widths = (False, True)
    return [align_spec(tile, wide, arch) for tile, arch in keys for wide in widths]
