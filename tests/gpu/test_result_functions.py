"""Products that apply a function to their results, on a device: the trials of the simulator."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from result_cases import H100, TRIALS, Trial, check_trial

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_results_are_those_of_the_function(trial: Trial) -> None:
    """Kernels of older devices by their profile; those of Hopper's only there."""
    if trial.device == H100 and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("kernels of sm_90a run on no other device")
    older = {} if trial.device == H100 else {"profile": trial.device.removeprefix("sim:")}
    check_trial(replace(trial, m=7 * trial.m), "cuda", **older)
