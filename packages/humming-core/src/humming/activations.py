"""Quantization of activations: the exact semantics, in torch, on any device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from humming.blocks import spread
from humming.errors import ConfigError
from humming.formats.activation import LARGEST_HADAMARD, ActivationScheme
from humming.formats.number import NumberFormat
from humming.formats.tensors import decode, divide, encode, encode_scale, scale_reach

__all__ = [
    "QuantizedActivation",
    "hadamard",
    "hadamard_factor",
    "quantize_activation",
    "quantize_rows",
]


@dataclass(frozen=True, kw_only=True)
class QuantizedActivation:
    """Activations [M, K] as codes under scales.

    Attributes:
        scheme: what they mean.
        codes: uint8 [M, K], one code per byte.
        scales: [1, 1], [M, 1] or [M, ceil(K / g)] in the storage dtype of the scale format.
        second: float32 [1, 1] or [M, 1]; None without a second level.
        invalid: bool [M, K], where the input was NaN; None if nowhere.
    """

    scheme: ActivationScheme
    codes: torch.Tensor
    scales: torch.Tensor
    second: torch.Tensor | None = None
    invalid: torch.Tensor | None = None

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The values [M, K]: code * scale * second, NaN where the input was NaN."""
        assert self.scheme.scale is not None, "quantize_activation() checked it"
        values = decode(self.codes, self.scheme.format, dtype)
        scales = decode(self.scales, self.scheme.scale, dtype)
        group = self.scheme.group_size
        if group:
            scales = spread(scales, 1, group, values.shape[1])
        values = values * scales
        if self.second is not None:
            values = values * self.second.to(dtype)
        return values if self.invalid is None else values.masked_fill(self.invalid, torch.nan)


def quantize_activation(
    x: torch.Tensor, scheme: ActivationScheme, input_scale: torch.Tensor | None = None
) -> QuantizedActivation:
    """Quantize activations as a layer with this scheme does.

    A dynamic scale is amax / max, with amax the largest magnitude of the token, tensor or group
    and max the format's largest value (2^(b-1) - 1 for integers), computed in float32 and
    rounded to the scale format, e8m0 upwards so that nothing saturates. Under a second level t
    it is amax / (max * t), and t is ``input_scale`` if static, else amax / (max * scale_max) of
    the token or tensor (scale_max counts as 1 in e8m0, f16, bf16 and f32). Codes are
    x / (scale * t) rounded to nearest even, saturating. Where amax is 0 the codes are 0. A NaN
    stays NaN; a dynamic f32 scale makes NaN of all that shares it with an Inf or NaN. With a
    Hadamard transform all of that is of what :func:`hadamard` gives.

    Args:
        x: float [M, K].
        scheme: a quantizing scheme.
        input_scale: float32 scalar, the stored scale of a static scheme.

    Raises:
        ConfigError: not [M, K] floats, a scheme that does not quantize, or no stored scale.
    """
    if x.dim() != 2 or not x.is_floating_point():
        raise ConfigError("x", f"{x.dtype} {list(x.shape)}", "a float tensor [M, K]")
    if not scheme.is_quantized or scheme.scale is None:
        raise ConfigError("activation", str(scheme), "a scheme that quantizes")
    if scheme.static and (input_scale is None or input_scale.numel() != 1):
        raise ConfigError("input_scale", input_scale, f"one stored scale, for {scheme}")
    found = quantize_rows(x, scheme, input_scale)
    if found.invalid is None or bool(found.invalid.any()):
        return found
    return replace(found, invalid=None)


def quantize_rows(
    x: torch.Tensor, scheme: ActivationScheme, input_scale: torch.Tensor | None = None
) -> QuantizedActivation:
    """:func:`quantize_activation` of checked arguments, without waiting for a device.

    `invalid` is there even if it is False everywhere, and `input_scale` may have a scale per row,
    as rows of different experts have them.
    """
    assert scheme.scale is not None, "a scheme that quantizes has a scale format"
    if scheme.hadamard:
        x = hadamard(x, scheme.hadamard)
    wide = x.to(torch.float32)
    top = scheme.format.max
    second: torch.Tensor | None = None
    if scheme.second:
        second = _outer(wide, scheme.second, top * scale_reach(scheme.scale), input_scale)
    if scheme.granularity == "tensor" and scheme.static:
        scales = _outer(wide, "tensor", top, input_scale)
    elif scheme.group_size:
        amax = _group_amax(wide, scheme.group_size)
        scales = divide(amax, top) if second is None else amax / (top * second)
    else:
        scales = _outer(wide, scheme.granularity, top, None)
    stored = encode_scale(scales, scheme.scale)
    divisor = decode(stored, scheme.scale)
    if scheme.group_size:
        divisor = spread(divisor, 1, scheme.group_size, x.shape[1])
    if second is not None:
        divisor = divisor * second
    codes = encode(_clamp_integer(wide / divisor, scheme.format), scheme.format)
    return QuantizedActivation(
        scheme=scheme, codes=codes, scales=stored, second=second, invalid=wide.isnan()
    )


def hadamard(x: torch.Tensor, block: int) -> torch.Tensor:
    """The orthonormal Walsh-Hadamard transform of every `block` neighbours of a row.

    It is its own inverse, and turns an outlier into `block` numbers of usual size. Computed in
    float32, as sums and differences at distances 1, 2, 4 and so on and then one factor, and rounded
    once to the dtype of x: kernels give the same bits.

    Args:
        x: float [.., K].
        block: a power of two from 2 to 512, of which K is a multiple.

    Raises:
        ConfigError: another block, or no floats.
    """
    factor = hadamard_factor(block)
    if not x.is_floating_point() or not x.dim() or x.shape[-1] % block:
        found = f"{x.dtype} {list(x.shape)}"
        raise ConfigError("x", found, f"a float tensor of rows that are multiples of {block}")
    values = x.to(torch.float32)
    distance = 1
    while distance < block:
        pairs = values.unflatten(-1, (-1, 2, distance))
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        values = torch.stack((first + second, first - second), dim=-2).flatten(-3)
        distance *= 2
    return (values * factor).to(x.dtype)


def hadamard_factor(block: int) -> float:
    """What :func:`hadamard` multiplies by, of blocks that it transforms.

    Raises:
        ConfigError: it does not.
    """
    if not 2 <= block <= LARGEST_HADAMARD or block & (block - 1):
        raise ConfigError("hadamard", block, f"a power of two from 2 to {LARGEST_HADAMARD}")
    return float(torch.tensor(block, dtype=torch.float64).rsqrt().to(torch.float32))


def _clamp_integer(x: torch.Tensor, fmt: NumberFormat) -> torch.Tensor:
    """Integers use the symmetric range: -2^(b-1) would make -x and x round differently."""
    return x.clamp(-fmt.max, fmt.max) if fmt.is_integer else x


def _outer(
    x: torch.Tensor, granularity: str, top: float, stored: torch.Tensor | None
) -> torch.Tensor:
    """Scale per tensor [1, 1] or per token [M, 1]: the stored ones, or amax / top."""
    if granularity == "tensor" and stored is not None:
        return stored.to(device=x.device, dtype=torch.float32).reshape(-1, 1)
    if granularity == "tensor":
        amax = x.abs().amax().reshape(1, 1) if x.numel() else x.new_zeros(1, 1)
    else:
        amax = x.abs().amax(dim=1, keepdim=True) if x.shape[1] else x.new_zeros(x.shape[0], 1)
    scale = divide(amax, top)
    return torch.where(scale == 0, torch.ones_like(scale), scale)


def _group_amax(x: torch.Tensor, group: int) -> torch.Tensor:
    group = min(group, max(x.shape[1], 1))  # a group may be larger than the row
    padded = torch.nn.functional.pad(x.abs(), (0, -x.shape[1] % group))
    groups: torch.Tensor = padded.unflatten(1, (-1, group))
    return groups.amax(dim=2)
