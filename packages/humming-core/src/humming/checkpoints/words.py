"""32-bit words of checkpoints to codes: the packings that files use, along the last dimension.

dense    one little-endian bit stream: GPTQ, compressed-tensors as written today
padded   32 // bits codes per word, top bits unused: compressed-tensors as written before
planar   per 32 codes, `bits` words; the low plane of every code first (GPTQModel's gptq_p)
"""

from __future__ import annotations

import torch

from humming.errors import CheckpointError
from humming.packing import packed_bytes, unpack

__all__ = ["AWQ_ORDER", "PLANES", "dense_words", "padded_words", "unpack_words", "words_as_bytes"]

#: AWQ word: nibble i holds column ``8 * c + AWQ_ORDER[i]``.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
#: Widths of the planes of a planar code, low plane first.
PLANES = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1), 8: (8,)}


def dense_words(count: int, bits: int) -> int:
    """Words that `count` codes take as one bit stream."""
    return -(-count * bits // 32)


def padded_words(count: int, bits: int) -> int:
    """Words that `count` codes take at 32 // bits codes per word."""
    return -(-count // (32 // bits))


def words_as_bytes(words: torch.Tensor) -> torch.Tensor:
    """int32 [..., W] as uint8 [..., 4 W]; every platform that torch supports is little-endian."""
    if words.dtype != torch.int32:
        raise CheckpointError(f"expected int32 words, found {words.dtype}")
    # Flat first: torch calls [W, 1] contiguous whatever its last stride, and view() does not.
    return words.reshape(-1).view(torch.uint8).reshape(*words.shape[:-1], 4 * words.shape[-1])


def unpack_words(words: torch.Tensor, bits: int, count: int, layout: str = "dense") -> torch.Tensor:
    """Codes of packed words.

    Args:
        words: int32 [..., W].
        bits: width of a code.
        count: codes per row; W must be what `layout` needs for them.
        layout: "dense", "padded" or "planar".

    Returns:
        uint8 [..., count].

    Raises:
        CheckpointError: W does not fit `count` codes.
    """
    if words.dtype != torch.int32:
        raise CheckpointError(f"expected int32 words, found {words.dtype}")
    expected = padded_words(count, bits) if layout == "padded" else dense_words(count, bits)
    if words.shape[-1] != expected:
        found = f"{words.shape[-1]} words for {count} codes of {bits} bits"
        raise CheckpointError(f"{layout} packing: found {found}, expected {expected}")
    if layout == "dense":
        return unpack(words_as_bytes(words)[..., : packed_bytes(count, bits)], bits, count)
    if layout == "padded":
        return _fields(words, bits, 32 // bits).flatten(-2)[..., :count]
    if layout != "planar":
        raise CheckpointError(f"unknown packing {layout!r}")
    if count % 32:
        raise CheckpointError(f"planar packing needs a multiple of 32 codes, found {count}")
    blocks = words.unflatten(-1, (-1, bits))
    codes = torch.zeros(*blocks.shape[:-1], 32, dtype=torch.uint8, device=words.device)
    low = 0
    for width in PLANES[bits]:
        plane = _fields(blocks[..., low : low + width], width, 32 // width)
        codes |= plane.flatten(-2) << low  # a plane of width w fills w words per 32 codes
        low += width
    return codes.flatten(-2)


def _fields(words: torch.Tensor, bits: int, per_word: int) -> torch.Tensor:
    """uint8 [..., W, per_word]: the low `per_word` fields of each word, LSB first."""
    shifts = torch.arange(per_word, device=words.device, dtype=torch.int32) * bits
    mask = (1 << bits) - 1
    return ((words.unsqueeze(-1) >> shifts) & mask).to(torch.uint8)
