"""Weight layouts as data: which bit of which word of a lane holds which bit of which code.

Twin of ``include/humming/decode/planes.cuh``. Which element of the matrix a lane's code is, is the
business of a backend, which gathers codes in that order and packs them here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from humming.errors import ConfigError

__all__ = ["GROUP", "PlaneLayout"]

#: Codes that a lane packs together: b loads of 16 bytes, whatever their width b.
GROUP = 128

_WORD = 32


@dataclass(frozen=True)
class PlaneLayout:
    """Groups of 128 codes in bit planes, for decoding in units of one 32-bit register.

    A code is cut into planes of 8, 4, 2 or 1 bits, the widest first and from the low end up. The
    plane of `width` bits from bit `start` on has the words ``4 * start`` to
    ``4 * (start + width) - 1`` of its group. Codes ``unit * i`` to ``unit * (i + 1) - 1`` are
    unit i. A word has the parts of ``slot // width`` units, slot being ``32 // unit``: code j of
    the i-th of them at bits ``slot * j + width * i``.

    Attributes:
        bits: of a code, 1 to 8.
        unit: codes that are decoded into one register: 2 for 16-bit operands, 4 for 8, 8 for 4.
    """

    bits: int
    unit: int

    def __post_init__(self) -> None:
        if self.unit not in (2, 4, 8):
            raise ConfigError("unit", self.unit, "2, 4 or 8 codes per register")
        if not 1 <= self.bits <= min(8, self.slot):
            allowed = f"1 to {min(8, self.slot)} bits in units of {self.unit}"
            raise ConfigError("bits", self.bits, allowed)

    def __str__(self) -> str:
        """The layout's name, kept beside what is packed in it."""
        return f"planes/b{self.bits}u{self.unit}/v1"

    @property
    def slot(self) -> int:
        """Bits of a register that one code of a unit gets."""
        return _WORD // self.unit

    @property
    def words(self) -> int:
        """32-bit words of a group."""
        return GROUP * self.bits // _WORD

    @property
    def planes(self) -> tuple[tuple[int, int], ...]:
        """(lowest bit, width) of each plane, in the order of their words."""
        widths = [width for width in (8, 4, 2, 1) if self.bits & width]
        return tuple((sum(widths[:i]), width) for i, width in enumerate(widths))

    def place(self, code: int, bit: int) -> tuple[int, int]:
        """Where a bit of a group's code lies: word of the group, bit of the word."""
        start, width = next(p for p in reversed(self.planes) if p[0] <= bit)
        index, element = divmod(code, self.unit)
        word, part = divmod(index, self.slot // width)
        return 4 * start + word, self.slot * element + width * part + bit - start

    def pack(self, codes: torch.Tensor) -> torch.Tensor:
        """Pack groups of codes along the last dimension.

        Args:
            codes: uint8 [..., 128 * G], each below ``2^bits``.

        Returns:
            int32 [..., words * G], on the same device.

        Raises:
            ConfigError: wrong dtype or length, or a code does not fit.
        """
        if codes.dtype != torch.uint8 or codes.ndim == 0 or codes.shape[-1] % GROUP:
            found = f"{codes.dtype} {list(codes.shape)}"
            raise ConfigError("codes", found, f"uint8 with a multiple of {GROUP} in each row")
        if codes.numel() and int(codes.max()) >> self.bits:
            raise ConfigError("codes", int(codes.max()), f"codes below 2^{self.bits}")
        groups = codes.unflatten(-1, (-1, GROUP))
        packed = []
        for start, width in self.planes:
            shape = (4 * width, self.slot // width, self.unit)
            parts = ((groups >> start) & ((1 << width) - 1)).unflatten(-1, shape)
            words = torch.zeros(parts.shape[:-2], dtype=torch.int32, device=codes.device)
            for part, element, shift in self._shifts(width):
                words |= parts[..., part, element].to(torch.int32) << shift
            packed.append(words)
        return torch.cat(packed, dim=-1).flatten(-2)

    def unpack(self, words: torch.Tensor) -> torch.Tensor:
        """Inverse of :meth:`pack`.

        Args:
            words: int32 [..., words * G].

        Returns:
            uint8 [..., 128 * G].

        Raises:
            ConfigError: wrong dtype or length.
        """
        if words.dtype != torch.int32 or words.ndim == 0 or words.shape[-1] % self.words:
            found = f"{words.dtype} {list(words.shape)}"
            raise ConfigError("words", found, f"int32 with a multiple of {self.words} in each row")
        groups = words.unflatten(-1, (-1, self.words))
        codes = torch.zeros((*groups.shape[:-1], GROUP), dtype=torch.uint8, device=words.device)
        for start, width in self.planes:
            plane = groups[..., 4 * start : 4 * (start + width)]
            parts = codes.unflatten(-1, (4 * width, self.slot // width, self.unit))
            for part, element, shift in self._shifts(width):
                found_bits = (plane >> shift) & ((1 << width) - 1)
                parts[..., part, element] |= found_bits.to(torch.uint8) << start
        return codes.flatten(-2)

    def _shifts(self, width: int) -> Iterator[tuple[int, int, int]]:
        """(unit of a word, element, lowest bit) of every part of a word."""
        for part in range(self.slot // width):
            for element in range(self.unit):
                yield part, element, self.slot * element + width * part
