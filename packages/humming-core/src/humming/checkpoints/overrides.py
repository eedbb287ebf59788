"""Per-layer rules of a quantization config: what a layer's settings are, or that it has none."""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from humming.checkpoints.base import matches
from humming.errors import CheckpointError

__all__ = ["Overrides", "Settings"]

log = logging.getLogger("humming.checkpoints")

_DOTTED = re.compile(r"[\w-]+(\.[\w-]+)*")


@dataclass(frozen=True)
class Settings:
    """A quantization config, or one with a layer's own settings put over it.

    Attributes:
        values: as found in JSON.
        path: of the checkpoint, for messages.
    """

    values: Mapping[str, Any]
    path: object

    def over(self, values: Mapping[str, Any]) -> Settings:
        """These settings with `values` put over them; null means not given."""
        given = {key: value for key, value in values.items() if value is not None}
        return Settings({**self.values, **given}, self.path)

    def get(self, key: str, kind: type, *default: Any) -> Any:
        """The value of `key`, which must be of type `kind`; the default if absent or null.

        Raises:
            CheckpointError: another type, or absent without a default.
        """
        value = self.values.get(key)
        if value is None and default:
            return default[0]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.error(key, kind.__name__)
        return value

    def choice(self, key: str, allowed: Iterable[Any], *default: Any) -> Any:
        """Like :meth:`get`, for a value that must be one of `allowed`."""
        allowed = tuple(allowed)
        value = self.get(key, type(allowed[0]), *default)
        if value not in allowed:
            raise self.error(key, " or ".join(map(str, allowed)))
        return value

    def group_size(self, key: str = "group_size") -> int:
        """Inputs per scale; 0 where the config says -1, one scale per output."""
        value: int = self.get(key, int)
        if value != -1 and value < 1:
            raise self.error(key, "a positive size, or -1 for one scale per output")
        return max(value, 0)

    def names(self, key: str) -> tuple[str, ...]:
        """A list of names; () if absent."""
        value = self.get(key, list, [])
        if not all(isinstance(name, str) for name in value):
            raise self.error(key, "a list of names")
        return tuple(value)

    def refuse(self, *keys: str, why: str) -> None:
        """Raise if one of `keys` has a value other than null, false or empty."""
        for key in keys:
            if self.values.get(key):
                raise CheckpointError(
                    f"quantization config: {key}={self.values[key]!r} is not supported: {why}",
                    path=self.path,
                )

    def error(self, key: str, expected: str) -> CheckpointError:
        """What to raise about the value of `key`."""
        return CheckpointError(
            f"quantization config: {key}={self.values.get(key)!r}, expected {expected}",
            path=self.path,
        )


@dataclass(frozen=True)
class _Rule:
    text: str
    settings: Mapping[str, Any] | None  # None: the layer is not quantized
    applies: Callable[[str], bool]


class Overrides:
    """Rules in order; the first one that applies to a layer decides."""

    def __init__(self, rules: Sequence[_Rule]) -> None:
        self._rules = rules

    @classmethod
    def dynamic(cls, rules: Mapping[str, Any], path: object) -> Overrides:
        """GPTQModel's ``dynamic``: regular expressions, matched from the start of the name.

        ``-:`` before the expression excludes a layer; ``+:`` or nothing gives it settings.
        """
        found = []
        for text, settings in rules.items():
            excluded = text.startswith("-:")
            pattern = _compiled(text[2:] if text[:2] in ("-:", "+:") else text, text, path)
            values = None if excluded else _mapping(text, settings, path)
            found.append(_Rule(text, values, partial(_starts, pattern)))
        return cls(found)

    @classmethod
    def extra_config(cls, rules: Mapping[str, Any], path: object) -> Overrides:
        """AutoRound's ``extra_config``: layer names first, then the other keys in order.

        A key that is no layer is a dotted name, meant as :func:`matches` says, or else a
        regular expression that is searched for in the name.
        """
        exact, others = [], []
        for text, settings in rules.items():
            own = _mapping(text, settings, path)
            values = None if own.get("bits") in (16, 32) else own
            exact.append(_Rule(text, values, partial(operator.eq, text)))
            if _DOTTED.fullmatch(text):
                others.append(_Rule(text, values, partial(matches, pattern=text)))
            else:
                pattern = _compiled(text, text, path)
                others.append(_Rule(text, values, partial(_contains, pattern)))
        return cls([*exact, *others])

    def settings(self, layer: str) -> Mapping[str, Any] | None:
        """What a layer has of its own: {} if nothing, None if it is not quantized."""
        return next((rule.settings for rule in self._rules if rule.applies(layer)), {})

    def report_unused(self, modules: Iterable[str]) -> None:
        """Log the rules that apply to none of `modules`.

        They may be misspelt. That does no harm beyond itself: what a file holds is known from
        its tensors, and settings that do not fit them are errors.
        """
        names = list(modules)
        used = {rule.text for rule in self._rules if any(map(rule.applies, names))}
        unused = [text for text in dict.fromkeys(r.text for r in self._rules) if text not in used]
        if unused:
            log.info("per-layer rules that match no module: %s", ", ".join(unused))


def _compiled(pattern: str, text: str, path: object) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise CheckpointError(f"per-layer rule {text!r}: {error}", path=path) from None


def _starts(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.match(name) is not None


def _contains(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.search(name) is not None


def _mapping(text: str, settings: object, path: object) -> Mapping[str, Any]:
    if not isinstance(settings, dict):
        raise CheckpointError(
            f"per-layer rule {text!r}: expected an object, found {settings!r}", path=path
        )
    return settings
