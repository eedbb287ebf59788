"""Every combination of numbers, on every kind of GEMM, at every number of rows: against float64.

The sources for SM75, SM80 and SM89 are compiled to PTX, which the driver of the device here
translates. Compiling takes the time, so this file is run in many processes (`nox -s gpu` does), and
a case has one kernel for all numbers of rows: one of those that the backend proposes, by turns.
test_mma_cases.py runs those that it chooses.
"""

from __future__ import annotations

import pytest
from gemm_data import call_of, weight_of
from gemm_matrix import Case, all_cases
from gemm_oracle import limit
from gemm_runs import DEVICE, ON_A_GPU, check_calls, layer_of, some_tuning

pytestmark = ON_A_GPU

ROWS = (1, 7, 16, 33, 64, 129, 257)
#: Number of rows that tunings are proposed for.
PROPOSED_ROWS = 64


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_every_combination_equals_float64(case: Case) -> None:
    weight = weight_of(case, DEVICE)
    calls = {}
    for m in ROWS:
        call = call_of(case, weight, m, DEVICE)
        calls[f"M={m}"] = call.x, call.routing
    most = limit(case.dtype, case.accumulate)
    layer = layer_of(case, weight)
    layer = layer_of(case, weight, tuning=some_tuning(case, layer, PROPOSED_ROWS))
    check_calls(layer, weight, case.activations, calls, most)
