"""The settled launches of QuantMoE: the bits of one step after the other, in fewer launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from gemm_oracle import poisoned
from moe_cases import hidden_of, router, weights_of

from humming import Gating, GemmKind, QuantMoE
from humming.backend import UNTILED, Address, Link, Problem
from humming.engine import Site, workshop
from humming.engine.expert_calls import ExpertCall
from humming.engine.launches import Launches
from humming_sim.plugin import SimulatorRuntime

pytestmark = pytest.mark.compile

A100, L40S = "sim:nvidia-a100", "sim:nvidia-l40s"
INDEXED, SORTED = GemmKind.INDEXED, GemmKind.GROUPED_CONTIGUOUS
BF16 = torch.bfloat16
E = 4

#: scheme, activation, device.
CASES = {
    "W4A16": ("u4-g32-bf16", None, A100),
    "W4A8": ("u4-g32-f16", "s8-g32-f32", A100),
    "W8A8, one scale": ("e4m3fn-channel-f32", "e4m3fn-tensor-f32-static", L40S),
}


def moe(case: str, layout: GemmKind, **options: object) -> QuantMoE:
    scheme, activation, device = CASES[case]
    pair = weights_of(scheme, E, 64, 32)
    if activation and activation.endswith("static"):
        scales = (torch.full((E,), 0.25), torch.full((E,), 0.01))
        pair = [w.replace(input_scale=scale) for w, scale in zip(pair, scales, strict=True)]
    return QuantMoE(*pair, activation=activation, device=device, layout=layout, **options)


def stepwise(
    monkeypatch: pytest.MonkeyPatch, layer: QuantMoE, *inputs: torch.Tensor
) -> torch.Tensor:
    """What the layer gives one step after the other."""
    with monkeypatch.context() as patched, poisoned():
        layer._calls.clear()
        patched.setattr(ExpertCall, "serves", staticmethod(lambda *_: False))
        found = layer(*inputs)
        assert not layer._calls
        return found


def inputs(m: int = 6, top_k: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Some ids are nobody's, and some of those have a weight that is none."""
    x, (ids, weights) = hidden_of(m, 64, BF16), router(m, top_k, E)
    ids[1::4, 0], ids[2::4], weights[2::4] = -1, E, torch.nan
    return x, ids, weights


@pytest.mark.parametrize("layout", [INDEXED, SORTED])
@pytest.mark.parametrize("case", CASES)
def test_its_bits_are_those_of_single_steps(
    monkeypatch: pytest.MonkeyPatch, case: str, layout: GemmKind
) -> None:
    layer, (x, ids, weights) = moe(case, layout, gating="reglu"), inputs()
    wanted = stepwise(monkeypatch, layer, x, ids, weights)
    for given in (ids, ids.int()):
        with poisoned():
            assert torch.equal(layer(x, given, weights), wanted)
    assert len(layer._calls) == 2
    assert bool(wanted.any())


def test_rows_and_their_scales_come_into_order_first(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = weights_of("fp8-block", E, 256, 128)
    options = {"activation": "e4m3fn-g128-f32", "device": "sim:nvidia-h100", "layout": INDEXED}
    layer, (ids, weights) = QuantMoE(*pair, gating="reglu", **options), router(6, 2, E)
    x = hidden_of(6, 256, BF16)
    ids[1::4, 0], ids[2::4], weights[2::4] = -1, E, torch.nan
    wanted = stepwise(monkeypatch, layer, x, ids, weights)
    with poisoned():
        assert torch.equal(layer(x, ids, weights), wanted)
    (call,) = layer._calls.values()
    plans = [product.plan(Problem(m=12)) for product in call.products]
    assert [plan.kernel.spec.row_tile for plan in plans] == [UNTILED, UNTILED]
    assert bool(wanted.any())


@pytest.mark.parametrize("layout", [INDEXED, SORTED])
def test_weights_on_the_input_and_shared_experts(
    monkeypatch: pytest.MonkeyPatch, layout: GemmKind
) -> None:
    shared = weights_of("u4-g32-f16", 0, 64, 40, seed=4)
    layer = moe("W4A8", layout, shared=shared, weigh_input=True, gating="reglu")
    x, ids, weights = inputs(5)
    weights = weights.nan_to_num(0.5)
    wanted = stepwise(monkeypatch, layer, x, ids, weights)
    with poisoned():
        assert torch.equal(layer(x, ids, weights), wanted)
    assert layer._calls


def test_tensors_that_begin_anywhere_or_have_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, (x, ids, weights) = moe("W4A16", INDEXED), inputs(4)
    wanted = layer(x, ids, weights)
    odd = torch.empty(4 * 64 + 1, dtype=BF16)[1:].view(4, 64).copy_(x)
    assert odd.data_ptr() % 16
    gaps = torch.empty(64, 4, dtype=BF16).T.copy_(x)
    for other in (odd, gaps):
        assert torch.equal(layer(other, ids, weights), wanted)
    strided = ids.repeat_interleave(2, dim=1)[:, ::2], weights.repeat_interleave(2, dim=1)[:, ::2]
    assert torch.equal(layer(x, *strided), wanted)
    assert len(layer._calls) == 1


def test_scales_of_each_expert_take_steps_of_their_own() -> None:
    pair = [
        w.replace(input_scale=torch.tensor([0.25, 0.5, 0.125, 0.25]) * factor)
        for w, factor in zip(weights_of("e4m3fn-channel-f32", E, 64, 32), (1, 0.04), strict=True)
    ]
    for layout in (INDEXED, SORTED):
        layer = QuantMoE(*pair, activation="e4m3fn-tensor-f32-static", device=L40S, layout=layout)
        assert layer(*inputs()).isfinite().all()
        assert not layer._calls


# -- addresses, as on a GPU ------------------------------------------------------------------------


@pytest.fixture
def by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator has chains, as CUDA's driver: what lies in a call's memory ends where the next
    argument of the launch begins."""
    call, empty = Launches.__call__, torch.empty
    known: dict[int, torch.Tensor] = {}

    def allocate(*size: int, **options: Any) -> torch.Tensor:
        made = empty(*size, **options)
        known[made.data_ptr()] = made
        return made

    def remember(self: Launches, *given: torch.Tensor | None) -> None:
        known.update({tensor.data_ptr(): tensor for tensor in given if tensor is not None})
        call(self, *given)

    def chain(self: SimulatorRuntime, links: Sequence[Link]) -> Callable[[list[int]], None]:
        def run(bases: list[int]) -> None:
            for launch, shape, slots in links:
                launch(shape, *(argument(bases, slot, slots) for slot in slots))

        return run

    def argument(bases: list[int], slot: Address, slots: Sequence[Address]) -> torch.Tensor | None:
        if not bases[slot.base]:
            return None
        whole = known[bases[slot.base]]
        if slot.base != len(bases) - 1:
            return whole
        ends = [other.offset for other in slots if other.base == slot.base]
        behind = min((end for end in ends if end > slot.offset), default=whole.numel())
        return whole[slot.offset : behind]

    monkeypatch.setattr(SimulatorRuntime, "chain", chain, raising=False)
    monkeypatch.setattr(Launches, "__call__", remember)
    monkeypatch.setattr(torch, "empty", allocate)


@pytest.mark.parametrize("layout", [INDEXED, SORTED])
@pytest.mark.parametrize("case", ["W4A16", "W4A8"])
def test_addresses_are_those_of_the_parts(
    monkeypatch: pytest.MonkeyPatch, by_address: None, case: str, layout: GemmKind
) -> None:
    layer, (x, ids, weights) = moe(case, layout, gating="reglu"), inputs()
    wanted = stepwise(monkeypatch, layer, x, ids, weights)
    with poisoned():
        assert torch.equal(layer(x, ids, weights), wanted)
    assert layer._calls


# -- warming up ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "layout"), [("W4A16", INDEXED), ("W4A8", SORTED)])
def test_after_warming_up_calls_can_be_captured(
    monkeypatch: pytest.MonkeyPatch, case: str, layout: GemmKind
) -> None:
    shared = weights_of(CASES[case][0], 0, 64, 40, seed=4)
    # A function that no other test here has, so that nobody else has loaded its kernels.
    gating = Gating.of("swiglu_oai", alpha=1.5 + 0.25 * (layout is SORTED), limit=5.0)
    layer = moe(case, layout, shared=shared, gating=gating)
    layer.warm_up(BF16, [3], top_k=2)
    monkeypatch.setenv("HUMMING_NO_JIT", "1")
    monkeypatch.setattr(workshop().library, "get_many", lambda *_, **__: pytest.fail("compiles"))
    monkeypatch.setattr(Site, "capturing", lambda self: True)
    x, ids, weights = inputs(3)
    for given in (ids, ids.int()):
        layer(x, given, weights)
    assert len(layer._calls) == 2


def test_layers_that_quantize_do_not_load_what_only_others_need() -> None:
    layer = moe("W4A8", SORTED)
    layer.warm_up(BF16, [3], top_k=2)
    products = layer._products(BF16, 6, 2)
    assert products is not None
    kinds = {key[0] for key in layer._around(products.down)._kernels}
    assert kinds == {"combine placed"}
