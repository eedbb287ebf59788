"""Layers of experts for tests, and what they should give: in float64, one token and choice by one.

Activation functions are written here a second time, in float64; nothing of humming.gating or
humming.moe takes part. Of a layer under test only the choice of kernels is asked, in folds_of().
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from gemm_data import random_weight
from gemm_oracle import operand

from humming import QuantMoE
from humming.backend import Problem
from humming.configs import GemmKind
from humming.formats.activation import ActivationScheme
from humming.formats.tensors import TORCH_FLOATS
from humming.layer import prepare_pair
from humming.weight import CanonicalWeight

Formula = Callable[..., torch.Tensor]


def _silu(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + (-x).exp())


def _normal(x: torch.Tensor) -> torch.Tensor:
    """The normal distribution, with all its digits far below 0."""
    return torch.special.erfc(-x / math.sqrt(2)) / 2


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return x / (1 + (-2 * inner).exp())


def _swiglu_oai(g: torch.Tensor, u: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    g = torch.minimum(g, torch.full_like(g, limit))
    u = torch.maximum(torch.minimum(u, torch.full_like(u, limit)), torch.full_like(u, -limit))
    return g / (1 + (-alpha * g).exp()) * (u + 1)


def _swiglu_clamped(g: torch.Tensor, u: torch.Tensor, limit: float) -> torch.Tensor:
    g = torch.minimum(g, torch.full_like(g, limit))
    u = torch.maximum(torch.minimum(u, torch.full_like(u, limit)), torch.full_like(u, -limit))
    return _silu(g) * u


def _relu(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x < 0, torch.zeros_like(x), x)


#: Name to formula; those of two tensors have a gate.
FORMULAS: dict[str, Formula] = {
    "silu": _silu,
    "gelu": lambda x: x * _normal(x),
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
    "relu2": lambda x: _relu(x) ** 2,
    "swiglu": lambda g, u: _silu(g) * u,
    "geglu": lambda g, u: g * _normal(g) * u,
    "geglu_tanh": lambda g, u: _gelu_tanh(g) * u,
    "reglu": lambda g, u: _relu(g) * u,
    "swiglu_oai": _swiglu_oai,
    "swiglu_clamped": _swiglu_clamped,
}
WITHOUT_GATE = ("silu", "gelu", "gelu_tanh", "relu", "relu2")


@dataclass(frozen=True)
class Function:
    """An activation function as the oracle knows it."""

    name: str = "swiglu"
    interleaved: bool = False
    parameters: dict[str, float] = field(default_factory=dict)
    formula: Formula | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Of float64 [.., inputs]."""
        formula = self.formula or FORMULAS[self.name]
        if self.name in WITHOUT_GATE:
            return formula(x)
        half = x.shape[-1] // 2
        parts = (x[..., 0::2], x[..., 1::2]) if self.interleaved else (x[..., :half], x[..., half:])
        return formula(*parts, **self.parameters)

    @property
    def inputs(self) -> int:
        return 1 if self.name in WITHOUT_GATE else 2


GPT_OSS = Function("swiglu_oai", True, {"alpha": 1.702, "limit": 7.0})


# -- the oracle --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Oracle:
    """A layer in float64, but for what is rounded on the way: see `rounds` and `folds`.

    Attributes:
        gate_up, down: weights; [E, ..].
        function: between them.
        weigh_input: weights multiply the input.
        shared: weights of shared experts.
        activation: what inputs of products are quantized to.
        rounds: whether results of products and of the function are rounded to the hidden states'
            dtype, as they are when stored.
        folds: whether the products of codes and scales of groups are rounded to bf16, as kernels do
            that multiply by these, for each weight: gate_up, down, and those of shared experts.
        activates, shared_activates: whether the first product of routed, or of shared, experts
            applies the function to what it has not rounded yet.
    """

    gate_up: CanonicalWeight
    down: CanonicalWeight
    function: Function = Function()
    weigh_input: bool = False
    shared: tuple[CanonicalWeight, CanonicalWeight] | None = None
    activation: str = ""
    rounds: bool = True
    folds: tuple[bool, bool, bool, bool] = (False, False, False, False)
    activates: bool = False
    shared_activates: bool = False

    @property
    def exact(self) -> Oracle:
        """The same layer without any rounding."""
        return replace(self, rounds=False, folds=(False, False, False, False))

    def __call__(
        self, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """[M, H]; `ids` count weights here, all others are skipped."""
        result = torch.zeros(len(hidden), self.down.n, dtype=torch.float64, device=hidden.device)
        parts = [cache(weight.expert) for weight in (self.gate_up, self.down)]
        matrix = cache(lambda part, expert: _matrix(parts[part](expert), self.folds[part]))
        for token, choices in enumerate(ids.tolist()):
            for choice, expert in enumerate(choices):
                if not 0 <= expert < self.gate_up.experts:
                    continue
                factor = float(weights[token, choice])
                x = hidden[token, None]
                if self.weigh_input:
                    x, factor = (x.double() * factor).to(hidden.dtype), 1.0
                row = self._pair(
                    self.activates,
                    x,
                    (parts[0](expert), matrix(0, expert)),
                    (parts[1](expert), matrix(1, expert)),
                )
                result[token] += factor * row[0]
        if self.shared is not None:
            up, down = (
                (weight, _matrix(weight, folds))
                for weight, folds in zip(self.shared, self.folds[2:], strict=True)
            )
            result += self._pair(self.shared_activates, hidden, up, down)
        return result

    def _pair(
        self,
        activates: bool,
        x: torch.Tensor,
        up: tuple[CanonicalWeight, torch.Tensor],
        down: tuple[CanonicalWeight, torch.Tensor],
    ) -> torch.Tensor:
        dtype = x.dtype
        inputs = self._product(x, *up)
        middle = self.function(inputs if activates else self._rounded(inputs, dtype))
        return self._rounded(self._product(self._rounded(middle, dtype), *down), dtype)

    def _product(
        self, x: torch.Tensor, weight: CanonicalWeight, matrix: torch.Tensor
    ) -> torch.Tensor:
        if self.activation:
            x = operand(x.to(torch.float32), weight, ActivationScheme.parse(self.activation))
        elif weight.pre_quant_scale is not None:
            raise NotImplementedError("weights with a pre_quant_scale")
        sums = x.double() @ matrix.T
        return sums if weight.bias is None else sums + weight.bias.double()

    def _rounded(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return x.to(dtype).double() if self.rounds else x


def _matrix(weight: CanonicalWeight, folds: bool) -> torch.Tensor:
    """The numbers that activations are multiplied by; a second level of scales stays outside."""
    values = weight.dequantize(torch.float64)
    if not folds:
        return values
    outside = 1.0 if weight.second is None else weight.second.double()
    return (values / outside).to(torch.bfloat16).double() * outside


def activated(oracle: Oracle, layer: QuantMoE, dtype: torch.dtype) -> Oracle:
    """The oracle, with :attr:`Oracle.activates` and the like of the layer's kernels."""
    routed, shared = layer.prepare(dtype)[0], False
    if layer.shared_gate_up is not None and layer.shared_down is not None:
        parts = layer.shared_gate_up, layer.shared_down
        shared = prepare_pair(*parts, layer.gating, dtype)[0].layer.function is not None
    activates = routed.layer.function is not None
    return replace(oracle, activates=activates, shared_activates=shared)


def folds_of(layer: QuantMoE, dtype: torch.dtype, m: int, top_k: int) -> tuple[bool, ...]:
    """:attr:`Oracle.folds` of the kernels that a layer chooses for so many tokens."""
    choices, per_row = m * top_k, 1 if layer.weigh_input else top_k
    products = layer._products(dtype, choices, per_row)
    routed = (None, None) if products is None else products
    if products is None or products.up.gemm is not GemmKind.INDEXED:
        per_row = 1  # a row for each choice
    shared = (
        None if part is None else part.prepare(dtype).kernels
        for part in (layer.shared_gate_up, layer.shared_down)
    )
    problems = Problem(m=choices, top_k=per_row), Problem(m=choices), Problem(m=m), Problem(m=m)
    return tuple(
        kernels is not None and getattr(kernels.planner.tuning(problem), "folds", False)
        for kernels, problem in zip((*routed, *shared), problems, strict=True)
    )


# -- data --------------------------------------------------------------------------------------


def weights_of(  # budget: sizes of a layer
    scheme: str,
    experts: int,
    hidden: int,
    width: int,
    function: Function = Function(),
    *,
    bias: float = 0.0,
    seed: int = 0,
    device: str = "cpu",
) -> tuple[CanonicalWeight, CanonicalWeight]:
    """Both weights of experts, with biases of `bias` times the number of the row (and expert)."""
    generator = torch.Generator(device).manual_seed(seed)
    pair = []
    for n, k in ((function.inputs * width, hidden), (hidden, width)):
        weight = random_weight(scheme, n, k, generator, experts=experts, device=device)
        if bias:
            rows = bias * torch.arange(n, device=device).expand(*weight.shape[:-1])
            if experts:
                rows = rows + bias * torch.arange(experts, device=device)[:, None]
            weight = weight.replace(bias=rows.to(torch.bfloat16))
        pair.append(weight)
    return pair[0], pair[1]


def hidden_of(m: int, k: int, dtype: torch.dtype, seed: int = 1, device: str = "cpu"):
    """Hidden states with channels that are 50 times as large, in every other row."""
    generator = torch.Generator(device).manual_seed(seed)
    x = torch.randn(m, k, generator=generator, device=device)
    x[::2, 7::100] *= 50
    return x.to(dtype)


def router(
    m: int, top_k: int, experts: int, seed: int = 2, device: str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Different experts for each token, and weights that add up to 1, int64 and float32."""
    generator = torch.Generator(device).manual_seed(seed)
    logits = torch.randn(m, experts, generator=generator, device=device)
    values, ids = logits.topk(top_k, dim=-1)
    return ids, values.softmax(dim=-1)


def dtype_of(name: str) -> torch.dtype:
    """bf16, f16 or f32."""
    return TORCH_FLOATS[name]
