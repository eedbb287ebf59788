"""launch_seeds(): several orders from the same buffers, compared."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from sim_reverse import LAST_WINS, RACY, REVERSE

import humming_sim
from humming_sim import SimulationFault, UnstableResult, launch_seeds, seeds


def buffers() -> tuple[np.ndarray, np.ndarray]:
    return np.arange(256, dtype=np.float32), np.full(256, 7, np.float32)


def test_a_right_kernel_gives_its_results_and_report() -> None:
    source, target = buffers()
    report = launch_seeds(REVERSE, "reverse", 1, 256, [source, target], count=True)
    assert (target == source[::-1]).all()
    assert report.kernel == "reverse"
    assert report.instructions["bar.sync"] == 8  # of the convergent run alone


def test_every_order_starts_from_the_same_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[tuple[int | None, bytes]] = []

    def spy(*args: object, seed: int | None = None, **options: object) -> humming_sim.Report:
        (array,) = args[4]  # type: ignore[misc]
        starts.append((seed, array.tobytes()))
        array += 1  # each run gives the same
        return humming_sim.Report("k")

    monkeypatch.setattr(seeds, "launch", spy)
    array = np.zeros(3, np.int32)
    launch_seeds("", "k", 1, 1, [array], seeds=4)
    assert starts == [(seed, bytes(12)) for seed in (None, 1, 2, 3, 4)]
    assert array.tolist() == [1, 1, 1]


def test_a_fault_of_some_order_is_found_and_leaves_the_buffers_as_they_were() -> None:
    source, target = buffers()
    humming_sim.launch(RACY, "reverse", 1, 256, [source, target])
    assert (target == source[::-1]).all()
    source, target = buffers()
    with pytest.raises(SimulationFault, match="nothing wrote"):
        launch_seeds(RACY, "reverse", 1, 256, [source, target], seeds=5)
    assert (target == 7).all()


def test_results_that_depend_on_the_order_are_an_error_that_names_the_first() -> None:
    target = np.zeros(3, np.float32)
    with pytest.raises(
        UnstableResult,
        match=r"kernel last, order of seed \d: 1 of 3 elements of argument 0 differ from the "
        r"convergent run, the first at 0: 10\d instead of 10\d",
    ):
        launch_seeds(LAST_WINS, "last", 1, 256, [target], seeds=8)
    assert (target == 0).all()


def test_differences_within_the_tolerance_are_all_right() -> None:
    target = np.zeros(3, np.float32)
    launch_seeds(LAST_WINS, "last", 1, 256, [target], seeds=8, tolerance=0.07)
    assert 100 <= target[0] <= 107
    with pytest.raises(UnstableResult):
        launch_seeds(LAST_WINS, "last", 1, 256, [target], seeds=8, tolerance=1e-6)


def test_no_seed_runs_once_and_compares_nothing() -> None:
    target = np.zeros(3, np.float32)
    launch_seeds(LAST_WINS, "last", 1, 256, [target], seeds=0)
    assert target[0] >= 100


@pytest.mark.parametrize("kind", ["numpy", "ml_dtypes", "torch"])
def test_numbers_are_compared_in_the_type_of_what_was_passed(kind: str) -> None:
    wanted = np.array([1.0, -2.0, 0.0, np.nan, np.inf], np.float32)
    found = np.array([1.0078125, -2.0, -0.0, np.nan, np.inf], np.float32)
    if kind == "torch":
        passed = torch.from_numpy(found.copy()).bfloat16()
        memory = [torch.from_numpy(x).bfloat16().view(torch.uint8).numpy() for x in (found, wanted)]
    else:
        dtype = np.float32 if kind == "numpy" else ml_dtypes.bfloat16
        passed = found.astype(dtype)
        memory = [passed, wanted.astype(dtype)]
    row = (2, passed, memory[0])
    seeds._compare(row, memory[1], 0.004, "k")  # 0.0078 of a largest magnitude of 2
    with pytest.raises(UnstableResult, match=r"1 of 5 .* argument 2 .* 1\.00781 instead"):
        seeds._compare(row, memory[1], 0.003, "k")
    with pytest.raises(UnstableResult, match="2 of 5 elements"):  # and the sign of zero
        seeds._compare(row, memory[1], 0.0, "k")


def test_records_are_compared_by_their_bytes() -> None:
    found, wanted = np.zeros(2, "i4,f4"), np.zeros(2, "i4,f4")
    found["f0"][1] = 3
    with pytest.raises(UnstableResult, match=r"1 of 16 .* argument 0 .* first at 8: 3"):
        seeds._compare((0, found, found), wanted, 0.0, "k")
