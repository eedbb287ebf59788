"""Choices of experts, sorted on the device: what indexed and contiguous kernels read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from humming.backend import UNTILED, KernelSpec, PreparedLaunch, Problem
from humming.configs import GemmKind, LayerConfig
from humming.engine.operand import Operand
from humming.engine.site import Site
from humming.engine.workshop import workshop
from humming.expert_kernels import gather_spec
from humming.formats.table import number_format
from humming.routing import align_spec, aligned_sizes, route_spec

__all__ = [
    "CODE_BYTES",
    "Aligner",
    "Alignment",
    "SortedChoices",
    "Sorter",
    "align_specs",
    "order_spec",
]

#: Of what rows are copied as: :func:`order_spec` takes them for f16.
CODE_BYTES = 2

#: Arguments of the kernel, in the order of a call.
_ARGS = ("ids", "slots", "tile_experts", "row_tiles", "choices", "experts")


class Alignment(NamedTuple):
    """See :class:`humming.scheduling.IndexedRows`; all int32, as large as they could have to be.

    Attributes:
        experts: of each row tile; of UNTILED kernels offsets, [experts + 1].
        slots: row_tile of them for each row tile; of UNTILED kernels the sorted choices.
        row_tiles: [1], how many of them there are; of UNTILED kernels how many slots.
    """

    experts: torch.Tensor
    slots: torch.Tensor
    row_tiles: torch.Tensor


class Aligner:
    """Sorts the choices of calls of one layer, by a kernel of core's own."""

    def __init__(self, site: Site, layer: LayerConfig) -> None:
        self._site, self._layer = site, layer
        self._kernels: dict[tuple[int, str, bool], tuple[KernelSpec, PreparedLaunch]] = {}
        self._orders: dict[tuple[str, int], tuple[KernelSpec, PreparedLaunch, LayerConfig]] = {}

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

    def values(
        self, ids: torch.Tensor, kernel: KernelSpec, known: dict[int, Alignment]
    ) -> dict[str, object]:
        """Arguments of a kernel that say which tiles there are.

        Args:
            ids, kernel: as of a call, which is left out if the kernel sorts so few by itself.
            known: what these ids were sorted into, by row tile; taken from and added to.
        """
        if ids.numel() <= kernel.sorts:
            return {"groups": ids, "id_words": ids.itemsize // 4}
        found = known.get(kernel.row_tile)
        if found is None:
            known[kernel.row_tile] = found = self(ids, kernel)
        return {
            "groups": found.experts, "slots": found.slots, "row_tiles": found.row_tiles,
            "id_words": 0,
        }  # fmt: skip

    def order(self, operand: Operand, slots: torch.Tensor, top_k: int, arch: str) -> Operand:
        """Rows as UNTILED kernels read them: one for each slot; bytes, as they are.

        Args:
            operand: with a row for each `top_k` choices, of a multiple of 16 bytes.
            slots: of an alignment.
            top_k: choices of a row.
            arch: of the kernel that will read them.
        """
        x, stride, scales, groups = operand
        rows, width, count = slots.numel(), stride // CODE_BYTES, 0
        out, scales_out, groups_out = x.new_empty((rows, stride), dtype=torch.uint8), None, None
        if scales is not None:
            scales_out = scales.new_empty(rows)
        if groups is not None:
            count = groups.shape[-1]
            groups_out = groups.new_empty((rows, count))
        key = arch, width
        if key not in self._orders:
            spec = order_spec(arch)
            self._orders[key] = spec, self._prepared(spec), replace(self._layer, n=width)
        spec, launch, layer = self._orders[key]
        shape = spec.launch(Problem(m=rows), layer)
        sizes = x.shape[0], rows, width, top_k
        launch(shape, x, stride, slots, out, *sizes, scales, scales_out, groups, groups_out, count)
        return Operand(out, stride, scales_out, groups_out)

    def _prepared(self, spec: KernelSpec, names: Sequence[str] = ()) -> PreparedLaunch:
        """A loaded kernel that takes all arguments in every call, in the order of `names`."""
        handle = workshop().load(spec, self._site)
        kinds = [arg.kind for arg in spec.args]
        every = [arg.name for arg in spec.args]
        order = [every.index(name) for name in names or every]
        with self._site.active():
            return self._site.runtime.prepare(handle, kinds, [None] * len(kinds), {}, order)

    def _kernel(self, row_tile: int, arch: str, wide: bool) -> tuple[KernelSpec, PreparedLaunch]:
        key = row_tile, arch, wide
        if key not in self._kernels:
            spec = align_spec(row_tile, wide, arch)
            self._kernels[key] = spec, self._prepared(spec, _ARGS)
        return self._kernels[key]


def align_specs(kernels: Iterable[KernelSpec]) -> list[KernelSpec]:
    """The kernels that sort choices for these, ids of either width, and rows by them."""
    found = list(kernels)
    keys = sorted({(kernel.row_tile, kernel.arch) for kernel in found})
    ordered = sorted({kernel.arch for kernel in found if kernel.row_tile == UNTILED})
    widths = (False, True)
    return [
        *(align_spec(tile, wide, arch) for tile, arch in keys for wide in widths),
        *map(order_spec, ordered),
    ]


def order_spec(arch: str) -> KernelSpec:
    """What brings rows into the order of sorted choices, whatever their numbers are."""
    return gather_spec(number_format("f16"), True, arch)


class SortedChoices(NamedTuple):
    """See :func:`humming.combining.route`; all int32.

    Attributes:
        sources: [rows], the row of activations of each row; none of them where it is nobody's.
        places: [choices], the row of each choice, or -1.
        table: what products read: offsets [experts + 1], where each expert's rows begin, or counts
            [experts].
        rows: [1], how many there are; or `table`, if those are counts.
    """

    sources: torch.Tensor
    places: torch.Tensor
    table: torch.Tensor
    rows: torch.Tensor


class Sorter:
    """Brings the choices of calls of one layer into the order of experts.

    Args:
        site: where.
        arch: target architecture as the compiler spells it.
        layer: the numbers.
    """

    def __init__(self, site: Site, arch: str, layer: LayerConfig) -> None:
        self._site, self._arch, self._layer = site, arch, layer
        self._kernels: dict[tuple[bool, bool], tuple[KernelSpec, PreparedLaunch]] = {}

    def __call__(self, ids: torch.Tensor, per_source: int, capacity: int = 0) -> SortedChoices:
        """Sort.

        Args:
            ids: int32 or int64 [M, top_k], contiguous, at least one.
            per_source: choices of a row of activations: top_k, or 1 if each has its own.
            capacity: rows of each expert; 0 is rows that lie together.
        """
        spec, launch = self._kernel(ids.dtype == torch.int64, capacity > 0)
        choices, experts = ids.numel(), self._layer.experts
        rows = experts * capacity if capacity else choices
        tables = [experts] if capacity else [experts + 1, 1]
        found = [ids.new_empty(size, dtype=torch.int32) for size in (rows, choices, *tables)]
        more = (capacity,) if capacity else ()
        shape = spec.launch(Problem(m=choices), self._layer)
        launch(shape, ids, *found, choices, experts, per_source, *more)
        return SortedChoices(found[0], found[1], found[2], found[-1])

    def warm_up(self, masked: bool = False) -> None:
        """Compile and load the kernels, for ids of either width."""
        for wide in (False, True):
            self._kernel(wide, masked)

    def _kernel(self, wide: bool, masked: bool) -> tuple[KernelSpec, PreparedLaunch]:
        if (wide, masked) not in self._kernels:
            kind = GemmKind.GROUPED_MASKED if masked else GemmKind.GROUPED_CONTIGUOUS
            spec = route_spec(kind, wide, self._arch)
            handle = workshop().load(spec, self._site)
            kinds, every = [arg.kind for arg in spec.args], range(len(spec.args))
            with self._site.active():
                launch = self._site.runtime.prepare(handle, kinds, [None] * len(kinds), {}, every)
            self._kernels[wide, masked] = spec, launch
        return self._kernels[wide, masked]
