"""The Hadamard transform of activations, against its matrix in float64."""

from __future__ import annotations

import math

import pytest
import torch

from humming.activations import hadamard, hadamard_factor, quantize_activation
from humming.errors import ConfigError
from humming.formats.activation import ActivationScheme

BLOCKS = [2 << i for i in range(9)]


def matrix(block: int) -> torch.Tensor:
    """Rows and columns of signs over the square root: Sylvester's construction."""
    signs = torch.ones(1, 1, dtype=torch.float64)
    while len(signs) < block:
        signs = torch.cat([torch.cat([signs, signs], 1), torch.cat([signs, -signs], 1)])
    return signs / math.sqrt(block)


@pytest.mark.parametrize("block", BLOCKS)
def test_it_is_the_product_with_the_matrix(block: int) -> None:
    x = torch.randn(3, 1024, generator=torch.Generator().manual_seed(block))
    wanted = (x.double().unflatten(1, (-1, block)) @ matrix(block)).flatten(1)
    assert (hadamard(x, block) - wanted).norm() <= 2e-7 * wanted.norm()
    for dtype in (torch.float16, torch.bfloat16):
        narrow = x.to(dtype)
        wanted = (narrow.double().unflatten(1, (-1, block)) @ matrix(block)).flatten(1)
        found = hadamard(narrow, block)
        assert found.dtype == dtype
        half = torch.finfo(dtype).eps / 2
        assert ((found - wanted).abs() <= 1.01 * half * wanted.abs() + 1e-6).all()


@pytest.mark.parametrize("block", BLOCKS)
def test_it_is_its_own_inverse_and_keeps_lengths(block: int) -> None:
    x = torch.randn(2, 3, block, generator=torch.Generator().manual_seed(1))
    found = hadamard(x, block)
    assert found.shape == x.shape
    torch.testing.assert_close(hadamard(found, block), x, rtol=0, atol=2e-6)
    torch.testing.assert_close(found.norm(dim=-1), x.norm(dim=-1))


def test_an_outlier_costs_less_behind_it() -> None:
    x = torch.randn(8, 512, generator=torch.Generator().manual_seed(2))
    x[:, 100] = 60.0
    scheme = ActivationScheme.parse("s4-token-f32")
    plain = (quantize_activation(x, scheme).dequantize() - x).norm()
    turned = hadamard(quantize_activation(hadamard(x, 512), scheme).dequantize(), 512) - x
    assert turned.norm() < plain / 2


@pytest.mark.parametrize("block", [-2, 0, 1, 3, 48, 1024])
def test_other_blocks_are_refused(block: int) -> None:
    with pytest.raises(ConfigError, match="hadamard"):
        hadamard_factor(block)
    with pytest.raises(ConfigError, match="hadamard"):
        hadamard(torch.ones(1, 1024), block)


@pytest.mark.parametrize(
    "x", [torch.ones(2, 24), torch.ones(2, 32, dtype=torch.int32), torch.tensor(1.0)]
)
def test_rows_that_are_no_whole_blocks_of_floats_are_refused(x: torch.Tensor) -> None:
    with pytest.raises(ConfigError, match="multiples of 16"):
        hadamard(x, 16)
