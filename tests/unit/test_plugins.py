"""Plugins in one process: each loads alone, each failure is remembered, names stay unique."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from humming import hooks, plugins
from humming.backend import Backend
from humming.errors import PluginError
from humming.formats.number import Kind, NumberFormat
from humming.formats.table import number_format
from humming.hooks import hookimpl
from humming.plugins import Registry
from humming.profiles import DeviceIdentity


def make_backend(backend_name: str, **attributes: Any) -> type[Backend]:
    body = {
        "name": backend_name,
        "refuse_device": classmethod(lambda cls, profile: None),
        "refuse": lambda self, layer, compute: None,
        **attributes,
    }
    return type(f"{backend_name.title()}Backend", (Backend,), body)


Plugin = Callable[..., EntryPoint]


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Plugin:
    """Make an entry point whose module has the given functions, marked as hooks."""

    def make(point: str, *, marked: bool = True, **functions: Any) -> EntryPoint:
        module = ModuleType(f"plugin_{point}")
        for name, function in functions.items():
            setattr(module, name, hookimpl(function) if marked else function)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return EntryPoint(point, module.__name__, hooks.PROJECT)

    return make


def backends_of(*kinds: Any) -> Callable[[], list[Any]]:
    return lambda: list(kinds)


def only_failure(registry: Registry) -> plugins.PluginFailure:
    (failure,) = registry.failures
    return failure


def test_core_is_the_first_plugin_and_complete() -> None:
    registry = Registry(())
    assert [found.name for found in registry.plugins] == ["humming-core"]
    assert not registry.failures
    assert registry.backends["reference"].distribution == "humming-core"
    assert "cuda" in registry.runtimes
    assert "host-cpu" in registry.profiles
    assert "humming" in registry.loaders


def test_everything_that_a_plugin_offers_is_collected(plugin: Plugin, tmp_path: Path) -> None:
    point = plugin("a", humming_register_backends=backends_of(make_backend("one")))
    registry = Registry([point])
    assert registry.backends["one"].type.name == "one"
    assert registry.backends["one"].version == "unknown"  # no distribution stands behind it
    assert set(registry.backends) == {"reference", "one"}


def test_a_plugin_that_does_not_import_costs_only_itself(plugin: Plugin) -> None:
    bad = EntryPoint("bad", "no_such_module_anywhere", hooks.PROJECT)
    good = plugin("good", humming_register_backends=backends_of(make_backend("one")))
    registry = Registry([bad, good])
    assert "one" in registry.backends
    failure = only_failure(registry)
    assert failure.plugin.name == failure.name == "bad"
    assert "ModuleNotFoundError" in failure.reason
    assert "no_such_module_anywhere" in str(failure)


def test_a_raising_hook_hides_no_other_plugin(plugin: Plugin) -> None:
    def explode() -> list[Any]:
        raise ValueError("no licence\nsecond line")

    first = plugin("a", humming_register_backends=backends_of(make_backend("one")))
    raising = plugin("b", humming_register_backends=explode)
    last = plugin("c", humming_register_backends=backends_of(make_backend("two")))
    registry = Registry([last, raising, first])
    assert set(registry.backends) == {"reference", "one", "two"}
    assert only_failure(registry).reason == "failed to load: ValueError: no licence second line"


def test_a_misspelt_hook_is_an_error_that_names_plugin_and_hook(plugin: Plugin) -> None:
    registry = Registry([plugin("typo", humming_register_backend=backends_of())])
    failure = only_failure(registry)
    assert isinstance(failure.error, PluginError)
    assert failure.error.plugin == "typo"
    assert "no hook 'humming_register_backend'" in failure.reason
    assert "did you mean humming_register_backends?" in failure.reason


def test_a_misspelling_like_no_hook_gets_the_list(plugin: Plugin) -> None:
    registry = Registry([plugin("typo", nothing_like_it=backends_of())])
    assert "the hooks are humming_" in only_failure(registry).reason


def test_a_hook_without_its_mark_is_an_error(plugin: Plugin) -> None:
    point = plugin("bare", marked=False, humming_register_backends=backends_of())
    assert "not marked with @hookimpl" in only_failure(Registry([point])).reason


def test_a_plugin_without_hooks_is_an_error(plugin: Plugin) -> None:
    assert "none of the hooks" in only_failure(Registry([plugin("empty")])).reason


def test_a_hook_with_wrong_parameters_is_an_error(plugin: Plugin) -> None:
    point = plugin("wrong", humming_identify_device=lambda number: None)
    registry = Registry([point])
    assert "{'number'} are declared in the hookimpl" in only_failure(registry).reason
    assert registry.identify_device(0) is None or registry.identify_device(0).vendor == "nvidia"


def test_a_backend_written_for_another_contract_is_an_error(plugin: Plugin) -> None:
    kinds = backends_of(make_backend("new", api=99), make_backend("one"))
    registry = Registry([plugin("a", humming_register_backends=kinds)])
    assert set(registry.backends) == {"reference", "one"}
    failure = only_failure(registry)
    assert failure.name == "new"
    assert "version 99 of the contract; this humming-core has version 1" in failure.reason


def test_two_backends_of_one_name_are_an_error_and_the_first_stays(plugin: Plugin) -> None:
    mine, theirs = make_backend("one"), make_backend("one")
    second = plugin("b", humming_register_backends=backends_of(theirs, make_backend("reference")))
    first = plugin("a", humming_register_backends=backends_of(mine))
    registry = Registry([second, first])  # by name, in whatever order they are installed
    assert registry.backends["one"].type is mine
    assert registry.backends["reference"].distribution == "humming-core"
    assert [failure.name for failure in registry.failures] == ["one", "reference"]
    assert all(failure.plugin.name == "b" for failure in registry.failures)
    assert "offered by humming-core already" in registry.failures[1].reason


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (int, "int is no Backend"),
        (type("Half", (Backend,), {"name": "half"}), "does not define refuse, refuse_device"),
        (make_backend("Upper-Case"), "needs a lower-case identifier"),
        ("one", "returned 'one' among its items"),
    ],
)
def test_what_is_no_backend_is_an_error(plugin: Plugin, item: Any, problem: str) -> None:
    registry = Registry([plugin("a", humming_register_backends=backends_of(item))])
    assert set(registry.backends) == {"reference"}
    assert problem in only_failure(registry).reason


@pytest.mark.parametrize("result", [None, "text", 3, {"a": 1}])
def test_a_hook_that_returns_no_list_is_an_error(plugin: Plugin, result: Any) -> None:
    registry = Registry([plugin("a", humming_register_backends=lambda: result)])
    assert f"returned {result!r}, expected a list" in only_failure(registry).reason


def test_two_entry_points_of_one_name_are_an_error(plugin: Plugin) -> None:
    first = plugin("same", humming_register_backends=backends_of(make_backend("one")))
    registry = Registry([first, EntryPoint("same", "elsewhere", hooks.PROJECT)])
    assert "one" in registry.backends
    assert "has the same name" in only_failure(registry).reason


def test_a_loader_for_a_taken_method_is_an_error_for_all_loaders(plugin: Plugin) -> None:
    mine = type("Mine", (), {"quant_methods": ("humming",), "plan": lambda self: ()})
    registry = Registry([plugin("a", humming_register_loaders=backends_of(mine))])
    with pytest.raises(PluginError, match=r"'humming': humming-core .* offers one already"):
        _ = registry.loaders
    assert only_failure(registry).plugin.name == "a"
    assert "reference" in registry.backends


def test_a_loader_may_serve_several_methods(plugin: Plugin) -> None:
    mine = type("Mine", (), {"quant_methods": ("x1", "x2"), "plan": lambda self: ()})
    registry = Registry([plugin("a", humming_register_loaders=backends_of(mine, mine))])
    assert registry.loaders["x1"] is registry.loaders["x2"] is mine
    assert not registry.failures


def test_what_is_no_loader_is_an_error(plugin: Plugin) -> None:
    registry = Registry([plugin("a", humming_register_loaders=backends_of(int))])
    assert "int is no CheckpointLoader" in only_failure(registry).reason
    assert "humming" in registry.loaders


def test_formats_are_registered_and_a_taken_name_is_an_error(plugin: Plugin) -> None:
    new = NumberFormat(name="plugged8", kind=Kind.INTEGER, signed=True, mantissa=7)
    taken = NumberFormat(name="s8", kind=Kind.INTEGER, signed=True, mantissa=6)
    registry = Registry(
        [
            plugin("a", humming_register_formats=backends_of(new)),
            plugin("b", humming_register_formats=backends_of(taken)),
            plugin("c", humming_register_formats=backends_of(number_format("s8"))),
        ]
    )
    assert number_format("plugged8") is new
    assert number_format("s8").bits == 8
    assert only_failure(registry).plugin.name == "b"
    assert "s8" in only_failure(registry).reason


PROFILE = """
schema = 1
title = "{title}"
[match]
vendor = "plugged"
[features]
mma = []
activations = ["f16"]
tma = false
pdl = false
"""


def test_a_plugins_profile_replaces_cores_but_not_another_plugins(
    plugin: Plugin, tmp_path: Path
) -> None:
    points = []
    for name, file in (("a", "nvidia-t4"), ("b", "nvidia-t4"), ("c", "bad"), ("d", "good")):
        folder = tmp_path / name
        folder.mkdir()
        text = PROFILE.format(title=name) if name != "c" else "schema = 7"
        (folder / f"{file}.toml").write_text(text, encoding="utf-8")
        points.append(plugin(name, humming_register_profiles=backends_of(folder)))
    registry = Registry(points)
    assert registry.profiles["nvidia-t4"].title == "a"
    assert registry.profiles["good"].title == "d"
    assert [failure.plugin.name for failure in registry.failures] == ["b", "c"]
    assert "'nvidia-t4' is offered by unknown already" in registry.failures[0].reason
    assert "problem(s)" in registry.failures[1].reason


class OneRuntime:
    name = "cuda"

    def identify(self, device: str) -> None: ...
    def devices(self) -> list[str]: ...
    def load(self, binary: bytes, entry: str) -> None: ...
    def launch(self, kernel: object, shape: object, args: object, options: object) -> None: ...
    def prepare(self, *_: object) -> None: ...


def test_runtimes_have_names_of_their_own(plugin: Plugin) -> None:
    registry = Registry([plugin("a", humming_register_runtimes=backends_of(OneRuntime()))])
    assert not isinstance(registry.runtimes["cuda"], OneRuntime)
    assert "runtime 'cuda' is offered" in only_failure(registry).reason
    registry = Registry([plugin("b", humming_register_runtimes=backends_of(object()))])
    assert "among its items" in only_failure(registry).reason


def test_the_last_registered_probe_is_asked_first_and_a_raising_one_is_passed(
    plugin: Plugin,
) -> None:
    asked: list[str] = []

    def probe(name: str, answer: Any) -> Callable[[int], Any]:
        def identify(ordinal: int) -> Any:
            asked.append(f"{name}{ordinal}")
            if isinstance(answer, Exception):
                raise answer
            return answer

        return identify

    identity = DeviceIdentity(name="x", vendor="v", capability=(1, 0), limits={})
    registry = Registry(
        [
            plugin("a", humming_identify_device=probe("a", None)),
            plugin("b", humming_identify_device=probe("b", identity)),
            plugin("c", humming_identify_device=probe("c", "not an identity")),
            plugin("d", humming_identify_device=probe("d", OSError("no driver"))),
        ]
    )
    assert registry.identify_device(3) is identity
    assert asked == ["d3", "c3", "b3"]
    reasons = [failure.reason for failure in registry.failures]
    assert "OSError: no driver" in reasons[0]
    assert "returned 'not an identity'" in reasons[1]


def test_cores_own_faults_are_raised_and_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    @hookimpl
    def humming_register_backends() -> list[Any]:
        raise ValueError("core is broken")

    monkeypatch.setattr(plugins.builtin, "humming_register_backends", humming_register_backends)
    with pytest.raises(ValueError, match="core is broken"):
        _ = Registry(()).backends


def test_failures_are_logged_when_they_happen(
    plugin: Plugin, caplog: pytest.LogCaptureFixture
) -> None:
    Registry([plugin("empty")])
    assert "plugin empty (unknown unknown) failed to load" in caplog.text
