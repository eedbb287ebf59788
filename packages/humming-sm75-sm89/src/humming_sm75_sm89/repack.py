"""The kernel that lays out codes on the device; :mod:`.packing` does the same by torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from humming.backend import Arg, KernelSpec, LaunchShape, RepackSpec
from humming.configs import LayerConfig
from humming.layouts import PlaneLayout
from humming.weight import CanonicalWeight
from humming_sm75_sm89.layout import BlockGrid, MmaLayout
from humming_sm75_sm89.order import arrange
from humming_sm75_sm89.packing import check_weight, pack_beside

__all__ = ["RepackContext", "repack_spec"]

#: Twins of Repack::kWarps and kThreads: blocks of a CTA, one per warp.
_BLOCKS = 8
_THREADS = 32 * _BLOCKS
#: Grids have at most so many CTAs in y (panels) and z (experts).
_MAX_GRID = 65535
_INT32 = 2**31

_ARGS = (
    Arg("packed", "ptr"),
    Arg("out", "ptr"),
    Arg("columns", "ptr"),
    Arg("n", "i32"),
    Arg("k", "i32"),
    Arg("blocks", "i32"),
)


@dataclass(frozen=True, kw_only=True)
class RepackContext:
    """The variables of ``templates/repack.cu.j2``.

    Attributes:
        name: of the kernel, for people.
        planes: where the bits of codes go.
        wide: whether all rows begin at multiples of 16 bytes.
        gathers: whether columns change their order.
    """

    name: str
    planes: PlaneLayout
    wide: bool
    gathers: bool


def repack_spec(
    weight: CanonicalWeight, layer: LayerConfig, layout: MmaLayout, arch: str
) -> RepackSpec | None:
    """The launch that makes the tensor "weight" of :func:`~.packing.pack_weight`.

    Args:
        weight: what :func:`~humming_sm75_sm89.order.fitted` gave.
        layer: its layer.
        layout: of that layer.
        arch: of the device, as the compiler spells it.

    Returns:
        None if the weight is too large for the kernel's integers.

    Raises:
        ConfigError: as :func:`~.packing.pack_weight`.
    """
    check_weight(weight, layer, layout)
    arrangement = arrange(weight, layout)
    grid, columns = arrangement.grid, arrangement.columns
    if not _fits(weight, grid):
        return None
    shape = LaunchShape(
        grid=(-(-grid.blocks // _BLOCKS), grid.panels, layout.lead), block=(_THREADS, 1, 1)
    )
    return RepackSpec(
        kernel=_kernel(weight, layout, arch, shape, gathers=columns is not None),
        values={
            "columns": None if columns is None else columns.to(torch.int32).contiguous(),
            "n": weight.n,
            "k": weight.k,
            "blocks": grid.blocks,
        },
        shape=shape,
        name="weight",
        out_shape=(layout.lead, layout.words(grid)),
        beside=pack_beside(weight, layout, arrangement),
    )


def _kernel(
    weight: CanonicalWeight, layout: MmaLayout, arch: str, shape: LaunchShape, *, gathers: bool
) -> KernelSpec:
    packed = weight.packed
    # A copy that makes it contiguous begins where an allocation does.
    starts = packed.data_ptr() if packed.is_contiguous() else 0
    wide = not gathers and starts % 16 == 0 and packed.shape[-1] % 16 == 0
    how = "order" if gathers else "wide" if wide else "any"
    kind = str(layout.planes).removeprefix("planes/").replace("-", "_")
    name = f"sm75_sm89.repack.{kind}_{how}"
    return KernelSpec(
        name=name,
        template="humming_sm75_sm89/repack.cu.j2",
        context=RepackContext(name=name, planes=layout.planes, wide=wide, gathers=gathers),
        arch=arch,
        args=_ARGS,
        launch=lambda problem, layer: shape,
    )


def _fits(weight: CanonicalWeight, grid: BlockGrid) -> bool:
    """Bits of a row are counted in 32 bits, with some room."""
    row = max(weight.k, grid.k128) * weight.scheme.code.bits
    return row < _INT32 - 2**16 and grid.panels <= _MAX_GRID and weight.experts <= _MAX_GRID
