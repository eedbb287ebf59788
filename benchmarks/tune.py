"""The best tuning of each product by measuring, as rows for a device's profile.

Run, on the machine with the GPU:

    export PYTHONPATH=$(echo packages/*/src | tr ' ' :)
    python benchmarks/tune.py --fmts w4a16_int4_g128 --shapes 8192,8192 --out OUT
    python benchmarks/tune.py --kinds indexed grouped_contiguous --fmts w4a16_mxfp4 --blocks qwen3
    python benchmarks/tune.py --read OUT...           # the rows again, from what was printed
    python benchmarks/tune.py --tiny                  # small products in the simulator

For each product and M the candidates that the model finds cheapest, so many of every pipeline, are
compiled side by side and timed with a cold L2; the best few and the chosen one are timed again.
Where one is faster than what is chosen by more than --gain, it becomes a row of TOML. What is wrong
or fails is reported and has no time. Lines are printed as they are found: --budget ends a run in
time, and a kernel that never ends is the end of the process after a minute, which loses nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import faulthandler
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from gemms import Inputs, Matrix, Place, Product, load_ahead, specs_of
from measured_rows import toml_rows
from workloads import (
    BLOCKS,
    FORMATS,
    MOE_MS,
    MS,
    Block,
    Work,
    block_of,
    shape_of,
    works_of_block,
)

from humming.backend import Problem
from humming.configs import GemmKind, TuningConfig
from humming.engine.choice import Planner, bucket
from humming.engine.measured import CONDITIONS, use_of
from humming.errors import HummingError

#: A launch that takes longer than this many seconds never ends.
_HANG = 60
_FINALISTS = 3
_CONDITIONS = ("weight", "activation", "gemm", "n", "k", "experts", "top_k")


class DeviceLost(Exception):
    """The device answers to nothing any more: a kernel wrote where it must not."""


class OutOfTime(Exception):
    """The budget is spent."""


@dataclass
class Run:
    """One run of this script.

    Attributes:
        options: of the command line.
        place: where.
        deadline: of time.monotonic().
        lines: that were found.
    """

    options: argparse.Namespace
    place: Place
    deadline: float = float("inf")
    lines: list[dict[str, Any]] = field(default_factory=list)

    def row(self, **fields: Any) -> None:
        """Print a line, and append it to the file of --out."""
        line = "ROW " + json.dumps(fields, default=str)
        print(line, flush=True)
        self.lines.append(fields)
        if self.options.out:
            with self.options.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def check_time(self) -> None:
        """Raise OutOfTime if it is spent."""
        if time.monotonic() > self.deadline:
            raise OutOfTime

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Ends the process if what is inside never ends: nothing else stops a kernel."""
        if not self.place.is_real:
            yield
            return
        faulthandler.dump_traceback_later(_HANG, exit=True)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def shortlist(planner: Planner, problem: Problem, top: int, factor: float) -> list[TuningConfig]:
    """What is chosen, then of every pipeline its cheapest, less what is hopeless.

    Args:
        planner: whose candidates.
        problem: with a size that ends a bucket.
        top: how many of a pipeline at most.
        factor: hopeless is an estimate more than so many times the cheapest.
    """
    backend, layer, compute = planner.backend, planner.layer, planner.compute
    every = list(dict.fromkeys(backend.candidates(layer, compute, problem)))
    cost = {tuning: backend.cost(layer, compute, problem, tuning) for tuning in every}
    every.sort(key=cost.__getitem__)
    found = {planner.tuning(problem): None}
    counts: dict[type[TuningConfig], int] = {}
    for tuning in every:
        counts[type(tuning)] = counts.get(type(tuning), 0) + 1
        if counts[type(tuning)] <= top and cost[tuning] <= factor * cost[every[0]]:
            found[tuning] = None
    return list(found)


def tune(run: Run, product: Product, ms: Sequence[int]) -> None:
    """Print a row for each number of tokens."""
    options, planner = run.options, product.planner
    lists = {}
    for tokens in ms:
        problem = product.work.problem(tokens)
        whole = Problem(m=bucket(problem.m), top_k=problem.top_k)
        lists[tokens] = shortlist(planner, whole, options.top, options.factor)
    every = list(dict.fromkeys(tuning for tried in lists.values() for tuning in tried))
    start = time.monotonic()
    reasons = dict(zip(every, load_ahead(specs_of(planner, every), run.place), strict=False))
    for tuning, reason in reasons.items():
        if reason:
            run.row(kind="failed", **product.work.facts, tuning=plain(planner, tuning),
                    error=reason[-300:])  # fmt: skip
    seconds = round(time.monotonic() - start, 2)
    print(f"# {product.work}: {len(every)} kernels compiled in {seconds} s", flush=True)
    for tokens in ms:
        run.check_time()
        inputs = product.inputs(tokens)
        tried = [tuning for tuning in lists[tokens] if not reasons[tuning]]
        race(run, product, inputs, tried)


def race(run: Run, product: Product, inputs: Inputs, tried: Sequence[TuningConfig]) -> None:
    """Time some tunings, the best of them twice, and print what came out."""
    options, work, planner = run.options, product.work, product.planner
    chosen = product.chosen(inputs.tokens)
    first: dict[TuningConfig, float] = {}
    for tuning in tried:
        run.check_time()
        us = timed(run, product, inputs, tuning, options.repeats)
        if us is not None:
            first[tuning] = us
    finalists = sorted(first, key=first.__getitem__)[:_FINALISTS]
    if chosen in first and chosen not in finalists:
        finalists.append(chosen)
    final = {}
    for tuning in finalists:
        us = timed(run, product, inputs, tuning, options.final)
        if us is not None:
            final[tuning] = us
    if not final:
        run.row(kind="failed", **work.facts, m=inputs.tokens, error="no tuning works")
        return
    best = min(final, key=final.__getitem__)
    pipelines: dict[str, float] = {}
    for tuning, us in first.items():
        name = str(use_of(type(planner.backend), tuning).get("pipeline", ""))
        pipelines[name] = min(us, pipelines.get(name, us))
    problem = work.problem(inputs.tokens)
    whole = Problem(m=bucket(problem.m), top_k=problem.top_k)
    when = {key: CONDITIONS[key](planner.layer, planner.compute, whole) for key in _CONDITIONS}
    if work.kind is not GemmKind.INDEXED:
        del when["top_k"]
    run.row(
        kind="tuned", gemm=work.kind.value, **work.facts, m=inputs.tokens,
        us=round(final[best], 3), chosen_us=round(final[chosen], 3) if chosen in final else None,
        pipelines={name: round(us, 2) for name, us in pipelines.items()}, tried=len(tried),
        backend=planner.backend.name, when=when, rows=whole.m,
        best=plain(planner, best), chosen=plain(planner, chosen),
    )  # fmt: skip
    print(f"#   {final[best]:9.2f} us {best}; chosen {final.get(chosen, float('nan')):9.2f} "
          f"{chosen}", flush=True)  # fmt: skip


def timed(
    run: Run, product: Product, inputs: Inputs, tuning: TuningConfig, repeats: int
) -> float | None:
    """Microseconds, or None and a printed row.

    Raises:
        DeviceLost: nothing else can be timed.
    """
    try:
        with run.watched():
            us, error = product.time(inputs, repeats, tuning)
        reason = f"wrong result: relative error {error:.2e}" if us is None else ""
    except (HummingError, RuntimeError, ValueError) as error:
        us, reason = None, str(error)[-300:]
    if us is None:
        run.row(kind="failed", **product.work.facts, m=inputs.tokens,
                tuning=plain(product.planner, tuning), error=reason)  # fmt: skip
        if run.place.is_real:
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                raise DeviceLost(str(error)) from error
    return us


def plain(planner: Planner, tuning: TuningConfig) -> dict[str, Any]:
    """A tuning as a profile's row would hold it."""
    return use_of(type(planner.backend), tuning)


def works(options: argparse.Namespace) -> Iterator[tuple[Work, Sequence[int]]]:
    """All products, those of one weight one after the other, and their numbers of tokens."""
    kinds = [GemmKind(kind) for kind in options.kinds]
    for fmt in options.fmts:
        if GemmKind.DENSE in kinds:
            for n, k in options.shapes:
                yield Work(fmt, n, k), options.ms or MS
        routed = [kind for kind in kinds if kind is not GemmKind.DENSE]
        for block in options.blocks if routed else ():
            for pair in zip(*(works_of_block(fmt, kind, block) for kind in routed), strict=True):
                for work in pair:
                    yield work, options.ms or MOE_MS


def run_all(run: Run) -> None:
    """Tune everything that there is time for."""
    held: tuple[object, Matrix] | None = None
    for work, ms in works(run.options):
        try:
            run.check_time()
            key = work.fmt, work.n, work.k, work.experts
            if held is None or held[0] != key:
                held = None
                run.place.clean()
                held = key, Matrix(work.fmt, (work.n, work.k), work.experts, run.place)
            before = len(run.lines)
            try:
                tune(run, Product(work, held[1]), ms)
            finally:
                show(run.lines[before:], run.options)
        except OutOfTime:
            print(f"# the budget of {run.options.budget} s is spent before {work}", flush=True)
            return
        except DeviceLost as lost:
            print(f"# the device is lost in {work}: {lost}", flush=True)
            return
        except (HummingError, RuntimeError) as error:  # memory, or what no backend multiplies
            run.row(kind="failed", gemm=work.kind.value, **work.facts, error=str(error)[-300:])


def show(lines: Sequence[dict[str, Any]], options: argparse.Namespace) -> None:
    """Print rows of TOML, and append them to the file of --toml."""
    text = toml_rows(lines, gain=options.gain, source=options.source, leave_out=options.leave_out)
    if text:
        print(text, flush=True)
    if text and options.toml:
        with options.toml.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    kinds = ("dense", "indexed", "grouped_contiguous")
    parser.add_argument("--fmts", nargs="+", choices=FORMATS, default=list(FORMATS)[:13])
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=["dense"])
    parser.add_argument("--shapes", nargs="+", type=shape_of, default=[(8192, 8192)], help="N,K")
    help_text = f"{', '.join(BLOCKS)} or EXPERTS,TOP_K,HIDDEN,INTERMEDIATE"
    parser.add_argument(
        "--blocks", nargs="+", type=block_of, default=[BLOCKS["deepseek-v3"]], help=help_text
    )
    parser.add_argument("--ms", nargs="+", type=int, help="rows, or tokens of experts")
    parser.add_argument("--top", type=int, default=6, help="candidates of a pipeline")
    parser.add_argument("--factor", type=float, default=3.0, help="estimates that are hopeless")
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--final", type=int, default=24, help="repeats of the best few")
    parser.add_argument("--gain", type=float, default=0.02)
    parser.add_argument("--budget", type=float, help="seconds")
    parser.add_argument("--out", type=Path, help="gets the lines too")
    parser.add_argument("--toml", type=Path, help="gets the rows of TOML too")
    parser.add_argument("--source", help="of the rows; else this command, device and date")
    parser.add_argument("--leave-out", nargs="*", choices=_CONDITIONS, default=[],
                        help="conditions that rows shall not have")  # fmt: skip
    parser.add_argument("--read", nargs="+", type=Path, help="make rows of such files alone")
    parser.add_argument("--backend", default="", help="'' is what the device gets")
    parser.add_argument("--tiny", action="store_true", help="in the simulator")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line says."""
    started, options = time.monotonic(), parsed(arguments)
    if options.tiny:
        options.shapes, options.blocks = [(256, 256)], [Block(4, 2, 256, 128)]
        options.ms, options.top = options.ms or [1, 40], min(options.top, 1)
    place = Place("sim:nvidia-h200" if options.tiny else "cuda:0", options.backend)
    if options.source is None:
        where = "" if options.read else f", {place.title}"
        options.source = f"benchmarks/tune.py{where}, {datetime.date.today()}"
    if options.read:
        texts = [line for path in options.read for line in path.read_text("utf-8").splitlines()]
        show([json.loads(line[4:]) for line in texts if line.startswith("ROW ")], options)
        return
    command = " ".join(arguments or sys.argv[1:])
    print(f"# {place.title}, torch {torch.__version__}, tune.py {command}", flush=True)
    deadline = started + options.budget if options.budget else float("inf")
    run_all(Run(options, place, deadline))


if __name__ == "__main__":
    main()
