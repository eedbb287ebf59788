"""Draws what cells.py and the peers' runners print: a small picture of each format, in one file.

    python benchmarks/picture.py OUT.svg FILE...               # speed in TFLOP/s against M
    python benchmarks/picture.py OUT.png --of us --kinds dense FILE...
    python benchmarks/picture.py OUT.svg --of floor FILE...  # as a part of the floor's speed

Axes are logarithmic, but for parts of the floor's speed. Of the same cell of the same peer the last
row counts, so that a peer that was run again beside ours replaces its older figures. The grey line
is the floor that ours has in its rows; cuBLAS with operands of as many bits is drawn in every dense
picture.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OURS = "humming"
#: What can be drawn, and what stands beside it.
UNITS = {"tflops": "TFLOP/s", "us": "us", "floor": "floor / time"}
_COLOURS = {OURS: "#c1272d", "humming-kernels": "#1f77b4", "deepgemm": "#2ca02c",
            "marlin": "#9467bd", "cublas": "#8c564b"}  # fmt: skip
_OTHERS = ("#e377c2", "#17becf", "#bcbd22")
#: What stands in dense pictures of formats with so many bits of activations.
_CUBLAS = {"a16": "bf16", "a8": "fp8_rowwise"}


@dataclass
class Panel:
    """One picture: times by name of a line and by M.

    Attributes:
        kind: of GEMM.
        fmt: name of the format, with its sizes if they are not the usual ones.
        lines: microseconds.
        floor: microseconds.
        operations: of a cell.
    """

    kind: str
    fmt: str
    lines: dict[str, dict[int, float]] = field(default_factory=dict)
    floor: dict[int, float] = field(default_factory=dict)
    operations: dict[int, float] = field(default_factory=dict)

    def values(self, line: dict[int, float], unit: str) -> tuple[list[int], list[float]]:
        """Sizes, and what is drawn of them; unit: a key of UNITS."""
        if unit == "us":
            sizes = sorted(line)
            return sizes, [line[m] for m in sizes]
        known = self.floor if unit == "floor" else {m: o / 1e6 for m, o in self.operations.items()}
        sizes = [m for m in sorted(line) if m in known]
        return sizes, [known[m] / line[m] for m in sizes]


def rows_of(texts: Iterable[str]) -> list[dict[str, Any]]:
    """The figures among the lines of files."""
    found = [json.loads(text[4:]) for text in texts if text.startswith("ROW ")]
    return [row for row in found if {"kind", "fmt", "peer", "m", "us"} <= row.keys()]


def panels(rows: Iterable[dict[str, Any]], kinds: Sequence[str] = ()) -> list[Panel]:
    """Pictures of all formats that ours was measured with, or of all if it was not at all.

    Args:
        rows: the figures.
        kinds: of GEMM; all if empty.
    """
    every: dict[tuple[str, str], Panel] = {}
    for row in rows:
        if kinds and row["kind"] not in kinds:
            continue
        panel = every.setdefault((row["kind"], row["fmt"]), Panel(row["kind"], row["fmt"]))
        m, us = int(row["m"]), float(row["us"])
        panel.lines.setdefault(row["peer"], {})[m] = us
        if "tflops" in row:
            panel.operations[m] = row["tflops"] * us * 1e6
        if "floor_us" in row:
            panel.floor[m] = row["floor_us"]
    for panel in every.values():
        _add_cublas(panel, every)
    shown = [panel for panel in every.values() if OURS in panel.lines]
    return sorted(shown or every.values(), key=lambda panel: (panel.kind, panel.fmt))


def _add_cublas(panel: Panel, every: dict[tuple[str, str], Panel]) -> None:
    name, _, sizes = panel.fmt.partition("@")
    for activation, fmt in _CUBLAS.items():
        same = every.get((panel.kind, f"{fmt}@{sizes}" if sizes else fmt))
        if f"{activation}_" in name and same is not None and "cublas" in same.lines:
            panel.lines[f"cublas {fmt}"] = same.lines["cublas"]


def draw(shown: Sequence[Panel], out: Path, *, unit: str = "tflops", title: str = "") -> None:
    """Write the picture; the suffix of its name says in which format.

    Args:
        shown: what.
        out: where.
        unit: a key of UNITS.
        title: above all of it.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(4, len(shown))
    rows = math.ceil(len(shown) / columns)
    size = (4.2 * columns, 3.2 * rows + 0.8)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False)
    entries: dict[str, Any] = {}
    for axis, panel in zip(axes.flat, shown, strict=False):
        _draw_panel(axis, panel, unit, entries)
    for axis in list(axes.flat)[len(shown) :]:
        axis.set_visible(False)
    for place, row in enumerate(axes):
        row[0].set_ylabel(UNITS[unit])
        for axis in row if place == rows - 1 else ():
            axis.set_xlabel("M")
    figure.legend(list(entries.values()), list(entries), loc="lower center", ncols=len(entries))
    figure.suptitle(title, fontsize=10)
    figure.tight_layout(rect=(0, 0.5 / size[1], 1, 1 - 0.2 / size[1]))
    figure.savefig(out, dpi=130)
    pyplot.close(figure)


def _draw_panel(axis: Any, panel: Panel, unit: str, entries: dict[str, Any]) -> None:
    others = iter(_OTHERS * 4)
    if panel.floor:
        sizes, values = panel.values(panel.floor, unit)
        (entries["floor"],) = axis.plot(sizes, values, color="0.6", linewidth=1)
    for name in sorted(panel.lines, key=lambda name: (name == OURS, name)):  # ours on top
        sizes, values = panel.values(panel.lines[name], unit)
        colour = _COLOURS.get(name.partition(" ")[0]) or next(others)
        style = "--" if name.startswith("cublas ") else "-"
        (entries[name],) = axis.plot(
            sizes, values, style, color=colour, marker="o", markersize=2.5, linewidth=1.2
        )
    axis.set(xscale="log", yscale="linear" if unit == "floor" else "log")
    axis.xaxis.set_major_locator(_powers())
    axis.grid(True, which="major", linewidth=0.3)
    axis.set_title(panel.fmt if panel.kind == "dense" else f"{panel.kind} {panel.fmt}", fontsize=9)
    axis.tick_params(labelsize=7)


def _powers() -> Any:
    from matplotlib.ticker import LogLocator

    return LogLocator(base=10)


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="OUT.svg or OUT.png")
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--of", choices=UNITS, default="tflops", help="what is drawn")
    parser.add_argument("--kinds", nargs="+", default=[])
    parser.add_argument("--title")
    options = parser.parse_args(arguments)
    texts = [line for path in options.files for line in path.read_text("utf-8").splitlines()]
    title = options.title or next((line[2:] for line in texts if line.startswith("# ")), "")
    shown = panels(rows_of(texts), options.kinds)
    if not shown:
        parser.error("no figures in these files")
    draw(shown, options.out, unit=options.of, title=title)


if __name__ == "__main__":
    main()
