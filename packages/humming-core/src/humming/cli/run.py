"""``humming run``: multiply by every layer of a checkpoint and compare with the float64 oracle."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from humming.checkpoints.base import LayerPlan
from humming.cli.layers import (
    GLOB_HELP,
    argument,
    chosen,
    counted,
    fold,
    model_output,
    scheme_text,
    shape_text,
    unreadable,
    weight_bytes,
    where,
)
from humming.cli.output import Column, Output, UsageError
from humming.cli.trial import Job, Outcome, attempt
from humming.errors import CheckpointError, UnsupportedError
from humming.formats.activation import ActivationScheme
from humming.formats.tensors import TORCH_FLOATS
from humming.loading import load_checkpoint
from humming.selection import verdicts

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("path", help="Hugging Face directory, .safetensors or .gguf file")
    parser.add_argument("--layer", action="append", default=[], metavar="GLOB", help=GLOB_HELP)
    parser.add_argument(
        "--m", type=_sizes, default=[1, 16, 256], metavar="SIZES",
        help="numbers of tokens, as in 1,16,256 (the default)",
    )  # fmt: skip
    parser.add_argument("--backend", metavar="NAME", help="only this one: see `humming plugins`")
    parser.add_argument(
        "--activation", type=argument(ActivationScheme.parse), metavar="FMT",
        help="what activations are turned into, such as bf16, fp8, int8, nvfp4; "
        "the default is what the checkpoint asks for, or the nearest that the device has",
    )  # fmt: skip
    parser.add_argument("--device", help="cpu or cuda:0; the default is the current GPU, else cpu")
    parser.epilog = (
        "The error is ||y - ref|| / ||ref|| over the whole result and over its worst row, ref\n"
        "being computed in float64 from the activations as quantized. It may be 4e-3 (bf16\n"
        "results), 1e-3 (f16) or 1e-5 (f32), and three times that in any row.\n"
        "Activations are N(0, 1) with one channel in a hundred times 50; the seed is fixed.\n"
        "Times are the least of a few calls, in ms."
    )


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = [0]
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected positive numbers, as in 1,16,256")
    return sizes


def run(args: argparse.Namespace, output: Output) -> int:
    """Print one row per layer and what went wrong; 1 if anything did."""
    device = where(args.device)
    if args.backend and args.backend not in {found.name for found in verdicts(device.profile)}:
        raise UsageError(f"there is no backend {args.backend!r}; `humming plugins` lists them")
    if device.identity is None or device.runtime not in ("", "cuda"):
        raise UnsupportedError(f"{device}: `humming run` computes through torch on cpu or cuda")
    checkpoint = load_checkpoint(args.path)
    if not len(checkpoint):
        raise CheckpointError(
            "nothing in it is quantized; `humming quantize` does that", path=checkpoint.path
        )
    plans = [checkpoint.plan(name) for name in chosen(checkpoint, args.layer)]
    named = args.activation is not None and not args.activation.is_quantized
    own = args.activation.format if named else model_output(checkpoint, device.profile)
    job = Job(
        sizes=args.m,
        dtype=TORCH_FLOATS[own.name],
        torch_device=device.identity.torch_device,
        backend=args.backend,
        activation=args.activation,
    )
    output.line(f"{checkpoint.path}: {checkpoint.family}, {counted(len(plans))} on {device}\n")
    outcomes, done = [], 0
    total = sum(map(weight_bytes, plans))
    with output.stream(_columns(plans, args.m)) as add, output.progress(total) as progress:
        for plan in plans:
            progress(done, plan.name)
            outcomes.append(attempt(checkpoint, plan, job))
            add(_row(outcomes[-1], len(args.m)))
            done += weight_bytes(plan)
    skipped = {} if args.layer else unreadable(checkpoint)
    passed = not skipped and all(outcome.status == "ok" for outcome in outcomes)
    output.data(
        {
            "path": str(checkpoint.path),
            "family": checkpoint.family,
            "device": {"name": str(device), "profile": device.profile.name},
            "m": args.m,
            "layers": [_data(outcome) for outcome in outcomes],
            "unreadable": [{"name": name, "type": kind} for name, kind in skipped.items()],
            "passed": passed,
        }
    )
    _print_summary(output, outcomes, skipped)
    return 0 if passed else 1


# -- what is printed -------------------------------------------------------------------------------


def _columns(plans: Sequence[LayerPlan], sizes: Sequence[int]) -> list[Column]:
    def width(texts: Sequence[str]) -> int:
        return max(map(len, texts), default=0)

    return [
        Column("layer", width=width([plan.name for plan in plans])),
        Column("weight", width=width([scheme_text(plan) for plan in plans])),
        Column("shape", width=width([shape_text(plan) for plan in plans])),
        Column("activation", width=16),
        Column("backend", width=9),
        Column("error", right=True, width=8),
        Column("worst row", right=True, width=9),
        *(Column(f"ms, m={m}", right=True, width=9) for m in sizes),
        Column("", width=10),
    ]


def _row(outcome: Outcome, sizes: int) -> list[str]:
    plan, prepared, trials = outcome.plan, outcome.prepared, outcome.trials
    status = outcome.status if outcome.status == "ok" else outcome.status.upper()
    head = [plan.name, scheme_text(plan), shape_text(plan)]
    head += [str(prepared.layer.activation), prepared.backend.name] if prepared else ["-", "-"]
    if not trials:
        return [*head, *["-"] * (2 + sizes), status]
    worst = outcome.worst
    times = [f"{trial.milliseconds:.3f}" for trial in trials]
    return [*head, f"{worst.whole:.2e}", f"{worst.worst_row:.2e}", *times, status]


def _print_summary(output: Output, outcomes: Sequence[Outcome], skipped: Mapping[str, str]) -> None:
    problems = [(o.plan.name, (o.status, o.reason)) for o in outcomes if o.status != "ok"]
    for name, count, (status, reason) in fold(problems):
        output.line(f"\n{status}: {name} ({counted(count)}): {reason}")
    for name, count, kind in fold(list(skipped.items())):
        output.line(f"\ncan't be read: {name} ({counted(count)}): {kind} has no standard form yet")
    good = len(outcomes) - len(problems)
    output.line(f"\n{good} of {len(outcomes) + len(skipped)} layers are within tolerance")
    computed = [outcome for outcome in outcomes if outcome.trials]
    if computed:
        worst = max(computed, key=lambda outcome: outcome.worst.whole)
        output.line(f"largest error {worst.worst.whole:.2e}, in {worst.plan.name}")


def _data(outcome: Outcome) -> dict[str, Any]:
    plan, prepared = outcome.plan, outcome.prepared
    layer = prepared.layer if prepared else None
    return {
        "name": plan.name,
        "scheme": str(plan.scheme),
        "n": plan.n,
        "k": plan.k,
        "experts": plan.experts,
        "bytes": weight_bytes(plan),
        "status": outcome.status,
        "reason": outcome.reason or None,
        "backend": prepared.backend.name if prepared else None,
        "activation": str(layer.activation) if layer else None,
        "output": str(layer.output) if layer else None,
        "tolerance": outcome.limit,
        "trials": [
            {
                "m": trial.m,
                "error": trial.deviation.whole,
                "worst_row": trial.deviation.worst_row,
                "ms": trial.milliseconds,
            }
            for trial in outcome.trials
        ],
    }
