"""benchmarks/tune.py from end to end, in the simulator, with times that are made up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gemms
import tune

from humming.configs import TuningConfig


@pytest.fixture
def _times(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is chosen is slower than anything else; results are compared as always."""
    right = gemms.Product.time

    def time(
        product: gemms.Product, inputs: gemms.Inputs, repeats: int, tuning: TuningConfig
    ) -> tuple[float | None, float]:
        us, error = right(product, inputs, repeats, tuning)
        slow = tuning == product.chosen(inputs.tokens)
        return us and (100.0 if slow else 50.0), error

    monkeypatch.setattr(gemms.Place, "time", lambda place, call, repeats: 1.0)
    monkeypatch.setattr(gemms.Product, "time", time)


@pytest.mark.slow
@pytest.mark.usefixtures("_times")
def test_products_of_experts_are_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--tiny", "--kinds", "indexed", "grouped_contiguous", "--ms", "2"]
    files = ["--out", str(tmp_path / "out"), "--toml", str(tmp_path / "toml")]
    tune.main([*arguments, "--fmts", "w4a16_int4_g128", *files])
    assert '"failed"' not in capsys.readouterr().out
    rows = (tmp_path / "out").read_text("utf-8").splitlines()
    assert [row.count('"tuned"') for row in rows] == [1] * 4  # up and down of two kinds
    text = (tmp_path / "toml").read_text("utf-8")
    assert text.count("[[tuning.sm90]]") == 4
    assert 'gemm = "indexed", n = 256, k = 256, experts = 4, top_k = 2, m = [3, 4] }' in text
    tune.main(["--read", str(tmp_path / "out")])
    again = capsys.readouterr().out
    assert again.count("[[tuning.sm90]]") == 4


@pytest.mark.usefixtures("_times")
def test_a_tuning_that_fails_is_told_and_the_others_are_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = gemms.Product.time

    def time(product: gemms.Product, *args: object) -> tuple[float | None, float]:
        if "stream" in str(args[-1]):
            raise RuntimeError("an illegal instruction")
        if "wide" in str(args[-1]):
            return None, 0.5
        return right(product, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(gemms.Product, "time", time)
    tune.main(["--tiny", "--ms", "1", "--fmts", "w4a16_int4_g128"])
    printed = capsys.readouterr().out
    assert "an illegal instruction" in printed
    assert "wrong result: relative error 5.00e-01" in printed
    assert 'use = { pipeline = "mma"' in printed


@pytest.mark.usefixtures("_times")
def test_a_spent_budget_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    tune.main(["--tiny", "--ms", "1", "--fmts", "w4a16_int4_g128", "--budget", "1e-6"])
    printed = capsys.readouterr().out
    assert "the budget of 1e-06 s is spent" in printed
    assert "ROW" not in printed
