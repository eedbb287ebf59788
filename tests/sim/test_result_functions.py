"""Products that apply a function to their results, in every pipeline that can, in the simulator."""

from __future__ import annotations

import pytest
from result_cases import TRIALS, Trial, check_trial

pytestmark = pytest.mark.compile


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_results_are_those_of_the_function(trial: Trial) -> None:
    check_trial(trial, device=trial.device)
