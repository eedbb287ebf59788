"""Dense bit packing along the last dimension: the storage of codes in the standard form.

Row-major bytes; code i of a row occupies bits ``[i * bits, (i + 1) * bits)`` of the row's
little-endian bit stream, so a row of K codes takes ``ceil(K * bits / 8)`` bytes. 32-bit words of
the same stream, read little-endian, are what GPTQ and compressed-tensors store.
"""

from __future__ import annotations

import math

import torch

from humming.errors import ConfigError

__all__ = ["pack", "packed_bytes", "unpack"]


def packed_bytes(count: int, bits: int) -> int:
    """Bytes that a row of `count` codes takes."""
    return -(-count * bits // 8)


def _block(bits: int) -> tuple[int, int]:
    """Smallest number of codes that fills whole bytes, and that number of bytes."""
    codes = 8 // math.gcd(8, bits)
    return codes, codes * bits // 8


def _check_bits(bits: int) -> None:
    if not 1 <= bits <= 8:
        raise ConfigError("bits", bits, "1 to 8")


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack codes along the last dimension.

    Args:
        codes: uint8 [..., K], each below ``2^bits``.
        bits: width of a code, 1 to 8.

    Returns:
        uint8 [..., ceil(K * bits / 8)]; bits past the last code are zero.

    Raises:
        ConfigError: wrong dtype or width, or a code does not fit.
    """
    _check_bits(bits)
    if codes.dtype != torch.uint8:
        raise ConfigError("codes", codes.dtype, "a uint8 tensor")
    if bits == 8:
        return codes
    if codes.numel() and int(codes.max()) >> bits:
        raise ConfigError("codes", int(codes.max()), f"codes below 2^{bits}")
    count = codes.shape[-1]
    per_block, block_bytes = _block(bits)
    padded = torch.nn.functional.pad(codes, (0, -count % per_block))
    blocks = padded.unflatten(-1, (-1, per_block))
    columns = []
    for byte in range(block_bytes):
        value = torch.zeros_like(blocks[..., 0])
        for i in range(per_block):
            shift = i * bits - byte * 8
            if -bits < shift < 8:
                part = blocks[..., i]
                # In uint8 a left shift drops what belongs to the next byte.
                value |= part << shift if shift >= 0 else part >> -shift
        columns.append(value)
    packed = torch.stack(columns, dim=-1).flatten(-2)
    return packed[..., : packed_bytes(count, bits)].contiguous()


def unpack(packed: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """Inverse of :func:`pack`.

    Args:
        packed: uint8 [..., ceil(count * bits / 8)].
        bits: width of a code, 1 to 8.
        count: codes per row (K).

    Returns:
        uint8 [..., count].

    Raises:
        ConfigError: wrong dtype or width, or the rows have another length.
    """
    _check_bits(bits)
    if packed.dtype != torch.uint8:
        raise ConfigError("packed", packed.dtype, "a uint8 tensor")
    expected = packed_bytes(count, bits)
    if packed.shape[-1] != expected:
        raise ConfigError("packed", tuple(packed.shape), f"rows of {expected} bytes")
    if bits == 8:
        return packed
    per_block, block_bytes = _block(bits)
    padded = torch.nn.functional.pad(packed, (0, -expected % block_bytes))
    blocks = padded.unflatten(-1, (-1, block_bytes))
    mask = (1 << bits) - 1
    columns = []
    for i in range(per_block):
        byte, shift = divmod(i * bits, 8)
        value = blocks[..., byte] >> shift
        if shift + bits > 8:  # the rest lies in the next byte; uint8 drops what overflows
            value = value | (blocks[..., byte + 1] << (8 - shift))
        columns.append(value & mask)
    return torch.stack(columns, dim=-1).flatten(-2)[..., :count]
