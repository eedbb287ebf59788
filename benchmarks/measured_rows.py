"""Rows of a device's profile from what tune.py found: [[tuning.BACKEND]] in TOML."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["toml_rows"]


def toml_rows(
    lines: Iterable[Mapping[str, Any]],
    *,
    gain: float = 0.02,
    source: str = "",
    leave_out: Sequence[str] = (),
) -> str:
    """TOML with a row for each range of sizes where something is better than what is chosen.

    Args:
        lines: fields of tune.py's rows; those of another kind than "tuned" are passed over, and the
            last one counts of several about the same.
        gain: by what part of its time it must be faster.
        source: of every row.
        leave_out: conditions that rows shall not have.
    """
    # By backend and conditions, then by the largest size of a bucket.
    found: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for line in lines:
        if line.get("kind") == "tuned":
            kept = {key: value for key, value in line["when"].items() if key not in leave_out}
            found.setdefault((line["backend"], json.dumps(kept)), {})[line["rows"]] = line
    parts = []
    for (backend, when), by_size in found.items():
        parts += [
            _row(backend, {**json.loads(when), "m": sizes}, use, f"{source}: {note}")
            for sizes, use, note in _ranges(by_size, gain)
        ]
    return "\n".join(parts)


def _ranges(
    by_size: Mapping[int, Mapping[str, Any]], gain: float
) -> list[tuple[list[int], Mapping[str, Any], str]]:
    """(first and last size, tuning, times); neighbours with the same tuning are one range."""
    ranges: list[tuple[list[int], Mapping[str, Any], str]] = []
    last = 0
    for size in sorted(by_size):
        line = by_size[size]
        # What was not measured belongs to the next size that was, but only down to a half of it.
        first = max(last, size // 2) + 1
        if _is_better(line, gain):
            chosen = "nothing" if line["chosen_us"] is None else f"{line['chosen_us']:.1f}"
            note = f"{line['us']:.1f} us, not {chosen}"
            if ranges and ranges[-1][0][1] == first - 1 and ranges[-1][1] == line["best"]:
                (begin, _), use, notes = ranges.pop()
                ranges.append(([begin, size], use, f"{notes}; {note}"))
            else:
                ranges.append(([first, size], line["best"], note))
        last = size
    return ranges


def _is_better(line: Mapping[str, Any], gain: float) -> bool:
    if line["best"] == line["chosen"]:
        return False
    return line["chosen_us"] is None or bool(line["us"] < line["chosen_us"] * (1 - gain))


def _row(backend: str, when: Mapping[str, Any], use: Mapping[str, Any], source: str) -> str:
    lines = [f"[[tuning.{backend}]]", f"when = {_table(when)}", f"use = {_table(use)}"]
    return "\n".join([*lines, f"source = {json.dumps(source)}", ""])


def _table(values: Mapping[str, Any]) -> str:
    # Texts, numbers, booleans and lists of numbers are written alike in JSON and TOML.
    return "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in values.items()) + " }"
