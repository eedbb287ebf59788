"""The quantizing kernel gives, bit for bit, what humming.activations.quantize_rows gives."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from quantize_cases import (
    STORED,
    Quantized,
    below,
    midpoints,
    program,
    ptx_of,
    sample,
    stored_of,
)

import humming_sim
from humming.backend import Problem
from humming.errors import ConfigError, UnsupportedError
from humming.formats.activation import ActivationScheme
from humming.formats.number import NumberFormat
from humming.formats.table import number_format
from humming.jit import compile_program
from humming.quantizer import (
    QuantizeOptions,
    QuantizeTuning,
    quantize_refusal,
    quantize_spec,
    quantize_tunings,
    row_sizes,
)

pytestmark = pytest.mark.compile

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
#: Codes of all kinds, scales of all formats; the source formats take turns.
SCHEMES = [
    "s8-token-f32", "s4-token-f32", "e4m3fn-token-f32", "e5m2-token-f32", "e0m3-token-f32",
    "s8-token-f16", "e4m3fn-token-bf16", "e4m3fn-token-e8m0", "s4-token-e4m3fn", "s6-token-f32",
    "e3m4-token-e5m2", "e4m3fn-token-e5m3",
    "s8-tensor-f32-static", "e4m3fn-tensor-f32-static", "e5m2-tensor-bf16-static",
    "s4-tensor-e4m3fn-static",
    "s8-g128-f32", "e4m3fn-g128-f32", "e4m3fn-g32-e8m0", "e5m2-g64-f16", "s4-g16-f32",
    "e2m1-g32-e8m0", "e2m3-g16-e5m2", "s8-g48-f32", "s8-g256-bf16", "e4m3fn-g512-f32",
    "s8-g1024-e8m0", "e3m2-g96-f32", "s4-g24-f16",
    "e2m1-g16-e4m3fn-token", "e2m1-g16-e4m3fn-tensor-static", "e4m3fn-g128-e8m0-token",
    "s8-g64-f32-token", "e4m3fn-g32-e5m3-token", "s8-g16-f16-tensor-static",
]  # fmt: skip


NATIVE = QuantizeOptions(native=True)


@cache
def spec_of(
    text: str, source: NumberFormat, k: int, options: QuantizeOptions = NATIVE, arch: str = ""
):
    arch = arch or f"compute_{89 if options.native else 75}"
    return quantize_spec(ActivationScheme.parse(text), source, k, arch, options)


@cache
def ptx(text: str, source: NumberFormat, k: int, options: QuantizeOptions) -> str:
    return ptx_of(program(spec_of(text, source, k, options), "ptx"))


def check(  # budget: what a launch has
    text: str,
    buffer: torch.Tensor,
    k: int,
    *,
    first: int = 0,
    stored: torch.Tensor | None = None,
    seed: int | None = None,
    options: QuantizeOptions = NATIVE,
) -> None:
    """Compare for the rows of k numbers, from `first` on, of a whole buffer [rows, stride]."""
    scheme = ActivationScheme.parse(text)
    source = number_format(buffer.dtype)
    # Of all k the compiled kernel is the same, as long as a row has as many threads.
    spec = spec_of(text, source, k, options)
    rows, stride = buffer.shape
    if scheme.static and stored is None:
        stored = stored_of(scheme)
    step = 0 if stored is None or len(stored) == 1 else 1
    x = buffer[:, first : first + k]
    out = Quantized.poisoned(scheme, rows, k)
    groups = out.groups if scheme.group_size else 0
    scales = 0 if stored is None else stored
    flat = buffer.reshape(-1)[first:].clone()  # a buffer begins at a multiple of 16 bytes
    arguments = [flat, stride, scales, step, out.codes, out.scales, groups, rows, k, 0, 0]
    shape = spec.launch(Problem(m=rows), None)
    humming_sim.launch(
        ptx(text, source, k, options), spec.entry, shape.grid, shape.block, arguments, seed=seed
    )
    out.check(Quantized.expected(x, scheme, stored))


@pytest.mark.parametrize("number", range(len(SCHEMES)), ids=SCHEMES)
def test_codes_and_scales_are_those_of_the_reference(number: int) -> None:
    text, dtype = SCHEMES[number], list(DTYPES.values())[(number + number // 3) % 3]
    scheme = ActivationScheme.parse(text)
    for place, k in enumerate(((104, 48), (1000,), (100, 40))[number % 3]):
        options = QuantizeOptions(native=(number + place) % 2 == 0)
        check(text, sample(scheme, dtype, k, number), k, options=options)


@pytest.mark.parametrize("text", ["s8-token-f32", "e4m3fn-token-f32", "s4-token-f32",
                                  "e4m3fn-g128-f32", "e2m1-g16-e4m3fn-token"])  # fmt: skip
@pytest.mark.parametrize("source", DTYPES)
def test_every_source_format_is_read(text: str, source: str) -> None:
    scheme = ActivationScheme.parse(text)
    check(text, sample(scheme, DTYPES[source], 264, seed=7), 264)


@pytest.mark.parametrize("text", ["e4m3fn-token-f32", "s8-g1024-e8m0", "e5m2-tensor-f32-static"])
def test_rows_of_several_warps_in_any_order(text: str) -> None:
    scheme = ActivationScheme.parse(text)
    x = sample(scheme, torch.bfloat16, 4096, seed=3)
    check(text, x[[0, 4, 7]], 4096, seed=1)


@pytest.mark.parametrize(("text", "native"), [
    ("s8-token-f32", False), ("e4m3fn-g48-f32", True), ("e4m3fn-g48-f32", False),
    ("s4-tensor-f32-static", True), ("e2m1-g16-e4m3fn-token", False),
])  # fmt: skip
def test_rows_longer_than_a_tile_are_read_twice(text: str, native: bool) -> None:
    scheme = ActivationScheme.parse(text)
    options = QuantizeOptions(native=native, tuning=QuantizeTuning(4, 64))
    for k in (4504, 2056):
        spec = spec_of(text, number_format("f16"), k, options)
        assert spec.name.endswith("_64x4x4_tiles")
        x = sample(scheme, torch.float16, k, seed=k)[[0, 3, 4, 8, 9]]
        check(text, x, k, options=options)


TUNED = ("e4m3fn-token-f32", "e4m3fn-g128-f32", "s8-token-f32", "s8-g256-f32",
         "e5m2-tensor-f32-static")  # fmt: skip


@pytest.mark.parametrize("number", range(len(TUNED)), ids=TUNED)
def test_every_tuning_gives_the_same(number: int) -> None:
    """Each of them with two schemes at least; every other one uses instructions of new devices."""
    scheme, source = ActivationScheme.parse(TUNED[number]), ("bf16", "f32")[number % 2]
    x = sample(scheme, DTYPES[source], 776, seed=1)
    tunings = list(quantize_tunings(scheme, number_format(source), 776))
    for place, tuning in enumerate(tunings[number // 2 % 2 :: 2]):
        options = QuantizeOptions(native=(place + number) % 2 == 0, tuning=tuning)
        check(TUNED[number], x, 776, options=options)


@pytest.mark.parametrize("text", ["s8-token-f32", "e4m3fn-g32-f32"])
@pytest.mark.parametrize(("stride", "first"), [(104, 0), (107, 0), (112, 8), (112, 3)])
def test_rows_may_begin_anywhere(text: str, stride: int, first: int) -> None:
    scheme = ActivationScheme.parse(text)
    rows = torch.full((9, stride), torch.nan, dtype=torch.float16)
    rows[:, first : first + 100] = sample(scheme, torch.float16, 100)[:9]
    check(text, rows, 100, first=first)


@pytest.mark.parametrize("text", ["s8-tensor-f32-static", "e2m1-g16-e4m3fn-tensor-static"])
def test_each_row_may_have_a_stored_scale_of_its_own(text: str) -> None:
    scheme = ActivationScheme.parse(text)
    x = sample(scheme, torch.float32, 100)
    check(text, x, 100, stored=stored_of(scheme, len(x)))


@pytest.mark.parametrize("stored", [0.0, 1e-45, 1e-39, 3e38, np.inf, np.nan, STORED])
@pytest.mark.parametrize("text", ["s8-tensor-f32-static", "e4m3fn-tensor-f16-static",
                                  "e4m3fn-g32-f32-tensor-static",
                                  "s4-g16-e4m3fn-tensor-static"])  # fmt: skip
def test_no_stored_scale_leads_to_other_bits(text: str, stored: float) -> None:
    scheme = ActivationScheme.parse(text)
    x = sample(scheme, torch.float32, 100)
    check(text, x, 100, stored=torch.tensor([stored]))


def hardest_quotients(scheme: ActivationScheme) -> tuple[torch.Tensor, torch.Tensor]:
    """Dividends [n] and divisors [n], f32: quotients as near as they can be to what is half way
    between a tie and its neighbour in f32, where one rounding of f32 decides on the code."""
    ties = np.frexp(midpoints(scheme).double().abs().unique().numpy())[0]
    found = []
    for tie in set(ties.tolist()):
        for beside in (-1, 1):
            middle = int(tie * 2**25) + beside  # 25 bits, odd
            for off in (-1, 1):
                divisor = off * pow(middle, -1, 2**25) % 2**25
                if divisor >= 2**24:
                    continue  # of 25 bits
                product = middle * divisor - off
                assert product % 2**25 == 0
                found.append((product / 2**25, divisor))
    numbers = torch.tensor(found, dtype=torch.float64)
    assert (numbers.float().double() == numbers).all()
    return numbers[:, 0].float(), numbers[:, 1].float()


@pytest.mark.parametrize("text", ["s8-tensor-f32-static", "e4m3fn-tensor-f32-static",
                                  "e2m3-tensor-f32-static", "e2m1-tensor-f32-static"])  # fmt: skip
def test_quotients_are_rounded_once_before_they_become_codes(text: str) -> None:
    scheme = ActivationScheme.parse(text)
    x, divisors = hardest_quotients(scheme)
    # Powers of two more reach every tie of these quotients.
    powers = 2.0 ** torch.arange(-8, 8)
    check(text, x[:, None] * powers, len(powers), stored=divisors)


@pytest.mark.parametrize("text", ["s8-tensor-f32-static", "e4m3fn-tensor-f32-static",
                                  "e2m1-tensor-f32-static"])  # fmt: skip
def test_divisors_just_below_a_power_of_two_are_no_exception(text: str) -> None:
    divisors = torch.nextafter(2.0 ** torch.arange(-4, 5), torch.zeros(9))
    powers = 2.0 ** torch.arange(-20, 12)
    x = torch.cat([powers, -powers]).expand(9, -1).contiguous()
    for dtype in DTYPES.values():
        check(text, x.to(dtype), 64, stored=divisors)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_pairs_of_numbers_become_the_codes_of_each(dtype: torch.dtype) -> None:
    """Under a run of eight powers of two, as it matters which of eight it is, and at the ends."""
    powers = [-24, -16, -15, 12] if dtype == torch.float16 else [*range(-3, 5), -55, 57]
    peaks = (6 * 2.0 ** torch.tensor(powers, dtype=torch.float64)).to(dtype)
    x = below(peaks, 32, 5)
    check("e2m1-g32-e8m0", x, x.shape[1])


@pytest.mark.parametrize("stored", [STORED, 2.0**-17, 2.0**-26, 2.0**-38])
@pytest.mark.parametrize("source", DTYPES)
def test_numbers_far_beyond_the_largest_code_become_that(source: str, stored: float) -> None:
    """Also under divisors that f16 has no number near to, and where all numbers are that large."""
    x = torch.randn(6, 64) * 4.0 ** torch.arange(-12, 12, 4)[:, None]
    x[:, 3::5] = 2.0**-24
    x[:, 16:32] = 0.0
    x = torch.where(torch.arange(64) % 7 == 0, x.abs().clamp(max=6e4) * -1, x)
    for text in ("e2m1-g16-e4m3fn-tensor-static", "e2m1-tensor-f32-static"):
        check(text, x.clamp(-6e4, 6e4).to(DTYPES[source]), 64, stored=torch.tensor([stored]))


@pytest.mark.parametrize("rows", range(1, 10))
def test_any_number_of_rows(rows: int) -> None:
    scheme = ActivationScheme.parse("s8-g32-f32")
    check("s8-g32-f32", sample(scheme, torch.bfloat16, 100)[:rows].contiguous(), 100)


def test_a_wrong_code_a_wrong_scale_and_a_write_behind_the_end_are_found() -> None:
    scheme = ActivationScheme.parse("s4-g32-f32")
    x = sample(scheme, torch.float32, 100)
    wanted = Quantized.expected(x, scheme, None)
    for name in ("codes", "scales", "groups"):
        for place in (0, -1):
            out = Quantized.poisoned(scheme, len(x), 100)
            for part, values in vars(wanted).items():
                getattr(out, part)[: values.size] = values.reshape(-1)
            out.check(wanted)
            getattr(out, name).view(np.uint8)[place] ^= 1
            with pytest.raises(AssertionError, match=name):
                out.check(wanted)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("bf16", "not quantized"),
        ("s8-tensor-f32", "pass over all of them"),
        ("e2m1-g16-e4m3fn-tensor", "pass over all of them"),
        ("e4m3fnuz-token-f32", "no kernel"),
        ("s8-g20-f32", "multiple of 8"),
        ("s8-g320-f32", "power of two"),
        ("s8-g2048-f32", "at most 1024"),
    ],
)
def test_what_the_kernel_does_not_do_is_refused(text: str, reason: str) -> None:
    scheme = ActivationScheme.parse(text)
    said = quantize_refusal(scheme)
    assert said is not None
    assert reason in said
    with pytest.raises(UnsupportedError, match=reason):
        quantize_spec(scheme, number_format("f16"), 128, "compute_75")


def test_sizes_and_launches() -> None:
    parse = ActivationScheme.parse
    assert row_sizes(parse("s8-token-f32"), 100) == (112, 0)
    assert row_sizes(parse("s4-g32-f32"), 97) == (64, 4)
    spec = spec_of("s8-token-f32", number_format("f16"), 4096)
    shape = spec.launch(Problem(m=7), None)
    assert (shape.grid, shape.block) == ((4, 1, 1), (256, 1, 1))
    assert spec.launch(Problem(m=7), None) is shape
    small = spec_of("s8-token-f32", number_format("f16"), 100).launch(Problem(m=7), None)
    assert (small.grid, small.block) == ((1, 1, 1), (256, 1, 1))
    with pytest.raises(ConfigError, match="rows"):
        spec.launch(Problem(m=0), None)
    with pytest.raises(ConfigError, match="k"):
        quantize_spec(parse("s8-token-f32"), number_format("f16"), 0, "compute_75")
    with pytest.raises(ConfigError, match="source"):
        quantize_spec(parse("s8-token-f32"), number_format("e5m2"), 8, "compute_75")


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_120a"])
def test_kernels_assemble_without_spills(arch: str) -> None:
    for text, source, k in (
        ("s8-token-f32", "f32", 30000),
        ("e4m3fn-g128-f32", "bf16", 4096),
        ("e2m1-g16-e4m3fn-tensor-static", "f16", 2880),
    ):
        options = QuantizeOptions(native=arch not in ("sm_75", "sm_80"))
        spec = spec_of(text, number_format(source), k, options, arch)
        (usage,) = compile_program(program(spec, "cubin")).usage
        assert usage.kernel == "quantize_rows"
        assert usage.spill_stores == usage.stack == 0
        assert usage.registers <= (64 if options.native else 96)


# -- how rows are spread -----------------------------------------------------------------------


@pytest.mark.parametrize("k", [2048, 4096, 7168, 14336, 53248])
@pytest.mark.parametrize("source", DTYPES)
def test_ctas_are_large_enough_to_be_started_in_time(k: int, source: str) -> None:
    """An H200 starts some 270 of them in a microsecond: small ones would take longer to start than
    to read their rows."""
    for text in SCHEMES:
        scheme = ActivationScheme.parse(text)
        if quantize_refusal(scheme) is None:
            shape = spec_of(text, number_format(source), k).launch(Problem(m=8192), None)
            assert shape.block[0] > 128, (text, shape)


def test_a_thread_has_more_where_codes_take_much_computing() -> None:
    static = "e2m1-g16-e4m3fn-tensor-static"
    for text, source, short, long in (
        ("e4m3fn-g32-e8m0", "bf16", "128x4x2", "448x4"),
        ("e4m3fn-g32-e8m0", "f32", "128x4x2", "448x4"),
        ("e2m1-g32-e8m0", "bf16", "128x4x2", "224x8"),
        ("e2m1-g16-e4m3fn-token", "bf16", "64x8x4", "224x8"),
        (static, "bf16", "128x4x2", "224x8"),
        (static, "f16", "64x8x4", "224x8"),
    ):
        for k, name in ((4096, short), (14336, long)):
            assert spec_of(text, number_format(source), k).name.endswith(f"_{name}")


def test_only_rows_with_one_scale_are_kept_whole_whatever_their_length() -> None:
    for text, name in (("e4m3fn-g128-f32", "256x4_tiles"), ("e4m3fn-token-f32", "832x8")):
        assert spec_of(text, number_format("bf16"), 53248).name.endswith(f"_{name}")
