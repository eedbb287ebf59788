"""Stored columns that are not the inputs one after the other: act-order, and groups with holes.

Kernels want every group of `MmaLayout.group` stored columns under one scale. A weight whose groups
have other sizes gets its columns sorted by group, and each group filled up with holes.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch

from humming.configs import LayerConfig
from humming.errors import ConfigError
from humming.formats.scheme import Granularity
from humming.profiles import DeviceProfile
from humming.weight import CanonicalWeight
from humming_sm75_sm89.folding import with_range
from humming_sm75_sm89.layout import BlockGrid, MmaLayout, layout_of, padded
from humming_sm75_sm89.scaling import scale_columns, scale_rows

__all__ = ["Arrangement", "arrange", "fitted"]

#: With uneven groups, the largest number of columns that a group is filled up to a multiple of.
_MAX_UNEVEN = 128


@dataclass(frozen=True, eq=False)
class Arrangement:
    """Where the columns of a weight are stored.

    Attributes:
        grid: the blocks that hold them.
        columns: int64 [E, k128], the weight's column at each stored one, -1 for a hole; None if
            they are the same.
        groups: int64 [E, ceil(k128 / group)], the weight's scale column of each group of stored
            columns, -1 if there is none; None if they are the same.
        order: int32 [E, k128], the input of each stored column, -1 for a hole; None if they are
            the same.
    """

    grid: BlockGrid
    columns: torch.Tensor | None = None
    groups: torch.Tensor | None = None
    order: torch.Tensor | None = None


def fitted(
    weight: CanonicalWeight, layer: LayerConfig, profile: DeviceProfile
) -> tuple[CanonicalWeight, LayerConfig]:
    """The same weight in a form that has a layout, and its layer.

    Almost every weight comes back as it is. Odd scales become others of f32, see
    :func:`humming_sm75_sm89.folding.with_range`. A tensor-parallel cut inside a scale block gets
    smaller scale blocks that begin where the weight begins. If none are large enough for an MMA,
    and for a K shard under act-order, whose groups are of uneven size, the layer gets act-order,
    and scale groups of the size for which the packed weight is smallest.
    """
    weight, layer = _arranged(weight, layer, profile)
    return with_range(weight, layer, layout_of(layer, profile))


def _arranged(
    weight: CanonicalWeight, layer: LayerConfig, profile: DeviceProfile
) -> tuple[CanonicalWeight, LayerConfig]:
    if weight.group_index is None:
        size, first = weight.scheme.granularity.k, weight.offset[1]
        if first == 0 or weight.scales.shape[-1] == 1:
            return weight, layer
        step = layout_of(layer, profile).step
        common = math.gcd(size, first)
        if common % step == 0:
            return _regrouped(weight, layer, common)
        weight = _with_group_index(weight)
    step = layout_of(dataclasses.replace(layer, act_order=True), profile).step
    scheme = dataclasses.replace(
        weight.scheme, granularity=Granularity.group(_best_group(weight, step))
    )
    permutation = weight.permutation
    if permutation is None:
        permutation = torch.arange(weight.k, dtype=torch.int32, device=weight.device)
        permutation = permutation.expand(*weight.shape[:-2], weight.k).contiguous()
    fit = weight.replace(scheme=scheme, permutation=permutation)
    return fit, dataclasses.replace(layer, weight=scheme, act_order=True)


def _regrouped(
    weight: CanonicalWeight, layer: LayerConfig, size: int
) -> tuple[CanonicalWeight, LayerConfig]:
    """The same scales for blocks of `size` columns that begin at column 0."""
    old, first = weight.scheme.granularity, weight.offset[1]
    scheme = dataclasses.replace(weight.scheme, granularity=Granularity(old.n, size))
    count = -(-weight.k // size)
    source = (torch.arange(count, device=weight.device) * size + first) // old.k
    fit = weight.replace(
        scheme=scheme,
        offset=(weight.offset[0], 0),
        scales=weight.scales.index_select(-1, source),
        zeros=None if weight.zeros is None else weight.zeros.index_select(-1, source),
    )
    return fit, dataclasses.replace(layer, weight=scheme)


def _with_group_index(weight: CanonicalWeight) -> CanonicalWeight:
    """The same weight with the scale column of each column written down, and scales per row."""
    size = weight.scheme.granularity.k
    index = (torch.arange(weight.k, device=weight.device) + weight.offset[1]) // size
    rows = scale_rows(weight)

    def per_row(blocks: torch.Tensor | None) -> torch.Tensor | None:
        return blocks if blocks is None or rows is None else blocks.index_select(-2, rows)

    return weight.replace(
        scheme=dataclasses.replace(weight.scheme, granularity=Granularity.group(size)),
        offset=(0, 0),
        scales=per_row(weight.scales),
        zeros=per_row(weight.zeros),
        group_index=index.to(torch.int32).expand(*weight.shape[:-2], weight.k).contiguous(),
    )


def _best_group(weight: CanonicalWeight, step: int) -> int:
    """Columns per scale for which an uneven weight is packed in the fewest bits."""
    scheme = weight.scheme
    counts = _counts(scale_columns(weight), weight.scales.shape[-1])
    sizes = [size for size in (16, 32, 64, _MAX_UNEVEN) if size >= step]

    def bits(size: int) -> int:
        columns = padded(int(_filled(counts, size).sum(-1).max()), 128)
        return columns * scheme.code.bits + columns // size * (scheme.scale.bits + scheme.zero_bits)

    return min(sizes, key=lambda size: (bits(size), -size))


def arrange(weight: CanonicalWeight, layout: MmaLayout) -> Arrangement:
    """Where each column of `weight` is stored.

    Raises:
        ConfigError: the weight's groups are none that this layout has; see :func:`fitted`.
    """
    size, several = weight.scheme.granularity.k, weight.scales.shape[-1] > 1
    uneven = weight.group_index is not None
    if uneven and (not layout.has_order or layout.group > _MAX_UNEVEN):
        raise ConfigError("group_index", "uneven groups", "a weight that fitted() gave")
    if several and not uneven and weight.offset[1]:
        raise ConfigError("offset", weight.offset, "no cut in a scale block; fitted() moves it")
    if not layout.has_order:
        return Arrangement(layout.grid)
    if uneven or (several and size != layout.group):
        return _with_holes(weight, layout)
    stored = _inputs(weight)
    holes = torch.nn.functional.pad(stored, (0, layout.grid.k128 - weight.k), value=-1)
    return Arrangement(layout.grid, order=holes)


def _inputs(weight: CanonicalWeight) -> torch.Tensor:
    """int32 [E, K]: the input of each column of the weight."""
    if weight.permutation is not None:
        return weight.permutation.reshape(-1, weight.k)
    inputs = torch.arange(weight.k, dtype=torch.int32, device=weight.device)
    return inputs.expand(max(weight.experts, 1), -1)


def _counts(index: torch.Tensor, groups: int) -> torch.Tensor:
    """int64 [E, groups]: how many columns each group has."""
    counts = torch.zeros(index.shape[0], groups, dtype=torch.int64, device=index.device)
    return counts.scatter_add_(1, index, torch.ones_like(index))


def _filled(counts: torch.Tensor, size: int) -> torch.Tensor:
    """Sizes of the groups with their holes."""
    return (counts + size - 1) // size * size


def _with_holes(weight: CanonicalWeight, layout: MmaLayout) -> Arrangement:
    index, size = scale_columns(weight), layout.group
    counts = _counts(index, weight.scales.shape[-1])
    filled = _filled(counts, size)
    ends = filled.cumsum(1)
    grid = BlockGrid(weight.n, max(int(ends[:, -1].max()), 1))
    # Sorted by group, a column's place is its rank among all less what lies before its group,
    # plus where the group begins.
    sources = index.argsort(dim=1, stable=True)
    groups = index.gather(1, sources)
    shift = (ends - filled) - (counts.cumsum(1) - counts)
    places = torch.arange(weight.k, device=weight.device) + shift.gather(1, groups)
    columns = torch.full((index.shape[0], grid.k128), -1, device=weight.device)
    columns.scatter_(1, places, sources)
    inputs = torch.full_like(columns, -1, dtype=torch.int32)
    inputs.scatter_(1, places, _inputs(weight).gather(1, sources))
    scales = torch.full((index.shape[0], -(-grid.k128 // size)), -1, device=weight.device)
    scales.scatter_(1, places // size, groups)
    return Arrangement(grid, columns=columns, groups=scales, order=inputs)
