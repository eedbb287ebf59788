"""Which kernels find the tiles of few choices of experts by themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gemm_matrix import Case
from wgmma_layers import H100, config_of

from humming.backend import Problem
from humming.configs import GemmKind, TuningConfig
from humming_sm75_sm89.kernel import GemmContext
from humming_sm75_sm89.tuning import MmaTuning
from humming_sm90.backend import Sm90Backend
from humming_sm90.stream_tuning import StreamTuning
from humming_sm90.wide_tuning import WideTuning

MMA, INDEXED = MmaTuning(), GemmKind.INDEXED
#: Kind of GEMM, act-order, tuning, and how many choices a kernel sorts.
KERNELS: list[tuple[GemmKind, bool, TuningConfig, int]] = [
    (INDEXED, False, MMA, 32),
    (INDEXED, False, replace(MMA, tokens=64, stages=2), 32),
    (INDEXED, True, MMA, 0),
    (INDEXED, False, replace(MMA, min_run=1), 0),
    (INDEXED, False, StreamTuning(), 0),
    (INDEXED, False, WideTuning(), 0),
    (GemmKind.DENSE, False, MMA, 0),
    (GemmKind.GROUPED_CONTIGUOUS, False, MMA, 0),
    (GemmKind.GROUPED_MASKED, False, MMA, 0),
]


@pytest.mark.parametrize(("kind", "act_order", "tuning", "sorts"), KERNELS)
def test_a_kernel_says_how_many_choices_it_sorts(
    kind: GemmKind, act_order: bool, tuning: TuningConfig, sorts: int
) -> None:
    case = Case(
        source=H100, weight="u4-g128-bf16", dtype="bf16", n=512, k=512, kind=kind,
        bias=False, act_order=act_order,
    )  # fmt: skip
    layer = config_of(case)
    spec = Sm90Backend(case.profile).kernel(layer, case.compute, tuning)
    assert spec.sorts == sorts
    if isinstance(spec.context, GemmContext):
        assert spec.context.sorts_few == (sorts > 0), "and its source is written so"
        shared = spec.launch(Problem(m=4), layer).shared_bytes - spec.context.shared_bytes
        assert shared == (4 * 33 if kind is not GemmKind.DENSE else 0)
        assert case.experts < 32, "of whose groups it knows less"


def test_more_experts_than_it_can_tell_apart_are_sorted_for_it() -> None:
    case = Case(
        source=H100, weight="u4-g128-bf16", dtype="bf16", n=512, k=512, kind=INDEXED,
        bias=False, act_order=False,
    )  # fmt: skip
    backend = Sm90Backend(case.profile)
    for experts, sorts in ((2**16, 32), (2**16 + 1, 0)):
        layer = replace(config_of(case), experts=experts)
        assert backend.kernel(layer, case.compute, MMA).sorts == sorts
