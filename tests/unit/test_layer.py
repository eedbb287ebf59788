"""QuantLinear and matmul(): a quantized weight as a layer."""

from __future__ import annotations

import copy
import io

import core_oracle as oracle
import pytest
import torch
from torch import nn

from humming import QuantLinear, matmul, quantize
from humming.activations import quantize_activation
from humming.errors import ConfigError, HummingError, UnsupportedError
from humming.formats.activation import ActivationScheme

N, K = 24, 64
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
LIMITS = {torch.float16: 1e-3, torch.bfloat16: 4e-3, torch.float32: 1e-5}


def layer(scheme="u4+z-g16-f16", experts=0, **options) -> QuantLinear:
    more = {name: options.pop(name) for name in ("activation", "backend") if name in options}
    return QuantLinear(oracle.random_weight(scheme, N, K, experts, **options), **more)


def wanted(module: QuantLinear, x: torch.Tensor) -> torch.Tensor:
    product = x.double() @ torch.from_numpy(oracle.dequantized(module.weight)).T
    return product if module.weight.bias is None else product + module.weight.bias.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(K,), (1, K), (5, K), (2, 3, K), (2, 1, 3, K)])
def test_any_leading_dimensions_and_every_dtype(shape, dtype):
    module = layer(bias=torch.float32)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = module(x)
    assert found.shape == (*shape[:-1], N)
    assert found.dtype == dtype
    assert found.is_contiguous()
    assert (
        oracle.relative_errors(found.view(-1, N), wanted(module, x).view(-1, N))[0] <= LIMITS[dtype]
    )
    assert torch.equal(matmul(x, module.weight), found)


@pytest.mark.parametrize("shape", [(0, K), (3, 0, K), (0, 3, K)])
def test_no_rows_give_no_rows(shape):
    found = layer(bias=torch.float16)(torch.zeros(shape))
    assert found.shape == (*shape[:-1], N)


def test_strided_inputs_give_the_same_bits():
    module, x = layer(), torch.randn(5, K)
    for strided in (x.T.contiguous().T, torch.stack([x, x], 2)[..., 0], x.flip(0).flip(0)):
        assert torch.equal(module(strided), module(x))
    wide = torch.randn(4, 3, K).transpose(0, 1)
    assert torch.equal(module(wide), module(wide.contiguous()))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.half(),
        lambda m: m.double(),
        lambda m: m.bfloat16(),
        lambda m: m.to(torch.float16),
        lambda m: m.to("cpu", torch.half),
    ],
)
def test_a_change_of_dtype_leaves_the_numbers_as_the_checkpoint_says(change):
    for scheme in ("fp8", "u4+z-g16-bf16", "nvfp4"):
        module = layer(scheme, bias=torch.float32)
        before = {name: t.clone() for name, t in module.weight.tensors()}
        x = torch.randn(3, K)
        product = module(x)
        changed = change(module)
        assert changed is module
        for name, tensor in module.weight.tensors():
            assert tensor.dtype == before[name].dtype
            assert torch.equal(tensor, before[name])
        assert torch.equal(module(x), product)


def test_state_dict_goes_round():
    module, other = layer(bias=torch.float16), layer(bias=torch.float16, seed=9)
    x = torch.randn(3, K)
    assert not torch.equal(module(x), other(x))
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(module(x), other(x))
    assert sorted(module.state_dict()) == ["bias", "packed", "scales", "zeros"]
    assert not list(module.parameters())
    with pytest.raises(RuntimeError, match="size mismatch"):
        layer("u4+z-g32-f16", bias=torch.float16).load_state_dict(module.state_dict())


def test_a_copy_is_a_layer_of_its_own():
    module, x = layer(), torch.randn(3, K)
    before = module(x)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), before)
    twin = copy.deepcopy(module)
    twin.packed.zero_()
    assert torch.equal(module(x), before)
    assert not torch.equal(twin(x), before)


def test_inside_a_model_it_is_a_module_like_any_other():
    model = nn.Sequential(layer(), nn.ReLU()).half()
    assert model(torch.randn(3, K).half()).dtype == torch.float16
    assert {"0.packed", "0.scales", "0.zeros"} == set(model.state_dict())
    assert "u4+z-g16-f16, [24, 64]" in repr(model)
    assert (model[0].in_features, model[0].out_features) == (K, N)


@pytest.mark.parametrize("bias", [True, False])
def test_from_float_quantizes_a_linear_layer(bias):
    source = nn.Linear(K, N, bias=bias)
    module = QuantLinear.from_float(source, "u8+z-g16-f16")
    x = torch.randn(5, K)
    assert oracle.relative_errors(module(x), source(x).detach())[0] < 0.01
    assert (module.weight.bias is None) == (not bias)
    assert torch.equal(
        module.weight.packed, quantize(source.weight.detach(), "u8+z-g16-f16").packed
    )
    other = QuantLinear.from_float(source.weight, "u8+z-g16-f16", bias=torch.ones(N))
    assert torch.equal(other.weight.bias, torch.ones(N))


def test_from_float_takes_experts_and_clipping():
    source = oracle.realistic_weights(2 * N, K).view(2, N, K)
    module = QuantLinear.from_float(source, "u3-g32-f16", clip="mse")
    assert torch.equal(module.weight.packed, quantize(source, "u3-g32-f16", clip="mse").packed)
    with pytest.raises(ConfigError, match="'max' or 'mse'"):
        QuantLinear.from_float(source, "u3-g32-f16", clip="x")


def test_a_bias_replaces_the_stored_one():
    weight = oracle.random_weight("u4-g16-f16", N, K, bias=torch.float16)
    x = torch.zeros(2, K)
    assert torch.equal(QuantLinear(weight, bias=torch.ones(N))(x), torch.ones(2, N))
    with pytest.raises(ConfigError, match=r"bias=.*\[24\]"):
        QuantLinear(weight, bias=torch.ones(K))


@pytest.mark.parametrize("act", ["int8", "fp8", "mxfp4", "e2m1-g16-e4m3fn-token", "f16", "bf16"])
def test_an_activation_can_be_asked_for(act):
    module = layer("u3-g32-f16", activation=act)
    x = torch.randn(4, K)
    scheme = ActivationScheme.parse(act)
    if scheme.is_quantized:
        operand = quantize_activation(x, scheme).dequantize(torch.float64)
        assert oracle.relative_errors(module(x), wanted(module, operand))[0] < 1e-5
    assert torch.equal(matmul(x, module.weight, activation=act), module(x))


def test_what_the_checkpoint_asks_for_is_done_with_its_stored_scale():
    weight = oracle.random_weight("fp8", N, K, activation="fp8-static")
    x = torch.randn(4, K)
    operand = quantize_activation(x, weight.activation, weight.input_scale).dequantize(
        torch.float64
    )
    module = QuantLinear(weight)
    assert oracle.relative_errors(module(x), wanted(module, operand))[0] < 1e-5


@pytest.mark.parametrize(
    ("scheme", "act", "message"),
    [
        ("fp8", "int8", "no 8-bit operand format beside s8 holds every e4m3fn value"),
        ("u8-g32-f16", "int4", "u8 weights are wider than s4 activations"),
        ("u4-g48-f16", "e4m3fn-g32-f32", "one must divide the other"),
    ],
)
def test_an_activation_that_cannot_be_is_refused_with_the_reason(scheme, act, message):
    with pytest.raises(UnsupportedError, match=message):
        layer(scheme, activation=act)(torch.randn(2, K))


def test_other_nonsense_is_refused_early():
    with pytest.raises(ConfigError, match="a name that `humming formats` lists"):
        layer(activation="fp9")
    with pytest.raises(HummingError, match="nobody"):
        layer(backend="nobody")(torch.randn(2, K))
    with pytest.raises(ConfigError, match="this weight stores no input_scale"):
        layer("fp8", activation="fp8-static")(torch.randn(2, K))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.randn(2, K + 1), r"x=\[2, 65\]: expected a last dimension of k=64"),
        (torch.randn(K, 2), "a last dimension of k=64"),
        (torch.tensor(1.0), "a last dimension of k=64"),
        (torch.randn(2, K, dtype=torch.float64), r"dtype=torch\.float64"),
        (torch.ones(2, K, dtype=torch.int32), r"dtype=torch\.int32"),
        (torch.ones(2, K, device="meta"), "a tensor on cpu, where the weight is"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(x, message):
    module = layer()
    with pytest.raises(ConfigError, match=message):
        module(x)
    with pytest.raises(ConfigError, match=message):
        matmul(x, module.weight)


# -- experts -----------------------------------------------------------------------------------

E = 4


def routings(x: torch.Tensor) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Keyword to (activations, routing) for six rows, of which expert 2 gets none."""
    return {
        "expert_ids": (x, torch.tensor([[0, 1], [3, -1], [1, 0], [3, 3], [-1, -1], [0, 3]])),
        "expert_offsets": (x, torch.tensor([0, 2, 5, 5, 6])),
        "expert_counts": (x.expand(E, 6, K), torch.tensor([2, 6, 0, 1])),
    }


@pytest.mark.parametrize("kind", ["expert_ids", "expert_offsets", "expert_counts"])
def test_experts_take_one_kind_of_routing(kind):
    module = layer("mxfp4", E, bias=torch.float32)
    rows = torch.randn(6, K)
    x, routing = routings(rows)[kind]
    found = module(x, **{kind: routing})
    each = torch.stack([matmul(rows, module.weight.expert(e)) for e in range(E)])
    if kind == "expert_ids":
        picked = each[routing.clamp(min=0), torch.arange(6)[:, None]]
        expected = picked * (routing >= 0)[..., None]
    elif kind == "expert_offsets":
        expected = torch.cat([each[0, :2], each[1, 2:5], each[3, 5:]])
    else:
        expected = each * (torch.arange(6) < routing[:, None])[..., None]
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))
    assert torch.equal(matmul(x, module.weight, **{kind: routing.int()}), found)


@pytest.mark.parametrize(
    ("x", "routing", "message"),
    [
        ((6, K), {}, "exactly one of expert_ids, expert_offsets, expert_counts"),
        ((6, K), {"expert_ids": [[0]] * 6, "expert_offsets": [0, 1, 2, 3, 6]}, "exactly one of"),
        ((6, K), {"expert_ids": [[0, 4]] * 6}, r"\(0, 4\): expected ids from -1 \(skip\) to 3"),
        ((6, K), {"expert_ids": [[-2, 0]] * 6}, r"ids from -1 \(skip\) to 3"),
        ((6, K), {"expert_ids": [[0, 1]] * 5}, r"\[M, top_k\] beside x"),
        ((6, K), {"expert_ids": [0] * 6}, r"\[M, top_k\] beside x"),
        ((6, 3, K), {"expert_ids": [[0, 1]] * 6}, r"\[M, top_k\] beside x"),
        ((6, K), {"expert_ids": [[0.0]] * 6}, "an int32 or int64 tensor"),
        ((6, K), {"expert_offsets": [0, 6]}, r"\[5\] offsets beside x \[M, K\]"),
        ((6, K), {"expert_offsets": [0, 1, 5, 4, 6]}, "ascending"),
        ((6, K), {"expert_counts": [1, 1, 1, 1]}, r"\[4\] counts beside x \[4, capacity, K\]"),
        ((E, 6, K), {"expert_counts": [1, 1, 1, 7]}, "0 to the capacity 6"),
        ((E, 6, K), {"expert_counts": [1, 1]}, r"\[4\] counts beside x"),
        ((6, K + 1), {"expert_ids": [[0]] * 6}, "a last dimension of k=64"),
    ],
)  # fmt: skip
def test_routing_that_does_not_fit_is_refused(x, routing, message):
    module = layer("mxfp4", E)
    with pytest.raises(ConfigError, match=message):
        module(torch.randn(x), **{name: torch.tensor(value) for name, value in routing.items()})


def test_routing_without_experts_is_refused():
    with pytest.raises(ConfigError, match="no routing: the weight has no experts"):
        layer()(torch.randn(2, K), expert_ids=torch.zeros(2, 1, dtype=torch.int64))


def test_no_tokens_are_no_tokens_for_experts_too():
    module = layer("mxfp4", E)
    ids = torch.zeros(0, 2, dtype=torch.int64)
    assert module(torch.zeros(0, K), expert_ids=ids).shape == (0, 2, N)
    assert module(torch.zeros(0, K), expert_offsets=torch.zeros(5, dtype=torch.int64)).shape == (
        0,
        N,
    )
    counts = torch.zeros(E, dtype=torch.int64)
    assert module(torch.zeros(E, 0, K), expert_counts=counts).shape == (E, 0, N)


def test_a_fallback_is_taken_forbidden_or_allowed_as_asked():
    """No 4-bit float holds every zero-pointed 4-bit code, so e2m1 has to give way here (R13)."""
    weight = oracle.random_weight("u4+z-g16-f16", N, K)
    asking = weight.replace(activation=ActivationScheme.parse("e2m1-g16-e4m3fn-token"))
    x = torch.randn(3, K)
    assert str(QuantLinear(asking).prepare(x.dtype).layer.activation) != str(asking.activation)
    with pytest.raises(UnsupportedError, match="would work"):
        QuantLinear(asking, allow_fallback=False)(x)
    with pytest.raises(UnsupportedError, match="would work"):
        QuantLinear(weight, activation="e2m1")(x)
    assert QuantLinear(weight, activation="e2m1", allow_fallback=True)(x).shape == (3, N)
