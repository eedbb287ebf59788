"""Measured picks of a device profile: which row is about which problem, and what it says to use."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from humming.backend import KernelBackend, Problem
from humming.configs import ComputeConfig, LayerConfig, TuningConfig
from humming.errors import ConfigError, ProfileError
from humming.profiles import DeviceProfile, TuningRow

__all__ = ["CONDITIONS", "check_rows", "matching_row", "tuning_of", "use_of"]

#: What the condition of a row can be about. Numbers may be given as ranges, [first, last].
CONDITIONS: dict[str, Callable[[LayerConfig, ComputeConfig, Problem], str | int]] = {
    "a": lambda layer, compute, problem: layer.activation.format.name,
    "activation": lambda layer, compute, problem: str(layer.activation),
    "w": lambda layer, compute, problem: layer.weight.code.name,
    "weight": lambda layer, compute, problem: str(layer.weight),
    "output": lambda layer, compute, problem: layer.output.name,
    "n": lambda layer, compute, problem: layer.n,
    "k": lambda layer, compute, problem: layer.k,
    "experts": lambda layer, compute, problem: layer.experts,
    "gemm": lambda layer, compute, problem: compute.gemm.value,
    "accumulate": lambda layer, compute, problem: getattr(compute.accumulate, "name", ""),
    "m": lambda layer, compute, problem: problem.m,
    "top_k": lambda layer, compute, problem: problem.top_k,
}


def matching_row(
    profile: DeviceProfile,
    backend: str,
    layer: LayerConfig,
    compute: ComputeConfig,
    problem: Problem,
) -> TuningRow | None:
    """The first row of a backend whose conditions all hold; None without one."""
    for row in profile.tuning.get(backend, ()):
        if all(
            _holds(value, CONDITIONS[key](layer, compute, problem))
            for key, value in row.when.items()
        ):
            return row
    return None


def tuning_of(backend: type[KernelBackend], row: TuningRow) -> TuningConfig:
    """What a row says to use, as the backend's own tuning; a list becomes a tuple.

    Raises:
        TypeError, ValueError: the backend's tuning has no such field, or refuses a value; or it has
            several kinds of tunings, and the row says of none that it is meant.
    """
    fields = {key: _frozen(value) for key, value in row.use.items()}
    kinds = backend.tunings
    if len(kinds) == 1:
        (kind,) = kinds.values()
        return kind(**fields)
    name = fields.pop("pipeline", None)
    if name not in kinds:
        raise ConfigError("pipeline", name, f"one of {', '.join(kinds)}")
    return kinds[name](**fields)


def use_of(backend: type[KernelBackend], tuning: TuningConfig) -> dict[str, Any]:
    """What a row would say to use: the inverse of :func:`tuning_of`."""
    kinds = backend.tunings
    names = {} if len(kinds) == 1 else {kind: name for name, kind in kinds.items()}
    pipeline = {"pipeline": names[type(tuning)]} if names else {}
    return {**pipeline, **dataclasses.asdict(tuning)}


def check_rows(profile: DeviceProfile, backend: type[KernelBackend]) -> None:
    """Check all rows of a backend: the reader of profiles knows neither conditions nor tunings.

    Raises:
        ProfileError: a condition that no row can have, or a tuning that the backend refuses.
    """
    problems = []
    for index, row in enumerate(profile.tuning.get(backend.name, ())):
        where = f"tuning.{backend.name}[{index}]"
        for key in row.when:
            if key not in CONDITIONS:
                problems.append(f"{where}.when.{key}: expected one of {', '.join(CONDITIONS)}")
        try:
            tuning_of(backend, row)
        except (TypeError, ValueError) as error:  # ConfigError is a ValueError
            problems.append(f"{where}.use: {error}")
    if problems:
        raise ProfileError(profile.path or profile.name, problems)


def _holds(condition: Any, value: str | int) -> bool:
    if isinstance(condition, (list, tuple)):
        return isinstance(value, int) and bool(condition[0] <= value <= condition[1])
    return bool(condition == value)


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, Mapping):
        return {key: _frozen(part) for key, part in value.items()}
    return value
