"""benchmarks/tune.py: what it tries, and the rows of a profile that come of what it measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import humming
from humming.backend import KernelBackend, Problem
from humming.configs import ComputeConfig
from humming.engine.choice import Planner, choose
from humming.engine.measured import check_rows, use_of
from humming.profiles import DeviceProfile, load_profile

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from gemms import Place, planner_of
from measured_rows import toml_rows
from tune import parsed, shortlist
from workloads import FORMATS, Work

PLACE = Place("sim:nvidia-h200", "sm90")
WORK = Work("w4a16_int4_g128", 8192, 8192)
WHEN = {"weight": "u4-g128-bf16", "activation": "bf16", "gemm": "dense", "n": 8192, "k": 8192}
WIDE = {"pipeline": "wide", "tokens": 64, "stages": 5, "folds": True, "splits": 1, "raster": 8}
MMA = {"pipeline": "mma", "warps_n": 1, "warps_m": 1, "warps_k": 8, "tokens": 8}


def tuned(
    rows: int, best: dict[str, object], us: float, chosen_us: float | None
) -> dict[str, object]:
    """A line of tune.py."""
    chosen = {**WIDE, "tokens": 256}
    return {"kind": "tuned", "backend": "sm90", "when": WHEN, "rows": rows, "best": best,
            "chosen": chosen, "us": us, "chosen_us": chosen_us}  # fmt: skip


@pytest.fixture
def planner() -> Planner:
    return planner_of(WORK, PLACE)


def with_rows(text: str, folder: Path) -> DeviceProfile:
    shipped = Path(humming.__file__).parent / "device_profiles" / "nvidia-h200.toml"
    lines = shipped.read_text("utf-8").splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith("[[tuning")), None)
    end = lines.index("[sources]")
    file = folder / "nvidia-h200.toml"
    kept = [*lines[: end if start is None else start], text, *lines[end:]]
    file.write_text("\n".join(kept), encoding="utf-8")
    return load_profile(file)


def test_only_what_is_faster_by_more_than_the_gain_becomes_a_row() -> None:
    lines = [tuned(16, WIDE, 98.5, 100.0), tuned(32, WIDE, 97.5, 100.0), tuned(64, MMA, 9.0, None)]
    text = toml_rows(lines, gain=0.02)
    assert "m = [17, 32]" in text
    assert "97.5 us, not 100.0" in text
    assert "m = [33, 64]" in text
    assert "98.5" not in text
    assert toml_rows([tuned(16, {**WIDE, "tokens": 256}, 90.0, 100.0)]) == ""


def test_neighbours_with_one_tuning_are_one_row_and_gaps_reach_down_to_a_half() -> None:
    lines = [tuned(16, WIDE, 5.0, 9.0), tuned(32, WIDE, 6.0, 9.0), tuned(512, WIDE, 7.0, 9.0)]
    text = toml_rows(lines)
    assert text.count("[[tuning.sm90]]") == 2
    assert "m = [9, 32]" in text
    assert "m = [257, 512]" in text


def test_the_reader_of_profiles_takes_the_rows_and_the_planner_uses_them(
    planner: Planner, tmp_path: Path
) -> None:
    problem = Problem(m=64)
    loser = shortlist(planner, problem, 2, float("inf"))[-1]
    use = use_of(type(planner.backend), loser)
    line = {**tuned(64, use, 5.0, 9.0), "chosen": MMA}
    profile = with_rows(toml_rows([line], source="a test"), tmp_path)
    check_rows(profile, type(planner.backend))
    backend = type(planner.backend)(profile)
    found = choose(backend, WORK.layer, ComputeConfig(), problem)
    assert found.tuning == loser
    assert found.why.startswith("measured, a test")


def test_conditions_can_be_left_out() -> None:
    text = toml_rows([tuned(16, WIDE, 5.0, 9.0)], leave_out=["n", "k"])
    assert (
        'when = { weight = "u4-g128-bf16", activation = "bf16", gemm = "dense", m = [9, 16] }'
        in (text.splitlines())
    )


def test_the_shortlist_has_the_chosen_one_and_a_few_of_every_pipeline(planner: Planner) -> None:
    backend, problem = planner.backend, Problem(m=64)
    found = shortlist(planner, problem, 3, float("inf"))
    assert found[0] == planner.tuning(problem)
    pipelines = [str(use_of(type(backend), tuning)["pipeline"]) for tuning in found]
    assert {name: pipelines.count(name) for name in pipelines} == {"mma": 3, "stream": 3, "wide": 3}
    few = shortlist(planner, problem, 3, 1.05)
    cost = [backend.cost(planner.layer, planner.compute, problem, tuning) for tuning in few]
    assert max(cost) <= 1.05 * min(cost)
    assert len(few) < len(found)


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_format_has_kernels(fmt: str) -> None:
    assert isinstance(planner_of(Work(fmt, 8192, 8192), PLACE).backend, KernelBackend)


def test_blocks_are_named_or_given_by_their_numbers() -> None:
    options = parsed(["--blocks", "qwen3", "64,6,4096,1536", "--shapes", "4096,14336"])
    assert [tuple(block) for block in options.blocks] == [(128, 8, 2048, 768), (64, 6, 4096, 1536)]
    assert options.shapes == [(4096, 14336)]
