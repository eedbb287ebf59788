"""Templates to source text: Jinja with the little that a kernel's entry needs, and no more.

A template is written out from values alone. The same template and context give the same text on
every machine: no path, no date, no random number and no environment is in reach.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING

import jinja2

from humming.errors import CompileError

if TYPE_CHECKING:
    if sys.version_info >= (3, 11):
        from importlib.resources.abc import Traversable
    else:
        from importlib.abc import Traversable

__all__ = ["Renderer", "cpp", "cxx"]

_TEMPLATE = re.compile(r"(\w+)/((?:[\w-]+/)*[\w-]+(?:\.[\w-]+)+)", re.ASCII)
_TYPE = re.compile(r"[A-Za-z_][\w:<>, *&]*", re.ASCII)
_INT32, _INT64 = 2**31, 2**63


class Renderer:
    """Renders the templates of some packages, which go by ``ROOT/path.cu.j2``.

    Args:
        roots: the first part of templates' names, to the folder that holds them.
    """

    def __init__(self, roots: Mapping[str, Traversable]) -> None:
        self._roots = dict(roots)
        self._environment = jinja2.Environment(
            loader=jinja2.FunctionLoader(self._load),
            undefined=jinja2.StrictUndefined,
            autoescape=False,
            auto_reload=False,
            keep_trailing_newline=True,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals = {"range": range}  # without lipsum, which is random
        self._environment.filters |= {"cpp": cpp, "cxx": cxx}

    def render(self, template: str, context: object) -> str:
        """The text of a template.

        Args:
            template: its name, ``ROOT/path.cu.j2``.
            context: a frozen dataclass; its fields are the template's variables.

        Raises:
            CompileError: the template can't be rendered; says where in it and why.
        """
        if not _is_frozen(context):
            raise TypeError(f"{template}: the context must be a frozen dataclass, not {context!r}")
        names = [field.name for field in dataclasses.fields(context)]  # type: ignore[arg-type]
        try:
            compiled = self._environment.get_template(template)
            return compiled.render({name: getattr(context, name) for name in names})
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            where = _innermost(error, template)
            raise CompileError(template, "any target", where, _sentence(error)) from error

    def _load(self, name: str) -> tuple[str, str, Callable[[], bool]] | None:
        parts = _TEMPLATE.fullmatch(name)
        if parts is None or parts[1] not in self._roots:
            return None
        file = self._roots[parts[1]]
        for part in parts[2].split("/"):
            file = file / part
        if not file.is_file():
            return None
        text = file.read_bytes().decode().replace("\r\n", "\n")
        return text, name, lambda: True


def cpp(value: object) -> str:
    """A number, truth value, text, enum member or tuple of these as a C++ literal.

    A float becomes a ``float`` and an int too large for ``int`` a ``long long``. An enum member
    ``Split.STREAM_K`` becomes ``Split::kStreamK``.
    """
    if isinstance(value, Enum):
        words = value.name.lower().split("_")
        return f"{type(value).__name__}::k{''.join(word.capitalize() for word in words)}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no literal in C++")
        return f"{value!r}f"
    if isinstance(value, str):
        return '"' + "".join(map(_character, value.encode())) + '"'
    if isinstance(value, tuple):
        return "{" + ", ".join(map(cpp, value)) + "}"
    raise TypeError(f"{value!r} is nothing that the filter cpp can write")


def cxx(value: object) -> str:
    """The name of a C++ type: a text that is one, or the attribute ``cxx`` of an object."""
    name = value if isinstance(value, str) else getattr(value, "cxx", None)
    if isinstance(value, jinja2.Undefined) or not isinstance(name, str):
        raise TypeError(f"{value!r} names no C++ type: it is no text and has no attribute cxx")
    if not _TYPE.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a C++ type")
    return name


def _integer(value: int) -> str:
    if -_INT32 < value < _INT32:
        return str(value)
    if -_INT64 < value < _INT64:
        return f"{value}ll"
    if 0 < value < 2 * _INT64:
        return f"{value}ull"
    raise ValueError(f"{value} does not fit into 64 bits")


def _character(byte: int) -> str:
    if 32 <= byte < 127 and chr(byte) not in '"\\?':
        return chr(byte)
    return f"\\{byte:03o}"


def _is_frozen(context: object) -> bool:
    parameters = getattr(context, "__dataclass_params__", None)
    return bool(getattr(parameters, "frozen", False)) and not isinstance(context, type)


def _innermost(error: Exception, template: str) -> str:
    """Where in which template the error arose; Jinja puts templates' lines into tracebacks."""
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"{error.name or template}, line {error.lineno}"
    where, step = template, error.__traceback__
    while step is not None:
        if _TEMPLATE.fullmatch(step.tb_frame.f_code.co_filename):
            where = f"{step.tb_frame.f_code.co_filename}, line {step.tb_lineno}"
        step = step.tb_next
    return where


def _sentence(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateNotFound):
        return f"there is no template {error.name}"
    return f"{type(error).__name__}: {error}"
