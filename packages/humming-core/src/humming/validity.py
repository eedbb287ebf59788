"""Which numbers can be multiplied, in principle and on a device: one function, with reasons."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.formats.activation import ActivationScheme
from humming.formats.number import NumberFormat
from humming.formats.scheme import WeightScheme, Zero
from humming.formats.table import number_format
from humming.profiles import DeviceProfile

__all__ = ["layer_why_not", "multiplicand", "why_not"]

#: Inputs that one MMA sums before a group scale can be applied: 32 bytes of operand (PTX ISA,
#: shapes of mma.sync). 4-bit floats have a block-scaled MMA that takes a scale per 16, and one
#: on 8-bit containers that sums 32.
_K_QUANTUM = {8: 32, 6: 32, 4: 64}
_BLOCK_SCALED = ("e2m1", "e0m3")
_BLOCK_16_SCALES = ("e4m3fn", "e8m0")


def why_not(
    weight: WeightScheme, activation: ActivationScheme, profile: DeviceProfile | None = None
) -> str | None:
    """None if weights of this scheme can be multiplied with such activations, else why not.

    Without a profile the answer is about numbers alone: whether some format of the activation's
    width holds every weight exactly. With one it is also about the device's tensor cores. A
    backend may refuse more (:meth:`Backend.refuse`); nothing else decides less.
    """
    if not activation.is_quantized:
        # f32 is multiplied without tensor cores, by whichever backend cares to.
        return None if activation.format.name == "f32" else _not_listed(activation.format, profile)
    if weight.code.bits > activation.format.bits:
        return (
            f"{weight.code} weights are wider than {activation.format} activations; "
            f"use activations of at least {weight.code.bits} bits"
        )
    missing = _not_listed(activation.format, profile)
    if missing:
        return missing
    operand = multiplicand(weight, activation.format, profile)
    if operand is None:
        return (
            f"no {activation.format.bits}-bit operand format beside {activation.format} holds "
            f"every {weight.code}{'+' + weight.zero.value if weight.zero.value else ''} value"
        )
    groups = _groups_why_not(weight, activation)
    if groups:
        return groups
    return None if profile is None else _device_why_not(weight, activation, profile)


def layer_why_not(
    layer: LayerConfig, compute: ComputeConfig, profile: DeviceProfile | None = None
) -> str | None:
    """:func:`why_not` for a whole layer: its numbers, its kind of GEMM and its accumulation."""
    if (compute.gemm is GemmKind.DENSE) != (layer.experts == 0):
        return f"{compute.gemm.value} GEMM with {layer.experts} experts"
    if layer.experts and layer.activation.granularity == "tensor" and not layer.activation.static:
        return "one dynamic activation scale over all experts; use a scale per token"
    half = compute.accumulate is not None and compute.accumulate.name == "f16"
    if half and layer.activation.format.name != "f16":  # 448 * 448 is beyond f16
        return f"f16 accumulation of {layer.activation.format} products; only f16 has the range"
    return why_not(layer.weight, layer.activation, profile)


def multiplicand(
    weight: WeightScheme, activation: NumberFormat, profile: DeviceProfile | None = None
) -> NumberFormat | None:
    """The operand format that weights are turned into before they meet `activation`.

    The first of: the activation's own format, the weight's own if it is as wide, and for 8-bit
    floats e4m3fn and e3m4 (tensor cores multiply 8-bit floats of different formats), that holds
    every (code - zero) up to one common power of two.
    """
    if activation.bits >= 16:
        return activation
    candidates = [activation]
    if activation.is_float and activation.bits == 8:
        candidates += [number_format("e4m3fn"), number_format("e3m4")]
    same_width = weight.code.bits == activation.bits
    if same_width and not activation.is_integer and not weight.code.is_integer:
        candidates.insert(0, weight.code)
    for candidate in candidates:
        listed = profile is None or candidate.name in profile.activations
        if listed and _holds(candidate, weight.code, weight.zero is Zero.INTEGER, weight.midpoint):
            return candidate
    return None


@lru_cache(maxsize=1024)
def _holds(target: NumberFormat, code: NumberFormat, has_zero: bool, midpoint: int) -> bool:
    """Whether `target` has every (code - zero) times some power of two."""
    values = code.decode(np.arange(1 << code.bits, dtype=np.uint8))
    if has_zero:  # any zero point: every difference of two codes
        values = np.arange(-values.max(), values.max() + 1)
    values = values[np.isfinite(values)] - midpoint
    grid = target.decode(np.arange(1 << target.bits, dtype=target.code_dtype))
    grid = grid[np.isfinite(grid)]
    if values.size == 0 or not np.any(values):
        return True
    shift = int(np.frexp(grid.max())[1] - np.frexp(np.abs(values).max())[1])
    # From "largest value at the top of the grid" down to "all of it among the smallest codes".
    shifts = range(shift - target.bits - 1, shift + 2)
    return any(np.isin(np.ldexp(values, s), grid).all() for s in shifts)


def _groups_why_not(weight: WeightScheme, activation: ActivationScheme) -> str | None:
    mine, theirs = weight.granularity.k, activation.group_size
    if mine and theirs and mine % theirs and theirs % mine:
        return (
            f"weight groups of {mine} and activation groups of {theirs} inputs; "
            f"one must divide the other"
        )
    return None


def _not_listed(fmt: NumberFormat, profile: DeviceProfile | None) -> str | None:
    if profile is None or fmt.name in profile.activations:
        return None
    listed = ", ".join(profile.activations)
    return f"{fmt} activations need {fmt} tensor cores; {profile.title} lists {listed}"


def _device_why_not(
    weight: WeightScheme, activation: ActivationScheme, profile: DeviceProfile
) -> str | None:
    if profile.vendor == "cpu":  # computed with dequantized numbers: no fragment to fill
        return None
    four_bit_float = activation.format.name in _BLOCK_SCALED
    quantum = _K_QUANTUM[8 if four_bit_float else activation.format.bits]
    for what, size, scale in (
        ("weight", weight.granularity.k, weight.scale),
        ("activation", activation.group_size, activation.scale),
    ):
        block_scaled = four_bit_float and size == 16
        if size % quantum and not (block_scaled and scale and scale.name in _BLOCK_16_SCALES):
            extra = ", or 16 with e4m3fn or e8m0 scales" * four_bit_float
            return (
                f"{what} groups of {size} inputs; {activation.format} products are summed "
                f"{quantum} at a time, so groups must be multiples of {quantum}{extra}"
            )
    return None
