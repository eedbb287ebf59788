"""``humming cache``: folders of compiled kernels, what is in them, and whether it is whole."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from humming import settings
from humming.cli.output import Column, Output, UsageError, human_bytes
from humming.jit import default_folder, upkeep

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """What to do, and in which folder."""
    parser.add_argument(
        "action",
        choices=("info", "verify", "clear"),
        help="info: what is kept where; verify: read every kernel and check it, exit status 1 if "
        "one is damaged; clear: remove all kernels, from the first folder only",
    )
    parser.add_argument(
        "--dir", type=Path, help="look at this folder alone instead of those that are set"
    )
    parser.epilog = (
        "The folders are those of HUMMING_CACHE_DIR and HUMMING_CACHE_READONLY. Nothing but files "
        "that humming wrote is ever removed. docs/cache.md explains more."
    )


def run(args: argparse.Namespace, output: Output) -> int:
    """Do one of the three."""
    if args.dir is not None and not args.dir.is_dir():
        raise UsageError(f"--dir {args.dir}: there is no such folder")
    first = args.dir if args.dir is not None else default_folder()
    folders = [] if first is None else [first]
    if args.dir is None:
        folders += [Path(folder) for folder in settings.paths("HUMMING_CACHE_READONLY")]
    if args.action == "info":
        return _info(folders, first, output)
    if args.action == "verify":
        return _verify(folders, output)
    return _clear(first, output)


@dataclass(frozen=True)
class _Summary:
    """What `info` says of one folder."""

    folder: Path
    use: str
    kernels: int
    refused: int
    nbytes: int
    oldest_use: float | None
    made_for: dict[str, int]


def _summarize(folder: Path, use: str) -> _Summary:
    entries = upkeep.entries(folder)
    kernels = [entry for entry in entries if entry.binary is not None]
    made_for: Counter[str] = Counter()
    for entry in kernels:
        assert entry.binary is not None, "filtered above"
        facts = upkeep.facts_of(entry.binary)
        if facts:
            made_for[f"{facts.get('arch')}, by {facts.get('compiler')}"] += 1
    return _Summary(
        folder=folder,
        use=use,
        kernels=len(kernels),
        refused=len(entries) - len(kernels),
        nbytes=sum(entry.nbytes for entry in entries),
        oldest_use=entries[0].used if entries else None,
        made_for=dict(sorted(made_for.items())),
    )


def _info(folders: list[Path], first: Path | None, output: Output) -> int:
    limit = settings.size("HUMMING_CACHE_LIMIT")
    summaries = [_summarize(f, "written" if f == first else "read only") for f in folders]
    output.data(
        {
            "limit_bytes": limit,
            "folders": [
                {
                    "folder": summary.folder,
                    "use": summary.use,
                    "exists": summary.folder.is_dir(),
                    "kernels": summary.kernels,
                    "refused_sources": summary.refused,
                    "bytes": summary.nbytes,
                    "oldest_use": summary.oldest_use,
                    "made_for": summary.made_for,
                }
                for summary in summaries
            ],
        }
    )
    output.table(
        [Column("folder"), Column("use"), Column("kernels", right=True),
         Column("size", right=True), Column("oldest use")],
        [
            [str(s.folder), s.use, str(s.kernels), human_bytes(s.nbytes), _day(s.oldest_use)]
            for s in summaries
        ],
    )  # fmt: skip
    for summary in summaries:
        for made_for, count in summary.made_for.items():
            output.line(f"{summary.folder}: {count} for {made_for}")
        if summary.refused:
            output.line(f"{summary.folder}: {summary.refused} sources that a compiler refused")
    output.line(f"limit: {'none' if limit is None else human_bytes(limit)}")
    return 0


def _verify(folders: list[Path], output: Output) -> int:
    checked = [found for folder in folders for found in upkeep.verify(folder)]
    damaged = [(path, problem) for path, problem in checked if problem]
    output.data(
        {
            "kernels": len(checked),
            "damaged": [{"file": path, "problem": problem} for path, problem in damaged],
        }
    )
    for path, problem in damaged:
        output.line(f"{path}: {problem}")
    output.line(f"{len(checked)} kernels, {len(damaged)} damaged")
    if damaged:
        output.line("a damaged kernel is never used; it is compiled again when it is needed")
    return 1 if damaged else 0


def _clear(folder: Path | None, output: Output) -> int:
    kernels, nbytes = (0, 0) if folder is None else upkeep.clear(folder)
    output.data({"folder": folder, "kernels": kernels, "bytes": nbytes})
    output.line(f"removed {kernels} kernels, {human_bytes(nbytes)}, from {folder or 'nowhere'}")
    return 0


def _day(seconds: float | None) -> str:
    return "" if seconds is None else time.strftime("%Y-%m-%d", time.localtime(seconds))
