"""Which function compiles which instruction, and how its modifiers are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from humming_sim.errors import PtxError, UnsupportedInstruction
from humming_sim.machine.code import End, Step
from humming_sim.ptx.model import BITS, Instruction

if TYPE_CHECKING:
    from humming_sim.isa.builder import Builder

__all__ = ["Entry", "Modifiers", "find", "instruction", "known_opcodes", "turning_point"]

_Compile = TypeVar("_Compile", bound=Callable[..., object])


@dataclass(frozen=True)
class Entry:
    """How an opcode is compiled.

    Attributes:
        compile: (Instruction, Builder) to a Step, or to an End for a turning point.
        ends: whether it ends a block.
        together: None, or whose lanes must come together: "warp" for all lanes (``.aligned``), or
            the index of the operand that is the membermask.
        manual: the section of the PTX manual.
    """

    compile: Callable[[Instruction, Builder], Step | End]
    ends: bool
    together: str | int | None
    manual: str


_ENTRIES: dict[tuple[str, ...], Entry] = {}


def instruction(
    *opcodes: str, manual: str, together: str | int | None = None
) -> Callable[[_Compile], _Compile]:
    """Mark a function as what compiles opcodes that start with these words.

    The entry of the longest start of an opcode counts: "cp.async.bulk" before "cp.async".
    """
    return _register(opcodes, False, together, manual)


def turning_point(
    *opcodes: str, manual: str, together: str | int | None = None
) -> Callable[[_Compile], _Compile]:
    """The same for instructions after which threads may go on elsewhere, or have to wait."""
    return _register(opcodes, True, together, manual)


def _register(
    opcodes: tuple[str, ...], ends: bool, together: str | int | None, manual: str
) -> Callable[[_Compile], _Compile]:
    def mark(function: _Compile) -> _Compile:
        for opcode in opcodes:
            key = tuple(opcode.split("."))
            if key in _ENTRIES:
                raise ValueError(f"{opcode} is compiled twice")
            _ENTRIES[key] = Entry(function, ends, together, manual)  # type: ignore[arg-type]
        return function

    return mark


def find(item: Instruction) -> Entry:
    """The entry of an instruction.

    Raises:
        UnsupportedInstruction: if there is none.
    """
    for length in range(len(item.words), 0, -1):
        entry = _ENTRIES.get(item.words[:length])
        if entry is not None:
            return entry
    raise UnsupportedInstruction(f"{item.opcode} is not simulated", item.line, item.text)


def known_opcodes() -> dict[str, Entry]:
    """All entries by their opcode's start, sorted."""
    return {".".join(key): _ENTRIES[key] for key in sorted(_ENTRIES)}


class Modifiers:
    """The words of an opcode after its start; each must be taken by somebody.

    A word that nobody takes is refused by :meth:`done`: an unknown modifier changes the meaning.
    """

    def __init__(self, item: Instruction, start: str) -> None:
        self._item = item
        self._words = list(item.words[len(start.split(".")) :])

    def __contains__(self, word: str) -> bool:
        return word in self._words

    def flag(self, word: str) -> bool:
        """Take a word that may be there."""
        if word in self._words:
            self._words.remove(word)
            return True
        return False

    def one_of(self, *words: str, default: str | None = None) -> str:
        """Take the first of these words that is there.

        Raises:
            PtxError: if none is and there is no default.
        """
        for word in self._words:
            if word in words:
                self._words.remove(word)
                return word
        if default is None:
            raise PtxError(
                f"{self._item.opcode} needs one of .{', .'.join(words)}",
                self._item.line,
                self._item.text,
            )
        return default

    def drop(self, *words: str) -> None:
        """Take words that change nothing here (cache hints and the like)."""
        for word in words:
            self.flag(word)

    def drop_prefix(self, *starts: str) -> None:
        """Take every word that starts so ("L2::")."""
        self._words = [word for word in self._words if not word.startswith(starts)]

    def type(self) -> str:
        """Take the last word, which must be a type of registers."""
        return self.types(1)[0]

    def types(self, count: int) -> list[str]:
        """Take the last `count` words, which must be types of registers."""
        found, self._words = self._words[-count:], self._words[:-count]
        if len(found) < count or any(word not in BITS for word in found):
            raise PtxError(
                f"{self._item.opcode} should end in {count} types that are known here",
                self._item.line,
                self._item.text,
            )
        return found

    def rest(self) -> list[str]:
        """Take all words that are left."""
        words, self._words = self._words, []
        return words

    def done(self) -> None:
        """Refuse what is left.

        Raises:
            UnsupportedInstruction: if any word was not taken.
        """
        if self._words:
            raise UnsupportedInstruction(
                f".{', .'.join(self._words)} of {self._item.opcode} is not simulated",
                self._item.line,
                self._item.text,
            )
