"""QuantMoE: a layer of experts, from hidden states and a router's choices to hidden states."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from humming.combining import combine, route
from humming.configs import ComputeConfig, GemmKind
from humming.engine import PreparedLayer, Profile, bucket, buckets
from humming.engine.expert_calls import ExpertCall
from humming.engine.expert_products import LAYOUTS, ExpertProducts, check_layout
from humming.engine.expert_rows import CallSizes
from humming.engine.expert_steps import expert_rows
from humming.engine.expert_warming import warm_up_experts
from humming.engine.expert_weights import check_pair, checked_map, local_experts, local_ids
from humming.engine.experts import ExpertKernels, check_experts
from humming.engine.kernel_layer import KernelLayer
from humming.errors import ConfigError, UnsupportedError
from humming.formats.activation import ActivationScheme
from humming.formats.tensors import TORCH_FLOATS
from humming.gating import Gating
from humming.layer import QuantLinear, prepare_pair
from humming.torch_ops import HANDLE, register, without_handle
from humming.torch_ops import experts as traced_experts
from humming.weight import CanonicalWeight

__all__ = ["QuantMoE"]

#: Sizes whose layout is remembered, and sizes whose launches are: some 20 KB each.
_MOST_SIZES, _MOST_CALLS = 8192, 1024
_CallKey = tuple[torch.dtype, torch.Size, torch.dtype, torch.Size]


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
        layout: GemmKind | None = None,
        capacity: int | None = None,
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
            layout: how kernels find rows: INDEXED, by the number of each choice,
                GROUPED_CONTIGUOUS, copied into the order of experts, or GROUPED_MASKED, copied to
                where each expert has room for `capacity`. None is for each number of tokens the one
                of the first two that is estimated to be faster. The bits of the result may differ.
            capacity: masked: None is M * top_k, which holds anything. Choices beyond it contribute
                nothing where kernels compute, the last ones of an expert; see
                :func:`humming.route`.

        Raises:
            ConfigError: shapes, the range or the map don't fit.
            UnsupportedError: the function doesn't exist with such parameters.
        """
        super().__init__()
        self.gating = gating if isinstance(gating, Gating) else Gating.of(gating)
        self.weigh_input = weigh_input
        gate_up, down = (local_experts(weight, expert_range) for weight in (gate_up, down))
        check_pair(gate_up, down, self.gating, "experts")
        check_layout(layout, capacity)
        self.layout, self.capacity = layout, capacity
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
            check_pair(*shared, self.gating, "shared experts")
            if shared[1].n != down.n:
                raise ConfigError("shared", list(shared[1].shape), f"[{down.n}, J] for the second")
            self.shared_gate_up, self.shared_down = map(layer, shared)
        self.expert_map: torch.Tensor | None
        self.register_buffer("expert_map", checked_map(expert_map, self.experts), persistent=False)
        self._forget()

    def _forget(self) -> None:
        self._prepared: dict[torch.dtype, dict[GemmKind, tuple[PreparedLayer, PreparedLayer]]] = {}
        self._kernels: dict[tuple[torch.dtype, GemmKind], tuple[KernelLayer, ExpertKernels]] = {}
        self._chosen: dict[tuple[torch.dtype, int, int], ExpertProducts | None] = {}
        # By dtype and shape of hidden states and ids.
        self._calls: dict[_CallKey, ExpertCall] = {}
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
        return next(iter(self._pairs(dtype).values()))

    def _pair(self, dtype: torch.dtype, kind: GemmKind) -> tuple[PreparedLayer, PreparedLayer]:
        return prepare_pair(self.gate_up, self.down, self.gating, dtype, kind)

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
        ms = list(range(1, 8193) if ms is None else ms)
        self._pairs(dtype)
        shared = None
        if self.shared_gate_up is not None and self.shared_down is not None:
            up, down = prepare_pair(self.shared_gate_up, self.shared_down, self.gating, dtype)
            for part in (up, down):
                part.warm_up(ms)
            shared = None if up.layer.function else down.kernels
        wanted: dict[GemmKind, tuple[ExpertProducts, list[int]]] = {}
        rows = 1 if self.weigh_input else top_k  # choices that share a row
        for choices in buckets(m * top_k for m in ms):
            products = self._products(dtype, choices, rows)
            if products is not None:
                size = products.capacity(choices, self.capacity) or choices
                wanted.setdefault(products.up.gemm, (products, []))[1].append(size)
        for products, sizes in wanted.values():
            around = self._around(products.down)
            warm_up_experts(products, around, dtype, sizes, rows, shared)

    def _pairs(self, dtype: torch.dtype) -> dict[GemmKind, tuple[PreparedLayer, PreparedLayer]]:
        """Both products by layout of rows. Layouts that read other packed weights are not both."""
        found = self._prepared.get(dtype)
        if found is None:
            found = self._prepared[dtype] = self._settled(dtype)
        return found

    def _settled(self, dtype: torch.dtype) -> dict[GemmKind, tuple[PreparedLayer, PreparedLayer]]:
        indexed, grouped = LAYOUTS[0], self.layout or LAYOUTS[1]
        pairs: dict[GemmKind, tuple[PreparedLayer, PreparedLayer]] = {}
        if grouped is not indexed:
            try:
                pair = self._pair(dtype, grouped)
            except UnsupportedError:
                if self.layout is grouped:
                    raise
            else:
                if all(part.kernels is not None for part in pair):
                    pairs[grouped] = pair
        if not pairs or (self.layout is None and all(map(self._serves_indexed, pairs[grouped]))):
            pairs = {indexed: self._pair(dtype, indexed), **pairs}
        return pairs

    def _serves_indexed(self, prepared: PreparedLayer) -> bool:
        """Whether indexed rows would meet the same packed weight: two would fill the memory."""
        return prepared.serves(LAYOUTS[0], self.gate_up.options, self._device)

    def _products(self, dtype: torch.dtype, choices: int, top_k: int) -> ExpertProducts | None:
        """The kernels of a call, if both products are kernels."""
        key = dtype, bucket(choices), top_k
        found = self._chosen.get(key)
        if found is not None and self._current(dtype, found):
            return found
        known = self._known(dtype)
        if known and not all(self._current(dtype, products) for products in known):
            self._prepared.pop(dtype, None)
            known = self._known(dtype)
        if not known:
            return None
        found = known[0]
        if len(known) > 1:
            found = min(known, key=lambda products: products.microseconds(choices, top_k))
        if len(self._chosen) >= _MOST_SIZES:
            self._chosen.clear()
        self._chosen[key] = found
        return found

    def _known(self, dtype: torch.dtype) -> list[ExpertProducts]:
        """The kernels of each layout that both products have kernels for."""
        return [
            ExpertProducts(up.kernels, down.kernels)
            for up, down in self._pairs(dtype).values()
            if up.kernels is not None and down.kernels is not None
        ]

    def _current(self, dtype: torch.dtype, products: ExpertProducts) -> bool:
        """Whether these are still the parts' kernels: a part that loads a state makes new ones."""
        current = (part.kernels for part in self._pair(dtype, products.up.gemm))
        return all(one is other for one, other in zip(current, products, strict=True))

    def _states(self) -> tuple[object, object]:
        """Those of the parts; found past nn.Module's __getattr__, which takes 1 us."""
        parts: dict[str, Any] = self._modules
        return parts["gate_up"].state, parts["down"].state

    def _around(self, down: KernelLayer) -> ExpertKernels:
        """The kernels around the products."""
        key = TORCH_FLOATS[down.layer.output.name], down.gemm
        found = self._kernels.get(key)
        if found is None or found[0] is not down:  # it is another once it has moved
            arch = down.planner.backend.profile.target.arch
            around = ExpertKernels(down.site, arch, down.layer, self.gating)
            found = self._kernels[key] = down, around
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
        key = hidden.dtype, hidden.shape, topk_ids.dtype, topk_ids.shape
        call = self._calls.get(key)
        if (
            call is None
            or call.states != self._states()
            or not call.fits(hidden, topk_ids, topk_weights)
        ):
            check_experts(hidden, topk_ids, topk_weights, self.hidden_size, self._device)
            if not hidden.shape[0]:
                return hidden.new_empty(hidden.shape)
            call = self._new_call(*key)
        ids = local_ids(topk_ids, self._buffers["expert_map"], self._first)
        weights = topk_weights
        if weights.dtype is not torch.float32:
            weights = weights.to(torch.float32)
        x, after = hidden, None if self.weigh_input else weights
        if self.weigh_input:
            x = (hidden.to(torch.float32).unsqueeze(1) * weights.unsqueeze(2)).to(hidden.dtype)
        if call is None:
            return self._stepwise(hidden, x, ids, after)
        return call(x, ids, after, self._shared(hidden, call.around))

    def _new_call(
        self, dtype: torch.dtype, shape: torch.Size, ids: torch.dtype, choices: torch.Size
    ) -> ExpertCall | None:
        """The launches of calls with such tensors, kept; None if that takes other steps."""
        tokens, top_k = choices
        per_row = 1 if self.weigh_input else top_k
        products = self._products(dtype, tokens * top_k, per_row)
        if products is None or not ExpertCall.serves(products, dtype):
            return None
        capacity = products.capacity(tokens * top_k, self.capacity)
        sizes = CallSizes(dtype, tokens, top_k, per_row, ids, capacity)
        call = ExpertCall(products, self._around(products.down), sizes, self._states())
        if len(self._calls) >= _MOST_CALLS:
            self._calls.clear()
        self._calls[dtype, shape, ids, choices] = call
        return call

    def _stepwise(
        self,
        hidden: torch.Tensor,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor | None,
    ) -> torch.Tensor:
        """A call whose launches are not settled beforehand, or that torch computes."""
        ids, weights = ids.contiguous(), None if weights is None else weights.contiguous()
        per_row = 1 if self.weigh_input else ids.shape[1]
        products = self._products(hidden.dtype, ids.numel(), per_row)
        if products is None:
            ids = torch.where((ids >= 0) & (ids < self.experts), ids, -1)
            if self.capacity is not None:
                found = route(ids, self.experts, GemmKind.GROUPED_MASKED, capacity=self.capacity)
                ids = torch.where(found.places < 0, -1, ids)
            middle = self.gating(self.gate_up(x, expert_ids=ids))
            rows = self.down(middle, expert_ids=ids)
            return combine(rows, ids, self.experts, weights, self._shared(hidden, None))
        around = self._around(products.down)
        capacity = products.capacity(ids.numel(), self.capacity)
        rows, places = expert_rows(products, around, x, ids, capacity)
        shared = self._shared(hidden, around)
        return around.combine(rows, ids, weights, shared, places, masked=capacity > 0)

    def _shared(self, hidden: torch.Tensor, around: ExpertKernels | None) -> torch.Tensor | None:
        """What shared experts give."""
        if self.shared_gate_up is None or self.shared_down is None:
            return None
        parts = self.shared_gate_up, self.shared_down
        up, down = prepare_pair(*parts, self.gating, hidden.dtype)
        if up.layer.function is not None:
            activated: torch.Tensor = down.run(up.run(hidden))
            return activated
        rows: torch.Tensor = self.shared_gate_up(hidden)
        kernels = down.kernels
        result = None if kernels is None else kernels.activated(rows, self.gating)
        if result is None:
            result = self.shared_down((self.gating if around is None else around.gate)(rows))
        return result

    # -- a module like any other -------------------------------------------------------------------

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> QuantMoE:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._forget()
        return self

    def __getstate__(self) -> dict[str, object]:
        state, left = without_handle(self.__dict__), ("_kernels", "_prepared", "_chosen", "_calls")
        return {name: value for name, value in state.items() if name not in left}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._forget()

    def extra_repr(self) -> str:
        """Function, and which experts are here."""
        where = f" from {self._first}" if self._first else ""
        weighed = ", weigh_input=True" if self.weigh_input else ""
        return f"{self.experts} experts{where}, gating={self.gating}{weighed}"
