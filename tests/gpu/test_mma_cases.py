"""Black-box cases from public bug reports: experts, zero points, odd shapes, blocks, fused scales.

T01 to T06 of the project's list. All numbers are compared with float64.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
import torch
from gemm_data import random_activations, random_weight
from gemm_oracle import Reference, check, complaints, limit, measure, operand
from gemm_runs import DEVICE, ON_A_GPU, check_calls, make_layer

from humming.errors import ConfigError
from humming.formats.activation import ActivationScheme
from humming.fusing import fuse
from humming.weight import CanonicalWeight

pytestmark = ON_A_GPU

ROWS = (1, 7, 16, 33, 64, 129, 257)
BF16 = torch.bfloat16


def generator(seed: int) -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(seed)


def weight_of(
    scheme: str, n: int, k: int, experts: int = 0, seed: int = 0, bias: bool = False
) -> CanonicalWeight:
    weight = random_weight(scheme, n, k, generator(seed), experts=experts, device=DEVICE)
    if bias:
        numbers = 0.01 * torch.arange(n, device=DEVICE)
        weight = weight.replace(bias=numbers.expand(weight.shape[:-1]).clone())
    return weight


def rows_of(m: int, k: int, dtype: torch.dtype = BF16, outliers: float = 50.0) -> torch.Tensor:
    return random_activations((m, k), generator(m), dtype, DEVICE, outliers)


def dense_calls(
    k: int, rows: Sequence[int] = ROWS, dtype: torch.dtype = BF16
) -> dict[object, tuple[torch.Tensor, dict[str, torch.Tensor]]]:
    return {f"M={m}": (rows_of(m, k, dtype), {}) for m in rows}


# -- T01: group scales of activations with experts -----------------------------------------------

T01_ROUTING = ("random", "one", "reversed")


def ids_of(how: str, m: int, top_k: int, experts: int) -> torch.Tensor:
    if how == "one":
        return torch.full((m, top_k), 3, device=DEVICE)
    ids = torch.rand(m, experts, generator=generator(m), device=DEVICE).argsort(dim=1)[:, :top_k]
    return ids.sort(dim=0, descending=True)[0] if how == "reversed" else ids


@pytest.mark.parametrize("group", ["token", "g32", "g64", "g128", "g256", "g1024"])
@pytest.mark.parametrize("code", ["e4m3fn", "e5m2", "s8"])
def test_t01_layouts_agree_with_dense(code: str, group: str) -> None:
    experts, k, m = 8, 7168, 128
    activation = f"{code}-{group}-f32"
    source = "sm80" if code == "s8" else "sm89"
    weight = weight_of("u4-g32-bf16", 512, k, experts)
    x = rows_of(m, k, outliers=1.0)
    dense = torch.stack(
        [make_layer(weight.expert(e), activation, source=source)(x) for e in range(experts)]
    )
    reference = Reference(weight, ActivationScheme.parse(activation))
    exact = torch.stack([reference.product(x, e) for e in range(experts)])
    check(dense.flatten(0, 1), exact.flatten(0, 1), limit("bf16"), "dense")
    plain = Reference(weight, ActivationScheme.parse("bf16"))
    lost = {"e4m3fn": 0.04, "e5m2": 0.08, "s8": 0.02}[code]
    unquantized = torch.stack([plain.product(x, e) for e in range(experts)])
    check(dense.flatten(0, 1), unquantized.flatten(0, 1), lost, "unquantized")
    layer = make_layer(weight, activation, source=source)
    for top_k in (1, 2):
        for how in T01_ROUTING:
            ids = ids_of(how, m, top_k, experts)
            check_layouts(layer, x, ids, dense.double())


def check_layouts(
    layer: torch.nn.Module, x: torch.Tensor, ids: torch.Tensor, dense: torch.Tensor
) -> None:
    m, top_k = ids.shape
    experts = len(dense)
    tokens = torch.arange(m, device=DEVICE)[:, None].expand(m, top_k)
    wanted = dense[ids, tokens]
    indexed = layer(x, expert_ids=ids)
    order = torch.randperm(m, generator=generator(1), device=DEVICE)
    permuted = torch.empty_like(indexed)
    permuted[order] = layer(x[order], expert_ids=ids[order])
    chosen = ids.flatten().argsort(stable=True)
    sorted_tokens = tokens.flatten()[chosen]
    counts = torch.bincount(ids.flatten(), minlength=experts)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    contiguous = layer(x[sorted_tokens], expert_offsets=offsets)
    capacity = 64
    boxes = x.new_full((experts, capacity, x.shape[1]), torch.nan)
    places = [
        sorted_tokens[offsets[e] : min(int(offsets[e]) + capacity, int(offsets[e + 1]))]
        for e in range(experts)
    ]
    for e, place in enumerate(places):
        boxes[e, : len(place)] = x[place]
    masked = layer(boxes, expert_counts=torch.tensor([len(p) for p in places], device=DEVICE))
    measured = {
        "indexed": measure(indexed, wanted),
        "permuted": measure(permuted, indexed.double()),
        "contiguous": measure(contiguous, wanted.flatten(0, 1)[chosen]),
        "masked": measure(
            torch.cat([masked[e, : len(p)] for e, p in enumerate(places)]),
            torch.cat([dense[e, p] for e, p in enumerate(places)]),
        ),
    }
    found = complaints(list(measured), list(measured.values()), 5e-3)
    assert not found, found
    for e, place in enumerate(places):
        assert not masked[e, len(place) :].any(), f"rows beyond the count of expert {e}"


# -- T02: experts that are elsewhere -------------------------------------------------------------


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("scheme", ["u4-g32-bf16", "mxfp4"])
@pytest.mark.parametrize(("n", "k"), [(512, 512), (512, 256)])
def test_t02_sentinels_and_remote_experts(scheme: str, n: int, k: int, mapped: bool) -> None:
    every, local, top_k = 16, 8, 8
    weight = weight_of(scheme, n, k, local if mapped else every, bias=True)
    layer = make_layer(weight)
    calls: dict[object, tuple[torch.Tensor, dict[str, torch.Tensor]]] = {}
    for m in (0, 1, 32, 4096):
        for dtype in (torch.int32, torch.int64):
            noise = torch.rand(m, every - 1, generator=generator(m), device=DEVICE)
            ids = noise.argsort(dim=1)[:, :top_k]  # expert 15 gets no token
            skipped = torch.rand(m, top_k, generator=generator(m + 1), device=DEVICE) < 0.3
            ids[skipped] = -1
            ids[m // 2 : m // 2 + 1] = -1
            if mapped:  # even experts are here, odd ones elsewhere
                here = torch.arange(every, device=DEVICE)
                here = torch.where(here % 2 == 0, here // 2, -1)
                ids = torch.where(ids >= 0, here[ids.clamp(min=0)], -1)
            calls[f"M={m} {dtype}"] = rows_of(m, k), {"expert_ids": ids.to(dtype)}
    results = check_calls(layer, weight, "bf16", calls)
    start = time.monotonic()  # all is compiled: no call may hang
    for x, routing in calls.values():
        assert layer(x, **routing).isfinite().all()
    assert time.monotonic() - start < 10
    assert results[f"M=0 {torch.int32}"].shape == (0, top_k, n)
    for name, (_, routing) in calls.items():
        assert not results[name][routing["expert_ids"] == -1].any(), name
        ints, longs = name.replace("int64", "int32"), name.replace("int32", "int64")  # type: ignore[attr-defined]
        assert torch.equal(results[ints], results[longs])


# -- T03: zero points when a tile of K spans groups ----------------------------------------------


@pytest.mark.parametrize("experts", [0, 8])
@pytest.mark.parametrize("group", ["g16", "g32", "g64", "g128", "channel"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_t03_zero_points_of_every_group(bits: int, group: str, experts: int) -> None:
    n, k = 256, 1024
    for dtype, name in ((torch.float16, "f16"), (BF16, "bf16")):
        weight = weight_of(f"u{bits}+z-{group}-{name}", n, k, experts, seed=bits)
        assert weight.zeros is not None
        extremes = {
            "random": weight,
            "zero": weight.replace(zeros=torch.zeros_like(weight.zeros)),
            "largest": weight.replace(zeros=torch.full_like(weight.zeros, (1 << bits) - 1)),
        }
        calls = dense_calls(k, dtype=dtype)
        if experts:
            calls = {
                key: (x, {"expert_ids": ids_of("random", len(x), 2, experts)})
                for key, (x, _) in calls.items()
            }
        for part in extremes.values():
            check_calls(make_layer(part), part, name, calls)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_t03_symmetric_codes_and_a_correction_of_rank_one_give_the_same(bits: int) -> None:
    n, k, m = 256, 1024, 33
    weight = weight_of(f"u{bits}+z-g64-f16", n, k)
    assert weight.zeros is not None
    symmetric = weight_of(f"u{bits}-g64-f16", n, k).replace(
        packed=weight.packed, scales=weight.scales
    )
    x = rows_of(m, k, torch.float16)
    shift = ((1 << (bits - 1)) - weight.zeros.double()) * weight.scales.double()
    correction = x.double().unflatten(1, (-1, 64)).sum(dim=2) @ shift.T
    one, other = make_layer(weight)(x).double(), make_layer(symmetric)(x).double() + correction
    size = one.norm() + correction.norm()
    assert (one - other).norm() <= limit("f16") * size


# -- T04: shapes that are no multiples of tiles --------------------------------------------------

T04_SHAPES = [
    (2048, 10944, 64), (8192, 7392, 32), (512, 14784, 64), (4640, 4096, 128), (192, 320, 32),
    (576, 2560, 0), (96, 8256, 64), (2880, 2880, 32), (1440, 2880, 32), (8, 32, 32), (1, 64, 32),
]  # fmt: skip


def t04_schemes(k: int, group: int) -> list[str]:
    granularity = f"g{group}" if group else "channel"
    schemes = [f"u4-{granularity}-bf16", f"u4+z-{granularity}-f16", "mxfp4", "fp8-channel"]
    return [*schemes, "mxfp8"] if k <= 576 else schemes


@pytest.mark.parametrize(("n", "k", "group"), T04_SHAPES)
def test_t04_any_shape(n: int, k: int, group: int) -> None:
    for scheme in t04_schemes(k, group):
        weight = weight_of(scheme, n, k, bias=True)
        check_calls(make_layer(weight), weight, "bf16", dense_calls(k))


def test_t04_mxfp8_of_576_inputs() -> None:
    weight = weight_of("mxfp8", 200, 576)
    check_calls(make_layer(weight), weight, "bf16", dense_calls(576))


def test_t04_more_rows_than_a_grid_has_in_y() -> None:
    weight = weight_of("u4-g32-bf16", 256, 512)
    calls = dense_calls(512, (65_541,))
    (result,) = check_calls(make_layer(weight), weight, "bf16", calls).values()
    assert result.shape == (65_541, 256)


@pytest.mark.parametrize("inner", [1408, 1440, 720, 360, 96])
def test_t04_experts_of_any_shape(inner: int) -> None:
    hidden, experts = 512, 8
    for scheme in ("u4-g32-bf16", "mxfp4", "fp8-channel"):
        for n, k in ((2 * inner, hidden), (hidden, inner)):
            weight = weight_of(scheme, n, k, experts)
            calls = {
                key: (x, {"expert_ids": ids_of("random", len(x), 2, experts)})
                for key, (x, _) in dense_calls(k, (1, 16, 129)).items()
            }
            check_calls(make_layer(weight), weight, "bf16", calls)


# -- T05: blocks of 128 x 128, partial and cut ---------------------------------------------------

T05_SHAPES = [(576, 2560), (4544, 768), (192, 320), (10944, 512), (512, 10944), (129, 257)]


@pytest.mark.parametrize("activation", ["", "e4m3fn-g128-f32", "e4m3fn-token-f32"])
@pytest.mark.parametrize("scale", ["f32", "bf16", "e8m0"])
@pytest.mark.parametrize(("n", "k"), T05_SHAPES)
def test_t05_partial_blocks(n: int, k: int, scale: str, activation: str) -> None:
    weight = weight_of(f"e4m3fn-b128x128-{scale}", n, k)
    assert weight.scales.shape == (-(-n // 128), -(-k // 128))
    layer = make_layer(weight, activation, source="sm89")
    check_calls(layer, weight, activation or "bf16", dense_calls(k))
    if weight.scales.shape[0] != weight.scales.shape[1]:
        with pytest.raises(ConfigError, match="scales"):
            weight.replace(scales=weight.scales.T.contiguous())


@pytest.mark.parametrize("activation", ["", "e4m3fn-g32-f32"])
@pytest.mark.parametrize("scale", ["f32", "bf16", "e8m0"])
@pytest.mark.parametrize(
    ("n", "k", "dim"), [(768, 512, "n"), (512, 768, "k"), (384, 512, "n"), (512, 384, "k")]
)
def test_t05_cuts_through_blocks(n: int, k: int, dim: str, scale: str, activation: str) -> None:
    whole = weight_of(f"e4m3fn-b128x128-{scale}", n, k, bias=True)
    scheme = ActivationScheme.parse(activation or "bf16")
    x = rows_of(33, k)
    full = Reference(whole, scheme)(x)
    if dim == "n":
        parts = [make_layer(whole.shard("n", r, 4), activation, source="sm89")(x) for r in range(4)]
        check(torch.cat(parts, dim=1), full, limit("bf16"), "slices")
        return
    inputs = x.chunk(4, dim=1)
    shards = [whole.shard("k", rank, 4) for rank in range(4)]
    for rank, (part, shard) in enumerate(zip(inputs, shards, strict=True)):
        layer = make_layer(shard, activation, source="sm89")
        check_calls(layer, shard, scheme, {f"rank {rank}": (part.contiguous(), {})})
    sums = sum(Reference(s, scheme)(p.contiguous()) for p, s in zip(inputs, shards, strict=True))
    assert isinstance(sums, torch.Tensor)
    check(sums, full, 1e-12, "the shards are the whole")


# -- T06: parts of one product with scales of their own ------------------------------------------


def part_of(n: int, k: int, factor: float, experts: int, seed: int) -> CanonicalWeight:
    weight = weight_of("nvfp4", n, k, experts, seed)
    assert weight.second is not None
    return weight.replace(second=torch.full_like(weight.second, 1e-3 * factor))


@pytest.mark.parametrize("experts", [0, 4])
@pytest.mark.parametrize("factors", [(1, 10), (10, 1), (1, 1)])
def test_t06_gate_and_up_keep_their_own_second_scale(factors: Sequence[int], experts: int) -> None:
    parts = [part_of(512, 512, f, experts, seed) for seed, f in enumerate(factors)]
    check_parts(parts, fuse(parts), experts)


def test_t06_q_k_and_v_keep_their_own_second_scale() -> None:
    shapes = ((512, 1), (128, 3), (128, 9))
    parts = [part_of(n, 512, factor, 0, seed) for seed, (n, factor) in enumerate(shapes)]
    check_parts(parts, fuse(parts), 0)


@pytest.mark.parametrize("experts", [0, 4])
@pytest.mark.parametrize("activation", ["e4m3fn-tensor-f32-static", "s8-tensor-f32-static"])
def test_t06_input_scales_of_the_parts_differ(activation: str, experts: int) -> None:
    lead = (experts,) if experts else ()
    parts = [
        weight_of("e2m1-g32-e4m3fn-tensor", 512, 512, experts, seed).replace(
            input_scale=torch.full(lead, scale, device=DEVICE),
            activation=ActivationScheme.parse(activation),
        )
        for seed, scale in enumerate((0.01, 0.02))
    ]
    check_parts(parts, fuse(parts), experts, activation)


def check_parts(
    parts: Sequence[CanonicalWeight], fused: CanonicalWeight, experts: int, activation: str = ""
) -> None:
    """Each part of a fused result against the part alone, with the fused activations."""
    source = "sm80" if activation.startswith("s8") else "sm89"
    layer = make_layer(fused, activation, source=source)
    scheme = ActivationScheme.parse(activation or "bf16")
    names, measured = [], []
    for m in ROWS:
        x = rows_of(m, 512, outliers=1.0)
        routing = {"expert_ids": ids_of("random", m, 2, experts)} if experts else {}
        result = layer(x, **routing)
        pieces = result.split([part.n for part in parts], dim=-1)
        for number, (piece, part) in enumerate(zip(pieces, parts, strict=True)):
            alone = part.replace(input_scale=fused.input_scale)
            names.append(f"M={m}, part {number}")
            measured.append(measure(piece, Reference(alone, scheme)(x, **routing)))
    found = complaints(names, measured, limit("bf16"))
    assert not found, found


# -- what the reference of these tests sees ------------------------------------------------------


def test_the_operand_of_the_reference_is_near_the_activations() -> None:
    """So that a limit against quantized activations can't hide that they are wrong."""
    weight = weight_of("u4-g32-bf16", 8, 256)
    x = rows_of(16, 256, outliers=1.0)
    for activation, most in (("e4m3fn-token-f32", 0.04), ("s8-token-f32", 0.02), ("bf16", 1e-9)):
        found = operand(x, weight, ActivationScheme.parse(activation))
        assert (found - x.double()).norm() <= most * x.double().norm()
