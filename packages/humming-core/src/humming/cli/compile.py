"""``humming compile``: every kernel that a checkpoint's layers can need, made ahead of time."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from humming.backend import KernelBackend, KernelSpec
from humming.checkpoints.base import LayerPlan
from humming.checkpoints.checkpoint import Checkpoint
from humming.cli.expert_layers import (
    ExpertLayer,
    expert_layers,
    gating_argument,
    gating_of,
    loose_experts,
    plan_of,
    read_product,
    top_k_of,
)
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
from humming.engine import LayerOptions, Workshop, needed_kernels
from humming.engine.expert_specs import Product, expert_specs
from humming.engine.expert_weights import check_pair
from humming.errors import CheckpointError, HummingError, UnsupportedError
from humming.formats.activation import ActivationScheme
from humming.formats.number import NumberFormat
from humming.formats.table import number_format
from humming.gating import Gating
from humming.jit import Cache, KernelLibrary, Program
from humming.jit.program import Kind
from humming.jit.upkeep import entries
from humming.loading import load_checkpoint
from humming.profiles import DeviceProfile
from humming.selection import select_backend

__all__ = ["configure", "run"]


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
        action="append",
        help="how a weight of experts alone is used, may be given several times (indexed)",
    )  # fmt: skip
    parser.add_argument(
        "--gating", type=gating_argument, metavar="NAME[,interleaved][,PARAMETER=VALUE]",
        help="function between the products of experts; the default is what config.json says",
    )  # fmt: skip
    parser.add_argument(
        "--ptx", action="store_true",
        help="PTX instead of machine code: for a newer device with this profile, or a simulator",
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
    gating: Gating | None
    kind: Kind

    @property
    def sizes(self) -> range:
        """Numbers of tokens of a call."""
        return range(1, self.most + 1)


@dataclass(frozen=True)
class _Row:
    """What became of all layers of one kind.

    Attributes:
        names: of the layers, or of the layers of experts that they make up.
        plan: of the first; of experts that of their first product.
        layer: its numbers; None if nothing computes it.
        backend: its name, "" if there is none.
        reason: why there are no kernels, else "".
        kernels: how many it needs.
        made: how many of them no layer before it needs.
        seconds: that they took.
        gating: the function of a whole layer of experts; None if it is none.
    """

    names: tuple[str, ...]
    plan: LayerPlan
    layer: LayerConfig | None = None
    backend: str = ""
    reason: str = ""
    kernels: int = 0
    made: int = 0
    seconds: float = 0.0
    gating: Gating | None = None


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
        top_k=args.top_k or top_k_of(checkpoint),
        gemm=tuple(map(GemmKind, args.gemm or ["indexed"])),
        gating=args.gating,
        kind="ptx" if args.ptx else "cubin",
    )
    args.out.mkdir(parents=True, exist_ok=True)
    maker = _Maker(checkpoint, job, Workshop(KernelLibrary(Cache(args.out))))
    names = chosen(checkpoint, args.layer)
    groups = _groups([checkpoint.plan(name) for name in names])
    experts = expert_layers(checkpoint, names)
    alike = _alike(checkpoint, experts)
    output.line(f"{checkpoint.path}: {checkpoint.family}, for {device.profile.title}\n")
    rows: list[_Row] = []
    with output.progress(len(groups) + len(alike)) as progress:
        for group in groups:
            progress(len(rows), group[0].name)
            rows.append(maker.layers(group))
        for layers in alike:
            progress(len(rows), layers[0].name)
            rows.append(maker.experts(layers))
    _check_kept(args.out, len(maker.programs))
    loose = loose_experts(checkpoint, names, experts)
    _print(output, rows, loose, len(maker.programs), args.out)
    return 1 if any(row.reason for row in rows) else 0


def _groups(plans: Sequence[LayerPlan]) -> list[list[LayerPlan]]:
    """Layers that differ in their names alone: they need the same kernels."""
    groups: dict[object, list[LayerPlan]] = {}
    for plan in plans:
        key = replace(plan, name="", tensors=(), detail=None)
        groups.setdefault(key, []).append(plan)
    return list(groups.values())


def _alike(checkpoint: Checkpoint, layers: Sequence[ExpertLayer]) -> list[list[ExpertLayer]]:
    """Layers of experts that differ in names alone."""
    groups: dict[object, list[ExpertLayer]] = {}
    for layer in layers:
        stacks = [*layer.first, layer.second]
        stacks += [*layer.shared[0], layer.shared[1]] if layer.shared else []
        plans = (checkpoint.plan(stack[0]) for stack in stacks)
        parts = tuple(replace(plan, name="", tensors=(), detail=None) for plan in plans)
        groups.setdefault((layer.experts, len(layer.first), parts), []).append(layer)
    return list(groups.values())


class _Maker:
    """Compiles what layers need and no layer before them needed.

    Attributes:
        programs: all that was needed, by digest.
    """

    def __init__(self, checkpoint: Checkpoint, job: _Job, workshop: Workshop) -> None:
        self._checkpoint, self._job, self._workshop = checkpoint, job, workshop
        self.programs: dict[str, Program] = {}

    def layers(self, group: Sequence[LayerPlan]) -> _Row:
        """What each layer of a group needs alone."""
        plan, names, start = group[0], tuple(plan.name for plan in group), time.perf_counter()
        job = self._job
        try:
            layer, compute = planned(plan, job.profile, job.output, job.activation)
            kinds = job.gemm if plan.experts else (GemmKind.DENSE,)
            needed: list[KernelSpec] = []
            for kind in kinds:
                backend, specs = self._needed(plan, layer, replace(compute, gemm=kind))
                needed += specs
            count, made = self._make(needed)
        except HummingError as error:
            return _Row(names, plan, reason=str(error))
        return _Row(names, plan, layer, backend, "", count, made, time.perf_counter() - start)

    def experts(self, group: Sequence[ExpertLayer]) -> _Row:
        """What :class:`humming.QuantMoE` of each layer of experts needs."""
        found, names, start = group[0], tuple(layer.name for layer in group), time.perf_counter()
        job, plan, gating = self._job, self._checkpoint.plan(group[0].first[0][0]), None
        try:
            first, *plans = self._product(found.name, found.first, found.experts)
            plan, layer = plans[0], first.layer
            second = self._product(found.name, (found.second,), found.experts)[0]
            gated = first.weight.n == 2 * second.weight.k
            gating = job.gating or gating_of(self._checkpoint, found, gated)
            check_pair(first.weight, second.weight, gating, "experts")
            shared = None
            if found.shared is not None:
                over, under = found.shared[0], (found.shared[1],)
                shared = (self._product("", over, 0)[0], self._product("", under, 0)[0])
            options = LayerOptions(profile=job.profile, backend=job.backend)
            needed = expert_specs(
                (first, second), gating, options, shared=shared, ms=job.sizes, top_k=job.top_k
            )
            count, made = self._make(needed.kernels)
        except HummingError as error:
            return _Row(names, plan, reason=str(error), gating=gating)
        backends, seconds = ", ".join(needed.backends), time.perf_counter() - start
        return _Row(names, plan, layer, backends, "", count, made, seconds, gating)

    def _product(
        self, name: str, parts: Sequence[tuple[str, ...]], experts: int
    ) -> tuple[Product, LayerPlan]:
        weight = read_product(self._checkpoint, parts, experts)
        plan = plan_of(self._checkpoint.plan(parts[0][0]), weight, name, experts)
        job = self._job
        return Product(weight, planned(plan, job.profile, job.output, job.activation)[0]), plan

    def _needed(
        self, plan: LayerPlan, layer: LayerConfig, compute: ComputeConfig
    ) -> tuple[str, list[KernelSpec]]:
        """The backend of a layer, and what it compiles.

        Raises:
            UnsupportedError: no backend has kernels for it.
        """
        job = self._job
        backend = select_backend(job.backend, profile=job.profile, layer=layer, compute=compute)
        if not isinstance(backend, KernelBackend):
            raise UnsupportedError(
                f"{backend.name}, which would compute this layer, has no kernels"
            )
        weight = self._checkpoint[plan.name]
        return backend.name, needed_kernels(backend, weight, layer, compute, job.sizes, job.top_k)

    def _make(self, specs: Sequence[KernelSpec]) -> tuple[int, int]:
        """How many kernels these are, and how many of them were not there."""
        programs = [self._workshop.program(spec, self._job.kind) for spec in specs]
        needed = {program.digest: program for program in programs}
        missing = [program for digest, program in needed.items() if digest not in self.programs]
        self._workshop.library.get_many(missing)
        self.programs.update(needed)
        return len(needed), len(missing)


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


def _print(
    output: Output, rows: Sequence[_Row], loose: Sequence[str], count: int, folder: Path
) -> None:
    output.data(
        {
            "folder": str(folder),
            "kernels": count,
            "seconds": sum(row.seconds for row in rows),
            "layers": [_data(row) for row in rows],
            "loose_experts": list(loose),
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
        if row.gating is not None:
            output.line(f"\nexperts: {row.names[0]} ({counted(len(row.names))}): {row.gating}")
    if loose:
        parts = ", ".join(name for name, _, _ in fold([(name, 0) for name in loose]))
        output.line(f"\nno whole layer of experts, so each is compiled alone: {parts}")
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
        "gating": None if row.gating is None else str(row.gating),
        "kernels": row.kernels,
        "new": row.made,
        "seconds": row.seconds,
    }
