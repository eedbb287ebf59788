"""The fake backend and the simulator, installed for a test; kernels are compiled once per run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from core_oracle import dequantized
from fake_kernels import FakeBackend

from humming import plugins
from humming.activations import quantize_activation
from humming.engine import Workshop, workshop
from humming.jit import Cache, KernelLibrary
from humming.plugins import InstalledBackend
from humming.selection import find_device
from humming.weight import CanonicalWeight
from humming_sim import plugin

A100, T4, L40S = "sim:nvidia-a100", "sim:nvidia-t4", "sim:nvidia-l40s"


@cache
def kept() -> Workshop:
    """A workshop that all tests share, so that none compiles what another has compiled."""
    folder = tempfile.mkdtemp(prefix="humming-fake-")
    return Workshop(KernelLibrary(Cache(Path(folder))))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeBackend]]:
    """The backend "fake" and the runtime "sim" are known, whether or not they are installed."""
    backends = {**plugins.backends(), "fake": InstalledBackend(FakeBackend, "tests", "0")}
    (runtime,) = plugin.humming_register_runtimes()
    runtimes = {**plugins.runtimes(), runtime.name: runtime}
    monkeypatch.setattr(plugins, "backends", lambda: backends)
    monkeypatch.setattr(plugins, "runtimes", lambda: runtimes)
    for module in ("kernel_layer", "aligning", "packing", "quantized"):
        monkeypatch.setattr(f"humming.engine.{module}.workshop", kept)
    FakeBackend.packed.clear()
    yield FakeBackend
    workshop.cache_clear()
    find_device.__globals__["log_once"].cache_clear()


def operand(x: torch.Tensor, weight: CanonicalWeight, activation: object) -> torch.Tensor:
    """float64 [rows, K]: the activations that a product of one expert really sees."""
    if weight.pre_quant_scale is not None:
        x = x * weight.pre_quant_scale.to(x.dtype)
    if not getattr(activation, "is_quantized", False):
        return x.double()
    found = quantize_activation(x, activation, weight.input_scale)  # type: ignore[arg-type]
    return found.dequantize(torch.float64)


def product(x: torch.Tensor, weight: CanonicalWeight, activation: object = None) -> torch.Tensor:
    """float64 [rows, N] of one expert, from its elements one by one."""
    result = operand(x, weight, activation) @ torch.from_numpy(dequantized(weight)).T
    return result if weight.bias is None else result + weight.bias.double()


def routed(
    x: torch.Tensor,
    weight: CanonicalWeight,
    activation: object = None,
    **routing: torch.Tensor,
) -> torch.Tensor:
    """float64 result of any kind of GEMM, row by row; zero where no expert computes."""
    ((kind, numbers),) = routing.items()
    experts = [weight.expert(e) for e in range(weight.experts)]
    if kind == "expert_counts":
        out = torch.zeros(*x.shape[:2], weight.n, dtype=torch.float64)
        for e, count in enumerate(numbers.tolist()):
            out[e, :count] = product(x[e, :count], experts[e], activation)
        return out
    if kind == "expert_offsets":
        out = torch.zeros(x.shape[0], weight.n, dtype=torch.float64)
        bounds = numbers.tolist()
        for e, (first, last) in enumerate(pairwise(bounds)):
            out[first:last] = product(x[first:last], experts[e], activation)
        return out
    out = torch.zeros(*numbers.shape, weight.n, dtype=torch.float64)
    for token, choices in enumerate(numbers.tolist()):
        for place, e in enumerate(choices):
            row = x[token, place] if x.dim() == 3 else x[token]
            if 0 <= e < weight.experts:
                out[token, place] = product(row[None], experts[e], activation)[0]
    return out
