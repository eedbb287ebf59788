"""QuantLinear and matmul(): a quantized weight applied to activations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import nn

from humming.configs import ComputeConfig, GemmKind, TuningConfig
from humming.engine import LayerOptions, PreparedLayer, Profile, Shelf, prepare
from humming.engine.inputs import (
    ROUTING,
    Routing,
    check_ids,
    check_input,
    check_routing,
    gemm_kind,
    given,
)
from humming.engine.prepared import prepared_layer, usual_kind
from humming.formats.activation import ActivationScheme
from humming.formats.scheme import WeightScheme
from humming.gating import Gating
from humming.quantizing import quantize
from humming.torch_ops import HANDLE, linear, register, without_handle
from humming.weight import CanonicalWeight

__all__ = ["LayerOptions", "PreparedLayer", "QuantLinear", "matmul", "prepare", "prepare_pair"]


def _multiply(
    prepared: PreparedLayer, weight: CanonicalWeight, x: torch.Tensor, routing: Routing
) -> torch.Tensor:
    kind = prepared.compute.gemm
    if kind is GemmKind.DENSE:
        flat = prepared.run(x.reshape(-1, weight.k))
        return flat.view(*x.shape[:-1], weight.n)
    name = ROUTING[kind]
    check_routing(kind, x, routing[name], weight.experts)
    if kind is GemmKind.INDEXED and prepared.kernels is None:  # kernels skip what is no expert
        check_ids(routing[name], weight.experts)
    return prepared.run(x, **{name: routing[name]})


def matmul(  # budget: one keyword per kind of routing, and for each of LayerOptions
    x: torch.Tensor,
    weight: CanonicalWeight,
    *,
    expert_ids: torch.Tensor | None = None,
    expert_offsets: torch.Tensor | None = None,
    expert_counts: torch.Tensor | None = None,
    activation: str | ActivationScheme | None = None,
    backend: str | None = None,
    device: object = None,
    profile: Profile | None = None,
    tuning: TuningConfig | None = None,
    compute: ComputeConfig | None = None,
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
        activation, backend, device, profile, tuning, compute: see :class:`LayerOptions`.

    Returns:
        [.., N] in the dtype of x, contiguous; [M, top_k, N] with ``expert_ids``.

    Raises:
        ConfigError: shapes, dtypes or devices do not fit.
        UnsupportedError: no backend does it.
    """
    routing = given(expert_ids, expert_offsets, expert_counts)
    kind = gemm_kind(weight, routing)
    check_input(x, weight)
    prepared = prepare(
        weight,
        x.dtype,
        activation=activation,
        backend=backend,
        device=device,
        profile=profile,
        tuning=tuning,
        compute=replace(compute or ComputeConfig(), gemm=kind),
    )
    return _multiply(prepared, weight, x, routing)


class QuantLinear(nn.Module):
    """A linear layer, or E of them, over a quantized weight.

    The weight's tensors are buffers, so ``state_dict()`` and ``.to(device)`` work; ``.half()``
    and other dtype changes leave them alone, since they are what the checkpoint says. The
    output has the dtype of the input. Backend and activation are settled at the first call for
    each input dtype; :meth:`prepare` does it before.
    """

    def __init__(  # budget: one keyword for each of LayerOptions
        self,
        weight: CanonicalWeight,
        *,
        activation: str | ActivationScheme | None = None,
        bias: torch.Tensor | None = None,
        backend: str | None = None,
        device: object = None,
        profile: Profile | None = None,
        tuning: TuningConfig | None = None,
        compute: ComputeConfig | None = None,
        allow_fallback: bool | None = None,
    ) -> None:
        """Wrap a weight.

        Args:
            weight: standard form, as a checkpoint or :func:`humming.quantize` gives it.
            bias: [N] or [E, N]; replaces the weight's own.
            activation, backend, device, profile, tuning, compute, allow_fallback: see
                :class:`LayerOptions`.

        Raises:
            ConfigError: the bias does not fit, or `activation` is no scheme.
        """
        super().__init__()
        if bias is not None:
            weight = weight.replace(bias=bias.detach())
        self.options = LayerOptions(
            activation=None if activation is None else ActivationScheme.parse(activation),
            backend=backend,
            device=device,
            profile=profile,
            tuning=tuning,
            compute=compute,
            allow_fallback=allow_fallback,
        )
        self._facts = weight
        self._shape = weight.experts, weight.n, weight.k
        for field, tensor in weight.tensors():
            self.register_buffer(field, tensor)
        self._forget()

    def _forget(self) -> None:
        """Start anew: what is prepared belongs to these tensors, this device and this process."""
        self._prepared: dict[tuple[torch.dtype, GemmKind, Gating | None], PreparedLayer] = {}
        self._shelf: Shelf = {}
        self._state = object()
        # By dtype of x, what a dense call needs to go to its kernel without detours.
        self._direct: dict[torch.dtype, Callable[[torch.Tensor], torch.Tensor]] = {}
        register(self, self._facts.device)

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

        If `activation` has a Hadamard transform, the matrix is transformed alike.

        Raises:
            ConfigError: as :func:`humming.quantize`.
        """
        if isinstance(source, nn.Linear):
            bias = source.bias if bias is None else bias
            source = source.weight
        block = 0 if activation is None else ActivationScheme.parse(activation).hadamard
        weight = quantize(source.detach(), scheme, clip=clip, hadamard=block)
        return cls(weight, activation=activation, bias=bias, backend=backend)

    @property
    def weight(self) -> CanonicalWeight:
        """The weight, on the module's device."""
        tensors = {field: self.get_buffer(field) for field, _ in self._facts.tensors()}
        return self._facts.replace(**tensors)

    @property
    def state(self) -> object:
        """Another one whenever what :meth:`prepare` gave before is no longer this layer's."""
        return self._state

    @property
    def in_features(self) -> int:
        """K."""
        return self._facts.k

    @property
    def out_features(self) -> int:
        """N."""
        return self._facts.n

    def prepare(
        self, dtype: torch.dtype, gemm: GemmKind | None = None, gating: Gating | None = None
    ) -> PreparedLayer:
        """Settle backend and activation for inputs of `dtype`; the first call would do it too.

        Args:
            dtype: of inputs.
            gemm: kind of routing; None is the usual one.
            gating: kernels shall apply it to their results if they can; calls of the layer don't.

        Raises:
            UnsupportedError: no backend does it.
        """
        kind = gemm or usual_kind(self._facts)
        key = (dtype, kind, gating)
        if key not in self._prepared:
            compute = replace(self.options.compute or ComputeConfig(), gemm=kind)
            given = self.options, compute, self._shelf, gating
            prepared = self._prepared[key] = prepared_layer(self.weight, dtype, *given)
            direct = kind is GemmKind.DENSE and gating is None
            if prepared.kernels is not None and direct:
                self._direct[dtype] = prepared.kernels.dense
        return self._prepared[key]

    def warm_up(
        self,
        dtype: torch.dtype,
        ms: Iterable[int] | None = None,
        *,
        gemm: GemmKind | None = None,
        top_k: int = 1,
    ) -> None:
        """Prepare, and compile and load every kernel that calls with so many rows can need.

        Afterwards such calls compile nothing, and can be captured in a CUDA graph.

        Args:
            dtype: of the inputs.
            ms: numbers of rows (with ``expert_counts``: what an expert has room for); None is 1 to
                8192.
            gemm: kind of routing; None is ``expert_ids``, or a dense product without experts.
            top_k: with ``expert_ids``, choices of a token.

        Raises:
            UnsupportedError: no backend does it, or HUMMING_NO_JIT forbids what is left to compile.
            CompileError: a kernel does not compile.
        """
        self.prepare(dtype, gemm).warm_up(ms, top_k)

    def forward(
        self,
        x: torch.Tensor,
        *,
        expert_ids: torch.Tensor | None = None,
        expert_offsets: torch.Tensor | None = None,
        expert_counts: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[.., K] to [.., N]; routing as in :func:`humming.matmul`."""
        if torch.compiler.is_compiling():
            handle = self.get_buffer(HANDLE)
            traced: torch.Tensor = linear(
                x, handle, self._shape, expert_ids, expert_offsets, expert_counts
            )
            return traced
        direct = self._direct.get(x.dtype)
        if direct is None or not (expert_ids is expert_offsets is expert_counts is None):
            return self.multiply(x, expert_ids, expert_offsets, expert_counts)
        return direct(x)

    def multiply(
        self,
        x: torch.Tensor,
        ids: torch.Tensor | None,
        offsets: torch.Tensor | None,
        counts: torch.Tensor | None,
    ) -> torch.Tensor:
        """:meth:`forward`, without what makes it fast or traceable."""
        routing = given(ids, offsets, counts)
        kind = gemm_kind(self._facts, routing)
        check_input(x, self._facts)
        return _multiply(self.prepare(x.dtype, kind), self._facts, x, routing)

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> QuantLinear:
        def move_only(tensor: torch.Tensor) -> torch.Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(move_only, recurse)  # type: ignore[no-untyped-call]
        self._facts = self.weight
        self._forget()
        return self

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._facts = self.weight
        self._forget()

    def __getstate__(self) -> dict[str, object]:
        left = ("_prepared", "_shelf", "_direct", "_state")
        state = without_handle(self.__dict__)
        return {name: value for name, value in state.items() if name not in left}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._forget()

    def extra_repr(self) -> str:
        """Scheme and shape."""
        asked = self.options.activation or self._facts.activation
        activation = f", activation={asked}" if asked is not None else ""
        return f"{self._facts.scheme}, {list(self._facts.shape)}{activation}"


def prepare_pair(
    first: QuantLinear,
    second: QuantLinear,
    gating: Gating,
    dtype: torch.dtype,
    kind: GemmKind = GemmKind.DENSE,
) -> tuple[PreparedLayer, PreparedLayer]:
    """Two layers with a function between them, for inputs of `dtype`.

    The first applies it if it can and nothing else is to be done with what it gives: to quantize
    that takes a launch anyway, which applies it as well.
    """
    behind = second.prepare(dtype, kind)
    plain = behind.kernels is not None and not behind.layer.activation.is_quantized
    return first.prepare(dtype, kind, gating if plain else None), behind
