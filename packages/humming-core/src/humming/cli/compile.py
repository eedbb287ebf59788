"""``humming compile``: every kernel that a checkpoint's layers can need, made ahead of time."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from humming.backend import KernelBackend
from humming.checkpoints.base import LayerPlan
from humming.checkpoints.checkpoint import Checkpoint
from humming.cli.layers import (
    GLOB_HELP,
    argument,
    chosen,
    counted,
    fold,
    model_output,
    planned,
    scheme_text,
    shape_text,
    where,
)
from humming.cli.output import Column, Output
from humming.configs import OUTPUT_FORMATS, ComputeConfig, GemmKind, LayerConfig
from humming.engine import Workshop, needed_kernels
from humming.errors import CheckpointError, HummingError, UnsupportedError
from humming.formats.activation import ActivationScheme
from humming.formats.number import NumberFormat
from humming.formats.table import number_format
from humming.jit import Cache, KernelLibrary, Program
from humming.jit.upkeep import entries
from humming.loading import load_checkpoint
from humming.profiles import DeviceProfile
from humming.selection import select_backend

__all__ = ["configure", "run"]

#: Keys of a config.json that say how many experts a token chooses.
_TOP_K_KEYS = ("num_experts_per_tok", "experts_per_token", "moe_topk")


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("path", help="Hugging Face directory, .safetensors or .gguf file")
    parser.add_argument("--layer", action="append", default=[], metavar="GLOB", help=GLOB_HELP)
    parser.add_argument(
        "--profile", required=True, metavar="NAME",
        help="device to compile for: see `humming profiles`",
    )  # fmt: skip
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder to fill")
    parser.add_argument(
        "--dtype", type=argument(_output), metavar="FMT",
        help="f16, bf16 or f32: of inputs and results; the default is the model's own",
    )  # fmt: skip
    parser.add_argument(
        "--activation", type=argument(ActivationScheme.parse), metavar="FMT",
        help="what activations are turned into, as in `humming run`",
    )  # fmt: skip
    parser.add_argument("--backend", metavar="NAME", help="only this one: see `humming plugins`")
    parser.add_argument(
        "--m", type=int, default=8192, metavar="M", help="the most tokens of a call (8192)"
    )
    parser.add_argument(
        "--top-k", type=int, metavar="K",
        help="experts that a token chooses; the default is what config.json says, else 1",
    )  # fmt: skip
    parser.add_argument(
        "--gemm", choices=[kind.value for kind in GemmKind if kind is not GemmKind.DENSE],
        action="append", help="how experts are chosen, may be given several times (indexed)",
    )  # fmt: skip
    parser.epilog = (
        "Use the folder with HUMMING_CACHE_DIR, or HUMMING_CACHE_READONLY where it shall not be\n"
        "written; HUMMING_NO_JIT=1 then makes whatever is missing an error. docs/cache.md has more."
    )


def _output(text: str) -> NumberFormat:
    found = number_format(text)
    if found.name not in OUTPUT_FORMATS:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {', '.join(OUTPUT_FORMATS)}")
    return found


@dataclass(frozen=True)
class _Job:
    """What is asked of every layer."""

    profile: DeviceProfile
    output: NumberFormat
    activation: ActivationScheme | None
    backend: str | None
    most: int
    top_k: int
    gemm: tuple[GemmKind, ...]


@dataclass(frozen=True)
class _Row:
    """What became of all layers of one kind.

    Attributes:
        names: of the layers.
        plan: of the first.
        layer: its numbers; None if nothing computes it.
        backend: its name, "" if there is none.
        reason: why there are no kernels, else "".
        kernels: how many it needs.
        made: how many of them no layer before it needs.
        seconds: that they took.
    """

    names: tuple[str, ...]
    plan: LayerPlan
    layer: LayerConfig | None = None
    backend: str = ""
    reason: str = ""
    kernels: int = 0
    made: int = 0
    seconds: float = 0.0


def run(args: argparse.Namespace, output: Output) -> int:
    """Compile, print a row per kind of layer; 1 if a layer has no kernels."""
    device = where(None, args.profile)
    checkpoint = load_checkpoint(args.path)
    if not len(checkpoint):
        raise CheckpointError("nothing in it is quantized", path=checkpoint.path)
    own = args.dtype or model_output(checkpoint, device.profile)
    job = _Job(
        profile=device.profile,
        output=own,
        activation=args.activation,
        backend=args.backend,
        most=max(args.m, 1),
        top_k=args.top_k or _top_k(checkpoint),
        gemm=tuple(map(GemmKind, args.gemm or ["indexed"])),
    )
    args.out.mkdir(parents=True, exist_ok=True)
    workshop = Workshop(KernelLibrary(Cache(args.out)))
    groups = _groups([checkpoint.plan(name) for name in chosen(checkpoint, args.layer)])
    output.line(f"{checkpoint.path}: {checkpoint.family}, for {device.profile.title}\n")
    rows: list[_Row] = []
    programs: dict[str, Program] = {}
    with output.progress(len(groups)) as progress:
        for done, group in enumerate(groups):
            progress(done, group[0].name)
            rows.append(_compile(checkpoint, group, job, workshop, programs))
    _check_kept(args.out, len(programs))
    _print(output, rows, len(programs), args.out)
    return 1 if any(row.reason for row in rows) else 0


def _top_k(checkpoint: Checkpoint) -> int:
    config = checkpoint.model_config
    found = [config[key] for key in _TOP_K_KEYS if isinstance(config.get(key), int)]
    return max(found[0], 1) if found else 1


def _groups(plans: Sequence[LayerPlan]) -> list[list[LayerPlan]]:
    """Layers that differ in their names alone: they need the same kernels."""
    groups: dict[object, list[LayerPlan]] = {}
    for plan in plans:
        key = replace(plan, name="", tensors=(), detail=None)
        groups.setdefault(key, []).append(plan)
    return list(groups.values())


def _compile(
    checkpoint: Checkpoint,
    group: Sequence[LayerPlan],
    job: _Job,
    workshop: Workshop,
    programs: dict[str, Program],
) -> _Row:
    """Compile what the layers of a group need and is not among `programs`; add it there."""
    plan, names = group[0], tuple(plan.name for plan in group)
    start = time.perf_counter()
    try:
        layer, compute = planned(plan, job.profile, job.output, job.activation)
        kinds = job.gemm if plan.experts else (GemmKind.DENSE,)
        needed = {}
        for kind in kinds:
            found = _programs(checkpoint, plan, layer, replace(compute, gemm=kind), job, workshop)
            needed.update({program.digest: program for program in found[1]})
    except HummingError as error:
        return _Row(names, plan, reason=str(error))
    missing = [program for digest, program in needed.items() if digest not in programs]
    workshop.library.get_many(missing)
    programs.update(needed)
    seconds = time.perf_counter() - start
    return _Row(names, plan, layer, found[0], "", len(needed), len(missing), seconds)


def _programs(  # budget: where, what, and what for
    checkpoint: Checkpoint,
    plan: LayerPlan,
    layer: LayerConfig,
    compute: ComputeConfig,
    job: _Job,
    workshop: Workshop,
) -> tuple[str, list[Program]]:
    """The backend of a layer, and what it compiles.

    Raises:
        UnsupportedError: no backend has kernels for it.
    """
    backend = select_backend(job.backend, profile=job.profile, layer=layer, compute=compute)
    if not isinstance(backend, KernelBackend):
        raise UnsupportedError(f"{backend.name}, which would compute this layer, has no kernels")
    weight = checkpoint[plan.name]
    sizes = range(1, job.most + 1)
    specs = needed_kernels(backend, weight, layer, compute, sizes, job.top_k)
    return backend.name, [workshop.program(spec, "cubin") for spec in specs]


def _check_kept(folder: Path, count: int) -> None:
    """A cache that can't keep a kernel only warns; here keeping them is the point."""
    kept = sum(entry.binary is not None for entry in entries(folder))
    if kept < count:
        raise UnsupportedError(f"{folder} holds {kept} of {count} kernels: it can't be written")


# -- what is printed -------------------------------------------------------------------------------

_COLUMNS = (
    Column("layer"), Column("count", right=True), Column("weight"), Column("shape"),
    Column("activation"), Column("backend"), Column("kernels", right=True),
    Column("new", right=True), Column("seconds", right=True),
)  # fmt: skip


def _print(output: Output, rows: Sequence[_Row], count: int, folder: Path) -> None:
    output.data(
        {
            "folder": str(folder),
            "kernels": count,
            "seconds": sum(row.seconds for row in rows),
            "layers": [_data(row) for row in rows],
        }
    )
    cells = []
    for row in rows:
        head = [scheme_text(row.plan), shape_text(row.plan)]
        tail = ["-", "-", "-", "-", "-"]
        if row.layer is not None:
            numbers = [str(row.kernels), str(row.made), f"{row.seconds:.1f}"]
            tail = [str(row.layer.activation), row.backend, *numbers]
        for name, layers, _ in fold([(name, 0) for name in row.names]):
            cells.append([name, str(layers), *head, *tail])
    output.table(_COLUMNS, cells)
    for row in rows:
        if row.reason:
            output.line(f"\nno kernels: {row.names[0]} ({counted(len(row.names))}): {row.reason}")
    seconds = sum(row.seconds for row in rows)
    output.line(f"\n{count} kernels in {folder}, {seconds:.1f} s")


def _data(row: _Row) -> dict[str, object]:
    return {
        "names": list(row.names),
        "scheme": str(row.plan.scheme),
        "n": row.plan.n,
        "k": row.plan.k,
        "experts": row.plan.experts,
        "activation": None if row.layer is None else str(row.layer.activation),
        "backend": row.backend or None,
        "reason": row.reason or None,
        "kernels": row.kernels,
        "new": row.made,
        "seconds": row.seconds,
    }
