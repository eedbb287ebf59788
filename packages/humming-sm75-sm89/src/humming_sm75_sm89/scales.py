"""The packed tensors beside the codes: scales, zero points, and what the epilogue applies."""

from __future__ import annotations

import torch

from humming.errors import ConfigError
from humming.formats.tensors import decode, encode
from humming.weight import CanonicalWeight
from humming_sm75_sm89.layout import PANEL, MmaLayout
from humming_sm75_sm89.order import Arrangement
from humming_sm75_sm89.powers import divided, row_powers, values_of
from humming_sm75_sm89.scaling import scale_rows

__all__ = ["pack_channel", "pack_rows", "pack_scales", "pack_zeros", "spoil_rows"]


def pack_scales(
    weight: CanonicalWeight, layout: MmaLayout, arrangement: Arrangement
) -> torch.Tensor:
    """The scales of groups of columns, [E, G, NP, 64] in panel order."""
    scales = weight.scales
    if layout.has_powers:
        scales = divided(scales, _powers(weight))
    elif weight.scheme.scale != layout.scale:
        scales = encode(decode(scales, weight.scheme.scale), layout.scale)
    return _panels(scales, weight, layout.group, arrangement)


def pack_zeros(
    weight: CanonicalWeight, layout: MmaLayout, arrangement: Arrangement
) -> torch.Tensor:
    """The zero points, [E, Gz, NP, 64] in panel order."""
    assert weight.zeros is not None, "a layout has zeros if the scheme has"
    return _panels(weight.zeros, weight, layout.zero_group, arrangement)


def pack_channel(weight: CanonicalWeight, layout: MmaLayout) -> torch.Tensor:
    """The product of all scales that a whole row has, float32 [E, n64]."""
    factor: torch.Tensor | None = None
    if not layout.has_scales:
        factor = decode(_per_row(weight.scales, weight), weight.scheme.scale)
    if layout.has_powers:
        factor = values_of(_per_row(_powers(weight), weight))
    if weight.second is not None:
        factor = weight.second if factor is None else factor * weight.second
    assert factor is not None, "a layout has a channel factor if one of these is there"
    return pack_rows(factor.expand(*weight.shape[:-1], 1).squeeze(-1), layout)


def pack_rows(values: torch.Tensor, layout: MmaLayout) -> torch.Tensor:
    """One number per row, [N] or [E, N], as float32 [E, n64]."""
    out = values.new_zeros((layout.lead, layout.grid.n64), dtype=torch.float32)
    out[:, : layout.n] = values
    return out


def spoil_rows(tensors: dict[str, torch.Tensor], rows: torch.Tensor, layout: MmaLayout) -> None:
    """Make a scale of these rows NaN: the one of the whole row, or the first of its groups.

    Args:
        tensors: those beside the codes, packed.
        rows: which, bool [E, N].
        layout: theirs, whose `code` is not the weight's.
    """
    if layout.has_channel:
        tensors["channel"][:, : layout.n].masked_fill_(rows, torch.nan)
        return
    every = rows.new_zeros((layout.lead, layout.grid.n64))
    every[:, : layout.n] = rows
    tensors["scales"][:, 0].masked_fill_(_lanes(every), torch.nan)


def _powers(weight: CanonicalWeight) -> torch.Tensor:
    powers = row_powers(weight)
    if powers is None:
        raise ConfigError("scales", "powers of two far apart", "a weight that fitted() gave")
    return powers


def _per_row(blocks: torch.Tensor, weight: CanonicalWeight) -> torch.Tensor:
    """[.., R, C] to [.., N, C]."""
    rows = scale_rows(weight)
    return blocks if rows is None else blocks.index_select(-2, rows)


def _panels(
    blocks: torch.Tensor, weight: CanonicalWeight, group: int, arrangement: Arrangement
) -> torch.Tensor:
    """[.., R, C] to [E, G, NP, 64] in panel order, zero where there is nothing."""
    grid, picked = arrangement.grid, arrangement.groups
    blocks = blocks.reshape(-1, *blocks.shape[-2:])
    if picked is not None:
        index = picked.clamp(min=0).unsqueeze(1).expand(-1, blocks.shape[1], -1)
        blocks = blocks.gather(2, index).masked_fill(picked.unsqueeze(1) < 0, 0)
    rows = _per_row(blocks, weight).transpose(1, 2)
    out = blocks.new_zeros((blocks.shape[0], -(-grid.k128 // group), grid.n64))
    out[:, : rows.shape[1], : grid.n] = rows
    return _lanes(out)


def _lanes(rows: torch.Tensor) -> torch.Tensor:
    """[.., n64] to [.., NP, 64] in panel order."""
    lanes = rows.reshape(*rows.shape[:-1], -1, 8, PANEL // 8).transpose(-1, -2)
    return lanes.reshape(*rows.shape[:-1], -1, PANEL)
