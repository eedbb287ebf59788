"""QuantMoE: a layer of experts, from hidden states and a router's choices to hidden states."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from humming.combining import combine
from humming.configs import ComputeConfig, GemmKind
from humming.engine import PreparedLayer, Profile
from humming.engine.aligning import Alignment
from humming.engine.experts import ID_DTYPES, ExpertKernels, check_experts
from humming.engine.kernel_layer import KernelLayer
from humming.errors import ConfigError
from humming.formats.activation import ActivationScheme
from humming.formats.tensors import TORCH_FLOATS
from humming.gating import Gating
from humming.layer import QuantLinear
from humming.torch_ops import HANDLE, register, without_handle
from humming.torch_ops import experts as traced_experts
from humming.weight import CanonicalWeight

__all__ = ["QuantMoE"]


class QuantMoE(nn.Module):
    """Experts over quantized weights: route, multiply, activate, multiply, and add up by weight.

    ``sum over j of topk_weights[m, j] * down(gating(gate_up(hidden[m])))`` of expert
    ``topk_ids[m, j]``, in float32 in the order of j, plus the shared experts, rounded once. Ids
    that are no expert of this module (-1, experts of another rank) contribute nothing; a token with
    only such ids gets zeros.

    On a backend with kernels nothing waits for the device and no shape depends on data, so that a
    call can be captured in a CUDA graph after :meth:`warm_up`. Elsewhere torch computes the same.
    The weights are buffers of the parts, as in :class:`QuantLinear`.
    """

    def __init__(  # budget: the parts of a layer, and one keyword for each of LayerOptions
        self,
        gate_up: CanonicalWeight,
        down: CanonicalWeight,
        *,
        gating: str | Gating = "swiglu",
        weigh_input: bool = False,
        expert_range: tuple[int, int] | None = None,
        expert_map: torch.Tensor | None = None,
        shared: tuple[CanonicalWeight, CanonicalWeight] | None = None,
        activation: str | ActivationScheme | None = None,
        backend: str | None = None,
        device: object = None,
        profile: Profile | None = None,
        compute: ComputeConfig | None = None,
        allow_fallback: bool | None = None,
    ) -> None:
        """Wrap the weights of a layer.

        Args:
            gate_up: [E, 2 I, H], gates above ups or, with ``Gating(interleaved=True)``, in turn;
                [E, I, H] for a function without a gate.
            down: [E, H, I].
            gating: the function between the products, with its usual parameters if it is a name.
            weigh_input: multiply a token by its weight before the first product instead of after
                the second (as Llama 4 does). Rounded to the dtype of the hidden states.
            expert_range: which of the model's experts are here, first and behind the last. The
                weights are those of these experts, or of all, of which these are then taken.
            expert_map: int32 or int64, for each of the model's experts the number of its weight
                here or -1, instead of counting from the range's first.
            shared: weights [2 J, H] and [H, J] of experts that see every token; J may differ from
                I. Of several expert-parallel ranks give them to one.
            activation, backend, device, profile, compute, allow_fallback: of all products; see
                :class:`humming.layer.LayerOptions`.

        Raises:
            ConfigError: shapes, the range or the map don't fit.
            UnsupportedError: the function doesn't exist with such parameters.
        """
        super().__init__()
        self.gating = gating if isinstance(gating, Gating) else Gating.of(gating)
        self.weigh_input = weigh_input
        gate_up, down = (_local(weight, expert_range) for weight in (gate_up, down))
        _check_pair(gate_up, down, self.gating, "experts")
        self.experts, self._first = down.experts, expert_range[0] if expert_range else 0

        def layer(weight: CanonicalWeight) -> QuantLinear:
            return QuantLinear(
                weight,
                activation=activation,
                backend=backend,
                device=device,
                profile=profile,
                compute=compute,
                allow_fallback=allow_fallback,
            )

        self.gate_up, self.down = layer(gate_up), layer(down)
        self.shared_gate_up = self.shared_down = None
        if shared is not None:
            _check_pair(*shared, self.gating, "shared experts")
            if shared[1].n != down.n:
                raise ConfigError("shared", list(shared[1].shape), f"[{down.n}, J] for the second")
            self.shared_gate_up, self.shared_down = map(layer, shared)
        self.expert_map: torch.Tensor | None
        self.register_buffer("expert_map", _checked(expert_map, self.experts), persistent=False)
        self._forget()

    def _forget(self) -> None:
        self._kernels: dict[torch.dtype, tuple[KernelLayer, ExpertKernels]] = {}
        register(self, self._device)

    @property
    def hidden_size(self) -> int:
        """H."""
        return self.gate_up.in_features

    @property
    def intermediate_size(self) -> int:
        """I."""
        return self.down.in_features

    @property
    def _device(self) -> torch.device:
        return self.gate_up.get_buffer("packed").device

    # -- getting ready -----------------------------------------------------------------------------

    def prepare(self, dtype: torch.dtype) -> tuple[PreparedLayer, PreparedLayer]:
        """Settle backend and activation of both products; the first call would do it too.

        Raises:
            UnsupportedError: no backend does it.
        """
        kind = GemmKind.INDEXED
        return self.gate_up.prepare(dtype, kind), self.down.prepare(dtype, kind)

    def warm_up(
        self, dtype: torch.dtype, ms: Iterable[int] | None = None, *, top_k: int = 1
    ) -> None:
        """Prepare, and compile and load every kernel that calls with so many tokens can need.

        Args:
            dtype: of hidden states.
            ms: numbers of tokens; None is 1 to 8192.
            top_k: choices of a token.

        Raises:
            UnsupportedError, CompileError: as :meth:`QuantLinear.warm_up`.
        """
        ms = None if ms is None else list(ms)
        for part in (self.gate_up, self.down):
            part.warm_up(dtype, ms, gemm=GemmKind.INDEXED, top_k=top_k)
        width = 0
        if self.shared_gate_up is not None and self.shared_down is not None:
            width = self.shared_down.in_features
            for part in (self.shared_gate_up, self.shared_down):
                part.warm_up(dtype, ms)
        layers = self._layers(dtype)
        if layers is not None:
            self._around(layers[1]).warm_up(width)

    def _layers(self, dtype: torch.dtype) -> tuple[KernelLayer, KernelLayer] | None:
        """Both products, if both are kernels."""
        up, down = (part.kernels for part in self.prepare(dtype))
        return None if up is None or down is None else (up, down)

    def _around(self, down: KernelLayer) -> ExpertKernels:
        """The kernels around the products."""
        dtype = TORCH_FLOATS[down.layer.output.name]
        found = self._kernels.get(dtype)
        if found is None or found[0] is not down:  # it is another once it has moved
            arch = down.planner.backend.profile.target.arch
            around = ExpertKernels(down.site, arch, down.layer, self.gating)
            found = self._kernels[dtype] = down, around
        return found[1]

    # -- calls -------------------------------------------------------------------------------------

    def forward(
        self, hidden: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor
    ) -> torch.Tensor:
        """Apply each token's experts.

        Args:
            hidden: [M, H], float16, bfloat16 or float32.
            topk_ids: int32 or int64 [M, top_k], numbers among the model's experts.
            topk_weights: float [M, top_k].

        Returns:
            [M, H] in the dtype of `hidden`, contiguous.

        Raises:
            ConfigError: shapes, dtypes or devices don't fit.
            UnsupportedError: no backend does it.
        """
        if torch.compiler.is_compiling():
            handle, width = self.get_buffer(HANDLE), self.gate_up.in_features
            traced: torch.Tensor = traced_experts(hidden, handle, width, topk_ids, topk_weights)
            return traced
        return self.compute(hidden, topk_ids, topk_weights)

    def compute(
        self, hidden: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor
    ) -> torch.Tensor:
        """:meth:`forward`, without what makes it traceable."""
        check_experts(hidden, topk_ids, topk_weights, self.hidden_size, self._device)
        if not hidden.shape[0]:
            return hidden.new_empty(hidden.shape)
        ids = self._local_ids(topk_ids).contiguous()
        x, weights = hidden, topk_weights.to(torch.float32)
        if self.weigh_input:
            x = (hidden.to(torch.float32).unsqueeze(1) * weights.unsqueeze(2)).to(hidden.dtype)
        after = None if self.weigh_input else weights.contiguous()
        layers = self._layers(hidden.dtype)
        if layers is None:
            ids = torch.where((ids >= 0) & (ids < self.experts), ids, -1)
            middle = self.gating(self.gate_up(x, expert_ids=ids))
            rows = self.down(middle, expert_ids=ids)
            return combine(rows, ids, self.experts, after, self._shared(hidden, self.gating))
        up, down = layers
        around = self._around(down)
        # Both products sort the same choices; they do it once if their tiles are as high.
        alignments: dict[int, Alignment] = {}
        rows = up.routed(x, ids, sparse=True, alignments=alignments)
        middle = around.gate(rows.flatten(0, 1), ids, self.experts).view(*ids.shape, -1)
        rows = down.routed(middle, ids, sparse=True, alignments=alignments)
        return around.combine(rows, ids, after, self._shared(hidden, around.gate))

    def _local_ids(self, ids: torch.Tensor) -> torch.Tensor:
        """Numbers of weights here; what is none of them is not here."""
        table = self.expert_map
        if table is not None:
            known = (ids >= 0) & (ids < table.numel())
            return torch.where(known, table[ids.clamp(0, table.numel() - 1)], -1)
        return ids - self._first if self._first else ids

    def _shared(
        self, hidden: torch.Tensor, gate: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor | None:
        if self.shared_gate_up is None or self.shared_down is None:
            return None
        result: torch.Tensor = self.shared_down(gate(self.shared_gate_up(hidden)))
        return result

    # -- a module like any other -------------------------------------------------------------------

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> QuantMoE:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._forget()
        return self

    def __getstate__(self) -> dict[str, object]:
        state = without_handle(self.__dict__)
        return {name: value for name, value in state.items() if name != "_kernels"}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._forget()

    def extra_repr(self) -> str:
        """Function, and which experts are here."""
        where = f" from {self._first}" if self._first else ""
        weighed = ", weigh_input=True" if self.weigh_input else ""
        return f"{self.experts} experts{where}, gating={self.gating}{weighed}"


def _local(weight: CanonicalWeight, expert_range: tuple[int, int] | None) -> CanonicalWeight:
    """The weights of a range of experts, out of theirs or of all."""
    if expert_range is None:
        return weight
    start, stop = expert_range
    if not 0 <= start < stop:
        raise ConfigError("expert_range", expert_range, "(first, behind the last), not empty")
    if weight.experts == stop - start:
        return weight
    if weight.experts < stop:
        allowed = f"a range of {weight.experts} experts, or one among {weight.experts}"
        raise ConfigError("expert_range", expert_range, allowed)
    tensors = {name: tensor[start:stop] for name, tensor in weight.tensors()}
    return weight.replace(experts=stop - start, **tensors)


def _check_pair(gate_up: CanonicalWeight, down: CanonicalWeight, gating: Gating, what: str) -> None:
    """Check that two products and the function between them fit together."""
    if gate_up.experts != down.experts or bool(down.experts) != (what == "experts"):
        wanted = "the same number of experts" if what == "experts" else "no dimension of experts"
        raise ConfigError(what, [list(gate_up.shape), list(down.shape)], f"weights with {wanted}")
    expected = gating.inputs(down.k), down.n
    if (gate_up.n, gate_up.k) != expected:
        allowed = f"{list(expected)} beside {list(down.shape)} and {gating}"
        raise ConfigError(f"gate_up of {what}", [gate_up.n, gate_up.k], allowed)
    if gate_up.device != down.device:
        raise ConfigError(f"down of {what}", str(down.device), f"a weight on {gate_up.device}")


def _checked(table: torch.Tensor | None, experts: int) -> torch.Tensor | None:
    """An expert map whose numbers are all -1 or an expert's."""
    if table is None:
        return None
    if table.dtype not in ID_DTYPES or table.dim() != 1 or not table.numel():
        found = f"{table.dtype} {list(table.shape)}"
        raise ConfigError("expert_map", found, "an int32 or int64 tensor [experts of the model]")
    low, high = int(table.min()), int(table.max())
    if low < -1 or high >= experts:
        raise ConfigError(
            "expert_map", (low, high), f"numbers from -1 (elsewhere) to {experts - 1}"
        )
    return table
