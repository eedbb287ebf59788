"""Plugins that fail in every way a real environment has, all of them in one environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Install = Callable[..., None]
Run = Callable[..., Any]

BACKEND = """
from humming.backend import Backend
from humming.plugins import hookimpl

class OneBackend(Backend):
    name = "good"
    @classmethod
    def refuse_device(cls, profile):
        return None if profile.vendor == "cpu" else "for the host only"
    def refuse(self, layer, compute):
        return None

@hookimpl
def humming_register_backends():
    return [OneBackend]
"""
PROFILES = """
from pathlib import Path
from humming.plugins import hookimpl

@hookimpl
def humming_register_profiles():
    return [Path(__file__).parent / __name__.removesuffix("_plugin")]
"""
PROFILE = """
schema = 1
title = "X"
[match]
vendor = "x"
[features]
mma = []
activations = ["f16"]
tma = false
pdl = false
"""

#: Plugin: its module, the name under which it fails, and what the reason says.
BROKEN = {
    "missing": ("import acme_rt\n", "missing", "ModuleNotFoundError: No module named 'acme_rt'"),
    "syntax": ("def humming_register_backends(:\n", "syntax", "SyntaxError"),
    "raising": (
        "from humming.plugins import hookimpl\n"
        "@hookimpl\ndef humming_register_backends():\n    raise OSError('no driver')\n",
        "raising",
        "OSError: no driver",
    ),
    "misspelt": (
        "from humming.plugins import hookimpl\n"
        "@hookimpl\ndef humming_register_backend():\n    return []\n",
        "misspelt",
        "did you mean humming_register_backends?",
    ),
    "unmarked": (
        "def humming_register_backends():\n    return []\n",
        "unmarked",
        "not marked with @hookimpl",
    ),
    "empty": ("", "empty", "implements none of the hooks"),
    "newer": (
        BACKEND.replace('"good"', '"future"\n    api = 2'),
        "future",
        "is written for version 2 of the contract; this humming-core has version 1",
    ),
    "twin": (BACKEND, "good", "backend 'good' is offered by humming-a-good already"),
    "old_core": (
        "from humming.nowhere import x\n",
        "old_core",
        "No module named 'humming.nowhere'",
    ),
    "eager": (
        "from humming import plugins\nplugins.backends()\n",
        "eager",
        "asks for plugins while it is being loaded",
    ),
    "bad_data": (PROFILES, "bad_data", "x-two.toml: 1 problem(s)"),
}

REPORT = """
import json, logging
logging.disable()
import humming
from humming import plugins
layer = humming.LayerConfig(
    n=8, k=32, weight=humming.WeightScheme.parse("u4-g32-f16"),
    activation=humming.ActivationScheme.parse("f16"), output=humming.number_format("f16"))
promise = humming.ComputeConfig(batch_invariant=True)
refused = []
for name in (None, "missing"):
    try:
        humming.select_backend(name, profile="thead-zhenwu-810e", layer=layer, compute=promise)
    except humming.HummingError as error:
        refused.append([type(error).__name__, str(error)])
print(json.dumps({
    "backends": {n: [b.distribution, b.version] for n, b in plugins.backends().items()},
    "failures": [[f.name, f.plugin.distribution, f.plugin.version, f.reason]
                 for f in plugins.failures()],
    "profiles": sorted(plugins.profiles()),
    "chosen": humming.select_backend(device="cpu").name,
    "refused": refused,
}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, install: Install) -> Path:
    """An environment with a good plugin, a good folder of data, and all the broken ones."""
    folder = tmp_path_factory.mktemp("site")
    good = {"a_good": BACKEND, "data": PROFILES}
    for name, text in good.items():
        distribution = f"humming-{name.replace('_', '-')}"
        install(folder, distribution, "1.0", {name: f"{name}_plugin"}, {f"{name}_plugin": text})
    for name, (text, _, _) in BROKEN.items():
        distribution = f"broken-{name.replace('_', '-')}"
        install(folder, distribution, "0.3", {name: f"{name}_plugin"}, {f"{name}_plugin": text})
    for name, text in (("data", PROFILE), ("bad_data", PROFILE + "colour = 1")):
        (folder / name).mkdir()
        file = folder / name / ("x-one.toml" if name == "data" else "x-two.toml")
        file.write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def report(folder: Path, run: Run) -> dict[str, Any]:
    found: dict[str, Any] = run(REPORT, folder)
    return found


@pytest.mark.parametrize("kind", sorted(BROKEN))
def test_a_broken_plugin_is_named_with_distribution_version_and_reason(
    report: dict[str, Any], kind: str
) -> None:
    _, name, reason = BROKEN[kind]
    rows = [row for row in report["failures"] if row[1] == f"broken-{kind.replace('_', '-')}"]
    ((found, _, version, why),) = rows
    assert (found, version) == (name, "0.3")
    assert reason in why


def test_broken_plugins_cost_nothing_but_themselves(report: dict[str, Any]) -> None:
    assert report["backends"]["good"] == ["humming-a-good", "1.0"]
    assert {"reference", "good"} <= set(report["backends"])
    assert "future" not in report["backends"]
    assert "x-one" in report["profiles"]  # of a plugin that has nothing but data
    assert "x-two" not in report["profiles"]
    assert report["chosen"] == "good"


def test_a_refusal_shows_failed_plugins_with_their_versions(report: dict[str, Any]) -> None:
    kind, text = report["refused"][0]
    assert kind == "NoBackendError"
    (row,) = [line for line in text.splitlines() if "broken-missing 0.3" in line]
    assert "failed to load: ModuleNotFoundError: No module named 'acme_rt'" in row
    assert "humming-a-good 1.0" in text
    assert "for the host only" in text


def test_naming_a_failed_plugin_raises_its_error(report: dict[str, Any]) -> None:
    kind, text = report["refused"][1]
    assert kind == "PluginError"
    assert text.startswith("plugin 'missing' (broken-missing 0.3): failed to load")


def test_plugins_can_be_switched_off(folder: Path, run: Run) -> None:
    text = """
import json
from humming import plugins
names = [plugin.name for plugin in plugins.load().plugins]
print(json.dumps([names, "x-one" in plugins.profiles()]))
"""
    assert run(text, folder, HUMMING_NO_PLUGINS="1") == [["humming-core"], False]


def test_importing_humming_loads_no_plugin_and_no_torch(folder: Path, run: Run) -> None:
    text = """
import json, sys
import humming
print(json.dumps([name for name in sys.modules if name.endswith("_plugin") or name == "torch"]))
"""
    assert run(text, folder) == []
