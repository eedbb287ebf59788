"""Scales that are powers of two, as one per row and small ones per block.

e2m1 times 2^-5 to 2^6 is a normal number of e4m3fn, so that kernels decode to such products. A row
whose scales lie no further apart is divided by a power of two, which its channel factor has.
"""

from __future__ import annotations

import torch

from humming.packing import pack, unpack
from humming.weight import CanonicalWeight
from humming_sm75_sm89.scaling import scale_columns, scale_rows

__all__ = [
    "LARGEST_POWER",
    "SMALLEST_POWER",
    "cleared",
    "divided",
    "row_powers",
    "used_blocks",
    "values_of",
]

#: Exponents of the scales that are left.
LARGEST_POWER, SMALLEST_POWER = 6, -5

_BIAS = 127
_NAN = 255


def row_powers(weight: CanonicalWeight) -> torch.Tensor | None:
    """int32 [.., R, 1]: what each scale row of e8m0 is divided by, as an exponent.

    Blocks without any code but zeros don't count.

    Returns:
        None if some row's scales lie too far apart or are NaN, or a second-level scale has no room.
    """
    codes = weight.scales.to(torch.int32)
    powers = _powers(codes, torch.ones_like(codes, dtype=torch.bool))
    if powers is None:
        powers = _powers(codes, used_blocks(weight))
    if powers is None or weight.second is None:
        return powers
    rows = scale_rows(weight)
    of_rows = powers if rows is None else powers.index_select(-2, rows)
    moved = weight.second * values_of(of_rows)
    same = moved * values_of(-of_rows) == weight.second
    return powers if bool((same | weight.second.isnan()).all()) else None


def values_of(powers: torch.Tensor) -> torch.Tensor:
    """2^powers in float32, for exponents of normal numbers."""
    return ((powers + _BIAS) << 23).view(torch.float32)


def divided(scales: torch.Tensor, powers: torch.Tensor) -> torch.Tensor:
    """Codes of e8m0 [.., R, C] divided by the powers of their rows, and then within the range."""
    left = scales.to(torch.int32) - powers
    return left.clamp(_BIAS + SMALLEST_POWER, _BIAS + LARGEST_POWER).to(torch.uint8)


def used_blocks(weight: CanonicalWeight) -> torch.Tensor:
    """bool [.., R, C]: whether a block of e2m1 has anything but zeros."""
    shape = (max(weight.experts, 1), *weight.scales.shape[-2:])
    found = torch.zeros(shape, dtype=torch.bool, device=weight.device)
    rows, columns = scale_rows(weight), scale_columns(weight)
    packed = weight.packed.reshape(shape[0], weight.n, -1)
    target = torch.arange(weight.n, device=weight.device) if rows is None else rows
    for expert in range(shape[0]):
        sizes = unpack(packed[expert], weight.scheme.code.bits, weight.k) & 7
        of_columns = sizes.new_zeros(weight.n, shape[-1])
        index = columns[expert].expand(weight.n, -1)
        of_columns.scatter_reduce_(1, index, sizes, "amax")
        blocks = sizes.new_zeros(shape[1:])
        blocks.scatter_reduce_(0, target.unsqueeze(1).expand_as(of_columns), of_columns, "amax")
        found[expert] = blocks > 0
    return found.view(weight.scales.shape)


def cleared(weight: CanonicalWeight, blocks: torch.Tensor) -> CanonicalWeight:
    """The weight with codes 0 in some scale blocks, bool [.., R, C]."""
    bits, rows, columns = weight.scheme.code.bits, scale_rows(weight), scale_columns(weight)
    packed = weight.packed.clone()
    for expert, matrix in enumerate(packed.view(-1, *packed.shape[-2:])):
        chosen = blocks.reshape(-1, *blocks.shape[-2:])[expert]
        of_rows = chosen if rows is None else chosen.index_select(0, rows)
        codes = unpack(matrix, bits, weight.k)
        codes.masked_fill_(of_rows.index_select(1, columns[expert]), 0)
        matrix.copy_(pack(codes, bits))
    return weight.replace(packed=packed)


def _powers(codes: torch.Tensor, used: torch.Tensor) -> torch.Tensor | None:
    """The powers nearest to 0 that bring what is used into the range."""
    lowest = codes.masked_fill(~used, _NAN).amin(-1, keepdim=True)
    highest = codes.masked_fill(~used, -1).amax(-1, keepdim=True)
    nothing = highest < 0
    lowest, highest = (t.masked_fill(nothing, _BIAS) for t in (lowest, highest))
    too_far = highest - lowest > LARGEST_POWER - SMALLEST_POWER
    if bool((too_far | (highest == _NAN)).any()):
        return None
    zero = torch.zeros_like(highest)
    least = highest - _BIAS - LARGEST_POWER
    return zero.clamp(min=least, max=lowest - _BIAS - SMALLEST_POWER)
