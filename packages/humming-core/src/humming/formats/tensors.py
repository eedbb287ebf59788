"""Number formats on torch tensors: decode, encode, storage dtypes.

The tables are those of :mod:`humming.formats.number`; the arithmetic is repeated here in torch
so that it runs on any device.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from humming.errors import ConfigError
from humming.formats.number import Kind, NumberFormat, Specials
from humming.formats.table import number_format

__all__ = [
    "TORCH_FLOATS",
    "as_storage",
    "decode",
    "divide",
    "encode",
    "encode_scale",
    "scale_reach",
    "storage_dtype",
]

#: Formats that torch stores as themselves; all others are kept as uint8 codes.
TORCH_FLOATS: dict[str, torch.dtype] = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
}


def divide(x: torch.Tensor, divisor: float) -> torch.Tensor:
    """``x / divisor``, rounded once on every device.

    torch divides a CUDA tensor by a number by multiplying with the reciprocal, which rounds
    twice; a scale that is one bit off moves codes that lie on a tie.
    """
    return x / torch.full((), divisor, dtype=x.dtype, device=x.device)


def storage_dtype(fmt: NumberFormat) -> torch.dtype:
    """dtype in which humming keeps tensors of a format: its own from 16 bits on, else uint8."""
    return TORCH_FLOATS.get(fmt.name, torch.uint8)


def as_storage(tensor: torch.Tensor, fmt: NumberFormat) -> torch.Tensor:
    """`tensor` in :func:`storage_dtype`, reinterpreting 8-bit torch floats as their codes.

    Raises:
        ConfigError: its dtype is neither the format's torch dtype nor its storage dtype.
    """
    if tensor.dtype == storage_dtype(fmt):
        return tensor
    codes = tensor.element_size() == 1 and tensor.dtype not in (torch.bool, torch.uint8)
    if codes and number_format(tensor.dtype).name == fmt.name:
        return tensor.view(torch.uint8)
    raise ConfigError("dtype", tensor.dtype, f"{storage_dtype(fmt)} holding {fmt}")


def decode(
    codes: torch.Tensor, fmt: NumberFormat, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Values of stored codes.

    Args:
        codes: uint8 codes of any shape, or a float tensor if the format is f16, bf16 or f32.
        fmt: what the codes mean.
        dtype: of the result. Every format of at most 16 bits is exact in float32.
    """
    if fmt.name in TORCH_FLOATS:
        return codes.to(dtype)
    if fmt.kind is Kind.INTEGER and (not fmt.signed or fmt.bits == 8):
        return (codes.view(torch.int8) if fmt.signed else codes).to(dtype)
    table = _decode_table(fmt, dtype, codes.device)
    return table[codes.to(torch.int32)]


@lru_cache(maxsize=256)
def _decode_table(fmt: NumberFormat, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    # 256 entries whatever the width, so that stray high bits can't index out of range.
    values = torch.from_numpy(fmt.decode(_all_codes(fmt)))
    return values.repeat(256 // values.numel()).to(device=device, dtype=dtype)


def _all_codes(fmt: NumberFormat) -> npt.NDArray[np.uint8]:
    return np.arange(1 << fmt.bits, dtype=np.uint8)


def encode(values: torch.Tensor, fmt: NumberFormat) -> torch.Tensor:
    """Stored codes of the nearest representable values, on the device of `values`.

    Rounds to nearest, ties to even, and saturates like :meth:`NumberFormat.encode`, with one
    difference: nothing is raised here, since that would stall a GPU. NaN becomes the format's
    NaN, or 0 in a format without one.

    Args:
        values: float tensor of any shape.
        fmt: target format.

    Returns:
        uint8 codes, or a float tensor for f16, bf16 and f32.
    """
    x = values if values.dtype == torch.float64 else values.to(torch.float32)
    if fmt.name in TORCH_FLOATS:
        target = TORCH_FLOATS[fmt.name]
        limit = torch.finfo(target).max
        x = x.clamp(-limit, limit)
        return x.to(target) if target == torch.float32 else _round_to_odd(x).to(target)
    if fmt.kind is Kind.INTEGER:
        whole = torch.nan_to_num(x, nan=0.0).round().clamp(fmt.min, fmt.max)
        return (whole.to(torch.int32) & ((1 << fmt.bits) - 1)).to(torch.uint8)
    if not fmt.signed:
        x = x.clamp(min=0.0)
    nan = x.isnan()
    magnitude = torch.where(nan, torch.zeros_like(x), x).abs().contiguous()
    low = torch.bucketize(magnitude, _midpoints(fmt, x.dtype, x.device), right=False)
    high = torch.bucketize(magnitude, _midpoints(fmt, x.dtype, x.device), right=True)
    codes = torch.where(low % 2 == 0, low, high) if fmt.mantissa else high
    negative = torch.signbit(x) if fmt.signed else torch.zeros_like(nan)
    if fmt.specials is Specials.FNUZ:
        negative = negative & (codes != 0)
    codes = codes | (negative.to(codes.dtype) << (fmt.bits - 1))
    return torch.where(nan, fmt.nan_code if fmt.has_nan else 0, codes).to(torch.uint8)


def _round_to_odd(x: torch.Tensor) -> torch.Tensor:
    """float64 as a float32 whose last bit says "inexact": the next rounding is the only one.

    torch narrows float64 through float32; rounding twice would turn what lies just beside a
    midpoint into a tie. Truncating and setting the last bit keeps it on its side.
    """
    if x.dtype != torch.float64:
        return x
    near = x.to(torch.float32)
    exact = near.to(torch.float64)
    bits = near.view(torch.int32)
    # Float bits are ordered like integers, sign apart: one less is the next towards zero.
    bits = torch.where(exact.abs() > x.abs(), bits - 1, bits)
    odd = torch.where((exact != x) & x.isfinite(), bits | 1, bits)
    return odd.view(torch.float32)


@lru_cache(maxsize=256)
def _midpoints(fmt: NumberFormat, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    half = fmt.decode(_all_codes(fmt))[: 1 << (fmt.bits - int(fmt.signed))]
    grid = torch.from_numpy(half)
    grid = grid[grid.isfinite()]
    middle = (grid[:-1] + grid[1:]) / 2  # exact in float32 too: at most 9 significant bits
    return middle.to(device=device, dtype=dtype)


def encode_scale(scales: torch.Tensor, fmt: NumberFormat) -> torch.Tensor:
    """Stored scales, of weights and activations alike: never zero, since codes divide by them.

    e8m0 rounds up, so that nothing under the scale saturates; every other format to nearest.
    Zero becomes 1 in e8m0, which has no zero, and the smallest positive value elsewhere.
    Inf becomes NaN in e8m0 and saturates elsewhere; NaN stays NaN.

    Args:
        scales: float, zero or positive.
        fmt: a scale format.
    """
    if fmt.name == "e8m0":
        # ceil(log2(scale)) exactly: frexp gives scale = m * 2^e with 0.5 <= m < 1.
        mantissa, exponent = torch.frexp(scales)
        up = exponent - (mantissa == 0.5).to(exponent.dtype) + fmt.bias
        codes = torch.where(scales > 0, up, torch.full_like(up, fmt.bias)).clamp(0, 254)
        return torch.where(scales.isfinite(), codes, fmt.nan_code).to(torch.uint8)
    stored = encode(scales, fmt)
    if fmt.bits == 8:
        return stored.clamp(min=1)  # code 1 is the smallest positive value
    tiny = torch.finfo(storage_dtype(fmt)).tiny
    return torch.where(stored == 0, torch.full_like(stored, tiny), stored)


def scale_reach(fmt: NumberFormat) -> float:
    """The largest first-level scale that a second level provides for.

    Narrow formats are used up to their end. Those that hold the range anyway end at 1.
    """
    return fmt.max if fmt.bits == 8 and fmt.name != "e8m0" else 1.0
