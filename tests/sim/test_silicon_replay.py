"""Every micro-kernel gives in the simulator what an H200 gave: see tests/sim/silicon."""

from __future__ import annotations

import pytest
from silicon import compare, recording, replay
from silicon.case import Case, Within
from silicon.catalogue import FAMILIES, family

import humming_sim

# Legal PTX that the simulator names instead of running it, with what it says.
REFUSED = {"warp/calls": "the call of mix"}
CASES = [(name, case) for name in FAMILIES for case in family(name)]
# Where threads or asynchronous units must wait for each other.
ORDERED = ("warp", "memory", "matrix_move", "atomic", "async", "cluster", "tma", "wgmma", "gemm")
SUMS = [
    (name, case)
    for name in ("mma", "wgmma", "gemm")
    for case, made in family(name).items()
    if any(isinstance(output.check, Within) for output in made.outputs)
]


def case_of(name: str, case: str) -> Case:
    return family(name)[case]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_the_simulator_repeats_what_the_gpu_recorded(name: str, case: str) -> None:
    if case in REFUSED:
        recording.recorded(name, case_of(name, case))
        with pytest.raises(humming_sim.UnsupportedInstruction, match=REFUSED[case]):
            replay.simulate(case_of(name, case))
        return
    assert replay.replay(name, case_of(name, case)) == []


@pytest.mark.parametrize(
    ("name", "case"), [pair for pair in CASES if pair[0] in ORDERED and pair[1] not in REFUSED]
)
def test_late_copies_and_a_random_order_of_warps_change_no_result(name: str, case: str) -> None:
    assert replay.replay(name, case_of(name, case), seed=11) == []


@pytest.mark.parametrize(("name", "case"), SUMS)
def test_hardware_accumulation_gives_the_bits_of_the_gpu(name: str, case: str) -> None:
    made = case_of(name, case)
    expected = recording.recorded(name, made)
    got = replay.simulate(made, accumulation="hardware")
    dtype = made.outputs[0].dtype
    assert expected.view(dtype).tolist() == got.view(dtype).tolist()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_gpu_itself_keeps_the_bounds_that_are_asked_of_both(name: str) -> None:
    for case in family(name).values():
        data = recording.recorded(name, case)
        assert compare.disagreements(case, data, data) == []
