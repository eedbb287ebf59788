"""`humming cache`: what is where, what is damaged, and removing it; and what doctor says of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cli_runner import invoke
from jit_kernels import fake_nvcc, file_of, library, program

from humming import settings
from humming.doctor import FAIL, OK, WARN, Finding, examine
from humming.errors import CompileError


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in settings.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HUMMING_CACHE_DIR", str(tmp_path / "first"))


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A folder with two kernels and a refused source, and a read-only one with one kernel."""
    first, second = tmp_path / "first", tmp_path / "second"
    kernels, _ = library(first)
    kernels.get_many([program(0), program(1, arch="sm_75")])
    with pytest.raises(CompileError):
        kernels.get(program(name="wrong", source="refuse_me"))
    library(second)[0].get(program(2))
    monkeypatch.setenv("HUMMING_CACHE_READONLY", str(second))
    return first, second


def test_info_of_an_empty_cache(tmp_path: Path) -> None:
    data = invoke("cache", "info", "--json").json
    (folder,) = data["folders"]
    assert data["limit_bytes"] == 2 << 30
    assert (folder["exists"], folder["kernels"], folder["bytes"]) == (False, 0, 0)
    assert folder["folder"] == str(tmp_path / "first")


def test_info_counts_kernels_of_each_folder(folders: tuple[Path, Path]) -> None:
    one, two = invoke("cache", "info", "--json").json["folders"]
    assert (one["use"], one["kernels"], one["refused_sources"]) == ("written", 2, 1)
    assert (two["use"], two["kernels"], two["refused_sources"]) == ("read only", 1, 0)
    assert one["made_for"] == {"sm_75, by fake 1.0": 1, "sm_80, by fake 1.0": 1}
    files = [p for p in folders[0].rglob("*") if p.is_file()]
    assert one["bytes"] == sum(p.stat().st_size for p in files)
    text = invoke("cache", "info").out
    assert "read only" in text
    assert "limit: 2.0 GiB" in text
    assert f"{folders[0]}: 1 sources that a compiler refused" in text


def test_verify_finds_what_is_damaged(folders: tuple[Path, Path]) -> None:
    found = invoke("cache", "verify")
    assert (found.status, found.out) == (0, "3 kernels, 0 damaged\n")
    path = file_of(folders[1], program(2))
    path.write_bytes(path.read_bytes()[:100])
    found = invoke("cache", "verify")
    assert found.status == 1
    assert f"{path}: it is cut off" in found.out
    data = invoke("cache", "verify", "--json").json
    assert data == {"kernels": 3, "damaged": [{"file": str(path), "problem": "it is cut off"}]}
    assert invoke("cache", "verify", "--dir", folders[0]).status == 0


def test_clear_empties_the_first_folder_alone(folders: tuple[Path, Path]) -> None:
    data = invoke("cache", "clear", "--json").json
    assert (data["kernels"], data["folder"]) == (2, str(folders[0]))
    assert not [p for p in folders[0].rglob("*") if p.is_file()]
    assert file_of(folders[1], program(2)).exists()
    assert "removed 1 kernels" in invoke("cache", "clear", "--dir", folders[1]).out


def test_a_folder_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    for action in ("info", "verify", "clear"):
        found = invoke("cache", action, "--dir", tmp_path / "none")
        assert (found.status, "there is no such folder" in found.err) == (2, True)
    assert invoke("cache").status == 2
    assert invoke("cache", "burn").status == 2


def test_a_limit_that_is_no_size_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUMMING_CACHE_LIMIT", "much")
    found = invoke("cache", "info")
    assert (found.status, "HUMMING_CACHE_LIMIT='much'" in found.err) == (1, True)


# -- doctor ----------------------------------------------------------------------------------------


def findings(subject: str) -> list[Finding]:
    return [row for row in examine() if row.subject == subject]


def test_doctor_shows_what_is_kept(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (first,) = findings("cache")
    assert first.status == OK
    assert first.found.startswith(f"{folders[0]} (2 kernels, 0.0 MiB, at most 2048 MiB)")
    missing = str(tmp_path / "none")
    monkeypatch.setenv("HUMMING_CACHE_READONLY", os.pathsep.join([str(folders[1]), missing]))
    assert [row.status for row in findings("read-only cache")] == [OK, WARN]


def test_doctor_shows_the_nvcc_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvcc, _ = fake_nvcc(tmp_path)
    monkeypatch.setenv("HUMMING_NVCC", str(nvcc))
    assert findings("compiler") == [Finding("compiler", OK, f"nvcc 99.0.1, {nvcc}")]
    monkeypatch.setenv("HUMMING_NVCC", "/none")
    (row,) = findings("compiler")
    assert (row.status, "HUMMING_NVCC" in row.found) == (FAIL, True)


def test_doctor_says_what_forbids_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings("compiling") == []
    monkeypatch.setenv("HUMMING_NO_JIT", "1")
    assert len(findings("compiling")) == 1
    monkeypatch.setenv("HUMMING_CACHE_LIMIT", "much")
    (row,) = findings("cache")
    assert row.status == FAIL
