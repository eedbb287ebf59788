"""mma.sync kernels as the backend makes them for each architecture, run in the simulator.

This is what `simulated` says in the support matrix. test_mma_gemm.py tests the kernels themselves.
"""

from __future__ import annotations

import pytest
import torch
from core_oracle import random_weight

import humming
from humming import plugins
from humming.formats.activation import ActivationScheme
from humming.formats.table import number_format
from humming.testing import oracle

pytestmark = pytest.mark.compile

BACKEND = "sm75_sm89"
#: One device for each architecture that profiles of NVIDIA devices name.
DEVICES = {
    profile.target.arch: name
    for name, profile in sorted(plugins.profiles().items())
    if profile.vendor == "nvidia" and profile.capability
}
#: (weight, activations; "" leaves them as they are)
PRODUCTS = (
    ("u4+z-g64-f16", ""),
    ("e2m1-g16-e4m3fn-tensor", ""),
    ("u4-g128-f16", "s8-token-f32"),
    ("e4m3fn-b128x128-f32", "e4m3fn-g128-f32"),
)


def test_there_is_a_device_for_each_architecture() -> None:
    assert len(DEVICES) >= 11
    assert {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"} <= set(DEVICES)


@pytest.mark.parametrize(
    ("device", "scheme", "activation"),
    # Each device has two of the products by turns, and each product half of the devices.
    [
        (device, *product)
        for place, device in enumerate(DEVICES.values())
        for product in PRODUCTS[place % 2 :: 2]
    ],
)
def test_a_product_for_this_device_is_right(device: str, scheme: str, activation: str) -> None:
    if activation and activation.split("-")[0] not in plugins.profiles()[device].activations:
        with pytest.raises(humming.UnsupportedError, match="tensor cores"):
            product(device, scheme, activation)
        return
    y, expected = product(device, scheme, activation)
    limit = oracle.tolerance(number_format("f16"))
    assert oracle.deviation(y, expected).within(limit)


def product(device: str, scheme: str, activation: str) -> tuple[torch.Tensor, oracle.Floats]:
    torch.manual_seed(len(scheme))
    weight = random_weight(scheme, 72, 392)
    x = torch.randn(5, 392).half()
    y = humming.matmul(
        x, weight, activation=activation or None, device=f"sim:{device}", backend=BACKEND
    )
    (expected,) = oracle.expected_products([x], weight, ActivationScheme.parse(activation or "f16"))
    return y, expected
