"""The library: one compilation whoever asks, what is logged, and life without a compiler."""

from __future__ import annotations

import logging
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from jit_kernels import CountingCompiler, compilations, fake_nvcc, file_of, library, program

from humming import settings
from humming.errors import CompileError, ConfigError, UnsupportedError
from humming.jit import (
    Cache,
    KernelLibrary,
    Nvcc,
    Nvrtc,
    Refusal,
    chosen_compiler,
    compile_many,
    compile_program,
)
from humming.jit import nvrtc as nvrtc_module

REFUSED = program(name="test.wrong", source="refuse_me")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings, and temporary files that go with the test's own."""
    for name in settings.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if r.name == "humming.jit"]


# -- once ------------------------------------------------------------------------------------------


def test_threads_that_ask_at_once_share_one_compilation(tmp_path: Path) -> None:
    compiler = CountingCompiler(seconds=0.2)
    kernels = KernelLibrary(Cache(tmp_path), compiler)
    start = threading.Barrier(8)

    def get(_: int) -> object:
        start.wait()
        return kernels.get(program())

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(get, range(8)))
    assert compiler.compiled == ["test.scale0"]
    assert all(binary is found[0] for binary in found)


def test_two_libraries_share_the_cache_and_one_compilation(tmp_path: Path) -> None:
    compiler = CountingCompiler(seconds=0.2)
    both = [KernelLibrary(Cache(tmp_path), compiler) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda kernels: kernels.get(program()), both))
    assert compiler.compiled == ["test.scale0"]


def test_many_compile_side_by_side_and_come_back_in_order(tmp_path: Path) -> None:
    compiler = CountingCompiler(seconds=0.05)
    programs = [program(i) for i in (3, 1, 2, 1, 3, 0)]
    found = KernelLibrary(Cache(tmp_path), compiler).get_many(programs, threads=3)
    assert found == [compiler.binary(p) for p in programs]
    assert sorted(compiler.compiled) == [f"test.scale{i}" for i in range(4)]
    assert 1 < compiler.most_at_once <= 3


def test_what_is_in_memory_needs_no_folder(tmp_path: Path) -> None:
    kernels, compiler = library(tmp_path)
    first = kernels.get(program())
    file_of(tmp_path, program()).unlink()
    assert kernels.get(program()) is first
    assert kernels.get_many([program()] * 3) == [first] * 3
    assert compiler.compiled == ["test.scale0"]


def test_nothing_to_get_is_nothing(tmp_path: Path) -> None:
    assert library(tmp_path)[0].get_many([]) == []


# -- failures --------------------------------------------------------------------------------------


def test_a_refused_program_names_everything(tmp_path: Path) -> None:
    kernels, _ = library(tmp_path)
    with pytest.raises(CompileError) as caught:
        kernels.get(REFUSED)
    error = caught.value
    assert (error.kernel, error.arch) == ("test.wrong", "sm_80")
    assert error.command == "fake test.wrong.cu"
    assert error.log == "line 1: I was asked to refuse"
    assert Path(str(error.source)).read_text() == "refuse_me"
    assert str(error.source).startswith(str(tmp_path))
    assert all(t in str(error) for t in ("test.wrong", "sm_80", error.command, error.log))
    assert file_of(tmp_path, REFUSED, "log").read_text() == f"{error.command}\n{error.log}\n"


def test_a_refused_program_is_tried_again_and_never_kept(tmp_path: Path) -> None:
    kernels, compiler = library(tmp_path)
    for _ in range(2):
        with pytest.raises(CompileError):
            kernels.get(REFUSED)
    assert compiler.compiled == ["test.wrong"] * 2
    assert not file_of(tmp_path, REFUSED).exists()


def test_a_damaged_kernel_is_removed_even_if_it_can_not_be_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library(tmp_path)[0].get(program())
    path = file_of(tmp_path, program())
    path.write_bytes(b"damaged")
    kernels, compiler = library(tmp_path)

    def refuse(_: object) -> None:
        raise Refusal("fake", "broken today")

    monkeypatch.setattr(compiler, "compile", refuse)
    with pytest.raises(CompileError, match="broken today"):
        kernels.get(program())
    assert not path.exists()


def test_a_refused_source_is_saved_even_if_the_cache_can_not_be_written() -> None:
    kernels, _ = library(Path("/dev/null/x"))
    with pytest.raises(CompileError) as caught:
        kernels.get(REFUSED)
    assert Path(str(caught.value.source)).read_text() == "refuse_me"


def test_one_wrong_program_stops_no_other(tmp_path: Path) -> None:
    kernels, compiler = library(tmp_path)
    with pytest.raises(CompileError, match=r"test\.wrong"):
        kernels.get_many([program(0), REFUSED, program(1)], threads=2)
    assert sorted(compiler.compiled) == ["test.scale0", "test.scale1", "test.wrong"]
    assert len(kernels.get_many([program(0), program(1)])) == 2
    assert len(compiler.compiled) == 3


def test_waiting_threads_get_the_error_too(tmp_path: Path) -> None:
    compiler = CountingCompiler(seconds=0.2)
    kernels = KernelLibrary(Cache(tmp_path), compiler)

    def get(_: int) -> str:
        with pytest.raises(CompileError) as caught:
            kernels.get(REFUSED)
        return caught.value.kernel

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(get, range(4))) == ["test.wrong"] * 4
    assert len(compiler.compiled) < 4


# -- log -------------------------------------------------------------------------------------------


def test_a_cold_build_is_one_line_and_a_warm_start_is_silent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "humming.jit")
    programs = [program(i) for i in range(3)]
    kernels, _ = library(tmp_path)
    kernels.get_many(programs)
    (line,) = messages(caplog)
    assert line.startswith("fake 1.0 compiled 3 kernels for sm_80 in ")
    assert line.endswith(f", kept in {tmp_path}")
    caplog.clear()
    kernels.get_many(programs)
    library(tmp_path)[0].get_many(programs)
    assert messages(caplog) == []
    library(tmp_path)[0].get_many([*programs, program(9)])
    (line,) = messages(caplog)
    assert "compiled test.scale9 for sm_80" in line


def test_the_line_says_if_kernels_stay_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "humming.jit")
    library(None)[0].get(program())
    (line,) = messages(caplog)
    assert line.endswith("kept in memory")


# -- no compiling ----------------------------------------------------------------------------------


def test_compiling_can_be_forbidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(tmp_path)[0].get(program())
    monkeypatch.setenv("HUMMING_NO_JIT", "1")
    kernels, compiler = library(tmp_path)
    assert kernels.get(program()) == compiler.binary(program())
    with pytest.raises(UnsupportedError) as caught:
        kernels.get(program(1))
    for text in ("test.scale1", "sm_80", str(tmp_path), "HUMMING_NO_JIT"):
        assert text in str(caught.value)
    assert compiler.compiled == []


def test_a_damaged_kernel_is_not_loaded_where_compiling_is_forbidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    library(tmp_path)[0].get(program())
    file_of(tmp_path, program()).write_bytes(b"damaged")
    monkeypatch.setenv("HUMMING_NO_JIT", "1")
    with pytest.raises(UnsupportedError):
        library(tmp_path)[0].get(program())
    assert "is damaged" in caplog.text


@pytest.mark.parametrize("why", ["forbidden", "no compiler"])
def test_who_can_not_compile_takes_what_another_compiler_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    first, _ = library(tmp_path)
    made = first.get(program())
    kernels, compiler = library(tmp_path / "own", readonly=[tmp_path])
    if why == "forbidden":
        compiler.version = "fake 2.0"
        monkeypatch.setenv("HUMMING_NO_JIT", "1")
    else:
        compiler.version = ""
    assert kernels.get(program()).compiler == made.compiler == "fake 1.0"
    with pytest.raises(UnsupportedError, match=r"test\.scale1 for sm_80") as caught:
        kernels.get(program(1))
    assert ("install one" in str(caught.value)) == (why == "no compiler")


def test_a_compiler_that_is_another_once_loaded_keeps_under_its_own_name(tmp_path: Path) -> None:
    for wanted in (["test.scale0"], []):
        kernels, compiler = library(tmp_path)
        compiler.loaded_version = "fake 1.5"
        assert kernels.get(program()).compiler == "fake 1.5"
        assert compiler.compiled == wanted
    assert file_of(tmp_path, program(), by="fake 1.5").exists()
    assert not file_of(tmp_path, program()).exists()


# -- which compiler --------------------------------------------------------------------------------


def test_nvrtc_is_used_unless_an_nvcc_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(chosen_compiler(), Nvrtc)
    nvcc, log = fake_nvcc(tmp_path)
    monkeypatch.setenv("HUMMING_NVCC", str(nvcc))
    assert isinstance(chosen_compiler(), Nvcc)
    assert chosen_compiler().fingerprint() == "nvcc 99.0.1"
    assert compile_program(program()).data == f"BINARY OF {program().source}".encode()
    assert compilations(log) == 1


def test_nvcc_gets_headers_in_a_folder_and_no_hidden_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc, log = fake_nvcc(tmp_path)
    script = nvcc.read_text().replace("'BINARY OF '", '"$(cat include/a/b.cuh)$NVCC_APPEND_FLAGS|"')
    nvcc.write_text(script)
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-G")
    binary = compile_program(program(headers=(("a/b.cuh", b"int b;"),)), Nvcc(nvcc))
    assert binary.data.startswith(b"int b;|\nextern")
    assert str(tmp_path) not in log.read_text()


def test_an_nvcc_that_fails_shows_its_command_and_its_words(tmp_path: Path) -> None:
    nvcc, _ = fake_nvcc(tmp_path)
    kernels = KernelLibrary(Cache(tmp_path / "cache"), Nvcc(nvcc))
    with pytest.raises(CompileError) as caught:
        kernels.get(REFUSED)
    assert caught.value.command.startswith(f"{nvcc} --cubin --gpu-architecture=sm_80 ")
    assert caught.value.log == "test.wrong.cu(1): error: I was asked to refuse"
    for script in (nvcc.read_text().replace("sleep", "exit 3 #"), nvcc.read_text() + "exit 3\n"):
        nvcc.write_text(script)  # without a result, and with one that must not be used
        with pytest.raises(CompileError, match="exit status 3"):
            kernels.get(program())


def test_an_nvcc_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="HUMMING_NVCC"):
        Nvcc(tmp_path / "none").fingerprint()
    wrong = tmp_path / "nvcc"
    wrong.write_text("#!/bin/sh\necho hello\n")
    with pytest.raises(UnsupportedError, match="can't be run"):
        Nvcc(wrong).fingerprint()
    wrong.chmod(0o755)
    with pytest.raises(UnsupportedError, match="names no version: 'hello'"):
        Nvcc(wrong).fingerprint()


def test_without_any_compiler_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc_module, "_installed_version", lambda: None)
    for name in ("cuda", "cuda.bindings", "cuda.pathfinder"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails
    kernels = KernelLibrary(Cache(tmp_path), Nvrtc())
    with pytest.raises(UnsupportedError, match=r'pip install "humming-core\[cu13\]"'):
        kernels.get(program())
    with pytest.raises(UnsupportedError, match="HUMMING_NVCC"):
        compile_program(program(), Nvrtc())


def test_many_programs_compile_without_a_cache() -> None:
    compiler = CountingCompiler(seconds=0.05)
    programs = [program(i) for i in range(6)]
    found = compile_many(programs, threads=3, compiler=compiler)
    assert found == [compiler.binary(p) for p in programs]
    assert 1 < compiler.most_at_once <= 3
    with pytest.raises(CompileError, match=r"test\.wrong"):
        compile_many([program(0), REFUSED], compiler=compiler)
