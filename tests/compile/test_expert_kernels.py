"""The kernels around the products of experts give what their references in torch give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from moe_cases import FORMULAS, Function
from routing_cases import layer_of

import humming
import humming_sim
from humming.backend import KernelSpec, Problem
from humming.combining import combine
from humming.configs import LayerConfig
from humming.errors import ConfigError
from humming.expert_kernels import RowMask, combine_spec, gate_spec
from humming.formats.table import number_format
from humming.formats.tensors import TORCH_FLOATS
from humming.gating import Gating, gating_functions
from humming.jit import Binary, HeaderRoots, Program, Renderer, compile_program

pytestmark = pytest.mark.compile

CORE = Path(humming.__file__).parent
HEADERS = HeaderRoots({"humming": CORE / "include" / "humming"})
RENDERER = Renderer({"humming": CORE / "templates"})
GUARD = 64
ELEMENTS = ("f16", "bf16", "f32")
ARCHS = ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"]


def build(spec: KernelSpec) -> Binary:
    source = RENDERER.render(spec.template, spec.context)
    kind = "ptx" if spec.arch.startswith("compute") else "cubin"
    headers = HEADERS.closure(source, spec.name)
    return compile_program(
        Program(name=spec.name, source=source, arch=spec.arch, headers=headers, kind=kind)
    )


PTX: dict[tuple[str, object], str] = {}


def launch(spec: KernelSpec, rows: int, width: int, arguments: list[object]) -> None:
    shape = spec.launch(Problem(m=rows), sized(width))
    key = spec.name, spec.context
    if key not in PTX:
        PTX[key] = build(spec).data.decode()
    humming_sim.launch(PTX[key], spec.entry, shape.grid, shape.block, arguments)


def sized(width: int) -> LayerConfig:
    return LayerConfig(
        n=width, k=64, weight=layer_of(1).weight, activation=layer_of(1).activation,
        output=number_format("bf16"),
    )  # fmt: skip


def bits(x: torch.Tensor) -> npt.NDArray[np.generic]:
    """The memory of a tensor, for the simulator."""
    return x.contiguous().view(torch.int32 if x.element_size() == 4 else torch.int16).numpy()


class Output:
    """Rows full of NaN, with a guard behind them."""

    def __init__(self, rows: int, width: int, dtype: torch.dtype) -> None:
        self.rows, self.width = rows, width
        self.memory = torch.full((rows * width + GUARD,), torch.nan, dtype=dtype)
        self.bits = bits(self.memory)  # shares memory

    def check_guard(self) -> torch.Tensor:
        assert self.memory[-GUARD:].isnan().all()
        return self.memory[:-GUARD].view(self.rows, self.width)


# -- the activation function -------------------------------------------------------------------


def gate(
    gating: Gating,
    x: torch.Tensor,
    mask: npt.NDArray[np.generic] | None = None,
    kind: RowMask = RowMask.EVERY,
    limit: int = 0,
    whole: bool | None = None,
) -> torch.Tensor:
    """What the kernel writes for rows that lie further apart than they are wide."""
    rows, width = x.shape[0], x.shape[1] // gating.function.inputs
    whole = width % 8 == 0 if whole is None else whole
    name = {dtype: name for name, dtype in TORCH_FLOATS.items()}[x.dtype]
    spec = gate_spec(gating, number_format(name), kind, whole, "compute_75")
    out = Output(rows, width, x.dtype)
    source = torch.full((rows, x.shape[1] + 16), torch.nan, dtype=x.dtype)
    source[:, : x.shape[1]] = x
    mask = np.zeros(1, np.int32) if mask is None else mask
    stride = source.stride(0) * x.element_size()
    memory = bits(source).reshape(-1)[: (rows - 1) * source.stride(0) + x.shape[1]]  # and no more
    launch(spec, rows, width, [memory.copy(), stride, out.bits, mask, limit, rows, width])
    return out.check_guard()


def close(found: torch.Tensor, exact: torch.Tensor) -> None:
    """Within half a step of the format and what expert_kernels.gate_spec states."""
    step, least = torch.finfo(found.dtype).eps, torch.finfo(found.dtype).smallest_normal
    allowed = exact.abs() * (0.5 * step + 2.0**-15) + least * step + 64 * 2.0**-126
    assert ((found.double() - exact).abs() <= allowed).all()


#: One element for each function, and all of them for one.
PAIRS = [
    *((name, ELEMENTS[i % 3]) for i, name in enumerate(FORMULAS) if name != "swiglu_oai"),
    *(("swiglu_oai", element) for element in ELEMENTS),
]


@pytest.mark.parametrize(("name", "element"), PAIRS)
def test_functions_are_their_formulas(name: str, element: str) -> None:
    gated = gating_functions()[name].gated
    for interleaved in (False, True) if gated else (False,):
        gating = Gating.of(name, interleaved=interleaved)
        torch.manual_seed(1)
        x = (torch.randn(3, gating.inputs(72)) * 8).to(TORCH_FLOATS[element])
        x[0, :4] = torch.tensor([90.0, -90.0, 0.0, -0.0])
        found = gate(gating, x)
        close(found, Function(name, interleaved, dict(gating.parameters))(x.double()))
        close(found, gating(x).double())


@pytest.mark.parametrize("name", FORMULAS)
def test_nan_stays_nan_and_infinity_does_what_it_does_in_torch(name: str) -> None:
    gating = Gating.of(name)
    x = torch.ones(1, gating.inputs(8))
    special = torch.tensor([torch.nan, torch.inf, -torch.inf])
    for place in range(gating.function.inputs):
        x[0, 8 * place : 8 * place + 3] = special
    found, reference = gate(gating, x), gating(x)
    assert torch.equal(found.isnan(), reference.isnan())
    assert torch.equal(found.isinf(), reference.isinf())


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [1, 7, 9, 27, 100])
def test_rows_of_any_width(width: int, interleaved: bool) -> None:
    gating = Gating.of("swiglu_oai", interleaved=interleaved)
    x = torch.randn(5, 2 * width, generator=torch.Generator().manual_seed(width)).half() * 5
    close(gate(gating, x), gating(x.float()).double())  # rounded once, as the kernel does
    if width % 8:
        return
    assert torch.equal(gate(gating, x, whole=True), gate(gating, x, whole=False))


@pytest.mark.parametrize("width", [8, 24, 520, 1024, 1100])
def test_every_number_of_a_row_is_somebodys(width: int) -> None:
    gating = Gating.of("relu")
    x = torch.arange(11 * width).view(11, width).float()
    assert torch.equal(gate(gating, x), x)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_rows_without_an_expert_here_are_not_written(dtype: type) -> None:
    ids = np.array([0, -1, 3, 4, 2, -(2**31), 2**31 - 1], np.int64)
    if dtype is np.int64:
        ids = np.append(ids, [2**32, 2**32 + 1, -(2**32)])
    kind = RowMask.IDS_64 if dtype is np.int64 else RowMask.IDS
    x = torch.randn(len(ids), 16)
    found = gate(Gating.of("swiglu"), x, ids.astype(dtype), kind, limit=4)
    here = torch.from_numpy((ids >= 0) & (ids < 4))
    assert found[~here].isnan().all()
    close(found[here], Gating.of("swiglu")(x[here]).double())


def test_of_each_experts_rows_the_first_count() -> None:
    counts, capacity = np.array([3, 0, 5, 1], np.int32), 5
    x = torch.randn(4 * capacity, 8).bfloat16()
    found = gate(Gating.of("silu"), x, counts, RowMask.COUNTS, limit=capacity)
    here = (torch.arange(capacity) < torch.from_numpy(counts)[:, None]).flatten()
    assert found[~here].isnan().all()
    close(found[here], Gating.of("silu")(x[here]).double())


# -- the weighted sum --------------------------------------------------------------------------


#: Each number of experts with rows of whole octets and others, and so each element.
SUMS = [
    (ELEMENTS[(i + j) % 3], top_k, width)
    for i, top_k in enumerate((1, 2, 4, 6, 8, 16))
    for j, width in enumerate((16, 13))
]


@pytest.mark.parametrize(("element", "top_k", "width"), SUMS)
def test_sums_are_those_of_the_reference_to_the_bit(element: str, top_k: int, width: int) -> None:
    experts, tokens, dtype = 5, 6, TORCH_FLOATS[element]
    generator = torch.Generator().manual_seed(top_k)
    ids = torch.randint(-2, experts + 2, (tokens, top_k), generator=generator)
    ids[2] = -1
    far = ids.clone()  # what is an expert's in its lower 32 bits is nobody's
    far[2] = 2**32 + 1
    weights = torch.rand(tokens, top_k, generator=generator)
    rows = torch.randn(tokens, top_k, width, generator=generator).to(dtype)
    shared = torch.randn(tokens, width, generator=generator).to(dtype)
    skipped = (ids < 0) | (ids >= experts)
    rows[skipped], weights[skipped] = torch.nan, torch.nan
    cases = ((weights, shared, True), (weights, None, False), (None, shared, False),
             (None, None, True))  # fmt: skip
    for weighed, beside, wide in cases:
        spec = combine_spec(number_format(element), wide, width % 8 == 0, "compute_75")
        out = Output(tokens, width, dtype)
        numbers = far.numpy() if wide else ids.numpy().astype(np.int32)
        pointers = [
            0 if weighed is None else weighed.numpy(),
            0 if beside is None else bits(beside),
        ]
        sizes = [tokens, top_k, experts, width]
        launch(spec, tokens, width, [bits(rows), numbers, *pointers, out.bits, *sizes])
        found = out.check_guard()
        assert torch.equal(found, combine(rows, ids, experts, weighed, beside))
        if beside is None:
            assert torch.equal(found[2], torch.zeros(width, dtype=dtype))


# -- both --------------------------------------------------------------------------------------


def test_launches_say_their_limits() -> None:
    spec = combine_spec(number_format("bf16"), False, True, "compute_75")
    shape = spec.launch(Problem(m=300_000), sized(7168))
    assert (shape.grid, shape.block) == ((150_000, 7, 1), (128, 2, 1))
    assert spec.launch(Problem(m=300_000), sized(7168)) is shape
    assert spec.launch(Problem(m=5), sized(96)).block == (16, 16, 1)
    assert spec.launch(Problem(m=2**31 - 1), sized(17408)).grid[0] <= 2**31 - 1
    for m in (0, 2**31):
        with pytest.raises(ConfigError, match="rows"):
            spec.launch(Problem(m=m), sized(64))
    with pytest.raises(ConfigError, match="width"):
        spec.launch(Problem(m=1), sized(2**31 - 1))
    with pytest.raises(ConfigError, match="one of f16, bf16, f32"):
        combine_spec(number_format("e4m3fn"), False, True, "compute_75")


@pytest.mark.parametrize("arch", ARCHS)
def test_kernels_assemble_without_spills(arch: str) -> None:
    element = number_format("f16" if arch == "sm_75" else "bf16")
    specs = [combine_spec(element, wide, whole, arch) for wide, whole in ((0, 1), (1, 0))]
    for name in ("geglu", "swiglu_oai", "gelu_tanh"):
        gating = Gating.of(name, interleaved=name == "swiglu_oai")
        specs.append(gate_spec(gating, element, RowMask.IDS_64, name != "geglu", arch))
    for spec in specs:
        (usage,) = build(spec).usage
        assert usage.spill_stores == usage.stack == 0, spec.name
        assert usage.registers <= 80, spec.name  # three CTAs on an SM at least
