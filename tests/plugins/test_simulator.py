"""humming-sim's entry points work, installed or (if it is not) as if it were."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACKAGE = Path(__file__).resolve().parents[2] / "packages/humming-sim"
PROJECT = tomllib.loads((PACKAGE / "pyproject.toml").read_text(encoding="utf-8"))["project"]

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory, run: Ask) -> Ask:
    """Run Python text where humming-sim is installed."""
    name, version = PROJECT["name"], PROJECT["version"]
    try:
        assert metadata.version(name) == version
    except metadata.PackageNotFoundError:
        site = tmp_path_factory.mktemp("site")
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (info / "METADATA").write_text(head, encoding="utf-8")
        groups = [
            "\n".join([f"[{group}]", *(f"{key} = {value}" for key, value in points.items())])
            for group, points in PROJECT["entry-points"].items()
        ]
        (info / "entry_points.txt").write_text("\n\n".join(groups), encoding="utf-8")
        return lambda text: run(text, site, PACKAGE / "src")
    return run


def test_humming_loads_it_without_failures_and_finds_its_devices(ask: Ask) -> None:
    found = ask("""
import json, humming
from humming import plugins
print(json.dumps({
    "failures": [str(failure) for failure in plugins.failures()],
    "runtimes": list(plugins.runtimes()),
    "chosen": humming.select_backend(device="sim:nvidia-b200").profile.name,
}))
""")
    assert found["failures"] == []
    assert "sim" in found["runtimes"]
    assert found["chosen"] == "nvidia-b200"


def test_humming_simulate_is_its_command(ask: Ask, tmp_path: Path) -> None:
    ptx = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n"
    (tmp_path / "k.ptx").write_text(ptx, encoding="utf-8")
    status, text = ask(f"""
import contextlib, io, json
from humming.__main__ import main
out = io.StringIO()
with contextlib.redirect_stdout(out):
    status = main(["simulate", {str(tmp_path / "k.ptx")!r}, "--block", "32", "--device",
                   "nvidia-t4"])
    status += 10 * main(["simulate", {str(tmp_path / "k.ptx")!r}, "--block", "32"])
print(json.dumps([status, out.getvalue()]))
""")
    assert status == 1  # sm_80 is too new for a T4, and runs anywhere without a device
    assert text.startswith("kernel k: 1 CTAs in ")


def test_pytest_finds_its_fixture(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(simulate):\n    assert callable(simulate)\n")
    status = ask(f"""
import contextlib, io, json, pytest
with contextlib.redirect_stdout(io.StringIO()):
    status = pytest.main([{str(tmp_path)!r}, "-p", "no:cacheprovider", "--sim-seeds", "1"])
print(json.dumps(status))
""")
    assert status == 0
