"""QuantMoE through kernels, from routing to the weighted sum, on a simulated A100."""

from __future__ import annotations

import pytest
import torch
from gemm_oracle import check, limit, poisoned
from moe_cases import GPT_OSS, Function, Oracle, activated, dtype_of, hidden_of, router, weights_of

import humming.gating
from humming import ConfigError, Gating, GatingFunction, GemmKind, QuantMoE, register_gating

pytestmark = pytest.mark.compile

A100 = "sim:nvidia-a100"
H100 = "sim:nvidia-h100"
CONTIGUOUS = GemmKind.GROUPED_CONTIGUOUS
QUANTIZED = 1.5e-2


def moe(oracle: Oracle, **options: object) -> QuantMoE:
    function = oracle.function
    gating = Gating.of(function.name, interleaved=function.interleaved, **function.parameters)
    return QuantMoE(
        oracle.gate_up,
        oracle.down,
        gating=gating,
        weigh_input=oracle.weigh_input,
        shared=oracle.shared,
        activation=oracle.activation or None,
        device=options.pop("device", A100),
        **options,
    )


def compare(
    oracle: Oracle,
    dtype: str = "bf16",
    m: int = 5,
    top_k: int = 2,
    device: str = A100,
    layout: GemmKind | None = None,
) -> None:
    """Kernels against the oracle, some ids being nobody's, in poisoned memory."""
    experts = oracle.gate_up.experts
    x = hidden_of(m, oracle.gate_up.k, dtype_of(dtype))
    ids, weights = router(m, top_k, experts)
    ids[1::4, 0], ids[2::4], weights[2::4] = -1, experts, torch.nan
    layer = moe(oracle, device=device, layout=layout)
    for part in layer.prepare(x.dtype):
        assert layout is None or part.compute.gemm is layout
        assert part.kernels is not None, "the kernels are what this is about"
    with poisoned():
        found = layer(x, ids if m % 2 else ids.int(), weights)
    oracle = activated(oracle, layer, x.dtype)
    check(found, oracle(x, ids, weights), QUANTIZED if oracle.activation else limit(dtype))


def test_gpt_oss() -> None:
    pair = weights_of("mxfp4", 4, 96, 96, GPT_OSS, bias=0.01)
    compare(Oracle(*pair, function=GPT_OSS), m=9)


def test_deepseek_with_shared_experts() -> None:
    function = Function("swiglu_clamped", False, {"limit": 10.0})
    pair = weights_of("fp8-block", 6, 128, 64, function)
    shared = weights_of("fp8-block", 0, 128, 40, function, seed=4)
    compare(Oracle(*pair, function=function, shared=shared), "f16", m=4, top_k=4)


def test_shared_experts_of_another_width_activate_alike() -> None:
    shared = weights_of("u4-g32-bf16", 0, 64, 40, GPT_OSS, bias=0.01, seed=4)
    pair = weights_of("u4-g32-bf16", 4, 64, 32, GPT_OSS)
    compare(Oracle(*pair, function=GPT_OSS, shared=shared), m=3)


@pytest.mark.parametrize("device", ["sim:nvidia-t4", "sim:nvidia-rtx-4090"])
def test_other_devices(device: str) -> None:
    pair = weights_of("mxfp4", 2, 64, 32, GPT_OSS, bias=0.01)
    compare(Oracle(*pair, function=GPT_OSS), "f16", m=3, device=device)


def test_gpt_oss_on_hopper() -> None:
    """Rows in the order of experts are below."""
    pair = weights_of("mxfp4", 4, 96, 72, GPT_OSS, bias=0.01)
    compare(Oracle(*pair, function=GPT_OSS), m=9, device=H100, layout=GemmKind.INDEXED)


def test_qwen() -> None:
    compare(Oracle(*weights_of("int4-g128", 8, 128, 96)), top_k=5)


@pytest.mark.parametrize("activation", ["int8", "s8-g32-f32"])
def test_quantized_inputs(activation: str) -> None:
    compare(Oracle(*weights_of("u4-g32-f16", 4, 64, 32), activation=activation), "f16", m=6)


def test_rows_that_are_no_whole_chunks() -> None:
    compare(Oracle(*weights_of("u8-channel-f32", 3, 44, 27, bias=0.1)), m=4)


def test_weights_that_go_to_the_input() -> None:
    compare(Oracle(*weights_of("u4-g32-bf16", 4, 64, 32), weigh_input=True), m=5)


@pytest.mark.parametrize("name", ["relu2", "geglu"])
def test_other_functions(name: str) -> None:
    function = Function(name)
    compare(
        Oracle(*weights_of("u4-g32-bf16", 2, 64, 32, function), function=function), m=3, top_k=1
    )


def test_a_function_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(humming.gating, "_FUNCTIONS", dict(humming.gating._FUNCTIONS))
    register_gating(
        GatingFunction(
            "square_minus",
            "gate * gate * within(up, bound) - shift",
            lambda g, u, *, bound, shift: g * g * u.clamp(-bound, bound) - shift,
            parameters={"bound": 2.0, "shift": 0.25},
        )
    )
    function = Function(
        "square_minus",
        True,
        {"bound": 1.5, "shift": 0.5},
        lambda g, u, bound, shift: g**2 * u.clamp(-bound, bound) - shift,
    )
    compare(Oracle(*weights_of("u4-g32-bf16", 2, 64, 32), function=function), m=3, top_k=1)


def test_slices_of_experts_and_one_call_after_another() -> None:
    oracle = Oracle(*weights_of("mxfp4", 6, 64, 32))
    x, (ids, weights) = hidden_of(7, 64, torch.bfloat16), router(7, 3, 12)
    table = torch.full((12,), -1)
    table[torch.tensor([0, 2, 4, 7, 9, 11])] = torch.arange(6)
    for options, local in (
        ({"expert_range": (3, 9)}, ids - 3),
        ({"expert_map": table}, table[ids]),
    ):
        layer = moe(oracle, **options)
        assert layer(x[:0], ids[:0], weights[:0]).shape == (0, 64)
        for m in (7, 1):
            with poisoned():
                found = layer(x[:m], ids[:m], weights[:m])
            wanted = activated(oracle, layer, x.dtype)(x[:m], local[:m], weights[:m])
            check(found, wanted, limit("bf16"), options)


def test_warming_up_makes_all_that_calls_need(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = weights_of("u4-g32-bf16", 0, 64, 40, seed=4)
    oracle = Oracle(*weights_of("u4-g32-bf16", 4, 64, 32), shared=shared)
    layer = moe(oracle)
    layer.warm_up(torch.bfloat16, [3, 8], top_k=2)
    monkeypatch.setenv("HUMMING_NO_JIT", "1")
    library = humming.engine.workshop().library
    monkeypatch.setattr(library, "get_many", lambda *_: pytest.fail("compiles"))
    for m in (3, 8):
        x, (ids, weights) = hidden_of(m, 64, torch.bfloat16), router(m, 2, 4)
        for tensor in (ids, ids.int())[: 1 + m % 2]:
            wanted = activated(oracle, layer, x.dtype)(x, ids, weights)
            check(layer(x, tensor, weights), wanted, limit("bf16"))


@pytest.mark.parametrize("weigh_input", [False, True])
def test_warming_up_asks_as_calls_do(monkeypatch: pytest.MonkeyPatch, weigh_input: bool) -> None:
    """With weights on the input each choice has a row of its own."""
    layer = moe(Oracle(*weights_of("u4-g32-bf16", 4, 64, 32), weigh_input=weigh_input))
    asked: list[int] = []

    def products(self: humming.QuantMoE, dtype: torch.dtype, choices: int, per_row: int) -> None:
        asked.append(per_row)

    monkeypatch.setattr(humming.QuantMoE, "_products", products)
    layer.warm_up(torch.bfloat16, [8, 40], top_k=4)
    warmed = set(asked)
    x, (ids, weights) = hidden_of(8, 64, torch.bfloat16), router(8, 4, 4)
    layer(x, ids, weights)
    assert warmed == set(asked) == {1 if weigh_input else 4}


# -- rows in the order of experts ----------------------------------------------------------------


@pytest.mark.parametrize("device", [A100, H100])
def test_rows_in_order(device: str) -> None:
    pair = weights_of("mxfp4", 4, 96, 72, GPT_OSS, bias=0.01)
    compare(Oracle(*pair, function=GPT_OSS), m=40, device=device, layout=CONTIGUOUS)


def test_rows_in_order_that_are_quantized() -> None:
    oracle = Oracle(*weights_of("u4-g32-f16", 4, 64, 32), activation="int8")
    compare(oracle, "f16", m=6, layout=CONTIGUOUS)


def test_rows_in_order_that_are_no_whole_chunks() -> None:
    compare(Oracle(*weights_of("u8-channel-f32", 3, 44, 27, bias=0.1)), m=4, layout=CONTIGUOUS)


def test_rows_in_order_with_weights_that_go_to_the_input() -> None:
    shared = weights_of("u4-g32-bf16", 0, 64, 40, seed=4)
    oracle = Oracle(*weights_of("u4-g32-bf16", 4, 64, 32), weigh_input=True, shared=shared)
    compare(oracle, m=5, layout=CONTIGUOUS)


@pytest.mark.parametrize("case", ["one for all", "nobody", "same twice"])
def test_any_routing_in_order(case: str) -> None:
    oracle = Oracle(*weights_of("u4-g32-bf16", 4, 64, 32))
    layer, x, (ids, weights) = (
        moe(oracle, layout=CONTIGUOUS),
        hidden_of(9, 64, torch.bfloat16),
        router(9, 2, 4),
    )
    ids[:] = {"one for all": 3, "nobody": -1, "same twice": ids[:, :1].clone()}[case]
    with poisoned():
        found = layer(x, ids, weights)
    check(found, activated(oracle, layer, x.dtype)(x, ids, weights), limit("bf16"), case)
    assert layer(x[:0], ids[:0], weights[:0]).shape == (0, 64)


def test_both_layouts_give_the_same_bits_if_their_kernels_are_cut_alike() -> None:
    oracle = Oracle(*weights_of("mxfp4", 4, 64, 32))
    x, (ids, weights) = hidden_of(7, 64, torch.bfloat16), router(7, 2, 4)
    layers = [moe(oracle, layout=layout) for layout in (GemmKind.INDEXED, CONTIGUOUS)]
    found = [layer(x, ids, weights) for layer in layers]
    assert torch.equal(*found)


def test_a_layout_is_chosen_by_the_number_of_rows() -> None:
    layer = moe(Oracle(*weights_of("u4-g32-bf16", 4, 512, 2048)), device=H100)
    kinds = []
    for m in (1, 8, 4096, 65536):
        products = layer._products(torch.bfloat16, 2 * m, 2)
        assert products is not None
        kinds.append(products.up.gemm)
    assert kinds[0] is GemmKind.INDEXED
    assert kinds[-1] is CONTIGUOUS, "rows that are gathered cost each tile some cycles"


def test_one_packed_weight_serves_all_sizes() -> None:
    """FP8 products of one width have kernels of their own, in either layout."""
    oracle = Oracle(*weights_of("fp8-block", 3, 128, 128), activation="e4m3fn-g128-f32")
    compare(oracle, m=5, device=H100)
    layer = moe(oracle, device=H100)
    for m in (1, 4096):
        products = layer._products(torch.bfloat16, 2 * m, 2)
        assert products is not None
        assert products.up.gemm in (GemmKind.INDEXED, CONTIGUOUS)
    assert len(layer.gate_up._shelf) == 1


def test_another_state_makes_other_kernels() -> None:
    first, second = (Oracle(*weights_of("u4-g32-bf16", 4, 64, 32, seed=seed)) for seed in (0, 5))
    layer, other = moe(first), moe(second)
    x, (ids, weights) = hidden_of(5, 64, torch.bfloat16), router(5, 2, 4)
    layer(x, ids, weights)
    layer.load_state_dict(other.state_dict())
    wanted = activated(second, layer, x.dtype)(x, ids, weights)
    check(layer(x, ids, weights), wanted, limit("bf16"))


def test_a_layout_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="layout"):
        moe(Oracle(*weights_of("u4-g32-bf16", 4, 64, 32)), layout=GemmKind.DENSE)
