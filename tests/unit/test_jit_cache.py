"""The cache folder: what is found, what is not trusted, and what happens when it can't be used."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from jit_kernels import DRIVER, environment, fake_nvcc, file_of, library, program

from humming import settings
from humming.jit import Cache, Key, upkeep
from humming.jit import cache as cache_module
from humming.jit.entry import DamagedEntry, decode, encode


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in settings.VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder that keeps program 0."""
    folder = tmp_path / "kept"
    library(folder)[0].get(program())
    return folder


def hits(folder: Path | None, **cache: object) -> bool:
    """Whether a process with nothing in memory finds program 0 there."""
    kernels, compiler = library(folder, **cache)
    assert kernels.get(program()) == compiler.binary(program())
    return not compiler.compiled


# -- found, or not ---------------------------------------------------------------------------------


def test_a_kept_kernel_is_found_with_all_that_is_known_of_it(kept: Path) -> None:
    assert hits(kept)


def test_source_and_log_lie_beside_it_for_people(kept: Path) -> None:
    assert file_of(kept, program(), "cu").read_text() == program().source
    assert file_of(kept, program(), "log").read_text() == "fake 1.0\na log\nof two lines\n"


@pytest.mark.parametrize("change", ["copy", "move", "link", "relative", "touch"])
def test_neither_place_nor_time_matters(
    kept: Path, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "another" / "prefix"
    elsewhere.parent.mkdir()
    if change == "copy":
        shutil.copytree(kept, elsewhere, copy_function=shutil.copyfile)
    elif change == "move":
        kept.rename(elsewhere)
    elif change == "link":
        elsewhere.symlink_to(kept)
    elif change == "relative":
        monkeypatch.chdir(tmp_path)
        elsewhere = Path("kept")
    else:
        elsewhere = kept
        for path in kept.rglob("*"):
            os.utime(path)
    assert hits(elsewhere)


def test_no_file_names_a_place(kept: Path, tmp_path: Path) -> None:
    files = [path for path in kept.rglob("*") if path.is_file()]
    assert len(files) == 3
    assert not any(str(tmp_path).encode() in path.read_bytes() for path in files)


def test_the_same_program_gives_the_same_bytes_of_files(kept: Path, tmp_path: Path) -> None:
    library(tmp_path / "again")[0].get(program())
    for path in kept.rglob("*.*"):
        assert (tmp_path / "again" / path.relative_to(kept)).read_bytes() == path.read_bytes()


def test_another_compiler_or_option_is_a_miss(kept: Path) -> None:
    kernels, compiler = library(kept)
    compiler.version = compiler.loaded_version = "fake 1.1"
    kernels.get(program())
    kernels.get(program(options=("-DA",)))
    assert len(compiler.compiled) == 2


def test_files_are_as_readable_as_the_user_wants(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        library(tmp_path)[0].get(program())
    finally:
        os.umask(before)
    assert stat.S_IMODE(file_of(tmp_path, program()).stat().st_mode) == 0o664


# -- damage ----------------------------------------------------------------------------------------

Harm = Callable[[bytes], bytes]
HARMS: dict[str, Harm] = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "all but the last byte": lambda content: content[:-1],
    "binary alone": lambda content: content[:2048],
    "a byte of the binary": lambda content: b"\xff" + content[1:],
    "a digit of the facts": lambda content: content.replace(b'"registers": 32', b'"registers": 33'),
    "the checksum": lambda content: content.replace(b"humming-kernel 1 ", b"humming-kernel 1 f", 1),
    "another form": lambda content: content.replace(b"humming-kernel 1", b"humming-kernel 2"),
    "more behind it": lambda content: content + b"more\n",
    "zeros": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_damaged_kernel_is_never_loaded_and_built_again(
    kept: Path, harm: Harm, caplog: pytest.LogCaptureFixture
) -> None:
    path = file_of(kept, program())
    whole = path.read_bytes()
    path.write_bytes(harm(whole))
    assert path.read_bytes() != whole
    assert not hits(kept)
    assert [r.levelname for r in caplog.records if "is damaged" in r.message] == ["WARNING"]
    assert path.read_bytes() == whole
    assert hits(kept)


def test_every_flipped_byte_and_every_cut_shows() -> None:
    _, compiler = library(None)
    content = encode("k" * 73, program(), compiler.binary(program()))
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1
        with pytest.raises(DamagedEntry):
            decode("k" * 73, bytes(flipped))
        with pytest.raises(DamagedEntry):
            decode("k" * 73, content[:position])
    assert decode("k" * 73, content) == compiler.binary(program())


def test_a_binary_may_hold_anything() -> None:
    _, compiler = library(None)
    made = compiler.binary(program())
    for data in (b"", b"\n", b"\n// humming-kernel 1 ", encode("k", program(), made)):
        binary = type(made)("ptx", data, "log\n// humming-kernel 1 x\n", (), "fake 1.0")
        assert decode("k", encode("k", program(), binary)) == binary


def test_a_kernel_under_another_ones_name_is_not_used(kept: Path) -> None:
    library(kept)[0].get(program(1))
    shutil.copy(file_of(kept, program(1)), file_of(kept, program()))
    assert not hits(kept)


def test_a_folder_in_the_place_of_a_kernel_is_passed_over(
    kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file_of(kept, program()).unlink()
    file_of(kept, program()).mkdir()
    assert not hits(kept)
    assert "can't be read" in caplog.text


@pytest.mark.parametrize("ending", ["cu", "log"])
def test_source_and_log_may_be_deleted(kept: Path, ending: str) -> None:
    file_of(kept, program(), ending).unlink()
    assert hits(kept)


# -- folders that can only be read -----------------------------------------------------------------


def test_read_only_folders_are_searched_in_order_and_left_as_they_are(
    kept: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    library(other)[0].get(program(1))
    before = {p: (p.stat().st_mtime_ns, p.is_file() and p.read_bytes()) for p in kept.rglob("*")}
    first = tmp_path / "first"
    assert hits(first, readonly=[other, kept])
    assert not first.exists()
    assert before == {p: (p.stat().st_mtime_ns, p.is_file() and p.read_bytes()) for p in before}


def test_a_damaged_kernel_in_a_read_only_folder_is_passed_over_and_stays(
    kept: Path, tmp_path: Path
) -> None:
    path = file_of(kept, program())
    path.write_bytes(b"damaged")
    assert not hits(tmp_path / "first", readonly=[kept])
    assert path.read_bytes() == b"damaged"
    assert hits(tmp_path / "first", readonly=[kept])


def test_read_only_folders_that_are_missing_do_not_matter(tmp_path: Path) -> None:
    assert not hits(tmp_path / "first", readonly=[tmp_path / "none", Path("/dev/null")])


def test_settings_name_folders_and_limit(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUMMING_CACHE_DIR", "here")
    monkeypatch.setenv("HUMMING_CACHE_READONLY", os.pathsep.join(["a", "b"]))
    monkeypatch.setenv("HUMMING_CACHE_LIMIT", "1.5KiB")
    cache = Cache.from_settings()
    assert (cache.folder, cache.limit) == (Path.cwd() / "here", 1536)
    assert cache.readonly == (Path("a"), Path("b"))
    monkeypatch.delenv("HUMMING_CACHE_DIR")
    monkeypatch.setenv("HOME", "/somewhere")
    assert Cache.from_settings().folder == Path("/somewhere/.cache/humming")


# -- folders that can't be written -----------------------------------------------------------------


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if r.levelno == logging.WARNING]


def compiles_in_memory(folder: Path | None) -> None:
    kernels, compiler = library(folder)
    found = kernels.get_many([program(0), program(1)], threads=1)
    assert kernels.get_many([program(0), program(1)]) == found
    assert compiler.compiled == ["test.scale0", "test.scale1"]


@pytest.mark.parametrize("place", ["/dev/null", "/dev/null/x", "/proc/humming"])
def test_a_folder_that_can_not_be_made_is_one_warning(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    compiles_in_memory(Path(place))
    (warning,) = warnings(caplog)
    assert f"can't be kept in {place} (" in warning
    assert "HUMMING_CACHE_DIR" in warning


def test_a_folder_that_became_read_only_is_still_read(
    kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = os.open

    def read_only(path: object, flags: int, *rest: int) -> int:
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return real(path, flags, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", read_only)
    assert hits(kept)
    assert warnings(caplog) == []
    kernels, compiler = library(kept)
    kernels.get(program(1))
    assert compiler.compiled == ["test.scale1"]
    (warning,) = warnings(caplog)
    assert "(Read-only file system)" in warning


def test_a_full_disk_is_one_warning_and_leaves_nothing_half_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    compiles_in_memory(tmp_path)
    (warning,) = warnings(caplog)
    assert "(No space left on device)" in warning
    assert not [p for p in tmp_path.rglob("*") if p.name.endswith((".tmp", ".cubin"))]


def test_a_limit_on_file_sizes_is_like_a_full_disk(tmp_path: Path) -> None:
    """The system itself refuses the write, in the middle of the file."""
    nvcc, _ = fake_nvcc(tmp_path)
    env = environment(tmp_path / "cache", HUMMING_NVCC=nvcc)
    command = [sys.executable, "-c", f"""
import resource, runpy, sys
sys.path.insert(0, {str(DRIVER.parent)!r})
import humming.jit.cache as cache
real = cache.encode
def encode(*args):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    return real(*args)
cache.encode = encode
sys.argv = ["driver", "1", "1"]
runpy.run_path({str(DRIVER)!r}, run_name="__main__")
"""]  # fmt: skip
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout
    assert '"error": ""' in done.stdout
    assert not list((tmp_path / "cache").rglob("*.tmp"))


def test_a_user_without_a_home_is_warned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 987654)
    assert cache_module.default_folder() is None
    (warning,) = warnings(caplog)
    assert "HUMMING_CACHE_DIR" in warning
    compiles_in_memory(None)


# -- limit and left-overs --------------------------------------------------------------------------


def used(folder: Path, number: int, days_ago: float) -> None:
    then = time.time() - days_ago * 86400
    os.utime(file_of(folder, program(number)), (then, then))


def test_above_the_limit_the_least_recently_used_go(tmp_path: Path) -> None:
    kernels, _ = library(tmp_path)
    kernels.get_many([program(i) for i in range(4)], threads=1)
    for number, days in enumerate((1, 3, 2, 4)):
        used(tmp_path, number, days)
    (size,) = {entry.nbytes for entry in upkeep.entries(tmp_path)}
    kernels, compiler = library(tmp_path, limit=4 * size)
    kernels.get(program(3))  # used now, so the oldest no more
    kernels.get(program(4))
    left = {i for i in range(5) if file_of(tmp_path, program(i)).exists()}
    assert left == {0, 3, 4}  # below nine tenths of the limit
    assert sum(entry.nbytes for entry in upkeep.entries(tmp_path)) == 3 * size
    assert compiler.compiled == ["test.scale4"]


def test_room_is_made_within_one_process_too(tmp_path: Path) -> None:
    kernels, _ = library(tmp_path, limit=20000)
    kernels.get_many([program(i) for i in range(30)], threads=1)
    assert 10000 < sum(entry.nbytes for entry in upkeep.entries(tmp_path)) <= 20000


def test_without_a_limit_everything_stays(tmp_path: Path) -> None:
    kernels, _ = library(tmp_path, limit=None)
    kernels.get_many([program(i) for i in range(30)], threads=1)
    assert len(upkeep.entries(tmp_path)) == 30


def test_a_use_is_noted_at_most_once_an_hour(kept: Path) -> None:
    path = file_of(kept, program())
    recent = time.time() - 60
    os.utime(path, (recent, recent))
    assert hits(kept)
    assert path.stat().st_mtime == pytest.approx(recent, abs=1)
    used(kept, 0, 1)
    assert hits(kept)
    assert path.stat().st_mtime == pytest.approx(time.time(), abs=60)


def test_what_killed_processes_left_is_removed_once_it_is_old(kept: Path) -> None:
    beside = file_of(kept, program())
    old, young = (beside.with_name(f".{beside.stem}.1-{i}.tmp") for i in "ab")
    lock = beside.with_suffix(".lock")
    stranger = beside.with_name("notes.txt")
    for path in (old, young, lock, stranger):
        path.write_text("x")
        os.utime(path, None if path == young else (1, 1))
    library(kept)[0].get(program(1))
    assert [p.exists() for p in (old, young, lock, stranger)] == [False, True, False, True]


def test_clearing_removes_only_what_is_ours(kept: Path) -> None:
    stranger = kept / "kernels" / "notes.txt"
    stranger.write_text("x")
    beside = file_of(kept, program()).with_name("mine.cubin")
    beside.write_text("x")
    (kept / "kernels" / "zz").mkdir()
    kernels, nbytes = upkeep.clear(kept)
    assert (kernels, nbytes > 2048) == (1, True)
    assert sorted(p for p in kept.rglob("*") if p.is_file()) == sorted([stranger, beside])


def test_the_key_of_a_kept_kernel_is_its_files_name(kept: Path) -> None:
    (entry,) = upkeep.entries(kept)
    assert entry.key == Key.of(program(), "fake 1.0").name
