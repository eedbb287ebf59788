"""Installed plugins without an installer: folders with modules and their metadata, put in front."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Install = Callable[..., None]
Run = Callable[..., Any]


@pytest.fixture(scope="session")
def install() -> Install:
    """Write a distribution into a folder: its metadata, entry points and modules."""

    def write(
        folder: Path,
        distribution: str,
        version: str,
        points: dict[str, str],
        modules: dict[str, str],
    ) -> None:
        info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        head = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        (info / "METADATA").write_text(head, encoding="utf-8")
        rows = [f"{name} = {value}" for name, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[humming]", *rows]), encoding="utf-8")
        for name, text in modules.items():
            (folder / f"{name}.py").write_text(text, encoding="utf-8")

    return write


@pytest.fixture(scope="session")
def run() -> Run:
    """Run Python text in a fresh process and return what it prints as JSON."""

    def python(text: str, *folders: Path, **environment: str) -> Any:
        path = os.pathsep.join([*map(str, folders), *filter(None, sys.path)])
        env = {**os.environ, "PYTHONPATH": path, **environment}
        env.pop("HUMMING_BACKEND", None)
        command = [sys.executable, "-W", "error", "-c", text]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return python
