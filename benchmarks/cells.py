"""Every cell that peers were measured in: dense products of all formats, and products of experts.

Run, on the machine with the GPU:

    export PYTHONPATH=$(echo packages/*/src | tr ' ' :)
    python benchmarks/cells.py --out OURS                      # dense, and both kinds of experts
    python benchmarks/cells.py --out OURS --peers PEERS        # and cuBLAS in the same process
    python benchmarks/cells.py --peers PEERS --humming-kernels FOLDER  # and that, in another one
    python benchmarks/cells.py --kinds dense --shapes 4096,14336 28672,4096 --ms 1 16 128 2048
    python benchmarks/cells.py --tiny                          # small products in the simulator

Times are medians with a cold L2, of products alone: activations are quantized before, and ids of
experts are sorted before. Those of experts are the sum of both products of a block. Some rows of
every result are compared with float64; what is wrong has no time. All kernels of a run are compiled
side by side before the first is timed. `floor_us` is 5.4 us and the bytes at 4.15 TB/s, or the
operations at 800 or 1500 TFLOP/s, whichever is larger. picture.py draws what this prints.

FOLDER is that of `pip install --target FOLDER humming-kernels`, whose package has our name.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gemms import Matrix, Place, Product, floor_us, load_ahead, planner_of, specs_of
from peer_process import lines_of_humming_kernels
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

from humming.backend import KernelSpec
from humming.configs import GemmKind
from humming.errors import HummingError

#: What peers were measured with: all formats dense, some with experts.
DENSE_FMTS = tuple(FORMATS)[:13]
MOE_FMTS = ("w4a16_int4_g128", "w4a16_mxfp4", "w4a8_mxfp4_fp8token", "w8a8_fp8_block128")
SHAPE, BLOCK = (8192, 8192), BLOCKS["deepseek-v3"]


@dataclass
class Run:
    """One run of this script.

    Attributes:
        options: of the command line.
        place: where.
        deadline: of time.monotonic().
    """

    options: argparse.Namespace
    place: Place
    deadline: float = float("inf")

    def row(self, **fields: Any) -> None:
        """Print a line, and append it to the file of --out, or to that of --peers."""
        ours = fields["peer"] == "humming"
        self.line("ROW " + json.dumps(fields), self.options.out if ours else self.options.peers)

    def line(self, line: str, path: Path | None) -> None:
        """Print a line, and append it to a file if there is one."""
        print(line, flush=True)
        if path is not None:
            with path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    @property
    def is_over(self) -> bool:
        """Whether the budget is spent."""
        return time.monotonic() > self.deadline


@dataclass(frozen=True)
class Cell:
    """Cells of one line of a report: products whose times are added up, at several sizes.

    Attributes:
        fmt: a key of FORMATS.
        kind: how rows find their weight.
        works: the products.
        facts: what rows say of their sizes.
        suffix: of the format's name, where the sizes are not those of the peers' results.
    """

    fmt: str
    kind: GemmKind
    works: tuple[Work, ...]
    facts: dict[str, int]
    suffix: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """Of a row."""
        name = self.fmt + self.suffix
        return {"peer": "humming", "kind": self.kind.value, "fmt": name, **self.facts}


def cells(options: argparse.Namespace) -> list[list[Cell]]:
    """All of them; those of a list share their weights."""
    found: list[list[Cell]] = []
    kinds = [GemmKind(kind) for kind in options.kinds]
    for fmt in options.fmts or DENSE_FMTS:
        for n, k in options.shapes if GemmKind.DENSE in kinds else ():
            suffix = "" if (n, k) == SHAPE else f"@{n}x{k}"
            found.append([Cell(fmt, GemmKind.DENSE, (Work(fmt, n, k),), {"n": n, "k": k}, suffix)])
    routed = [kind for kind in kinds if kind is not GemmKind.DENSE]
    for fmt in options.fmts or MOE_FMTS:
        for block in options.blocks if routed else ():
            experts, top_k, hidden, inter = block
            facts = {"hidden": hidden, "inter": inter, "experts": experts, "topk": top_k}
            suffix = "" if block == BLOCK else f"@{experts}x{hidden}x{inter}"
            found.append(
                [
                    Cell(fmt, kind, works_of_block(fmt, kind, block), facts, suffix)
                    for kind in routed
                ]
            )
    return found


def compile_all(run: Run, every: Sequence[Sequence[Cell]]) -> None:
    """Compile and load the kernels of all cells side by side; what fails says so when it is run."""
    start = time.monotonic()
    specs: dict[str, KernelSpec] = {}
    for cell in (cell for group in every for cell in group):
        for work in cell.works:
            try:
                planner = planner_of(work, run.place)
                tunings = [planner.tuning(work.problem(m)) for m in sizes(run.options, cell)]
                found = specs_of(planner, dict.fromkeys(tunings))
            except HummingError:
                continue
            specs |= {f"{spec.name} {spec.context}": spec for spec in found}
    load_ahead(list(specs.values()), run.place)
    seconds = time.monotonic() - start
    print(f"# {len(specs)} kernels compiled and loaded in {seconds:.1f} s", flush=True)


def sizes(options: argparse.Namespace, cell: Cell) -> Sequence[int]:
    """Numbers of rows, or of tokens."""
    return options.ms or (MS if cell.kind is GemmKind.DENSE else MOE_MS)


def measure(run: Run, group: Sequence[Cell]) -> None:
    """Print the rows of cells that share their weights."""
    works = group[0].works
    try:
        matrices = [Matrix(w.fmt, (w.n, w.k), w.experts, run.place) for w in works]
    except (HummingError, RuntimeError) as error:  # memory
        for cell in group:
            run.row(**cell.fields, error=str(error)[-300:])
        return
    for cell in group:
        try:
            products = [Product(*pair) for pair in zip(cell.works, matrices, strict=True)]
        except (HummingError, RuntimeError) as error:  # no backend multiplies so
            run.row(**cell.fields, error=str(error)[-300:])
            continue
        for m in sizes(run.options, cell):
            if run.is_over:
                return
            try:
                run.row(**cell.fields, m=m, **figures(run, products, m))
            except (HummingError, RuntimeError) as error:
                run.row(**cell.fields, m=m, error=str(error)[-300:])


def figures(run: Run, products: Sequence[Product], m: int) -> dict[str, Any]:
    """Times of one cell."""
    times, floors, names, operations, wrong = [], [], [], 0.0, 0.0
    for product in products:
        inputs = product.inputs(m)
        tuning = str(product.chosen(m))
        us, error = product.time(inputs, run.options.repeats)
        if us is None:
            return {"error": f"wrong result: relative error {error:.2e}", "tuning": tuning}
        rows = product.work.problem(m).m
        times.append(us)
        names.append(tuning)
        floors.append(floor_us(product, inputs))
        operations += 2.0 * rows * product.work.n * product.work.k
        wrong = max(wrong, error)
    us = sum(times)
    found = {"us": us, "tflops": operations / us / 1e6, "relative_error": wrong,
             "floor_us": sum(floors), "tuning": " | ".join(names)}  # fmt: skip
    return found if len(times) == 1 else {**found, "parts_us": times}


def cublas(run: Run, shape: tuple[int, int], suffix: str) -> None:
    """Print rows of torch's bf16 product, and of cuBLAS's FP8 product with scales of rows."""
    (n, k), device = shape, run.place.home
    w = torch.randn(n, k, device=device).bfloat16()
    w8, ones = w.to(torch.float8_e4m3fn), torch.ones(1, n, device=device)
    for m in run.options.ms or MS:
        x = torch.randn(m, k, device=device).bfloat16()
        x8, scales = x.to(torch.float8_e4m3fn), torch.ones(m, 1, device=device)

        def bf16() -> object:
            return torch.nn.functional.linear(x, w)  # noqa: B023

        def fp8() -> object:
            scaled = {"scale_a": scales, "scale_b": ones, "out_dtype": torch.bfloat16}  # noqa: B023
            return torch._scaled_mm(x8, w8.t(), use_fast_accum=True, **scaled)  # type: ignore[arg-type]  # noqa: B023

        for fmt, call in (("bf16", bf16), ("fp8_rowwise", fp8)):
            fields = {"peer": "cublas", "kind": "dense", "fmt": fmt + suffix, "n": n, "k": k}
            try:
                us = run.place.time(call, run.options.repeats)
            except RuntimeError as error:
                run.row(**fields, m=m, error=str(error)[-100:])
                continue
            run.row(**fields, m=m, us=us, tflops=2e-6 * m * n * k / us)


def humming_kernels(run: Run, every: Sequence[Sequence[Cell]]) -> None:
    """Run that peer, and print what it prints."""
    jobs = [
        {"fmt": cell.fmt, "name": cell.fmt + cell.suffix, "kind": cell.kind.value, **cell.facts,
         "ms": list(sizes(run.options, cell)), "repeats": run.options.repeats}
        for group in every for cell in group
    ]  # fmt: skip
    left = max(run.deadline - time.monotonic(), 1.0)
    for line in lines_of_humming_kernels(run.options.humming_kernels, jobs, min(left, 1e6)):
        run.line(line, run.options.peers)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    kinds = ("dense", "indexed", "grouped_contiguous")
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=list(kinds))
    parser.add_argument("--fmts", nargs="+", choices=FORMATS, help="else those of the peers")
    parser.add_argument("--ms", nargs="+", type=int, help="rows, or tokens of experts")
    parser.add_argument("--shapes", nargs="+", type=shape_of, default=[SHAPE], help="N,K")
    what = f"{', '.join(BLOCKS)} or EXPERTS,TOP_K,HIDDEN,INTERMEDIATE"
    parser.add_argument("--blocks", nargs="+", type=block_of, default=[BLOCK], help=what)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--budget", type=float, help="seconds after which no cell is begun")
    parser.add_argument("--out", type=Path, help="gets our lines too")
    parser.add_argument("--backend", default="", help="'' is what the device gets")
    parser.add_argument("--peers", type=Path, help="measure them too: gets their lines")
    parser.add_argument("--humming-kernels", type=Path, help="folder where that peer is installed")
    parser.add_argument("--tiny", action="store_true", help="in the simulator")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line says."""
    started, options = time.monotonic(), parsed(arguments)
    if options.tiny:
        options.shapes, options.blocks = [(256, 256)], [Block(4, 2, 256, 128)]
        options.ms, options.peers = options.ms or [1, 40], None
    place = Place("sim:nvidia-h200" if options.tiny else "cuda:0", options.backend)
    run = Run(options, place, started + options.budget if options.budget else float("inf"))
    command = " ".join(sys.argv[1:] if arguments is None else arguments)
    versions = f"torch {torch.__version__}, {datetime.date.today()}"
    head = f"# {place.title}, {versions}, cells.py {command}"
    run.line(head, options.out)
    every = cells(options)
    compile_all(run, every)
    for group in every:
        if not run.is_over:
            measure(run, group)
            place.clean()
    for shape in options.shapes if options.peers and "dense" in options.kinds else ():
        cublas(run, shape, "" if shape == SHAPE else f"@{shape[0]}x{shape[1]}")
        place.clean()
    if options.humming_kernels:
        humming_kernels(run, every)
    end = f"# {time.monotonic() - started:.1f} s, {'in part' if run.is_over else 'all'}"
    run.line(end, options.out)


if __name__ == "__main__":
    main()
