"""QuantMoE with room for so many rows of each expert, through kernels and by torch."""

from __future__ import annotations

import pytest
import torch
from gemm_oracle import check, limit, poisoned
from moe_cases import GPT_OSS, Oracle, activated, dtype_of, hidden_of, router, weights_of

from humming import ConfigError, Gating, GemmKind, QuantMoE
from humming.engine import workshop

pytestmark = pytest.mark.compile

A100, H100 = "sim:nvidia-a100", "sim:nvidia-h100"
MASKED = GemmKind.GROUPED_MASKED
QUANTIZED = 1.5e-2


def masked(oracle: Oracle, **options: object) -> QuantMoE:
    function = oracle.function
    gating = Gating.of(function.name, interleaved=function.interleaved, **function.parameters)
    options = {"device": A100, "layout": MASKED, **options}
    return QuantMoE(
        oracle.gate_up, oracle.down, gating=gating, weigh_input=oracle.weigh_input,
        shared=oracle.shared, activation=oracle.activation or None, **options,
    )  # fmt: skip


def without_room(ids: torch.Tensor, capacity: int) -> torch.Tensor:
    """Ids, -1 where so many choices before are the same expert's."""
    kept, seen = ids.clone(), dict.fromkeys(ids.flatten().tolist(), 0)
    for place, expert in enumerate(ids.flatten().tolist()):
        seen[expert] += 1
        if seen[expert] > capacity:
            kept.view(-1)[place] = -1
    return kept


def compare(
    oracle: Oracle, dtype: str = "bf16", m: int = 5, *, settled: bool = True, **options: object
) -> None:
    """Some ids being nobody's, in poisoned memory."""
    experts, capacity = oracle.gate_up.experts, options.get("capacity")
    x, (ids, weights) = hidden_of(m, oracle.gate_up.k, dtype_of(dtype)), router(m, 2, experts)
    ids[1::4, 0], ids[2::4], weights[2::4] = -1, experts, torch.nan
    layer = masked(oracle, **options)
    for part in layer.prepare(x.dtype):
        assert part.compute.gemm is MASKED
        assert part.kernels is not None, "the kernels are what this is about"
    with poisoned():
        found = layer(x, ids if m % 2 else ids.int(), weights)
    assert bool(layer._calls) is settled
    kept = ids if capacity is None else without_room(ids, int(str(capacity)))
    bound = QUANTIZED if oracle.activation else limit(dtype)
    check(found, activated(oracle, layer, x.dtype)(x, kept, weights), bound)


def test_gpt_oss() -> None:
    pair = weights_of("mxfp4", 4, 96, 96, GPT_OSS, bias=0.01)
    compare(Oracle(*pair, function=GPT_OSS), m=9)


def test_inputs_that_are_quantized_as_they_are_moved() -> None:
    oracle = Oracle(*weights_of("u4-g32-f16", 4, 64, 32), activation="int8")
    compare(oracle, "f16", m=6, capacity=6)


def test_groups_of_fp8_and_shared_experts_on_hopper() -> None:
    shared = weights_of("fp8-block", 0, 128, 128, seed=4)
    pair = weights_of("fp8-block", 3, 128, 128)
    compare(Oracle(*pair, shared=shared, activation="e4m3fn-g128-f32"), device=H100)


def test_rows_that_are_no_whole_chunks_take_one_step_after_another() -> None:
    oracle = Oracle(*weights_of("u8-channel-f32", 3, 44, 27, bias=0.1))
    for capacity in (None, 2):
        compare(oracle, m=4, settled=False, capacity=capacity)


def test_weights_that_go_to_the_input() -> None:
    compare(Oracle(*weights_of("u4-g32-bf16", 4, 64, 32), weigh_input=True))


@pytest.mark.parametrize("capacity", [1, 3])
def test_the_last_choices_of_an_expert_without_room_contribute_nothing(capacity: int) -> None:
    compare(Oracle(*weights_of("u4-g32-bf16", 2, 64, 32)), m=9, capacity=capacity)


def test_warming_up_makes_all_that_calls_need(monkeypatch: pytest.MonkeyPatch) -> None:
    gating = Gating.of("swiglu_oai", alpha=1.125, limit=6.0)  # no other test's
    pair = weights_of("u4-g32-bf16", 4, 64, 32)
    for capacity in (None, 4):
        layer = QuantMoE(*pair, gating=gating, device=A100, layout=MASKED, capacity=capacity)
        layer.warm_up(torch.bfloat16, [3], top_k=2)
        with monkeypatch.context() as patch:
            patch.setenv("HUMMING_NO_JIT", "1")
            patch.setattr(workshop().library, "get_many", lambda *_, **__: pytest.fail("compiles"))
            x, (ids, weights) = hidden_of(3, 64, torch.bfloat16), router(3, 2, 4)
            for given in (ids, ids.int()):
                layer(x, given, weights)
            assert len(layer._calls) == 2


def test_torch_computes_the_same_and_notices_what_has_no_room() -> None:
    oracle = Oracle(*weights_of("u4-g32-bf16", 4, 64, 32))
    x, (ids, weights) = hidden_of(5, 64, torch.bfloat16), router(5, 2, 4)
    for options in ({}, {"capacity": 5}):
        layer = masked(oracle, device=None, **options)
        wanted = activated(oracle, layer, x.dtype)(x, ids, weights)
        check(layer(x, ids, weights), wanted, limit("bf16"))
    layer = masked(oracle, device=None, capacity=1)
    with pytest.raises(ConfigError, match=r"capacity=1: expected . or more: so often expert"):
        layer(x, ids, weights)


@pytest.mark.parametrize("options", [{"capacity": 0}, {"capacity": 4, "layout": None}])
def test_a_capacity_is_that_of_masked_rows(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="1 or more rows, of masked ones"):
        masked(Oracle(*weights_of("u4-g32-bf16", 2, 64, 32)), **options)
