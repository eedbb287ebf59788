"""Products that apply a function to their results, in every pipeline that can.

The function is applied to sums in f32 and rounded once; so these results are compared with float64
ones that nothing else has rounded. Sizes are no multiples of tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from gemm_data import random_weight
from gemm_oracle import check, poisoned
from moe_cases import GPT_OSS, Function, hidden_of

from humming import Gating, QuantLinear
from humming.configs import GemmKind, TuningConfig
from humming_sm75_sm89.tuning import MmaTuning
from humming_sm90.stream_tuning import StreamTuning
from humming_sm90.wide_tuning import WideTuning

A100, H100, T4 = "sim:nvidia-a100", "sim:nvidia-h100", "sim:nvidia-t4"
DENSE, INDEXED, MASKED = GemmKind.DENSE, GemmKind.INDEXED, GemmKind.GROUPED_MASKED
SORTED = GemmKind.GROUPED_CONTIGUOUS
SWIGLU = Function()
CLAMPED = Function("swiglu_clamped", True, {"limit": 4.0})
FITS = WideTuning(tokens=160, fits=True, stages=3, folds=True)
#: Only the last rounding is between a result and an exact one.
ROUNDED = {torch.bfloat16: 2.5e-3, torch.float16: 5e-4}
K, E = 200, 3


@dataclass(frozen=True)
class Trial:
    """A kernel, what it multiplies, and the outputs of its function."""

    tuning: TuningConfig
    kind: GemmKind = INDEXED
    function: Function = SWIGLU
    device: str = H100
    scheme: str = "u4-g128-bf16"
    m: int = 21
    width: int = 104
    dtype: torch.dtype = torch.bfloat16

    def __str__(self) -> str:
        return f"{type(self.tuning).__name__}-{self.kind.value}-{self.function.name}-{self.scheme}"


TRIALS = (
    Trial(MmaTuning(warps_k=2, stage_blocks=1, ctas=8), function=GPT_OSS, device=A100, m=1),
    Trial(MmaTuning(warps_n=2, warps_k=2), MASKED, device=A100, scheme="u4-channel-f16"),
    Trial(MmaTuning(splits=2, warps_k=1, tokens=16), DENSE, GPT_OSS, A100, "e2m1-g32-e8m0"),
    Trial(MmaTuning(warps_k=3), SORTED, Function("relu2"), A100, width=91),
    Trial(MmaTuning(stages=2), function=Function("geglu"), device=T4, dtype=torch.float16,
          scheme="u4-g32-f16", m=3),
    Trial(StreamTuning(groups_k=2, tokens=32, stages=3), function=GPT_OSS),
    Trial(StreamTuning(groups_n=2, groups_k=1, stages=3), SORTED, scheme="e2m1-g32-e8m0"),
    Trial(StreamTuning(groups_k=1, min_run=1), DENSE, CLAMPED),
    Trial(WideTuning(tokens=48, fits=True, stages=3, ctas=2), function=GPT_OSS),
    Trial(FITS, SORTED, m=190, scheme="e2m1-g32-e8m0"),
    Trial(WideTuning(tokens=16, stages=3, splits=2), DENSE, GPT_OSS),
    Trial(WideTuning(tokens=64, stages=3), MASKED, Function("silu"), width=75, m=9),
)  # fmt: skip


def check_trial(trial: Trial, place: str = "cpu", **options: object) -> None:
    """Kernels against float64, in poisoned memory.

    Args:
        trial: what.
        place: where tensors are.
        options: of the layer: where its kernels run, and which.
    """
    function, experts = trial.function, 0 if trial.kind is DENSE else E
    n = function.inputs * trial.width
    weight = random_weight(trial.scheme, n, K, torch.Generator().manual_seed(0), experts=experts)
    rows = 0.01 * torch.arange(n).expand(*weight.shape[:-1])
    weight = weight.replace(bias=rows.to(torch.bfloat16))
    gating = Gating.of(function.name, interleaved=function.interleaved, **function.parameters)
    layer = QuantLinear(weight.to(place), tuning=trial.tuning, **options)
    prepared = layer.prepare(trial.dtype, trial.kind, gating)
    assert prepared.layer.function == gating.of_results()
    x = hidden_of(trial.m * (E if trial.kind is MASKED else 1), K, trial.dtype) / 8
    expert, routing = routed(trial)
    inputs = torch.einsum(
        "mk,enk->men", x.double(), weight.dequantize(torch.float64).view(-1, n, K)
    )
    wanted = function(
        inputs[torch.arange(len(x)), expert.clamp(min=0)] + rows.view(-1, n)[0].bfloat16().double()
    )
    given = x.view(E, -1, K) if trial.kind is MASKED else x
    routing = {name: tensor.to(place) for name, tensor in routing.items()}
    with poisoned():
        found = prepared.run(given.to(place), **routing)
    found = found.reshape(len(x), trial.width).cpu()
    counts = expert >= 0
    assert not found[~counts].any()
    check(found[counts].contiguous(), wanted[counts], ROUNDED[trial.dtype])


def routed(trial: Trial) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The expert of each row of activations, -1 for nobody's, and what says so to a layer."""
    rows = torch.arange(trial.m)
    if trial.kind is DENSE:
        return torch.zeros_like(rows), {}
    if trial.kind is INDEXED:
        ids = rows % (E + 1) - 1
        return ids, {"expert_ids": ids[:, None]}
    if trial.kind is MASKED:
        counts = torch.tensor([trial.m, 0, trial.m // 2])
        expert = torch.where(rows < counts[:, None], torch.arange(E)[:, None], -1)
        return expert.flatten(), {"expert_counts": counts}
    offsets = torch.tensor([0, trial.m // 9, trial.m // 9, trial.m - 2])
    expert = torch.searchsorted(offsets[1:], rows, right=True)
    return torch.where(expert < E, expert, -1), {"expert_offsets": offsets}
