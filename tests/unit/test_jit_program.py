"""Programs: what their digest depends on, which options are refused, what a log says of usage."""

from __future__ import annotations

import dataclasses

import pytest
from jit_kernels import program

from humming.errors import ConfigError
from humming.jit import Key, Usage
from humming.jit.program import read_usage, without_timings

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'second' for 'sm_80'
ptxas info    : Function properties for second
ptxas         .     24 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Function properties for helper
ptxas         .     40 bytes stack frame, 8 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 24 bytes cumulative stack size, 49152 bytes \
smem, 360 bytes cmem[0]
ptxas info    : Compile time = 10.937 ms
ptxas info    : Compiling entry function 'first' for 'sm_80'
ptxas info    : Function properties for first
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 352 bytes cmem[0]
ptxas info    : Compile time = 0.967 ms
"""


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"source": "int x;"},
        {"arch": "sm_86"},
        {"kind": "ptx"},
        {"options": ("-DA=1",)},
        {"options": ("-DB=1", "-DA=1")},
        {"options": ("-DA=1", "-DB=1")},
        {"headers": (("humming/a.cuh", b"1"),)},
        {"headers": (("humming/a.cuh", b"2"),)},
        {"headers": (("humming/b.cuh", b"1"),)},
    ],
)
def test_every_field_is_in_the_digest(change: dict[str, object]) -> None:
    seen = {program().digest}
    seen.add(program(0, options=("-DA=1", "-DB=1", "-DC")).digest)
    assert dataclasses.replace(program(), **change).digest not in seen  # type: ignore[arg-type]


def test_equal_programs_have_equal_digests_in_any_order_of_headers() -> None:
    a, b = ("humming/a.cuh", b"1"), ("humming/b.cuh", b"2")
    assert program(headers=(a, b)).digest == program(headers=(b, a)).digest


def test_digests_stay_the_same_between_versions_of_humming() -> None:
    """A change here makes every kernel that anybody has kept useless; say so in CHANGELOG.md."""
    kept = program(3, headers=(("humming/a.cuh", b"text"),), options=("-DA=1",))
    assert kept.digest == "d8579439be8850fa3b8a9d604db6ddf6442b5bcacf1862ebb4b510af1d5b9d2e"


def test_a_key_depends_on_the_compiler_and_its_version() -> None:
    compilers = ("nvrtc 13.0.88", "nvrtc 13.5.37", "nvcc 13.5.37")
    names = {Key.of(program(), by, opts).name for by in compilers for opts in ([], ["-a"], ["-b"])}
    assert len(names) == 9


@pytest.mark.parametrize(
    "option",
    ["-arch=sm_80", "--gpu-architecture=sm_80", "-I/usr/include", "-I", "--include-path=x", "-o x",
     "--pre-include=a.h", "-gencode=arch=compute_80", "-ptx", "--use-bundled-headers=x", "file.cu",
     "-G", "--device-debug"],
)  # fmt: skip
def test_options_that_would_bypass_the_key_are_refused(option: str) -> None:
    with pytest.raises(ConfigError, match="chooses no architecture, folder, file"):
        program(options=(option,))


@pytest.mark.parametrize(
    "option", ["-DA=1", "--use_fast_math", "-lineinfo", "--maxrregcount=64", "--std=c++17"]
)
def test_other_options_are_taken(option: str) -> None:
    assert program(options=(option,)).options == (option,)


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", "a/b"), ("name", ""), ("name", ".x"), ("arch", "sm_80 -I x"), ("kind", "fatbin")],
)
def test_malformed_fields_are_refused(field: str, value: str) -> None:
    with pytest.raises(ConfigError, match=field):
        program(**{field: value})


def test_usage_is_read_for_each_kernel_and_not_for_its_helpers() -> None:
    assert read_usage(LOG) == (
        Usage("first", registers=8, shared=0, stack=0, spill_stores=0, spill_loads=0),
        Usage("second", registers=255, shared=49152, stack=24, spill_stores=12, spill_loads=20),
    )
    assert read_usage("") == ()


def test_a_log_keeps_everything_but_timings() -> None:
    lines = without_timings(LOG).splitlines()
    assert len(lines) == len(LOG.strip().splitlines()) - 2
    assert not any("Compile time" in line for line in lines)
