"""The command line itself: commands, exit statuses, what goes to which stream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cli_runner
import pytest
import torch
from cli_runner import invoke

import humming.__main__
from humming import plugins
from humming.cli import formats
from humming.cli.app import COMMANDS
from humming.cli.output import Column, Output
from humming.errors import HummingError
from humming.formats.scheme import SCHEME_ALIASES
from humming.formats.table import all_formats

WITHOUT_ARGUMENTS = ("formats", "devices", "profiles", "plugins", "doctor", "matrix")


def python(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """A process of its own with this one's import path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, **options)


def test_help_lists_every_command_on_a_line_of_its_own() -> None:
    result = invoke("--help")
    assert result.status == 0
    for name, summary in COMMANDS.items():
        assert f"    {name} " in result.out
        assert summary.split()[0] in result.out


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "simulate"])
def test_every_command_of_core_has_help(command: str) -> None:
    result = invoke(command, "--help")
    assert result.status == 0
    assert result.out.startswith(f"usage: humming {command} ")
    assert "--json" in result.out


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("frobnicate",),
        ("formats", "--frobnicate"),
        ("inspect",),
        ("inspect", "x", "--device", "cpu", "--profile", "nvidia-b200"),
        ("run", "x", "--m", "1,none"),
        ("run", "x", "--m", "0"),
        ("run", "x", "--activation", "u4"),
        ("quantize", "a", "b"),
        ("quantize", "a", "b", "--scheme", "int4-g128", "--clip", "min"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(argv: tuple[str, ...]) -> None:
    result = invoke(*argv)
    assert result.status == 2
    assert result.out == ""
    assert "usage: humming" in result.err


def test_a_bad_scheme_is_explained_in_the_usage_error() -> None:
    result = invoke("quantize", "a", "b", "--scheme", "u4-g0-bf16")
    assert result.status == 2
    assert "--scheme: group_size=0: expected a positive integer" in result.err


def test_version_is_printed() -> None:
    result = invoke("--version")
    assert result.status == 0
    assert result.out.startswith("humming ")


def test_a_clash_is_reported_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(humming.__main__, "find_clash", lambda: "humming-kernels 0.1 is here")
    monkeypatch.setitem(sys.modules, "humming.cli.app", None)  # importing it would raise
    result = invoke("formats")
    assert (result.status, result.out) == (1, "")
    assert result.err == "humming: error: humming-kernels 0.1 is here\n"


def raising(error: BaseException) -> Callable[..., int]:
    def run(*_: object) -> int:
        raise error

    return run


def test_an_error_is_one_message_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "run", raising(HummingError("the moon is full")))
    result = invoke("formats", "--json")
    assert (result.status, result.out) == (1, "")
    assert result.err == "humming formats: error: the moon is full\n"


def test_traceback_shows_where_an_error_was_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "run", raising(HummingError("the moon is full")))
    result = invoke("formats", "--traceback")
    assert result.status == 1
    assert "Traceback" in result.err
    assert __file__ in result.err


def test_a_full_disk_is_an_error_and_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "run", raising(OSError(28, "No space left on device")))
    result = invoke("formats")
    assert result.status == 1
    assert "No space left on device" in result.err


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "run", raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        invoke("formats")


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "run", raising(KeyboardInterrupt()))
    result = invoke("formats")
    assert result.status == 130
    assert result.err == "humming: interrupted\n"


@pytest.mark.parametrize("command", WITHOUT_ARGUMENTS)
def test_json_is_one_object_and_nothing_else(command: str) -> None:
    result = invoke(command, "--json")
    assert result.status == 0
    assert isinstance(result.json, dict)
    assert result.json


@pytest.mark.parametrize("command", WITHOUT_ARGUMENTS)
def test_a_pipe_gets_plain_text(command: str) -> None:
    result = invoke(command)
    assert result.status == 0
    assert "\x1b" not in result.out
    assert "…" not in result.out


def test_formats_lists_every_format_and_alias() -> None:
    data = invoke("formats", "--json").json
    assert [row["name"] for row in data["formats"]] == [fmt.name for fmt in all_formats()]
    assert {row["alias"]: row["scheme"] for row in data["schemes"]} == SCHEME_ALIASES
    e4m3 = next(row for row in data["formats"] if row["name"] == "e4m3fn")
    assert (e4m3["max"], e4m3["min"], e4m3["bits"], e4m3["is_scale"]) == (448.0, -448.0, 8, True)
    text = invoke("formats").out
    assert "e2m1-g16-e4m3fn-tensor" in text
    assert "float8_e4m3fn" in text


def test_formats_has_those_of_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(plugins, "load", lambda: asked.append(True))
    invoke("formats")
    assert asked


def test_devices_has_the_host_and_what_runs_on_it() -> None:
    data = invoke("devices", "--json").json
    host = data["devices"][0]
    assert (host["device"], host["profile"], host["backend"]) == ("cpu", "host-cpu", "reference")
    assert host["problem"] is None
    if not torch.cuda.is_available():
        assert data["default"] == "cpu"


def test_a_device_without_a_backend_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUMMING_BACKEND", "nobody")
    result = invoke("devices")
    assert result.status == 1
    assert "cpu: backend='nobody'" in result.out


def test_profiles_has_every_profile_with_its_sources() -> None:
    rows = invoke("profiles", "--json").json["profiles"]
    assert [row["name"] for row in rows] == sorted(plugins.profiles())
    h20 = next(row for row in rows if row["name"] == "nvidia-h20")
    assert h20["rates"]["dram_gbps"] == 4000
    assert h20["capability"] == [9, 0]
    assert h20["sources"]
    assert "nvidia-h20 " in invoke("profiles").out


def test_plugins_has_backends_loaders_and_runtimes() -> None:
    data = invoke("plugins", "--json").json
    assert "reference" in {row["name"] for row in data["backends"]}
    methods = {method for row in data["loaders"] for method in row["quant_methods"]}
    assert {"humming", "gguf", "gptq", "awq", "compressed-tensors", "fp8"} <= methods
    assert "cuda" in data["runtimes"]
    assert data["failures"] == []


def test_a_plugin_that_fails_is_shown_and_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = plugins.PluginFailure(
        plugins.Plugin("acme", "acme-humming", "0.3"), ModuleNotFoundError("No module named 'rt'")
    )
    monkeypatch.setattr(plugins.Registry, "failures", property(lambda _: (failure,)))
    result = invoke("plugins")
    assert result.status == 1
    assert "plugin acme (acme-humming 0.3) failed to load" in result.out
    row = invoke("plugins", "--json").json["failures"][0]
    assert row["distribution"] == "acme-humming"
    assert "No module named 'rt'" in row["reason"]


# -- output ----------------------------------------------------------------------------------------


def test_a_narrow_terminal_folds_names_and_cuts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    name = "model.layers.0.self_attn.a_projection_with_a_long_name"
    with pytest.MonkeyPatch.context() as patch:
        terminal = cli_runner.Terminal()
        patch.setattr(sys, "stdout", terminal)
        Output().table([Column("layer"), Column("shape", right=True)], [[name, "[4096, 4096]"]])
    drawn = terminal.getvalue()
    assert "…" not in drawn
    first_column = [line.split("  ")[0].strip() for line in drawn.splitlines()]
    assert name in "".join(first_column)
    assert "[4096, 4096]" in drawn  # square brackets are no markup


def test_streamed_rows_reach_a_pipe_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    with Output().stream([Column("a", width=6), Column("b", right=True, width=4)]) as add:
        assert capsys.readouterr().out == "a          b\n"
        add(["one", "1"])
        assert capsys.readouterr().out == "one        1\n"


def test_streamed_rows_are_drawn_together_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = cli_runner.Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)

    def interrupted() -> None:
        with Output().stream([Column("layer")]) as add:
            add(["one"])
            assert terminal.getvalue() == ""
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "one" in terminal.getvalue()  # as far as it got


def test_numbers_that_json_lacks_become_null(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json=True)
    output.data({"error": float("nan"), "rows": [{"worst": float("inf"), "m": 1}]})
    output.finish()
    found = json.loads(capsys.readouterr().out)
    assert found == {"error": None, "rows": [{"worst": None, "m": 1}]}


# -- processes -------------------------------------------------------------------------------------


def test_python_m_humming_runs_without_torch_or_rich() -> None:
    code = (
        "import sys\n"
        "from humming.__main__ import main\n"
        "assert main(['--help']) == 0 and main(['formats']) == 0\n"
        "sys.exit(','.join(m for m in ('torch', 'rich') if m in sys.modules) or 0)\n"
    )
    result = python("-c", code)
    assert (result.returncode, result.stderr) == (0, "")


def test_exit_status_and_json_of_a_process() -> None:
    result = python("-m", "humming", "matrix", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["rows"]
    missing = python("-m", "humming", "inspect", "no/such/path")
    assert missing.returncode == 1
    assert missing.stderr == ("humming inspect: error: no/such/path: no such file or directory\n")


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    shell = f'"{sys.executable}" -m humming profiles --json 2>"{errors}" | true'
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run(["sh", "-c", shell], check=True, env=environment)
    assert errors.read_text() == ""
