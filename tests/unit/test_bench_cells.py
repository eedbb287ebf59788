"""benchmarks/cells.py and picture.py: which cells there are, and what is drawn of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import cells
import picture
from peers.humming_kernels import CONFIGS
from workloads import FORMATS


def lines_of(*arguments: str) -> list[cells.Cell]:
    return [cell for group in cells.cells(cells.parsed(arguments)) for cell in group]


def test_all_cells_of_the_peers_are_measured() -> None:
    found = [(cell.kind.value, cell.fmt + cell.suffix) for cell in lines_of()]
    assert [fmt for kind, fmt in found if kind == "dense"] == list(cells.DENSE_FMTS)
    routed = [(kind, fmt) for kind, fmt in found if kind != "dense"]
    assert len(routed) == 2 * len(cells.MOE_FMTS)
    assert ("indexed", "w4a8_mxfp4_fp8token") in routed


def test_other_sizes_have_other_names() -> None:
    (cell,) = lines_of("--kinds", "dense", "--fmts", "w4a16_mxfp4", "--shapes", "4096,14336")
    assert cell.fields["fmt"] == "w4a16_mxfp4@4096x14336"
    (cell,) = lines_of("--kinds", "indexed", "--fmts", "w4a16_mxfp4", "--blocks", "qwen3")
    assert cell.fields["fmt"] == "w4a16_mxfp4@128x2048x768"
    assert [(work.n, work.k, work.top_k) for work in cell.works] == [
        (1536, 2048, 8),
        (2048, 768, 8),
    ]
    assert [work.problem(3).top_k for work in cell.works] == [8, 1]
    assert [work.problem(3).m for work in cell.works] == [24, 24]


def test_the_peer_that_shares_our_name_knows_every_format_of_its_results() -> None:
    assert set(cells.DENSE_FMTS) <= CONFIGS.keys() <= FORMATS.keys()


def row(peer: str, fmt: str, m: int, us: float, **more: object) -> str:
    fields = {"peer": peer, "kind": "dense", "fmt": fmt, "m": m, "us": us, "tflops": 4 / us}
    return "ROW " + json.dumps({**fields, **more})


def test_a_picture_has_the_last_times_of_every_peer_and_cublas_of_the_same_width() -> None:
    texts = [
        "# a device",
        row("cublas", "bf16", 16, 40.0), row("cublas", "fp8_rowwise", 16, 30.0),
        row("marlin", "w4a16_int4_g128", 16, 25.0), row("marlin", "w4a16_int4_g128", 16, 24.0),
        row("humming", "w4a16_int4_g128", 16, 20.0, floor_us=15.0),
        row("humming", "w8a8_int8_ch_token", 16, 22.0), row("marlin", "w3a16", 16, 5.0),
        'ROW {"peer": "humming", "kind": "dense", "fmt": "w2a16", "m": 1, "error": "wrong"}',
    ]  # fmt: skip
    narrow, wide = picture.panels(picture.rows_of(texts))
    assert narrow.lines == {"marlin": {16: 24.0}, "humming": {16: 20.0}, "cublas bf16": {16: 40.0}}
    assert wide.lines == {"humming": {16: 22.0}, "cublas fp8_rowwise": {16: 30.0}}
    assert narrow.values(narrow.lines["humming"], "us") == ([16], [20.0])
    assert narrow.values(narrow.lines["humming"], "tflops") == ([16], [pytest.approx(0.2)])
    assert narrow.values(narrow.lines["humming"], "floor") == ([16], [0.75])
    assert wide.values(wide.lines["humming"], "floor") == ([], [])
