"""``humming inspect``: what is in a checkpoint, and what would run it, from headers alone."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from humming.checkpoints.base import LayerPlan
from humming.checkpoints.checkpoint import Checkpoint
from humming.cli.layers import (
    GLOB_HELP,
    chosen,
    counted,
    fold,
    model_output,
    planned,
    scheme_text,
    shape_text,
    tensor_bytes,
    unreadable,
    weight_bytes,
    where,
)
from humming.cli.output import Column, Output, human_bytes
from humming.errors import HummingError
from humming.formats.number import NumberFormat
from humming.loading import load_checkpoint
from humming.selection import Device, select_backend, verdicts

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("path", help="Hugging Face directory, .safetensors or .gguf file")
    parser.add_argument("--layer", action="append", default=[], metavar="GLOB", help=GLOB_HELP)
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--device", help="a device that is here: cpu, cuda:0, RUNTIME:DEVICE")
    place.add_argument("--profile", help="hardware that is not here: see `humming profiles`")
    parser.add_argument("--all", action="store_true", help="one row per layer, nothing folded")


@dataclass(frozen=True)
class Choice:
    """What a layer would get on a device."""

    backend: str | None
    activation: str | None
    problem: str  # why it gets nothing; ""
    refusals: tuple[tuple[str, str, str], ...]  # backend, distribution, reason


def run(args: argparse.Namespace, output: Output) -> int:
    """Print layers, choices and totals; 1 if nothing would run some layer."""
    device = where(args.device, args.profile)
    checkpoint = load_checkpoint(args.path)
    plans = [checkpoint.plan(name) for name in chosen(checkpoint, args.layer)]
    result = model_output(checkpoint, device.profile)
    # Models have few kinds of layers, and asking every backend takes a while.
    known: dict[LayerPlan, Choice] = {}
    choices = []
    for plan in plans:
        kind = _kind(plan)
        if kind not in known:
            known[kind] = _choose(kind, device, result)
        choices.append(known[kind])
    lost = {} if args.layer else unreadable(checkpoint)
    output.data(_data(checkpoint, device, list(zip(plans, choices, strict=True))))
    output.line(f"{checkpoint.path}: {checkpoint.family}, quantized: {counted(len(plans))}")
    output.line(f"on {device} (profile {device.profile.name})\n")
    _print_layers(output, plans, choices, args.all)
    if not args.layer:
        _print_unquantized(output, checkpoint, args.all)
    _print_totals(output, plans, checkpoint, bool(args.layer))
    _print_problems(output, plans, choices)
    for name, count, dtype in fold(list(lost.items())):
        output.line(f"\ncan't be read: {name} ({counted(count)}): {dtype} has no standard form yet")
    return 1 if lost or any(choice.backend is None for choice in choices) else 0


def _kind(plan: LayerPlan) -> LayerPlan:
    """The plan without what makes it one of many."""
    return LayerPlan(
        name="",
        n=plan.n,
        k=plan.k,
        experts=plan.experts,
        scheme=plan.scheme,
        activation=plan.activation,
        tensors=(),
        bias=plan.bias,
        act_order=plan.act_order,
    )


def _choose(plan: LayerPlan, device: Device, result: NumberFormat) -> Choice:
    try:
        layer, compute = planned(plan, device.profile, result)
    except HummingError as error:
        return Choice(None, None, str(error), ())
    refusals = tuple(
        (verdict.name, f"{verdict.distribution} {verdict.version}", verdict.reason)
        for verdict in verdicts(device.profile, layer, compute)
        if verdict.reason
    )
    activation = str(layer.activation)
    try:
        backend = select_backend(profile=device.profile, layer=layer, compute=compute)
    except HummingError as error:
        return Choice(None, activation, str(error), refusals)
    return Choice(backend.name, activation, "", refusals)


# -- for people ------------------------------------------------------------------------------------

_COLUMNS = (
    Column("layer"), Column("count", right=True), Column("weight"), Column("shape"),
    Column("bits", right=True), Column("memory", right=True), Column("extras"),
    Column("asks for"), Column("gets"), Column("backend"),
)  # fmt: skip


def _print_layers(
    output: Output, plans: Sequence[LayerPlan], choices: Sequence[Choice], every: bool
) -> None:
    facts = [
        (plan.name, (_kind(plan), choice)) for plan, choice in zip(plans, choices, strict=True)
    ]
    rows = [(name, 1, value) for name, value in facts] if every else fold(facts)
    if rows:
        output.table(
            _COLUMNS, [_row(name, count, plan, choice) for name, count, (plan, choice) in rows]
        )


def _row(name: str, count: int, plan: LayerPlan, choice: Choice) -> list[str]:
    extras = " ".join(["bias"] * plan.bias + ["act-order"] * plan.act_order)
    return [
        name,
        str(count),
        scheme_text(plan),
        shape_text(plan),
        f"{plan.scheme.bits_per_weight(plan.n, plan.k):.3f}",
        human_bytes(count * weight_bytes(plan)),
        extras,
        str(plan.activation or "-"),
        choice.activation or "-",
        choice.backend or "none",
    ]


def _print_unquantized(output: Output, checkpoint: Checkpoint, every: bool) -> None:
    facts = [
        (name, (info.dtype, info.shape, size))
        for name, info in checkpoint.unquantized.items()
        if (size := tensor_bytes(info)) is not None
    ]
    if not facts:
        return
    rows = [(name, 1, value) for name, value in facts] if every else fold(facts)
    output.line("\nLeft unquantized")
    output.table(
        [
            Column("matrix"),
            Column("count", right=True),
            Column("dtype"),
            Column("shape"),
            Column("memory", right=True),
        ],
        [
            [name, str(count), dtype, str(list(shape)), human_bytes(count * size)]
            for name, count, (dtype, shape, size) in rows
        ],
    )


def _print_totals(
    output: Output, plans: Sequence[LayerPlan], checkpoint: Checkpoint, filtered: bool
) -> None:
    totals = _totals(plans, checkpoint)
    output.line()
    if plans:
        output.line(
            f"quantized: {totals['weights']:,} weights, {human_bytes(totals['bytes'])}, "
            f"{totals['bits_per_weight']:.3f} bits per weight"
        )
    if not filtered and totals["unquantized"]:
        output.line(f"left unquantized: {human_bytes(totals['unquantized_bytes'])}")


def _print_problems(output: Output, plans: Sequence[LayerPlan], choices: Sequence[Choice]) -> None:
    counts: dict[tuple[str, str, str], int] = {}
    for choice in choices:
        for refusal in choice.refusals:
            counts[refusal] = counts.get(refusal, 0) + 1
    if counts:
        output.line("\nBackends that refuse")
        output.table(
            [Column("backend"), Column("from"), Column("layers", right=True), Column("reason")],
            [[name, origin, str(count), why] for (name, origin, why), count in counts.items()],
        )
    pairs = [(p.name, c.problem) for p, c in zip(plans, choices, strict=True) if c.problem]
    for name, count, problem in fold(pairs):
        output.line(f"\nnothing runs {name} ({counted(count)}): {problem}")


# -- for programs ----------------------------------------------------------------------------------


def _data(
    checkpoint: Checkpoint, device: Device, layers: Sequence[tuple[LayerPlan, Choice]]
) -> dict[str, Any]:
    return {
        "path": str(checkpoint.path),
        "family": checkpoint.family,
        "device": {"name": str(device), "profile": device.profile.name},
        "layers": [_layer_data(plan, choice) for plan, choice in layers],
        "unquantized": [
            {"name": name, "dtype": info.dtype, "shape": list(info.shape), "bytes": size}
            for name, info in checkpoint.unquantized.items()
            if (size := tensor_bytes(info)) is not None
        ],
        "unreadable": [
            {"name": name, "type": kind} for name, kind in unreadable(checkpoint).items()
        ],
        "totals": _totals([plan for plan, _ in layers], checkpoint),
    }


def _layer_data(plan: LayerPlan, choice: Choice) -> dict[str, Any]:
    return {
        "name": plan.name,
        "scheme": str(plan.scheme),
        "alias": plan.scheme.alias,
        "n": plan.n,
        "k": plan.k,
        "experts": plan.experts,
        "bits_per_weight": plan.scheme.bits_per_weight(plan.n, plan.k),
        "bytes": weight_bytes(plan),
        "bias": plan.bias,
        "act_order": plan.act_order,
        "asked_activation": None if plan.activation is None else str(plan.activation),
        "activation": choice.activation,
        "backend": choice.backend,
        "problem": choice.problem or None,
        "refusals": [
            {"backend": name, "distribution": origin, "reason": reason}
            for name, origin, reason in choice.refusals
        ],
    }


def _totals(plans: Sequence[LayerPlan], checkpoint: Checkpoint) -> dict[str, Any]:
    weights = sum(max(plan.experts, 1) * plan.n * plan.k for plan in plans)
    size = sum(weight_bytes(plan) for plan in plans)
    sizes = map(tensor_bytes, checkpoint.unquantized.values())
    plain = [size for size in sizes if size is not None]
    return {
        "layers": len(plans),
        "weights": weights,
        "bytes": size,
        "bits_per_weight": 8 * size / weights if weights else None,
        "unquantized": len(plain),
        "unquantized_bytes": sum(plain),
    }
