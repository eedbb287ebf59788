"""Back from packed tensors to codes and numbers: what a kernel computes with, for tests.

:func:`dequantize` knows packed tensors and the layout alone, so it checks packing.
"""

from __future__ import annotations

import torch

from humming.backend import PackedWeight
from humming.errors import LayoutMismatch
from humming.formats.scheme import Zero
from humming.formats.tensors import decode
from humming_sm75_sm89.layout import BLOCK, PANEL, BlockGrid, MmaLayout

__all__ = ["dequantize", "unpack_weight"]


def unpack_weight(packed: PackedWeight, layout: MmaLayout) -> torch.Tensor:
    """uint8 codes [E, n64, k128] in the order of stored columns.

    Raises:
        LayoutMismatch: the weight is packed in another layout.
    """
    if packed.layout != str(layout):
        raise LayoutMismatch(packed.layout, str(layout))
    grid, bits = _grid(packed, layout), layout.weight.code.bits
    blocks = packed.tensors["weight"].view(layout.lead, -1, bits, 32, 4)
    codes = layout.planes.unpack(blocks.transpose(2, 3).flatten(3))
    positions = [grid.position(p, b) for p in range(grid.panels) for b in range(grid.blocks)]
    lanes = codes[:, torch.tensor(positions, device=codes.device)]
    shape = (grid.panels, grid.blocks, 8, 4, 4, layout.steps, 2, 2, layout.unit)
    view = lanes.reshape(layout.lead, *shape)
    #     [E, panel, tile, half, lane / 4, block, s, half of k, lane % 4, element]
    rows = view.permute(0, 1, 5, 8, 3, 2, 6, 7, 4, 9)
    return rows.reshape(layout.lead, grid.panels * PANEL, grid.blocks * BLOCK)


def dequantize(packed: PackedWeight, layout: MmaLayout) -> torch.Tensor:
    """The matrix [.., N, K] of a packed weight in float64, in the order of the inputs."""
    tensors, scheme = packed.tensors, layout.weight
    values = decode(unpack_weight(packed, layout), scheme.code, torch.float64) - scheme.midpoint
    columns = torch.arange(values.shape[-1], device=values.device)
    if layout.has_zeros and scheme.zero is Zero.INTEGER:
        zeros = tensors["zeros"].to(torch.float64)
        values -= _natural(zeros)[:, :, columns // layout.zero_group]
    if layout.has_scales:
        scales = decode(tensors["scales"], layout.scale, torch.float64)
        values *= _natural(scales)[:, :, columns // layout.group]
    if layout.has_zeros and scheme.zero is Zero.FLOAT:
        zeros = decode(tensors["zeros"], layout.scale, torch.float64)
        values += _natural(zeros)[:, :, columns // layout.zero_group]
    if layout.has_channel:
        values *= tensors["channel"].to(torch.float64).unsqueeze(-1)
    values = values[:, : layout.n]
    if layout.has_order:
        # Holes go to a column behind the last.
        order = tensors["order"].long() % (layout.k + 1)
        result = values.new_zeros((*values.shape[:2], layout.k + 1))
        values = result.scatter_(2, order.unsqueeze(1).expand_as(values), values)
    values = values[:, :, : layout.k]
    return values if layout.experts else values[0]


def _grid(packed: PackedWeight, layout: MmaLayout) -> BlockGrid:
    stored = packed.tensors["order"].shape[-1] if layout.has_order else layout.k
    return BlockGrid(layout.n, stored)


def _natural(panels: torch.Tensor) -> torch.Tensor:
    """[E, G, NP, 64] in panel order to [E, n64, G]."""
    lanes = panels.reshape(*panels.shape[:3], 8, PANEL // 8)
    return lanes.transpose(-1, -2).reshape(*panels.shape[:2], -1).transpose(1, 2)
