"""NVIDIA ModelOpt checkpoints: FP8, INT8, AWQ, NVFP4, MXFP4 and MXFP8, one algorithm or a mix.

================== ========================================================================
tensor of a layer  meaning
================== ========================================================================
weight             e4m3 or int8 [N, K]; FP4 pairs [N, K/2]; int4 pairs of rows [N/2, K]
weight_scale       per tensor, channel, group or block
weight_scale_2     a multiplier of everything (NVFP4)
input_scale        of static activations, a multiplier
pre_quant_scale    [K], multiplies activations (AWQ, SmoothQuant)
================== ========================================================================

Experts are one layer each, or a tensor [E, N, ..]; those of Llama 4 and gpt-oss are stored as
they multiply, [E, K, N], under names such as ``experts.down_proj_weight_scale``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch

from humming.checkpoints.base import CheckpointLoader, LayerPlan, split_name
from humming.checkpoints.modelopt_config import LayerRule, ModelOptConfig
from humming.checkpoints.scales import BIAS_DTYPES, finite_scales, scale_format
from humming.errors import CheckpointError
from humming.formats.activation import ActivationScheme
from humming.formats.scheme import Granularity, Second, WeightScheme
from humming.formats.table import number_format
from humming.packing import pack
from humming.weight import CanonicalWeight

__all__ = ["ModelOptLoader"]

_FLOATS = ("F32", "BF16", "F16")
_WEIGHT_DTYPES = {"e4m3fn": "F8_E4M3", "e2m1": "U8", "s8": "I8", "s4": "U8"}
#: Suffixes that only a quantized layer has; ``.suffix`` of a module, ``_suffix`` of a parameter.
_SUFFIXES = ("weight_scale", "weight_scale_2", "input_scale", "pre_quant_scale")
_LOW_RANK = ("svdquant_lora_a", "svdquant_lora_b")
#: K of a stacked expert parameter, or N, is the model's width.
_FROM_HIDDEN = ("gate_up_proj", "gate_proj", "up_proj")
_TO_HIDDEN = ("down_proj",)


@dataclass(frozen=True)
class _Detail:
    """How a layer is stored.

    Attributes:
        weight: name of the tensor of codes.
        prefix: name of its other tensors without their suffix.
        transposed: whether the last two dimensions are K, N.
    """

    weight: str
    prefix: str
    transposed: bool


class ModelOptLoader(CheckpointLoader):
    """Reads what ModelOpt exports for Hugging Face."""

    #: The last three are names of engines, met in files that were edited for them.
    quant_methods: ClassVar[tuple[str, ...]] = (
        "modelopt",
        "modelopt_fp4",
        "modelopt_mxfp8",
        "modelopt_mixed",
    )

    def plan(self) -> Iterable[LayerPlan]:
        """All layers that have codes or scales; raises CheckpointError for what is amiss."""
        config = ModelOptConfig(self.config, self.source.path)
        layers = self._layers()
        for entry in config.unused_entries(layers):
            raise CheckpointError(
                f"quantized_layers names {entry!r}, which has no quantized tensors here "
                f"(a layer that shares another's weight?)",
                path=self.source.path,
            )
        return [self._plan(config, name, parameter) for name, parameter in layers.items()]

    def _layers(self) -> dict[str, bool]:
        """Layers that any tensor proves quantized → whether they are parameters, in file order."""
        layers: dict[str, bool] = {}
        for name in self.store:
            owner, suffix = split_name(name)
            ends = [f"_{end}" for end in _SUFFIXES if suffix.endswith(f"_{end}")]
            if suffix in (*_SUFFIXES, *_LOW_RANK) or (suffix == "weight" and self._coded(name)):
                layers.setdefault(owner, False)
            elif ends:
                layers.setdefault(name.removesuffix(max(ends, key=len)), True)
        return layers

    def _coded(self, name: str) -> bool:
        return self.store.info(name).dtype in _WEIGHT_DTYPES.values()

    def _plan(self, config: ModelOptConfig, layer: str, parameter: bool) -> LayerPlan:
        weight = layer if parameter else f"{layer}.weight"
        prefix = f"{layer}_" if parameter else f"{layer}."
        rule = config.rule(layer)
        found = [prefix + s for s in (*_SUFFIXES, *_LOW_RANK) if prefix + s in self.store]
        if rule is None:
            entry = config.exclusion(layer)
            reason = f"the config excludes it ({entry!r})" if entry else "the config omits it"
            raise CheckpointError(
                f"belongs to a quantized layer, but {reason}",
                tensor=(found or [weight])[0],
                path=self.source.path,
            )
        extra = [name for name in found if name.removeprefix(prefix) in _LOW_RANK]
        if extra:
            raise CheckpointError("low-rank products can't be read", tensor=extra[0])
        experts, n, k = self._shape(rule, layer, weight, parameter)
        detail = _Detail(weight, prefix, parameter)
        scheme = self._scheme(rule, detail, (experts, n, k))
        activation = self._activation(rule, prefix, experts)
        bias = f"{prefix}bias" in self.store
        lead = ((experts,),) if experts else ((),)
        self._check_small(f"{prefix}pre_quant_scale", [(*e, k) for e in (*lead, ())] + [(1, k)])
        self._check_small(f"{prefix}bias", [(*e, n) for e in lead])
        return LayerPlan(
            name=layer,
            n=n,
            k=k,
            experts=experts,
            scheme=scheme,
            activation=activation,
            tensors=(weight, *found, *([f"{prefix}bias"] if bias else [])),
            bias=bias,
            detail=detail,
        )

    # -- headers ------------------------------------------------------------------------------

    def _shape(
        self, rule: LayerRule, layer: str, weight: str, parameter: bool
    ) -> tuple[int, int, int]:
        """(E or 0, N, K) from the header of the codes."""
        code = rule.algorithm.code
        info = self.info(weight, _WEIGHT_DTYPES[code])
        if len(info.shape) not in ((3,) if parameter else (2, 3)):
            dims = "3 dimensions" if parameter else "2 or 3 dimensions"
            raise CheckpointError(f"expected {dims}, found {info}", tensor=weight)
        *lead, n, k = info.shape
        if parameter and code == "s4":
            raise CheckpointError(
                f"{rule.name} of stacked parameters: which way rows are paired is unknown",
                tensor=weight,
            )
        if parameter:
            n, k = k, n
        n, k = (2 * n, k) if code == "s4" else (n, 2 * k if code == "e2m1" else k)
        if lead and not lead[0]:
            raise CheckpointError(f"expected experts, found {info}", tensor=weight)
        if parameter and rule.algorithm.granularity != "group":
            self._check_direction(layer, weight, n, k)
        return (lead[0] if lead else 0), n, k

    def _check_direction(self, layer: str, weight: str, n: int, k: int) -> None:
        """Without group scales only the model's width tells [E, K, N] from [E, N, K]."""
        text = self.source.model_config.get("text_config")
        hidden = (text if isinstance(text, dict) else self.source.model_config).get("hidden_size")
        stem = split_name(layer)[1]
        known = {**dict.fromkeys(_FROM_HIDDEN, k), **dict.fromkeys(_TO_HIDDEN, n)}
        if hidden is None or known.get(stem) != hidden:
            raise CheckpointError(
                f"expected [E, K, N] with hidden_size {hidden} as K of gate_up_proj or N of "
                f"down_proj, found K={k}, N={n}",
                tensor=weight,
            )

    def _scheme(
        self, rule: LayerRule, detail: _Detail, shape: tuple[int, int, int]
    ) -> WeightScheme:
        algorithm = rule.algorithm
        name = f"{detail.prefix}weight_scale"
        info = self.info(name)
        allowed = (algorithm.scale,) if algorithm.scale else ("f32", "bf16", "f16")
        if algorithm.scale == "f32" and info.dtype in _FLOATS:
            fmt = number_format("f32")  # widened: exact
        else:
            fmt = scale_format(name, info, *allowed)
        granularity = self._granularity(rule, name, shape)
        wanted = _scale_shapes(granularity, shape, detail.transposed)
        if info.shape not in wanted:
            raise CheckpointError(
                f"expected {' or '.join(str(list(w)) for w in wanted)} for {rule.name} of "
                f"N={shape[1]}, K={shape[2]}, found {info}",
                tensor=name,
            )
        second = f"{detail.prefix}weight_scale_2"
        if algorithm.second:
            self.info(second)
        self._check_small(second, _scalar_shapes(shape[0]))
        if second in self.store and not algorithm.second and rule.name != "W4A8_AWQ":
            raise CheckpointError(f"present, though {rule.name} has none", tensor=second)
        return WeightScheme(
            code=number_format(algorithm.code),
            granularity=granularity,
            scale=fmt,
            second=Second.TENSOR if algorithm.second else Second.NONE,
        )

    def _granularity(self, rule: LayerRule, name: str, shape: tuple[int, int, int]) -> Granularity:
        experts, n, k = shape
        found = self.store.info(name).shape
        kind = rule.algorithm.granularity
        if kind == "group":
            # The twin in config.json leaves out group_size of AWQ; the scales show it.
            size = rule.group or k // max(found[-1] if found else 1, 1)
            if not size or k % size:
                raise CheckpointError(f"groups of {size} do not divide K={k}", tensor=name)
            return Granularity.group(size)
        if kind == "block":
            return _block(found, n, k)
        # "Per channel" of stacked parameters is per expert: their first dimension is E.
        if kind == "tensor" or (experts and found == (experts,)):
            return Granularity(0, 0)
        return Granularity(1, 0)

    def _activation(self, rule: LayerRule, prefix: str, experts: int) -> ActivationScheme | None:
        name = f"{prefix}input_scale"
        text = rule.activation
        present = name in self.store
        if text.endswith("-static") and not present:
            if not rule.algorithm.optional_input_scale:
                raise CheckpointError(f"missing; {rule.name} activations are static", tensor=name)
            text = text.removesuffix("-static")
        elif present and not text.endswith("-static"):
            kind = "dynamic" if text else "not quantized"
            raise CheckpointError(f"present, but {rule.name} activations are {kind}", tensor=name)
        self._check_small(name, _scalar_shapes(experts))
        return ActivationScheme.parse(text) if text else None

    def _check_small(self, name: str, shapes: Iterable[tuple[int, ...]]) -> None:
        """dtype and shape of a tensor that may be absent."""
        if name not in self.store:
            return
        info = self.info(name, *(BIAS_DTYPES if name.endswith("bias") else _FLOATS))
        wanted = list(dict.fromkeys(shapes))
        if info.shape not in wanted:
            text = " or ".join(str(list(shape)) for shape in wanted)
            raise CheckpointError(f"expected shape {text}, found {info}", tensor=name)

    # -- data ---------------------------------------------------------------------------------

    def load(self, plan: LayerPlan) -> CanonicalWeight:
        """Read one layer; raises CheckpointError, naming the tensor."""
        detail: _Detail = plan.detail
        lead = (plan.experts,) if plan.experts else ()
        rows, columns = plan.scheme.granularity.scale_shape(plan.n, plan.k)
        activation = plan.activation
        pre_quant = self._optional(f"{detail.prefix}pre_quant_scale")
        return CanonicalWeight(
            scheme=plan.scheme,
            n=plan.n,
            k=plan.k,
            experts=plan.experts,
            packed=self._packed(plan, detail),
            scales=self._scales(plan, detail, (*lead, rows, columns)),
            second=self._scalar(f"{detail.prefix}weight_scale_2", (*lead, 1, 1))
            if plan.scheme.second is Second.TENSOR
            else None,
            bias=self._optional(f"{detail.prefix}bias"),
            pre_quant_scale=None
            if pre_quant is None
            else pre_quant.reshape(-1, plan.k).expand(plan.experts or 1, plan.k)
            .reshape(*lead, plan.k).contiguous(),
            activation=activation,
            input_scale=self._scalar(f"{detail.prefix}input_scale", lead)
            if activation is not None and activation.static
            else None,
        )  # fmt: skip

    def _packed(self, plan: LayerPlan, detail: _Detail) -> torch.Tensor:
        stored = self.store.get(detail.weight).view(torch.uint8)
        if plan.scheme.code.name == "s4":
            pairs = torch.stack([stored & 0xF, stored >> 4], dim=-2)  # [.., N/2, 2, K]
            return pack(pairs.flatten(-3, -2).contiguous(), 4)
        # FP4 pairs along K have the even column in the low nibble, as the standard form does.
        return (stored.transpose(-2, -1) if detail.transposed else stored).contiguous()

    def _scales(self, plan: LayerPlan, detail: _Detail, shape: tuple[int, ...]) -> torch.Tensor:
        name = f"{detail.prefix}weight_scale"
        scales = self.store.get(name)
        fmt = plan.scheme.scale
        if fmt.name == "f32":
            scales = scales.to(torch.float32)
        if detail.transposed and scales.dim() == 3 and plan.scheme.granularity.is_group:
            scales = scales.transpose(-2, -1)
        if plan.experts and scales.numel() == 1:
            scales = scales.reshape(1, 1, 1).expand(shape)
        return finite_scales(name, scales.reshape(shape).contiguous(), fmt)

    def _scalar(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Float32 scalar(s) of the file, one for all experts or one each, in `shape`."""
        value = finite_scales(name, self.store.get(name).to(torch.float32), number_format("f32"))
        if value.numel() == 1:
            return value.reshape([1] * len(shape)).expand(shape).contiguous()
        return value.reshape(shape).contiguous()

    def _optional(self, name: str) -> torch.Tensor | None:
        return self.store.get(name) if name in self.store else None


def _scalar_shapes(experts: int) -> list[tuple[int, ...]]:
    one: list[tuple[int, ...]] = [(), (1,), (1, 1)]
    return [*one, (experts,), (experts, 1), (experts, 1, 1)] if experts else one


def _scale_shapes(
    granularity: Granularity, shape: tuple[int, int, int], transposed: bool
) -> list[tuple[int, ...]]:
    """Shapes that scales of this granularity have in files."""
    experts, n, k = shape
    rows, columns = granularity.scale_shape(n, k)
    if granularity == Granularity(0, 0):
        return _scalar_shapes(experts)
    lead = (experts,) if experts else ()
    if granularity == Granularity(1, 0):
        return [(*lead, n), (*lead, n, 1)]
    if granularity.is_block:
        short: list[tuple[int, ...]] = [()] if rows == columns == 1 and not experts else []
        return [(*lead, rows, 1, columns, 1), (*lead, rows, columns), *short]
    if transposed:
        return [(*lead, columns, rows)]
    return [(*lead, rows, columns), *([] if experts else [(1, rows, columns)])]


def _block(found: tuple[int, ...], n: int, k: int) -> Granularity:
    """Square blocks whose size no config gives: 128, or what divides N and K as the scales do."""
    usual = Granularity.block(128, 128)
    kept = [size for i, size in enumerate(found) if not (len(found) == 4 and i in (1, 3))]
    if len(kept) != 2 or 0 in kept or tuple(kept) == usual.scale_shape(n, k):
        return usual
    rows, columns = kept
    if n % rows == 0 and k % columns == 0 and n // rows == k // columns:
        return Granularity.block(n // rows, k // columns)
    return usual
