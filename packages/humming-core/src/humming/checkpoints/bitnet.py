"""BitNet checkpoints in the form of Hugging Face transformers.

A layer [N, K] is ``weight`` uint8 [N / 4, K] and ``weight_scale`` [1]. Bits 2i and 2i + 1 of
stored row r are row ``r + i * N / 4`` of the weight, as value + 1: codes 0, 1, 2 are -1, 0, 1.

``linear_class`` says what the scale does: ``bitlinear`` divides by it, ``autobitlinear``
multiplies, and that after it has added the bias. The standard form multiplies, before the bias: a
divisor becomes its reciprocal, rounded to f32, and a scaled bias the product with its scale.
Both quantize activations to int8, one scale per token. In ``quantization_mode: online`` the file
holds float weights, which training turned ternary at each step: nothing in it is quantized.
"""

from __future__ import annotations

import torch

from humming.checkpoints.base import CheckpointLoader, LayerPlan, matches
from humming.checkpoints.gptq import check_bias
from humming.checkpoints.overrides import Settings
from humming.checkpoints.scales import BIAS_DTYPES, finite_scalar
from humming.errors import CheckpointError
from humming.formats.activation import ActivationScheme
from humming.formats.scheme import WeightScheme
from humming.packing import pack
from humming.weight import CanonicalWeight

__all__ = ["BitnetLoader"]

_PER_BYTE = 4


class BitnetLoader(CheckpointLoader):
    """``quant_method: bitnet``; every layer with a uint8 ``weight``."""

    quant_methods = ("bitnet",)

    def plan(self) -> list[LayerPlan]:
        """All quantized layers."""
        settings = Settings(self.config, self.source.path)
        settings.refuse("use_rms_norm", why="a norm inside each layer, before its activations")
        kind = settings.choice("linear_class", ("bitlinear", "autobitlinear"), "bitlinear")
        mode = settings.choice("quantization_mode", ("offline", "online"), "offline")
        excluded = settings.names("modules_to_not_convert")
        plans = []
        for name in self.layers_with("weight"):
            weight = f"{name}.weight"
            if self.info(weight).dtype != "U8":
                continue
            entry = next((entry for entry in excluded if matches(name, entry)), None)
            if entry is not None or mode == "online":
                why = f"modules_to_not_convert has {entry!r}" if entry else "the mode is online"
                raise CheckpointError(f"{why}, but the layer is packed in the file", tensor=weight)
            plans.append(self._plan_layer(name, kind))
        return plans

    def _plan_layer(self, name: str, kind: str) -> LayerPlan:
        rows, k = self.info(f"{name}.weight", "U8", dims=2).shape
        scale = self.info(f"{name}.weight_scale", *BIAS_DTYPES)
        if scale.shape not in ((1,), ()):
            raise CheckpointError(f"expected [1], found {scale}", tensor=f"{name}.weight_scale")
        return LayerPlan(
            name=name,
            n=rows * _PER_BYTE,
            k=k,
            scheme=WeightScheme.parse("bitnet"),
            activation=ActivationScheme.parse("s8-token-f32"),
            tensors=self.present(name, "weight", "weight_scale", "bias"),
            bias=check_bias(self, name, rows * _PER_BYTE),
            detail=kind,
        )

    def load(self, plan: LayerPlan) -> CanonicalWeight:
        """Read one layer."""
        scale = f"{plan.name}.weight_scale"
        stored = self.tensor(f"{plan.name}.weight")
        fields = torch.cat([(stored >> (2 * i)) & 3 for i in range(_PER_BYTE)])
        if bool((fields == 3).any()):
            raise CheckpointError(
                "a field holds 3; expected 0, 1 and 2, for -1, 0 and 1",
                tensor=f"{plan.name}.weight",
            )
        return CanonicalWeight(
            scheme=plan.scheme,
            n=plan.n,
            k=plan.k,
            packed=pack((fields + 3) & 3, 2),  # value + 1 less one, in two's complement
            # A divisor becomes a factor: one rounding, to f32.
            scales=finite_scalar(
                scale, self.tensor(scale), invert=plan.detail == "bitlinear"
            ).reshape(1, 1),
            bias=self._bias(plan),
            activation=plan.activation,
        )

    def _bias(self, plan: LayerPlan) -> torch.Tensor | None:
        if not plan.bias:
            return None
        bias = self.tensor(f"{plan.name}.bias")
        if plan.detail == "bitlinear":
            return bias
        # Exact for 16-bit biases and scales.
        return bias.to(torch.float32) * self.tensor(f"{plan.name}.weight_scale").to(torch.float32)
