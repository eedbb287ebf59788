"""A cold cache under many processes, kills and damage, with the real compiler."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from jit_kernels import drive, environment, program, start

from humming.jit import Key, Nvrtc, upkeep

pytestmark = pytest.mark.compile

PROCESSES, KERNELS = 16, 3


def file_of(folder: Path, number: int, ending: str = "cubin") -> Path:
    compiler, wanted = Nvrtc(), program(number)
    key = Key.of(wanted, compiler.fingerprint(), compiler.options(wanted))
    return upkeep.path_in(folder, key.name, ending)


def compiled(results: list[dict[str, object]]) -> int:
    """How many kernels were compiled, by what processes logged."""
    lines = [line for r in results for line in r["log"] if " compiled " in line]  # type: ignore[attr-defined]
    return sum(int(line.split(" kernels ")[0].split()[-1]) if " kernels " in line else 1
               for line in lines)  # fmt: skip


def test_sixteen_processes_compile_each_kernel_once_in_each_of_three_rounds(tmp_path: Path) -> None:
    digests = set()
    for round_ in range(3):
        found = drive(environment(tmp_path / f"cache{round_}"), PROCESSES, KERNELS)
        assert [r["error"] for r in found] == [""] * PROCESSES
        assert compiled(found) == KERNELS
        digests |= {tuple(r["digests"]) for r in found}
    assert len(digests) == 1


def test_damage_is_mended_once_and_never_loaded(tmp_path: Path) -> None:
    env = environment(tmp_path / "cache")
    (cold,) = drive(env, 1, KERNELS)
    harms = (lambda b: b"", lambda b: b[: len(b) // 2], lambda b: b[:999] + b"?" + b[1000:])
    for number, harm in enumerate(harms):
        path = file_of(tmp_path / "cache", number)
        whole = path.read_bytes()
        path.write_bytes(harm(whole))
        assert path.read_bytes() != whole
    found = drive(env, 4, KERNELS)
    assert compiled(found) == KERNELS
    assert [r["digests"] for r in found] == [cold["digests"]] * 4
    warm = drive(env, 2, KERNELS)
    assert [r["log"] for r in warm] == [[], []]


def test_processes_killed_at_any_moment_leave_a_cache_that_works(tmp_path: Path) -> None:
    env = environment(tmp_path / "cache")
    source = file_of(tmp_path / "cache", 0, "cu")
    for delay in (0.0, 0.02, 0.05, 0.1):
        victim = start(env, KERNELS)
        deadline = time.monotonic() + 20
        while not source.exists() and time.monotonic() < deadline and victim.poll() is None:
            time.sleep(0.002)  # it is about to compile
        time.sleep(delay)
        victim.kill()
        victim.communicate()
        for _, problem in upkeep.verify(tmp_path / "cache"):
            assert problem == ""
        if delay == 0.02:  # the next two find what a killed process left, the others nothing
            upkeep.clear(tmp_path / "cache")
    begin = time.monotonic()
    found = drive(env, 2, KERNELS)
    assert [r["error"] for r in found] == ["", ""]
    assert time.monotonic() - begin < 15
    assert [r["log"] for r in drive(env, 2, KERNELS)] == [[], []]
