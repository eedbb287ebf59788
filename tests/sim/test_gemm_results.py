"""The test GEMMs of every generation compute the float64 result, in any order of events."""

from __future__ import annotations

import numpy as np
import pytest
from sim_gemm_variants import K_STEP, VARIANTS
from sim_gemms import Case, Problem
from sim_launch import simulate


def case_of(name: str, m: int, n: int, k: int, items_per_cta: int = 1) -> Case:
    """A case of a variant, its K rounded up where the variant needs that."""
    step = K_STEP.get(name, 2)
    k = -(-k // step) * step
    return VARIANTS[name](Problem(m, n, k, seed=m, items_per_cta=items_per_cta))


@pytest.mark.parametrize("name", VARIANTS)
def test_all_threads_together(name: str) -> None:
    k = 1100 if name.startswith(("tcgen05-mxf4", "tcgen05-nvf4")) else 330
    case = case_of(name, 150, 139, k)  # more tiles along K than the ring holds
    assert case.faults(simulate(case)) == []


@pytest.mark.parametrize("name", VARIANTS)
def test_more_work_than_ctas(name: str) -> None:
    case = case_of(name, 300, 60, 140, items_per_cta=3)
    assert case.faults(simulate(case)) == []


@pytest.mark.parametrize("name", VARIANTS)
def test_warps_and_completions_in_random_order(name: str) -> None:
    case = case_of(name, 70, 73, 138, items_per_cta=2)
    seed = list(VARIANTS).index(name)
    assert case.faults(simulate(case, seed=seed)) == [], f"seed {seed}"


@pytest.mark.parametrize("name", ["sync-f16", "cp-async-s8", "w4a16", "wgmma-f16", "tcgen05-f16"])
@pytest.mark.parametrize("size", [1, 8, 31])
def test_problems_smaller_than_a_tile(name: str, size: int) -> None:
    case = case_of(name, size, size, size)
    assert case.faults(simulate(case)) == []


def test_the_check_of_a_result_sees_each_kind_of_fault() -> None:
    case = case_of("sync-f16", 10, 11, 12)
    after = case.fresh_buffers()
    assert "elements wrong" in case.faults(after)[0]
    rows = after["c"].view(np.float32).reshape(10, -1)
    rows[:, :11] = case.result.values
    assert case.faults(after) == []
    rows[0, 11] = 1
    assert case.faults(after) == ["wrote outside the result"]
    after["a"][0] ^= 1
    assert case.faults(after)[1:] == ["changed a"]
    rows[3, 4] += 2 * case.result.bound[3, 4] + 1e-4
    assert "C(3, 4)" in "".join(case.faults(after))
