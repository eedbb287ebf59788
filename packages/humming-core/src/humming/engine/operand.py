"""Activations as kernels read them: rows of codes or 16-bit numbers, and the scales of the rows."""

from __future__ import annotations

from typing import NamedTuple

import torch

from humming.activations import QuantizedActivation, quantize_rows
from humming.configs import LayerConfig
from humming.engine.quantized import Quantizer, RowChoice
from humming.errors import UnsupportedError
from humming.formats.tensors import TORCH_FLOATS, decode
from humming.gating import Gating
from humming.weight import CanonicalWeight

__all__ = ["ROW_BYTES", "Operand", "OperandMaker"]

#: Rows start at multiples of this many bytes: a copy to shared memory moves as many.
ROW_BYTES = 16


class Operand(NamedTuple):
    """Activations of one call.

    Attributes:
        x: rows.
        stride: bytes from one row to the next.
        scales: f32 [rows]; None if the activations are not quantized.
        groups: f32 [rows, groups]; None without group scales.
    """

    x: torch.Tensor
    stride: int
    scales: torch.Tensor | None = None
    groups: torch.Tensor | None = None


class OperandMaker:
    """Turns activations [rows, K] into what the kernels of one layer read.

    Args:
        weight: what pre_quant_scale and input_scale are those of.
        layer: the numbers.
        quantizer: of the layer; torch quantizes what it does not.

    Attributes:
        names: of the arguments beside x that operands give.
        dtype: of activations that can go to a kernel as they are; None if there are none.
        quantizer: as given.
        by_expert: whether a row's numbers depend on its expert.
        stored: f32 [1], the scale of a static scheme, if it is one for all rows.

    Raises:
        UnsupportedError: the numbers of a row would depend on other rows of the same expert.
    """

    def __init__(self, weight: CanonicalWeight, layer: LayerConfig, quantizer: Quantizer) -> None:
        self.scheme, self.quantizer = layer.activation, quantizer
        if layer.experts and self.scheme.second == "tensor" and weight.input_scale is None:
            raise UnsupportedError(
                f"{self.scheme} activations with experts: one dynamic scale over all rows of an "
                "expert; use a second level per token"
            )
        self._pre_quant_scale = _common(weight.pre_quant_scale, layer.experts)
        stored = self.scheme.static or self.scheme.second == "tensor"
        self._input_scale = _common(weight.input_scale if stored else None, layer.experts)
        by_expert = ((self._pre_quant_scale, 2), (self._input_scale, 1))
        self.by_expert = any(v is not None and v.dim() == dim for v, dim in by_expert)
        scale = None if self.by_expert else self._input_scale
        self.stored = None if scale is None else scale.to(torch.float32).reshape(-1).contiguous()
        names = ("x_scales", "x_groups") if self.scheme.group_size else ("x_scales",)
        self.names = names if self.scheme.is_quantized else ()
        self._float = None if self.names else TORCH_FLOATS[self.scheme.format.name]
        self.dtype = self._float if self._pre_quant_scale is None else None

    def __call__(self, x: torch.Tensor, experts: torch.Tensor | None = None) -> Operand:
        """The operand.

        Args:
            x: float [rows, K], with any strides.
            experts: int64 [rows], the expert of each row, if :attr:`by_expert`.
        """
        if self._pre_quant_scale is not None:
            # In the activations' own dtype, as engines do it before the quantizer.
            x = x * self._of_rows(self._pre_quant_scale, 2, experts).to(x.dtype)
        if self._float is not None:
            return aligned(x.to(self._float))
        scale = self._input_scale
        if scale is not None:
            scale = self._of_rows(scale, 1, experts)
        found = self.quantizer(x, scale)
        if found is None:
            return _in_kernel_form(quantize_rows(x, self.scheme, scale))
        return Operand(found.codes, found.codes.stride(0), found.scales, found.groups)

    def fused(
        self,
        x: torch.Tensor,
        *,
        gating: Gating | None = None,
        choice: RowChoice | None = None,
        experts: torch.Tensor | None = None,
    ) -> Operand | None:
        """The operand of activated or chosen rows in one launch; None if that takes several steps.

        Its bits are those of the steps one after the other.

        Args:
            x: float [rows, gating.inputs(K)], with any strides.
            gating: what is applied before.
            choice: which rows; others are memory that nothing was written to.
            experts: int64 of each output row, its expert, if :attr:`by_expert`.
        """
        if self._pre_quant_scale is not None or self._float is not None:
            return None
        scale = self._input_scale
        if scale is not None:
            scale = self._of_rows(scale, 1, experts)
        found = self.quantizer(x, scale, gating=gating, choice=choice)
        if found is None:
            return None
        return Operand(found.codes, found.codes.stride(0), found.scales, found.groups)

    def in_one_launch(self, dtype: torch.dtype) -> bool:
        """Whether a kernel makes the whole operand of activations of a dtype, and :attr:`stored` is
        all that it needs beside them."""
        several = self._float is not None or self._pre_quant_scale is not None or self.by_expert
        return not several and self.quantizer.handles(dtype)

    def _of_rows(
        self, values: torch.Tensor, dim: int, experts: torch.Tensor | None
    ) -> torch.Tensor:
        """The values that each row has, where they are given by expert."""
        if values.dim() < dim:
            return values
        assert experts is not None, "by_expert says that rows need their experts"
        return values[experts]


def aligned(x: torch.Tensor) -> Operand:
    """Rows as they are if a kernel can read them, else a copy with padded rows."""
    size = x.element_size()
    row = x.shape[1] * size
    stride = x.stride(0) * size if x.shape[0] > 1 else row
    readable = (
        row % ROW_BYTES == 0
        and x.stride(1) == 1
        and stride >= row
        and stride % ROW_BYTES == 0
        and x.data_ptr() % ROW_BYTES == 0
        # What a simulator copies must be a whole buffer.
        and (x.is_contiguous() or x.device.type != "cpu")
    )
    if not readable:
        x = torch.nn.functional.pad(x, (0, -x.shape[1] % (ROW_BYTES // size))).contiguous()
        stride = x.shape[1] * size
    return Operand(x, stride)


def _in_kernel_form(found: QuantizedActivation) -> Operand:
    """Codes, two per byte if they have at most four bits, and scales as f32."""
    scheme, codes = found.scheme, found.codes
    assert scheme.scale is not None, "quantized activations have scales"
    if scheme.format.bits <= 4:
        codes = torch.nn.functional.pad(codes, (0, codes.shape[1] % 2))
        codes = codes[:, 0::2] | codes[:, 1::2] << 4
    scales = decode(found.scales, scheme.scale)
    groups = None
    if scheme.group_size:
        groups = scales.contiguous()
        scales = groups.new_ones(1, 1) if found.second is None else found.second
    rows = scales.expand(codes.shape[0], 1).reshape(-1)
    if found.invalid is not None:  # integers have no NaN, so the row's scale carries it
        rows = rows.masked_fill(found.invalid.any(dim=1), torch.nan)
    return aligned(codes)._replace(scales=rows.contiguous(), groups=groups)


def _common(values: torch.Tensor | None, experts: int) -> torch.Tensor | None:
    """Values that are the same for all experts, without the dimension of experts."""
    if values is None or not experts:
        return values
    return values[0] if bool((values == values[:1]).all()) else values
