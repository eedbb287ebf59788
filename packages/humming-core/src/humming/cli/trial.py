"""One layer put to the test: load, prepare, multiply, compare with the float64 oracle, time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from humming.checkpoints.base import LayerPlan
from humming.checkpoints.checkpoint import Checkpoint
from humming.errors import HummingError
from humming.formats.activation import ActivationScheme
from humming.layer import PreparedLayer, QuantLinear
from humming.testing.oracle import Deviation, deviation, expected_products, tolerance
from humming.weight import CanonicalWeight

__all__ = ["Job", "Outcome", "Trial", "attempt"]

_SEED = 0
_OUTLIER_SHARE, _OUTLIER_FACTOR = 0.01, 50.0
_TOP_K = 2
#: A call is repeated until it has been timed so often, or for so long.
_TIMED_CALLS, _TIMED_SECONDS = 3, 0.1


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is asked of every layer.

    Attributes:
        sizes: numbers of tokens.
        dtype: of activations and results.
        torch_device: where to compute.
        backend: name, or None to select.
        activation: override, or None.
    """

    sizes: Sequence[int]
    dtype: torch.dtype
    torch_device: str = "cpu"
    backend: str | None = None
    activation: ActivationScheme | None = None


@dataclass(frozen=True)
class Trial:
    """One product: its number of tokens, how far off it was, and how long it took."""

    m: int
    deviation: Deviation
    milliseconds: float


@dataclass(frozen=True)
class Outcome:
    """What became of one layer.

    Attributes:
        plan: the layer.
        status: "ok", "wrong", "refused", "unreadable" or "failed".
        reason: why, unless it is ok.
        prepared: what computed it; None if nothing did.
        trials: one per number of tokens.
        limit: the relative error that its results may have.
    """

    plan: LayerPlan
    status: str
    reason: str = ""
    prepared: PreparedLayer | None = None
    trials: tuple[Trial, ...] = ()
    limit: float | None = None

    @property
    def worst(self) -> Deviation:
        """The largest errors over all trials; NaN if there is one anywhere."""
        return Deviation(
            float(np.max([trial.deviation.whole for trial in self.trials])),
            float(np.max([trial.deviation.worst_row for trial in self.trials])),
        )


@dataclass(frozen=True)
class _Case:
    """Inputs of one product: x [M, K], and expert_ids [M, top_k] or nothing."""

    x: torch.Tensor
    expert_ids: torch.Tensor | None = None

    def call(self, layer: QuantLinear) -> Callable[[], torch.Tensor]:
        """The product as a function of nothing, its inputs in place."""
        device = layer.weight.device
        x = self.x.to(device)
        ids = None if self.expert_ids is None else self.expert_ids.to(device)
        return lambda: layer(x, expert_ids=ids)


def attempt(checkpoint: Checkpoint, plan: LayerPlan, job: Job) -> Outcome:
    """Put one layer to the test; what can't be done is an outcome too."""
    try:
        weight = checkpoint[plan.name]
    except HummingError as error:
        return Outcome(plan, "unreadable", str(error))
    try:
        layer = QuantLinear(
            weight.to(job.torch_device), activation=job.activation, backend=job.backend
        )
        prepared = layer.prepare(job.dtype)
    except HummingError as error:
        return Outcome(plan, "refused", str(error))
    cases = _cases(weight, job)
    try:
        results = [_timed(case.call(layer), layer.weight.device) for case in cases]
    except (HummingError, torch.OutOfMemoryError) as error:
        return Outcome(plan, "failed", str(error), prepared)
    expected = _expected(cases, weight, prepared.layer.activation)
    trials = tuple(
        Trial(len(case.x), deviation(result, wanted), milliseconds)
        for case, (result, milliseconds), wanted in zip(cases, results, expected, strict=True)
    )
    limit = tolerance(prepared.layer.output)
    bad = [trial for trial in trials if not trial.deviation.within(limit)]
    if not bad:
        return Outcome(plan, "ok", "", prepared, trials, limit)
    reason = f"beyond {limit:.0e} (in any row {3 * limit:.0e}) at " + ", ".join(
        f"m={t.m}: {t.deviation.whole:.2e} (worst row {t.deviation.worst_row:.2e})" for t in bad
    )
    return Outcome(plan, "wrong", reason, prepared, trials, limit)


def _cases(weight: CanonicalWeight, job: Job) -> list[_Case]:
    """Random inputs, the same for a layer whichever others are run."""
    generator = torch.Generator().manual_seed(_SEED)
    cases = []
    for m in job.sizes:
        x = torch.randn(m, weight.k, generator=generator)
        count = max(1, round(weight.k * _OUTLIER_SHARE))
        x[:, torch.randperm(weight.k, generator=generator)[:count]] *= _OUTLIER_FACTOR
        ids = None
        if weight.experts:
            shape = (m, min(_TOP_K, weight.experts))
            ids = torch.randint(weight.experts, shape, generator=generator)
        cases.append(_Case(x.to(job.dtype), ids))
    return cases


def _expected(
    cases: Sequence[_Case], weight: CanonicalWeight, activation: ActivationScheme
) -> list[npt.NDArray[np.float64]]:
    """The oracle's results: [M, N] each, or [M, top_k, N] with experts."""
    if not weight.experts:
        return expected_products([case.x for case in cases], weight, activation)
    routes = [case.expert_ids for case in cases if case.expert_ids is not None]
    results = [np.zeros((*ids.shape, weight.n)) for ids in routes]
    for expert in range(weight.experts):
        places = [(ids == expert).nonzero(as_tuple=True) for ids in routes]
        inputs = [case.x[tokens] for case, (tokens, _) in zip(cases, places, strict=True)]
        if not any(len(x) for x in inputs):
            continue
        products = expected_products(inputs, weight.expert(expert), activation)
        for result, (tokens, choices), product in zip(results, places, products, strict=True):
            result[tokens.numpy(), choices.numpy()] = product
    return results


def _timed(call: Callable[[], torch.Tensor], device: torch.device) -> tuple[torch.Tensor, float]:
    """The result of a first call, and the least time of some more in milliseconds."""
    result = call()
    times: list[float] = []
    while len(times) < _TIMED_CALLS and sum(times) < _TIMED_SECONDS:
        _wait(device)
        start = time.perf_counter()
        call()
        _wait(device)
        times.append(time.perf_counter() - start)
    return result, 1e3 * min(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
