"""The command line: which commands there are, what they share, and what exit statuses mean.

====  ==========================================================================
   0  fine
   1  the work found a problem: a refusal, a damaged file, numbers out of tolerance
   2  the arguments make no sense
 130  interrupted
====  ==========================================================================
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module, metadata
from typing import Any

from humming.cli.output import Output, UsageError
from humming.errors import HummingError

__all__ = ["COMMANDS", "run"]

#: Name and one line of help; the module ``humming.cli.NAME`` has ``configure`` and ``run``. It is
#: imported only when its command is asked for, so that none waits for another's imports.
COMMANDS = {
    "inspect": "what is in a checkpoint, and what would run each layer",
    "run": "multiply by every layer of a checkpoint and compare with a float64 reference",
    "quantize": "quantize a float checkpoint",
    "convert": "write any checkpoint in humming's own form",
    "formats": "number formats, and short names of weight and activation schemes",
    "devices": "devices of this machine, and what each of them would use",
    "profiles": "devices that humming knows, present or not",
    "simulate": "run a kernel of a PTX file in a simulator, and report what it does wrong",
    "compile": "compile ahead of time what the layers of a checkpoint need; needs no GPU",
    "cache": "compiled kernels: what is kept where, whether it is whole, and removing it",
    "plugins": "installed backends, loaders and runtimes, and what failed to load",
    "doctor": "check driver, compiler, torch, plugins and settings; say how to mend what is broken",
    "matrix": "the support matrix, as Markdown",
}


def run(argv: Sequence[str]) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name.

    Returns:
        The exit status; see the module.
    """
    try:
        command, args = _parse(argv)
    except SystemExit as stop:  # argparse has printed help, version or usage error
        return stop.code if isinstance(stop.code, int) else 2
    output = Output(as_json=args.json)
    try:
        status: int = command.run(args, output)
        output.finish()
        return status
    except (UsageError, argparse.ArgumentError) as error:
        return _report(error, args, 2)
    except (HummingError, OSError, MemoryError) as error:
        if isinstance(error, BrokenPipeError):
            return _reader_left()
        return _report(error, args, 1)
    except KeyboardInterrupt:
        sys.stderr.write("humming: interrupted\n")
        return 130


def _parse(argv: Sequence[str]) -> tuple[Any, argparse.Namespace]:
    """The command's module and the parsed arguments."""
    parser = argparse.ArgumentParser(
        prog="humming",
        description="Quantized matrix multiplication, from any checkpoint to any tensor core.",
        epilog="exit status: 0 fine; 1 a refusal, a damaged file or wrong numbers; 2 usage",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and stop")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    # No option before the command takes a value, so the first plain word is the command.
    chosen = next((word for word in argv if not word.startswith("-")), None)
    module: Any = None
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == chosen:
            module = import_module(f"humming.cli.{name}")
            module.configure(command)
        command.add_argument("--json", action="store_true", help="print one JSON object instead")
        command.add_argument(
            "--traceback", action="store_true", help="on an error, show where it was raised"
        )
    return module, parser.parse_args(argv)


class _Version(argparse.Action):
    """``--version``, which looks the version up only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        try:
            version = metadata.version("humming-core")
        except metadata.PackageNotFoundError:
            version = "(a source tree; humming-core is not installed)"
        sys.stdout.write(f"humming {version}\n")
        parser.exit()


def _report(error: Exception, args: argparse.Namespace, status: int) -> int:
    if args.traceback:
        sys.stderr.write("".join(traceback.format_exception(error)))
    message = str(error) or type(error).__name__
    sys.stderr.write(f"humming {args.command}: error: {message}\n")
    return status


def _reader_left() -> int:
    """The reader of our pipe is gone (``humming inspect ... | head``): stop without complaint."""
    # Python flushes standard output once more at exit, which would complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
