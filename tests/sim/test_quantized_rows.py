"""Quantizer and OperandMaker.fused: one launch for what takes several, on simulated devices."""

from __future__ import annotations

import pytest
import torch
from gemm_oracle import poisoned
from moe_cases import hidden_of

from humming import quantize
from humming.configs import LayerConfig
from humming.engine.operand import Operand, OperandMaker
from humming.engine.quantized import Quantizer, RowChoice, quantize_specs
from humming.engine.site import Site
from humming.formats.activation import ActivationScheme
from humming.formats.table import number_format
from humming.gating import Gating
from humming.quantizer import RowSource
from humming.selection import find_device
from humming.weight import CanonicalWeight

pytestmark = pytest.mark.compile

DEVICES = ["sim:nvidia-a100", "sim:nvidia-h100"]
K = 96


def maker_of(device: str, activation: str, weight: CanonicalWeight) -> OperandMaker:
    found = find_device(device)
    scheme = ActivationScheme.parse(activation)
    layer = LayerConfig(
        n=weight.n, k=K, weight=weight.scheme, activation=scheme, output=number_format("bf16"),
        experts=weight.experts,
    )  # fmt: skip
    return OperandMaker(weight, layer, Quantizer(Site.of(found), layer, found.profile))


def weight_of(experts: int = 0, **tensors: torch.Tensor) -> CanonicalWeight:
    shape = (experts, 64, K) if experts else (64, K)
    return quantize(torch.ones(shape), "s8-channel-f32").replace(**tensors)


def same(found: Operand | None, wanted: Operand, rows: slice | list[int] = slice(None)) -> bool:
    assert found is not None
    pairs = ((found.x, wanted.x), (found.scales, wanted.scales), (found.groups, wanted.groups))
    return all(torch.equal(a[rows], b) for a, b in pairs if a is not None and b is not None)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("activation", ["e4m3fn-token-f32", "s8-token-f32", "s8-g32-f32"])
def test_an_activated_operand_is_that_of_relu_and_then_quantize(
    device: str, activation: str
) -> None:
    maker = maker_of(device, activation, weight_of())
    x = hidden_of(5, 2 * K, torch.bfloat16)
    gating = Gating.of("reglu")  # whose kernel and reference agree to the bit
    with poisoned():
        found = maker.fused(x, gating=gating)
        assert same(found, maker(gating(x)))


@pytest.mark.parametrize("device", DEVICES)
def test_rows_in_the_order_of_experts_are_those_of_a_gather(device: str) -> None:
    maker = maker_of(device, "e4m3fn-token-f32", weight_of())
    x = hidden_of(6, K, torch.float16)
    table = torch.tensor([5, 0, 0, -1, 2, 6, 1], dtype=torch.int32)
    chosen = [0, 1, 2, 4, 6]
    with poisoned():
        found = maker.fused(x, choice=RowChoice(RowSource.MAP, table, 6))
        wanted = maker(x[table[chosen].long()])
    assert found is not None
    assert found.x.shape[0] == 7
    assert same(found, wanted, chosen)


def test_stored_scales_are_those_of_the_experts_of_output_rows() -> None:
    scales = torch.tensor([[0.01], [0.03]])
    weight = weight_of(2, input_scale=scales[:, 0])
    maker = maker_of(DEVICES[1], "s8-tensor-f32-static", weight)
    assert maker.by_expert
    x, experts = hidden_of(4, K, torch.bfloat16), torch.tensor([0, 0, 1, 1, 1])
    table = torch.tensor([3, 1, 0, 3, 2], dtype=torch.int32)
    choice = RowChoice(RowSource.MAP, table, 4)
    with poisoned():
        found = maker.fused(x, choice=choice, experts=experts)
        assert same(found, maker(x[table.long()], experts))


def test_counts_say_how_many_rows_there_are() -> None:
    assert RowChoice(RowSource.COUNTS, torch.tensor([1, 2]), 5).rows == 10
    assert RowChoice(RowSource.IDS, torch.tensor([[1, 2], [0, -1]]), 5).rows == 4


def test_what_takes_several_steps_says_so() -> None:
    x = hidden_of(2, 2 * K, torch.bfloat16)
    gating = Gating.of("swiglu")
    multiplied = weight_of(pre_quant_scale=torch.full((K,), 2.0))
    assert maker_of(DEVICES[1], "s8-token-f32", multiplied).fused(x, gating=gating) is None
    assert maker_of(DEVICES[1], "bf16", weight_of()).fused(x, gating=gating) is None
    assert maker_of(DEVICES[1], "s8-tensor-f32", weight_of()).fused(x, gating=gating) is None


def test_kernels_are_loaded_once_and_can_be_described_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    maker = maker_of(DEVICES[1], "s8-token-f32", weight_of())
    gating, profile = Gating.of("swiglu"), find_device(DEVICES[1]).profile
    quantizer = maker.quantizer
    quantizer.warm_up(torch.bfloat16, gating, RowSource.IDS)
    monkeypatch.setattr(quantizer, "_kernel", lambda key: pytest.fail(f"{key} is loaded again"))
    quantizer.warm_up(torch.bfloat16, gating, RowSource.IDS)
    x, ids = hidden_of(3, 2 * K, torch.bfloat16), torch.tensor([0, -1, 3], dtype=torch.int32)
    assert maker.fused(x, gating=gating, choice=RowChoice(RowSource.IDS, ids, 4)) is not None
    layer = LayerConfig(
        n=64, k=K, weight=weight_of().scheme, activation=maker.scheme,
        output=number_format("bf16"),
    )  # fmt: skip
    (spec,) = quantize_specs(layer, profile, gating, RowSource.IDS)
    assert spec.name.endswith("_ids_swiglu")
    assert spec.context.native
