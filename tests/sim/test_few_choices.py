"""Indexed products that sort few choices by themselves: their bits are those of sorted choices."""

from __future__ import annotations

import pytest
import torch
from gemm_data import random_weight
from gemm_oracle import poisoned
from moe_cases import hidden_of, router, weights_of

from humming import GemmKind, QuantLinear, QuantMoE
from humming.engine.aligning import Aligner
from humming_sm75_sm89 import kernel
from humming_sm75_sm89.tuning import MmaTuning

pytestmark = pytest.mark.compile

A100 = "sim:nvidia-a100"
BF16 = torch.bfloat16
N, K, E = 72, 128, 5
TUNINGS = {
    "8": MmaTuning(warps_k=2, ctas=8),
    "32": MmaTuning(warps_n=2, warps_k=1, tokens=16, warps_m=2),
    "64": MmaTuning(warps_k=1, tokens=64, stages=2, stage_blocks=1),
}
LAST = "of all experts"
#: Ids [tokens, choices]. Wide: those whose low words are an expert's; as many as
#: there may be, of one expert and of all.
IDS = {
    "one token": [[3, 0, 4, 1]],
    "the same twice": [[3, 0], [0, 3], [0, 0]],
    "nobody's": [[-1, 2, E], [2**31 - 1, -(2**31), 1]],
    "nobody's at all": [[-1, E]],
    "wide": [[2**32 + 1, 2, -(2**32) + 3], [2**63 - 1, -(2**63), 2]],
    "of one expert": [[2] * 8] * 4,
    LAST: [[(i * j + i) % (E + 1) - 1 for j in range(4)] for i in range(8)],
}


@pytest.fixture
def sorted_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of choices that were sorted by a launch of their own."""
    found: list[int] = []
    align = Aligner.__call__

    def call(self: Aligner, ids: torch.Tensor, *others: object) -> object:
        found.append(ids.numel())
        return align(self, ids, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(Aligner, "__call__", call)
    return found


def layer_of(tuning: MmaTuning | None = None) -> QuantLinear:
    weight = random_weight("u4-g64-bf16", N, K, torch.Generator().manual_seed(3), experts=E)
    return QuantLinear(weight, device=A100, tuning=tuning)


@pytest.mark.parametrize(
    ("rows", "ids"), [("8", ids) for ids in IDS] + [(rows, LAST) for rows in ("32", "64")]
)
def test_bits_are_those_of_sorted_choices(
    monkeypatch: pytest.MonkeyPatch, sorted_calls: list[int], rows: str, ids: str
) -> None:
    chosen = torch.tensor(IDS[ids])
    x = hidden_of(len(chosen), K, BF16)
    layer = layer_of(TUNINGS[rows])
    with monkeypatch.context() as patched, poisoned():
        patched.setattr(kernel, "FEW_CHOICES", 0)
        wanted = layer_of(TUNINGS[rows])(x, expert_ids=chosen)
    assert sorted_calls == [chosen.numel()]
    with poisoned():
        assert torch.equal(layer(x, expert_ids=chosen), wanted)
        if ids != "wide":
            assert torch.equal(layer(x, expert_ids=chosen.int()), wanted)
        each = x.unsqueeze(1).expand(*chosen.shape, K)
        assert torch.equal(layer(each, expert_ids=chosen), wanted)
    assert len(sorted_calls) == 1
    assert bool(wanted.any()) == (ids != "nobody's at all")


def test_more_choices_are_sorted_by_a_launch_of_their_own(sorted_calls: list[int]) -> None:
    layer = layer_of()
    for m in (32, 33):
        layer(hidden_of(m, K, BF16), expert_ids=torch.arange(m)[:, None] % E)
    assert sorted_calls == [33]


def test_tiles_that_are_shared_need_sorted_choices(sorted_calls: list[int]) -> None:
    layer = layer_of(MmaTuning(warps_k=1, min_run=1))
    layer(hidden_of(2, K, BF16), expert_ids=torch.tensor([[1], [0]]))
    assert sorted_calls == [2]


@pytest.mark.parametrize("activation", [None, "s8-token-f32"])
def test_a_layer_of_experts_takes_a_launch_less(
    monkeypatch: pytest.MonkeyPatch, activation: str | None
) -> None:
    def make() -> QuantMoE:
        pair = weights_of("u4-g32-f16" if activation else "u4-g32-bf16", E, 64, 32)
        layout = GemmKind.INDEXED
        return QuantMoE(*pair, activation=activation, device=A100, layout=layout, gating="reglu")

    layer = make()
    with monkeypatch.context() as patched:
        patched.setattr(kernel, "FEW_CHOICES", 0)
        aligned = make()
        calls = []
        for m in (1, 8):
            x, (ids, weights) = hidden_of(m, 64, BF16), router(m, 4, E)
            ids[1::4, 0], ids[2::4], ids[3::4] = -1, E, 1
            calls.append((x, ids, weights, aligned(x, ids, weights)))
    for x, ids, weights, wanted in calls:
        for given in (ids, ids.int()):
            with poisoned():
                assert torch.equal(layer(x, given, weights), wanted)
    launches = {call.launches for call in layer._calls.values()}
    assert launches == {call.launches - 1 for call in aligned._calls.values()}
