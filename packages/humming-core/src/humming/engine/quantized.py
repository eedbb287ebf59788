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
from humming.gating import Gating
from humming.profiles import DeviceProfile
from humming.quantizer import (
    SOURCES,
    QuantizeOptions,
    RowSource,
    quantize_refusal,
    quantize_spec,
    row_sizes,
)

__all__ = ["QuantizedRows", "Quantizer", "RowChoice", "quantize_specs"]

#: Arguments of the kernel that change, in the order of a call.
_ARGS = (
    "x", "x_stride", "stored", "stored_step", "codes", "scales", "groups", "rows", "table", "limit",
)  # fmt: skip
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


class RowChoice(NamedTuple):
    """Which rows are quantized.

    Attributes:
        source: how the table is read.
        table: ids of experts or numbers of rows, one for each output row, int32 (or int64 ids); or
            with COUNTS int32 [E].
        limit: how many experts there are, how many rows x has, or with COUNTS the rows of each.
    """

    source: RowSource
    table: torch.Tensor
    limit: int

    @property
    def rows(self) -> int:
        """Output rows."""
        count = self.table.numel()
        return count * self.limit if self.source is RowSource.COUNTS else count


class Quantizer:
    """Quantizes activations of one layer.

    Args:
        site: where.
        layer: the numbers.
        profile: of the device.

    Attributes:
        sizes: of what one row becomes.
    """

    def __init__(self, site: Site, layer: LayerConfig, profile: DeviceProfile) -> None:
        self._site, self._layer, self._profile = site, layer, profile
        self.sizes = row_sizes(layer.activation, layer.k)
        # dtypes that are not here are none of the kernel's
        self._sources = {} if quantize_refusal(layer.activation) else _SOURCES
        self._kernels: dict[_Key, tuple[KernelSpec, PreparedLaunch]] = {}

    def __call__(
        self,
        x: torch.Tensor,
        stored: torch.Tensor | None,
        *,
        gating: Gating | None = None,
        choice: RowChoice | None = None,
    ) -> QuantizedRows | None:
        """The rows' codes, or None if there is no kernel that makes them.

        Args:
            x: [rows, K], with any strides; [rows, gating.inputs(K)] with a function.
            stored: scale of a static scheme: one, or one for each output row.
            gating: what is applied before, rounded to the dtype of x.
            choice: which rows; rows that are not chosen are memory that nothing was written to.

        Raises:
            CaptureError: the kernel is not loaded, in the capture of a graph.
        """
        rows = x.shape[0] if choice is None else choice.rows
        if x.dtype not in self._sources or not rows:
            return None
        source = RowSource.EVERY if choice is None else choice.source
        key = x.dtype, gating, source
        spec, launch = self._kernels.get(key) or self._kernel(key)
        # What a simulator copies must be a whole buffer.
        if x.stride(1) != 1 or (x.device.type == "cpu" and not x.is_contiguous()):
            x = x.contiguous()
        if stored is not None:
            stored = stored.to(x.device, torch.float32).reshape(-1).contiguous()
        step = 0 if stored is None or stored.numel() == 1 else 1
        width, count = self.sizes
        # 1 us less than torch.empty().
        codes = torch.empty_strided((rows, width), (width, 1), dtype=torch.uint8, device=x.device)
        scales = torch.empty_strided((rows,), (1,), dtype=torch.float32, device=x.device)
        groups = None
        if count:
            groups = torch.empty_strided(
                (rows, count), (count, 1), dtype=torch.float32, device=x.device
            )
        shape = spec.launch(Problem(m=rows), self._layer)
        table, limit = (None, 0) if choice is None else (choice.table, choice.limit)
        launch(shape, x, x.stride(0), stored, step, codes, scales, groups, rows, table, limit)
        return QuantizedRows(codes, scales, groups)

    def specs(
        self, gating: Gating | None = None, source: RowSource = RowSource.EVERY
    ) -> list[KernelSpec]:
        """See :func:`quantize_specs`."""
        return quantize_specs(self._layer, self._profile, gating, source)

    def handles(self, dtype: torch.dtype) -> bool:
        """Whether there are kernels for activations of this dtype."""
        return dtype in self._sources

    def spec(
        self, dtype: torch.dtype, gating: Gating | None = None, source: RowSource = RowSource.EVERY
    ) -> KernelSpec:
        """The kernel for activations of a dtype that it :meth:`handles`.

        Args:
            dtype: of activations.
            gating: what is applied before.
            source: which rows.
        """
        options = _options(self._profile, gating, source)
        layer, arch = self._layer, self._profile.target.arch
        return quantize_spec(layer.activation, self._sources[dtype], layer.k, arch, options)

    def warm_up(
        self, dtype: torch.dtype, gating: Gating | None = None, source: RowSource = RowSource.EVERY
    ) -> None:
        """Compile and load a kernel, if there is one for activations of this dtype."""
        key = dtype, gating, source
        if dtype in self._sources and key not in self._kernels:
            self._kernel(key)

    def _kernel(self, key: _Key) -> tuple[KernelSpec, PreparedLaunch]:
        layer, site, spec = self._layer, self._site, self.spec(*key)
        handle = workshop().load(spec, site)
        names = [arg.name for arg in spec.args]
        values = [layer.k if name == "k" else None for name in names]
        kinds = [arg.kind for arg in spec.args]
        order = [names.index(name) for name in _ARGS]
        with site.active():
            launch = site.runtime.prepare(handle, kinds, values, {}, order)
        self._kernels[key] = spec, launch
        return self._kernels[key]


#: dtype of activations, what is applied before, and which rows.
_Key = tuple[torch.dtype, Gating | None, RowSource]


def quantize_specs(
    layer: LayerConfig,
    profile: DeviceProfile,
    gating: Gating | None = None,
    source: RowSource = RowSource.EVERY,
) -> list[KernelSpec]:
    """The kernel that quantizes a layer's activations, which have the format of its output.

    Args:
        layer: the numbers.
        profile: of the device.
        gating: what is applied before.
        source: which rows.
    """
    if quantize_refusal(layer.activation) is not None:
        return []
    options = _options(profile, gating, source)
    arch = profile.target.arch
    return [quantize_spec(layer.activation, layer.output, layer.k, arch, options)]


def _options(profile: DeviceProfile, gating: Gating | None, source: RowSource) -> QuantizeOptions:
    # A device that multiplies this format converts to it as well.
    native = "e4m3fn" in profile.features.activations
    return QuantizeOptions(native=native, gating=gating, rows=source)
