"""What a quantized layer should give, in float64 on any device, and how far a result is from it.

The weight is dequantized by :meth:`CanonicalWeight.dequantize`, which other tests prove, and the
activations are those that :func:`quantize_activation` makes; nothing of the code under test takes
part. Errors are relative: ||y - ref|| / ||ref||, of everything together and of the worst row; and
one element against the size of the products that it sums, for outputs that are small beside others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from humming.activations import quantize_activation
from humming.formats.activation import ActivationScheme
from humming.formats.number import NumberFormat
from humming.formats.table import number_format
from humming.formats.tensors import TORCH_FLOATS
from humming.weight import CanonicalWeight

#: Largest relative error of a whole result; the worst row or element may have three times that.
LIMITS = {"bf16": 4e-3, "f16": 1e-3, "f32": 1e-5}
#: Sums in f16 are rounded after each step.
HALF_SUMS_LIMIT = 1e-2
WORST = 3.0


def operand(x: torch.Tensor, weight: CanonicalWeight, activation: ActivationScheme) -> torch.Tensor:
    """The numbers [M, K] that the multiplication sees, in float64."""
    if weight.pre_quant_scale is not None:
        x = x * weight.pre_quant_scale.to(x.dtype)
    if not activation.is_quantized:
        return x.to(TORCH_FLOATS[activation.format.name]).double()
    return quantize_activation(x, activation, weight.input_scale).dequantize(torch.float64)


class Reference:
    """A layer in float64; dequantizes each matrix once.

    Args:
        weight: its weight, of experts too.
        activation: what it turns activations into.
    """

    def __init__(self, weight: CanonicalWeight, activation: ActivationScheme) -> None:
        self.weight, self.activation = weight, activation
        self._matrices: dict[int | None, tuple[CanonicalWeight, torch.Tensor]] = {}

    def __call__(self, x: torch.Tensor, **routing: torch.Tensor) -> torch.Tensor:
        """The result of one call; rows that belong to no expert are zero."""
        return self._routed(self.product, x, routing)

    def terms(self, x: torch.Tensor, **routing: torch.Tensor) -> torch.Tensor:
        """Of each element of the result, the root of the sum of its squared products."""
        return self._routed(self._terms, x, routing)

    def product(self, x: torch.Tensor, expert: int | None = None) -> torch.Tensor:
        """``x @ W.T + bias`` for rows [M, K] of one matrix."""
        weight, values = self._matrix(expert)
        sums = operand(x, weight, self.activation) @ values.T
        return sums if weight.bias is None else sums + weight.bias.double()

    def _terms(self, x: torch.Tensor, expert: int | None = None) -> torch.Tensor:
        weight, values = self._matrix(expert)
        return (operand(x, weight, self.activation).square() @ values.square().T).sqrt()

    def _routed(
        self,
        rows_of: Callable[..., torch.Tensor],
        x: torch.Tensor,
        routing: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        if not routing:
            return rows_of(x.reshape(-1, self.weight.k)).view(*x.shape[:-1], self.weight.n)
        ((name, numbers),) = routing.items()
        rows, where = _ROWS[name](x, numbers, self.weight.experts)
        result = torch.zeros(*where, self.weight.n, dtype=torch.float64, device=x.device)
        flat = result.view(-1, self.weight.n)
        for expert, (inputs, places) in enumerate(rows):
            if len(places):
                flat[places] = rows_of(inputs, expert)
        return result

    def _matrix(self, expert: int | None) -> tuple[CanonicalWeight, torch.Tensor]:
        found = self._matrices.get(expert)
        if found is None:
            weight = self.weight if expert is None else self.weight.expert(expert)
            found = self._matrices[expert] = weight, weight.dequantize(torch.float64)
        return found


Rows = list[tuple[torch.Tensor, torch.Tensor]]


def _indexed(x: torch.Tensor, ids: torch.Tensor, experts: int) -> tuple[Rows, Sequence[int]]:
    tokens, top_k = ids.shape
    every = x.repeat_interleave(top_k, dim=0) if x.dim() == 2 else x.flatten(0, 1)
    places = [(ids.reshape(-1) == expert).nonzero()[:, 0] for expert in range(experts)]
    return [(every[place], place) for place in places], (tokens, top_k)


def _contiguous(x: torch.Tensor, offsets: torch.Tensor, experts: int) -> tuple[Rows, Sequence[int]]:
    bounds = offsets.tolist()
    numbers = torch.arange(len(x), device=x.device)
    places = [numbers[bounds[e] : bounds[e + 1]] for e in range(experts)]
    return [(x[place], place) for place in places], (len(x),)


def _masked(x: torch.Tensor, counts: torch.Tensor, experts: int) -> tuple[Rows, Sequence[int]]:
    numbers = torch.arange(x.shape[0] * x.shape[1], device=x.device).view(x.shape[:2])
    places = [numbers[e, :count] for e, count in enumerate(counts.tolist())]
    return [(x[e, : len(place)], place) for e, place in enumerate(places)], x.shape[:2]


_ROWS = {"expert_ids": _indexed, "expert_offsets": _contiguous, "expert_counts": _masked}


# -- comparing ---------------------------------------------------------------------------------


def limit(output: NumberFormat | str, accumulate: str = "") -> float:
    """The largest relative error of a whole result of this format."""
    return HALF_SUMS_LIMIT if accumulate == "f16" else LIMITS[number_format(output).name]


def measure(
    result: torch.Tensor, reference: torch.Tensor, terms: torch.Tensor | None = None
) -> torch.Tensor:
    """Four numbers, still on the device, for :func:`complaints`.

    Args:
        result: of the layer.
        reference: what it should be.
        terms: see :meth:`Reference.terms`; elements are not judged one by one without.

    Returns:
        Errors of all, of the worst row and of the worst element; how many rows are wrongly not 0.
    """
    found = result.double().reshape(-1, result.shape[-1])
    reference = reference.reshape(found.shape)
    difference = found - reference
    wrong, size = difference.norm(dim=1), reference.norm(dim=1)
    stray = ((size == 0) & ~(wrong == 0)).sum().double()
    whole = wrong.norm() / size.norm().clamp(min=torch.finfo(torch.float64).tiny)
    element = torch.zeros_like(whole)
    if terms is not None:
        element = _largest(difference.abs(), reference.abs() + terms.reshape(found.shape))
    return torch.stack([whole, _largest(wrong, size), element, stray])


def _largest(wrong: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """The largest ratio where a size is not 0; NaN if there is any. What should be 0 is counted."""
    ratios = torch.where(size > 0, wrong / size, torch.zeros_like(wrong)).flatten()
    return torch.cat([ratios, ratios.new_zeros(1)]).max()


def complaints(names: Sequence[object], measured: Sequence[torch.Tensor], most: float) -> list[str]:
    """What is wrong, one line for each result that is; NaN is always wrong."""
    found = []
    rows = torch.stack(list(measured)).tolist()
    for name, (whole, row, element, stray) in zip(names, rows, strict=True):
        if stray:
            found.append(f"{name}: {stray:.0f} rows that belong to nobody are not zero")
        elif not (whole <= most and row <= WORST * most and element <= WORST * most):
            worst = f"worst row {row:.2e}, worst element {element:.2e}"
            found.append(f"{name}: error {whole:.2e}, {worst}, allowed {most:.0e}")
    return found


def check(
    result: torch.Tensor,
    reference: torch.Tensor,
    most: float,
    name: object = "",
    terms: torch.Tensor | None = None,
) -> None:
    """Fail with numbers if a result is too far from its reference."""
    assert result.shape == reference.shape, f"{name}: {list(result.shape)}"
    assert result.is_contiguous(), name
    found = complaints([name], [measure(result, reference, terms)], most)
    assert not found, found[0]


@contextmanager
def poisoned() -> Iterator[None]:
    """Memory that torch hands out uninitialized holds NaN, or the largest integer, in here.

    What a kernel does not write shows in its result, and what it reads before anybody wrote it too.
    """
    fill = torch.utils.deterministic
    before = fill.fill_uninitialized_memory
    was_on, only_warned = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # operations that have no such algorithm
        # Not torch.use_deterministic_algorithms, which imports torch.compile's machinery: 4 s.
        torch._C._set_deterministic_algorithms(True, warn_only=True)
        fill.fill_uninitialized_memory = True
        try:
            yield
        finally:
            fill.fill_uninitialized_memory = before
            torch._C._set_deterministic_algorithms(was_on, warn_only=only_warned)
