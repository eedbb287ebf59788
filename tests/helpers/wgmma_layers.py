"""Layers of the backend sm90 in the simulator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from gemm_matrix import Case

import humming
from humming import plugins
from humming.backend import LaunchShape
from humming.configs import LayerConfig, TuningConfig
from humming.formats.table import number_format
from humming.profiles import DeviceProfile
from humming.weight import CanonicalWeight
from humming_sim.plugin import SimulatorRuntime

H100 = "nvidia-h100"


@contextmanager
def in_order_of(seed: int | None) -> Iterator[None]:
    """While it lasts, simulated warps run and copies complete in the random order of a seed."""
    original = SimulatorRuntime.launch

    def launch(
        self: SimulatorRuntime,
        kernel: object,
        shape: LaunchShape,
        args: Sequence[object],
        options: Mapping[str, int],
    ) -> None:
        order = {} if seed is None else {"seed": seed}
        original(self, kernel, shape, args, {**options, **order})

    with patch.object(SimulatorRuntime, "launch", launch):
        yield


def few_sms() -> DeviceProfile:
    """An H100 with two SMs, whose CTAs have several tiles each."""
    profile = plugins.profiles()[H100]
    return replace(profile, limits=replace(profile.limits, sm_count=2))


def layer_of(
    case: Case, weight: CanonicalWeight, tuning: TuningConfig | None = None
) -> humming.QuantLinear:
    """The layer of a case on a simulated H100 of few SMs."""
    return humming.QuantLinear(
        weight,
        activation=case.activation or None,
        backend="sm90",
        device=f"sim:{H100}",
        profile=few_sms(),
        tuning=tuning,
    )


def config_of(case: Case) -> LayerConfig:
    """The numbers of a case."""
    return LayerConfig(
        n=case.n,
        k=case.k,
        experts=case.experts,
        weight=case.scheme,
        activation=case.activations,
        output=number_format(case.dtype),
        bias=case.bias,
        act_order=case.act_order,
    )
