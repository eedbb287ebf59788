"""How tensor cores add: the narrow sums of real hardware, as an alternative to exact ones.

The manual leaves order and rounding open (PTX ISA 9.0, 9.7.14.5.14 "precision and rounding"). What
is here was measured by others: Xie et al., "MMA-Sim: bit-accurate reference model of tensor cores
and matrix cores" (arXiv 2511.10909). The products of one step and the accumulator are aligned to
the largest exponent among them, truncated to some fraction bits, added exactly, and the sum is
truncated to fp32 (rounded to nearest for fp16). Exponents are those of the factors added, before
the product is normalised, and a subnormal counts with the smallest normal exponent. That zeros
never set the alignment is an assumption. On an H200 every recorded mma.sync and wgmma product of
random numbers (tests/sim/silicon) is this model's to the last bit; other devices are as published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from humming_sim.numbers.formats import FORMATS
from humming_sim.numbers.rounding import Rounding, encode

__all__ = [
    "Accumulation",
    "aligned_sum",
    "hardware_accumulation",
    "nominal_exponents",
    "truncated_float32",
]

Float64 = npt.NDArray[np.float64]

#: Below every exponent that counts, and yet scaling by it stays finite.
_ZERO_EXPONENT = -600


@dataclass(frozen=True)
class Accumulation:
    """The adder of one kind of product.

    Attributes:
        fraction: bits kept below the largest exponent of a step.
        step: products along k that are added together; the sum is rounded after each step.
        group: neighbouring products that are added exactly first, their common block scales alone
            giving the exponent of the group.
        mantissa: fraction bits of an fp32 result that survive (23 is all).
        through_f16: mma.sync of 8-bit floats where the device has none: the assembler makes two f16
            products of it, first of the elements whose k % 4 is 0 or 1, then of the others, and
            adds C afterwards with a rounding of its own.
    """

    fraction: int
    step: int
    group: int = 1
    mantissa: int = 23
    through_f16: bool = False


_EIGHT_BIT = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "e3m4", "e0m3")


def hardware_accumulation(
    capability: int, instruction: str, a_type: str, k: int, scaled: bool = False
) -> Accumulation:
    """The adder of a device for one floating-point instruction.

    Args:
        capability: compute capability times ten, 75 to 121.
        instruction: "mma", "wgmma" or "tcgen05".
        a_type: PTX type of A.
        k: depth of the instruction in elements.
        scaled: whether it has block scales.
    """
    fraction = 24 if capability < 90 else 25
    narrow = a_type in _EIGHT_BIT
    if scaled and k >= 64 and a_type in ("e2m1", "e0m3"):
        return Accumulation(35, k, group=16)
    if narrow and (capability == 89 or instruction == "wgmma"):
        return Accumulation(13, 16 if capability == 89 else k, mantissa=13)
    if 80 <= capability < 90:
        width = {"f16": 8, "bf16": 8, "tf32": 4}
        return Accumulation(fraction, width.get(a_type, k))
    if narrow and instruction == "mma" and capability < 120:
        return Accumulation(fraction, k // 2, through_f16=True)
    return Accumulation(fraction, k)


def nominal_exponents(number_format: str, values: Float64) -> npt.NDArray[np.int32]:
    """Exponents of values of one format as an adder sees them, zeros below everything."""
    _, exponents = np.frexp(values)
    row = FORMATS[number_format]
    smallest = 1 - row.bias if row.exponent else 0
    return np.where(values == 0, _ZERO_EXPONENT, np.maximum(exponents - 1, smallest))


def aligned_sum(
    terms: Float64, exponents: npt.NDArray[Any], c: Float64, c_exponents: Any, fraction: int
) -> Float64:
    """c + sum of `terms` along the last axis, each truncated to `fraction` bits below the largest.

    Args:
        terms: finite exact products [..., T].
        exponents: their nominal exponents [..., T].
        c: accumulators [...].
        c_exponents: theirs.
        fraction: bits.

    Returns:
        float64 [...], exact sums of what is left.
    """
    largest = np.maximum(exponents.max(-1), c_exponents)
    largest = np.maximum(largest, _ZERO_EXPONENT)
    shift = fraction - largest
    kept = np.trunc(np.ldexp(terms, shift[..., None])).sum(-1) + np.trunc(np.ldexp(c, shift))
    total: Float64 = np.ldexp(kept, -shift)
    return total


def truncated_float32(values: Float64, mantissa: int = 23) -> npt.NDArray[np.uint32]:
    """Codes of fp32 toward zero, keeping `mantissa` fraction bits; infinities from 2**128 on."""
    bits = encode("f32", values, Rounding("rz")) & np.uint32(-1 << (23 - mantissa) & 0xFFFFFFFF)
    beyond = np.abs(values) >= 2.0**128
    return np.where(beyond, np.copysign(np.inf, values).astype(np.float32).view(np.uint32), bits)
