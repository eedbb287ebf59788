"""Blocks written out for their positions, and blocks larger than anything they cover."""

from __future__ import annotations

import pytest
import torch

import humming
from humming.activations import quantize_activation
from humming.blocks import spread
from humming.errors import ConfigError
from humming.formats.activation import ActivationScheme
from humming.formats.scheme import Granularity

HUGE = 2**31 - 1


def test_spread_repeats_each_value_over_its_block() -> None:
    blocks = torch.tensor([[1, 2, 3]])
    assert spread(blocks, 1, 4, 9).tolist() == [[1, 1, 1, 1, 2, 2, 2, 2, 3]]
    assert spread(blocks, 1, 4, 5, first=3).tolist() == [[1, 2, 2, 2, 2]]
    assert spread(blocks, 1, 4, 0, first=2).tolist() == [[]]


@pytest.mark.parametrize("scheme", [f"u4+z-g{HUGE}-f16", f"e4m3fn-b{HUGE}x{HUGE}-f32"])
def test_blocks_beyond_the_matrix_cost_nothing_and_mean_one_block(scheme: str) -> None:
    dense = torch.randn(6, 20)
    weight = humming.quantize(dense, scheme)
    assert tuple(weight.scales.shape) == ((6, 1) if "g" in scheme else (1, 1))
    same = humming.quantize(dense, scheme.replace(f"b{HUGE}x{HUGE}", "tensor").replace(
        f"g{HUGE}", "channel"))  # fmt: skip
    assert torch.equal(weight.dequantize(), same.dequantize())
    half = weight.shard("k", 1, 2)
    assert torch.equal(half.dequantize(), weight.dequantize()[:, 10:])


def test_activation_groups_beyond_the_row_are_one_group() -> None:
    x = torch.randn(3, 20)
    grouped = quantize_activation(x, ActivationScheme.parse(f"s8-g{HUGE}-f32"))
    by_token = quantize_activation(x, ActivationScheme.parse("s8-token-f32"))
    assert torch.equal(grouped.dequantize(), by_token.dequantize())


def test_sizes_beyond_32_bits_are_refused() -> None:
    with pytest.raises(ConfigError, match="sizes up to 2147483647"):
        Granularity.group(2**31)
    with pytest.raises(ConfigError, match="sizes up to"):
        ActivationScheme.parse("s8-g9999999999-f32")
    with pytest.raises(ConfigError, match="expected tensor, token or gG"):
        ActivationScheme.parse(f"s8-g{2**70}-f32")
