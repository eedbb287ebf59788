"""The doctor: what is well is ok, what is broken fails with its mend, and nothing needs a GPU."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_runner import invoke

from humming import doctor, plugins, settings
from humming.doctor import FAIL, OK, WARN, Finding, examine
from humming.errors import ProfileError


@pytest.fixture(autouse=True)
def healthy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings, a home of its own, and no driver, whatever this machine has."""
    for name in settings.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(doctor, "_driver_cuda", lambda: None)


def fake_torch(cuda: str | None, sees: bool = False, version: str = "2.9.1+cu130") -> Any:
    return SimpleNamespace(
        __version__=version,
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(is_available=lambda: sees),
    )


def install(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Pretend that these distributions, _ standing for -, are installed beside all others."""
    real = metadata.version
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    hidden = {*doctor._NVRTC, *doctor._BINDINGS}

    def version(name: str) -> str:
        if name in named:
            return named[name]
        if name in hidden:
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)


def finding(subject: str) -> Finding:
    return {row.subject: row for row in examine()}[subject]


def test_a_machine_without_a_gpu_is_healthy() -> None:
    rows = {row.subject: row for row in examine()}
    assert {row.status for row in rows.values()} <= {OK, WARN}
    assert rows["NVIDIA driver"].found == "none: this machine computes on its CPU"
    assert rows["device cpu"].found == "host CPU, profile host-cpu, backend reference"
    subjects = ["python", "humming-core", "import name", "torch", "compiler", "cache", "settings",
                "plugins", "profiles", "gguf"]  # fmt: skip
    assert all(rows[subject].status == OK for subject in subjects)


def test_what_is_well_needs_no_mending_and_what_is_not_has_a_mend() -> None:
    for row in examine():
        assert bool(row.mend) == (row.status != OK), row


def test_the_command_prints_rows_and_succeeds() -> None:
    result = invoke("doctor")
    assert (result.status, result.err) == (0, "")
    assert "NVIDIA driver" in result.out
    data = invoke("doctor", "--json").json
    assert data["healthy"] is True
    assert {frozenset(row) for row in data["findings"]} == {
        frozenset({"subject", "status", "found", "mend"})
    }


def test_a_failure_is_the_exit_status_and_its_mend_is_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "find_clash", lambda: "two packages\n  pip uninstall one")
    row = finding("import name")
    assert (row.status, row.found, row.mend) == (FAIL, "two packages", "pip uninstall one")
    result = invoke("doctor")
    assert result.status == 1
    assert "import name: pip uninstall one" in result.out
    assert invoke("doctor", "--json").json["healthy"] is False


def test_an_old_python_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.sys, "version_info", (3, 14, 0))
    row = finding("python")
    assert row.status == WARN
    assert "3.10 to 3.13" in row.mend


def test_a_torch_that_does_not_import_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_import_torch", lambda: OSError("libc10.so: not found"))
    row = finding("torch")
    assert row.status == FAIL
    assert "libc10.so: not found" in row.found
    assert "pip install" in row.mend


def test_importing_torch_reports_what_was_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(doctor, "import_module", missing)
    assert "No module named 'torch'" in finding("torch").found


def test_a_torch_older_than_2_7_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_import_torch", lambda: fake_torch(None, version="2.6.0"))
    assert finding("torch").status == FAIL


@pytest.mark.parametrize(
    ("driver", "torch", "status", "mend"),
    [
        ((13, 0), fake_torch("13.0", sees=True), OK, ""),
        ((12, 9), fake_torch("12.8", sees=True), OK, ""),
        # A compatibility package makes a newer torch work on an older driver.
        ((12, 4), fake_torch("13.0", sees=True), OK, ""),
        ((12, 4), fake_torch("13.0"), FAIL, "built for CUDA 12"),
        ((13, 0), fake_torch(None), WARN, "built for CUDA 13 or older"),
        ((13, 0), fake_torch("13.0"), WARN, "CUDA_VISIBLE_DEVICES"),
        ((0, 0), fake_torch("13.0"), FAIL, "reinstall the driver"),
    ],
)
def test_driver_and_torch_must_fit(
    monkeypatch: pytest.MonkeyPatch, driver: tuple[int, int], torch: Any, status: str, mend: str
) -> None:
    monkeypatch.setattr(doctor, "_driver_cuda", lambda: driver)
    monkeypatch.setattr(doctor, "_import_torch", lambda: torch)
    row = finding("NVIDIA driver")
    assert row.status == status
    assert mend in row.mend


def test_a_missing_compiler_matters_only_beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    assert finding("compiler").status == OK
    monkeypatch.setattr(doctor, "_driver_cuda", lambda: (12, 9))
    monkeypatch.setattr(doctor, "_import_torch", lambda: fake_torch("12.8", sees=True))
    row = finding("compiler")
    assert (row.status, row.mend) == (WARN, 'python -m pip install "humming-core[cu12]"')


def test_a_compiler_is_nvrtc_and_its_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_driver_cuda", lambda: (13, 0))
    install(monkeypatch, nvidia_cuda_nvrtc="13.0.88", cuda_bindings="13.0.1")
    row = finding("compiler")
    assert row.status == WARN
    assert "cuda-bindings 13.0.1" in row.found
    install(monkeypatch, nvidia_cuda_nvrtc="13.0.88", cuda_bindings="13.0.1", cuda_core="1.0.1")
    assert finding("compiler").status == OK


def test_a_cache_folder_that_cannot_be_written_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert finding("cache").found.startswith(str(tmp_path / ".cache" / "humming"))
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("HUMMING_CACHE_DIR", str(file / "below"))
    row = finding("cache")
    assert row.status == WARN
    assert "is not a folder" in row.found
    assert "HUMMING_CACHE_DIR" in row.mend
    monkeypatch.setenv("HUMMING_CACHE_DIR", str(tmp_path / "new" / "below"))
    assert finding("cache").status == OK
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert "is not writable" in finding("cache").found


def test_settings_are_shown_and_bad_ones_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUMMING_ALLOW_FALLBACK", "0")
    assert finding("settings").found == "HUMMING_ALLOW_FALLBACK=0"
    monkeypatch.setenv("HUMMING_ALLOW_FALLBACK", "perhaps")
    row = finding("settings")
    assert row.status == FAIL
    assert "HUMMING_ALLOW_FALLBACK='perhaps'" in row.found


def test_a_backend_of_an_unknown_name_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUMMING_BACKEND", "nobody")
    row = finding("HUMMING_BACKEND")
    assert row.status == FAIL
    assert "reference" in row.mend


def test_a_plugin_that_fails_is_named_with_its_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failure = plugins.PluginFailure(
        plugins.Plugin("acme", "acme-humming", "0.3"), ImportError("no acme_rt")
    )
    monkeypatch.setattr(plugins.Registry, "failures", property(lambda _: (failure,)))
    row = finding("plugin acme")
    assert row.status == FAIL
    assert "no acme_rt" in row.found
    assert "acme-humming" in row.mend


def test_a_bad_profile_of_the_user_fails_and_the_rest_is_examined(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_text("schema = 7\n")
    monkeypatch.setenv("HUMMING_PROFILE_PATH", str(tmp_path))
    with pytest.raises(ProfileError):
        plugins.profiles()
    rows = {row.subject: row for row in examine()}
    assert rows["profiles"].status == FAIL
    assert "mine.toml" in rows["profiles"].found
    assert rows["device cpu"].status == WARN
    assert rows["gguf"].status == OK


def test_a_missing_gguf_package_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    row = finding("gguf")
    assert row.status == OK
    assert "humming-core[gguf]" in row.found
