"""Activations quantized by core's own kernel: one launch instead of a dozen of torch's."""

from __future__ import annotations

from typing import NamedTuple

import torch

from humming.backend import KernelSpec, PreparedLaunch, Problem
from humming.configs import LayerConfig
from humming.engine.site import Site
from humming.engine.workshop import workshop
from humming.formats.table import number_format
from humming.formats.tensors import TORCH_FLOATS
from humming.quantizer import SOURCES, quantize_refusal, quantize_spec, row_sizes

__all__ = ["QuantizedRows", "Quantizer", "quantize_specs"]

#: Arguments of the kernel that change, in the order of a call.
_ARGS = ("x", "x_stride", "stored", "stored_step", "codes", "scales", "groups", "rows")
_SOURCES = {TORCH_FLOATS[name]: number_format(name) for name in SOURCES}


class QuantizedRows(NamedTuple):
    """See :func:`humming.quantizer.quantize_spec`.

    Attributes:
        codes: uint8 [rows, code_bytes].
        scales: f32 [rows].
        groups: f32 [rows, groups]; None without group scales.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    groups: torch.Tensor | None


class Quantizer:
    """Quantizes activations of one layer.

    Args:
        site: where.
        layer: the numbers.
        arch: target architecture as the compiler spells it.
    """

    def __init__(self, site: Site, layer: LayerConfig, arch: str) -> None:
        self._site, self._layer, self._arch = site, layer, arch
        self._sizes = row_sizes(layer.activation, layer.k)
        # dtypes that are not here are none of the kernel's
        self._sources = {} if quantize_refusal(layer.activation) else _SOURCES
        self._kernels: dict[torch.dtype, tuple[KernelSpec, PreparedLaunch]] = {}

    def __call__(self, x: torch.Tensor, stored: torch.Tensor | None) -> QuantizedRows | None:
        """The rows' codes, or None if there is no kernel that makes them.

        Args:
            x: [rows, K], with any strides.
            stored: scale of a static scheme: one, or one for each row.

        Raises:
            CaptureError: the kernel is not loaded, in the capture of a graph.
        """
        rows = x.shape[0]
        if x.dtype not in self._sources or not rows:
            return None
        spec, launch = self._kernels.get(x.dtype) or self._kernel(x.dtype)
        # What a simulator copies must be a whole buffer.
        if x.stride(1) != 1 or (x.device.type == "cpu" and not x.is_contiguous()):
            x = x.contiguous()
        if stored is not None:
            stored = stored.to(x.device, torch.float32).reshape(-1).contiguous()
        step = 0 if stored is None or stored.numel() == 1 else 1
        width, count = self._sizes
        # 1 us less than torch.empty().
        codes = torch.empty_strided((rows, width), (width, 1), dtype=torch.uint8, device=x.device)
        scales = torch.empty_strided((rows,), (1,), dtype=torch.float32, device=x.device)
        groups = None
        if count:
            groups = torch.empty_strided(
                (rows, count), (count, 1), dtype=torch.float32, device=x.device
            )
        shape = spec.launch(Problem(m=rows), self._layer)
        launch(shape, x, x.stride(0), stored, step, codes, scales, groups, rows)
        return QuantizedRows(codes, scales, groups)

    def specs(self) -> list[KernelSpec]:
        """See :func:`quantize_specs`."""
        return quantize_specs(self._layer, self._arch)

    def _kernel(self, dtype: torch.dtype) -> tuple[KernelSpec, PreparedLaunch]:
        layer, site = self._layer, self._site
        spec = quantize_spec(layer.activation, self._sources[dtype], layer.k, self._arch)
        handle = workshop().load(spec, site)
        names = [arg.name for arg in spec.args]
        values = [layer.k if name == "k" else None for name in names]
        kinds, order = [arg.kind for arg in spec.args], [names.index(name) for name in _ARGS]
        with site.active():
            launch = site.runtime.prepare(handle, kinds, values, {}, order)
        self._kernels[dtype] = spec, launch
        return self._kernels[dtype]


def quantize_specs(layer: LayerConfig, arch: str) -> list[KernelSpec]:
    """The kernel that quantizes a layer's activations, which have the format of its output.

    Args:
        layer: the numbers.
        arch: target architecture as the compiler spells it.
    """
    if quantize_refusal(layer.activation) is not None:
        return []
    return [quantize_spec(layer.activation, layer.output, layer.k, arch)]
