"""Many processes and one cache: each kernel is compiled once, and no death leaves anything broken.

The compiler is a shell script that counts; tests/compile has the same with NVRTC.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from jit_kernels import (
    compilations,
    drive,
    environment,
    fake_nvcc,
    file_of,
    library,
    program,
    start,
)

from humming.jit import Key, Nvcc, upkeep
from humming.jit.locks import exclusive

PROCESSES, KERNELS = 16, 3


def wait_for(condition: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def nvcc_file(folder: Path, nvcc: Path, number: int, ending: str = "") -> Path:
    compiler, wanted = Nvcc(nvcc), program(number)
    key = Key.of(wanted, compiler.fingerprint(), compiler.options(wanted))
    return upkeep.path_in(folder, key.name, ending or wanted.kind)


def result(process: Any) -> dict[str, Any]:
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_sixteen_cold_processes_compile_each_kernel_once(tmp_path: Path) -> None:
    for round_ in range(3):
        nvcc, log = fake_nvcc(tmp_path / f"tool{round_}", sleep=0.1)
        env = environment(tmp_path / f"cache{round_}", HUMMING_NVCC=nvcc)
        cold = drive(env, PROCESSES, KERNELS)
        assert [r["error"] for r in cold] == [""] * PROCESSES
        assert compilations(log) == KERNELS
        assert len({tuple(r["digests"]) for r in cold}) == 1
        assert sum(len(r["log"]) for r in cold) <= KERNELS
        left = {p.suffix for p in (tmp_path / f"cache{round_}").rglob("*") if p.is_file()}
        assert left == {".cu", ".log", ".cubin"}
    warm = drive(env, 4, KERNELS)
    assert compilations(log) == KERNELS
    assert [r["log"] for r in warm] == [[]] * 4


def test_tools_and_folders_behind_links_are_the_same(tmp_path: Path) -> None:
    nvcc, log = fake_nvcc(tmp_path / "tool")
    drive(environment(tmp_path / "cache", HUMMING_NVCC=nvcc), 1, KERNELS)
    (tmp_path / "link").symlink_to(tmp_path / "tool")
    (tmp_path / "cache-link").symlink_to(tmp_path / "cache")
    variables = {"HUMMING_NVCC": tmp_path / "link" / "nvcc", "CUDA_HOME": tmp_path / "link"}
    (warm,) = drive(environment(tmp_path / "cache-link", **variables), 1, KERNELS)
    assert (warm["log"], warm["error"]) == ([], "")
    assert compilations(log) == KERNELS


def test_sixteen_processes_mend_a_damaged_kernel_once(tmp_path: Path) -> None:
    nvcc, log = fake_nvcc(tmp_path / "tool", sleep=0.1)
    cache = tmp_path / "cache"
    env = environment(cache, HUMMING_NVCC=nvcc)
    whole = drive(env, 2, 2)[0]["digests"]
    nvcc_file(cache, nvcc, 0).write_bytes(b"")
    content = nvcc_file(cache, nvcc, 1).read_bytes()
    nvcc_file(cache, nvcc, 1).write_bytes(content[: len(content) // 2])
    found = drive(env, PROCESSES, 2)
    assert [r["digests"] for r in found] == [whole] * PROCESSES
    assert compilations(log) == 4


def test_a_killed_process_blocks_nobody_and_leaves_nothing_that_is_loaded(tmp_path: Path) -> None:
    nvcc, log = fake_nvcc(tmp_path / "tool", sleep=6)
    cache = tmp_path / "cache"
    env = environment(cache, HUMMING_NVCC=nvcc)
    victim = start(env)
    wait_for(lambda: compilations(log) == 1)
    lock = nvcc_file(cache, nvcc, 0, "lock")
    assert lock.exists()
    victim.kill()
    victim.communicate()
    assert lock.exists()
    fake_nvcc(tmp_path / "tool")
    begin = time.monotonic()
    found = result(start(env))
    assert found["error"] == ""
    assert found["seconds"] < 5
    assert time.monotonic() - begin < 15
    assert not lock.exists()
    assert nvcc_file(cache, nvcc, 0).exists()


def test_those_who_wait_for_a_process_that_is_killed_go_on(tmp_path: Path) -> None:
    nvcc, log = fake_nvcc(tmp_path / "tool", sleep=3)
    env = environment(tmp_path / "cache", HUMMING_NVCC=nvcc)
    victim = start(env)
    wait_for(lambda: compilations(log) == 1)
    waiting = [start(env) for _ in range(2)]
    time.sleep(0.5)
    assert compilations(log) == 1
    fake_nvcc(tmp_path / "tool")
    victim.kill()
    victim.communicate()
    found = [result(process) for process in waiting]
    assert [r["error"] for r in found] == ["", ""]
    assert compilations(log) == 2


def test_locks_of_the_dead_do_not_count(tmp_path: Path) -> None:
    lock = file_of(tmp_path, program(), "lock")
    lock.parent.mkdir(parents=True)
    lock.write_text("left behind")
    begin = time.monotonic()
    kernels, compiler = library(tmp_path)
    kernels.get(program())
    assert time.monotonic() - begin < 1
    assert compiler.compiled == ["test.scale0"]
    assert not lock.exists()


def test_a_holder_that_neither_ends_nor_dies_is_waited_for_only_so_long(tmp_path: Path) -> None:
    kernels, compiler = library(tmp_path)
    kernels.cache.patience_s = 0.2
    lock = file_of(tmp_path, program(), "lock")
    lock.parent.mkdir(parents=True)
    with exclusive(lock, 0) as held:
        assert held
        begin = time.monotonic()
        kernels.get(program())
        assert 0.2 <= time.monotonic() - begin < 2
    assert compiler.compiled == ["test.scale0"]


def test_a_lock_is_held_by_one_and_handed_on(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with exclusive(lock, 0) as first, exclusive(lock, 0) as second:
        assert (first, second) == (True, False)
        assert lock.exists()
    assert not lock.exists()
    with exclusive(lock, 0) as third:
        assert third


def test_a_lock_whose_file_its_last_holder_removed_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    lock, real, calls = tmp_path / "lock", fcntl.flock, []

    def flock(handle: int, how: int) -> None:
        if not calls:  # between our opening and our locking it
            lock.unlink()
        calls.append(handle)
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with exclusive(lock, 5) as first:
        assert first
        assert len(calls) == 2
        assert lock.exists()


def test_without_locks_work_is_done_twice_at_worst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    def none(handle: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    kernels, compiler = library(tmp_path)
    kernels.get(program())
    assert compiler.compiled == ["test.scale0"]
    assert library(tmp_path)[0].cache.find(Key.of(program(), "fake 1.0")) is not None


def test_a_compiler_that_always_fails_fails_in_every_process_alike(tmp_path: Path) -> None:
    nvcc, _ = fake_nvcc(tmp_path / "tool")
    nvcc.write_text(nvcc.read_text().replace("sleep 0.0", "echo broken; exit 1"))
    found = drive(environment(tmp_path / "cache", HUMMING_NVCC=nvcc), 4, 1)
    for r in found:
        assert r["error"].startswith("CompileError: test.scale0 for sm_80 does not compile; source")
        assert "broken" in r["error"]
        assert str(nvcc) in r["error"]
    assert not list((tmp_path / "cache").rglob("*.lock"))
