"""Weight layouts as data: which bit of which word of a lane holds which bit of which code.

Twin of ``planes.cuh``, ``fives.cuh`` and ``placements.cuh`` in ``include/humming/decode/``. Which
element of the matrix a lane's code is, is the business of a backend, which gathers codes in that
order and packs them here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from humming.errors import ConfigError
from humming.formats.number import NumberFormat
from humming.formats.operands import operand_unit

__all__ = ["GROUP", "Placement", "PlaneLayout", "plane_layout"]

#: Codes that a lane packs together: b loads of 16 bytes, whatever their width b.
GROUP = 128

_WORD = 32


@dataclass(frozen=True)
class Placement:
    """Where a word has the bits of 4-bit floats, if not code after code.

    Magnitude and sign of such a float go to different places of an operand. So a decoder wants a
    word's bits where few instructions bring those of a unit into its *form*: a register with
    every bit of the unit's codes where the decoder works on it. The form of unit i is the sum of
    its *moves*: the word rotated by a distance, of which a mask is taken. With two masks that costs
    two instructions; one takes both, if what comes along is known. So some bits are stored as
    their sum with others, their *echoes*.

    Attributes:
        cxx: its twin in ``decode/placements.cuh``.
        name: part of the names of layouts.
        form: the bit of its slot that each bit of a code has in the form.
        moves: for each unit of a word, (bits to the left, mask) of its moves.
        echoes: (bits to the left, mask): to the bits of the mask others are added, moved so.
    """

    cxx: str
    name: str
    form: tuple[int, int, int, int]
    moves: tuple[tuple[tuple[int, int], ...], ...]
    echoes: tuple[tuple[int, int], ...] = ()

    @property
    def unit(self) -> int:
        """Codes of a unit."""
        return 8 // len(self.moves)

    def place(self, part: int, element: int, bit: int) -> int:
        """The bit of a word that has a bit of a code of its unit `part`."""
        to = _WORD // self.unit * element + self.form[bit]
        distance = next(d for d, mask in self.moves[part] if mask >> to & 1)
        return (to - distance) % _WORD

    def stored(self, words: torch.Tensor) -> torch.Tensor:
        """Words with echoes. Echoes have echoes, in chains of three."""
        found = words
        for _ in range(3):
            found = words ^ self._echo(found)
        return found

    def plain(self, words: torch.Tensor) -> torch.Tensor:
        """Words without echoes, the inverse of :meth:`stored`."""
        return words ^ self._echo(words)

    def _echo(self, words: torch.Tensor) -> torch.Tensor:
        found = torch.zeros_like(words)
        for distance, mask in self.echoes:
            moved = words << distance if distance > 0 else words >> -distance
            found ^= moved & mask
        return found


#: Placements of e2m1 by operand format.
_PLACEMENTS = {
    "bf16": Placement(
        cxx="humming::PlacedForBf16",
        name="bf16",
        form=(6, 7, 8, 15),
        moves=(
            ((0, 0x81C081C0),),
            ((4, 0x81C081C0),),
            ((-6, 0x81C081C0),),
            ((6, 0x80C080C0), (-2, 0x01000100)),
        ),
        echoes=((-8, 0x00030203), (8, 0x04000400)),
    ),
    "f16": Placement(
        cxx="humming::PlacedForF16",
        name="f16",
        form=(9, 10, 11, 15),
        moves=(
            ((0, 0x8E008E00),),
            ((3, 0x8E008E00),),
            ((9, 0x0E000E00), (2, 0x80008000)),
            ((6, 0x0E000E00), (1, 0x80008000)),
        ),
    ),
}
_PLACEMENTS["e4m3fn"] = _PLACEMENTS["e5m2"] = Placement(
    cxx="humming::PlacedForBytes",
    name="bytes",
    form=(0, 1, 2, 7),
    moves=(
        ((0, 0x80808087), (4, 0x00000700), (8, 0x00070000), (12, 0x07000000)),
        ((4, 0x80808080), (-16, 7), (-12, 0x00000700), (-8, 0x00070000), (-4, 0x07000000)),
    ),
)


@dataclass(frozen=True)
class PlaneLayout:
    """Groups of 128 codes in bit planes, for decoding in units of one 32-bit register.

    A code is cut into planes of 8, 4, 2 or 1 bits, the widest first and from the low end up. The
    plane of `width` bits from bit `start` on has the words ``4 * start`` to
    ``4 * (start + width) - 1`` of its group. Codes ``unit * i`` to ``unit * (i + 1) - 1`` are
    unit i. A word has the parts of ``slot // width`` units, slot being ``32 // unit``: code j of
    the i-th of them at bits ``slot * j + width * i``, unless there is a placement.

    Attributes:
        bits: of a code, 1 to 8.
        unit: codes that are decoded into one register: 2 for 16-bit operands, 4 for 8, 8 for 4.
        placement: of codes of 4 bits.
        fives: codes of 3 bits lie in units of 2 as :class:`_Fives` says, not in planes.
    """

    bits: int
    unit: int
    placement: Placement | None = None
    fives: bool = False

    def __post_init__(self) -> None:
        if self.unit not in (2, 4, 8):
            raise ConfigError("unit", self.unit, "2, 4 or 8 codes per register")
        if not 1 <= self.bits <= min(8, self.slot):
            allowed = f"1 to {min(8, self.slot)} bits in units of {self.unit}"
            raise ConfigError("bits", self.bits, allowed)
        if self.placement and (self.bits, self.unit) != (4, self.placement.unit):
            raise ConfigError("placement", self.placement.name, f"none for {self.bits} bits")
        if self.fives and (self.bits, self.unit) != (3, 2):
            raise ConfigError("fives", self.fives, "codes of 3 bits in units of 2")

    def __str__(self) -> str:
        """The layout's name, kept beside what is packed in it."""
        placed = f"-{self.placement.name}" if self.placement else "-fives" * self.fives
        return f"planes/b{self.bits}u{self.unit}{placed}"

    @property
    def cxx(self) -> str:
        """Its type in kernels."""
        if self.placement:
            return f"humming::PlacedPlanes<{self.placement.cxx}>"
        if self.fives:
            return "humming::Fives"
        return f"humming::Planes<{self.bits}, {self.unit}>"

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
        """Where a bit of a group's code lies, echoes apart: word of the group, bit of the word."""
        if self.fives:
            return _FIVES.place(code, bit)
        start, width = next(p for p in reversed(self.planes) if p[0] <= bit)
        index, element = divmod(code, self.unit)
        word, part = divmod(index, self.slot // width)
        if self.placement:
            return word, self.placement.place(part, element, bit)
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
        if self.fives:
            return _FIVES.pack(groups).flatten(-2)
        packed = []
        for start, width in self.planes:
            shape = (4 * width, self.slot // width, self.unit)
            parts = (groups >> start).unflatten(-1, shape)
            words = torch.zeros(parts.shape[:-2], dtype=torch.int32, device=codes.device)
            for run in self._runs(width):
                taken = (parts[..., run.part, run.element] >> run.low) & run.mask
                words |= taken.to(torch.int32) << run.at
            if self.placement:
                words = self.placement.stored(words)
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
        if self.fives:
            return _FIVES.unpack(groups).flatten(-2)
        codes = torch.zeros((*groups.shape[:-1], GROUP), dtype=torch.uint8, device=words.device)
        for start, width in self.planes:
            plane = groups[..., 4 * start : 4 * (start + width)]
            if self.placement:
                plane = self.placement.plain(plane)
            parts = codes.unflatten(-1, (4 * width, self.slot // width, self.unit))
            for run in self._runs(width):
                found_bits = ((plane >> run.at) & run.mask).to(torch.uint8)
                parts[..., run.part, run.element] |= found_bits << (start + run.low)
        return codes.flatten(-2)

    def _runs(self, width: int) -> Iterator[_Run]:
        """The bits of a word of the plane of `width` bits."""
        for part in range(self.slot // width):
            for element in range(self.unit):
                if self.placement is None:
                    at = self.slot * element + width * part
                    yield _Run(part, element, 0, at, (1 << width) - 1)
                else:
                    for bit in range(width):
                        yield _Run(part, element, bit, self.placement.place(part, element, bit), 1)


class _Run(NamedTuple):
    """Bits of a code that lie together in a word: those of `mask`, from `low` on, at bit `at`."""

    part: int
    element: int
    low: int
    at: int
    mask: int


class _Fives:
    """Where codes of 3 bits lie that become 16-bit operands.

    A group has 4 tiles of 16 units of 2 codes, a tile three words: words ``2 * tile`` and
    ``2 * tile + 1`` of the group, and ``8 + tile``, as if it were planes of 2 and 1 bits. A word
    has five units, whole: :data:`UNITS`. The codes of the one at place p have the bits from
    ``3 * p`` on of the word's halves. Bit 15 is left: that of word w is bit w of the codes of unit
    15. So units take fewer instructions than from planes, where their codes lie in two words.
    """

    TILES, PLACES, LEFT = 4, 5, 15
    #: Units of a tile by word and place.
    UNITS = ((0, 1, 2, 3, 12), (4, 5, 6, 7, 13), (8, 9, 10, 11, 14))

    def place(self, code: int, bit: int) -> tuple[int, int]:
        """Word of the group, bit of the word."""
        tile, unit, element = code // 32, code % 32 // 2, code % 2
        word, at = bit, self.LEFT
        for row, units in enumerate(self.UNITS):
            if unit in units:
                word, at = row, 3 * units.index(unit) + bit
        return 2 * tile + word if word < 2 else 8 + tile, 16 * element + at

    def pack(self, groups: torch.Tensor) -> torch.Tensor:
        """uint8 [..., 128] to int32 [..., 12]."""
        units = groups.unflatten(-1, (self.TILES, -1, 2)).to(torch.int32)
        left = units[..., -1, :]
        words = torch.stack([(left >> bit & 1) << self.LEFT for bit in range(3)], dim=-2)
        for place in range(self.PLACES):
            words |= units[..., [row[place] for row in self.UNITS], :] << 3 * place
        tiles = words[..., 0] | words[..., 1] << 16
        return torch.cat([tiles[..., :2].flatten(-2), tiles[..., 2]], dim=-1)

    def unpack(self, words: torch.Tensor) -> torch.Tensor:
        """Inverse of :meth:`pack`."""
        tiles = torch.cat([words[..., :8].unflatten(-1, (4, 2)), words[..., 8:, None]], dim=-1)
        halves = torch.stack([tiles, tiles >> 16], dim=-1)
        units = torch.zeros((*halves.shape[:-2], 16, 2), dtype=torch.uint8, device=words.device)
        for word in range(3):
            units[..., -1, :] |= (halves[..., word, :] >> self.LEFT & 1).to(torch.uint8) << word
        for place in range(self.PLACES):
            found = (halves >> 3 * place & 7).to(torch.uint8)
            units[..., [row[place] for row in self.UNITS], :] = found
        return units.flatten(-3)


_FIVES = _Fives()


def plane_layout(code: NumberFormat, target: NumberFormat) -> PlaneLayout:
    """How codes lie that are decoded to operands of format `target`."""
    placement = _PLACEMENTS.get(target.name) if code.name == "e2m1" else None
    unit = operand_unit(target)
    return PlaneLayout(code.bits, unit, placement, code.is_integer and (code.bits, unit) == (3, 2))
