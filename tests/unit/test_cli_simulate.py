"""`humming simulate`, whose work an installed simulator does."""

from __future__ import annotations

import argparse
import types
from collections.abc import Callable
from typing import Any

import pytest
from cli_runner import Result, invoke

from humming.cli import simulate
from humming.errors import HummingError

Install = Callable[[Any], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make an entry point the only one of its group."""

    def put(load: Any) -> None:
        point = types.SimpleNamespace(load=load)

        def entry_points(*, group: str, name: str) -> list[Any]:
            assert (group, name) == ("humming.commands", "simulate")
            return [point] if load else []

        found = types.SimpleNamespace(entry_points=entry_points)
        monkeypatch.setattr(simulate, "metadata", found)

    return put


def command(run: Callable[..., int]) -> Callable[[], Any]:
    def configure(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file")
        parser.add_argument("--seeds", type=int, default=3)

    return lambda: types.SimpleNamespace(configure=configure, run=run)


def test_the_installed_command_gets_its_arguments_and_the_output(install: Install) -> None:
    def run(args: argparse.Namespace, output: Any) -> int:
        output.line(f"{args.file} {args.seeds}")
        output.data({"file": args.file})
        return 1 if args.seeds else 0

    install(command(run))
    assert invoke("simulate", "k.ptx") == Result(1, "k.ptx 3\n", "")
    assert invoke("simulate", "k.ptx", "--seeds", 0) == Result(0, "k.ptx 0\n", "")
    assert invoke("simulate", "k.ptx", "--json").json == {"file": "k.ptx"}


def test_its_help_is_that_of_the_installed_command(install: Install) -> None:
    install(command(lambda *_: 0))
    result = invoke("simulate", "--help")
    assert result.status == 0
    assert result.out.startswith("usage: humming simulate ")
    assert "--seeds" in result.out
    assert "--json" in result.out


def test_arguments_that_make_no_sense_together_are_a_usage_error(install: Install) -> None:
    def run(*_: object) -> int:
        raise argparse.ArgumentError(None, "--block is missing")

    install(command(run))
    assert invoke("simulate", "k") == Result(2, "", "humming simulate: error: --block is missing\n")


def test_an_error_of_humming_is_reported_as_from_any_command(install: Install) -> None:
    def run(*_: object) -> int:
        raise HummingError("the moon is full")

    install(command(run))
    assert invoke("simulate", "k") == Result(1, "", "humming simulate: error: the moon is full\n")


@pytest.mark.parametrize("arguments", [(), ("--help",), ("k.ptx", "--seeds", "3"), ("--list", "k")])
def test_without_a_simulator_it_says_what_to_install(
    install: Install, arguments: tuple[str, ...]
) -> None:
    install(None)
    result = invoke("simulate", *arguments)
    assert (result.status, result.out) == (1, "")
    assert result.err == (
        "humming simulate: error: humming-sim brings this command: "
        'python -m pip install "humming-core[sim]"\n'
    )


def test_a_simulator_that_fails_to_load_is_an_error(install: Install) -> None:
    def load() -> Any:
        raise ImportError("numpy is too old")

    install(load)
    result = invoke("simulate", "k.ptx")
    assert result.status == 1
    assert "the simulator fails to load: ImportError: numpy is too old" in result.err


@pytest.mark.parametrize(("value", "message"), [("1", "is set"), ("maybe", "expected 1 or 0")])
def test_without_plugins_there_is_no_simulator(
    install: Install, monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    install(command(lambda *_: 0))
    monkeypatch.setenv("HUMMING_NO_PLUGINS", value)
    result = invoke("simulate", "k.ptx")
    assert (result.status, result.out) == (1, "")
    assert message in result.err


def test_other_commands_do_not_look_for_it(install: Install) -> None:
    def load() -> Any:
        raise AssertionError("asked for")

    install(load)
    assert invoke("formats").status == 0
    assert invoke("--help").status == 0
