"""D = A * B + C of one tcgen05.mma (PTX ISA 9.0, 9.7.16.10 and 9.7.16.10.7).

The arithmetic is :func:`humming_sim.matrices.products.multiply`'s: products are exact, their sum
and C are added in float64 and rounded once to D's type, unless an Accumulation says how hardware
adds. `scale-input-d` scales C first, exactly but for f32 numbers that underflow.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from humming_sim.matrices.accumulation import Accumulation
from humming_sim.matrices.products import Operand, Product, multiply
from humming_sim.numbers.formats import decode
from humming_sim.tcgen05.instruction_descriptor import InstructionDescriptor

__all__ = ["accumulate", "factor", "padding_of_scales"]

Numbers = npt.NDArray[np.float64]
Cells = npt.NDArray[np.uint32]
Codes = npt.NDArray[np.uint8]


def factor(
    matrix: Numbers, number_format: str, scales: Codes | None, descriptor: InstructionDescriptor
) -> Operand:
    """A or B with its scales.

    Args:
        matrix: A [M, K] or B [N, K].
        number_format: type of its elements.
        scales: codes [M or N, K / block], or None without scales.
        descriptor: says block and type of the scales.
    """
    if scales is None:
        return Operand(matrix[None], number_format)
    numbers = decode(descriptor.scale_type, scales).repeat(descriptor.block, axis=-1)
    return Operand(matrix[None], number_format, numbers[None], descriptor.scale_type)


def padding_of_scales(codes: Codes, scale_type: str) -> npt.NDArray[np.bool_]:
    """Where bits are set that a scale's type doesn't have: bit 7 of ue4m3."""
    return codes >= 128 if scale_type == "ue4m3" else np.zeros(codes.shape, np.bool_)


def accumulate(
    a: Operand,
    b: Operand,
    c: Cells | None,
    descriptor: InstructionDescriptor,
    halvings: int = 0,
    accumulation: Accumulation | None = None,
) -> Cells:
    """Cells of D, each in a 32-bit word of its own; f16 lies in the low half, the rest being 0.

    Args:
        a: :func:`factor` of A, [M, K].
        b: :func:`factor` of B, [N, K].
        c: cells [M, N], or None for D = A * B.
        descriptor: says D's type and whether integer sums are clamped (else they wrap).
        halvings: `scale-input-d`: C is multiplied by 2 ** -halvings.
        accumulation: how hardware adds, or None for exact sums.

    Raises:
        ValueError: the descriptor's D type has no meaning.
    """
    kind = descriptor.d_type
    if kind not in _WORDS:
        raise ValueError("the code of D's type has no meaning")
    if c is None:
        start = np.zeros((a.values.shape[1], b.values.shape[1]), _WORDS[kind])
    else:
        start = np.ascontiguousarray(c).astype(_WORDS[kind], copy=False)
        if halvings:
            start = _halved(start, kind, halvings)
    product = Product(kind, kind, saturate=descriptor.saturate, accumulation=accumulation)
    bits = multiply(product, a, _columns(b), start[None])[0]
    cells: Cells = bits.astype(np.uint32, copy=False)
    return cells


#: How C's bits are kept, by type.
_WORDS: dict[str, npt.DTypeLike] = {"f32": np.uint32, "f16": np.uint16, "s32": np.uint32}


def _halved(bits: npt.NDArray[np.unsignedinteger], kind: str, halvings: int) -> Cells:
    dtype = np.dtype(np.float16 if kind == "f16" else np.float32)
    with np.errstate(invalid="ignore", under="ignore"):
        scaled: Cells = np.ldexp(bits.view(dtype), -halvings).view(bits.dtype)
    return scaled


def _columns(b: Operand) -> Operand:
    scales = None if b.scales is None else b.scales.swapaxes(1, 2)
    return Operand(b.values.swapaxes(1, 2), b.number_format, scales, b.scale_format)
