"""The fixture `simulate`, in a pytest of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from humming_sim import errors, launch_seeds

pytest_plugins = ["pytester"]

README = Path(__file__).parents[2] / "packages/humming-sim/README.md"

#: Loaded by its entry point where humming-sim is installed, else by name.
INSTALLED = any(p.value == "humming_sim_pytest" for p in metadata.entry_points(group="pytest11"))
OPTIONS = ("-W", "error", *(() if INSTALLED else ("-p", "humming_sim_pytest")))


def run(pytester: pytest.Pytester, text: str, *options: str) -> pytest.RunResult:
    """Run pytest on a test file with no configuration but the options."""
    assert launch_seeds  # imported before, or every inner pytest would import it anew
    pytester.makepyfile(text)
    return pytester.runpytest_inprocess(*OPTIONS, *options)


def test_the_readme_s_test_runs(pytester: pytest.Pytester) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S)
    assert "def test_reverse(simulate):" in blocks[-1]
    run(pytester, "".join(blocks)).assert_outcomes(passed=1)


HEAD = "import numpy as np\nfrom sim_reverse import LAST_WINS, RACY, REVERSE\n"
RACE = (
    "def test_race(simulate):\n"
    "    simulate(RACY, 'reverse', 1, 256, [np.zeros(256, 'f4'), np.zeros(256, 'f4')])\n"
)
LAST = (
    "def test_last(simulate):\n"
    "    simulate(LAST_WINS, 'last', 1, 256, [np.zeros(1, 'f4')], tolerance={tolerance})\n"
)


def test_a_fault_of_some_order_fails_the_test_and_names_the_instruction(
    pytester: pytest.Pytester,
) -> None:
    result = run(pytester, HEAD + RACE)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*SimulationFault: [[]uninitialised[]]*", "*ld.shared.b32*"])


def test_the_option_says_in_how_many_orders(pytester: pytest.Pytester) -> None:
    run(pytester, HEAD + RACE, "--sim-seeds", "0").assert_outcomes(passed=1)
    count = (
        "def test_count(simulate, monkeypatch):\n"
        "    from humming_sim import seeds\n"
        "    asked, launch = [], seeds.launch\n"
        "    def spy(*args, **options):\n"
        "        asked.append(options.get('seed'))\n"
        "        return launch(*args, **options)\n"
        "    monkeypatch.setattr(seeds, 'launch', spy)\n"
        "    buffers = [np.ones(256, 'f4'), np.ones(256, 'f4')]\n"
        "    report = simulate(REVERSE, 'reverse', 1, 256, buffers)\n"
        "    assert report.ctas == 1 and asked == [None, {seeds}]\n"
    )
    run(pytester, HEAD + count.format(seeds="1, 2, 3")).assert_outcomes(passed=1)
    five = HEAD + count.format(seeds="1, 2, 3, 4, 5")
    run(pytester, five, "--sim-seeds", "5").assert_outcomes(passed=1)


@pytest.mark.parametrize(("tolerance", "outcome"), [("0.0", "failed"), ("0.1", "passed")])
def test_a_test_says_how_much_may_depend_on_the_order(
    pytester: pytest.Pytester, tolerance: str, outcome: str
) -> None:
    result = run(pytester, HEAD + LAST.format(tolerance=tolerance), "--sim-seeds", "8")
    result.assert_outcomes(**{outcome: 1})
    assert ("UnstableResult" in result.stdout.str()) == (outcome == "failed")


def test_coverage_of_the_simulator_is_measured_from_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "test_last.py").write_text(HEAD + LAST.format(tolerance=1), encoding="utf-8")
    path = os.pathsep.join([str(Path(__file__).parents[1] / "helpers"), *filter(None, sys.path)])
    command = [sys.executable, "-m", "pytest", *OPTIONS, "--cov=humming_sim", "--cov-report=json"]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    files = json.loads((tmp_path / "coverage.json").read_text(encoding="utf-8"))["files"]
    (measured,) = (file for name, file in files.items() if name.endswith("humming_sim/errors.py"))
    source = Path(errors.__file__).read_text(encoding="utf-8").splitlines()
    assert source.index("class SimulatorError(Exception):") + 1 in measured["executed_lines"]
