"""Which kernel computes which problem: a measured row, else the cheapest of a backend's candidates.

A choice is made for a bucket of sizes, with the largest of them, and holds for all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from humming import settings
from humming.backend import KernelBackend, KernelSpec, Problem
from humming.configs import ComputeConfig, LayerConfig, TuningConfig
from humming.engine.measured import check_rows, matching_row, tuning_of
from humming.errors import ConfigError, UnsupportedError
from humming.profiles import DeviceProfile

__all__ = ["Choice", "Planner", "bucket", "buckets", "choose"]

_LOG = logging.getLogger("humming.engine")

#: Every power of two has its own bucket, and from here on the step of a half between them as well.
_HALVES_FROM = 16
#: How many of the candidates HUMMING_EXPLAIN shows.
_SHOWN = 8


def bucket(m: int) -> int:
    """The largest size that gets the same kernel as `m`: 1, 2, 4, 8, 16, 24, 32, 48, 64, ..."""
    power = 1 << max(m - 1, 0).bit_length()
    half = power // 4 * 3
    return half if m <= half and power > _HALVES_FROM else power


def buckets(ms: Iterable[int] | None = None) -> list[int]:
    """The buckets of some sizes, ascending; None is all sizes from 1 to 8192."""
    sizes = range(1, 8193) if ms is None else ms
    return sorted({bucket(m) for m in sizes if m > 0})


@dataclass(frozen=True)
class Choice:
    """What was chosen for a problem, and why.

    Attributes:
        tuning: the choice.
        why: "measured, SOURCE" or "cheapest of COUNT".
        shortlist: the candidates with their estimated microseconds, cheapest first.
    """

    tuning: TuningConfig
    why: str
    shortlist: tuple[tuple[float, TuningConfig], ...]


def choose(
    backend: KernelBackend, layer: LayerConfig, compute: ComputeConfig, problem: Problem
) -> Choice:
    """The tuning for exactly this problem, decided once per process.

    A measured row counts only where it names a candidate: only these keep what `compute` promises.

    Raises:
        UnsupportedError: the backend has no candidate.
        ProfileError: the profile's rows for this backend make no sense.
    """
    return _choose(type(backend), backend.profile, layer, compute, problem)


@lru_cache(maxsize=16384)
def _choose(
    kind: type[KernelBackend],
    profile: DeviceProfile,
    layer: LayerConfig,
    compute: ComputeConfig,
    problem: Problem,
) -> Choice:
    backend = kind(profile)
    candidates = list(backend.candidates(layer, compute, problem))
    if not candidates:
        raise UnsupportedError(f"{kind.name} has no kernel for {layer} with {problem}")
    costs = [backend.cost(layer, compute, problem, tuning) for tuning in candidates]
    order = sorted(range(len(candidates)), key=costs.__getitem__)  # the first of equals
    shortlist = tuple((costs[index], candidates[index]) for index in order)
    choice = Choice(shortlist[0][1], f"cheapest of {len(candidates)}", shortlist)
    check_rows(profile, kind)
    row = matching_row(profile, kind.name, layer, compute, problem)
    if row is not None and (tuning := tuning_of(kind, row)) in candidates:
        choice = Choice(tuning, f"measured, {row.source}", shortlist)
    if settings.flag("HUMMING_EXPLAIN"):
        _explain(f"{kind.name} on {profile.title}: {layer}, {compute.gemm.value}", problem, choice)
    return choice


class Planner:
    """The kernels of one layer: from the sizes of a call to a tuning, and on to a kernel as data.

    Args:
        backend: who has the kernels.
        layer: the numbers.
        compute: the promises.
        forced: use this for every problem.

    Raises:
        ConfigError: `forced` is no tuning of this backend.
    """

    def __init__(
        self,
        backend: KernelBackend,
        layer: LayerConfig,
        compute: ComputeConfig,
        forced: TuningConfig | None = None,
    ) -> None:
        kinds = tuple(backend.tunings.values())
        if forced is not None and not isinstance(forced, kinds):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise ConfigError("tuning", forced, f"a {names}, for {backend.name}")
        self.backend, self.layer, self.compute, self.forced = backend, layer, compute, forced
        self._specs: dict[TuningConfig, KernelSpec] = {}

    def tuning(self, problem: Problem) -> TuningConfig:
        """What serves the bucket of this problem; see :func:`choose`."""
        if self.forced is not None:
            return self.forced
        whole = Problem(m=bucket(problem.m), top_k=problem.top_k)
        return choose(self.backend, self.layer, self.compute, whole).tuning

    def spec(self, tuning: TuningConfig) -> KernelSpec:
        """The kernel with this tuning."""
        found = self._specs.get(tuning)
        if found is None:
            found = self.backend.kernel(self.layer, self.compute, tuning)
            self._specs[tuning] = found
        return found

    def tunings(self, ms: Iterable[int] | None = None, top_k: int = 1) -> list[TuningConfig]:
        """Every tuning that calls with so many tokens use, in order of size.

        Args:
            ms: numbers of tokens (masked: rows that an expert has room for); None is 1 to 8192.
            top_k: choices of a token, if experts are chosen by index. Rows of activations may then
                be tokens, or choices already.
        """
        choices = buckets(m * top_k for m in (range(1, 8193) if ms is None else ms))
        problems = [Problem(m=m, top_k=k) for k in sorted({1, top_k}) for m in choices]
        return list(dict.fromkeys(map(self.tuning, problems)))


def _explain(what: str, problem: Problem, choice: Choice) -> None:
    """Log a choice where it is seen: whoever sets the variable need not know logging."""
    if not _LOG.hasHandlers():
        _LOG.addHandler(logging.StreamHandler())
    if not _LOG.isEnabledFor(logging.INFO):
        _LOG.setLevel(logging.INFO)
    sizes = f"m={problem.m}" + (f", top_k={problem.top_k}" if problem.top_k != 1 else "")
    lines = [f"{what}, {sizes}: {choice.tuning} ({choice.why})"]
    for cost, tuning in choice.shortlist[:_SHOWN]:
        lines.append(f"  {cost:10.2f} us  {tuning}{'  <--' * (tuning == choice.tuning)}")
    if len(choice.shortlist) > _SHOWN:
        lines.append(f"  and {len(choice.shortlist) - _SHOWN} more")
    _LOG.info("%s", "\n".join(lines))
