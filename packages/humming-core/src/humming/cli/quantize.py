"""``humming quantize``: a float checkpoint with its linear layers quantized, in humming's form."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from humming.checkpoints.checkpoint import Checkpoint
from humming.checkpoints.humming_form import save_checkpoint
from humming.cli.layers import argument, counted, matching
from humming.cli.output import Output
from humming.cli.writing import LazyMap, copy_side_files, new_path, report_written
from humming.errors import CheckpointError, ConfigError
from humming.formats.scheme import WeightScheme
from humming.loading import load_checkpoint
from humming.quantizing import quantize
from humming.weight import CanonicalWeight

__all__ = ["configure", "run"]

#: Matrices that are no linear layers, or that models keep in full precision: embeddings (those of
#: T5 too), the output head, norms, and routers of experts.
LEFT_ALONE = (
    "*embed*", "*wte", "*wpe", "shared", "*relative_attention_bias", "lm_head", "*.lm_head",
    "output", "*norm*", "*.gate", "*.shared_expert_gate", "*router*",
)  # fmt: skip
#: Model types whose projections are stored [K, N], as transformers' Conv1D.
_TRANSPOSED = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")
_FLOATS = ("F16", "BF16", "F32", "F64")


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("input", help="float Hugging Face directory or .safetensors file")
    parser.add_argument("output", type=Path, help="a new .safetensors file, or a new directory")
    parser.add_argument(
        "--scheme", required=True, type=argument(WeightScheme.parse),
        help="such as int4-g128, nvfp4, fp8-block or u4+z-g64-f16: see `humming formats`",
    )  # fmt: skip
    parser.add_argument(
        "--clip", choices=("max", "mse"), default="max",
        help="scales from the largest magnitude (max, the default), "
        "or searched for the least squared error (mse, slower)",
    )  # fmt: skip
    parser.add_argument(
        "--include", action="append", default=[], metavar="GLOB",
        help="quantize these layers instead of the usual ones; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--exclude", action="append", default=[], metavar="GLOB",
        help="leave these layers as they are; may be given several times",
    )  # fmt: skip
    parser.epilog = (
        "Quantized are the float matrices [N, K] called LAYER.weight, together with LAYER.bias;\n"
        "without --include all but those whose LAYER matches one of\n"
        f"  {'  '.join(LEFT_ALONE[:6])}\n"
        f"  {'  '.join(LEFT_ALONE[6:])}\n"
        "Everything else is copied as it is, and listed. * also matches dots."
    )


def run(args: argparse.Namespace, output: Output) -> int:
    """Quantize and write."""
    new_path(args.output)
    source = load_checkpoint(args.input)
    names = _layers(source, args.include, args.exclude)
    everything = set(source.tensor_names())
    biases = {name: f"{name}.bias" for name in names if f"{name}.bias" in everything}
    used = {f"{name}.weight" for name in names} | set(biases.values())
    rest = [name for name in source.tensor_names() if name not in used]
    sizes = {name: source.unquantized[name].shape[0] for name in names}
    with output.progress(len(names)) as progress:

        def layer(name: str) -> CanonicalWeight:
            step = names.index(name)

            def report(done: int, rows: int) -> None:
                progress(step + done / max(rows, 1), name)

            report(0, sizes[name])
            bias = source.tensor(biases[name]) if name in biases else None
            weight = source.tensor(f"{name}.weight")
            try:
                return quantize(weight, args.scheme, bias=bias, clip=args.clip, progress=report)
            except ConfigError as error:
                raise CheckpointError(f"layer {name!r}: {error}", path=source.path) from error

        save_checkpoint(
            args.output,
            LazyMap(names, layer),
            LazyMap(rest, source.tensor),
            model_config=source.model_config,
        )
    copied = copy_side_files(source.path, args.output)
    report_written(output, source.path, args.output, rest, copied)
    return 0


def _layers(source: Checkpoint, include: Sequence[str], exclude: Sequence[str]) -> list[str]:
    """Names of the layers to quantize, at least one.

    Raises:
        CheckpointError: quantized already, stored the other way round, or nothing to quantize.
        UsageError: a glob matches nothing.
    """
    if len(source):
        raise CheckpointError(
            f"quantized already: {counted(len(source))}, {source.family}; "
            f"`humming convert` writes them in humming's form",
            path=source.path,
        )
    if source.model_config.get("model_type") in _TRANSPOSED:
        raise CheckpointError(
            f"a {source.model_config['model_type']} model stores its projections as [K, N]; "
            f"expected [N, K] as nn.Linear has them",
            path=source.path,
        )
    linear = [
        name
        for name, info in source.unquantized.items()
        if len(info.shape) == 2 and info.dtype in _FLOATS and min(info.shape) > 0
    ]
    if include:
        names = matching(linear, include)
    else:
        names = [n for n in linear if not any(fnmatchcase(n, glob) for glob in LEFT_ALONE)]
    excluded = set(matching(linear, exclude))
    names = [name for name in names if name not in excluded]
    if not names:
        raise CheckpointError("no float matrix LAYER.weight is left to quantize", path=source.path)
    return names
