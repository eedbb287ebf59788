"""Layers with a Hadamard transform: kernels give torch's numbers, without a further launch."""

from __future__ import annotations

import pytest
import torch
from gemm_oracle import poisoned
from moe_cases import hidden_of, router
from quiet_kernels import quiet

import humming
from humming import GemmKind, QuantLinear, QuantMoE

pytestmark = pytest.mark.compile

A100, H100 = "sim:nvidia-a100", "sim:nvidia-h100"
E, H, WIDTH = 4, 128, 64


def pair(scheme: str) -> list[humming.CanonicalWeight]:
    generator = torch.Generator().manual_seed(2)
    shapes = ((E, 2 * WIDTH, H), (E, H, WIDTH))
    dense = [torch.randn(shape, generator=generator) * shape[-1] ** -0.5 for shape in shapes]
    return [humming.quantize(values, scheme, hadamard=32) for values in dense]


@pytest.mark.parametrize(
    ("device", "scheme", "activation"),
    [
        (A100, "u4-g32-f16", "s8-token-f32-h64"),
        (A100, "s8-channel-f32", "s8-g32-f32-h32"),
        (H100, "e4m3fn-channel-f32", "e4m3fn-token-f32-h128"),
    ],
)
def test_a_dense_layer(device: str, scheme: str, activation: str) -> None:
    dense = torch.randn(48, 256, generator=torch.Generator().manual_seed(2)) / 16
    x = hidden_of(5, 256, torch.bfloat16)
    weight = QuantLinear.from_float(dense, scheme, activation=activation).weight
    wanted = QuantLinear(weight, activation=activation, backend="reference")(x)
    layer = QuantLinear(weight, activation=activation, device=device)
    layer.warm_up(torch.bfloat16, [5])
    with poisoned():
        found = layer(x)
    assert (found - wanted).norm() < 0.01 * wanted.norm()
    assert (found.double() - x.double() @ dense.double().T).norm() < 0.2 * wanted.norm(), "int4"


@pytest.mark.parametrize("layout", [GemmKind.INDEXED, GemmKind.GROUPED_CONTIGUOUS])
def test_a_layer_of_experts(layout: GemmKind) -> None:
    weights, x = pair("u4-g32-f16"), hidden_of(5, H, torch.bfloat16)
    ids, factors = router(5, 2, E)
    ids[1::4, 0] = -1
    wanted = QuantMoE(*weights, activation="int8-h32")(x, ids, factors)
    with poisoned():
        layer = QuantMoE(*weights, activation="int8-h32", device=A100, layout=layout)
        found = layer(x, ids, factors)
    assert (found - wanted).norm() < 0.01 * wanted.norm()
    assert layer._calls, "its launches are settled"


def test_it_takes_no_launch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for activation in ("int8", "int8-h32"):
        with monkeypatch.context() as patch:
            launched = quiet(patch)
            layer = QuantMoE(*pair("u4-g32-f16"), activation=activation, device=A100)
            layer(hidden_of(3, H, torch.bfloat16), *router(3, 2, E))
            counts.append(len(launched))
    assert counts[0] == counts[1]
