"""Headers: all that a source needs and nothing else, by bytes, from wherever they lie."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from humming.errors import CompileError
from humming.jit import HeaderRoots

FILES = {
    "core/a.cuh": "#pragma once\n#include <core/deep/b.cuh>\nint a;\n",
    "core/deep/b.cuh": "#pragma once\n# include <other/c.cuh> // why\nint b;\n",
    "core/unused.cuh": "int unused;\n",
    "other/c.cuh": "#pragma once\n#include <core/a.cuh>\nint c;\n",
}
SOURCE = "// a kernel\n#include <core/a.cuh>\n"


def write(folder: Path) -> dict[str, Path]:
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {"core": folder / "core", "other": folder / "other"}


def test_the_closure_follows_includes_round_circles(tmp_path: Path) -> None:
    found = HeaderRoots(write(tmp_path)).closure(SOURCE, "kernel")
    assert [name for name, _ in found] == ["core/a.cuh", "core/deep/b.cuh", "other/c.cuh"]
    assert dict(found)["other/c.cuh"] == FILES["other/c.cuh"].encode()


def test_a_source_without_includes_needs_none(tmp_path: Path) -> None:
    assert HeaderRoots({}).closure("int x;", "kernel") == ()


def test_only_bytes_count(tmp_path: Path) -> None:
    here, there = write(tmp_path / "here"), write(tmp_path / "there")
    os.utime(there["core"] / "a.cuh", (1, 1))
    (tmp_path / "link").symlink_to(tmp_path / "there")
    linked = {name: tmp_path / "link" / name for name in there}
    closure = HeaderRoots(here).closure(SOURCE, "kernel")
    assert HeaderRoots(there).closure(SOURCE, "kernel") == closure
    assert HeaderRoots(linked).closure(SOURCE, "kernel") == closure


def test_a_changed_header_shows_even_if_its_time_and_size_do_not(tmp_path: Path) -> None:
    roots = write(tmp_path)
    path = roots["other"] / "c.cuh"
    before, facts = HeaderRoots(roots).closure(SOURCE, "kernel"), path.stat()
    path.write_text(FILES["other/c.cuh"].replace("int c", "int d"))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert path.stat().st_mtime_ns == facts.st_mtime_ns
    assert HeaderRoots(roots).closure(SOURCE, "kernel") != before


def test_roots_may_lie_in_an_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "wheel.zip", "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
    with zipfile.ZipFile(tmp_path / "wheel.zip") as archive:
        roots = {name: zipfile.Path(archive, f"{name}/") for name in ("core", "other")}
        found = HeaderRoots(roots).closure(SOURCE, "kernel")
    assert found == HeaderRoots(write(tmp_path / "plain")).closure(SOURCE, "kernel")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("#include <core/none.cuh>", "'core' has no such header"),
        ("#include <core/deep>", "the whole name"),
        ("#include <cuda_fp16.h>", "the whole name"),
        ("#include <cuda/barrier.h>", "'cuda' is no folder of ours; these are: core, other"),
        ('#include "a.cuh"', "the whole name"),
        ('#include "core/a.cuh"', "the whole name"),
        ("#include <core/../core/a.cuh>", "the whole name"),
        ("#include HEADER", "the whole name"),
    ],
)
def test_what_is_no_header_of_ours_is_an_error_that_says_where(
    tmp_path: Path, line: str, why: str
) -> None:
    roots = write(tmp_path)
    (roots["core"] / "a.cuh").write_text(f"#pragma once\n/* a\ncomment */\n{line}\n")
    with pytest.raises(CompileError) as caught:
        HeaderRoots(roots).closure(SOURCE, "my.kernel")
    assert caught.value.kernel == "my.kernel"
    assert caught.value.source == "core/a.cuh, line 4"
    assert f"{line}: {why}" in str(caught.value) or why in str(caught.value)
    with pytest.raises(CompileError) as caught:
        HeaderRoots(roots).closure(f"\n\n{line}\n", "my.kernel")
    assert caught.value.source == "my.kernel, line 3"


def test_includes_in_comments_and_strings_are_none(tmp_path: Path) -> None:
    source = """
// #include <core/x1.cuh>
/*
#include <core/x2.cuh>
*/
const char* s = "/*"; // a string that looks like a comment
#include <other/c.cuh>
const char* e = "*/ \\"";
// continued \\
#include <core/x3.cuh>
"""
    found = HeaderRoots(write(tmp_path)).closure(source, "kernel")
    assert "other/c.cuh" in dict(found)


def test_lines_may_end_as_on_windows(tmp_path: Path) -> None:
    roots = write(tmp_path)
    (roots["core"] / "a.cuh").write_bytes(b"int a;\r\n#include <core/deep/b.cuh>\r\n")
    found = dict(HeaderRoots(roots).closure("#include <core/a.cuh>\r\n", "kernel"))
    assert "core/deep/b.cuh" in found
    assert found["core/a.cuh"].count(b"\r") == 2  # the compiler gets the very bytes
