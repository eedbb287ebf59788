"""``humming simulate``: the command of this name that an installed simulator brings.

A distribution brings it as the entry point ``simulate`` of the group ``humming.commands``: a module
with ``configure`` and ``run``, like those of this package. Core has no simulator of its own.
"""

from __future__ import annotations

import argparse
from importlib import metadata
from typing import Any, NoReturn

from humming import settings
from humming.cli.output import Output
from humming.errors import HummingError, UnsupportedError

__all__ = ["configure", "run"]

_GROUP, _NAME = "humming.commands", "simulate"
_MEND = 'humming-sim brings this command: python -m pip install "humming-core[sim]"'


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the installed command; without one, say how to get it and stop."""
    # Now and not in run(): only the command itself knows its arguments.
    try:
        command = _load()
    except HummingError as error:
        _stop(parser, str(error))
    except Exception as error:  # somebody else's code, of which only this command depends
        _stop(parser, f"the simulator fails to load: {type(error).__name__}: {error}")
    parser.set_defaults(simulate=command.run)
    command.configure(parser)


def run(args: argparse.Namespace, output: Output) -> int:
    """Run the installed command."""
    status: int = args.simulate(args, output)
    return status


def _load() -> Any:
    """The module that the entry point names.

    Raises:
        UnsupportedError: nothing brings the command, or plugins are switched off.
        ConfigError: HUMMING_NO_PLUGINS is neither 1 nor 0.
    """
    if settings.flag("HUMMING_NO_PLUGINS"):
        raise UnsupportedError("HUMMING_NO_PLUGINS is set, and this command is a plugin's")
    for point in metadata.entry_points(group=_GROUP, name=_NAME):
        return point.load()
    raise UnsupportedError(_MEND)


def _stop(parser: argparse.ArgumentParser, reason: str) -> NoReturn:
    parser.exit(1, f"{parser.prog}: error: {reason}\n")
