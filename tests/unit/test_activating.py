"""Which layers' kernels apply a function to their results, and where gates and ups lie for that."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gemm_data import random_weight
from moe_cases import hidden_of, router, weights_of

from humming import ConfigError, Gating, GemmKind, QuantMoE
from humming.backend import KernelBackend, Problem
from humming.configs import ComputeConfig, LayerConfig, ResultFunction
from humming.engine.activating import activating
from humming.engine.choice import choose
from humming.engine.prepared import PreparedLayer
from humming.formats.activation import ActivationScheme
from humming.formats.table import number_format
from humming.selection import select_backend
from humming.weight import CanonicalWeight

H100, A100 = "sim:nvidia-h100", "sim:nvidia-a100"
BF16 = torch.bfloat16


def weight_of(scheme: str = "u4+z-g32-bf16", n: int = 48, experts: int = 0) -> CanonicalWeight:
    weight = random_weight(scheme, n, 64, torch.Generator().manual_seed(0), experts=experts)
    bias = torch.arange(n, dtype=torch.float32).expand(weight.shape[:-1]).contiguous()
    return weight.replace(bias=bias)


def layer_of(weight: CanonicalWeight) -> LayerConfig:
    return LayerConfig(
        n=weight.n,
        k=weight.k,
        experts=weight.experts,
        weight=weight.scheme,
        activation=ActivationScheme.parse("bf16"),
        output=number_format("bf16"),
        bias=True,
    )


def backend_of(layer: LayerConfig, profile: str) -> KernelBackend:
    kind = GemmKind.INDEXED if layer.experts else GemmKind.DENSE
    found = select_backend(None, profile=profile, layer=layer, compute=ComputeConfig(gemm=kind))
    assert isinstance(found, KernelBackend)
    return found


def activated(
    weight: CanonicalWeight, gating: Gating, profile: str = "nvidia-a100"
) -> tuple[CanonicalWeight, LayerConfig] | None:
    layer = layer_of(weight)
    return activating(backend_of(layer, profile), weight, layer, gating)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("scheme", "experts"),
    [
        ("u4+z-g32-bf16", 0),
        ("u4+zf-channel-bf16", 2),
        ("u3-tensor-f32", 2),
        ("e2m1-g16-e4m3fn-tensor", 2),
        ("u4-g32-e4m3fn-channel", 0),
    ],
)
def test_eight_gates_come_before_their_ups(scheme: str, experts: int, interleaved: bool) -> None:
    weight = weight_of(scheme, experts=experts)
    found = activated(weight, Gating.of("swiglu", interleaved=interleaved))
    assert found is not None
    turned, layer = found
    assert layer == replace(layer_of(weight), function=layer.function)
    values, before = turned.dequantize(torch.float64), weight.dequantize(torch.float64)
    for run in range(3):
        for place in range(8):
            output = 8 * run + place
            pair = (2 * output, 2 * output + 1) if interleaved else (output, 24 + output)
            for half, row in enumerate(pair):
                at = 16 * run + 8 * half + place
                assert torch.equal(values[..., at, :], before[..., row, :])
                assert turned.bias is not None
                assert bool((turned.bias[..., at] == row).all())
    assert weight.packed.data_ptr() != turned.packed.data_ptr()


def test_a_layer_with_a_function_has_fewer_results() -> None:
    plain = layer_of(weight_of())
    gated = replace(plain, function=Gating.of("swiglu_oai", limit=5.0).of_results())
    assert gated.function == ResultFunction(
        name="swiglu_oai",
        expression="at_most(gate, limit) * sigmoid(alpha * at_most(gate, limit))"
        " * (within(up, limit) + 1.0f)",
        parameters=(("alpha", 1.702), ("limit", 5.0)),
        inputs=2,
    )
    single = replace(plain, function=Gating.of("relu").of_results())
    assert (plain.results, gated.results, single.results) == (48, 24, 48)
    assert str(gated) == f"{str(plain).removesuffix(' -> bf16')} swiglu_oai -> bf16"


def test_what_takes_a_kernel_of_its_own() -> None:
    swiglu, relu = Gating.of("swiglu"), Gating.of("relu")
    blocks = weight_of("e4m3fn-b128x128-f32")
    assert activated(blocks, swiglu) is None, "gates and ups of a block have one scale"
    assert activated(weight_of(n=40), swiglu) is None, "20 outputs are no multiple of 8"
    for weight in (blocks, weight_of(n=37)):
        found = activated(weight, relu)
        assert found is not None
        assert found[0] is weight, "without a gate nothing has to meet"
    fp8 = random_weight("e4m3fn-b128x128-f32", 256, 128, torch.Generator().manual_seed(0))
    scheme = ActivationScheme.parse("e4m3fn-g128-f32")
    layer = replace(layer_of(fp8), activation=scheme, bias=False)
    backend = backend_of(layer, "nvidia-h100")
    assert backend.name == "sm90"
    assert activating(backend, fp8, layer, relu) is None, "tokens are the M side of these MMAs"
    assert not KernelBackend.applies_function(backend, layer), "unless a backend says so"


def test_rows_in_another_order_need_scales_of_their_own() -> None:
    with pytest.raises(ConfigError, match="granularity"):
        weight_of("e4m3fn-b128x128-f32").with_rows(torch.arange(48))


def parts(layer: QuantMoE) -> tuple[PreparedLayer, PreparedLayer]:
    return layer.prepare(BF16)


@pytest.mark.parametrize("device", [A100, H100])
def test_one_packed_weight_and_the_stored_one(device: str) -> None:
    pair = weights_of("mxfp4", 4, 64, 32)
    layer = QuantMoE(*pair, device=device)
    up, down = parts(layer)
    assert up.layer.function == Gating.of("swiglu").of_results()
    assert down.layer.function is None
    assert len(layer.gate_up._shelf) == 1
    assert torch.equal(layer.state_dict()["gate_up.packed"], pair[0].packed)


def test_the_products_of_a_layer_are_those_of_its_parts_all_the_same() -> None:
    """Who calls a part gets gates and ups."""
    pair = weights_of("u4-g32-bf16", 4, 64, 32)
    layer, x, (ids, weights) = QuantMoE(*pair, device=A100), hidden_of(3, 64, BF16), router(3, 2, 4)
    found = layer(x, ids, weights)
    rows = layer.gate_up(x, expert_ids=ids)
    assert rows.shape == (3, 2, 64)
    rows = layer.down(layer.gating(rows), expert_ids=ids)
    wanted = (rows.double() * weights[..., None]).sum(1)
    assert (found.double() - wanted).norm() < 1e-2 * wanted.norm()


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("u4-g32-f16", {"activation": "int8"}),
        ("e4m3fn-b128x128-f32", {}),
        ("u4-g32-bf16", {"backend": "reference"}),
    ],
)
def test_layers_whose_function_takes_a_launch_of_its_own(
    scheme: str, options: dict[str, str]
) -> None:
    layer = QuantMoE(*weights_of(scheme, 4, 128, 64), device=H100, **options)
    assert parts(layer)[0].layer.function is None


def test_tunings_are_those_of_the_layer_without_a_function() -> None:
    """Measured rows of a profile and estimates are about n, which the function leaves alone."""
    base = layer_of(weight_of("mxfp4", experts=1))
    compute = ComputeConfig(gemm=GemmKind.INDEXED)
    for n, k, experts in ((5760, 2880, 32), (1536, 2048, 128)):
        plain = replace(base, n=n, k=k, experts=experts)
        layers = plain, replace(plain, function=Gating.of("swiglu").of_results())
        backend = backend_of(plain, "nvidia-h200")
        problems = [Problem(m=m, top_k=4) for m in (4, 32, 256, 4096)]
        one, other = (
            [choose(backend, layer, compute, problem) for problem in problems] for layer in layers
        )
        assert one == other
        assert experts != 32 or one[1].why.startswith("measured")
