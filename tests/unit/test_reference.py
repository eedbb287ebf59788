"""The reference backend against float64: cases T01 to T04 and T15 of the black-box list, small."""

from __future__ import annotations

import core_oracle as oracle
import numpy as np
import pytest
import torch

from humming.activations import quantize_activation
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.errors import ConfigError
from humming.formats.activation import ActivationScheme
from humming.formats.scheme import WeightScheme
from humming.formats.table import number_format
from humming.formats.tensors import TORCH_FLOATS
from humming.fusing import stack_experts
from humming.packing import pack
from humming.quantizing import quantize
from humming.reference import ReferenceBackend
from humming.weight import CanonicalWeight

BACKEND = ReferenceBackend(profile=None)  # it asks nothing of a device
LIMITS = {torch.float16: 1e-3, torch.bfloat16: 4e-3, torch.float32: 1e-5}
KINDS = {"expert_ids": GemmKind.INDEXED, "expert_offsets": GemmKind.GROUPED_CONTIGUOUS,
         "expert_counts": GemmKind.GROUPED_MASKED}  # fmt: skip


def config(weight: CanonicalWeight, act: str, output: torch.dtype) -> LayerConfig:
    return LayerConfig(
        n=weight.n,
        k=weight.k,
        experts=weight.experts,
        weight=weight.scheme,
        activation=ActivationScheme.parse(act),
        output=number_format(output),
        bias=weight.bias is not None,
        act_order=weight.permutation is not None,
    )


def multiply(x, weight, act=None, output=None, **routing):
    """What the backend computes; activations unquantized and results as x is, unless told."""
    layer = config(weight, act or number_format(x.dtype).name, output or x.dtype)
    gemm = KINDS[next(iter(routing))] if routing else GemmKind.DENSE
    compute = ComputeConfig(gemm=gemm)
    assert BACKEND.refuse(layer, compute) is None
    return BACKEND.prepare(weight, layer, compute)(x, **routing)


def close(found: torch.Tensor, wanted: torch.Tensor | np.ndarray, scale: float = 1.0) -> None:
    """Limits of rule 3, over everything and for the worst row."""
    whole, row = oracle.relative_errors(found, wanted)
    assert whole <= LIMITS[found.dtype] * scale
    assert row <= 3 * LIMITS[found.dtype] * scale


def integer_weight(bits: int, group: int, shape: tuple[int, ...], zeros: str, seed: int):
    """(weight, its float64 values, codes, zero points spread, scales spread)."""
    rng = np.random.default_rng(seed)
    *lead, n, k = shape
    size = k if group < 0 else group
    blocks = (*lead, n, k // size)
    codes = rng.integers(0, 1 << bits, shape).astype(np.uint8)
    limits = {"random": (0, 1 << bits), "lowest": (0, 1), "highest": ((1 << bits) - 1, 1 << bits)}
    zero = rng.integers(*limits[zeros], blocks).astype(np.uint8)
    scale = (2.0 ** rng.uniform(-10, -4, blocks)).astype(np.float16)
    granularity = "channel" if group < 0 else f"g{group}"
    weight = CanonicalWeight(
        scheme=WeightScheme.parse(f"u{bits}+z-{granularity}-f16"),
        n=n,
        k=k,
        experts=lead[0] if lead else 0,
        packed=pack(torch.from_numpy(codes), bits),
        scales=torch.from_numpy(scale),
        zeros=torch.from_numpy(zero),
    )
    zero, scale = (np.repeat(a.astype(np.float64), size, axis=-1) for a in (zero, scale))
    return weight, (codes - zero) * scale, zero, scale


@pytest.mark.parametrize("group", [16, 32, 64, 128, -1])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_t03_zero_points_of_every_width_and_group(bits, group):
    x = oracle.realistic_activations(7, 1024)
    for zeros in ("random", "lowest", "highest"):
        weight, values, zero, scale = integer_weight(bits, group, (256, 1024), zeros, bits)
        plain = weight.replace(
            scheme=WeightScheme.parse(str(weight.scheme).replace("+z", "")), zeros=None
        )
        for dtype in (torch.float16, torch.bfloat16):
            operand = x.to(dtype)
            wanted = operand.double().numpy() @ values.T
            close(multiply(operand, weight), wanted)
            # Control: the same numbers as symmetric codes plus a correction per group.
            correction = operand.double().numpy() @ (((1 << bits - 1) - zero) * scale).T
            symmetric = multiply(operand, plain, output=torch.float32).double().numpy()
            assert np.allclose(
                symmetric + correction, wanted, rtol=0, atol=1e-5 * np.abs(symmetric).max()
            )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("bits", "group"), [(2, 16), (3, 32), (4, 64), (8, 128), (4, -1)])
def test_t03_zero_points_in_experts(bits, group, dtype):
    weight, values, _, _ = integer_weight(bits, group, (8, 256, 1024), "random", bits)
    x = oracle.realistic_activations(9, 1024).to(dtype)
    ids = torch.randint(0, 8, (9, 2), generator=torch.Generator().manual_seed(0))
    found = multiply(x, weight, expert_ids=ids)
    wanted = np.einsum("tk,tcnk->tcn", x.double().numpy(), values[ids.numpy()])
    close(found, wanted)


T04 = [
    (2048, 10944, "g64"),
    (8192, 7392, "g32"),
    (4640, 4096, "g128"),
    (2880, 2880, "g32"),
    (192, 320, "g32"),
    (576, 2560, "channel"),
    (96, 8256, "g64"),
    (1440, 2880, "g32"),
    (512, 14784, "g64"),
    (8, 32, "g32"),
    (1, 64, "g32"),
    (360, 512, "g64"),
    (129, 257, "g32"),
]


def coded(scheme: str, n: int, k: int, seed: int = 0) -> tuple[CanonicalWeight, torch.Tensor]:
    """A weight of random codes, and its values spread by plain indexing."""
    template = oracle.random_weight(scheme, 1, 1)
    code, granularity = template.scheme.code, template.scheme.granularity
    rng = np.random.default_rng(seed)
    values = np.array(oracle.all_values(code))
    finite = np.flatnonzero(np.isfinite(values))
    codes = rng.choice(finite, (n, k)).astype(np.uint8)
    width = granularity.k or k
    scales = oracle.stored(template.scheme.scale, (n, -(-k // width)), rng)
    numbers = scales.double().numpy()
    if template.scheme.scale.name == "e8m0":
        numbers = 2.0 ** (numbers - 127)
    spread = np.repeat(numbers, width, axis=1)[:, :k]
    middle = 2 ** (code.bits - 1) if scheme.startswith("u") else 0
    weight = template.replace(
        n=n, k=k, packed=pack(torch.from_numpy(codes), code.bits), scales=scales
    )
    return weight, torch.from_numpy((values[codes] - middle) * spread)


@pytest.mark.parametrize(("n", "k", "granularity"), T04)
def test_t04_shapes_that_are_no_multiple_of_anything(n, k, granularity):
    weight, values = coded(f"u4-{granularity}-bf16", n, k)
    for m in (1, 33):
        x = oracle.realistic_activations(m, k, m).to(torch.bfloat16)
        found = multiply(x, weight)
        assert found.is_contiguous()
        assert tuple(found.shape) == (m, n)
        close(found, x.double() @ values.T)


@pytest.mark.parametrize(
    "scheme", ["mxfp4", "mxfp8", "e4m3fn-channel-f32", "u3-g48-f16", "e3m2-g32-e8m0"]
)
def test_t04_other_formats_at_k_576(scheme):
    weight, values = coded(scheme, 72, 576)
    for dtype in TORCH_FLOATS.values():
        x = (oracle.realistic_activations(7, 576) * 2**-8).to(dtype)  # f16 results must fit
        close(multiply(x, weight), x.double() @ values.T)


@pytest.mark.parametrize("inner", [1408, 1440, 720, 360, 96])
def test_t04_expert_widths_off_the_tile(inner):
    for n, k in ((inner, 512), (512, inner)):
        pairs = [coded("mxfp4" if k % 32 == 0 else "u4-g8-bf16", n, k, seed) for seed in range(4)]
        stack = stack_experts([weight for weight, _ in pairs])
        ids = torch.tensor([[0, 3], [2, -1], [1, 1], [-1, -1]])
        x = (oracle.realistic_activations(4, k) * 2**-8).to(torch.bfloat16)
        found = multiply(x, stack, expert_ids=ids)
        assert not found[ids < 0].any()
        for token, choice in (ids >= 0).nonzero().tolist():
            values = pairs[int(ids[token, choice])][1]
            close(found[token, choice][None], x[token][None].double() @ values.T)


def test_t04_more_rows_than_a_16_bit_grid():
    weight, values = coded("u4-g32-bf16", 256, 512)
    x = torch.randn(65541, 512, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    found = multiply(x, weight)
    rows = torch.tensor([0, 1, 32767, 32768, 65535, 65536, 65540])
    close(found[rows], x[rows].double() @ values.T)


@pytest.mark.parametrize("act", [None, "fp8", "int8", "nvfp4", "mxfp4"])
def test_no_rows_give_no_rows_and_the_next_call_works(act):
    weight = oracle.random_weight("u3-g32-f16", 24, 64, activation="nvfp4")
    act = act if act != "nvfp4" else "e2m1-g16-e4m3fn-tensor-static"
    assert multiply(torch.zeros(0, 64).half(), weight, act).shape == (0, 24)
    x = oracle.realistic_activations(3, 64).half()
    assert torch.isfinite(multiply(x, weight, act)).all()


def test_strided_activations_give_the_same_bits():
    weight, _ = coded("u4-g32-bf16", 24, 64)
    x = oracle.realistic_activations(64, 6).to(torch.bfloat16).T
    assert not x.is_contiguous()
    assert torch.equal(multiply(x, weight), multiply(x.contiguous(), weight))


@pytest.mark.parametrize("output", TORCH_FLOATS.values())
@pytest.mark.parametrize(
    "act",
    [
        "f16",
        "bf16",
        "f32",
        "fp8",
        "e5m2-token-f32",
        "int8",
        "int4",
        "fp8-block",
        "mxfp4",
        "mxfp8",
        "e2m1",
        "e2m1-g16-e4m3fn-tensor-static",
        "fp8-static",
        "s8-tensor-f32",
        "e2m3-g32-e8m0",
    ],
)
def test_every_activation_mode_multiplies_what_it_quantized_to(act, output):
    weight = oracle.random_weight(
        "e0m2-g16-bf16", 17, 128, bias=torch.float32, activation="fp8-static"
    )
    scheme = ActivationScheme.parse(act)
    x = oracle.realistic_activations(9, 128)
    if scheme.is_quantized:
        operand = quantize_activation(x, scheme, weight.input_scale).dequantize(torch.float64)
    else:
        operand = x.to(TORCH_FLOATS[scheme.format.name]).double()
    wanted = operand.numpy() @ oracle.dequantized(weight).T + weight.bias.double().numpy()
    found = multiply(x, weight, act, output)
    assert found.dtype == output
    close(found, wanted)


@pytest.mark.parametrize(
    ("act", "limit"),
    [("fp8", 0.04), ("fp8-block", 0.04), ("e5m2", 0.08), ("int8", 0.02), ("s8-g32-f32", 0.02),
     ("e2m1-g16-e4m3fn-token", 0.2), ("mxfp4", 0.2), ("e4m3fn-g32-e8m0", 0.04)],
)  # fmt: skip
def test_quantized_activations_stay_near_the_unquantized_product(act, limit):
    weight, values = coded("u3-g32-f16", 48, 512)
    x = torch.randn(16, 512, generator=torch.Generator().manual_seed(2))
    whole, _ = oracle.relative_errors(multiply(x, weight, act), x.double() @ values.T)
    assert 1e-4 < whole <= limit


SCHEMES = [
    "u1-channel-bf16",
    "u2+z-g16-f16",
    "u3+zf-g24-f32",
    "s5-tensor-f32",
    "e2m1-g16-e4m3fn-tensor",
    "e4m3fn-b5x24-f32",
    "e8m0",
    "s8-g16-e5m3-channel",
    "e5m2-b3x16-e8m0-tensor",
]


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s != "e8m0"])
def test_every_kind_of_weight_is_multiplied_as_it_dequantizes(scheme, act_order):
    weight = oracle.random_weight(scheme, 13, 72, act_order=act_order, bias=torch.float16)
    x = oracle.realistic_activations(5, 72)
    wanted = x.double().numpy() @ oracle.dequantized(weight).T + weight.bias.double().numpy()
    close(multiply(x, weight), wanted)


@pytest.mark.parametrize("scheme", ["e4m3fn-b5x24-f32", "u4+z-g16-f16", "s8-tensor-f32"])
def test_cutting_the_work_into_chunks_changes_nothing(scheme, monkeypatch):
    weight = oracle.random_weight(scheme, 29, 72, bias=torch.float32)
    weight = weight.rows(3, 29)  # starts inside a block of rows
    x = oracle.realistic_activations(5, 72)
    whole = multiply(x, weight)
    monkeypatch.setattr("humming.reference._CHUNK_BYTES", 4 * 72 * 6)
    assert same(multiply(x, weight), whole)


@pytest.mark.parametrize("power", [-120, 120])
def test_scales_at_the_edge_of_float32_are_multiplied_in_float64(power):
    weight = oracle.random_weight("e4m3fn-g16-e8m0", 8, 32)
    weight = weight.replace(scales=torch.full_like(weight.scales, 127 + power))
    tiny = torch.full((3, 32), 2.0**-power if power < 0 else 2.0**-100)
    wanted = tiny.double().numpy() @ oracle.dequantized(weight).T
    close(multiply(tiny, weight), wanted)


def test_pre_quant_scale_multiplies_the_activations_before_they_are_quantized():
    weight = oracle.random_weight("u4-g16-f16", 8, 32).replace(pre_quant_scale=torch.rand(32) + 0.5)
    x = oracle.realistic_activations(3, 32)
    bare = weight.replace(pre_quant_scale=None)
    for act in (None, "int8"):
        assert torch.equal(
            multiply(x, weight, act), multiply(x * weight.pre_quant_scale, bare, act)
        )


# -- experts -----------------------------------------------------------------------------------

E, N, K, M, CAPACITY = 8, 48, 256, 32, 64
ROUTINGS = {
    "random": lambda top_k: torch.rand(M, E, generator=torch.Generator().manual_seed(3)).argsort(1)[
        :, :top_k
    ],
    "all to one": lambda top_k: torch.full((M, top_k), 5),
    "reversed": lambda top_k: torch.arange(M * top_k).flip(0).view(M, top_k) % E,
}


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal but for the order of float32 sums."""
    return torch.allclose(a, b, rtol=1e-5, atol=1e-6 * float(b.abs().max()) if b.numel() else 0)


def dense_per_expert(x, weight, ids, act):
    """Every expert as a dense layer on all tokens, and of that what `ids` chooses."""
    out = torch.zeros(*ids.shape, weight.n, dtype=x.dtype)
    for e in range(weight.experts):
        rows = multiply(x, weight.expert(e), act)
        for choice in range(ids.shape[1]):
            out[:, choice][ids[:, choice] == e] = rows[ids[:, choice] == e]
    return out


def sorted_by_expert(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(order of the flat rows, offsets [E + 1])."""
    flat = ids.flatten()
    counts = torch.bincount(flat, minlength=E)
    return flat.argsort(stable=True), torch.cat(
        [torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]
    )


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("group", ["token", "g32", "g64", "g128", "g256", "g1024"])
@pytest.mark.parametrize("code", ["e4m3fn", "e5m2", "s8"])
def test_t01_every_layout_of_experts_agrees_with_dense(code, group, routing):
    act = f"{code}-{group}-f32"
    weight = quantize(oracle.realistic_weights(E * N, K).view(E, N, K), "u4-g32-bf16")
    for top_k in (1, 2):
        ids = ROUTINGS[routing](top_k)
        x = oracle.realistic_activations(M, K)
        wanted = dense_per_expert(x, weight, ids, act)
        indexed = multiply(x, weight, act, expert_ids=ids)
        assert same(indexed, wanted)
        assert torch.equal(multiply(x.repeat_interleave(top_k, 0).view(M, top_k, K), weight, act,
                                    expert_ids=ids.int()), indexed)  # fmt: skip
        order, offsets = sorted_by_expert(ids)
        rows = x.repeat_interleave(top_k, dim=0)[order]
        contiguous = multiply(rows, weight, act, expert_offsets=offsets)
        assert same(contiguous, wanted.flatten(0, 1)[order])
        masked = torch.full((E, CAPACITY, K), torch.nan)
        for e in range(E):
            masked[e, : offsets[e + 1] - offsets[e]] = rows[offsets[e] : offsets[e + 1]]
        counts = offsets.diff()
        found = multiply(masked, weight, act, expert_counts=counts)
        for e in range(E):
            assert same(found[e, : counts[e]], contiguous[offsets[e] : offsets[e + 1]])  # fmt: skip
            assert not found[e, counts[e] :].any()  # what is not counted is not looked at


def test_t01_the_order_of_tokens_changes_nothing():
    weight = quantize(oracle.realistic_weights(E * N, K).view(E, N, K), "u4-g32-bf16")
    x, ids = oracle.realistic_activations(M, K), ROUTINGS["random"](2)
    order = torch.randperm(M, generator=torch.Generator().manual_seed(4))
    found = multiply(x[order], weight, "fp8", expert_ids=ids[order])
    assert same(found, multiply(x, weight, "fp8", expert_ids=ids)[order])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("scheme", ["s4-g32-bf16", "mxfp4"])
@pytest.mark.parametrize("m", [0, 1, 32])
def test_t02_the_sentinel_is_skipped(m, scheme, dtype):
    weight = oracle.random_weight(scheme, N, 64, E, bias=torch.float32)
    generator = torch.Generator().manual_seed(m)
    ids = torch.randint(0, E - 1, (m, 4), generator=generator)  # the last expert gets nothing
    ids[torch.rand(m, 4, generator=generator) < 0.3] = -1
    if m > 1:
        ids[m // 2] = -1
    x = oracle.realistic_activations(m, 64)
    found = multiply(x, weight, expert_ids=ids.to(dtype))
    assert found.shape == (m, 4, N)
    if m == 0:
        return
    assert same(found, dense_per_expert(x, weight, ids, None))
    assert not found[ids < 0].any()  # not even the bias


def test_each_expert_has_its_own_stored_activation_scale():
    weight = oracle.random_weight("fp8", N, 64, 3, activation="fp8-static")
    weight = weight.replace(input_scale=torch.tensor([0.001, 0.05, 2.0]))
    x, ids = oracle.realistic_activations(6, 64), torch.tensor([[0, 1, 2]] * 6)
    found = multiply(x, weight, "fp8-static", expert_ids=ids)
    assert same(found, dense_per_expert(x, weight, ids, "fp8-static"))
    assert not torch.allclose(found[:, 0], found[:, 1], rtol=0.1)


@pytest.mark.parametrize(
    ("routing", "message"),
    [
        ({"expert_offsets": torch.tensor([0, 3, 2])}, "ascending"),
        ({"expert_offsets": torch.tensor([1, 2, 3])}, "0 <= ... <= 4, ascending"),
        ({"expert_offsets": torch.tensor([0, 2, 5])}, "0 <= ... <= 4, ascending"),
        ({"expert_counts": torch.tensor([1, 5])}, "0 to the capacity 4"),
        ({"expert_counts": torch.tensor([-1, 2])}, "0 to the capacity 4"),
    ],
)
def test_routing_out_of_range_is_refused(routing, message):
    weight = oracle.random_weight("mxfp4", 8, 32, 2)
    x = torch.ones(2, 4, 32) if "expert_counts" in routing else torch.ones(4, 32)
    with pytest.raises(ConfigError, match=message):
        multiply(x, weight, **routing)


# -- T15, and refusals -------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["f16", "int8", "fp8", "e2m1", "mxfp4", "fp8-block", "fp8-static"])
def test_t15_a_zero_row_gives_exactly_the_bias_in_natural_order(act):
    weight = oracle.random_weight(
        "u3-g32-f16", 512, 100, bias=torch.float32, activation="fp8-static"
    )
    x = oracle.realistic_activations(5, 100)
    x[1], x[3] = 0.0, -0.0
    x[4] = 0.0
    x[4, 7] = 6e4
    found = multiply(x, weight, act)
    assert torch.isfinite(found).all()
    assert torch.equal(found[1], weight.bias)
    assert torch.equal(found[3], weight.bias)
    assert weight.bias[1] - weight.bias[0] == pytest.approx(0.01)


def test_it_refuses_only_what_means_nothing():
    weight = oracle.random_weight("u4-g32-f16", 8, 64)
    layer = config(weight, "f16", torch.float16)
    refusal = BACKEND.refuse(layer, ComputeConfig(batch_invariant=True))
    assert refusal == "torch's matmul does not promise the same bits for every batch size"
    assert "beside s8" in BACKEND.refuse(
        config(oracle.random_weight("fp8", 8, 64), "int8", torch.float16), ComputeConfig()
    )
    assert ReferenceBackend.refuse_device(None) is None
    assert (ReferenceBackend.name, ReferenceBackend.fallback) == ("reference", True)
