"""``humming matrix``: the support matrix as Markdown, and whether a page has the current one."""

from __future__ import annotations

import argparse
from pathlib import Path

from humming.cli.output import Output
from humming.errors import HummingError
from humming.support import markdown, replace_block, support

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--check", type=Path, metavar="FILE", help="exit with 1 unless FILE has the current matrix"
    )
    what.add_argument("--write", type=Path, metavar="FILE", help="put the current matrix in FILE")


def run(args: argparse.Namespace, output: Output) -> int:
    """Print, check or write the matrix."""
    rows = support()
    current = True
    if args.check or args.write:
        page = args.check or args.write
        text = page.read_text(encoding="utf-8")
        try:
            wanted = replace_block(text, markdown(rows))
        except HummingError as error:
            raise HummingError(f"{page}: {error}") from None
        current = text == wanted
    output.data({"current": current, "rows": [row.as_dict() for row in rows]})
    if args.write:
        if not current:
            args.write.write_text(wanted, encoding="utf-8")
        output.line(f"{args.write}: {'is current' if current else 'updated'}")
        return 0
    if args.check:
        mend = f"is stale; `humming matrix --write {args.check}` updates it"
        output.line(f"{args.check}: {'is current' if current else mend}")
        return 0 if current else 1
    output.line(markdown(rows))
    return 0
