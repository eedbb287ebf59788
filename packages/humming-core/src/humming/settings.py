"""The only reader of environment variables.

One row per variable in :data:`VARIABLES`; `docs/env.md` and ``humming doctor`` print the table.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from humming.errors import ConfigError

__all__ = ["VARIABLES", "Variable", "child_environment", "flag", "paths", "size", "text"]


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
        Variable("HUMMING_CACHE_READONLY", "folders of compiled kernels, searched after it"),
        Variable("HUMMING_CACHE_LIMIT", "size above which the least used are removed", "2GiB"),
        Variable("HUMMING_NO_JIT", "1 makes compiling a kernel an error that names it", "0"),
        Variable("HUMMING_NVCC", "path of an nvcc to compile with instead of NVRTC"),
        Variable("HUMMING_EXPLAIN", "1 logs why a kernel was chosen, once per problem", "0"),
    )
}

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off", ""}

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(|b|k|m|g|t|kb|mb|gb|tb|kib|mib|gib|tib)", re.IGNORECASE)


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


def size(name: str) -> int | None:
    """Value of `name` as a number of bytes; None if it is "none".

    Raises:
        ConfigError: it is neither.
    """
    value = text(name).strip().lower()
    if value == "none":
        return None
    found = _SIZE.fullmatch(value)
    if found is None:
        raise ConfigError(name, text(name), 'a size such as "500MB" or "2GiB", or "none"')
    number, unit = found.groups()
    base = 1024 if unit.endswith("ib") or len(unit) == 1 else 1000
    return int(float(number) * base ** ("bkmgt".index(unit[0]) if unit else 0))


def child_environment(*, without: tuple[str, ...]) -> dict[str, str]:
    """The environment for a program that we start, less some variables that would change it."""
    return {name: value for name, value in os.environ.items() if name not in without}
