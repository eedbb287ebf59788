"""Quantization of activations against a scalar float64 reference, and degenerate data (T15)."""

from __future__ import annotations

import math

import core_oracle as oracle
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from humming.activations import quantize_activation
from humming.errors import ConfigError
from humming.formats.activation import ActivationScheme

M, K = 5, 100  # K is no multiple of any group
SCHEMES = ["s8-token-f32", "s4-token-f16", "s8-tensor-f32", "s8-tensor-f32-static", "s6-g32-bf16",
           "e4m3fn-token-f32", "e5m2-tensor-bf16", "e4m3fn-tensor-f32-static", "e4m3fn-g128-f32",
           "e4m3fn-g32-e8m0", "e2m1-g32-e8m0", "e2m3-g32-e8m0", "e3m2-g48-f32",
           "e2m1-g16-e4m3fn-token", "e2m1-g16-e4m3fn-tensor", "e2m1-g16-e4m3fn-tensor-static",
           "e0m3-g16-e4m3fn-token", "e0m3-token-f32", "e3m4-g32-e5m3-token", "e4m3fnuz-token-f32",
           "e2m1-g16-e5m2", "e1m2-g16-f16", "s8-g64-e8m0-token"]  # fmt: skip
STORED = 0.05


def sample(m: int = M, k: int = K, seed: int = 0) -> torch.Tensor:
    return oracle.realistic_activations(m, k, seed)


def quantized(x: torch.Tensor, text: str):
    scheme = ActivationScheme.parse(text)
    stored = torch.tensor(STORED) if scheme.static else None
    return quantize_activation(x, scheme, stored)


# -- the reference: one number at a time -------------------------------------------------------


def grid(name: str) -> np.ndarray:
    bits = int(name[1]) if name[0] == "s" else 1 + int(name[1]) + int(name[3])
    values = {v for v in (oracle.value(name, c) for c in range(1 << bits)) if math.isfinite(v)}
    if name[0] == "s":
        values.remove(min(values))  # the range is symmetric
    return np.array(sorted(values))


def stored_scale(wanted: float, name: str) -> float:
    """A positive scale in its format; never zero."""
    if name == "f32":
        return wanted or 1.0
    if name in ("f16", "bf16"):
        dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[name]
        return torch.tensor(wanted or 1.0).to(dtype).double().item()
    if name == "e8m0":
        return 2.0 ** math.ceil(math.log2(wanted)) if wanted else 1.0
    values = [oracle.value(name, code) for code in range(1, 128 if name != "e5m3" else 256)]
    values = [v for v in values if math.isfinite(v)]
    return min(values, key=lambda v: abs(v - wanted))


def reference(x: torch.Tensor, text: str) -> np.ndarray:
    """What the activations become, in float64."""
    name, granularity, scale_name, *rest = text.removesuffix("-static").split("-")
    static, numbers = text.endswith("-static"), x.double().numpy()
    points = grid(name)
    top = points.max()
    scale_top = {"e4m3fn": 448.0, "e5m3": 114688.0, "e5m2": 57344.0}.get(scale_name, 1.0)
    out = np.zeros_like(numbers)
    for i, row in enumerate(numbers):
        outer = numbers if "tensor" in (granularity, *rest) else row
        largest = np.abs(outer).max()
        second = 1.0
        if rest:
            second = STORED if static else (largest / (top * scale_top) or 1.0)
        width = int(granularity[1:]) if granularity[0] == "g" else len(row)
        for start in range(0, len(row), width):
            group = row[start : start + width]
            inner = np.abs(group).max() if granularity[0] == "g" else largest
            scale = stored_scale(inner / (top * second), scale_name)
            if static and not rest:
                scale = STORED
            wanted = group / (scale * second)
            index = np.abs(wanted[:, None] - points).argmin(axis=1)
            out[i, start : start + width] = points[index] * scale * second
    return out


def half_gaps(text: str) -> float:
    return np.diff(grid(text.split("-")[0])).max() / 2


@pytest.mark.parametrize("text", SCHEMES)
def test_every_mode_gives_the_values_of_the_scalar_reference(text):
    x = sample()
    found = quantized(x, text).dequantize(torch.float64).numpy()
    wanted = reference(x, text)
    # float32 arithmetic may tip what lies on the edge between two codes: one step, and rarely.
    differ = ~np.isclose(found, wanted, rtol=1e-6, atol=0)
    assert differ.mean() <= 0.004
    both = np.abs(np.stack([found, wanted])[:, differ] - x.double().numpy()[differ])
    assert np.allclose(both[0], both[1], rtol=1e-4)  # then both are equally near


@pytest.mark.parametrize("text", SCHEMES)
def test_codes_scales_and_second_have_the_promised_form(text):
    result = quantized(sample(), text)
    scheme = result.scheme
    assert result.codes.dtype == torch.uint8
    assert tuple(result.codes.shape) == (M, K)
    assert int(result.codes.max()) >> scheme.format.bits == 0
    columns = math.ceil(K / scheme.group_size) if scheme.group_size else 1
    rows = 1 if scheme.granularity == "tensor" else M
    assert tuple(result.scales.shape) == (rows, columns)
    if scheme.scale.name == "e5m3":
        assert int(result.scales.max()) < 255  # 255 is NaN
    second = {"": None, "tensor": (1, 1), "token": (M, 1)}[scheme.second]
    assert (None if result.second is None else tuple(result.second.shape)) == second
    assert result.invalid is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("text", SCHEMES)
def test_other_float_dtypes_are_read_as_float32(text, dtype):
    x = sample().to(dtype)
    assert torch.equal(quantized(x, text).codes, quantized(x.float(), text).codes)


@pytest.mark.parametrize("text", SCHEMES)
def test_strides_do_not_matter_and_no_rows_are_no_rows(text):
    x = sample()
    strided = torch.stack([x, x], dim=2)[..., 0]
    assert torch.equal(quantized(strided, text).codes, quantized(x, text).codes)
    empty = quantized(x[:0], text)
    assert tuple(empty.dequantize().shape) == (0, K)


# -- T15: degenerate data ----------------------------------------------------------------------

PER_ROW = [s for s in SCHEMES if "tensor" not in s or "static" in s]


@pytest.mark.parametrize("text", SCHEMES)
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_t15_a_zero_row_and_a_zero_group_stay_zero_and_finite(text, zero):
    x = sample(4, 384)
    x[1] = zero
    x[2, 128:256] = zero
    found = quantized(x, text).dequantize()
    assert torch.isfinite(found).all()
    assert not found[1].any()
    assert not found[2, 128:256].any()
    assert found[2].any()
    everything = quantized(torch.full((3, K), zero), text).dequantize()
    assert not everything.any()


@pytest.mark.parametrize("text", PER_ROW)
def test_t15_bad_rows_leave_the_bits_of_the_others_alone(text):
    x = sample(6, K)
    bad = x.clone()
    bad[0], bad[2], bad[4] = 0.0, -0.0, 0.0
    bad[4, 7] = 6e4
    good = [1, 3, 5]
    with_bad, alone = quantized(bad, text), quantized(x[good], text)
    assert torch.equal(with_bad.codes[good], alone.codes)
    assert torch.equal(with_bad.dequantize()[good], alone.dequantize())
    row = with_bad.dequantize()[4]
    assert not row[:7].any()
    assert not row[8:].any()
    if "static" not in text:
        assert row[7] == pytest.approx(6e4, rel=0.1)


@pytest.mark.parametrize("text", [s for s in SCHEMES if s.endswith("static")])
def test_t15_a_static_scale_saturates_what_is_beyond_it(text):
    scheme = ActivationScheme.parse(text)
    reach = STORED * scheme.format.max * (scheme.scale.max if scheme.second else 1)
    x = torch.tensor([[reach * 10, -reach * 10, torch.inf, -torch.inf, 0.0] + [1.0] * 95])
    if scheme.second:  # the group's own scale is infinite with an Inf inside
        x[0, 2:4] = torch.tensor([reach, -reach]) * 1e3
    found = quantized(x, text).dequantize()[0, :5].tolist()
    assert found[:2] == [pytest.approx(reach), pytest.approx(-reach)]
    assert found[2:4] == [pytest.approx(reach), pytest.approx(-reach)]
    assert found[4] == 0


@pytest.mark.parametrize("text", SCHEMES)
def test_t15_nan_stays_nan_and_stays_in_its_row(text):
    x = sample()
    x[1, 3] = torch.nan
    result = quantized(x, text)
    found = result.dequantize()
    assert found[1, 3].isnan()
    assert result.invalid.sum() == 1
    if text in PER_ROW:
        good = [0, 2, 3, 4]
        assert torch.equal(found[good], quantized(sample(), text).dequantize()[good])


@pytest.mark.parametrize("text", SCHEMES)
def test_tiny_and_huge_rows_are_finite_and_of_their_size(text):
    x = torch.ones(1, K)
    for size in (1e-6, 3e4):
        found = quantized(x * size, text).dequantize()
        assert torch.isfinite(found).all()
        scale_format = text.split("-")[2]
        if scale_format in ("f32", "bf16", "e8m0") and "static" not in text:
            assert found.mean() == pytest.approx(size, rel=0.15)


@given(st.sampled_from(SCHEMES), st.integers(1, 40), st.integers(0, 9999), st.integers(-30, 30))
def test_the_error_is_at_most_half_a_step_of_the_scale(text, k, seed, exponent):
    scheme = ActivationScheme.parse(text)
    if scheme.static or scheme.scale.name not in ("f32", "e8m0"):
        return  # saturate or round their scales: bounded by the reference test
    x = sample(2, k, seed) * 2.0**exponent
    result = quantized(x, text)
    scale = result.scales.double().numpy()
    if scheme.scale.name == "e8m0":
        scale = 2.0 ** (scale - 127)
    if scheme.group_size:
        scale = np.repeat(scale, scheme.group_size, axis=1)[:, :k]
    if result.second is not None:
        scale = scale * result.second.double().numpy()
    error = np.abs(result.dequantize(torch.float64).numpy() - x.double().numpy())
    assert np.all(error <= scale * half_gaps(text) * (1 + 1e-5))


@pytest.mark.parametrize("text", [s for s in SCHEMES if s[0] == "s"])
def test_integers_are_symmetric(text):
    x = sample()
    found = quantized(x, text).dequantize()
    assert torch.equal(quantized(-x, text).dequantize(), -found)


@pytest.mark.parametrize(
    ("x", "text", "stored", "message"),
    [
        (torch.ones(8), "int8", None, "a float tensor [M, K]"),
        (torch.ones(2, 2, 8), "int8", None, "a float tensor [M, K]"),
        (torch.ones(2, 8, dtype=torch.int32), "int8", None, "a float tensor [M, K]"),
        (torch.ones(2, 8), "f16", None, "a scheme that quantizes"),
        (torch.ones(2, 8), "fp8-static", None, "one stored scale, for e4m3fn-tensor-f32-static"),
        (torch.ones(2, 8), "nvfp4", torch.ones(2), "one stored scale, for e2m1-g16"),
    ],
)
def test_what_cannot_be_quantized_is_refused(x, text, stored, message):
    with pytest.raises(ConfigError) as caught:
        quantize_activation(x, ActivationScheme.parse(text), stored)
    assert message in str(caught.value)
