"""From the standard form of a weight to the tensors that the kernels read, by torch alone."""

from __future__ import annotations

import torch

from humming.backend import PackedWeight
from humming.configs import LayerConfig
from humming.errors import ConfigError
from humming.formats.number import Specials
from humming.packing import unpack
from humming.weight import CanonicalWeight
from humming_sm75_sm89.layout import BLOCK, PANEL, BlockGrid, MmaLayout
from humming_sm75_sm89.order import Arrangement, arrange
from humming_sm75_sm89.scales import (
    pack_channel,
    pack_rows,
    pack_scales,
    pack_zeros,
    spoil_rows,
)

__all__ = ["check_weight", "pack_beside", "pack_codes", "pack_weight", "rows_with_nan"]

#: Codes that are rearranged at a time: what bounds the memory that packing takes.
_CHUNK_CODES = 64 << 20


def pack_weight(weight: CanonicalWeight, layer: LayerConfig, layout: MmaLayout) -> PackedWeight:
    """A weight in `layout`, on its own device.

    Args:
        weight: what :func:`~humming_sm75_sm89.order.fitted` gave.
        layer: its layer.
        layout: of that layer, by :func:`~humming_sm75_sm89.layout.layout_of`.

    Raises:
        ConfigError: the weight is not the layer's, or is cut in a scale block.
    """
    check_weight(weight, layer, layout)
    arrangement = arrange(weight, layout)
    tensors = {"weight": pack_codes(weight, layout, arrangement)}
    return PackedWeight(str(layout), tensors | pack_beside(weight, layout, arrangement))


def check_weight(weight: CanonicalWeight, layer: LayerConfig, layout: MmaLayout) -> None:
    """Raise a ConfigError unless the weight is what layer and layout say."""
    rows: list[tuple[str, object, object]] = [
        ("n", weight.n, layer.n),
        ("k", weight.k, layer.k),
        ("experts", weight.experts, layer.experts),
        ("scheme", str(weight.scheme), str(layer.weight)),
        ("bias", weight.bias is not None, layer.bias),
        ("act_order", weight.permutation is not None, layer.act_order),
        ("layout", (layout.n, layout.k, layout.experts), (layer.n, layer.k, layer.experts)),
        ("layout", str(layout.weight), str(layer.weight)),
    ]
    for field, found, expected in rows:
        if found != expected:
            raise ConfigError(field, found, f"{expected}, as the layer says")


def pack_beside(
    weight: CanonicalWeight, layout: MmaLayout, arrangement: Arrangement
) -> dict[str, torch.Tensor]:
    """All packed tensors but the codes."""
    tensors = {}
    if layout.has_scales:
        tensors["scales"] = pack_scales(weight, layout, arrangement)
    if layout.has_zeros:
        tensors["zeros"] = pack_zeros(weight, layout, arrangement)
    if layout.has_channel:
        tensors["channel"] = pack_channel(weight, layout)
    if layout.code != layout.weight.code:
        spoil_rows(tensors, rows_with_nan(weight), layout)
    if weight.bias is not None:
        tensors["bias"] = pack_rows(weight.bias, layout)
    if layout.has_order:
        assert arrangement.order is not None, "arrange() makes one if the layout has one"
        tensors["order"] = arrangement.order.contiguous()
    return tensors


def rows_with_nan(weight: CanonicalWeight) -> torch.Tensor:
    """Whether a row has a code that is NaN, bool [E, N]; of formats where no other is special."""
    code = weight.scheme.code
    packed = weight.packed.reshape(-1, *weight.packed.shape[-2:])
    found = torch.empty(packed.shape[:2], dtype=torch.bool, device=weight.device)
    chunk = max(1, _CHUNK_CODES // weight.k)
    sign = 1 << (code.bits - 1)
    for expert, rows in enumerate(packed):
        for first in range(0, weight.n, chunk):
            codes = unpack(rows[first : first + chunk], code.bits, weight.k)
            if code.specials is Specials.FNUZ:
                nan = codes == sign
            else:
                nan = codes.bitwise_and(sign - 1) == sign - 1
            found[expert, first : first + chunk] = nan.any(dim=1)
    return found


def pack_codes(
    weight: CanonicalWeight, layout: MmaLayout, arrangement: Arrangement
) -> torch.Tensor:
    """The codes, int32 [E, words]."""
    grid = arrangement.grid
    packed = weight.packed.reshape(-1, *weight.packed.shape[-2:])
    shape = (layout.lead, grid.panels * grid.blocks, 32 * layout.planes.words)
    out = torch.empty(shape, dtype=torch.int32, device=weight.device)
    chunk = max(1, _CHUNK_CODES // (PANEL * grid.k128))
    for expert in range(layout.lead):
        columns = None if arrangement.columns is None else arrangement.columns[expert]
        for first in range(0, grid.panels, chunk):
            rows = packed[expert, PANEL * first : PANEL * (first + chunk)]
            codes = _stored(unpack(rows, weight.scheme.code.bits, weight.k), columns, grid)
            _store(_blocks(codes, layout), out[expert], first, grid)
    return out.flatten(1)


def _stored(codes: torch.Tensor, columns: torch.Tensor | None, grid: BlockGrid) -> torch.Tensor:
    """[rows, K] in the order of stored columns, with code 0 for what is padded."""
    rows = -codes.shape[0] % PANEL
    if columns is None:
        return torch.nn.functional.pad(codes, (0, grid.k128 - codes.shape[1], 0, rows))
    sorted_codes = codes.index_select(1, columns.clamp(min=0)).masked_fill_(columns < 0, 0)
    return torch.nn.functional.pad(sorted_codes, (0, 0, 0, rows))


def _blocks(codes: torch.Tensor, layout: MmaLayout) -> torch.Tensor:
    """[64 * P, 64 * B] codes to the words of blocks, [P, B, words]."""
    unit = layout.unit
    panels, blocks = codes.shape[0] // PANEL, codes.shape[1] // BLOCK
    #      0 panel, 1 tile, 2 half, 3 lane / 4, 4 block, 5 s, 6 half of k, 7 lane % 4, 8 element
    view = codes.reshape(panels, 4, 2, 8, blocks, layout.steps, 2, 4, unit)
    lanes = view.permute(0, 4, 3, 7, 1, 5, 6, 2, 8).reshape(panels, blocks, 32, -1)
    words = layout.planes.pack(lanes).view(panels, blocks, 32, layout.planes.bits, 4)
    # Load i of all lanes lies together: 32 times 16 bytes.
    return words.transpose(2, 3).reshape(panels, blocks, -1)


def _store(blocks: torch.Tensor, out: torch.Tensor, panel: int, grid: BlockGrid) -> None:
    """Put the blocks of some panels, from `panel` on, where :meth:`BlockGrid.position` says."""
    count = blocks.shape[0]
    for first, width in grid.windows():
        start = grid.position(panel, first)
        part = blocks[:, first : first + width]
        out[start : start + count * width].unflatten(0, (count, width)).copy_(part)
