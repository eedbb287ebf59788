"""How Quark stores codes: shapes in headers, and reading them into codes [N, K].

======================  =================  ========================  =========================
dtype                   stored dtype       per_group                 otherwise
======================  =================  ========================  =========================
int4, uint4             int32 words        [K, N/8] (transposed)     [N, K/8]
int8, uint8             int8, uint8        [K, N], before 0.7 [N, K] [N, K]
int2                    int32, one each    [K, N]                    [N, K]
int3                    uint8 bit stream   [N, 3K/8]                 [N, 3K/8]
fp4, fp6                uint8 bit stream   [N, K bits/8]             [N, K bits/8]
fp8                     float8             [N, K]                    [N, K]
mx of fp4               uint8              17 bytes per 32: exponent, then pairs
======================  =================  ========================  =========================

Signed integers are two's complement at every width.
"""

from __future__ import annotations

import torch

from humming.checkpoints.store import TensorInfo
from humming.checkpoints.words import AWQ_ORDER, unpack_words
from humming.errors import CheckpointError

__all__ = ["MX_BLOCK", "STORED", "narrow_codes", "nibbles", "split_mx", "stream_columns"]

#: safetensors dtype of stored codes.
STORED = {
    "fp4": "U8",
    "fp6_e2m3": "U8",
    "fp6_e3m2": "U8",
    "fp8_e4m3": "F8_E4M3",
    "fp8_e5m2": "F8_E5M2",
    "int2": "I32",
    "int3": "U8",
    "int4": "I32",
    "int8": "I8",
    "uint4": "I32",
    "uint8": "U8",
}
#: Codes under one exponent of the old dtype "mx", and the bytes of both.
MX_BLOCK = (32, 17)


def stream_columns(name: str, info: TensorInfo, bits: int) -> int:
    """Codes per row of a dense bit stream that fills whole bytes.

    Raises:
        CheckpointError: no whole number of codes fills the row.
    """
    total = info.shape[-1] * 8
    if total % bits:
        raise CheckpointError(
            f"rows of {info} hold no whole number of {bits}-bit codes", tensor=name
        )
    return total // bits


def nibbles(words: torch.Tensor, count: int, reordered: bool) -> torch.Tensor:
    """Codes of 4-bit words along the last dimension.

    Args:
        words: int32 [..., ceil(count / 8)].
        count: codes per row; what follows them is padding.
        reordered: whether field i of a word holds column ``AWQ_ORDER[i]``.

    Returns:
        uint8 [..., count].
    """
    fields = unpack_words(words, 4, words.shape[-1] * 8)
    if reordered:
        inverse = [AWQ_ORDER.index(column) for column in range(8)]
        fields = fields.unflatten(-1, (-1, 8))[..., inverse].flatten(-2)
    return fields[..., :count]


def narrow_codes(name: str, values: torch.Tensor, bits: int, signed: bool) -> torch.Tensor:
    """`values`, one code each in a wider integer, as codes of `bits` bits in uint8.

    Raises:
        CheckpointError: a value does not fit.
    """
    low = -(1 << (bits - 1)) if signed else 0
    high = low + (1 << bits) - 1
    if values.numel():
        smallest, largest = int(values.min()), int(values.max())
        if smallest < low or largest > high:
            raise CheckpointError(
                f"expected integers from {low} to {high}, found {smallest} to {largest}",
                tensor=name,
            )
    return (values.to(torch.int32) & ((1 << bits) - 1)).to(torch.uint8)


def split_mx(name: str, stored: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Old "mx" bytes [N, K/32 * 17] as packed FP4 codes [N, K/2] and e8m0 codes [N, K/32].

    The exponent is a signed byte without bias.

    Raises:
        CheckpointError: an exponent of -128, which e8m0 does not have.
    """
    blocks = stored.unflatten(-1, (-1, MX_BLOCK[1]))
    exponents = blocks[..., 0].view(torch.int8).to(torch.int32)
    if exponents.numel() and int(exponents.min()) == -128:
        raise CheckpointError("a scale of 2^-128, below what e8m0 holds", tensor=name)
    return blocks[..., 1:].flatten(-2).contiguous(), (exponents + 127).to(torch.uint8)
