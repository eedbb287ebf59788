"""QuantLinear and matmul(): a quantized weight applied to activations."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from humming.backend import Backend, EagerBackend
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.errors import ConfigError, UnsupportedError
from humming.formats.activation import ActivationScheme
from humming.formats.number import NumberFormat
from humming.formats.scheme import WeightScheme
from humming.formats.table import number_format
from humming.formats.tensors import TORCH_FLOATS
from humming.quantizing import quantize
from humming.selection import find_profile, resolve_activation, select_backend
from humming.weight import CanonicalWeight

__all__ = ["PreparedLayer", "QuantLinear", "matmul", "prepare"]

_LOG = logging.getLogger("humming.layer")

#: Keyword of the routing tensor, by kind of GEMM.
_ROUTING = {
    GemmKind.INDEXED: "expert_ids",
    GemmKind.GROUPED_CONTIGUOUS: "expert_offsets",
    GemmKind.GROUPED_MASKED: "expert_counts",
}
_DTYPES = tuple(TORCH_FLOATS.values())
Routing = dict[str, torch.Tensor]


@dataclass(frozen=True)
class PreparedLayer:
    """A weight made ready for one backend, one activation dtype and one kind of GEMM.

    Attributes:
        backend: who computes.
        layer: the numbers it multiplies, activation fallback included.
        compute: the promises it keeps.
        run: activations (and routing) to results.
    """

    backend: Backend
    layer: LayerConfig
    compute: ComputeConfig
    run: Callable[..., torch.Tensor]


def prepare(
    weight: CanonicalWeight,
    dtype: torch.dtype,
    *,
    activation: str | ActivationScheme | None = None,
    backend: str | None = None,
    compute: ComputeConfig | None = None,
    allow_fallback: bool | None = None,
) -> PreparedLayer:
    """Choose activation type and backend for `weight` and make it ready.

    Args:
        weight: on the device where it shall run.
        dtype: of activations and result: float16, bfloat16 or float32.
        activation: overrides what the checkpoint asks for; then nothing is replaced silently.
        backend: name; None selects as :func:`humming.select_backend` does.
        compute: promises; None is a dense product, or an indexed one with experts.
        allow_fallback: whether a wider activation type may stand in for one that the device
            lacks. None: yes for what the checkpoint asks (unless HUMMING_ALLOW_FALLBACK=0), no
            for `activation`.

    Raises:
        ConfigError: an unknown dtype or name.
        UnsupportedError: no backend does it; says which refused and why.
    """
    if dtype not in _DTYPES:
        raise ConfigError("dtype", dtype, " or ".join(map(str, _DTYPES)))
    output = number_format(dtype)
    compute = compute or ComputeConfig(gemm=GemmKind.INDEXED if weight.experts else GemmKind.DENSE)
    device = str(weight.device)
    profile = find_profile(device=device)
    asked = weight.activation or ActivationScheme(format=output)
    if not asked.is_quantized:  # a checkpoint's "f16" means unquantized: the model's own dtype
        asked = ActivationScheme(format=output)
    override = None if activation is None else ActivationScheme.parse(activation)
    resolved = resolve_activation(
        asked,
        profile,
        weight=weight.scheme,
        output=output,
        override=override,
        allow_fallback=allow_fallback,
    )
    if resolved.static and weight.input_scale is None:
        raise ConfigError(
            "activation", str(resolved), "a dynamic scheme: this weight stores no input_scale"
        )
    layer = _layer_config(weight, resolved, output)
    chosen = select_backend(backend, device=device, layer=layer, compute=compute)
    if not isinstance(chosen, EagerBackend):
        raise UnsupportedError(
            f"backend {chosen.name!r} describes kernels, which this version can't launch yet; "
            f"use backend='reference'"
        )
    _LOG.debug("%s: %s", layer, chosen.name)
    return PreparedLayer(chosen, layer, compute, chosen.prepare(weight, layer, compute))


def _layer_config(
    weight: CanonicalWeight, activation: ActivationScheme, output: NumberFormat
) -> LayerConfig:
    """The numbers that a layer over `weight` multiplies."""
    return LayerConfig(
        n=weight.n,
        k=weight.k,
        experts=weight.experts,
        weight=weight.scheme,
        activation=activation,
        output=output,
        bias=weight.bias is not None,
        act_order=weight.permutation is not None,
    )


def _given(*tensors: torch.Tensor | None) -> Routing:
    """The routing tensors that were passed, by keyword; in the order of :data:`_ROUTING`."""
    pairs = zip(_ROUTING.values(), tensors, strict=True)
    return {name: tensor for name, tensor in pairs if tensor is not None}


def _gemm_kind(weight: CanonicalWeight, routing: Routing) -> GemmKind:
    """The kind of GEMM that the given routing tensors mean."""
    if not weight.experts:
        if routing:
            raise ConfigError(next(iter(routing)), "given", "no routing: the weight has no experts")
        return GemmKind.DENSE
    if len(routing) != 1:
        names = ", ".join(_ROUTING.values())
        raise ConfigError("routing", sorted(routing), f"exactly one of {names} with experts")
    return next(kind for kind, name in _ROUTING.items() if name in routing)


def _check_input(x: torch.Tensor, weight: CanonicalWeight) -> None:
    if x.dim() < 1 or x.shape[-1] != weight.k:
        raise ConfigError("x", list(x.shape), f"a last dimension of k={weight.k}")
    if x.device != weight.device:
        raise ConfigError("x", str(x.device), f"a tensor on {weight.device}, where the weight is")


def _check_routing(kind: GemmKind, x: torch.Tensor, routing: torch.Tensor, experts: int) -> None:
    name = _ROUTING[kind]
    if routing.dtype not in (torch.int32, torch.int64):
        raise ConfigError(name, routing.dtype, "an int32 or int64 tensor")
    shapes = {
        GemmKind.INDEXED: (
            routing.dim() == 2
            and (x.dim() == 2 or (x.dim() == 3 and x.shape[1] == routing.shape[1]))
            and x.shape[0] == routing.shape[0],
            "[M, top_k] beside x [M, K] or [M, top_k, K]",
        ),
        GemmKind.GROUPED_CONTIGUOUS: (
            tuple(routing.shape) == (experts + 1,) and x.dim() == 2,
            f"[{experts + 1}] offsets beside x [M, K]",
        ),
        GemmKind.GROUPED_MASKED: (
            tuple(routing.shape) == (experts,) and x.dim() == 3 and x.shape[0] == experts,
            f"[{experts}] counts beside x [{experts}, capacity, K]",
        ),
    }
    fits, expected = shapes[kind]
    if not fits:
        raise ConfigError(name, f"{list(routing.shape)} beside x {list(x.shape)}", expected)
    if kind is GemmKind.INDEXED and routing.numel():
        low, high = int(routing.min()), int(routing.max())
        if low < -1 or high >= experts:
            raise ConfigError(name, (low, high), f"ids from -1 (skip) to {experts - 1}")


def _multiply(
    prepared: PreparedLayer, weight: CanonicalWeight, x: torch.Tensor, routing: Routing
) -> torch.Tensor:
    kind = prepared.compute.gemm
    if kind is GemmKind.DENSE:
        flat = prepared.run(x.reshape(-1, weight.k))
        return flat.view(*x.shape[:-1], weight.n)
    name = _ROUTING[kind]
    _check_routing(kind, x, routing[name], weight.experts)
    return prepared.run(x, **{name: routing[name]})


def matmul(  # budget: one keyword per kind of routing
    x: torch.Tensor,
    weight: CanonicalWeight,
    *,
    expert_ids: torch.Tensor | None = None,
    expert_offsets: torch.Tensor | None = None,
    expert_counts: torch.Tensor | None = None,
    activation: str | ActivationScheme | None = None,
    backend: str | None = None,
) -> torch.Tensor:
    """``x @ W.T + bias`` for a quantized W; prepares the weight on every call.

    Args:
        x: [.., K], float16, bfloat16 or float32, on the weight's device. With experts [M, K]
            (or [M, top_k, K]), with ``expert_counts`` [E, capacity, K].
        weight: [N, K], or [E, N, K] together with exactly one of the next three.
        expert_ids: [M, top_k], the experts of each token; -1 skips and leaves zeros.
        expert_offsets: [E + 1]; rows ``expert_offsets[e]`` to ``expert_offsets[e + 1]`` are
            those of expert e. Rows beyond the last stay zero.
        expert_counts: [E], how many rows of each expert's capacity count. Others stay zero.
        activation: as in :func:`prepare`.
        backend: as in :func:`prepare`.

    Returns:
        [.., N] in the dtype of x, contiguous; [M, top_k, N] with ``expert_ids``.

    Raises:
        ConfigError: shapes, dtypes or devices do not fit.
        UnsupportedError: no backend does it.
    """
    routing = _given(expert_ids, expert_offsets, expert_counts)
    kind = _gemm_kind(weight, routing)
    _check_input(x, weight)
    prepared = prepare(
        weight,
        x.dtype,
        activation=activation,
        backend=backend,
        compute=ComputeConfig(gemm=kind),
    )
    return _multiply(prepared, weight, x, routing)


class QuantLinear(nn.Module):
    """A linear layer, or E of them, over a quantized weight.

    The weight's tensors are buffers, so ``state_dict()`` and ``.to(device)`` work; ``.half()``
    and other dtype changes leave them alone, since they are what the checkpoint says. The
    output has the dtype of the input. Backend and activation are settled at the first call for
    each input dtype; :meth:`prepare` does it before.
    """

    def __init__(
        self,
        weight: CanonicalWeight,
        *,
        activation: str | ActivationScheme | None = None,
        bias: torch.Tensor | None = None,
        backend: str | None = None,
        allow_fallback: bool | None = None,
    ) -> None:
        """Wrap a weight.

        Args:
            weight: standard form, as a checkpoint or :func:`humming.quantize` gives it.
            activation: what activations are quantized to; None is what the checkpoint asks for,
                or the nearest wider type that the device has.
            bias: [N] or [E, N]; replaces the weight's own.
            backend: name; None selects one.
            allow_fallback: whether a wider activation type may stand in; see :func:`prepare`.

        Raises:
            ConfigError: the bias does not fit, or `activation` is no scheme.
        """
        super().__init__()
        if bias is not None:
            weight = weight.replace(bias=bias.detach())
        self.activation = None if activation is None else ActivationScheme.parse(activation)
        self.backend = backend
        self.allow_fallback = allow_fallback
        self._facts = weight
        for field, tensor in weight.tensors():
            self.register_buffer(field, tensor)
        self._prepared: dict[tuple[torch.dtype, GemmKind], PreparedLayer] = {}

    @classmethod
    def from_float(
        cls,
        source: nn.Linear | torch.Tensor,
        scheme: str | WeightScheme,
        *,
        bias: torch.Tensor | None = None,
        activation: str | ActivationScheme | None = None,
        backend: str | None = None,
        clip: str = "max",
    ) -> QuantLinear:
        """Quantize an ``nn.Linear`` (with its bias) or a float matrix [N, K] or [E, N, K].

        Raises:
            ConfigError: as :func:`humming.quantize`.
        """
        if isinstance(source, nn.Linear):
            bias = source.bias if bias is None else bias
            source = source.weight
        weight = quantize(source.detach(), scheme, clip=clip)
        return cls(weight, activation=activation, bias=bias, backend=backend)

    @property
    def weight(self) -> CanonicalWeight:
        """The weight, on the module's device."""
        tensors = {field: self.get_buffer(field) for field, _ in self._facts.tensors()}
        return self._facts.replace(**tensors)

    @property
    def in_features(self) -> int:
        """K."""
        return self._facts.k

    @property
    def out_features(self) -> int:
        """N."""
        return self._facts.n

    def prepare(self, dtype: torch.dtype, gemm: GemmKind | None = None) -> PreparedLayer:
        """Settle backend and activation for inputs of `dtype`; the first call would do it too.

        Raises:
            UnsupportedError: no backend does it.
        """
        kind = gemm or (GemmKind.INDEXED if self._facts.experts else GemmKind.DENSE)
        key = (dtype, kind)
        if key not in self._prepared:
            self._prepared[key] = prepare(
                self.weight,
                dtype,
                activation=self.activation,
                backend=self.backend,
                compute=ComputeConfig(gemm=kind),
                allow_fallback=self.allow_fallback,
            )
        return self._prepared[key]

    def forward(
        self,
        x: torch.Tensor,
        *,
        expert_ids: torch.Tensor | None = None,
        expert_offsets: torch.Tensor | None = None,
        expert_counts: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[.., K] to [.., N]; routing as in :func:`humming.matmul`."""
        routing = _given(expert_ids, expert_offsets, expert_counts)
        kind = _gemm_kind(self._facts, routing)
        _check_input(x, self._facts)
        return _multiply(self.prepare(x.dtype, kind), self._facts, x, routing)

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> QuantLinear:
        def move_only(tensor: torch.Tensor) -> torch.Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(move_only, recurse)  # type: ignore[no-untyped-call]
        self._facts = self.weight
        self._prepared.clear()
        return self

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._facts = self.weight
        self._prepared.clear()

    def __getstate__(self) -> dict[str, object]:
        # What is prepared belongs to this device and process: a copy settles it anew.
        return {**self.__dict__, "_prepared": {}}

    def extra_repr(self) -> str:
        """Scheme and shape."""
        asked = self.activation or self._facts.activation
        activation = f", activation={asked}" if asked is not None else ""
        return f"{self._facts.scheme}, {list(self._facts.shape)}{activation}"
