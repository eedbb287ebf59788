"""The three configs of a GEMM: which numbers, which promises, how fast.

*Layer* changes the result, *Compute* changes what is promised about it, *Tuning* changes only
its speed. None of them names an architecture.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from humming.errors import ConfigError
from humming.formats.activation import ActivationScheme
from humming.formats.number import NumberFormat
from humming.formats.scheme import WeightScheme
from humming.formats.table import number_format

__all__ = [
    "OUTPUT_FORMATS",
    "ComputeConfig",
    "GemmKind",
    "LayerConfig",
    "ResultFunction",
    "TuningConfig",
]

#: Formats a result can have.
OUTPUT_FORMATS = ("f16", "bf16", "f32")


class GemmKind(str, Enum):
    """How rows of activations find their weight."""

    DENSE = "dense"  # one weight
    INDEXED = "indexed"  # an expert id per (token, choice)
    GROUPED_CONTIGUOUS = "grouped_contiguous"  # rows sorted by expert, offsets [E + 1]
    GROUPED_MASKED = "grouped_masked"  # [E, capacity, K] with a row count per expert


@dataclass(frozen=True, kw_only=True)
class ResultFunction:
    """A function of results, applied in f32 before they are rounded: what kernels know of a Gating.

    Attributes:
        name: for people.
        expression: C++, of ``x``, or of ``gate`` and ``up``; see :class:`humming.GatingFunction`.
        parameters: names and values of what else it uses.
        inputs: rows of the weight for each result. Of 2 the 8 gates of 8 results come first, then
            their ups, and then the gates of the next 8.
    """

    name: str
    expression: str
    parameters: tuple[tuple[str, float], ...] = ()
    inputs: int = 1


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """Which numbers a layer multiplies: everything that changes its result.

    Attributes:
        n: output features; with a function, what goes into it.
        k: input features.
        experts: number of weights, 0 for a dense layer.
        weight: scheme of the weight.
        activation: what activations are turned into.
        output: format of the result.
        bias: whether a bias is added.
        act_order: whether the stored columns are permuted.
        function: of the results; only for backends that say that they apply it.
    """

    n: int
    k: int
    experts: int = 0
    weight: WeightScheme
    activation: ActivationScheme
    output: NumberFormat
    bias: bool = False
    act_order: bool = False
    function: ResultFunction | None = None

    def __post_init__(self) -> None:
        for name in ("n", "k"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "a positive size")
        if self.experts < 0:
            raise ConfigError("experts", self.experts, "0 (dense) or a positive count")
        if self.output.name not in OUTPUT_FORMATS:
            raise ConfigError("output", self.output.name, f"one of {', '.join(OUTPUT_FORMATS)}")

    @property
    def results(self) -> int:
        """Numbers in a row of the result: `n`, or what a function makes of so many."""
        return self.n if self.function is None else self.n // self.function.inputs

    def __str__(self) -> str:
        lead = f"{self.experts} x " if self.experts else ""
        name = f" {self.function.name}" if self.function is not None else ""
        product = f"{lead}[{self.n}, {self.k}] {self.weight} x {self.activation}"
        return f"{product}{name} -> {self.output}"


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Which promises the product keeps.

    Attributes:
        gemm: how rows find their weight.
        accumulate: format of the running sums: f32, or f16 (faster on some devices). None
            means exact 32-bit integers for integer products and f32 for all others.
        deterministic: the same input gives the same bits on every run.
        batch_invariant: a row's bits do not depend on which other rows are in the batch.
    """

    gemm: GemmKind = GemmKind.DENSE
    accumulate: NumberFormat | None = None
    deterministic: bool = False
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        allowed = (None, number_format("f32"), number_format("f16"))
        if self.accumulate not in allowed:
            raise ConfigError("accumulate", str(self.accumulate), "f32, f16 or None")


@dataclass(frozen=True, kw_only=True)
class TuningConfig:
    """How a kernel is built; each backend derives its own fields. Changes only speed."""
