"""benchmarks/moe.py: what the peer is asked for is what it knows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import moe
from peers import humming_kernels


def test_the_peer_knows_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def lines(folder: Path, jobs: list[dict[str, Any]], seconds: float) -> list[str]:
        asked.extend(jobs)
        return []

    monkeypatch.setattr(moe, "lines_of_humming_kernels", lines)
    moe.peer_rows([*moe.BLOCKS, *moe.GEMMS], [1, 8], Path("folder"), 5.0)
    assert [job["name"] for job in asked] == list(moe.BLOCKS), "it has layers, not single products"
    for job in asked:
        assert job["fmt"] in humming_kernels.CONFIGS
        assert job["gating"] in humming_kernels.FUNCTIONS
        assert job["kind"] == "layer"
    gated = humming_kernels.FUNCTIONS["swiglu_oai"][0]
    assert (gated == "binary_interleaved") is moe.BLOCKS["gpt-oss-20b"].gating.interleaved
