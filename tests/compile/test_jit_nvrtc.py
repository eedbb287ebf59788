"""NVRTC as pip installs it: what it makes, what it says, and what it must not see."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from jit_kernels import environment, program

from humming.errors import CompileError
from humming.jit import (
    Cache,
    HeaderRoots,
    KernelLibrary,
    Nvrtc,
    compile_many,
    compile_program,
)

pytestmark = pytest.mark.compile

ARCHITECTURES = ["sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90a", "sm_100a", "sm_103a",
                 "sm_110a", "sm_120a", "sm_121a"]  # fmt: skip

SPILLING = """
extern "C" __global__ void spill(float* p, int n) {
  float a[64];
#pragma unroll
  for (int i = 0; i < 64; i++) a[i] = p[i * n];
  for (int r = 0; r < n; r++) {
#pragma unroll
    for (int i = 0; i < 64; i++)
      asm volatile("fma.rn.f32 %0, %0, %0, %1;" : "+f"(a[i]) : "f"(a[63 - i]));
  }
#pragma unroll
  for (int i = 0; i < 64; i++) p[i * n] = a[i];
}
"""


@pytest.fixture(autouse=True)
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture(scope="module")
def compiler() -> Nvrtc:
    return Nvrtc()


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_kernel_becomes_machine_code_for_every_architecture(compiler: Nvrtc, arch: str) -> None:
    binary = compile_program(program(arch=arch), compiler)
    assert (binary.kind, binary.data[:4]) == ("cubin", b"\x7fELF")
    (usage,) = binary.usage
    assert usage.kernel == "scale"
    assert 0 < usage.registers < 64
    assert usage.shared >= 256
    assert (usage.stack, usage.spill_stores, usage.spill_loads) == (0, 0, 0)
    assert arch in binary.log
    assert binary.compiler == compiler.fingerprint()


@pytest.mark.parametrize("arch", ["sm_75", "sm_90a", "sm_120f"])
def test_ptx_is_made_on_demand(compiler: Nvrtc, arch: str) -> None:
    binary = compile_program(program(arch=arch, kind="ptx"), compiler)
    assert f".target {arch}" in binary.data.decode()
    assert binary.data.endswith(b"}\n\n") or b"\0" not in binary.data
    assert binary.usage == ()


def test_spills_are_counted(compiler: Nvrtc) -> None:
    spilling = program(name="spill", source=SPILLING, options=("--maxrregcount=32",))
    (usage,) = compile_program(spilling, compiler).usage
    assert usage.registers <= 32
    assert min(usage.stack, usage.spill_stores, usage.spill_loads) > 0


def test_two_kernels_of_one_source_are_counted_apart(compiler: Nvrtc) -> None:
    both = program(source=program().source + SPILLING)
    assert [usage.kernel for usage in compile_program(both, compiler).usage] == ["scale", "spill"]


def test_the_same_program_gives_the_same_bytes_wherever_it_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "header.cuh").write_text("int x;")
    code = f"""
import hashlib, os, sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "helpers")!r})
from jit_kernels import program
from humming.jit import compile_program
for kind, options in [(k, o) for k in ("cubin", "ptx") for o in ((), ("-lineinfo",))]:
    text = '#include <core/a.cuh>\\n' + program(2).source.replace("2.0f", "two(1.0f)")
    header = b"__device__ __noinline__ float two(float x) {{ return 2 * x; }}"
    headers = (("core/a.cuh", header),)
    binary = compile_program(program(source=text, headers=headers, options=options, kind=kind))
    assert os.getcwd().encode() not in binary.data
    assert (b"/humming" in binary.data) == bool(options)
    print(hashlib.sha256(binary.data + binary.log.encode()).hexdigest())
"""
    command = [sys.executable, "-c", code]
    said = []
    for place in (tmp_path / "a", tmp_path / "b" / "c"):
        place.mkdir(parents=True)
        env = environment(place / "cache", HOME=place)
        done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
        assert not list(place.iterdir()), "a compilation leaves nothing behind"
    assert said[0] == said[1] != ""


def test_a_refused_source_shows_command_source_and_log(compiler: Nvrtc, tmp_path: Path) -> None:
    wrong = program(name="my.gemm", source="\n__global__ void f(int* p) { *p = missing; }")
    with pytest.raises(CompileError) as caught:
        KernelLibrary(Cache(tmp_path), compiler).get(wrong)
    error = caught.value
    assert 'my.gemm.cu(2): error: identifier "missing" is undefined' in error.log
    assert "--gpu-architecture=sm_80" in error.command
    assert Path(str(error.source)).read_text() == wrong.source
    with pytest.raises(CompileError, match="gpu-architecture"):
        KernelLibrary(Cache(tmp_path), compiler).get(program(arch="sm_1"))


def test_a_source_without_kernels_or_messages_is_fine(compiler: Nvrtc) -> None:
    binary = compile_program(program(source="", kind="ptx"), compiler)
    assert binary.log == ""
    assert ord(b" ") == 32  # a library that writes into Python's constants would break this


def test_headers_come_by_name_and_from_nowhere_else(
    compiler: Nvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "a.cuh").write_text(
        "#pragma once\n#include <core/b.cuh>\nconstexpr int kA = kB + 1;\n"
    )
    (tmp_path / "core" / "b.cuh").write_text("#pragma once\nconstexpr int kB = 41;\n")
    source = (
        "#include <core/b.cuh>\n#include <core/a.cuh>\n"
        'static_assert(kA == 42);\nextern "C" __global__ void f() {}\n'
    )
    headers = HeaderRoots({"core": tmp_path / "core"}).closure(source, "f")
    binary = compile_program(program(source=source, headers=headers), compiler)
    assert str(tmp_path).encode() not in binary.data
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompileError, match="could not open source file"):
        compile_program(program(source=source), compiler)
    with pytest.raises(CompileError, match="could not open source file"):
        compile_program(program(source='#include "core/b.cuh"\n'), compiler)


def test_an_error_in_a_header_names_the_header(compiler: Nvrtc) -> None:
    wrong = program(source="#include <core/a.cuh>\n", headers=(("core/a.cuh", b"\nint x = y;\n"),))
    with pytest.raises(CompileError, match=r"core/a\.cuh\(2\): error: identifier"):
        compile_program(wrong, compiler)


def test_the_language_is_cpp_20_unless_the_program_says_otherwise(compiler: Nvrtc) -> None:
    source = "template <class T> concept Small = sizeof(T) < 3;\nstatic_assert(Small<char>);\n"
    compile_program(program(source=source, kind="ptx"), compiler)
    with pytest.raises(CompileError):
        compile_program(program(source=source, kind="ptx", options=("--std=c++17",)), compiler)


def test_threads_compile_side_by_side(compiler: Nvrtc) -> None:
    programs = [program(i) for i in range(6)]
    one_by_one = [compile_program(p, compiler) for p in programs]
    assert compile_many(programs, threads=4, compiler=compiler) == one_by_one
    # While NVRTC works, Python does too: a thread that counts gets on.
    counted, stop = 0, threading.Event()

    def count() -> None:
        nonlocal counted
        while not stop.wait(0.001):
            counted += 1

    with ThreadPoolExecutor(1) as pool:
        pool.submit(count)
        compile_program(program(name="long", source=SPILLING), compiler)
        stop.set()
    assert counted > 5


def test_a_warm_start_loads_no_compiler(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "helpers")!r})
from jit_kernels import program
from humming.jit import KernelLibrary
KernelLibrary().get(program())
print("cuda.bindings.nvrtc" in sys.modules, "torch" in sys.modules)
"""
    env = environment(tmp_path / "cache")
    said = [
        subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        for _ in range(2)
    ]
    assert [s.stdout.strip() for s in said] == ["True False", "False False"], said[0].stderr


def test_what_pip_says_is_what_is_loaded() -> None:
    compiler = Nvrtc()
    before = compiler.fingerprint()
    assert compiler.load() == before == compiler.fingerprint()
    assert "not pip's" not in before
