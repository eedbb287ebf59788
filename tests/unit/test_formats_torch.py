"""NumberFormat on tensors: the same answers as in NumPy, without raising."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from humming.errors import ConfigError
from humming.formats.table import all_formats, number_format
from humming.formats.tensors import TORCH_FLOATS, as_storage, decode, encode, storage_dtype

SMALL = [f for f in all_formats() if f.bits <= 8] + [number_format(n) for n in ("e1m3", "e3m3")]
IDS = [fmt.name for fmt in SMALL]
SIXTEEN = [number_format("f16"), number_format("bf16")]
NATIVE = {
    "e4m3fn": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
    "e8m0": torch.float8_e8m0fnu,
}


def points(fmt) -> np.ndarray:
    """Values, midpoints, their float64 neighbours, random numbers, zeros and infinities."""
    grid = fmt.decode(np.arange(1 << fmt.bits, dtype=fmt.code_dtype))
    grid = np.unique(grid[np.isfinite(grid)])
    if grid.size > 4096:
        grid = grid[:: grid.size // 4096]
    middle = (grid[:-1] + grid[1:]) / 2
    rng = np.random.default_rng(5)
    random = rng.normal(0, 1, 2000) * 2.0 ** rng.uniform(-14, 14, 2000)
    all_of_them = [grid, middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf),
                   random, [0.0, -0.0, np.inf, -np.inf, 1e300, -1e300]]  # fmt: skip
    return np.concatenate(all_of_them)


def as_codes(tensor: torch.Tensor) -> np.ndarray:
    views = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32}
    whole = tensor.view(views.get(tensor.dtype, tensor.dtype)).numpy()
    return whole.view(f"u{whole.dtype.itemsize}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("fmt", SMALL, ids=IDS)
def test_decode_equals_numpy_on_every_code(fmt, dtype):
    codes = torch.arange(1 << fmt.bits, dtype=torch.int32).to(torch.uint8)
    wanted = torch.from_numpy(fmt.decode(codes.numpy())).to(dtype)
    found = decode(codes, fmt, dtype)
    assert found.dtype == dtype
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found.nan_to_num(), wanted.nan_to_num())
    assert torch.equal(found.signbit()[~found.isnan()], wanted.signbit()[~wanted.isnan()])


@pytest.mark.parametrize("fmt", [*SMALL, *SIXTEEN, number_format("f32")], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_encode_equals_numpy(fmt, dtype):
    x = points(fmt) if fmt.bits <= 16 else points(number_format("bf16"))
    tensor = torch.from_numpy(x).to(dtype)
    found = encode(tensor, fmt)
    assert found.dtype == storage_dtype(fmt)
    assert np.array_equal(as_codes(found), fmt.encode(tensor.double().numpy()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("fmt", [*SMALL, *SIXTEEN, number_format("f32")], ids=str)
def test_encode_takes_16_bit_floats_and_saturates_their_infinities(fmt, dtype):
    x = torch.tensor([0.0, -0.0, 0.3, -2.7, 60000.0, torch.inf, -torch.inf]).to(dtype)
    assert np.array_equal(as_codes(encode(x, fmt)), fmt.encode(x.double().numpy()))


def test_float64_is_rounded_to_16_bits_once():
    just_above_a_tie = torch.tensor([1 + 2**-11 + 2**-40, 1 + 2**-8 + 2**-40], dtype=torch.float64)
    assert encode(just_above_a_tie[:1], SIXTEEN[0]).item() == 1 + 2**-10
    assert encode(-just_above_a_tie[1:], SIXTEEN[1]).item() == -(1 + 2**-7)
    just_below = torch.tensor([1 + 3 * 2**-11 - 2**-40], dtype=torch.float64)
    assert encode(just_below, SIXTEEN[0]).item() == 1 + 2**-10


@pytest.mark.parametrize("fmt", [*SMALL, *SIXTEEN], ids=str)
def test_nan_becomes_nan_or_zero_and_nothing_is_raised(fmt):
    found = decode(encode(torch.tensor([torch.nan, 1.0]), fmt), fmt)
    assert bool(found[0].isnan()) == fmt.has_nan
    if not fmt.has_nan:
        assert found[0] == 0


@pytest.mark.parametrize("name", NATIVE)
def test_torch_agrees_on_decode_and_within_range_on_encode(name):
    fmt = number_format(name)
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    theirs = codes.view(NATIVE[name]).float()
    assert torch.equal(decode(codes, fmt).nan_to_num(7.25), theirs.nan_to_num(7.25))
    x = torch.from_numpy(points(fmt)).float()
    x = x[(x >= fmt.min) & (x <= fmt.max)]
    assert torch.equal(encode(x, fmt), x.to(NATIVE[name]).view(torch.uint8))


def test_shapes_and_strides_are_kept():
    fmt = number_format("e2m1")
    x = torch.randn(4, 6, 5).transpose(0, 2)
    assert torch.equal(encode(x, fmt), encode(x.contiguous(), fmt))
    assert decode(encode(x[:0], fmt), fmt).shape == (0, 6, 4)
    s8 = number_format("s8")
    strided = encode(torch.arange(-8.0, 8.0).view(4, 4), s8).t()
    assert torch.equal(decode(strided, s8), torch.arange(-8.0, 8.0).view(4, 4).t())


def test_storage_is_the_torch_dtype_from_16_bits_on_else_bytes():
    assert {name: storage_dtype(number_format(name)) for name in TORCH_FLOATS} == TORCH_FLOATS
    assert all(storage_dtype(fmt) == torch.uint8 for fmt in SMALL)


@pytest.mark.parametrize("name", [*NATIVE, "s8"])
def test_as_storage_reinterprets_bytes_of_the_formats_own_dtype(name):
    dtype = {**NATIVE, "s8": torch.int8}[name]
    raw = torch.arange(1, 5, dtype=torch.uint8)
    assert torch.equal(as_storage(raw.view(dtype), number_format(name)), raw)
    assert as_storage(raw, number_format(name)) is raw


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float8_e5m2, "e4m3fn"),
        (torch.float8_e4m3fnuz, "e4m3fn"),
        (torch.float16, "bf16"),
        (torch.float32, "e8m0"),
        (torch.int8, "u8"),
        (torch.bool, "u8"),
        (torch.uint8, "f16"),
        (torch.int32, "u4"),
    ],
)
def test_as_storage_refuses_another_format(dtype, name):
    with pytest.raises(ConfigError, match=f"holding {name}"):
        as_storage(torch.zeros(4, dtype=dtype), number_format(name))
