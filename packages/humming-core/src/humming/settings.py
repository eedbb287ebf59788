"""The only reader of environment variables.

One row per variable in :data:`VARIABLES`; `docs/env.md` and ``humming doctor`` print the table.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from humming.errors import ConfigError

__all__ = ["VARIABLES", "Variable", "flag", "paths", "text"]


@dataclass(frozen=True)
class Variable:
    """One environment variable: its name, what it does, and what it is when unset."""

    name: str
    meaning: str
    default: str = ""


VARIABLES = {
    v.name: v
    for v in (
        Variable("HUMMING_BACKEND", "backend to use when none is named in the call"),
        Variable("HUMMING_PROFILE_PATH", "folders of device profiles, searched first"),
        Variable("HUMMING_ALLOW_FALLBACK", "0 forbids a wider activation type", "1"),
        Variable("HUMMING_NO_PLUGINS", "1 loads only what humming-core contains", "0"),
        Variable("HUMMING_CACHE_DIR", "where compiled kernels are kept"),
    )
}

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off", ""}


def text(name: str) -> str:
    """Value of `name`, or its default; KeyError if it is not in :data:`VARIABLES`."""
    return os.environ.get(name, VARIABLES[name].default)


def flag(name: str) -> bool:
    """Value of `name` as a yes or no.

    Raises:
        ConfigError: the value is neither.
    """
    value = text(name).strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise ConfigError(name, text(name), "1 or 0")


def paths(name: str) -> list[str]:
    """Value of `name` split like PATH; empty parts dropped."""
    return [part for part in text(name).split(os.pathsep) if part]
