"""``humming convert``: any checkpoint in humming's own form."""

from __future__ import annotations

import argparse
from pathlib import Path

from humming.checkpoints.humming_form import save_checkpoint
from humming.cli.layers import unreadable, weight_bytes
from humming.cli.output import Output
from humming.cli.writing import LazyMap, copy_side_files, new_path, report_written
from humming.errors import CheckpointError, UnsupportedError
from humming.loading import load_checkpoint
from humming.weight import CanonicalWeight

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("input", help="Hugging Face directory, .safetensors or .gguf file")
    parser.add_argument("output", type=Path, help="a new .safetensors file, or a new directory")


def run(args: argparse.Namespace, output: Output) -> int:
    """Write the checkpoint; its numbers are those of the input to the last bit."""
    new_path(args.output)
    source = load_checkpoint(args.input)
    if not len(source):
        raise CheckpointError(
            "nothing in it is quantized; `humming quantize` does that", path=source.path
        )
    for name, kind in unreadable(source).items():
        raise UnsupportedError(f"{source.path}: {name} is {kind}, which has no standard form yet")
    total = sum(weight_bytes(source.plan(name)) for name in source)
    with output.progress(total) as progress:
        done = 0.0

        def layer(name: str) -> CanonicalWeight:
            nonlocal done
            progress(done, name)
            done += weight_bytes(source.plan(name))
            return source[name]

        save_checkpoint(
            args.output,
            LazyMap(source, layer),
            LazyMap(source.tensor_names(), source.tensor),
            model_config=source.model_config,
        )
    copied = copy_side_files(source.path, args.output)
    report_written(output, source.path, args.output, list(source.tensor_names()), copied)
    return 0
