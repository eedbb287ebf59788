"""Headers of our own packages: what a source includes, and what those include, as bytes.

Kernels include nothing else: ``#include <ROOT/path.cuh>``, where ROOT is registered here. A
compiler gets the text of each header by that name, so no folder of this machine can show up in
what it makes, and two installations in different places have the same keys.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from humming.errors import CompileError

if TYPE_CHECKING:
    if sys.version_info >= (3, 11):
        from importlib.resources.abc import Traversable
    else:
        from importlib.abc import Traversable

__all__ = ["HeaderRoots"]

# What must not be searched for includes: comments, and strings that look like comments.
_SKIPPED = re.compile(
    r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|//(?:\\\n|[^\n])*|/\*.*?\*/""", re.DOTALL
)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*include\b[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_NAME = re.compile(r"<(\w+)/((?:[\w-]+/)*[\w-]+(?:\.[\w-]+)+)>", re.ASCII)

#: Where errors say an include stands if it does not stand in a header.
_ANY_TARGET = "any target"


class _Include(NamedTuple):
    written: str  # with its brackets
    line: int


class HeaderRoots:
    """Folders of headers by the first part of their names: ``{"humming": .../include/humming}``.

    A file is read once in the life of this object; nothing but its bytes matters.
    """

    def __init__(self, roots: Mapping[str, Traversable]) -> None:
        self._roots = dict(roots)
        self._read: dict[str, tuple[bytes, tuple[_Include, ...]] | None] = {}

    def closure(self, source: str, name: str) -> tuple[tuple[str, bytes], ...]:
        """All headers that `source` needs, directly or not, sorted by name.

        Every ``#include`` counts, also one that a preprocessor would skip.

        Args:
            source: CUDA C++ text.
            name: what errors call it.

        Raises:
            CompileError: an include that names no header of ours; says where it stands.
        """
        found: dict[str, bytes] = {}
        seen: set[str] = set()
        waiting = [(name, include) for include in _includes(source)]
        while waiting:
            includer, include = waiting.pop()
            if include.written in seen:
                continue
            seen.add(include.written)
            header = include.written[1:-1]
            found[header], inner = self._header(name, includer, include)
            waiting += [(header, further) for further in inner]
        return tuple(sorted(found.items()))

    def _header(
        self, program: str, includer: str, include: _Include
    ) -> tuple[bytes, tuple[_Include, ...]]:
        parts = _NAME.fullmatch(include.written)
        if parts is None:
            why = "headers are included as <ROOT/path.cuh>, with the whole name"
        elif parts[1] not in self._roots:
            known = ", ".join(sorted(self._roots)) or "none"
            why = f"{parts[1]!r} is no folder of ours; these are: {known}"
        elif (header := self._load(parts[1], parts[2])) is None:
            why = f"{parts[1]!r} has no such header"
        else:
            return header
        where = f"{includer}, line {include.line}"
        raise CompileError(program, _ANY_TARGET, where, f"#include {include.written}: {why}")

    def _load(self, root: str, path: str) -> tuple[bytes, tuple[_Include, ...]] | None:
        name = f"{root}/{path}"
        if name not in self._read:
            file = self._roots[root]
            for part in path.split("/"):
                file = file / part
            text = file.read_bytes() if file.is_file() else None
            self._read[name] = None if text is None else (text, tuple(_includes(text.decode())))
        return self._read[name]


def _includes(text: str) -> Iterator[_Include]:
    """The ``#include`` lines of a text, with the number of each."""
    text = text.replace("\r\n", "\n")
    code = _SKIPPED.sub(lambda part: part[1] or re.sub(r"[^\n]", " ", part[0]), text)
    for directive in _DIRECTIVE.finditer(code):
        yield _Include(directive[1], code.count("\n", 0, directive.start()) + 1)
