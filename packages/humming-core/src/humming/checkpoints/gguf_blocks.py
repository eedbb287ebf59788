"""GGUF's blocks to codes, scales and zero points: one row of a table per storage type.

A block holds a fixed number of consecutive inputs of a row. Its fields follow each other without
gaps; numbers are little-endian. Codes are laid out in *runs*: the low bits of all bytes of a run
are consecutive codes, then the next bits of the same bytes, and so on.

Products of an f16 super-scale and an integer sub-scale of at most 8 bits are exact in f32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from humming.errors import CheckpointError
from humming.formats.scheme import WeightScheme

__all__ = ["BLOCK_TYPES", "BlockType", "Parts"]

Fields = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Parts:
    """What blocks [.., B, bytes] hold.

    Attributes:
        codes: uint8 [.., B, inputs per block].
        scales: [.., B, scales per block] in the storage dtype of the scheme's scale.
        zeros: the same shape and dtype, for schemes with float zero points.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None = None


@dataclass(frozen=True)
class BlockType:
    """A storage type that the standard form holds exactly.

    Attributes:
        scheme: what it becomes, as :meth:`WeightScheme.parse` reads it.
        fields: names and bytes of the fields of a block, in order.
        parts: from the fields, each uint8 [.., B, bytes], to codes, scales and zeros.
    """

    scheme: WeightScheme
    fields: tuple[tuple[str, int], ...]
    parts: Callable[[Fields], Parts]

    @property
    def nbytes(self) -> int:
        """Bytes of one block."""
        return sum(size for _, size in self.fields)

    def decode(self, blocks: torch.Tensor) -> Parts:
        """Split uint8 blocks [.., B, nbytes] into parts.

        Raises:
            CheckpointError: a code that no writer of this type produces.
        """
        sizes = [size for _, size in self.fields]
        names = [name for name, _ in self.fields]
        return self.parts(dict(zip(names, torch.split(blocks, sizes, dim=-1), strict=True)))


def _runs(data: torch.Tensor, run: int, bits: int) -> torch.Tensor:
    """uint8 [.., n] → codes [.., n * 8 / bits] of runs of `run` bytes."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8).unsqueeze(-1)
    fields = data.reshape(*data.shape[:-1], -1, 1, run) >> shifts
    return (fields & ((1 << bits) - 1)).flatten(-3)


def _f16(data: torch.Tensor) -> torch.Tensor:
    return data.contiguous().view(torch.float16)


def _q4(f: Fields) -> Parts:
    zeros = _f16(f["m"]) if "m" in f else None
    return Parts(_runs(f["qs"], 16, 4), _f16(f["d"]), zeros)


def _q5(f: Fields) -> Parts:
    zeros = _f16(f["m"]) if "m" in f else None
    codes = _runs(f["qs"], 16, 4) | _runs(f["qh"], 1, 1) << 4
    return Parts(codes, _f16(f["d"]), zeros)


def _q8_0(f: Fields) -> Parts:
    return Parts(f["qs"], _f16(f["d"]))


def _affine(f: Fields, codes: torch.Tensor, scale: torch.Tensor, low: torch.Tensor) -> Parts:
    """K-quants with a minimum: d * scale * code - dmin * low."""
    scales = _f16(f["d"]).float() * scale.float()
    return Parts(codes, scales, -(_f16(f["dmin"]).float() * low.float()))


def _q2_k(f: Fields) -> Parts:
    return _affine(f, _runs(f["qs"], 32, 2), f["scales"] & 15, f["scales"] >> 4)


def _q3_k(f: Fields) -> Parts:
    # A high bit of 1 means that 4 is not subtracted, so it is bit 2 of an offset-binary code.
    codes = _runs(f["qs"], 32, 2) | _runs(f["hmask"], 32, 1) << 2
    low, high = torch.split(f["scales"], [8, 4], dim=-1)
    scales = (_runs(low, 8, 4) | _runs(high, 4, 2) << 4).float() - 32
    return Parts(codes, _f16(f["d"]).float() * scales)


def _six_bit_pairs(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight scales and eight minima of 6 bits in 12 bytes: the last four of each are split."""
    a, b, c = torch.split(packed, 4, dim=-1)
    scales = torch.cat([a & 63, (c & 15) | (a >> 6) << 4], dim=-1)
    return scales, torch.cat([b & 63, (c >> 4) | (b >> 6) << 4], dim=-1)


def _q4_k(f: Fields) -> Parts:
    return _affine(f, _runs(f["qs"], 32, 4), *_six_bit_pairs(f["scales"]))


def _q5_k(f: Fields) -> Parts:
    codes = _runs(f["qs"], 32, 4) | _runs(f["qh"], 32, 1) << 4
    return _affine(f, codes, *_six_bit_pairs(f["scales"]))


def _q6_k(f: Fields) -> Parts:
    codes = _runs(f["ql"], 64, 4) | _runs(f["qh"], 32, 2) << 4
    scales = f["scales"].contiguous().view(torch.int8).float()
    return Parts(codes, _f16(f["d"]).float() * scales)


def _tq1_0(f: Fields) -> Parts:
    # Five base-3 digits in a byte, read from the top: floor(3 * (byte * 3^n mod 256) / 256).
    wide, narrow = torch.split(f["qs"], [32, 16], dim=-1)
    digits = []
    for data, count in ((wide, 5), (narrow, 5), (f["qh"], 4)):
        powers = torch.tensor([3**n for n in range(count)], dtype=torch.uint8).unsqueeze(-1)
        shifted = (data.unsqueeze(-2) * powers).to(torch.int16)  # uint8 drops what overflows
        digits.append((shifted * 3 >> 8).flatten(-2))
    return Parts(_ternary(torch.cat(digits, dim=-1).to(torch.uint8)), _f16(f["d"]))


def _tq2_0(f: Fields) -> Parts:
    digits = _runs(f["qs"], 32, 2)
    if bool((digits == 3).any()):
        raise CheckpointError("TQ2_0 code 3, expected 0, 1 or 2")
    return Parts(_ternary(digits), _f16(f["d"]))


def _ternary(digits: torch.Tensor) -> torch.Tensor:
    """Digits 0, 1, 2 → two-bit two's complement of -1, 0, 1."""
    return (digits + 3) & 3


def _mxfp4(f: Fields) -> Parts:
    return Parts(_runs(f["qs"], 16, 4), f["e"])


def _nvfp4(f: Fields) -> Parts:
    # ggml has no sign and no NaN here and reads such bytes as something else.
    if bool((f["d"] > 0x7E).any()):
        raise CheckpointError(f"NVFP4 scale {int(f['d'].max()):#x}, expected at most 0x7e")
    return Parts(_runs(f["qs"], 8, 4), f["d"])


def _row(scheme: str, fields: str, parts: Callable[[Fields], Parts]) -> BlockType:
    """A row from its fields written ``"name:bytes name:bytes"``."""
    pairs = (field.split(":") for field in fields.split())
    return BlockType(
        WeightScheme.parse(scheme), tuple((name, int(size)) for name, size in pairs), parts
    )


#: Storage types by ggml's name. Of the others, the IQ types take their values from code books and
#: tables, which no scheme of their width describes; Q8_1 and Q8_K hold activations.
BLOCK_TYPES: dict[str, BlockType] = {
    "Q4_0": _row("q4_0", "d:2 qs:16", _q4),
    "Q4_1": _row("q4_1", "d:2 m:2 qs:16", _q4),
    "Q5_0": _row("q5_0", "d:2 qh:4 qs:16", _q5),
    "Q5_1": _row("q5_1", "d:2 m:2 qh:4 qs:16", _q5),
    "Q8_0": _row("q8_0", "d:2 qs:32", _q8_0),
    "Q2_K": _row("q2_k", "scales:16 qs:64 d:2 dmin:2", _q2_k),
    "Q3_K": _row("q3_k", "hmask:32 qs:64 scales:12 d:2", _q3_k),
    "Q4_K": _row("q4_k", "d:2 dmin:2 scales:12 qs:128", _q4_k),
    "Q5_K": _row("q5_k", "d:2 dmin:2 scales:12 qh:32 qs:128", _q5_k),
    "Q6_K": _row("q6_k", "ql:128 qh:64 scales:16 d:2", _q6_k),
    "TQ1_0": _row("s2-g256-f16", "qs:48 qh:4 d:2", _tq1_0),
    "TQ2_0": _row("s2-g256-f16", "qs:64 d:2", _tq2_0),
    "MXFP4": _row("mxfp4", "e:1 qs:16", _mxfp4),
    "NVFP4": _row("e2m1-g16-e4m3fn", "d:4 qs:32", _nvfp4),
}
