"""The public names of humming_sim: complete, documented, and imported only when they are used."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import humming_sim
from humming_sim import errors

LOADED = "import sys; print(*sorted(m for m in sys.modules if m.split('.')[0] in {names}))"


def loaded_after(statement: str, *names: str) -> list[str]:
    """Which modules of the packages `names` a fresh process has after a statement."""
    path = os.pathsep.join(filter(None, sys.path))
    code = f"{statement}\n{LOADED.format(names=names)}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def names_imported_for_type_checkers() -> dict[str, str]:
    tree = ast.parse(Path(humming_sim.__file__).read_text(encoding="utf-8"))
    (block,) = (
        n for n in tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)
    )
    return {alias.name: node.module for node in block.body for alias in node.names}


def test_the_lists_of_public_names_are_one() -> None:
    assert names_imported_for_type_checkers() == humming_sim._HOME_OF
    assert sorted(humming_sim._HOME_OF) == sorted(humming_sim.__all__) == dir(humming_sim)
    assert len(set(humming_sim.__all__)) == len(humming_sim.__all__)


@pytest.mark.parametrize("name", humming_sim.__all__)
def test_every_public_name_is_in_its_home_and_documented(name: str) -> None:
    value = getattr(humming_sim, name)
    assert name in importlib.import_module(humming_sim._HOME_OF[name]).__all__
    assert name == "CHECKS" or inspect.getdoc(value)


def test_no_module_hides_a_public_name() -> None:
    modules = {module.name for module in pkgutil.iter_modules(humming_sim.__path__)}
    assert not modules & set(humming_sim.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'humming_sim' has no attribute 'lunch'"):
        _ = humming_sim.lunch


def test_every_error_is_a_simulator_error_that_is_public() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.SimulatorError)
        assert name in humming_sim.__all__


def test_humming_and_pytest_load_their_plugins_without_the_simulator() -> None:
    assert loaded_after("import humming_sim_pytest", "humming_sim", "numpy", "torch") == []
    ours = loaded_after("import humming_sim.plugin", "humming_sim", "torch")
    assert ours == ["humming_sim", "humming_sim.plugin"]


def test_a_launch_on_numpy_arrays_needs_neither_torch_nor_humming() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1] / 'helpers')!r})\n"
        "import humming_sim, numpy, sim_reverse\n"
        "buffers = [numpy.zeros(256, numpy.float32), numpy.ones(256, numpy.float32)]\n"
        "humming_sim.launch(sim_reverse.REVERSE, 'reverse', 1, 256, buffers)\n"
        "assert not buffers[1].any()"
    )
    assert loaded_after(code, "humming", "torch") == []
