"""Kernels that begin while those before them run: the bits of one after the other, in graphs too.

What can go wrong is a race, so everything is repeated, with other inputs each time: behind a kernel
that lets the next begin long before it has written what that reads, and layer behind layer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from gemm_oracle import poisoned
from moe_cases import hidden_of, router, weights_of

import humming
from humming import GemmKind, QuantLinear, QuantMoE
from humming.backend import LaunchShape
from humming.jit import HeaderRoots, Program, compile_program
from humming.launching import CudaKernel, CudaRuntime
from humming.launching.launch import CudaLaunch
from humming_sm75_sm89.tuning import MmaTuning

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] < 9,
        reason="no CUDA device whose kernels can begin early",
    ),
]

BF16, CUDA = torch.bfloat16, "cuda"
INDEXED, SORTED = GemmKind.INDEXED, GemmKind.GROUPED_CONTIGUOUS
LAYERS = [
    ("mxfp4", None, INDEXED),
    ("mxfp4", None, SORTED),
    ("u4-g128-f16", "s8-token-f32", INDEXED),
    ("fp8-block", "e4m3fn-g128-f32", SORTED),
]
LINEARS = [
    ("u4-g128-bf16", None, None),
    ("u4-g128-bf16", None, MmaTuning(splits=4)),  # with counters in the workspace
    ("u4-g128-bf16", None, MmaTuning(min_run=1)),
    ("fp8-block", "e4m3fn-g128-f32", None),
]
SOURCE = r"""
#include <humming/overlap.cuh>
__device__ unsigned long long now() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time)::"memory");
  return time;
}
// Copies 16-byte words, and says when it began, waited, and ended.
extern "C" __global__ void late_copy(int4* to, int4 const* from, int count, int nanoseconds,
                                     unsigned long long* times) {
  unsigned long long const begin = now();
  humming::let_next_begin();
  humming::await_earlier();
  unsigned long long const waited = now();
  while (now() < waited + nanoseconds) {}
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    to[i] = from[i];
  if (times && threadIdx.x == 0 && blockIdx.x == 0) {
    times[0] = begin, times[1] = waited, times[2] = now();
  }
}
"""
Copy = Callable[..., None]


@cache
def late_copy() -> Copy:
    """A copy that lets the next kernel begin at once, and copies microseconds later."""
    root = Path(humming.__file__).parent / "include" / "humming"
    headers = HeaderRoots({"humming": root}).closure(SOURCE, "late_copy")
    major, minor = torch.cuda.get_device_capability()
    program = Program(
        name="late_copy", source=SOURCE, arch=f"sm_{major}{minor}", headers=headers, kind="cubin"
    )
    runtime = CudaRuntime()
    kernel = runtime.load(compile_program(program).data, "late_copy")
    assert kernel.awaits
    kinds = ("ptr", "ptr", "i32", "i32", "ptr")
    run = runtime.prepare(kernel, kinds, [None] * 5, {}, range(5))
    shape = LaunchShape(grid=(8, 1, 1), block=(128, 1, 1))

    def copy(to: torch.Tensor, x: torch.Tensor, us: int, times: torch.Tensor | None = None) -> None:
        run(shape, to, x, x.numel() * x.element_size() // 16, 1000 * us, times)

    return copy


def one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches that are made from now on are as if kernels could not begin early."""
    never = property(lambda self: False, lambda self, value: None)
    monkeypatch.setattr(CudaLaunch, "_pdl", never, raising=False)


def test_a_kernel_begins_while_the_one_before_runs_and_waits_for_its_end() -> None:
    copy, x = late_copy(), torch.randn(4096, device=CUDA)
    early = 0
    for _ in range(50):  # a host that has other work may launch the next too late
        buffers = [torch.zeros_like(x) for _ in range(4)]
        times = torch.zeros(4, 3, dtype=torch.int64, device=CUDA)
        copy(buffers[0], x, 300, times[0])
        for i in range(1, 4):
            copy(buffers[i], buffers[i - 1], 5, times[i])
        torch.cuda.synchronize()
        (_, _, end), *others = times.tolist()
        early = 0
        for begin, waited, ended in others:
            assert end <= waited
            early += begin < end
            end = ended
        assert all(torch.equal(buffer, x) for buffer in buffers)
        if early == len(others):
            break
    assert early == 3


@pytest.mark.parametrize(("scheme", "activation", "layout"), LAYERS)
def test_a_layer_of_experts_gives_the_same_bits_200_times(
    monkeypatch: pytest.MonkeyPatch, scheme: str, activation: str | None, layout: GemmKind
) -> None:
    pair = weights_of(scheme, 16, 512, 256, device=CUDA)

    def make() -> QuantMoE:
        return QuantMoE(*pair, gating="reglu", activation=activation, layout=layout)

    for m in (1, 64):
        inputs = [
            (hidden_of(m, 512, BF16, seed, CUDA), *router(m, 4, 16, seed, CUDA))
            for seed in range(3)
        ]
        with monkeypatch.context() as patched:
            one_after_the_other(patched)
            apart = make()
            wanted = [apart(*given) for given in inputs]
        layer, copy = make(), late_copy()
        x, ids, weights = (torch.empty_like(part) for part in inputs[0])
        found = []
        for number in range(200):
            given = inputs[number % 3]
            if number % 4 == 0:  # a kernel of others between, which fills the call's memory
                with poisoned():
                    found.append(layer(*given))
            elif number % 4 == 1:  # all launches wait together
                for to, part in zip((x, ids, weights), given, strict=True):
                    copy(to, part.contiguous(), 5)
                found.append(layer(x, ids, weights))
            else:  # layer behind layer
                found.append(layer(*given))
        (call,) = layer._calls.values()
        launches = call._launches._chain._launches  # type: ignore[union-attr]
        assert all(launch.kernel.awaits for launch in launches)
        wrong = [i for i, y in enumerate(found) if not torch.equal(y, wanted[i % 3])]
        assert wrong == [], m


@pytest.mark.parametrize("poison", [False, True])
@pytest.mark.parametrize(("scheme", "activation", "layout"), [LAYERS[0], LAYERS[3]])
def test_a_graph_of_layers_gives_the_same_bits_with_other_inputs(  # budget: a case and its fixtures
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    activation: str | None,
    layout: GemmKind,
    poison: bool,
) -> None:
    pair = weights_of(scheme, 16, 512, 256, device=CUDA)
    layer = QuantMoE(*pair, gating="reglu", activation=activation, layout=layout)
    ids, weights = router(8, 4, 16, device=CUDA)
    inputs = [hidden_of(8, 512, BF16, seed, CUDA) for seed in range(3)]
    x, copy = torch.empty_like(inputs[0]), late_copy()

    def twice(first: torch.Tensor, using: QuantMoE) -> torch.Tensor:
        return using(using(first, ids, weights), ids, weights)

    with monkeypatch.context() as patched:
        one_after_the_other(patched)
        apart = QuantMoE(*pair, gating="reglu", activation=activation, layout=layout)
        wanted = [twice(given, apart) for given in inputs]
    twice(inputs[0], layer)
    source, graph = torch.empty_like(x), torch.cuda.CUDAGraph()
    copy(x, inputs[0], 1)
    with torch.cuda.graph(graph):
        copy(x, source, 5)
        if poison:
            with poisoned():
                out = twice(x, layer)
        else:
            out = twice(x, layer)
    for number in range(200):
        source.copy_(inputs[number % 3])
        graph.replay()
        assert torch.equal(out, wanted[number % 3]), number


@pytest.mark.parametrize(("scheme", "activation", "tuning"), LINEARS)
def test_linear_layers_behind_one_another_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, scheme: str, activation: str | None, tuning: MmaTuning | None
) -> None:
    generator = torch.Generator(CUDA).manual_seed(0)
    dense = [torch.randn(1024, 1024, generator=generator, device=CUDA) / 32 for _ in range(4)]
    matrices = [humming.quantize(part, scheme) for part in dense]

    def chain(x: torch.Tensor, layers: list[QuantLinear]) -> torch.Tensor:
        for layer in layers:
            x = layer(x)
        return x

    def make() -> list[QuantLinear]:
        return [QuantLinear(w, activation=activation, tuning=tuning) for w in matrices]

    for m in (1, 64):
        inputs = [hidden_of(m, 1024, BF16, seed, CUDA) for seed in range(3)]
        with monkeypatch.context() as patched:
            one_after_the_other(patched)
            apart = make()
            wanted = [chain(given, apart) for given in inputs]
        layers, copy, x = make(), late_copy(), torch.empty_like(inputs[0])
        found = []
        for number in range(100):
            given = inputs[number % 3]
            if number % 2:
                copy(x, given, 5)
                given = x
            found.append(chain(given, layers))
        wrong = [i for i, y in enumerate(found) if not torch.equal(y, wanted[i % 3])]
        assert wrong == [], m


def test_a_foreign_kernel_behind_ours_finds_all_that_it_wrote() -> None:
    copy, x = late_copy(), torch.randn(1 << 20, device=CUDA)
    for number in range(50):
        to = torch.zeros_like(x)
        copy(to, x + number, 20)
        assert torch.equal(to, x + number)


def test_what_does_not_wait_is_not_launched_early() -> None:
    source = 'extern "C" __global__ void k(int* out) { *out += 1; }'
    major, minor = torch.cuda.get_device_capability()
    program = Program(name="k", source=source, arch=f"sm_{major}{minor}", kind="cubin")
    runtime = CudaRuntime()
    kernel = runtime.load(compile_program(program).data, "k")
    assert isinstance(kernel, CudaKernel)
    assert not kernel.awaits
    assert not runtime.prepare(kernel, ("ptr",), [None], {})._pdl
