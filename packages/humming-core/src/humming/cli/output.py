"""What commands print: tables for people, JSON for programs, progress on a terminal."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["Column", "Output", "Progress", "UsageError", "human_bytes"]

#: Called with (steps done, what is being worked on).
Progress = Callable[[float, str], None]


class UsageError(Exception):
    """Arguments that parse but make no sense together; exit status 2."""


@dataclass(frozen=True)
class Column:
    """A column of a table: its title, alignment, and the least width when rows are streamed."""

    title: str
    right: bool = False
    width: int = 0


class Output:
    """Standard output of one command.

    With ``as_json`` only :meth:`finish` writes: the one object given to :meth:`data`. Without,
    tables are drawn by rich on a terminal and are plain, uncoloured and uncut elsewhere.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self._data: Mapping[str, Any] = {}

    def data(self, data: Mapping[str, Any]) -> None:
        """Set what ``--json`` prints; keys are part of the interface."""
        self._data = data

    def line(self, text: str = "") -> None:
        """Print a line for people."""
        if not self.as_json:
            _write(text)

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
        """Print a table for people."""
        if self.as_json:
            return
        if sys.stdout.isatty():
            _draw(columns, rows)
            return
        lines = [[column.title for column in columns], *rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
        for line in lines:
            _write(_aligned(line, columns, widths))

    @contextmanager
    def stream(self, columns: Sequence[Column]) -> Iterator[Callable[[Sequence[str]], None]]:
        """A table whose rows come slowly: printed one by one, or drawn at the end on a terminal."""
        rows: list[Sequence[str]] = []
        if self.as_json or sys.stdout.isatty():
            try:
                yield rows.append
            finally:  # an interrupted table is shown as far as it got
                if rows:
                    self.table(columns, rows)
            return
        widths = [max(len(column.title), column.width) for column in columns]
        _write(_aligned([column.title for column in columns], columns, widths))
        yield lambda row: _write(_aligned(row, columns, widths))

    @contextmanager
    def progress(self, total: float) -> Iterator[Progress]:
        """A bar on standard error while a terminal is there to show it, else nothing."""
        if not sys.stderr.isatty():
            yield lambda done, what: None
            return
        # Only here: rich takes a tenth of a second to import.
        from rich import progress
        from rich.console import Console

        bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        with bar:
            task = bar.add_task("", total=total)
            yield lambda done, what: bar.update(task, completed=done, description=what)

    def finish(self) -> None:
        """Print the JSON object, if that was asked for."""
        if self.as_json:
            _write(json.dumps(_plain(self._data), indent=2, allow_nan=False))


def human_bytes(count: float) -> str:
    """``"12.5 MiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()  # rows of long work show up in a pipe as they come


def _aligned(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    padded = (
        cell.rjust(width) if column.right else cell.ljust(width)
        for cell, column, width in zip(cells, columns, widths, strict=True)
    )
    return "  ".join(padded).rstrip()


def _draw(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(
            Text(column.title), justify="right" if column.right else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def _plain(value: Any) -> Any:
    """`value` as JSON has it: NaN and Inf, which JSON lacks, become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
