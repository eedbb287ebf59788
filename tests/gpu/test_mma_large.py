"""More elements than 31 bits can count: results, weights and activations of several gigabytes.

T14 of the project's list; takes about 12 GB of the device's memory.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from gemm_data import random_activations, random_weight
from gemm_oracle import Reference, check, limit
from gemm_runs import DEVICE, KERNELS_ALONE, ON_A_GPU, make_layer

from humming.formats.activation import ActivationScheme
from humming.formats.scheme import WeightScheme
from humming.weight import CanonicalWeight

pytestmark = [*ON_A_GPU, KERNELS_ALONE]

BF16 = torch.bfloat16
PLAIN = ActivationScheme.parse("bf16")


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    """Give everything back, for other processes share the device."""
    yield
    gc.collect()
    torch.cuda.empty_cache()


def generator(seed: int) -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(seed)


def rows_of(m: int, k: int) -> torch.Tensor:
    return random_activations((m, k), generator(m), BF16, DEVICE)


def some_rows(m: int) -> torch.Tensor:
    """The first, the last, the middle, and those where 32-bit counts of bytes or elements end."""
    places = [0, 1, m // 3, m // 2, m // 2 + 1, 2 * m // 3, m - 2, m - 1]
    places += [min(m - 1, (1 << bits) // 7168 + more) for bits in (30, 31, 32) for more in (0, 1)]
    return torch.tensor(sorted(set(places)), device=DEVICE)


def test_t14_more_results_than_31_bits_count() -> None:
    experts, top_k, tokens, n, k = 8, 2, 150_000, 7168, 512
    weight = random_weight("u4-g128-bf16", n, k, generator(1), experts=experts, device=DEVICE)
    x = rows_of(tokens, k)
    ids = torch.randint(0, experts, (tokens, top_k), generator=generator(2), device=DEVICE)
    result = make_layer(weight)(x, expert_ids=ids)
    assert result.numel() > 2**31
    rows = some_rows(tokens)
    wanted = Reference(weight, PLAIN)(x[rows], expert_ids=ids[rows])
    check(result[rows], wanted, limit("bf16"), "indexed")
    del result
    ones = ids[:, 0].repeat(top_k).sort()[0]
    offsets = torch.searchsorted(ones, torch.arange(experts + 1, device=DEVICE))
    many = x.repeat(top_k, 1)
    result = make_layer(weight)(many, expert_offsets=offsets)
    rows = some_rows(len(many))
    wanted = Reference(weight, PLAIN)(many[rows], expert_ids=ones[rows, None])[:, 0]
    check(result[rows], wanted, limit("bf16"), "contiguous")


def test_t14_more_codes_than_31_bits_count() -> None:
    experts, n, k = 384, 3072, 7168
    scheme = WeightScheme.parse("u4-g128-bf16")
    noise = torch.rand(experts, n, k // 128, generator=generator(3), device=DEVICE) + 0.5
    packed = torch.randint(
        0, 256, (experts, n, k // 2), generator=generator(4), dtype=torch.uint8, device=DEVICE
    )
    weight = CanonicalWeight(
        scheme=scheme, n=n, k=k, experts=experts, packed=packed, scales=(noise * 0.01).to(BF16)
    )
    x = rows_of(experts, k)
    order = torch.randperm(experts, generator=generator(5), device=DEVICE)
    result = make_layer(weight)(x, expert_ids=order[:, None])[:, 0]
    chosen = torch.tensor([0, 191, 300, 383], device=DEVICE)
    rows = torch.cat([(order == expert).nonzero()[:, 0] for expert in chosen])
    wanted = Reference(weight, PLAIN)(x[rows], expert_ids=order[rows, None])[:, 0]
    check(result[rows], wanted, limit("bf16"), "one token per expert")


@pytest.mark.parametrize(
    ("activation", "source"), [("e4m3fn-token-f32", "sm89"), ("s8-g128-f32", "sm80")]
)
def test_t14_many_wide_rows_of_activations(activation: str, source: str) -> None:
    m, k, n = 65_536, 17_408, 264
    scheme = ActivationScheme.parse(activation)
    weight = random_weight("u4-g128-bf16", n, k, generator(6), device=DEVICE)
    x = rows_of(m, k)
    layer = make_layer(weight, activation, source=source)
    result = layer(x)
    rows = some_rows(m)
    check(result[rows], Reference(weight, scheme)(x[rows]), limit("bf16"), activation)
    quarter = m // 4
    for part in range(4):
        span = slice(part * quarter, (part + 1) * quarter)
        check(layer(x[span]), result[span].double(), limit("bf16"), f"part {part}")
