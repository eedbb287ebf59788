"""benchmarks/cells.py from end to end, in the simulator."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import cells
import gemms

TINY = ["--tiny", "--ms", "2", "--fmts", "w8a8_int8_ch_token"]


@pytest.fixture(autouse=True)
def _no_second_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to time: the run whose result is compared is enough."""
    monkeypatch.setattr(gemms.Place, "time", lambda place, call, repeats: 7.0)


def rows_of(file: Path) -> list[dict[str, object]]:
    lines = file.read_text("utf-8").splitlines()
    return [json.loads(line[4:]) for line in lines if line.startswith("ROW ")]


@pytest.mark.slow
def test_a_dense_product_and_the_sum_of_two_of_experts(tmp_path: Path) -> None:
    cells.main([*TINY, "--kinds", "dense", "indexed", "--out", str(tmp_path / "out")])
    dense, routed = rows_of(tmp_path / "out")
    assert (dense["kind"], dense["m"], dense["us"]) == ("dense", 2, 7.0)
    assert (routed["kind"], routed["us"], routed["parts_us"]) == ("indexed", 14.0, [7.0, 7.0])
    assert dense["relative_error"] < gemms.LIMIT  # type: ignore[operator]
    assert dense["tflops"] == pytest.approx(2e-6 * 2 * 256 * 256 / 7.0)
    assert routed["tflops"] == pytest.approx(2e-6 * 4 * 3 * 256 * 128 / 14.0)


def test_a_wrong_result_has_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemms, "LIMIT", 1e-9)
    cells.main([*TINY, "--kinds", "dense", "--out", str(tmp_path / "out")])
    (found,) = rows_of(tmp_path / "out")
    assert "us" not in found
    assert str(found["error"]).startswith("wrong result")
