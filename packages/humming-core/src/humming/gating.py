"""What stands between the two products of an expert: activation functions, of a gate or without.

The torch reference of each, in float32 and rounded once to the dtype of its input, is its
definition; the CUDA expression beside it is what kernels compute.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch

from humming.configs import ResultFunction
from humming.errors import ConfigError, UnsupportedError

__all__ = ["Gating", "GatingFunction", "gating_functions", "register_gating"]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
#: An expression stays one: it ends nothing, opens no block and starts no comment or directive.
_NO_EXPRESSION = re.compile(r"[;{}#\\\n\r\"']|//|/\*")


@dataclass(frozen=True)
class GatingFunction:
    """An activation function.

    Attributes:
        name: what :meth:`Gating.of` calls it.
        cuda: C++ expression of a float. With a gate its variables are ``gate`` and ``up``, else
            ``x``, and the parameters by name; ``sigmoid(x)``, ``at_most(x, limit)`` and
            ``within(x, limit)`` (-limit to limit) beside what CUDA has. The last two keep NaN,
            which ``fminf`` does not.
        reference: the same of float32 tensors, parameters as keywords.
        gated: whether it has a gate: two inputs for each output.
        parameters: names and usual values.
        positive: parameters that must be above 0.
    """

    name: str
    cuda: str
    reference: Callable[..., torch.Tensor]
    gated: bool = True
    parameters: Mapping[str, float] = field(default_factory=dict, hash=False)
    positive: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in (self.name, *self.parameters):
            if not _NAME.fullmatch(name):
                raise ConfigError("name", name, "lower-case letters, digits and underscores")
        reserved = {"x", "gate", "up"} & self.parameters.keys()
        if reserved:
            raise ConfigError("parameters", sorted(reserved), "names other than x, gate and up")
        if not self.cuda.strip() or _NO_EXPRESSION.search(self.cuda):
            raise ConfigError("cuda", self.cuda, "one C++ expression, on one line")
        object.__setattr__(self, "parameters", MappingProxyType(dict(self.parameters)))

    def __reduce__(self) -> tuple[Callable[[str], GatingFunction], tuple[str]]:
        return _named, (self.name,)  # a lambda can't be pickled

    @property
    def inputs(self) -> int:
        """Inputs for each output: 2 or 1."""
        return 2 if self.gated else 1


def _silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


def _gelu(x: torch.Tensor) -> torch.Tensor:
    # 1 + erf(x / sqrt(2)) has no correct digit left where x is below -5; erfc has all.
    return 0.5 * x * torch.erfc(x * -math.sqrt(0.5))


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    # (1 + tanh(y)) / 2 is sigmoid(2 y), without the cancellation.
    return x * torch.sigmoid(_TANH_LINEAR * x * (1 + 0.044715 * x * x))


def _swiglu_oai(
    gate: torch.Tensor, up: torch.Tensor, *, alpha: float, limit: float
) -> torch.Tensor:
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


def _swiglu_clamped(gate: torch.Tensor, up: torch.Tensor, *, limit: float) -> torch.Tensor:
    return _silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


_TANH_LINEAR = 2 * math.sqrt(2 / math.pi)
_SILU, _GELU = "({0} * sigmoid({0}))", "(0.5f * {0} * erfcf(-0.70710678f * {0}))"
_TANH = f"({{0}} * sigmoid({_TANH_LINEAR!r}f * {{0}} * (1.0f + 0.044715f * {{0}} * {{0}})))"
_RELU = "({0} < 0.0f ? 0.0f : {0})"
_LIMIT = frozenset({"limit"})

_FUNCTIONS: dict[str, GatingFunction] = {
    function.name: function
    for function in (
        GatingFunction("silu", _SILU.format("x"), _silu, gated=False),
        GatingFunction("gelu", _GELU.format("x"), _gelu, gated=False),
        GatingFunction("gelu_tanh", _TANH.format("x"), _gelu_tanh, gated=False),
        GatingFunction("relu", _RELU.format("x"), torch.relu, gated=False),
        GatingFunction(
            "relu2", "(x < 0.0f ? 0.0f : x * x)", lambda x: torch.relu(x).square(), gated=False
        ),
        GatingFunction("swiglu", _SILU.format("gate") + " * up", lambda g, u: _silu(g) * u),
        GatingFunction("geglu", _GELU.format("gate") + " * up", lambda g, u: _gelu(g) * u),
        GatingFunction(
            "geglu_tanh", _TANH.format("gate") + " * up", lambda g, u: _gelu_tanh(g) * u
        ),
        GatingFunction("reglu", _RELU.format("gate") + " * up", lambda g, u: torch.relu(g) * u),
        GatingFunction(  # gpt-oss: the gate is cut from above alone
            "swiglu_oai",
            "at_most(gate, limit) * sigmoid(alpha * at_most(gate, limit))"
            " * (within(up, limit) + 1.0f)",
            _swiglu_oai,
            parameters={"alpha": 1.702, "limit": 7.0},
            positive=_LIMIT,
        ),
        GatingFunction(  # DeepSeek-V4
            "swiglu_clamped",
            "at_most(gate, limit) * sigmoid(at_most(gate, limit)) * within(up, limit)",
            _swiglu_clamped,
            parameters={"limit": 10.0},
            positive=_LIMIT,
        ),
    )
}


def gating_functions() -> Mapping[str, GatingFunction]:
    """All functions by name, registered ones too."""
    return MappingProxyType(_FUNCTIONS)


def register_gating(function: GatingFunction) -> GatingFunction:
    """Add a function of your own; :meth:`Gating.of` finds it by its name from then on.

    Raises:
        ConfigError: another function has this name.
    """
    found = _FUNCTIONS.setdefault(function.name, function)
    if found != function:
        raise ConfigError("name", function.name, "a name that no other gating function has")
    return function


@dataclass(frozen=True)
class Gating:
    """A function with its parameters, and where gates and ups lie; make one with :meth:`of`.

    Attributes:
        function: what is computed.
        parameters: names and values, in the order of the function's.
        interleaved: gate j is input 2j and up j is input 2j + 1, as gpt-oss stores them; else all
            gates come before all ups.
    """

    function: GatingFunction
    parameters: tuple[tuple[str, float], ...] = ()
    interleaved: bool = False

    @classmethod
    def of(cls, name: str, *, interleaved: bool = False, **parameters: float) -> Gating:
        """The function of this name.

        Args:
            name: "swiglu", "gelu_tanh", ...; see :func:`gating_functions`.
            interleaved: see :class:`Gating`.
            parameters: those of the function; left out, they have their usual values.

        Raises:
            ConfigError: no such name, or a value that is none.
            UnsupportedError: a parameter, or a layout of gates, that the function doesn't have.
        """
        function = _named(name)
        known = function.parameters
        for parameter, value in parameters.items():
            if parameter not in known:
                has = f"only {', '.join(known)}" if known else "no parameters"
                raise UnsupportedError(f"{name} has no parameter {parameter}: it has {has}")
            _check_value(function, parameter, value)
        if interleaved and not function.gated:
            raise UnsupportedError(f"{name} has no gate, so there is nothing to interleave")
        values = {**known, **parameters}
        return cls(function, tuple((key, float(values[key])) for key in known), interleaved)

    def inputs(self, width: int) -> int:
        """How many inputs `width` outputs have."""
        return width * self.function.inputs

    def of_results(self) -> ResultFunction:
        """The same for kernels that apply it to results of theirs."""
        function = self.function
        return ResultFunction(
            name=function.name,
            expression=function.cuda,
            parameters=self.parameters,
            inputs=function.inputs,
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The reference: x [.., inputs(I)] to [.., I], in float32, rounded once to the dtype of x.

        Raises:
            ConfigError: no floats, or an odd number of inputs for a function with a gate.
        """
        if not x.is_floating_point():
            raise ConfigError("x", x.dtype, "a float tensor")
        wide = x.to(torch.float32)
        if not self.function.gated:
            return self.function.reference(wide, **dict(self.parameters)).to(x.dtype)
        if x.shape[-1] % 2:
            raise ConfigError("x", list(x.shape), f"an even last dimension, for {self}")
        parts = (wide[..., 0::2], wide[..., 1::2]) if self.interleaved else wide.chunk(2, dim=-1)
        return self.function.reference(*parts, **dict(self.parameters)).to(x.dtype)

    def __str__(self) -> str:
        values = [f"{name}={value:g}" for name, value in self.parameters]
        values += ["interleaved"] if self.interleaved else []
        return f"{self.function.name}({', '.join(values)})" if values else self.function.name


def _named(name: str) -> GatingFunction:
    if name not in _FUNCTIONS:
        raise ConfigError("gating", name, f"one of {', '.join(_FUNCTIONS)}")
    return _FUNCTIONS[name]


def _check_value(function: GatingFunction, name: str, value: float) -> None:
    """A parameter is a number that float32 has; `positive` ones stay above 0 there."""
    try:
        stored = struct.unpack("f", struct.pack("f", value))[0]
    except (OverflowError, TypeError, struct.error):
        stored = math.nan
    if not math.isfinite(stored) or (name in function.positive and not stored > 0):
        kind = "positive number" if name in function.positive else "number"
        raise ConfigError(f"{function.name} {name}", value, f"a {kind} that float32 holds")
