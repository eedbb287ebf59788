"""``humming simulate``: run a kernel of a PTX file, in several orders, and say what it does wrong.

`configure` and `run` are what the ``humming`` command asks of a command; :func:`main` is
``python -m humming_sim``, which needs no humming-core. The exit status is 0 if nothing is wrong,
1 for a finding, a refused launch or a stale page, and 2 if the arguments make no sense.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from humming_sim.cli.listing import list_kernels
from humming_sim.cli.output import Output, Printer
from humming_sim.cli.running import run_kernel
from humming_sim.cli.values import parse_spec
from humming_sim.errors import SimulatorError
from humming_sim.findings import CHECKS
from humming_sim.instructions import page

__all__ = ["configure", "main", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.set_defaults(program=parser.prog)
    parser.epilog = (
        "An argument of the kernel, in the order of its parameters, is one of\n"
        "  --arg f32:1024          a buffer of 1024 zeros\n"
        "  --arg f32:1024:FILL     filled with zeros, random, arange, a number or a .npy file\n"
        "  --arg weights.npy       a buffer with a file's numbers\n"
        "  --arg u32=7             a scalar\n"
        "TYPE is a type of PTX of whole bytes: u8 to u64, s8 to s64, f16, bf16, f32, f64, e4m3...\n"
        "Kernels that take tensor maps or structs are run from Python: see docs/simulator.md."
    )
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE", help="PTX text")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--list", action="store_true", help="show the kernels of FILE and their parameters"
    )
    what.add_argument(
        "--coverage", action="store_true", help="print the simulated instructions as Markdown"
    )
    page_of = parser.add_mutually_exclusive_group()
    page_of.add_argument(
        "--check", type=Path, metavar="PAGE", help="with --coverage: 1 unless PAGE is current"
    )
    page_of.add_argument(
        "--write", type=Path, metavar="PAGE", help="with --coverage: bring PAGE up to date"
    )
    _configure_launch(parser)
    _configure_checking(parser)


def _configure_launch(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the launch")
    group.add_argument("--entry", metavar="NAME", help="the kernel, if FILE has several")
    for name, default in (("grid", "1"), ("block", "what the kernel requires")):
        group.add_argument(
            f"--{name}", type=_shape, metavar="X[,Y[,Z]]", help=f"default: {default}"
        )
    group.add_argument("--cluster", type=_shape, metavar="X[,Y[,Z]]", help="CTAs of a cluster")
    group.add_argument("--smem", type=int, default=0, metavar="BYTES", help="dynamic shared memory")
    group.add_argument(
        "--arg", type=parse_spec, action="append", default=[], metavar="ARG", dest="specs",
        help="an argument of the kernel, see below; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--device", metavar="PROFILE", help="a device of `humming profiles` whose limits count"
    )
    group.add_argument(
        "--accumulation", choices=("exact", "hardware"), default="exact",
        help="how matrix instructions add up (default: exact)",
    )  # fmt: skip


def _configure_checking(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is looked at")
    group.add_argument(
        "--seeds", type=int, default=3, metavar="N",
        help="random orders to run in, after the usual one (default: 3)",
    )  # fmt: skip
    group.add_argument(
        "--tolerance", type=float, default=0.0, metavar="T",
        help="what results may depend on the order, as a share of the largest (default: 0)",
    )  # fmt: skip
    group.add_argument(
        "--skip", type=_checks, default=(), metavar="CHECK,...",
        help=f"checks to leave out: all, or of {', '.join(CHECKS)}",
    )  # fmt: skip
    group.add_argument(
        "--report", action="store_true",
        help="count instructions, bank conflicts and memory sectors",
    )  # fmt: skip
    group.add_argument("--out", type=Path, metavar="FILE.npz", help="save all buffers afterwards")


def run(args: argparse.Namespace, output: Printer) -> int:
    """Do what the arguments say and return the exit status.

    Raises:
        argparse.ArgumentError: they make no sense together.
        OSError: a file can't be read or written.
    """
    if args.coverage:
        return _coverage(args, output)
    if args.check or args.write:
        raise argparse.ArgumentError(None, "--check and --write go with --coverage")
    if args.file is None:
        raise argparse.ArgumentError(None, "FILE is missing")
    try:
        ptx = args.file.read_text(encoding="utf-8")
        return list_kernels(ptx, output) if args.list else run_kernel(ptx, args, output)
    except (SimulatorError, UnicodeDecodeError) as error:
        sys.stderr.write(f"{args.program}: error: {error}\n")
        return 1


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m humming_sim``: run the command and return its exit status.

    Args:
        argv: arguments without the program's name; None takes the process's own.
    """
    parser = argparse.ArgumentParser(
        prog="python -m humming_sim",
        description="Run a kernel of a PTX file in a simulator and report what it does wrong.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    configure(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    args = parser.parse_args(argv)
    output = Output(as_json=args.json)
    try:
        status = run(args, output)
        output.finish()
        return status
    except argparse.ArgumentError as error:
        parser.error(str(error))
    except BrokenPipeError:  # the reader has seen enough
        # Python flushes standard output once more at exit, which would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        sys.stderr.write(f"{parser.prog}: error: {error}\n")
    return 1


def _coverage(args: argparse.Namespace, output: Printer) -> int:
    wanted = page()
    where = args.check or args.write
    if where is None:
        output.data({"page": wanted})
        output.line(wanted.rstrip("\n"))
        return 0
    current = where.is_file() and where.read_text(encoding="utf-8") == wanted
    output.data({"current": current})
    if args.write:
        where.write_text(wanted, encoding="utf-8")
        output.line(f"{where}: {'is current' if current else 'updated'}")
        return 0
    mend = f"is stale; `{args.program} --coverage --write {where}` updates it"
    output.line(f"{where}: {'is current' if current else mend}")
    return 0 if current else 1


def _shape(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not 1 <= len(numbers) <= 3 or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not one to three positive numbers")
    return numbers


def _checks(text: str) -> tuple[str, ...]:
    names = tuple(CHECKS) if text == "all" else tuple(text.split(","))
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no check {unknown[0]!r}; there are {', '.join(CHECKS)}")
    return names
