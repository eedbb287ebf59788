"""The reference backend: every valid combination, in torch, on any device. Right, not fast."""

from __future__ import annotations

from collections.abc import Callable

import torch

from humming.activations import quantize_activation
from humming.backend import EagerBackend
from humming.configs import ComputeConfig, GemmKind, LayerConfig
from humming.errors import ConfigError
from humming.formats.tensors import TORCH_FLOATS, decode
from humming.profiles import DeviceProfile
from humming.validity import layer_why_not
from humming.weight import CanonicalWeight

__all__ = ["ReferenceBackend"]

#: Bytes of dequantized weight held at a time.
_CHUNK_BYTES = 256 << 20


class ReferenceBackend(EagerBackend):
    """Dequantize, multiply in float32, add the bias, round once to the output format.

    Activations are quantized and dequantized exactly as :mod:`humming.activations` says, so a
    kernel's result differs from this one only by the order of its sums. Weights whose scales
    leave the range of float32 are multiplied in float64. Batch-invariant for M up to what the
    device's torch matmul is; nothing here depends on time or on other calls.
    """

    name = "reference"
    fallback = True

    @classmethod
    def refuse_device(cls, profile: DeviceProfile) -> str | None:
        """None: torch runs wherever the tensors are."""
        return None

    def refuse(self, layer: LayerConfig, compute: ComputeConfig) -> str | None:
        """A sentence for combinations that mean nothing; the device is never the reason."""
        if compute.batch_invariant:
            return "torch's matmul does not promise the same bits for every batch size"
        return layer_why_not(layer, compute)

    def prepare(
        self, weight: CanonicalWeight, layer: LayerConfig, compute: ComputeConfig
    ) -> Callable[..., torch.Tensor]:
        """The layer as a function of activations [M, K] (routing as :func:`humming.matmul`)."""
        return _PREPARE[compute.gemm](weight, layer)


def _dense(weight: CanonicalWeight, layer: LayerConfig) -> Callable[..., torch.Tensor]:
    work = _work_dtype(weight)
    output = TORCH_FLOATS[layer.output.name]
    step = max(1, _CHUNK_BYTES // (work.itemsize * max(weight.k, 1)))
    bn = max(weight.scheme.granularity.n, 1)
    step = -(-step // bn) * bn

    def run(x: torch.Tensor) -> torch.Tensor:
        operand = _operand(x, weight, layer).to(work)
        result = torch.empty(x.shape[0], weight.n, dtype=output, device=x.device)
        for start in range(0, weight.n, step):
            part = weight.rows(start, min(start + step, weight.n))
            sums = operand @ part.dequantize(work).T
            if part.bias is not None:
                sums += part.bias.to(work)
            result[:, start : start + step] = sums.to(output)
        return result

    return run


def _operand(x: torch.Tensor, weight: CanonicalWeight, layer: LayerConfig) -> torch.Tensor:
    """The values that the multiplication really sees."""
    if weight.pre_quant_scale is not None:
        # In the activations' own dtype, as engines do it before the quantizer.
        x = x * weight.pre_quant_scale.to(x.dtype)
    if not layer.activation.is_quantized:
        return x.to(TORCH_FLOATS[layer.activation.format.name])
    return quantize_activation(x, layer.activation, weight.input_scale).dequantize()


def _work_dtype(weight: CanonicalWeight) -> torch.dtype:
    """float32, or float64 where products of codes and scales would leave float32's range."""
    scales = decode(weight.scales, weight.scheme.scale, torch.float64).abs()
    if weight.second is not None:
        scales = scales * weight.second.to(torch.float64).abs().amax()
    scales = scales[scales.isfinite() & (scales > 0)]
    if scales.numel() == 0:
        return torch.float32
    top = float(scales.max()) * max(abs(weight.scheme.code.min), weight.scheme.code.max)
    return torch.float64 if top > 2.0**96 or float(scales.min()) < 2.0**-96 else torch.float32


def _experts(
    weight: CanonicalWeight, layer: LayerConfig
) -> list[Callable[[torch.Tensor], torch.Tensor]]:
    return [_dense(weight.expert(e), layer) for e in range(weight.experts)]


def _indexed(weight: CanonicalWeight, layer: LayerConfig) -> Callable[..., torch.Tensor]:
    experts = _experts(weight, layer)

    def run(x: torch.Tensor, expert_ids: torch.Tensor) -> torch.Tensor:
        tokens, top_k = expert_ids.shape
        rows = x.repeat_interleave(top_k, dim=0) if x.dim() == 2 else x.flatten(0, 1)
        ids = expert_ids.reshape(-1)
        out = torch.zeros(
            ids.numel(), weight.n, dtype=TORCH_FLOATS[layer.output.name], device=x.device
        )
        for e, expert in enumerate(experts):
            chosen = (ids == e).nonzero().squeeze(1)
            if chosen.numel():
                out[chosen] = expert(rows[chosen])
        return out.view(tokens, top_k, weight.n)

    return run


def _grouped_contiguous(weight: CanonicalWeight, layer: LayerConfig) -> Callable[..., torch.Tensor]:
    experts = _experts(weight, layer)

    def run(x: torch.Tensor, expert_offsets: torch.Tensor) -> torch.Tensor:
        bounds = [int(v) for v in expert_offsets.tolist()]
        if bounds[0] != 0 or bounds[-1] > x.shape[0] or bounds != sorted(bounds):
            raise ConfigError("expert_offsets", bounds, f"0 <= ... <= {x.shape[0]}, ascending")
        out = torch.zeros(
            x.shape[0], weight.n, dtype=TORCH_FLOATS[layer.output.name], device=x.device
        )
        for expert, start, stop in zip(experts, bounds[:-1], bounds[1:], strict=True):
            if stop > start:
                out[start:stop] = expert(x[start:stop])
        return out

    return run


def _grouped_masked(weight: CanonicalWeight, layer: LayerConfig) -> Callable[..., torch.Tensor]:
    experts = _experts(weight, layer)

    def run(x: torch.Tensor, expert_counts: torch.Tensor) -> torch.Tensor:
        counts = [int(v) for v in expert_counts.tolist()]
        if min(counts) < 0 or max(counts) > x.shape[1]:
            raise ConfigError("expert_counts", counts, f"0 to the capacity {x.shape[1]}")
        out = torch.zeros(
            *x.shape[:2], weight.n, dtype=TORCH_FLOATS[layer.output.name], device=x.device
        )
        for e, (expert, count) in enumerate(zip(experts, counts, strict=True)):
            if count:
                out[e, :count] = expert(x[e, :count])
        return out

    return run


_PREPARE: dict[GemmKind, Callable[[CanonicalWeight, LayerConfig], Callable[..., torch.Tensor]]] = {
    GemmKind.DENSE: _dense,
    GemmKind.INDEXED: _indexed,
    GemmKind.GROUPED_CONTIGUOUS: _grouped_contiguous,
    GemmKind.GROUPED_MASKED: _grouped_masked,
}
