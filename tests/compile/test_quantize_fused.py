"""An activation function, or chosen rows, in the quantizing kernel: the bits of two steps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
import torch
from quantize_cases import POISON, Quantized, program, ptx_of, sample, stored_of
from routing_cases import layer_of

import humming_sim
from humming.activations import hadamard
from humming.backend import Problem
from humming.errors import ConfigError, UnsupportedError
from humming.expert_kernels import RowMask, gate_spec
from humming.formats.activation import ActivationScheme
from humming.formats.table import number_format
from humming.gating import Gating, gating_functions
from humming.jit import compile_program
from humming.quantizer import QuantizeOptions, QuantizeTuning, RowSource, quantize_spec

pytestmark = pytest.mark.compile

FUNCTIONS = list(gating_functions())
INTERLEAVED = [name for name, function in gating_functions().items() if function.gated]
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


@cache
def ptx(text: str, source: str, k: int, options: QuantizeOptions) -> tuple[object, str]:
    arch = f"compute_{89 if options.native else 75}"
    spec = quantize_spec(ActivationScheme.parse(text), number_format(source), k, arch, options)
    return spec, ptx_of(program(spec, "ptx"))


def bits_of(x: torch.Tensor) -> npt.NDArray[np.generic]:
    """What the simulator copies: bf16 is nothing that NumPy has."""
    return x.contiguous().view(torch.int32 if x.dtype == torch.float32 else torch.int16).numpy()


def quantized(
    text: str, x: torch.Tensor, k: int, options: QuantizeOptions, table: tuple[torch.Tensor, int]
) -> Quantized:
    """What the kernel writes; rows of x may be several of k."""
    scheme = ActivationScheme.parse(text)
    source = number_format(x.dtype).name
    spec, code = ptx(text, source, k, options)
    numbers, limit = table
    rows = x.shape[0] if options.rows is RowSource.EVERY else numbers.numel()
    rows = rows * limit if options.rows is RowSource.COUNTS else rows
    out = Quantized.poisoned(scheme, rows, k)
    stored = stored_of(scheme)
    shape = spec.launch(Problem(m=rows), None)
    arguments = [
        bits_of(x).reshape(-1), x.shape[1], 0 if stored is None else stored.numpy(), 0, out.codes,
        out.scales, out.groups if scheme.group_size else 0, rows, k,
        numbers.numpy() if numbers.numel() else 0, limit,
    ]  # fmt: skip
    humming_sim.launch(code, spec.entry, shape.grid, shape.block, arguments)
    return out


NO_TABLE = torch.empty(0, dtype=torch.int32), 0


@cache
def gate_ptx(gating: Gating, source: str, whole: bool, native: bool) -> tuple[object, str]:
    arch = f"compute_{89 if native else 75}"
    spec = gate_spec(gating, number_format(source), RowMask.EVERY, whole, arch)
    return spec, ptx_of(program(spec, "ptx"))


def activated(gating: Gating, x: torch.Tensor, k: int, native: bool) -> torch.Tensor:
    """What the kernel of the function alone makes of rows."""
    spec, code = gate_ptx(gating, number_format(x.dtype).name, k % 8 == 0, native)
    out = torch.zeros(x.shape[0], k, dtype=x.dtype)
    written = bits_of(out).copy()
    shape = spec.launch(Problem(m=x.shape[0]), replace(layer_of(1), n=k))
    stride = x.shape[1] * x.element_size()
    arguments = [bits_of(x).reshape(-1), stride, written.reshape(-1), 0, 0, x.shape[0], k]
    humming_sim.launch(code, spec.entry, shape.grid, shape.block, arguments)
    return torch.from_numpy(written).view(x.dtype)


def inputs(gating: Gating, dtype: torch.dtype, k: int, seed: int) -> torch.Tensor:
    """Rows with everything that activations have, two of them to a row for a gate."""
    scheme = ActivationScheme.parse("s8-token-f32")
    x = sample(scheme, dtype, k, seed)
    if not gating.function.gated:
        return x
    up = sample(scheme, dtype, k, seed + 1).flip(0)
    if gating.interleaved:
        return torch.stack([x, up], dim=2).flatten(1)
    return torch.cat([x, up], dim=1)


def check_gating(text: str, gating: Gating, source: str, k: int, native: bool) -> None:
    x = inputs(gating, DTYPES[source], k, seed=len(text) + k)
    options = QuantizeOptions(native=native, gating=gating)
    middle = activated(gating, x, k, native)
    scheme = ActivationScheme.parse(text)
    found = quantized(text, x, k, options, NO_TABLE)
    found.check(Quantized.expected(middle, scheme, stored_of(scheme)))


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_gives_the_bits_of_two_kernels(name: str, native: bool) -> None:
    place = FUNCTIONS.index(name)
    source = list(DTYPES)[(place + native) % 3]
    text = ("e4m3fn-token-f32", "s8-token-f32", "e4m3fn-g32-f32", "e2m1-g16-e4m3fn-token")[
        place % 4
    ]
    check_gating(text, Gating.of(name), source, 136, native)


@pytest.mark.parametrize("name", INTERLEAVED)
def test_gates_and_ups_may_lie_in_turn(name: str) -> None:
    place = INTERLEAVED.index(name)
    source = list(DTYPES)[place % 3]
    text = ("s8-g64-f32", "e4m3fn-tensor-f32-static", "s4-token-f32")[place % 3]
    check_gating(text, Gating.of(name, interleaved=True), source, 136, native=place % 2 == 0)


@pytest.mark.parametrize("k", [9, 100, 1003])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rows_that_are_no_whole_octets_are_activated_one_by_one(k: int, interleaved: bool) -> None:
    gating = Gating.of("swiglu_oai", interleaved=interleaved)
    check_gating("e4m3fn-g32-e8m0", gating, "bf16", k, native=True)
    check_gating("s8-token-f32", gating, "f32", k, native=False)


@pytest.mark.parametrize("text", ["e4m3fn-token-f32", "s8-g128-f32"])
def test_rows_longer_than_a_tile_are_activated_twice(text: str) -> None:
    gating, scheme = Gating.of("swiglu"), ActivationScheme.parse(text)
    options = QuantizeOptions(native=True, gating=gating, tuning=QuantizeTuning(4, 64))
    x = inputs(gating, torch.bfloat16, 2056, seed=5)[[0, 4, 5, 7]]
    middle = activated(gating, x, 2056, native=True)
    found = quantized(text, x, 2056, options, NO_TABLE)
    found.check(Quantized.expected(middle, scheme, None))


def test_parameters_reach_the_kernel() -> None:
    gating = Gating.of("swiglu_oai", alpha=0.5, limit=1.25)
    check_gating("e4m3fn-token-f32", gating, "f16", 64, native=True)


# -- chosen rows -----------------------------------------------------------------------------------

#: Which rows are written, and from which row of x; 11 of them.
CHOICES = {
    RowSource.MAP: (
        torch.tensor([3, 3, -1, 10, 0, 11, 5, 2**31 - 1, 7, -(2**31), 3, 9, 1], dtype=torch.int32),
        11,
        [3, 3, None, 10, 0, None, 5, None, 7, None, 3, 9, 1],
    ),
    RowSource.IDS: (
        torch.tensor([0, 4, -1, 5, 2**31 - 1, 3, 1, -7, 0, 2, 4], dtype=torch.int32),
        5,
        [0, 1, None, None, None, 5, 6, None, 8, 9, 10],
    ),
    RowSource.IDS_64: (
        torch.tensor([0, 4, -1, 5, 2**32, 3, 1, -(2**40), 0, 2, 4], dtype=torch.int64),
        5,
        [0, 1, None, None, None, 5, 6, None, 8, 9, 10],
    ),
    RowSource.COUNTS: (
        torch.tensor([2, 0, 3], dtype=torch.int32),
        3,
        [0, 1, None, None, None, None, 6, 7, 8],
    ),
}


@pytest.mark.parametrize("text", ["e4m3fn-token-f32", "e4m3fn-g32-f32", "s4-token-f32"])
@pytest.mark.parametrize("k", [40, 1000])
@pytest.mark.parametrize("rows", CHOICES, ids=lambda rows: rows.name)
def test_chosen_rows_are_written_and_no_others(text: str, k: int, rows: RowSource) -> None:
    table, limit, sources = CHOICES[rows]
    scheme = ActivationScheme.parse(text)
    x = sample(scheme, torch.bfloat16, k, seed=2)[: limit * 3 if rows is RowSource.COUNTS else 11]
    out = quantized(text, x, k, QuantizeOptions(native=True, rows=rows), (table, limit))
    check_rows(out, x, scheme, sources)


def check_rows(
    out: Quantized, x: torch.Tensor, scheme: ActivationScheme, sources: list[int | None]
) -> None:
    """Rows of None still hold poison, others what their row of x becomes."""
    chosen = [row for row, source in enumerate(sources) if source is not None]
    others = [row for row, source in enumerate(sources) if source is None]
    rows = x[[sources[row] for row in chosen]]
    wanted = Quantized.expected(rows, scheme, stored_of(scheme))
    parts = {}
    for name, reference in vars(wanted).items():
        written = getattr(out, name)
        size = len(sources) * (reference.size // len(chosen))
        guard, table = written[size:], written[:size].reshape(len(sources), -1)
        assert (table[others].view(np.uint8) == POISON).all(), name
        parts[name] = np.concatenate([table[chosen].reshape(-1), guard])
    Quantized(**parts).check(wanted)


@pytest.mark.parametrize("rows", [RowSource.IDS, RowSource.MAP], ids=lambda rows: rows.name)
def test_chosen_rows_may_be_activated_too(rows: RowSource) -> None:
    gating, scheme = Gating.of("swiglu"), ActivationScheme.parse("e4m3fn-g128-f32")
    table, limit, sources = CHOICES[rows]
    x = inputs(gating, torch.bfloat16, 264, seed=1)
    options = QuantizeOptions(native=True, gating=gating, rows=rows)
    out = quantized("e4m3fn-g128-f32", x, 264, options, (table, limit))
    check_rows(out, activated(gating, x, 264, native=True), scheme, sources)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_120a"])
def test_fused_kernels_assemble_without_spills(arch: str) -> None:
    gating = Gating.of("geglu")
    for text, source in (("e4m3fn-token-f32", "bf16"), ("s8-g128-f32", "f16"),
                         ("e4m3fn-g32-e8m0", "f32")):  # fmt: skip
        options = QuantizeOptions(native=arch not in ("sm_75", "sm_80"), gating=gating)
        fmt = number_format(source)
        spec = quantize_spec(ActivationScheme.parse(text), fmt, 2048, arch, options)
        (usage,) = compile_program(program(spec, "cubin")).usage
        assert usage.spill_stores == usage.stack == 0
        assert usage.registers <= 128  # four CTAs of 128 threads


# -- Hadamard transforms ---------------------------------------------------------------------------


@pytest.mark.parametrize(("block", "native"), [
    (2, False), (4, True), (8, False), (16, True),
    (64, False), (128, True), (256, False), (512, True),
])  # fmt: skip
def test_transformed_rows_have_the_bits_of_two_steps(block: int, native: bool) -> None:
    number = block.bit_length() + native
    source = list(DTYPES)[number % 3]
    text = ("e4m3fn-token-f32", "s8-g64-f32", "s4-token-f32", "e4m3fn-tensor-f32-static",
            "e4m3fn-g512-f32")[number % 5]  # fmt: skip
    scheme, options = ActivationScheme.parse(text), QuantizeOptions(native=native, hadamard=block)
    for k in (block, 1536):
        x = sample(scheme, DTYPES[source], k, seed=block)
        found = quantized(text, x, k, options, NO_TABLE)
        found.check(Quantized.expected(hadamard(x, block), scheme, stored_of(scheme)))


@pytest.mark.parametrize("block", [32, 512])
def test_rows_that_begin_anywhere_are_transformed(block: int) -> None:
    text, k = "e4m3fn-g128-f32", 1024
    scheme = ActivationScheme.parse(text)
    x = torch.full((11, k + 3), torch.nan, dtype=torch.bfloat16)
    x[:, :k] = sample(scheme, torch.bfloat16, k)
    options = QuantizeOptions(native=True, hadamard=block)
    found = quantized(text, x, k, options, NO_TABLE)
    found.check(Quantized.expected(hadamard(x[:, :k], block), scheme, None))


def test_rows_are_activated_before_they_are_transformed() -> None:
    gating, scheme = Gating.of("swiglu"), ActivationScheme.parse("s8-token-f32")
    x = inputs(gating, torch.bfloat16, 512, seed=4)
    options = QuantizeOptions(native=True, gating=gating, hadamard=128)
    found = quantized("s8-token-f32", x, 512, options, NO_TABLE)
    middle = hadamard(activated(gating, x, 512, native=True), 128)
    found.check(Quantized.expected(middle, scheme, None))


@pytest.mark.parametrize(
    ("text", "k", "block", "error", "reason"),
    [
        ("s8-token-f32", 128, 48, ConfigError, "power of two"),
        ("s8-token-f32", 1024, 1024, ConfigError, "power of two"),
        ("s8-token-f32", 96, 64, ConfigError, "multiple of 64"),
        ("s8-g48-f32", 192, 64, UnsupportedError, "power of two"),
    ],
)
def test_transforms_that_no_kernel_does_are_refused(
    text: str, k: int, block: int, error: type[Exception], reason: str
) -> None:
    options = QuantizeOptions(hadamard=block)
    with pytest.raises(error, match=reason):
        quantize_spec(ActivationScheme.parse(text), number_format("f16"), k, "compute_75", options)
