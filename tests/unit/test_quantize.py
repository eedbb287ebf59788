"""quantize(): nearest codes under the right scales, for every scheme that has a name."""

from __future__ import annotations

import math

import core_oracle as oracle
import numpy as np
import pytest
import torch

from humming import quantize as _function
from humming.errors import ConfigError
from humming.formats.scheme import SCHEME_ALIASES, WeightScheme, Zero
from humming.quantizing import quantize
from humming.weight import CanonicalWeight

assert _function is quantize
N, K = 6, 72  # a partial group in every named group size, partial blocks in both directions
UNNAMED = ["u4+z-g32-f16", "u3+z-channel-bf16", "u8+z-b4x16-f32", "u2+z-g16-e4m3fn", "u5-g48-e5m2",
           "s4-g16-bf16", "s5+zf-g32-f32", "e0m3-g16-e4m3fn-channel", "e3m4-g16-e5m3-tensor",
           "s8-tensor-f32-channel", "e4m3fn-b4x16-e8m0"]  # fmt: skip
EVERY = [*SCHEME_ALIASES, *UNNAMED]
MANTISSA = {"e8m0": 0, "e4m3fn": 3, "e5m2": 2, "e5m3": 3, "f16": 10, "bf16": 7, "f32": 23}


def sample(n: int = N, k: int = K, seed: int = 0) -> torch.Tensor:
    weight = oracle.realistic_weights(n, k, seed)
    weight[:, ::17] *= 9
    return weight


def blocks_of(weight: CanonicalWeight, numbers: torch.Tensor):
    """(row block, column block, the numbers in it) of an [N, K] matrix."""
    bn, bk = weight.scheme.granularity.extent(weight.n, weight.k)
    for r, top in enumerate(range(0, weight.n, bn)):
        for c, left in enumerate(range(0, weight.k, bk)):
            yield r, c, numbers[top : top + bn, left : left + bk].double().numpy()


def scale_of(weight: CanonicalWeight, r: int, c: int) -> float:
    item = weight.scales[r, c].item()
    name = weight.scheme.scale.name
    return float(item) if MANTISSA[name] >= 7 else oracle.value(name, int(item))


def grid_of(weight: CanonicalWeight, r: int, c: int) -> np.ndarray:
    """All values that a weight of this block can have (before the second-level scale)."""
    scheme = weight.scheme
    values = np.array([v for v in oracle.all_values(scheme.code) if math.isfinite(v)])
    scale = scale_of(weight, r, c)
    if scheme.zero is Zero.FLOAT:
        return np.sort(values * scale + weight.zeros[r, c].item())
    zero = weight.zeros[r, c].item() if scheme.zero is Zero.INTEGER else 0
    middle = (
        2 ** (scheme.code.bits - 1) if scheme.code.name[0] == "u" and not scheme.zero.value else 0
    )
    return np.sort((values - zero - middle) * scale)


def under_second(weight: CanonicalWeight, numbers: torch.Tensor) -> torch.Tensor:
    return numbers if weight.second is None else (numbers.double() / weight.second.double())


@pytest.mark.parametrize("text", EVERY)
def test_every_weight_gets_the_nearest_value_of_its_block(text):
    numbers = sample()
    weight = quantize(numbers, text)
    inner = under_second(weight, numbers)
    found = under_second(weight, weight.dequantize(torch.float64))
    pairs = zip(blocks_of(weight, inner), blocks_of(weight, found), strict=True)
    for (r, c, wanted), (_, _, got) in pairs:
        grid = grid_of(weight, r, c)
        nearest = np.abs(wanted[..., None] - grid).min(axis=-1)
        assert np.all(np.abs(wanted - got) <= nearest + 1e-6 * np.abs(grid).max())


@pytest.mark.parametrize("text", EVERY)
def test_no_error_exceeds_half_a_step_and_what_rounding_the_scale_costs(text):
    numbers = sample(seed=1)
    weight = quantize(numbers, text)
    scheme = weight.scheme
    inner = under_second(weight, numbers)
    found = under_second(weight, weight.dequantize(torch.float64))
    pairs = zip(blocks_of(weight, inner), blocks_of(weight, found), strict=True)
    for (r, c, wanted), (_, _, got) in pairs:
        scale = scale_of(weight, r, c)
        grid = grid_of(weight, r, c) / scale
        half_step = np.diff(grid).max() / 2
        # The scale is off by half a unit in its last place at most (e8m0: only upwards), which
        # the largest magnitude feels in full; a float zero point is rounded likewise.
        unit = 0.0 if scheme.scale.name == "e8m0" else 2.0 ** -(MANTISSA[scheme.scale.name] + 1)
        if scheme.scale.bits == 8 and unit and scale < 2.0**-6:  # e4m3fn subnormal
            unit = 2.0**-10 / scale
        reach = np.abs(grid).max() if scheme.zero is not Zero.INTEGER else np.ptp(grid)
        bound = half_step + 1.01 * unit * (reach + 1) + 1e-5
        if scheme.zero is Zero.FLOAT:
            bound += unit * np.ptp(grid)
        if scheme.code.bits == 1:  # {-1, 0}: half of the line has no value near
            wanted, got = wanted[wanted <= 0], got[wanted <= 0]
        assert np.all(np.abs(wanted - got) <= bound * scale)


@pytest.mark.parametrize("text", EVERY)
def test_scales_map_the_largest_magnitude_onto_the_largest_code(text):
    numbers = sample(seed=2)
    weight = quantize(numbers, text)
    scheme = weight.scheme
    top = max(v for v in oracle.all_values(scheme.code) if math.isfinite(v))
    if scheme.code.is_integer:
        steps = 2**scheme.code.bits - 1
        top = 1.0 if scheme.code.bits == 1 else steps / 2
    for r, c, block in blocks_of(weight, under_second(weight, numbers)):
        wanted = np.abs(block).max() / top
        if scheme.zero is not Zero.NONE:
            ends = (block.min(), block.max())
            if scheme.zero is Zero.INTEGER:
                ends = (min(ends[0], 0), max(ends[1], 0))
            wanted = (ends[1] - ends[0]) / steps
        scale = scale_of(weight, r, c)
        if scheme.scale.name == "e8m0":
            assert wanted * (1 - 1e-6) <= scale < 2 * wanted
        elif scheme.scale.bits == 8 and wanted < 2.0**-6:  # subnormal: an absolute step
            assert abs(scale - wanted) <= 2.0**-10
        else:
            assert scale == pytest.approx(
                wanted, rel=2.0 ** -(MANTISSA[scheme.scale.name] + 1) + 1e-6
            )


@pytest.mark.parametrize("text", ["nvfp4", "e0m3-g16-e4m3fn-channel", "e3m4-g16-e5m3-tensor"])
def test_a_second_level_puts_the_largest_scale_at_the_top_of_its_format(text):
    weight = quantize(sample(), text)
    scales = torch.tensor([[scale_of(weight, r, c) for c in range(weight.scales.shape[1])]
                           for r in range(N)])  # fmt: skip
    rows = scales.amax(dim=1) if text.endswith("channel") else scales.amax().reshape(1)
    assert (rows == weight.scheme.scale.max).all()


@pytest.mark.parametrize("text", EVERY)
def test_zero_rows_and_zero_blocks_stay_exactly_zero(text):
    numbers = sample()
    numbers[1] = 0
    numbers[:, 32:64] = 0
    numbers[2] = -0.0
    weight = quantize(numbers, text)
    found = weight.dequantize(torch.float64)
    if weight.scheme.zero is not Zero.FLOAT:
        assert not found[numbers == 0].any()
    elif weight.scheme.granularity.k == 32:
        assert not found[:, 32:64].any()
    everything = quantize(torch.zeros(N, K), text)
    assert not everything.dequantize().any()
    assert all(scale_of(everything, r, c) == 1 for r, c, _ in blocks_of(everything, numbers))


@pytest.mark.parametrize("text", [t for t in EVERY if not WeightScheme.parse(t).second.value])
def test_every_block_is_quantized_as_if_it_were_alone(text):
    numbers = sample(seed=4)
    whole = quantize(numbers, text).dequantize()
    weight = quantize(numbers, text)
    bn, bk = weight.scheme.granularity.extent(N, K)
    for top in range(0, N, bn):
        for left in range(0, K, bk):
            alone = quantize(numbers[top : top + bn, left : left + bk], text).dequantize()
            assert torch.equal(whole[top : top + bn, left : left + bk], alone)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_dtypes_are_read_as_they_are(dtype):
    numbers = sample().to(dtype)
    for text in ("u4-g32-f16", "nvfp4", "u4+z-g32-f16"):
        a, b = quantize(numbers, text), quantize(numbers.to(torch.float32), text)
        assert all(
            torch.equal(x, y) for (_, x), (_, y) in zip(a.tensors(), b.tensors(), strict=True)
        )


@pytest.mark.parametrize("text", ["u4-g32-bf16", "nvfp4", "u4+zf-g32-f16", "fp8-block", "bitnet"])
def test_experts_are_quantized_each_on_its_own(text):
    numbers = torch.stack([sample(seed=s) * 4.0**s for s in range(3)])
    bias = torch.randn(3, N)
    stacked = quantize(numbers, text, bias=bias)
    assert stacked.shape == (3, N, K)
    assert torch.equal(stacked.bias, bias)
    for e in range(3):
        assert torch.equal(stacked.expert(e).dequantize(), quantize(numbers[e], text).dequantize())


@pytest.mark.parametrize(
    "text",
    [
        "u2-g16-f16",
        "u3+z-g32-f16",
        "u2+zf-g32-f32",
        "nvfp4",
        "s4-channel-f32",
        "fp8-block",
        "e2m1-g48-bf16",
    ],
)
def test_mse_clipping_is_never_worse_in_any_block_and_often_better(text):
    numbers = oracle.realistic_weights(40, K, seed=7)
    numbers = numbers.abs() + 1 if "+zf" in text else numbers  # zero is far from this data
    plain, searched = quantize(numbers, text), quantize(numbers, text, clip="mse")
    errors = [
        [np.square(b).sum() for _, _, b in blocks_of(w, w.dequantize(torch.float64) - numbers)]
        for w in (plain, searched)
    ]
    assert all(best <= worst * (1 + 1e-6) for worst, best in zip(*errors, strict=True))
    if text[0] != "f":
        assert sum(errors[1]) < 0.999 * sum(errors[0])


@pytest.mark.parametrize(
    "text",
    ["mxfp4", "mxfp6-e2m3", "mxfp6-e3m2", "mxfp8", "mxfp8-e5m2", "e4m3fn-channel-bf16",
     "e4m3fn-b4x16-f16", "e2m1-g32-f16", "e0m5-g16-bf16", "u4+z-g32-f16", "u3+z-g16-bf16"],
)  # fmt: skip
def test_quantizing_what_was_quantized_changes_no_value(text):
    once = quantize(sample(), text).dequantize()
    assert torch.equal(quantize(once, text).dequantize(), once)


@pytest.mark.parametrize("sign", [1, -1])
def test_data_on_one_side_of_zero_is_within_half_a_step(sign):
    numbers = sign * torch.linspace(3, 5, 32).view(2, 16)
    for text, steps in (("u4+z-g16-f32", 15), ("u3+z-channel-f32", 7)):
        found = quantize(numbers, text).dequantize()
        assert float((found - numbers).abs().max()) <= 5 / steps / 2 * (1 + 1e-5)
        narrow = quantize(numbers, text.replace("+z", "+zf")).dequantize()
        assert float((narrow - numbers).abs().max()) <= 2 / steps / 2 * (1 + 1e-5)


def test_the_missing_part_of_a_partial_group_takes_no_part_in_mse_clipping():
    numbers = 10 + oracle.realistic_weights(40, 8, seed=3)
    partial = quantize(numbers, "u2+zf-g32-f32", clip="mse")
    whole = quantize(numbers, "u2+zf-g8-f32", clip="mse")
    assert torch.equal(partial.dequantize(), whole.dequantize())
    assert not torch.equal(whole.dequantize(), quantize(numbers, "u2+zf-g8-f32").dequantize())


def test_ties_go_to_even_values_also_under_a_zero_point():
    numbers = torch.tensor([[7.5, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -7.5]])
    assert quantize(numbers, "u4-channel-f32").dequantize().tolist() == [
        [7, 0, 2, 2, 0, -2, -2, -8]
    ]
    shifted = torch.tensor([[-5.0, 10.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5]])
    assert quantize(shifted, "u4+z-channel-f32").dequantize().tolist() == [
        [-5, 10, 0, 2, 2, 0, -2, -2]
    ]


@pytest.mark.parametrize(
    "text", ["u4-g16-f16", "nvfp4", "fp8-block", "s4-g8-e4m3fn-channel", "fp8"]
)
def test_long_work_goes_in_chunks_that_change_nothing_and_report_progress(text, monkeypatch):
    numbers = sample(300, 16)
    whole = quantize(numbers, text)
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr("humming.quantizing._CHUNK_BYTES", 16 * 4 * 70)
    chunked = quantize(numbers, text, progress=lambda done, total: calls.append((done, total)))
    for (_, a), (_, b) in zip(whole.tensors(), chunked.tensors(), strict=True):
        assert torch.equal(a, b)
    assert calls[-1] == (300, 300)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    assert (len(calls) > 1) == (text != "fp8")  # one scale for all of it: one chunk


def test_progress_counts_the_rows_of_all_experts():
    calls: list[tuple[int, int]] = []
    numbers = sample(8, 16).view(4, 2, 16)
    quantize(numbers, "u4-g16-f16", progress=lambda done, total: calls.append((done, total)))
    assert calls == [(2, 8), (4, 8), (6, 8), (8, 8)]


@pytest.mark.parametrize(
    ("numbers", "scheme", "options", "message"),
    [
        (torch.ones(4, 8), "u4", {}, "CODE[+z|+zf]-GRANULARITY-SCALE"),
        (torch.ones(4, 8), None, {}, "CODE[+z|+zf]-GRANULARITY-SCALE"),
        (torch.ones(4, 8), "u4-g8-f16", {"clip": "best"}, "'max' or 'mse'"),
        (torch.ones(8), "u4-g8-f16", {}, "a float tensor [N, K] or [E, N, K]"),
        (torch.ones(1, 2, 3, 8), "u4-g8-f16", {}, "a float tensor [N, K] or [E, N, K]"),
        (torch.ones(4, 8, dtype=torch.int8), "u4-g8-f16", {}, "a float tensor [N, K]"),
        (torch.full((4, 8), torch.nan), "u4-g8-f16", {}, "finite float32 values"),
        (torch.full((2, 4, 8), -torch.inf), "u4-g8-f16", {}, "finite float32 values"),
        (torch.full((4, 8), 1e39, dtype=torch.float64), "fp8", {}, "finite float32 values"),
        (torch.ones(0, 8), "u4-g8-f16", {}, "at least one row and one column"),
        (torch.ones(4, 0), "fp8", {}, "at least one row and one column"),
        (torch.ones(0, 4, 8), "u4-g8-f16", {}, "at least one row and one column"),
        (torch.full((4, 8), 1e6), "u4-g8-f16", {}, "at most 6.55e+04 for u4-g8-f16"),
        (torch.full((4, 8), 3000.0), "e2m1-g8-e4m3fn", {}, "at most 448 for e2m1-g8-e4m3fn"),
        (torch.full((4, 8), 1e5), "u4+zf-g8-f16", {}, "at most 6.55e+04 for u4+zf-g8-f16"),
        (torch.ones(4, 8), "u4-g8-f16", {"bias": torch.ones(8)}, "[4] for u4-g8-f16"),
    ],
)  # fmt: skip
def test_what_cannot_be_quantized_is_refused(numbers, scheme, options, message):
    with pytest.raises(ConfigError) as caught:
        quantize(numbers, scheme, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["nvfp4", "e2m1-g16-e4m3fn-channel", "mxfp4", "u4-g16-f16", "fp8"])
@pytest.mark.parametrize("size", [1e-30, 1e-9, 1e3])
def test_very_small_and_very_large_weights_stay_finite(text, size):
    numbers = sample() * size
    found = quantize(numbers, text).dequantize(torch.float64)
    assert torch.isfinite(found).all()
    if text == "fp8" or (size == 1e3 and text != "u4-g16-f16"):
        assert oracle.relative_errors(found, numbers.double())[0] < 0.2
