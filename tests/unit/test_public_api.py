"""The public names: complete, documented, light to import, and alone in their package."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import humming
from humming import errors, settings
from humming.errors import BackendReason, ConfigError, HummingError, NoBackendError

SOURCE = Path(humming.__file__)


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**os.environ, **env},
    )  # fmt: skip


def names_imported_for_type_checkers() -> dict[str, str]:
    """Public name to the module that the TYPE_CHECKING block imports it from."""
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    (block,) = (
        n for n in tree.body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)
    )
    return {alias.name: node.module for node in block.body for alias in node.names}


def test_the_three_lists_of_public_names_are_one():
    homes = {name: module for module, names in humming._HOMES.items() for name in names}
    assert names_imported_for_type_checkers() == homes
    assert sorted([*homes, "__version__"]) == sorted(humming.__all__)
    assert humming.__all__ == sorted(humming.__all__)
    assert len(set(humming.__all__)) == len(humming.__all__)
    assert dir(humming) == sorted(humming.__all__)


@pytest.mark.parametrize("name", [n for n in humming.__all__ if n != "__version__"])
def test_every_public_name_is_there_and_has_a_docstring(name):
    value = getattr(humming, name)
    assert inspect.getdoc(value)
    assert not inspect.ismodule(value)
    if inspect.isclass(value):
        own = [n for n, m in vars(value).items() if not n.startswith("_") and inspect.isroutine(m)]
        undocumented = [n for n in own if not inspect.getdoc(getattr(value, n))]
        assert undocumented == []


def test_every_public_name_is_in_the_all_of_its_home():
    for module, names in humming._HOMES.items():
        assert set(names) <= set(
            sys.modules.get(module, __import__(module, fromlist=["x"])).__all__
        )


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'humming' has no attribute 'quantise'"):
        _ = humming.quantise


def test_no_module_hides_a_public_function_of_its_name():
    modules = {module.name for module in pkgutil.iter_modules(humming.__path__)}
    assert not modules & set(humming.__all__)


def test_import_humming_brings_no_torch_and_takes_no_time():
    done = run(
        "import sys, time\n"
        "start = time.process_time()\n"
        "import humming\n"
        "spent = time.process_time() - start\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "assert humming.ConfigError and 'torch' not in sys.modules\n"
        "print(spent)\n"
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.3


def test_the_version_is_that_of_the_distribution():
    assert humming.__version__.split(".")[0].isdigit()


# -- another distribution's humming ------------------------------------------------------------


def fake_distribution(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(text)


def test_a_clash_is_one_clear_error_with_the_command_that_mends_it(tmp_path):
    fake_distribution(tmp_path, "humming-kernels", "0.1.20")
    path = os.pathsep.join([str(SOURCE.parents[1]), str(tmp_path)])
    done = run("import humming", PYTHONPATH=path)
    assert done.returncode == 1
    last = done.stderr[done.stderr.index("NameClashError") :]
    assert "humming-kernels 0.1.20 is installed" in last
    assert "pip uninstall -y humming-kernels" in last
    assert "--force-reinstall --no-deps humming-core" in last
    caught = run(
        "try:\n    import humming\nexcept ImportError as error:\n    print(type(error).__name__)",
        PYTHONPATH=path,
    )
    assert caught.stdout.strip() == "NameClashError"


def test_the_command_sees_a_clash_though_the_package_is_no_longer_ours(tmp_path):
    """humming-kernels installed over humming-core: its __init__ is there, our _clash still is."""
    fake_distribution(tmp_path, "humming-kernels", "0.1.20")
    mixed = tmp_path / "humming"
    mixed.mkdir()
    (mixed / "__init__.py").write_text("raise RuntimeError('not ours')")
    shutil.copy(SOURCE.parent / "_clash.py", mixed)
    shutil.copy(SOURCE.parents[1] / "humming_command.py", tmp_path)
    done = run(
        "import sys, humming_command; sys.exit(humming_command.main())", PYTHONPATH=str(tmp_path)
    )
    assert done.returncode == 1
    assert done.stderr.startswith("humming: error: humming-kernels 0.1.20 is installed")
    assert "pip uninstall -y humming-kernels" in done.stderr


def test_the_command_hands_over_where_there_is_no_clash():
    done = run(
        "import sys, humming_command; sys.argv = ['humming', '--version']\n"
        "sys.exit(humming_command.main())",
        PYTHONPATH=str(SOURCE.parents[1]),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("humming ")


def test_another_distribution_of_a_similar_name_is_no_clash(tmp_path):
    fake_distribution(tmp_path, "humming-sm90", "0.1.0")
    path = os.pathsep.join([str(SOURCE.parents[1]), str(tmp_path)])
    assert run("import humming", PYTHONPATH=path).returncode == 0


def test_files_left_behind_by_a_broken_uninstall_are_a_clash(tmp_path, monkeypatch):
    module = importlib.import_module("humming._clash")
    assert module.find_clash() is None
    (tmp_path / "dtypes.py").touch()
    monkeypatch.setattr(module, "__file__", str(tmp_path / "_clash.py"))
    assert "its files, without its metadata" in module.find_clash()


# -- errors and settings -----------------------------------------------------------------------


def test_every_error_is_a_humming_error_and_stands_in_the_tree():
    for name in errors.__all__:
        value = getattr(errors, name)
        if name != "BackendReason":
            assert issubclass(value, HummingError)
            assert name in errors.__doc__
    assert issubclass(ConfigError, ValueError)
    assert issubclass(errors.NameClashError, ImportError)
    assert issubclass(NoBackendError, errors.UnsupportedError)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConfigError("n", 0, "a positive size"), "n=0: expected a positive size"),
        (errors.CheckpointError("odd"), "odd"),
        (errors.CheckpointError("odd", tensor="a.b"), "tensor 'a.b': odd"),
        (errors.CheckpointError("odd", tensor="a", path="p"), "p: tensor 'a': odd"),
        (errors.ProfileError("x.toml", ["a: b", "c: d"]), "x.toml: 2 problem(s)\n  a: b\n  c: d"),
        (errors.PluginError("p", "dist", "1.0", "broken"), "plugin 'p' (dist 1.0): broken"),
        (errors.LayoutMismatch("a", "b"), "weight is packed as 'a', the kernel reads 'b'"),
        (
            errors.CompileError("k", "x", "s.cu", "log"),
            "k for x does not compile; source: s.cu\nlog",
        ),
        (errors.LaunchError("k", "1x1", "BAD"), "k [1x1]: BAD"),
        (NoBackendError("a T4", []), "no backend accepts a T4\n  no backend is installed"),
        (
            NoBackendError(
                "a T4",
                [BackendReason("one", "humming-one 1", "no"), BackendReason("three", "x", "why")],
                "hint",
            ),
            "no backend accepts a T4\n"
            "  one    humming-one 1  no\n"
            "  three  x              why\n"
            "hint",
        ),
    ],
)
def test_errors_say_what_they_hold(error, text):
    assert str(error) == text


def test_settings_read_the_environment_and_refuse_what_is_neither_yes_nor_no(monkeypatch):
    monkeypatch.delenv("HUMMING_ALLOW_FALLBACK", raising=False)
    assert settings.flag("HUMMING_ALLOW_FALLBACK") is True
    for text, wanted in (("0", False), (" YES ", True), ("off", False), ("", False), ("1", True)):
        monkeypatch.setenv("HUMMING_ALLOW_FALLBACK", text)
        assert settings.flag("HUMMING_ALLOW_FALLBACK") is wanted
    monkeypatch.setenv("HUMMING_ALLOW_FALLBACK", "maybe")
    with pytest.raises(ConfigError, match="HUMMING_ALLOW_FALLBACK='maybe': expected 1 or 0"):
        settings.flag("HUMMING_ALLOW_FALLBACK")
    monkeypatch.setenv("HUMMING_PROFILE_PATH", os.pathsep.join(["", "a", "b", ""]))
    assert settings.paths("HUMMING_PROFILE_PATH") == ["a", "b"]
    monkeypatch.setenv("HUMMING_BACKEND", "x")
    assert settings.text("HUMMING_BACKEND") == "x"
    assert all(v.meaning for v in settings.VARIABLES.values())
    with pytest.raises(KeyError):
        settings.text("HUMMING_SURPRISE")
