"""Marlin, the peer on SM80's path: build its extension, and call it on our codes and scales.

The sources stay outside of this repository; they are those of GPTQModel, which carries vLLM's
kernels with a binding of its own (folders gptqmodel_ext/marlin and gptqmodel/utils).

Build, on the machine that has nvcc (once; the library can be carried to the same torch):

    cd benchmarks && python -m peers.marlin GPTQMODEL_FOLDER OUT_FOLDER

Only the kernels for int4 with groups of 128 (and per channel) in bf16 are instantiated, each as
the project's generator would, two to a file so that they compile side by side.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

__all__ = ["Marlin", "build"]

LIBRARY = "humming_peer_marlin.so"
_TYPES = "marlin_scalar_type.py"
_BINDING = (
    "marlin_torch_bf16.cpp",
    "gptq_marlin_bf16.cu",
    "gptq_marlin_repack.cu",
    "awq_marlin_repack.cu",
)

#: (k blocks, n blocks, threads) of small and of larger row tiles, blocks being of 16.
_SMALL = ((8, 8, 256), (4, 8, 128), (8, 4, 128))
_LARGE = ((4, 16, 256), (4, 8, 128), (8, 4, 128))
#: (row blocks, whether 8 rows of the only one count)
_ROWS = {
    (1, True): _SMALL,
    (1, False): _SMALL,
    **{(rows, False): _LARGE for rows in (2, 3, 4)},
}
_GROUP_BLOCKS = (-1, 8)

#: What torch turns off in its headers, and these sources use.
_TORCH_FORBIDS = (
    "HALF_OPERATORS",
    "HALF_CONVERSIONS",
    "BFLOAT16_CONVERSIONS",
    "HALF2_OPERATORS",
)

_SELECTED = "BIGGROUP_GET_IF(vllm::kU4B8, pipe_stages)"
_SELECTION = re.compile(r"^ *\w+_GET_IF\(vllm::\w+, \w+\)$", re.MULTILINE)


def build(project: Path, out: Path) -> Path:
    """Compile the extension for the current device; returns the library.

    Args:
        project: a checkout of GPTQModel, or those two folders of one.
        out: gets the library and the module that names its types; intermediate files too.
    """
    from torch.utils import cpp_extension

    out = out.resolve()
    sources = out / "sources"
    shutil.rmtree(sources, ignore_errors=True)
    shutil.copytree(project / "gptqmodel_ext" / "marlin", sources)
    shutil.copy(project / "gptqmodel" / "utils" / _TYPES, out / _TYPES)
    _keep_selected(sources / "gptq_marlin.cu")
    kernels = _write_kernels(sources)
    major, minor = torch.cuda.get_device_capability()
    cpp_extension.load(
        name=Path(LIBRARY).stem,
        sources=[str(sources / name) for name in _BINDING] + [str(path) for path in kernels],
        extra_include_paths=[str(sources)],
        extra_cflags=["-O3", "-DENABLE_BF16"],
        extra_cuda_cflags=[
            "-O3",
            "-DENABLE_BF16",
            f"-gencode=arch=compute_{major}{minor},code=sm_{major}{minor}",
            # A kernel is instantiated in one file and launched in another.
            "-static-global-template-stub=false",
            "-Xptxas=-O3,-dlcm=ca",
            "-diag-suppress=179,39,177",
            *(f"-U__CUDA_NO_{what}__" for what in _TORCH_FORBIDS),
        ],
        build_directory=str(out),
        is_python_module=False,
        verbose=True,
    )  # fmt: skip
    return out / LIBRARY


def _keep_selected(path: Path) -> None:
    """Let the dispatcher ask for the kernels that are built and for no others."""
    text = path.read_text(encoding="utf-8")
    first = text.index("get_marlin_kernel(const")
    head, tail = text[:first], text[first:]
    wanted = re.compile(r"^ *COMMON_GET_IF\(vllm::kU4B8, pipe_stages\)$", re.MULTILINE)
    if len(wanted.findall(tail)) != 1:
        raise SystemExit(f"{path}: not the version of Marlin that this script knows")
    tail = wanted.sub("    @", tail)
    tail = _SELECTION.sub("", tail).replace("@", _SELECTED)
    path.write_text(head + tail, encoding="utf-8")


def _write_kernels(folder: Path) -> list[Path]:
    for stale in folder.glob("kernel_*.cu"):
        stale.unlink()
    entries = [
        f"template __global__ void Marlin<nv_bfloat16, vllm::kU4B8.id(), vllm::kBFloat16.id(), "
        f"{threads}, {rows}, {n}, {k}, {str(eight).lower()}, pipe_stages, {group}, false>"
        "(MARLIN_KERNEL_PARAMS);"
        for group, ((rows, eight), shapes) in itertools.product(_GROUP_BLOCKS, _ROWS.items())
        for k, n, threads in shapes
    ]
    count = (len(entries) + 1) // 2
    paths = []
    for index in range(count):
        path = folder / f"kernel_{index}.cu"
        # Long compilations stand in different files.
        body = "\n".join(entries[index::count])
        path.write_text(
            '#include "kernel.h"\n#include "marlin_template.h"\n'
            f"namespace MARLIN_NAMESPACE_NAME {{\n{body}\n}}\n",
            encoding="utf-8",
        )
        paths.append(path)
    return paths


class Marlin:
    """The built extension.

    Args:
        folder: what :func:`build` filled; of its files, the library and the module of types.
    """

    name = "marlin"

    def __init__(self, folder: Path) -> None:
        torch.ops.load_library(str(folder / LIBRARY))
        self._ops: Any = torch.ops.gptqmodel_marlin_bf16
        spec = importlib.util.spec_from_file_location("marlin_scalar_type", folder / _TYPES)
        assert spec is not None, "the path has a suffix"
        assert spec.loader is not None, "a path of a Python file has a loader"
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # its dataclass looks itself up
        spec.loader.exec_module(module)
        self._type = module.scalar_types.uint4b8.id

    def prepare(
        self, codes: torch.Tensor, scales: torch.Tensor
    ) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """A weight of (code - 8) * scale as a function of x [M, K] and the result's buffer [M, N].

        Args:
            codes: uint8 [N, K], below 16.
            scales: bfloat16 [N, K / 128].
        """
        n, k = codes.shape
        empty = torch.empty(0, dtype=torch.int32, device=codes.device)
        shifts = torch.arange(0, 32, 4, device=codes.device)
        eights = codes.T.reshape(k // 8, 8, n).permute(0, 2, 1).long()
        words = (eights << shifts).sum(dim=2).to(torch.int32)
        weight = self._ops.gptq_marlin_repack(words.contiguous(), empty, k, n, 4)
        # Of 64 neighbouring outputs a thread has every eighth.
        ordered = scales.T.reshape(-1, n // 64, 8, 8).transpose(2, 3).reshape(-1, n).contiguous()
        locks = torch.zeros(1024, dtype=torch.int32, device=codes.device)

        def run(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self._ops.gptq_marlin_gemm_bf16(
                x, out, weight, None, ordered, None, None, None, None, locks, self._type,
                x.shape[0], n, k, True, False, True, False,
            )  # fmt: skip
            return result

        return run


if __name__ == "__main__":
    print(build(Path(sys.argv[1]), Path(sys.argv[2])))
