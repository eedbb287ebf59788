"""What the command prints: lines for people, or one JSON object."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

__all__ = ["Output", "Printer", "columns"]


class Printer(Protocol):
    """What the command needs of an output; that of the ``humming`` command is one as well."""

    def line(self, text: str = "") -> None:
        """Print a line for people."""
        ...

    def data(self, data: Mapping[str, Any]) -> None:
        """Set what ``--json`` prints."""
        ...


class Output:
    """Standard output of ``python -m humming_sim``."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._data: Mapping[str, Any] = {}

    def line(self, text: str = "") -> None:
        """Print a line for people."""
        if not self._as_json:
            _write(text)

    def data(self, data: Mapping[str, Any]) -> None:
        """Set what ``--json`` prints."""
        self._data = data

    def finish(self) -> None:
        """Print the JSON object, if that was asked for."""
        if self._as_json:
            _write(json.dumps(_plain(self._data), indent=2, allow_nan=False))


def columns(rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Rows of cells as lines, the cells of a column below each other; the last is ragged."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join(padded).rstrip()


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()  # a reader that has left is noticed here, not at exit


def _plain(value: Any) -> Any:
    """`value` as JSON has it: NaN and infinities, which JSON lacks, become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
