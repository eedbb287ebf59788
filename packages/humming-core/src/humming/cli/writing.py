"""What the commands that write checkpoints share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from humming.cli.layers import fold, weight_bytes
from humming.cli.output import Column, Output, UsageError, human_bytes
from humming.loading import load_checkpoint

__all__ = ["LazyMap", "copy_side_files", "new_path", "report_written"]

V = TypeVar("V")

#: Small files that a model needs beside its weights; what describes the weights is written anew.
_SIDE_SUFFIXES = {".json", ".txt", ".model", ".jinja", ".md"}
_NOT_COPIED = {
    "config.json",
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "quantize_config.json",
    "quant_config.json",
    "hf_quant_config.json",
    "quantization_config.json",
    "recipe.yaml",
}


class LazyMap(Mapping[str, V]):
    """Values made one at a time, when they are asked for."""

    def __init__(self, names: Iterable[str], make: Callable[[str], V]) -> None:
        self._names, self._make = tuple(names), make

    def __getitem__(self, name: str) -> V:
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def new_path(path: Path) -> None:
    """Refuse a path that exists, before any long work.

    Raises:
        UsageError: it exists.
    """
    if path.exists():
        raise UsageError(f"{path} exists already; name a new file or directory")


def copy_side_files(source: Path, target: Path) -> list[str]:
    """Copy tokenizer and the like from one directory to another; the names of what was copied."""
    if not (source.is_dir() and target.is_dir()):
        return []
    found = [
        path
        for path in sorted(source.iterdir())
        if path.is_file() and path.suffix in _SIDE_SUFFIXES and path.name not in _NOT_COPIED
    ]
    for path in found:
        shutil.copyfile(path, target / path.name)
    return [path.name for path in found]


def report_written(
    output: Output, source: Path, target: Path, rest: Sequence[str], copied: Sequence[str]
) -> None:
    """Open what was written, as anyone would, and say what it holds."""
    written = load_checkpoint(target)
    plans = [written.plan(name) for name in written]
    layers = [
        {"name": p.name, "scheme": str(p.scheme), "n": p.n, "k": p.k, "experts": p.experts,
         "bytes": weight_bytes(p)}
        for p in plans
    ]  # fmt: skip
    data: dict[str, Any] = {
        "input": str(source),
        "output": str(target),
        "layers": layers,
        "copied_tensors": list(rest),
        "copied_files": list(copied),
    }
    output.data(data)
    output.table(
        [Column("layer"), Column("count", right=True), Column("weight"),
         Column("memory", right=True)],
        [
            [name, str(count), scheme, human_bytes(count * size)]
            for name, count, (scheme, size) in fold(
                [(p.name, (str(p.scheme), weight_bytes(p))) for p in plans]
            )
        ],
    )  # fmt: skip
    if rest:
        output.line("\nTensors copied as they are")
        for name, count, _ in fold([(name, None) for name in rest]):
            output.line(f"  {name}" + (f"  ({count})" if count > 1 else ""))
    if copied:
        output.line(f"\nFiles copied: {', '.join(copied)}")
    total = human_bytes(sum(map(weight_bytes, plans)))
    output.line(f"\nwrote {target}: {len(plans)} layers, {total}")
