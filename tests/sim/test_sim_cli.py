"""`python -m humming_sim`, which is what `humming simulate` runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from sim_reverse import LAST_WINS, RACY, REVERSE

from humming_sim.cli.command import main
from humming_sim.cli.output import columns
from humming_sim.findings import CHECKS
from humming_sim.instructions import page
from humming_sim.isa.registry import known_opcodes

ROOT = Path(__file__).parents[2]
TWO = ("--arg", "f32:256:arange", "--arg", "f32:256")


class Result(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Result]


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command on some PTX text, in a folder of its own."""

    def run(ptx: str, *arguments: object) -> Result:
        file = tmp_path / "kernel.ptx"
        file.write_text(ptx, encoding="utf-8")
        try:
            status = main([str(file), *map(str, arguments)])
        except SystemExit as stop:
            status = int(stop.code or 0)
        return Result(status, *capsys.readouterr())

    return run


# -- running ---------------------------------------------------------------------------------------


def test_a_right_kernel_runs_and_its_buffers_are_shown(command: Command) -> None:
    result = command(REVERSE, "--block", 256, *TWO)
    assert (result.status, result.err) == (0, "")
    assert "kernel reverse: 1 CTAs in " in result.out
    assert "no finding; 3 random orders agree" in result.out
    rows = [line.split() for line in result.out.splitlines()[-2:]]
    assert rows[0] == "0 f32 256 0 0 1 2 3 4 5 6 7".split()
    assert rows[1] == "1 f32 256 255 255 254 253 252 251 250 249 248".split()


def test_a_finding_is_printed_and_the_status_is_1(command: Command) -> None:
    result = command(RACY, "--block", 256, *TWO, "--seeds", 5)
    assert result.status == 1
    assert result.out.startswith("[uninitialised] 4 bytes of shared memory that nothing wrote\n")
    assert "    ld.shared.b32 %r1, [%r3]" in result.out
    assert command(RACY, "--block", 256, *TWO, "--seeds", 0).status == 0
    assert command(RACY, "--block", 256, *TWO, "--skip", "uninitialised").status == 1
    found = command(RACY, "--block", 256, *TWO, "--json").json["findings"][0]
    assert (found["check"], found["line"], found["space"]) == ("uninitialised", 19, "shared")


def test_checks_that_are_skipped_are_off(command: Command) -> None:
    unwritten = REVERSE.replace("st.shared", "// st.shared")
    assert unwritten != REVERSE
    shape = ("--block", 256, *TWO, "--seeds", 0)
    assert "[uninitialised]" in command(unwritten, *shape).out
    assert command(unwritten, *shape, "--skip", "uninitialised,alignment").status == 0
    assert command(unwritten, *shape, "--skip", "all").status == 0


def test_an_access_outside_of_every_buffer_is_found_even_if_skipped(command: Command) -> None:
    short = ("--block", 256, "--arg", "f32:256", "--arg", "f32:255")
    assert "[bounds]" in command(REVERSE, *short, "--skip", "all", "--seeds", 0).out


def test_results_that_depend_on_the_order_are_an_error(command: Command) -> None:
    last = ("--block", 256, "--arg", "f32:1", "--seeds", 8)
    result = command(LAST_WINS, *last)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith("python -m humming_sim: error: kernel last, order of seed ")
    assert command(LAST_WINS, *last, "--tolerance", 0.1).status == 0


def test_counts_are_reported(command: Command) -> None:
    result = command(REVERSE, "--block", 256, *TWO, "--report")
    assert "Bank conflicts: 0\n" in result.out
    assert "16  mov.u32\n" in result.out
    assert "12    global  8         32    32      ld.global.b32 %r1, [%rd1]\n" in result.out
    data = command(REVERSE, "--block", 256, *TWO, "--report", "--json").json
    assert data["instructions"]["bar.sync"] == 8
    assert data["bank_conflicts"] == 0
    assert {access["line"] for access in data["accesses"]} == {12, 15, 19, 22}
    assert "instructions" not in command(REVERSE, "--block", 256, *TWO, "--json").json


def test_limits_of_a_device_count(command: Command) -> None:
    result = command(REVERSE, "--block", 256, *TWO, "--device", "nvidia-t4")
    assert (result.status, result.out) == (1, "")
    assert "PTX for sm_80 doesn't run on NVIDIA T4" in result.err
    assert command(REVERSE, "--block", 256, *TWO, "--device", "nvidia-a100").status == 0


# -- arguments of the kernel -----------------------------------------------------------------------


def saved(command: Command, tmp_path: Path, *specs: object) -> dict[str, np.ndarray]:
    """The buffers after a kernel that does nothing."""
    parameters = ", ".join(f".param .{kind} p{i}" for i, (kind, _) in enumerate(specs))
    ptx = (
        f".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k({parameters})\n{{ret;}}"
    )
    arguments = [part for _, spec in specs for part in ("--arg", spec)]
    out = tmp_path / "out.npz"
    result = command(ptx, "--block", 1, *arguments, "--out", out)
    assert (result.status, result.err) == (0, "")
    with np.load(out) as data:
        return dict(data)


def test_buffers_are_filled_as_they_say(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("two.npy", np.array([1.5, -2.0]))
    np.save("bytes.npy", np.array([[250], [7]], np.uint8))
    specs = [
        "f32:3", "f16:2:arange", "s8:2:-3", "u16:2:0xFFFF", "bf16:2:two.npy", "e4m3:2:two.npy",
        "two.npy", "bytes.npy", "s64:300:arange", "ue8m0:1:4", "f32:2:nan",
    ]  # fmt: skip
    found = saved(command, tmp_path, *(("u64", spec) for spec in specs))
    expected = [
        np.zeros(3, np.float32), np.array([0, 1], np.float16), np.array([-3, -3], np.int8),
        np.array([65535] * 2, np.uint16), np.array([0x3FC0, 0xC000], np.uint16),
        np.array([0x3C, 0xC0], np.uint8), np.array([1.5, -2.0]), np.array([250, 7], np.uint8),
        np.arange(300), np.array([129], np.uint8), np.full(2, np.nan, np.float32),
    ]  # fmt: skip
    assert list(found) == [f"arg{i}" for i in range(len(specs))]
    for array, wanted in zip(found.values(), expected, strict=True):
        assert array.dtype == wanted.dtype
        np.testing.assert_array_equal(array, wanted)


def test_random_buffers_are_the_same_each_time_and_differ_from_each_other(
    command: Command, tmp_path: Path
) -> None:
    specs = [("u64", text) for text in ("f32:1000:random", "f32:1000:random", "s8:1000:random")]
    first, second = (saved(command, tmp_path, *specs) for _ in range(2))
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])
    assert (first["arg0"] != first["arg1"]).all()
    assert abs(first["arg0"].std() - 1) < 0.1
    assert (first["arg2"].min(), first["arg2"].max()) == (-128, 127)


def test_scalars_reach_the_kernel_in_their_type(command: Command, tmp_path: Path) -> None:
    ptx = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 a, .param .f32 b, .param .b16 c)
{
    .reg .b32 %r<2>; .reg .b16 %h<1>; .reg .b64 %rd<1>;
    ld.param.u64 %rd0, [out];
    ld.param.u32 %r0, [a];
    ld.param.b32 %r1, [b];
    ld.param.b16 %h0, [c];
    st.global.b32 [%rd0], %r0;
    st.global.b32 [%rd0+4], %r1;
    st.global.b16 [%rd0+8], %h0;
    ret;
}
"""
    scalars = ("--arg", "s32=-2", "--arg", "f32=0.5", "--arg", "bf16=1.5")
    result = command(ptx, "--block", 1, "--arg", "u32:3", *scalars, "--json")
    assert result.status == 0
    assert result.json["buffers"][0]["first"] == [2**32 - 2, 0x3F000000, 0x3FC0]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("f32", "neither TYPE:COUNT"),
        ("f8:3", "'f8' is none of f16, bf16"),
        ("e2m1:4", "'e2m1' is none of"),  # half a byte
        ("f32:0", "has no elements"),
        ("u8:2:256", "'256' is not zeros, random, arange, a .npy file, or a number that u8 holds"),
        ("s8:2:-129", "a number that s8 holds"),
        ("u32=-1", "'-1' is not a number that u32 holds"),
        ("f32=x", "'x' is not a number that f32 holds"),
        ("u32=random", "'random' fills a buffer"),
        ("u32=x.npy", "fills a buffer"),
    ],
)
def test_a_wrong_argument_is_a_usage_error(command: Command, spec: str, message: str) -> None:
    result = command(REVERSE, "--block", 256, "--arg", spec)
    assert (result.status, result.out) == (2, "")
    assert message in result.err


@pytest.mark.parametrize(
    ("content", "spec", "message"),
    [
        (np.zeros(3), "f32:4:x.npy", "x.npy holds 3 elements instead of 4"),
        (np.zeros(3, complex), "x.npy", "x.npy holds complex128; say as what"),
        (np.array(["a"]), "x.npy", "say as what"),
    ],
)
def test_a_file_that_does_not_fit_is_an_error(
    command: Command, content: Any, spec: str, message: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", content)
    result = command(REVERSE, "--block", 256, "--arg", spec)
    assert result.status == 1
    assert message in result.err
    (tmp_path / "x.npy").write_bytes(b"junk")
    assert "x.npy: " in command(REVERSE, "--block", 256, "--arg", "x.npy").err


# -- which kernel, how many threads ----------------------------------------------------------------


def test_a_kernel_is_named_if_there_are_several(command: Command) -> None:
    two = REVERSE + REVERSE.split("64\n", 1)[1].replace("reverse", "second")
    result = command(two, "--block", 256, *TWO)
    assert (result.status, result.out) == (2, "")
    assert "name one with --entry: the kernels of the file are reverse, second" in result.err
    assert command(two, "--block", 256, *TWO, "--entry", "second").status == 0
    assert "there is no 'third'" in command(two, "--entry", "third").err


def test_the_block_may_come_from_the_kernel(command: Command) -> None:
    assert "--block is missing: reverse requires none" in command(REVERSE, *TWO).err
    required = REVERSE.replace("target)\n", "target)\n.reqntid 256, 1, 1\n")
    assert command(required, *TWO).status == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("--grid", "0"),
        ("--grid", "1,2,3,4"),
        ("--block", "x"),
        ("--skip", "everything"),
        ("--list", "--coverage"),
        ("--check", "page.md"),
        ("--frobnicate",),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(command: Command, arguments: tuple[str, ...]) -> None:
    result = command(REVERSE, *arguments)
    assert (result.status, result.out) == (2, "")
    assert "usage: python -m humming_sim" in result.err


def test_files_that_are_not_there_or_no_ptx_are_errors(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["no/such.ptx", "--block", "1"]) == 1
    assert "no/such.ptx" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "FILE is missing" in capsys.readouterr().err
    result = command("hello", "--block", 1)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith("python -m humming_sim: error: ")


# -- listing ---------------------------------------------------------------------------------------


def test_list_shows_kernels_parameters_and_what_is_not_simulated(command: Command) -> None:
    ptx = REVERSE.replace("target)\n", "target)\n.maxntid 256, 1, 1\n")
    result = command(ptx, "--list")
    assert result.status == 0
    assert result.out.splitlines() == [
        "PTX 8.0 for sm_80",
        "",
        "reverse",
        "  source  .u64  8 bytes",
        "  target  .u64  8 bytes",
        "  15 instructions, 1024 bytes of shared memory",
        "  .maxntid 256, 1, 1",
    ]
    texture = REVERSE.replace("ret;", "suq.width.b32 %r0, [%rd0];\n    ret;")
    result = command(texture, "--list")
    assert result.status == 1
    assert "not simulated: suq.width.b32" in result.out
    assert command(texture, "--list", "--json").json["kernels"][0]["unsupported"]


# -- the page of instructions ----------------------------------------------------------------------


def test_the_page_has_every_instruction_once() -> None:
    cells = [line.split("|")[1] for line in page().splitlines() if line.startswith("| `")]
    listed = [name.strip(" `") for cell in cells for name in cell.split(",")]
    assert sorted(listed) == sorted(known_opcodes())


def test_the_page_in_the_documentation_is_current() -> None:
    written = (ROOT / "docs" / "simulator-instructions.md").read_text(encoding="utf-8")
    assert written == page(), "python -m humming_sim --coverage --write PAGE brings it up to date"


def test_a_stale_page_is_found_and_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = tmp_path / "page.md"
    assert main(["--coverage", "--check", str(where)]) == 1
    assert (
        f"{where}: is stale; `python -m humming_sim --coverage --write" in capsys.readouterr().out
    )
    assert main(["--coverage", "--write", str(where)]) == 0
    assert main(["--coverage", "--check", str(where)]) == 0
    assert main(["--coverage", "--json"]) == 0
    assert where.read_text(encoding="utf-8") == page()


def test_the_documentation_lists_every_check_with_its_meaning() -> None:
    text = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert {f"| `{name}` | {meaning} |" for name, meaning in CHECKS.items()} <= set(rows)


# -- the rest --------------------------------------------------------------------------------------


def test_columns_are_aligned_and_end_without_spaces() -> None:
    assert list(columns([("a", 1), ("bcd", "")])) == ["a    1", "bcd"]


def test_numbers_that_json_lacks_become_null(command: Command) -> None:
    shown = command(REVERSE, "--block", 256, "--arg", "f32:256:nan", "--arg", "f32:256", "--json")
    assert shown.json["buffers"][1]["first"] == [None] * 8


def test_it_is_a_program_of_its_own() -> None:
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "humming_sim", "--coverage"],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == page()


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    shell = f'"{sys.executable}" -m humming_sim --coverage 2>"{errors}" | true'
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run(["sh", "-c", shell], check=True, env=environment)
    assert errors.read_text() == ""
