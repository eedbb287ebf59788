"""What a call of QuantMoE costs the host: its launches, its allocations, and what is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from moe_cases import hidden_of, router, weights_of
from quiet_kernels import Launched, Operations, quiet

from humming import GemmKind, QuantMoE
from humming.backend import Link, Problem
from humming.engine import Site, launches
from humming.errors import CaptureError, ConfigError
from humming_sim.plugin import SimulatorRuntime

A100, H100 = "sim:nvidia-a100", "sim:nvidia-h100"
BF16 = torch.bfloat16
INDEXED, SORTED = GemmKind.INDEXED, GemmKind.GROUPED_CONTIGUOUS
H, WIDTH, E = 256, 128, 4


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Launched]:
    return quiet(monkeypatch)


def moe(scheme: str = "mxfp4", **options: object) -> QuantMoE:
    options = {"device": H100, **options}
    return QuantMoE(*weights_of(scheme, E, H, WIDTH), **options)


def inputs(m: int = 3, top_k: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return hidden_of(m, H, BF16), *router(m, top_k, E)


def names(launched: list[Launched]) -> list[str]:
    products = ("gemm", "stream", "wide", "wgmma")
    return ["gemm" if name in products else name for name, _ in launched]


CASES = {
    "indexed": (
        ("mxfp4", None, INDEXED),
        ["align_rows", "gemm", "gemm", "combine_rows"],
    ),
    "sorted": (
        ("mxfp4", None, SORTED),
        ["sort_rows", "gather_rows", "gemm", "gemm", "combine_rows"],
    ),
    "indexed, scales of blocks of gates": (
        ("e4m3fn-b128x128-bf16", None, INDEXED),
        ["align_rows", "gemm", "gate_rows", "gemm", "combine_rows"],
    ),
    "sorted, scales of blocks of gates": (
        ("e4m3fn-b128x128-bf16", None, SORTED),
        ["sort_rows", "gather_rows", "gemm", "gate_rows", "gemm", "combine_rows"],
    ),
    "indexed, quantized": (
        ("u4-g128-f16", "s8-token-f32", INDEXED),
        ["align_rows", "quantize", "gemm", "quantize_ids_swiglu", "gemm", "combine_rows"],
    ),
    "indexed, quantized, and brought into order before products": (
        ("fp8-block", "e4m3fn-g128-f32", INDEXED),
        [
            *("align_rows", "quantize", "gather_rows", "gemm"),
            *("quantize_ids_swiglu", "gather_rows", "gemm", "combine_rows"),
        ],
    ),
    "sorted, quantized": (
        ("fp8-block", "e4m3fn-g128-f32", SORTED),
        ["sort_rows", "quantize_map", "gemm", "quantize_counts_swiglu", "gemm", "combine_rows"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_call_launches_this_and_no_more(launched: list[Launched], case: str) -> None:
    (scheme, activation, layout), wanted = CASES[case]
    layer = moe(scheme, activation=activation, layout=layout)
    for m in (1, 3, 1):
        x, ids, weights = inputs(m)
        launched.clear()
        layer(x, ids.int(), weights)
        assert names(launched) == wanted
    assert {call.launches for call in layer._calls.values()} == {len(wanted)}


def test_few_choices_are_not_sorted_if_kernels_do_it(launched: list[Launched]) -> None:
    layer = moe("u4-g128-bf16", device=A100, layout=INDEXED)
    for m, aligned in ((1, []), (16, []), (17, ["align_rows"])):
        x, ids, weights = inputs(m)
        for given in (ids, ids.int()):
            launched.clear()
            layer(x, given, weights)
            assert names(launched) == [*aligned, "gemm", "gemm", "combine_rows"]


def test_both_products_share_the_sorting_if_their_tiles_are_alike(
    launched: list[Launched], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, (x, ids, weights) = moe(layout=INDEXED), inputs()
    layer(x, ids, weights)
    assert names(launched).count("align_rows") == 1
    (call,) = layer._calls.values()
    down, plan = call.products.down, call.products.down.plan(Problem(m=6))
    spec = replace(plan.kernel.spec, row_tile=2 * plan.kernel.spec.row_tile)
    other = replace(plan, kernel=replace(plan.kernel, spec=spec))
    monkeypatch.setattr(down, "plan", lambda problem: other)
    layer._calls.clear()
    launched.clear()
    layer(x, ids, weights)
    assert names(launched) == ["align_rows", *CASES["indexed"][1]]


@pytest.mark.parametrize(
    ("scheme", "activation", "wanted"),
    [
        ("mxfp4", None, ["gemm", "gemm"]),
        ("u4-g128-f16", "s8-token-f32", ["quantize", "gemm", "quantize_swiglu", "gemm"]),
    ],
)
def test_shared_experts_take_as_few(
    launched: list[Launched], scheme: str, activation: str | None, wanted: list[str]
) -> None:
    shared = weights_of(scheme, 0, H, WIDTH, seed=4)
    layer = moe(scheme, activation=activation, shared=shared, layout=INDEXED)
    x, ids, weights = inputs()
    layer(x, ids, weights)
    launched.clear()
    layer(x, ids, weights)
    assert names(launched)[: len(wanted)] == wanted
    assert len(launched) == len(wanted) + (6 if activation else 4)


@pytest.mark.parametrize("case", CASES)
def test_a_call_allocates_its_result_and_one_piece_of_memory(
    launched: list[Launched], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    links: list[Link] = []
    bases: list[list[int]] = []

    def chain(self: SimulatorRuntime, given: Sequence[Link]) -> Callable[[list[int]], None]:
        links.extend(given)
        return bases.append

    monkeypatch.setattr(SimulatorRuntime, "chain", chain, raising=False)
    (scheme, activation, layout), wanted = CASES[case]
    layer, (x, ids, weights) = moe(scheme, activation=activation, layout=layout), inputs()
    layer(x, ids, weights)
    with Operations() as counted:
        out = layer(x, ids, weights)
    assert counted.names == ["empty_strided", "empty"]
    assert len(links) == len(wanted)
    known = [tensor.data_ptr() for tensor in (x, ids, weights)]
    assert bases[1][:-1] == [*known, 0, out.data_ptr()], "and scratch memory where it is needed"
    mapped = [slot for *_, slots in links for slot in slots if slot.map is not None]
    in_order = activation and ("gather_rows" in wanted or layout is SORTED)
    assert len(mapped) == (2 if in_order else 0)
    assert not launched


def test_only_what_is_not_needed_at_once_shares_memory(
    launched: list[Launched], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[launches.Part] = []
    part = launches.Memory.part

    def kept(self: launches.Memory, shape: tuple[int, ...], dtype: torch.dtype) -> launches.Part:
        made.append(part(self, shape, dtype))
        return made[-1]

    monkeypatch.setattr(launches.Memory, "part", kept)
    for (scheme, activation, layout), wanted in CASES.values():
        made.clear()
        moe(scheme, activation=activation, layout=layout)(*inputs())
        tables = [table for table in made if table.dtype is torch.int32]
        # Rows, their factors and scales of groups, of each product that wants them in order.
        ordered = 3 * wanted.count("gather_rows") if layout is INDEXED else 0
        if "gate_rows" in wanted or activation:
            *read, up, down = made[: len(made) - ordered]
            assert all(other.offset >= down.end for other in made[len(made) - ordered :])
            assert up.offset == down.offset, "results of both products"
            assert all(other.end <= up.offset for other in read)
        else:  # between, where rows are moved, and what the second product gives
            between, *moved, down = (part for part in made if part.dtype is not torch.int32)
            assert all(other.offset == down.offset for other in moved)
            assert between.end <= down.offset
        rest = [other.offset for other in made if other.dtype is not torch.int32]
        assert max(table.end for table in tables) <= min(rest)
        assert all(a.end <= b.offset for a, b in pairwise(tables))


def test_a_call_is_settled_once_for_each_size(
    launched: list[Launched], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = moe()
    for m, ids_dtype in ((1, torch.int32), (1, torch.int64), (5, torch.int64)):
        x, ids, weights = inputs(m)
        layer(x, ids.to(ids_dtype), weights)
    assert len(layer._calls) == 3
    monkeypatch.setattr(QuantMoE, "_products", lambda *_: pytest.fail("is settled again"))
    x, ids, weights = inputs(5)
    layer(x, ids, weights.half())
    layer(x.flip(0).T.contiguous().T, ids.T.contiguous().T, weights)


def test_what_is_settled_belongs_to_a_state_and_a_place(launched: list[Launched]) -> None:
    layer, (x, ids, weights) = moe(), inputs()
    layer(x, ids, weights)
    (before,) = layer._calls.values()
    layer.load_state_dict(layer.state_dict())
    layer(x, ids, weights)
    (loaded,) = layer._calls.values()
    assert loaded is not before
    assert loaded.products.up is not before.products.up
    layer.down.load_state_dict(layer.down.state_dict())
    layer(x, ids, weights)
    assert next(iter(layer._calls.values())) is not loaded
    assert not layer.cpu()._calls
    assert "_calls" not in layer.__getstate__()


def test_arguments_are_checked_in_every_call(launched: list[Launched]) -> None:
    layer, (x, ids, weights) = moe(), inputs()
    layer(x, ids, weights)
    for change, message in (
        ({"weights": weights.long()}, "a float tensor"),
        ({"weights": weights[:1]}, r"\[3, 2\], as topk_ids"),
        ({"weights": weights.to("meta")}, "topk_weights='meta'"),
        ({"ids": ids.to("meta")}, "topk_ids='meta'"),
        ({"ids": ids.float()}, "an int32 or int64 tensor"),
        ({"x": x.to("meta")}, "hidden='meta'"),
        ({"x": x[:2]}, "topk_ids"),
    ):
        given = {"x": x, "ids": ids, "weights": weights} | change
        launched.clear()
        with pytest.raises(ConfigError, match=message):
            layer(*given.values())
        assert not launched


def test_an_expert_map_keeps_the_width_of_ids(launched: list[Launched]) -> None:
    table = torch.tensor([3, -1, 0, 1, 2, -1])
    layer, (x, _, weights) = moe(expert_map=table, layout=INDEXED), inputs()
    ids = torch.tensor([[0, 5], [-1, 2], [6, 2**31 - 1]], dtype=torch.int32)
    layer(x, ids, weights)
    given = launched[0].values[0]
    assert isinstance(given, torch.Tensor)
    assert given.dtype is torch.int32
    assert given.tolist() == [[3, -1], [-1, 0], [-1, -1]]
    layer(x, torch.tensor([[-(2**40), 2**40], [4, 3], [1, -7]]), weights)
    given = launched[4].values[0]
    assert isinstance(given, torch.Tensor)
    assert given.tolist() == [[-1, -1], [2, 1], [-1, -1]]


def test_launches_that_need_other_steps_take_them(launched: list[Launched]) -> None:
    """Rows of 44 numbers of 16 bits are no multiple of 16 bytes: they are copied."""
    layer = QuantMoE(*weights_of("u8-channel-f32", 3, 44, 27), device=A100)
    for m, count in ((4, 4), (17, 5)):  # so few choices need not be sorted
        launched.clear()
        layer(hidden_of(m, 44, BF16), *router(m, 2, 3))
        assert not layer._calls
        assert len(launched) == count


def test_nothing_is_loaded_in_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = moe()
    layer.prepare(BF16)
    monkeypatch.setattr(Site, "capturing", lambda self: True)
    with pytest.raises(CaptureError):
        layer(*inputs())
    assert not layer._calls
