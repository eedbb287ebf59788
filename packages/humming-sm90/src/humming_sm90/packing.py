"""From the standard form of a weight to the tensors that the kernels read, by torch alone."""

from __future__ import annotations

import dataclasses

import torch

from humming.backend import PackedWeight
from humming.configs import LayerConfig
from humming.errors import ConfigError, UnsupportedError
from humming.formats.scheme import Granularity
from humming.formats.tensors import decode
from humming.packing import unpack
from humming.weight import CanonicalWeight
from humming_sm90.layout import BLOCK, GROUP, PANEL, WgmmaLayout

__all__ = ["fitted", "pack_weight"]


def fitted(weight: CanonicalWeight, layer: LayerConfig) -> tuple[CanonicalWeight, LayerConfig]:
    """The same weight in a form that has a layout, and its layer.

    Almost every weight comes back as it is. A tensor-parallel cut along N inside a block of rows
    gets scales for every row.

    Raises:
        UnsupportedError: a cut along K inside a group of columns.
    """
    granularity = weight.scheme.granularity
    if granularity.k and weight.offset[1]:
        raise UnsupportedError(
            f"a cut along K {weight.offset[1]} columns into a group of {granularity.k}: scales are "
            f"applied every {GROUP} columns from the first on"
        )
    if granularity.n != BLOCK or not weight.offset[0]:
        return weight, layer
    scheme = dataclasses.replace(weight.scheme, granularity=Granularity.group(granularity.k))
    rows = _per_row(weight.scales, weight)
    fit = weight.replace(scheme=scheme, offset=(0, 0), scales=rows)
    return fit, dataclasses.replace(layer, weight=scheme)


def pack_weight(weight: CanonicalWeight, layer: LayerConfig, layout: WgmmaLayout) -> PackedWeight:
    """A weight in `layout`, on its own device.

    Args:
        weight: what :func:`fitted` gave.
        layer: its layer.
        layout: of that layer, by :func:`~humming_sm90.layout.layout_of`.

    Raises:
        ConfigError: the weight is not the layer's.
    """
    _check(weight, layer)
    tensors = {"weight": _codes(weight, layout)}
    if layout.scale_rows:
        tensors["scales"] = _scales(weight, layout)
    if layout.has_channel:
        tensors["channel"] = _channel(weight, layout)
    if weight.bias is not None:
        tensors["bias"] = _rows(weight.bias, layout)
    return PackedWeight(str(layout), tensors)


def _check(weight: CanonicalWeight, layer: LayerConfig) -> None:
    rows: list[tuple[str, object, object]] = [
        ("n", weight.n, layer.n),
        ("k", weight.k, layer.k),
        ("experts", weight.experts, layer.experts),
        ("scheme", str(weight.scheme), str(layer.weight)),
        ("bias", weight.bias is not None, layer.bias),
        ("act_order", weight.permutation is not None, layer.act_order),
        ("group_index", weight.group_index is not None, False),
    ]
    for field, found, expected in rows:
        if found != expected:
            raise ConfigError(field, found, f"{expected}, as the layer says")


def _codes(weight: CanonicalWeight, layout: WgmmaLayout) -> torch.Tensor:
    """uint8 [E, P, G, 64, 128]"""
    codes = unpack(weight.packed, weight.scheme.code.bits, weight.k)
    rows = codes.reshape(layout.lead, layout.n, layout.k)
    padding = (0, layout.k128 - layout.k, 0, layout.panels * PANEL - layout.n)
    if any(padding):
        rows = torch.nn.functional.pad(rows, padding)
    shape = layout.lead, layout.panels, PANEL, layout.groups, GROUP
    return rows.reshape(shape).transpose(2, 3).contiguous()


def _scales(weight: CanonicalWeight, layout: WgmmaLayout) -> torch.Tensor:
    """float32 [E, G, n256 / scale_rows]"""
    blocks = weight.scales if layout.scale_rows > 1 else _per_row(weight.scales, weight)
    values = decode(blocks, weight.scheme.scale)
    values = values.reshape(layout.lead, *values.shape[-2:]).transpose(1, 2)
    out = values.new_zeros((layout.lead, layout.groups, layout.n256 // layout.scale_rows))
    out[:, :, : values.shape[2]] = values
    return out


def _channel(weight: CanonicalWeight, layout: WgmmaLayout) -> torch.Tensor:
    """The product of all scales that a whole row has, float32 [E, n256]"""
    factor: torch.Tensor | None = None
    if not layout.scale_rows:
        factor = decode(_per_row(weight.scales, weight), weight.scheme.scale)
    if weight.second is not None:
        factor = weight.second if factor is None else factor * weight.second
    assert factor is not None, "a layout has a channel factor if one of these is there"
    return _rows(factor.expand(*weight.shape[:-1], 1).squeeze(-1), layout)


def _rows(values: torch.Tensor, layout: WgmmaLayout) -> torch.Tensor:
    """One number per row, [N] or [E, N], as float32 [E, n256]"""
    out = values.new_zeros((layout.lead, layout.n256), dtype=torch.float32)
    out[:, : layout.n] = values
    return out


def _per_row(blocks: torch.Tensor, weight: CanonicalWeight) -> torch.Tensor:
    """[.., R, C] to [.., N, C]"""
    size = weight.scheme.granularity.n
    if size == 1:
        return blocks
    rows = torch.arange(weight.n, device=weight.device) + weight.offset[0]
    return blocks.index_select(-2, rows // size if size else torch.zeros_like(rows))
