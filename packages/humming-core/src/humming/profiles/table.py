"""StrictTable: a TOML table that notes every problem with its key path instead of stopping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["StrictTable"]


@dataclass
class StrictTable:
    """One table being read: typed access to `entries`, and a note of every problem.

    Each getter returns an empty value when the key is absent or wrong, so that reading goes on.

    Attributes:
        entries: the table.
        path: its key path in the file, "" for the whole file.
        problems: shared by all tables of the file.
        seen: keys that were asked for; what else is there is a problem (:meth:`finish`).
    """

    entries: Mapping[str, Any]
    path: str
    problems: list[str]
    seen: set[str] = field(default_factory=set)

    def problem(self, key: str, text: str) -> None:
        """Note a problem of `key` (or of the table itself: "")."""
        where = self.path_of(key)
        self.problems.append(f"{where}: {text}" if where else text)

    def path_of(self, key: str) -> str:
        """Key path in the file."""
        return ".".join(part for part in (self.path, key) if part)

    def finish(self) -> None:
        """Note the keys that nobody asked for."""
        for key in self.entries:
            if key not in self.seen:
                known = ", ".join(sorted(self.seen)) or "none"
                self.problem(key, f"unknown key; known here: {known}")

    def table(self, key: str, required: bool = True) -> StrictTable:
        """A table in this one."""
        value = self._take(key, (dict,), required, "a table")
        return StrictTable(value or {}, self.path_of(key), self.problems)

    def tables(self, key: str) -> list[StrictTable]:
        """An array of tables."""
        found = []
        for index, item in enumerate(self._take(key, (list,), True, "an array of tables") or []):
            where = f"{key}[{index}]"
            if isinstance(item, dict):
                found.append(StrictTable(item, self.path_of(where), self.problems))
            else:
                self.problem(where, f"{item!r}: expected a table")
        return found

    def mapping(self, key: str) -> dict[str, Any]:
        """A table with any keys, at least one."""
        value = self._take(key, (dict,), True, "a table")
        if value == {}:
            self.problem(key, "empty: expected at least one entry")
        return dict(value or {})

    def text(self, key: str, required: bool = False) -> str:
        """A text that is not blank; "" if absent."""
        value = self._take(key, (str,), required, "a text")
        if value is not None and not value.strip():
            self.problem(key, "empty: expected a text")
        return value or ""

    def texts(self, key: str, required: bool = True) -> tuple[str, ...]:
        """A list of different texts."""
        value = self._take(key, (list,), required, "a list of texts") or []
        if not all(isinstance(item, str) and item for item in value):
            self.problem(key, f"{value!r}: expected a list of texts")
            return ()
        if len(set(value)) != len(value):
            self.problem(key, f"{value!r}: an entry appears twice")
        return tuple(value)

    def flag(self, key: str) -> bool:
        """A yes or no, which must be there."""
        return bool(self._take(key, (bool,), True, "true or false"))

    def integer(self, key: str, required: bool = False) -> int | None:
        """A whole number that is not negative."""
        value = self._take(key, (int,), required, "a whole number")
        if value is None or value >= 0:
            return None if value is None else int(value)
        self.problem(key, f"{value!r}: expected a whole number that is not negative")
        return None

    def number(self, key: str) -> float | None:
        """A positive finite number."""
        value = self._take(key, (int, float), False, "a positive number")
        if value is None or 0 < value < float("inf"):
            return None if value is None else float(value)
        self.problem(key, f"{value!r}: expected a positive number")
        return None

    def pair(self, key: str) -> tuple[int, int] | None:
        """Two whole numbers."""
        value = self._take(key, (list,), False, "[major, minor]")
        if value is None:
            return None
        if len(value) != 2 or not all(type(v) is int and v >= 0 for v in value):
            self.problem(key, f"{value!r}: expected [major, minor]")
            return None
        return value[0], value[1]

    def _take(self, key: str, kinds: tuple[type, ...], required: bool, expected: str) -> Any:
        """The value of `key` if it has one of `kinds`, else None and a note."""
        self.seen.add(key)
        if key not in self.entries:
            if required:
                self.problem(key, f"missing: expected {expected}")
            return None
        value = self.entries[key]
        if isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool)):
            return value
        self.problem(key, f"{value!r}: expected {expected}")
        return None
