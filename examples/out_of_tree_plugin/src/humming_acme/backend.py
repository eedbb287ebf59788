"""AcmeBackend: torch multiplies, with weights dequantized once and for all."""

from __future__ import annotations

from collections.abc import Callable

import torch

from humming.backend import EagerBackend, Evidence
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.formats.tensors import TORCH_FLOATS
from humming.profiles import DeviceProfile
from humming.weight import CanonicalWeight

__all__ = ["AcmeBackend"]


class AcmeBackend(EagerBackend):
    """Dense layers with unquantized activations, on Acme's devices."""

    name = "acme"

    @classmethod
    def refuse_device(cls, profile: DeviceProfile) -> str | None:
        """Only Acme's own."""
        if profile.vendor != "acme":
            return f"for Acme devices; {profile.title} is none"
        return None

    @classmethod
    def evidence(cls, profile: DeviceProfile) -> Evidence:
        """There is no such hardware."""
        return Evidence.SIMULATED

    def refuse(self, layer: LayerConfig, compute: ComputeConfig) -> str | None:
        """What it does not do, each with a sentence."""
        if compute.gemm is not GemmKind.DENSE:
            return f"dense layers only, not {compute.gemm.value}"
        if layer.activation.is_quantized:
            return f"unquantized activations only, not {layer.activation}"
        if layer.activation.format.name not in self.profile.activations:
            return f"{self.profile.title} does not multiply {layer.activation.format}"
        if compute.batch_invariant:
            return "torch's matmul does not promise the same bits for every batch size"
        return None

    def prepare(
        self, weight: CanonicalWeight, layer: LayerConfig, compute: ComputeConfig
    ) -> Callable[..., torch.Tensor]:
        """Activations [M, K] to results [M, N]."""
        dtype = TORCH_FLOATS[layer.activation.format.name]
        output = TORCH_FLOATS[layer.output.name]
        matrix = weight.dequantize(torch.float32).to(dtype)
        bias = None if weight.bias is None else weight.bias.to(dtype)

        def run(x: torch.Tensor) -> torch.Tensor:
            if weight.pre_quant_scale is not None:
                x = x * weight.pre_quant_scale.to(x.dtype)
            return torch.nn.functional.linear(x.to(dtype), matrix, bias).to(output)

        return run
