"""The quantizing kernel on a real device, at sizes no simulator reaches, and what a layer costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from quantize_cases import STORED, Quantized, below, program, sample, stored_of
from routing_cases import layer_of

from humming.activations import hadamard
from humming.backend import Problem
from humming.expert_kernels import RowMask, gate_spec
from humming.formats.activation import ActivationScheme
from humming.formats.table import number_format
from humming.gating import Gating, gating_functions
from humming.jit import compile_program
from humming.launching import CudaRuntime
from humming.quantizer import QuantizeOptions, RowSource, quantize_spec, quantize_tunings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SCHEMES = ["s8-token-f32", "s4-token-f32", "e4m3fn-token-f32", "e5m2-token-f32",
           "e4m3fn-tensor-f32-static", "s8-tensor-f32-static", "e4m3fn-g128-f32",
           "e4m3fn-g32-e8m0", "s8-g48-f32", "s8-g1024-bf16", "e2m1-g32-e8m0",
           "e2m1-g16-e4m3fn-token", "e2m1-g16-e4m3fn-tensor-static"]  # fmt: skip
DTYPES = [torch.float16, torch.bfloat16, torch.float32]


class Kernel:
    """The kernel for one scheme, source and k, loaded."""

    def __init__(self, text: str, dtype: torch.dtype, k: int, **options: object) -> None:
        self.scheme, self.k = ActivationScheme.parse(text), k
        major, minor = torch.cuda.get_device_capability()
        source = number_format(dtype)
        given = QuantizeOptions(native=(major, minor) >= (8, 9), **options)
        self.spec = quantize_spec(self.scheme, source, k, f"sm_{major}{minor}", given)
        torch.zeros(1, device="cuda")
        self.runtime = CudaRuntime()
        binary = compile_program(program(self.spec, "cubin")).data
        self.handle = self.runtime.load(binary, self.spec.entry)

    def __call__(
        self,
        x: torch.Tensor,
        table: torch.Tensor | None = None,
        wanted: torch.Tensor | None = None,
    ) -> None:
        """Compare with the reference, on the CPU; outputs begin poisoned, with guards behind.

        `wanted`: the rows that are quantized, if they are not those of x.
        """
        stored = stored_of(self.scheme)
        rows = x.shape[0] if table is None else len(table)
        on_host = Quantized.poisoned(self.scheme, rows, self.k)
        outputs = [torch.from_numpy(part).cuda() for part in vars(on_host).values()]
        scale = None if stored is None else stored.cuda()
        values = [x, x.stride(0), scale, 0, *outputs, rows, self.k, table, x.shape[0]]
        kinds = [arg.kind for arg in self.spec.args]
        run = self.runtime.prepare(self.handle, kinds, values, {})
        run(self.spec.launch(Problem(m=rows), None))
        found = Quantized(*(output.cpu().numpy() for output in outputs))
        found.check(
            Quantized.expected((x if wanted is None else wanted).cpu(), self.scheme, stored)
        )


@pytest.mark.parametrize("number", range(len(SCHEMES)), ids=SCHEMES)
def test_codes_and_scales_are_those_of_the_reference(number: int) -> None:
    text = SCHEMES[number]
    scheme = ActivationScheme.parse(text)
    for place, k in enumerate((100, 1000, 4096, 7168, 53248)):
        dtype = DTYPES[(number + place) % 3]
        kernel = Kernel(text, dtype, k)
        x = sample(scheme, dtype, k, seed=number)
        kernel(x.cuda())
        kernel(x.repeat(30, 1).cuda())


@pytest.mark.parametrize("text", SCHEMES)
def test_random_bits_are_quantized_as_the_reference_does(text: str) -> None:
    for dtype, ints in ((torch.bfloat16, torch.int16), (torch.float32, torch.int32)):
        info = torch.iinfo(ints)
        bits = torch.randint(info.min, info.max, (512, 2048), dtype=ints)
        x = bits.view(dtype)
        x[::2] = torch.randn(256, 2048).to(dtype)  # most rows of random bits have a NaN
        x[1::4] = x[1::4].nan_to_num(nan=1.0)
        Kernel(text, dtype, 2048)(x.cuda())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_all_numbers_of_16_bits_under_many_scales_of_e2m1(dtype: torch.dtype) -> None:
    first, last = (-24, 13) if dtype == torch.float16 else (-55, 58)
    peaks = 6 * 2.0 ** torch.arange(first, last, dtype=torch.float64)
    x = below(peaks.to(dtype), 32, 6)
    Kernel("e2m1-g32-e8m0", dtype, x.shape[1])(x.cuda())
    # Divisors with bits of all sorts; the smallest scales are below those of e4m3fn.
    peaks = STORED * 6 * 2.0 ** torch.linspace(-12, 10, 192 if dtype == torch.float16 else 1536)
    x = below(peaks.to(dtype), 16, 6)
    Kernel("e2m1-g16-e4m3fn-tensor-static", dtype, x.shape[1])(x.cuda())


@pytest.mark.parametrize("offset", [0, 1, 8])
def test_rows_of_a_larger_tensor_are_read_where_they_lie(offset: int) -> None:
    whole = torch.randn(300, 3000).half().cuda()
    Kernel("e4m3fn-g128-f32", torch.float16, 2880)(whole[:, offset : offset + 2880])


def test_a_captured_launch_quantizes_what_is_there_by_then() -> None:
    kernel = Kernel("s8-token-f32", torch.bfloat16, 4096)
    x = torch.zeros(64, 4096, dtype=torch.bfloat16, device="cuda")
    on_host = Quantized.poisoned(kernel.scheme, 64, 4096)
    outputs = [torch.from_numpy(part).cuda() for part in vars(on_host).values()]
    kinds = [arg.kind for arg in kernel.spec.args]
    values = [x, x.stride(0), None, 0, *outputs, 64, 4096, None, 0]
    run = kernel.runtime.prepare(kernel.handle, kinds, values, {})
    shape = kernel.spec.launch(Problem(m=64), None)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(shape)
    for _ in range(3):
        x.copy_(torch.randn(64, 4096))
        graph.replay()
        found = Quantized(*(output.cpu().numpy() for output in outputs))
        found.check(Quantized.expected(x.cpu(), kernel.scheme, None))


@pytest.mark.parametrize("text", ["e4m3fn-token-f32", "s8-g128-f32", "e2m1-g16-e4m3fn-token"])
@pytest.mark.parametrize("name", gating_functions())
def test_activated_rows_have_the_bits_of_two_kernels(name: str, text: str) -> None:
    for interleaved in (False, True) if gating_functions()[name].gated else (False,):
        gating = Gating.of(name, interleaved=interleaved)
        for dtype, k in ((torch.bfloat16, 2880), (torch.float16, 2048), (torch.float32, 1000)):
            x = sample(ActivationScheme.parse(text), dtype, gating.inputs(k)).repeat(20, 1).cuda()
            Kernel(text, dtype, k, gating=gating)(x, wanted=activated(gating, x, k))


def activated(gating: Gating, x: torch.Tensor, k: int) -> torch.Tensor:
    """What the kernel of the function alone makes of rows."""
    major, minor = torch.cuda.get_device_capability()
    arch = f"sm_{major}{minor}"
    spec = gate_spec(gating, number_format(x.dtype), RowMask.EVERY, True, arch)
    runtime = CudaRuntime()
    handle = runtime.load(compile_program(program(spec, "cubin")).data, spec.entry)
    out = torch.empty(x.shape[0], k, dtype=x.dtype, device="cuda")
    values = [x, x.stride(0) * x.element_size(), out, None, 0, x.shape[0], k]
    run = runtime.prepare(handle, [arg.kind for arg in spec.args], values, {})
    run(spec.launch(Problem(m=x.shape[0]), replace(layer_of(1), n=k)))
    return out


def test_rows_in_the_order_of_experts_are_read_where_they_lie() -> None:
    x = sample(ActivationScheme.parse("e4m3fn-g128-f32"), torch.bfloat16, 7168).cuda()
    table = torch.randint(len(x), (4096,), dtype=torch.int32, device="cuda")
    for text in ("e4m3fn-g128-f32", "s8-token-f32"):
        kernel = Kernel(text, torch.bfloat16, 7168, rows=RowSource.MAP)
        kernel(x, table, x[table.long()])


@pytest.mark.parametrize("block", [16, 128, 512])
def test_transformed_rows_have_the_bits_of_two_steps(block: int) -> None:
    for text, dtype in (("s4-token-f32", torch.bfloat16), ("e4m3fn-g128-f32", torch.float16)):
        x = sample(ActivationScheme.parse(text), dtype, 4096).repeat(20, 1)
        kernel = Kernel(text, dtype, 4096, hadamard=block)
        kernel(x.cuda(), wanted=hadamard(x, block))


@pytest.mark.parametrize("text", ["e4m3fn-token-f32", "e4m3fn-g128-f32", "s8-token-f32"])
def test_every_tuning_gives_the_same(text: str) -> None:
    scheme, fmt = ActivationScheme.parse(text), number_format("bf16")
    for k in (2048, 7168, 53248):
        x = sample(scheme, torch.bfloat16, k).repeat(20, 1).cuda()
        for tuning in quantize_tunings(scheme, fmt, k):
            Kernel(text, torch.bfloat16, k, tuning=tuning)(x)
