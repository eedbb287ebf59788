"""The kernel that sorts choices by expert, on a real device and at sizes no simulator reaches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from routing_cases import CASES, Aligned, expected, layer_of, padded

import humming
from humming.backend import KernelSpec, LaunchShape, Problem
from humming.jit import HeaderRoots, Program, Renderer, compile_program
from humming.launching import CudaRuntime
from humming.routing import align_spec, aligned_sizes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CORE = Path(humming.__file__).parent


class Kernel:
    """The kernel for one row tile and one kind of ids, loaded."""

    def __init__(self, row_tile: int, wide: bool) -> None:
        major, minor = torch.cuda.get_device_capability()
        self.spec: KernelSpec = align_spec(row_tile, wide, f"sm_{major}{minor}")
        renderer = Renderer({"humming": CORE / "templates"})
        source = renderer.render(self.spec.template, self.spec.context)
        headers = HeaderRoots({"humming": CORE / "include" / "humming"})
        closure = headers.closure(source, self.spec.name)
        program = Program(name=self.spec.name, source=source, arch=self.spec.arch, headers=closure)
        torch.zeros(1, device="cuda")
        self.runtime = CudaRuntime()
        self.handle = self.runtime.load(compile_program(program).data, self.spec.entry)

    def __call__(
        self, ids: torch.Tensor, experts: int, shape: LaunchShape | None = None
    ) -> Aligned:
        """Into poisoned outputs, with guards behind them."""
        tile = self.spec.row_tile
        sizes = aligned_sizes(ids.numel(), experts, tile)
        slots, tiles, count = (
            torch.from_numpy(padded(size)).cuda() for size in (sizes.slots, sizes.row_tiles, 0)
        )
        shape = shape or self.spec.launch(Problem(m=ids.numel()), layer_of(experts))
        kinds = [arg.kind for arg in self.spec.args]
        values = [ids, slots, tiles, count, ids.numel(), experts]
        self.runtime.prepare(self.handle, kinds, values, {})(shape)
        return Aligned(slots.cpu().numpy(), tiles.cpu().numpy(), int(count[0]))


@pytest.fixture(scope="module")
def kernels() -> dict[bool, Kernel]:
    return {wide: Kernel(16, wide) for wide in (False, True)}


@pytest.mark.parametrize("choices", [1, 8, 1000, 4096, 60_001, 300_000])
@pytest.mark.parametrize("case", CASES)
def test_slots_are_those_of_the_reference(
    kernels: dict[bool, Kernel], case: str, choices: int
) -> None:
    rng = np.random.default_rng(choices)
    for experts, wide in ((8, False), (128, True), (384, False), (1024, True)):
        ids = CASES[case](rng, choices, experts).astype(np.int64 if wide else np.int32)
        found = kernels[wide](torch.from_numpy(ids).cuda(), experts)
        found.check(expected(ids, experts, 16), 16)


@pytest.mark.parametrize("ctas", [1, 2, 31, 200])
def test_any_number_of_ctas_gives_the_same(kernels: dict[bool, Kernel], ctas: int) -> None:
    ids = CASES["random"](np.random.default_rng(ctas), 300_000, 256).astype(np.int32)
    shape = LaunchShape(grid=(ctas, 1, 1), block=(1024, 1, 1))
    found = kernels[False](torch.from_numpy(ids).cuda(), 256, shape)
    found.check(expected(ids, 256, 16), 16)


def test_choices_beyond_what_31_bits_of_bytes_can_address(kernels: dict[bool, Kernel]) -> None:
    choices, experts = 600_000_001, 3
    ids = torch.full((choices,), -1, dtype=torch.int32, device="cuda")
    chosen = torch.tensor([0, 1, 299_999_999, 600_000_000], device="cuda")
    ids[chosen] = torch.tensor([2, 0, 2, 2], dtype=torch.int32, device="cuda")
    sizes = aligned_sizes(8, experts, 16)  # as many as these ids need
    slots, tiles, count = (
        torch.from_numpy(padded(size)).cuda() for size in (sizes.slots, sizes.row_tiles, 0)
    )
    kernel = kernels[False]
    shape = kernel.spec.launch(Problem(m=choices), layer_of(experts))
    values = [ids, slots, tiles, count, choices, experts]
    kinds = [arg.kind for arg in kernel.spec.args]
    kernel.runtime.prepare(kernel.handle, kinds, values, {})(shape)
    assert int(count[0]) == 2
    assert tiles[:2].tolist() == [0, 2]
    padding = [choices] * 16
    assert slots[:32].tolist() == [1, *padding[1:], 0, 299_999_999, 600_000_000, *padding[3:]]


def test_a_captured_launch_sorts_what_the_ids_are_by_then(kernels: dict[bool, Kernel]) -> None:
    rng, kernel = np.random.default_rng(5), kernels[False]
    ids = torch.zeros(5000, dtype=torch.int32, device="cuda")
    sizes = aligned_sizes(ids.numel(), 64, 16)
    slots, tiles, count = (
        torch.from_numpy(padded(size)).cuda() for size in (sizes.slots, sizes.row_tiles, 0)
    )
    shape = kernel.spec.launch(Problem(m=ids.numel()), layer_of(64))
    kinds = [arg.kind for arg in kernel.spec.args]
    values = [ids, slots, tiles, count, ids.numel(), 64]
    launch = kernel.runtime.prepare(kernel.handle, kinds, values, {})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(shape)
    for case in CASES:
        chosen = CASES[case](rng, ids.numel(), 64).astype(np.int32)
        ids.copy_(torch.from_numpy(chosen))
        for output, size in ((slots, sizes.slots), (tiles, sizes.row_tiles)):
            output.copy_(torch.from_numpy(padded(size)))
        graph.replay()
        found = Aligned(slots.cpu().numpy(), tiles.cpu().numpy(), int(count[0]))
        found.check(expected(chosen, 64, 16), 16)
