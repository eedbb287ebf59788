"""QuantMoE on the reference backend: what it adds up, whom it skips, and that it is a module."""

from __future__ import annotations

import copy
import io
import itertools
from dataclasses import replace

import pytest
import torch
from gemm_oracle import check, limit, poisoned
from moe_cases import GPT_OSS, Function, Oracle, dtype_of, hidden_of, router, weights_of

from humming import Gating, QuantMoE, UnsupportedError
from humming.checkpoints.mxfp4 import deinterleave_gate_up
from humming.combining import combine
from humming.errors import ConfigError
from humming.weight import CanonicalWeight

SWIGLU = Function()
#: A number between the products that is rounded the other way may be quantized the other way too.
QUANTIZED = 1.5e-2


def gating_of(function: Function) -> Gating:
    return Gating.of(function.name, interleaved=function.interleaved, **function.parameters)


def moe(oracle: Oracle, **options: object) -> QuantMoE:
    options = {"backend": "reference", "shared": oracle.shared, **options}
    if oracle.activation:
        options["activation"] = oracle.activation
    return QuantMoE(
        oracle.gate_up,
        oracle.down,
        gating=gating_of(oracle.function),
        weigh_input=oracle.weigh_input,
        **options,
    )


def run(layer: QuantMoE, *inputs: torch.Tensor) -> torch.Tensor:
    with poisoned():
        return layer(*inputs)


def small(scheme: str = "u4-g32-bf16", experts: int = 8, **options: object) -> Oracle:
    function = options.pop("function", SWIGLU)
    pair = weights_of(scheme, experts, 96, 64, function, bias=0.01)
    return Oracle(*pair, function=function, **options)


# -- what comes out ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("experts", [1, 8, 32])
@pytest.mark.parametrize("top_k", [1, 2, 4, 8])
def test_it_is_the_sum_over_pairs(experts: int, top_k: int, dtype: str) -> None:
    oracle, m = small(experts=experts), 12
    x = hidden_of(m, 96, dtype_of(dtype))
    if top_k <= experts:
        ids, weights = router(m, top_k, experts)
    else:  # the same expert more than once
        ids, weights = torch.zeros(m, top_k, dtype=torch.int64), torch.rand(m, top_k)
    found = run(moe(oracle), x, ids, weights)
    assert found.dtype == x.dtype
    check(found, oracle(x, ids, weights), limit(dtype), (experts, top_k))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_roundings_between_the_products_cost_little(dtype: str) -> None:
    oracle = small(experts=8)
    x = hidden_of(12, 96, dtype_of(dtype))
    ids, weights = router(12, 4, 8)
    exact = replace(oracle, rounds=False)(x, ids, weights)
    check(run(moe(oracle), x, ids, weights), exact, 1.5 * limit(dtype))


@pytest.mark.parametrize(
    "case", ["one for all", "one each", "same twice", "half precision weights", "int32"]
)
def test_any_routing(case: str) -> None:
    oracle = small()
    x = hidden_of(16, 96, torch.float16)
    ids, weights = router(16, 2, 8)
    if case == "one for all":
        ids = torch.full((16, 2), 5)
    elif case == "one each":
        ids = torch.arange(32).view(16, 2) % 8
    elif case == "same twice":
        ids[:, 1] = ids[:, 0]
    elif case == "half precision weights":
        weights = weights.half()
    else:
        ids = ids.int()
    check(run(moe(oracle), x, ids, weights), oracle(x, ids, weights), limit("f16"), case)


def test_tokens_in_another_order_give_the_same_rows() -> None:
    oracle = small()
    x = hidden_of(33, 96, torch.bfloat16)
    ids, weights = router(33, 4, 8)
    order = torch.randperm(33, generator=torch.Generator().manual_seed(0))
    layer = moe(oracle)
    found, moved = layer(x, ids, weights), layer(x[order], ids[order], weights[order])
    check(moved, found[order].double(), 4e-3)
    alone = torch.cat([layer(x[i : i + 1], ids[i : i + 1], weights[i : i + 1]) for i in range(33)])
    check(alone, found.double(), 4e-3)


def test_a_factor_of_the_weights_is_a_factor_of_the_result() -> None:
    """R61: applied once."""
    layer, x = moe(small()), hidden_of(5, 96, torch.float32)
    ids, weights = router(5, 2, 8)
    # A power of two, by which every product and sum is multiplied exactly.
    assert torch.equal(layer(x, ids, weights * 4), layer(x, ids, weights) * 4)


@pytest.mark.parametrize("name", ["relu2", "gelu_tanh", "geglu_tanh", "reglu"])
def test_functions_without_a_gate_and_with(name: str) -> None:
    """R59, R60."""
    oracle = small(function=Function(name))
    x = hidden_of(9, 96, torch.float16)
    ids, weights = router(9, 2, 8)
    check(run(moe(oracle), x, ids, weights), oracle(x, ids, weights), limit("f16"), name)


def test_weights_can_go_to_the_input() -> None:
    oracle = small(weigh_input=True)
    x = hidden_of(9, 96, torch.bfloat16)
    ids, weights = router(9, 2, 8)
    weights = weights + 0.5
    found = run(moe(oracle), x, ids, weights)
    check(found, oracle(x, ids, weights), limit("bf16"))
    after = Oracle(oracle.gate_up, oracle.down)
    with pytest.raises(AssertionError, match="error"):
        check(found, after(x, ids, weights), limit("bf16"))


def test_shared_experts_see_every_token() -> None:
    shared = weights_of("u8-g32-bf16", 0, 96, 128, bias=0.02, seed=5)
    oracle = small(shared=shared)
    x = hidden_of(9, 96, torch.bfloat16)
    ids, weights = router(9, 2, 8)
    ids[3] = -1
    layer = moe(oracle)
    check(run(layer, x, ids, weights), oracle(x, ids, weights), limit("bf16"))
    assert {"shared_gate_up.packed", "shared_down.packed"} < set(layer.state_dict())


def test_sums_are_taken_in_the_order_of_choices() -> None:
    rows = torch.tensor([2.0**24, 1.0, 1.0, -(2.0**24)]).view(1, 4, 1)
    ids = torch.zeros(1, 4, dtype=torch.int32)
    assert float(combine(rows, ids, 1)) == 0
    assert float(combine(rows[:, [0, 3, 1, 2]], ids, 1)) == 2
    rows[0, 1] = torch.nan
    ids[0, 1] = -1
    weights = torch.tensor([[1.0, torch.nan, 3.0, 1.0]])
    assert float(combine(rows, ids, 1, weights)) == 4  # 2^24 + 3 is rounded up
    assert float(combine(rows, ids, 1, weights, torch.ones(1, 1))) == 5


# -- T02: expert parallel ----------------------------------------------------------------------

LOCAL = (4, 12)


def sentinels(m: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of 16 experts, 30 % of them -1; token 3 has none, and expert 6 no token."""
    ids, weights = router(m, 8, 16)
    noise = torch.rand(m, 8, generator=torch.Generator().manual_seed(7))
    ids[noise < 0.3] = -1
    ids[ids == 6] = -1
    ids[3:4] = -1
    return ids, weights


@pytest.fixture(scope="module", params=["u4-g32-bf16", "mxfp4"])
def slice_of_16(request: pytest.FixtureRequest) -> Oracle:
    return Oracle(*weights_of(request.param, 8, 512, 256))


@pytest.mark.parametrize(
    ("m", "ids_dtype", "mapped"),
    [
        *itertools.product([0, 1, 32], [torch.int32, torch.int64], [False, True]),
        (4096, torch.int64, False),
        (4096, torch.int32, True),
    ],
)
def test_t02_ids_that_are_elsewhere(
    slice_of_16: Oracle, m: int, ids_dtype: torch.dtype, mapped: bool
) -> None:
    ids, weights = sentinels(m)
    x = hidden_of(m, 512, torch.bfloat16)
    # Local experts in a row, or strewn: number e of the model is expert table[e] here.
    table = torch.full((16,), -1, dtype=torch.int32)
    table[torch.tensor([1, 3, 5, 6, 9, 11, 12, 15])] = torch.arange(8, dtype=torch.int32)
    where = {"expert_map": table} if mapped else {"expert_range": LOCAL}
    layer = moe(slice_of_16, **where)
    found = run(layer, x, ids.to(ids_dtype), weights)
    assert found.shape == (m, 512)
    assert found.isfinite().all()
    local = torch.where(ids >= 0, table[ids].long(), -1) if mapped else ids - LOCAL[0]
    rows = torch.arange(m)[:: max(m // 32, 1)]
    expected = slice_of_16(x[rows], local[rows], weights[rows])
    if m:
        check(found[rows], expected, limit("bf16"))
    if m > 3:
        assert torch.equal(found[3], torch.zeros(512))
    assert run(layer, x[:1], ids[:1], weights[:1]).shape == (min(m, 1), 512)


def test_slices_of_experts_add_up_to_the_whole() -> None:
    oracle = small(experts=8)
    x = hidden_of(20, 96, torch.float32)
    ids, weights = router(20, 4, 8)
    whole = moe(oracle)(x, ids, weights)
    parts = [moe(oracle, expert_range=(e, e + 2))(x, ids, weights) for e in range(0, 8, 2)]
    assert torch.allclose(sum(parts), whole, rtol=1e-5, atol=1e-5 * float(whole.abs().max()))
    assert not torch.allclose(parts[0], whole)
    # A rank's own weights, or those of all with its range.
    own = [w.replace(experts=2, **{n: t[2:4] for n, t in w.tensors()})
           for w in (oracle.gate_up, oracle.down)]  # fmt: skip
    mine = QuantMoE(*own, expert_range=(2, 4), backend="reference")
    assert torch.equal(mine(x, ids, weights), parts[1])


def test_ids_that_nobody_has_are_skipped() -> None:
    oracle = small()
    x = hidden_of(4, 96, torch.float32)
    ids = torch.tensor([[8, 2**31 - 1], [-(2**31), 0], [-1, -2], [2**40, 3]])
    weights = torch.ones(4, 2)
    check(run(moe(oracle), x, ids, weights), oracle(x, ids, weights), limit("f32"))
    check(run(moe(oracle, expert_range=(0, 8)), x, ids, weights), oracle(x, ids, weights), 1e-5)


# -- T11 and other real blocks -----------------------------------------------------------------


def scaled_to_clamps(oracle: Oracle, x: torch.Tensor) -> torch.Tensor:
    """Hidden states so large that a fifth of the first expert's gates are above the limit."""
    weight = oracle.gate_up.expert(0).dequantize(torch.float64)
    bound = (x[:8].double() @ weight[0::2].T).flatten().quantile(0.8)
    return (x.double() * (oracle.function.parameters["limit"] / bound)).to(x.dtype)


@pytest.mark.parametrize("size", [96, pytest.param(2880, marks=pytest.mark.slow)])
def test_t11_gpt_oss(size: int) -> None:
    pair = weights_of("mxfp4", 4, size, size, GPT_OSS, bias=0.96 / size)
    oracle = Oracle(*pair, function=GPT_OSS)
    m = 24 if size < 1000 else 4
    ids, weights = router(m, 2, 4)
    x = scaled_to_clamps(oracle, hidden_of(m, size, torch.bfloat16))
    layer = moe(oracle)
    found, expected = run(layer, x, ids, weights), oracle(x, ids, weights)
    check(found, expected, limit("bf16"))
    if size > 1000:
        return
    # The data would show a clamp that is missing, another limit and another alpha.
    for other in ({"alpha": 1.702, "limit": 1.0}, {"alpha": 1.702, "limit": 100.0},
                  {"alpha": 1.0, "limit": 7.0}):  # fmt: skip
        changed = replace(oracle, function=Function("swiglu_oai", True, other))
        reference = changed(x, ids, weights)
        with pytest.raises(AssertionError, match="error"):
            check(found, reference, limit("bf16"))
        check(run(moe(changed), x, ids, weights), reference, limit("bf16"))


def test_t11_gates_above_ups() -> None:
    pair = weights_of("mxfp4", 4, 96, 96, GPT_OSS, bias=0.01)
    function = Function("swiglu_oai", False, GPT_OSS.parameters)
    split = Oracle(deinterleave_gate_up(pair[0]), pair[1], function)
    x = hidden_of(24, 96, torch.float32)
    ids, weights = router(24, 2, 4)
    woven = moe(Oracle(*pair, function=GPT_OSS))(x, ids, weights)
    found = moe(split)(x, ids, weights)
    check(found, split(x, ids, weights), limit("f32"))
    assert torch.allclose(found, woven, rtol=1e-4, atol=1e-5 * float(woven.abs().max()))
    wrong = Oracle(pair[0], pair[1], function)
    with pytest.raises(AssertionError, match="error"):
        check(found, wrong(x, ids, weights), 1e-2)


def test_t11_deepseek_v4() -> None:
    function = Function("swiglu_clamped", False, {"limit": 10.0})
    oracle = small("fp8", function=function)
    x = hidden_of(24, 96, torch.float16) * 4
    ids, weights = router(24, 2, 8)
    check(run(moe(oracle), x, ids, weights), oracle(x, ids, weights), limit("f16"))
    with pytest.raises(UnsupportedError, match="no parameter alpha"):
        QuantMoE(oracle.gate_up, oracle.down, gating=Gating.of("swiglu_clamped", alpha=1.702))


@pytest.mark.parametrize(
    ("scheme", "activation", "experts", "top_k", "sizes"),
    [
        ("fp8-block", "", 16, 8, (448, 256)),  # DeepSeek-V3: 256, top-8, 7168 x 2048
        ("fp8-block", "e4m3fn-g128-f32", 16, 8, (448, 256)),
        ("int4-g128", "", 32, 8, (256, 192)),  # Qwen3-30B-A3B: 128, top-8, 2048 x 768
        ("nvfp4", "", 32, 8, (256, 96)),
        ("mxfp4", "fp8", 8, 4, (96, 96)),
        ("int4-g128", "int8", 8, 4, (256, 128)),
    ],
)
def test_blocks_of_real_models(scheme, activation, experts, top_k, sizes) -> None:
    oracle = Oracle(*weights_of(scheme, experts, *sizes), activation=activation)
    x = hidden_of(17, sizes[0], torch.bfloat16)
    ids, weights = router(17, top_k, experts)
    most = QUANTIZED if activation else limit("bf16")
    check(run(moe(oracle), x, ids, weights), oracle(x, ids, weights), most, scheme)


# -- a module like any other -------------------------------------------------------------------


def test_state_dict_goes_round() -> None:
    layer = moe(small())
    other = QuantMoE(*weights_of("u4-g32-bf16", 8, 96, 64, bias=0.3, seed=9), backend="reference")
    x, (ids, weights) = hidden_of(3, 96, torch.float32), router(3, 2, 8)
    wanted = layer(x, ids, weights)
    assert not torch.equal(other(x, ids, weights), wanted)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x, ids, weights), wanted)
    fields = ("bias", "packed", "scales")
    assert set(other.state_dict()) == {f"{p}.{f}" for p in ("gate_up", "down") for f in fields}
    assert not list(other.parameters())


def test_copies_and_dtypes_are_those_of_its_parts() -> None:
    table = torch.arange(8, dtype=torch.int64).flip(0)
    layer = moe(small(), expert_map=table)
    x, (ids, weights) = hidden_of(3, 96, torch.float32), router(3, 2, 8)
    wanted = layer(x, ids, weights)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for twin in (
        copy.deepcopy(layer), torch.load(file, weights_only=False), layer.half(), layer.bfloat16()
    ):  # fmt: skip
        assert torch.equal(twin(x, ids, weights), wanted)
    twin = copy.deepcopy(layer)
    twin.down.packed.zero_()
    assert not torch.equal(twin(x, ids, weights), wanted)
    assert torch.equal(layer(x, ids, weights), wanted)
    assert (layer.hidden_size, layer.intermediate_size, layer.experts) == (96, 64, 8)
    assert "8 experts, gating=swiglu" in repr(layer)
    assert "from 2" in repr(moe(small(), expert_range=(2, 4)))
    assert layer.to("meta").expert_map.device.type == "meta"


def test_it_is_traced_as_one_operator() -> None:
    layer = moe(small(), expert_range=(0, 8))
    x, (ids, weights) = hidden_of(3, 96, torch.float32), router(3, 2, 8)
    compiled = torch.compile(
        lambda *a: layer(*a) * 2, fullgraph=True, backend="aot_eager", dynamic=True
    )
    for m in (3, 2):
        found = compiled(x[:m], ids[:m], weights[:m])
        assert torch.equal(found, layer(x[:m], ids[:m], weights[:m]) * 2)
    arguments = (x, layer._handle, 96, ids, weights)
    torch.library.opcheck(torch.ops.humming.experts.default, arguments)
    with pytest.raises(ConfigError, match="a layer that still exists"):
        torch.ops.humming.experts(x, layer._handle + 1, 96, ids, weights)


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": torch.ones(4, 97)}, r"hidden=\[4, 97\]: expected \[M, 96\]"),
        ({"hidden": torch.ones(4, 1, 96)}, r"hidden=.*\[M, 96\]"),
        ({"hidden": torch.ones(4, 96, dtype=torch.float64)}, r"dtype=torch\.float64"),
        ({"hidden": torch.ones(4, 96, device="meta")}, "hidden='meta'"),
        ({"ids": torch.zeros(4, 2)}, "an int32 or int64 tensor"),
        ({"ids": torch.zeros(4, dtype=torch.int32)}, r"\[4, top_k\]"),
        ({"ids": torch.zeros(3, 2, dtype=torch.int32)}, r"\[4, top_k\]"),
        ({"ids": torch.zeros(4, 0, dtype=torch.int32)}, r"\[4, top_k\]"),
        ({"ids": torch.zeros(4, 2, dtype=torch.int32, device="meta")}, "topk_ids='meta'"),
        ({"weights": torch.ones(4, 3)}, r"\[4, 2\], as topk_ids"),
        ({"weights": torch.ones(4, 2, dtype=torch.int64)}, "a float tensor"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(change: dict[str, torch.Tensor], message: str) -> None:
    inputs = {
        "hidden": torch.ones(4, 96),
        "ids": torch.zeros(4, 2, dtype=torch.int64),
        "weights": torch.ones(4, 2),
    }
    with pytest.raises(ConfigError, match=message):
        moe(small())(*(inputs | change).values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gating": "swish"}, "one of silu"),
        ({"gating": "relu2"}, r"gate_up of experts=\[128, 96\]: expected \[64, 96\]"),
        ({"expert_range": (3, 3)}, "not empty"),
        ({"expert_range": (-1, 3)}, "not empty"),
        ({"expert_range": (4, 9)}, "one among 8"),
        ({"expert_map": torch.zeros(16)}, "an int32 or int64 tensor"),
        ({"expert_map": torch.full((16,), 8)}, r"numbers from -1 \(elsewhere\) to 7"),
        ({"expert_map": torch.full((16,), -2)}, "numbers from -1"),
        ({"shared": "experts"}, "no dimension of experts"),
        ({"shared": "narrow"}, r"\[96, J\]"),
        ({"activation": "fp9"}, "humming formats"),
    ],
)
def test_parts_that_do_not_fit_are_refused(options: dict[str, object], message: str) -> None:
    oracle = small()
    shared: dict[object, tuple[CanonicalWeight, CanonicalWeight]] = {
        "experts": (oracle.gate_up, oracle.down),
        "narrow": weights_of("u4-g32-bf16", 0, 64, 64),
    }
    if "shared" in options:
        options = {"shared": shared[options["shared"]]}
    with pytest.raises(ConfigError, match=message):
        QuantMoE(oracle.gate_up, oracle.down, **options)  # type: ignore[arg-type]


def test_products_that_do_not_fit_are_refused() -> None:
    oracle = small()
    other = weights_of("u4-g32-bf16", 4, 96, 64)
    with pytest.raises(ConfigError, match="the same number of experts"):
        QuantMoE(oracle.gate_up, other[1])
    with pytest.raises(ConfigError, match="the same number of experts"):
        QuantMoE(*weights_of("u4-g32-bf16", 0, 96, 64))
    with pytest.raises(ConfigError, match="gate_up of experts"):
        QuantMoE(oracle.down, oracle.gate_up)
    elsewhere = oracle.down.to("meta")
    with pytest.raises(ConfigError, match="down of experts='meta'"):
        QuantMoE(oracle.gate_up, elsewhere)
