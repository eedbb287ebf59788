"""Every test GEMM is CUDA C++ that NVRTC compiles and ptxas assembles."""

from __future__ import annotations

import pytest
from sim_gemm_variants import VARIANTS
from sim_gemms import Problem
from sim_kernels import KERNELS, CompileError, compile_cubin, compile_ptx, read_kernel

PROBLEM = Problem(128, 128, 384)


@pytest.mark.compile
@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_assembles_for_its_architecture(name: str) -> None:
    program = VARIANTS[name](PROBLEM).program
    assert compile_cubin(program.text(), f"sm_{program.arch}", program.defines)[:4] == b"\x7fELF"


@pytest.mark.compile
def test_a_refused_source_shows_the_compilers_words() -> None:
    with pytest.raises(CompileError, match=r'(?s)compute_80.*identifier "missing" is undefined'):
        compile_ptx("__global__ void f(int* p) { *p = missing; }", "compute_80")


@pytest.mark.compile
def test_macros_reach_the_compiler() -> None:
    text = 'extern "C" __global__ void f(int* p) { *p = NUMBER; }'
    assert "1234" in compile_ptx(text, "compute_80", {"NUMBER": 1234})


def test_no_kernel_includes_a_cuda_header() -> None:
    for path in KERNELS.iterdir():
        assert "#include" not in read_kernel(path.name), path.name
