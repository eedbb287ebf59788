"""How the tests of mma.sync kernels make a layer: the one place that knows the public spelling.

HUMMING_TEST_REFERENCE=1 puts the reference backend on the CPU in the place of kernels on a GPU, to
rehearse the tests themselves.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from gemm_matrix import BACKEND, SOURCES, Case
from gemm_oracle import Reference, complaints, limit, measure, poisoned

import humming
from humming.backend import KernelBackend, Problem
from humming.configs import ComputeConfig, TuningConfig
from humming.formats.activation import ActivationScheme
from humming.formats.table import number_format
from humming.formats.tensors import TORCH_FLOATS
from humming.weight import CanonicalWeight

REHEARSAL = os.environ.get("HUMMING_TEST_REFERENCE") == "1"
DEVICE = "cpu" if REHEARSAL else "cuda"

#: Marks of a file whose tests need a GPU.
ON_A_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (REHEARSAL or torch.cuda.is_available()), reason="no CUDA device"),
]
#: For what the reference backend does not promise.
KERNELS_ALONE = pytest.mark.skipif(REHEARSAL, reason="no CUDA device: a rehearsal on the CPU")


def make_layer(  # budget: the keywords of the public call
    weight: CanonicalWeight,
    activation: str | ActivationScheme | None = None,
    *,
    source: str = "sm80",
    device: str | None = None,
    tuning: TuningConfig | None = None,
    compute: ComputeConfig | None = None,
) -> humming.QuantLinear:
    """A layer with the kernels of a source: on this machine's GPU, or on `device` "sim:NAME"."""
    activation = activation or None
    if REHEARSAL:
        return humming.QuantLinear(weight, activation=activation, backend="reference")
    return humming.QuantLinear(
        weight,
        activation=activation,
        backend=BACKEND,
        device=device,
        profile=None if device else SOURCES[source],
        compute=compute,
        tuning=tuning,
    )


def layer_of(
    case: Case,
    weight: CanonicalWeight,
    device: str | None = None,
    tuning: TuningConfig | None = None,
) -> humming.QuantLinear:
    """The layer of a case."""
    compute = None
    if case.accumulate:
        compute = replace(case.compute, accumulate=number_format(case.accumulate))
    return make_layer(
        weight, case.activation, source=case.source, device=device, tuning=tuning, compute=compute
    )


def some_tuning(case: Case, layer: humming.QuantLinear, m: int) -> TuningConfig | None:
    """One of the tunings that the backend proposes for `m` rows: by turns, as the name says."""
    if REHEARSAL:
        return None
    prepared = layer.prepare(TORCH_FLOATS[case.dtype], case.kind)
    assert isinstance(prepared.backend, KernelBackend)
    problem = Problem(m=m)
    found = list(prepared.backend.candidates(prepared.layer, prepared.compute, problem))
    return found[case.seed % len(found)]


def check_calls(
    layer: humming.QuantLinear,
    weight: CanonicalWeight,
    activation: ActivationScheme | str,
    calls: dict[object, tuple[torch.Tensor, dict[str, torch.Tensor]]],
    most: float | None = None,
) -> dict[object, torch.Tensor]:
    """Run a layer on several inputs, in poisoned memory, and compare all with float64.

    Args:
        layer: under test.
        weight: its weight.
        activation: what it turns activations into.
        calls: name to activations and routing.
        most: allowed relative error; what the format of the activations allows if None.

    Returns:
        The results by name.
    """
    reference = Reference(weight, ActivationScheme.parse(activation))
    results, measured = {}, []
    for name, (x, routing) in calls.items():
        with poisoned():
            result = layer(x, **routing)
        expected = reference(x, **routing)
        assert result.shape == expected.shape, f"{name}: {list(result.shape)}"
        assert result.dtype == x.dtype, name
        assert result.is_contiguous(), name
        results[name] = result
        measured.append(measure(result, expected, reference.terms(x, **routing)))
        allowed = limit(x.dtype) if most is None else most
    found = complaints(list(calls), measured, allowed)
    assert not found, "\n".join([f"{weight} x {activation}", *found])
    return results
