"""The built-in CUDA probe and the reference backend on a real device."""

from __future__ import annotations

import pytest
import torch

import humming
from humming import devices
from humming.activations import quantize_activation
from humming.formats.activation import ACTIVATION_ALIASES, ActivationScheme
from humming.selection import find_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SCHEMES = [
    "u4-g128-bf16",
    "u3+z-g64-f16",
    "u4+zf-g32-f16",
    "s8-channel-f32",
    "e4m3fn-b128x128-f32",
    "mxfp4",
    "mxfp6-e3m2",
    "nvfp4",
    "e0m3-g16-e4m3fn-channel",
]


def test_the_probe_names_a_device_that_a_profile_matches() -> None:
    found = find_device("cuda:0")
    properties = torch.cuda.get_device_properties(0)
    assert found.identity is not None
    assert found.identity.name == properties.name
    assert found.identity.capability == (properties.major, properties.minor)
    assert found.identity.limits["sm_count"] == properties.multi_processor_count
    assert found.profile.vendor == "nvidia"


def test_the_current_device_is_found_without_naming_it() -> None:
    assert devices.current() == torch.cuda.current_device()
    assert find_device(None).profile == find_device("cuda:0").profile


@pytest.mark.parametrize("scheme", SCHEMES)
def test_dequantized_values_have_the_same_bits_on_the_gpu(scheme: str) -> None:
    weight = humming.quantize(torch.randn(192, 320), scheme)
    here, there = weight.dequantize(), weight.to("cuda").dequantize().cpu()
    assert torch.equal(here.view(torch.int32), there.view(torch.int32))


@pytest.mark.parametrize("text", [*ACTIVATION_ALIASES, "s8-tensor-f32", "e5m2-g32-e5m3-token"])
def test_activations_are_quantized_to_the_same_bits_on_the_gpu(text: str) -> None:
    scheme = ActivationScheme.parse(text)
    x = torch.randn(300, 320) * torch.exp2(torch.rand(300, 1) * 12 - 6)
    scale = torch.tensor(0.013) if scheme.static else None
    here = quantize_activation(x, scheme, scale)
    there = quantize_activation(x.cuda(), scheme, scale)
    assert torch.equal(here.codes, there.codes.cpu())
    assert torch.equal(here.scales, there.scales.cpu())


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("clip", ["max", "mse"])
def test_weights_are_quantized_to_the_same_bits_on_the_gpu(scheme: str, clip: str) -> None:
    dense = torch.randn(192, 320) * torch.exp2(torch.rand(192, 1) * 6 - 3)
    there = dict(humming.quantize(dense.cuda(), scheme, clip=clip).tensors())
    for field, tensor in humming.quantize(dense, scheme, clip=clip).tensors():
        # With "mse" a sum over a block picks the scale; its order differs between devices.
        same = float((tensor == there[field].cpu()).float().mean())
        assert same == 1.0 if clip == "max" else same > 0.99, (field, same)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_layer_on_the_gpu_multiplies_the_dequantized_weight(
    scheme: str, dtype: torch.dtype
) -> None:
    layer = humming.QuantLinear.from_float(torch.randn(192, 320), scheme, backend="reference")
    x = torch.randn(7, 320, dtype=dtype)
    exact = x.double() @ layer.weight.dequantize(torch.float64).T
    y = layer.to("cuda")(x.to("cuda")).cpu().double()
    error = (y - exact).norm(dim=1) / exact.norm(dim=1)
    # TF32 is off by default in torch; float32 rounds like float32.
    limit = {torch.float16: 1e-3, torch.bfloat16: 4e-3, torch.float32: 1e-5}[dtype]
    assert float(error.max()) < 3 * limit


def test_experts_on_the_gpu_skip_sentinel_ids() -> None:
    weight = humming.quantize(torch.randn(4, 64, 96), "mxfp4").to("cuda")
    ids = torch.tensor([[0, 3], [-1, 2], [-1, -1]], device="cuda")
    x = torch.randn(3, 96, device="cuda", dtype=torch.bfloat16)
    y = humming.matmul(x, weight, expert_ids=ids, backend="reference")
    assert y.shape == (3, 2, 64)
    assert not y[2].any()
    assert not y[1, 0].any()
    assert y.isfinite().all()
