"""MXFP4 checkpoints: plain layers, and gpt-oss in its own and in Hugging Face's names.

============================  ===========================  ==================================
codes, uint8                  scales, uint8 exponents      bias
============================  ===========================  ==================================
``LAYER.weight`` [N, K/2]     ``LAYER.weight_scale``       ``LAYER.bias``
``LAYER_blocks``              ``LAYER_scales``             ``LAYER_bias`` (Hugging Face)
``LAYER_weight.blocks``       ``LAYER_weight.scales``      ``LAYER_bias`` (gpt-oss)
============================  ===========================  ==================================

Blocks are [E, N, K/32, 16], scales [E, N, K/32], biases [E, N]. Rows of gpt-oss' first
projection alternate between gate and up; they stay as stored, see :func:`rows_interleaved`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch

from humming.checkpoints.base import CheckpointLoader, LayerPlan, matches, split_name
from humming.checkpoints.scales import BIAS_DTYPES, finite_scales, scale_format
from humming.errors import CheckpointError, ConfigError
from humming.formats.scheme import Second, WeightScheme
from humming.weight import CanonicalWeight

__all__ = ["Mxfp4Loader", "deinterleave_gate_up", "rows_interleaved"]

_SCHEME = WeightScheme.parse("mxfp4")
_GROUP = 32
#: End of the codes' name, of the scales' and of the bias'; what is left is the layer.
_SPELLINGS = (
    ("_weight.blocks", "_weight.scales", "_bias"),
    ("_blocks", "_scales", "_bias"),
    (".weight", ".weight_scale", ".bias"),
)
_INTERLEAVED = ("gate_up_proj", "mlp1")


@dataclass(frozen=True, kw_only=True)
class _Names:
    """Full names of a layer's tensors; no bias: ""."""

    codes: str
    scales: str
    bias: str


class Mxfp4Loader(CheckpointLoader):
    """Reads e2m1 codes with an exponent per 32 inputs."""

    quant_methods: ClassVar[tuple[str, ...]] = ("mxfp4", "gpt_oss_mxfp4")

    def plan(self) -> Iterable[LayerPlan]:
        """All layers with blocks, or with bytes for weights."""
        skipped = self.setting("modules_to_not_convert", list, [])
        if not all(isinstance(entry, str) and entry for entry in skipped):
            raise CheckpointError(
                f"config: modules_to_not_convert={skipped!r}, expected a list of names",
                path=self.source.path,
            )
        plans = [self._plan(layer, names) for layer, names in self._layers()]
        for plan in plans:
            entry = next((entry for entry in skipped if matches(plan.name, entry)), None)
            if entry is not None:
                raise CheckpointError(
                    f"part of a quantized layer, but {entry!r} in the config spares it",
                    tensor=plan.detail.codes,
                    path=self.source.path,
                )
        claimed = {name for plan in plans for name in plan.tensors}
        for name in self.store:
            ends = ("_scales", "_weight.scales", ".weight_scale")
            if name.endswith(ends) and name not in claimed:
                raise CheckpointError("scales without codes", tensor=name, path=self.source.path)
        return plans

    def load(self, plan: LayerPlan) -> CanonicalWeight:
        """Read one layer, rows as stored; raises CheckpointError, naming the tensor."""
        names: _Names = plan.detail
        lead = (plan.experts,) if plan.experts else ()
        stored = self.tensor(names.codes)
        return CanonicalWeight(
            scheme=_SCHEME,
            n=plan.n,
            k=plan.k,
            experts=plan.experts,
            packed=stored.reshape(*lead, plan.n, plan.k // 2),
            scales=finite_scales(names.scales, self.tensor(names.scales), _SCHEME.scale),
            bias=self.tensor(names.bias, (*lead, plan.n)) if names.bias else None,
        )

    def _layers(self) -> Iterable[tuple[str, _Names]]:
        for name in self.store:
            for codes, scales, bias in _SPELLINGS:
                if not name.endswith(codes):
                    continue
                if codes == ".weight" and self.store.info(name).dtype not in ("U8", "I8"):
                    break
                layer = name[: -len(codes)]
                present = f"{layer}{bias}" in self.store
                yield (
                    layer,
                    _Names(
                        codes=name,
                        scales=f"{layer}{scales}",
                        bias=f"{layer}{bias}" if present else "",
                    ),
                )
                break

    def _plan(self, layer: str, names: _Names) -> LayerPlan:
        codes = self.info(names.codes, "U8")
        scales = self.info(names.scales)
        scale_format(names.scales, scales, "e8m0")
        if len(scales.shape) not in (2, 3):
            raise CheckpointError(
                f"expected 2 or 3 dimensions, found {scales}", tensor=names.scales
            )
        *lead, n, groups = scales.shape
        shapes = [(*lead, n, groups * _GROUP // 2)]
        if not names.codes.endswith(".weight"):
            shapes.insert(0, (*lead, n, groups, _GROUP // 2))
        if codes.shape not in shapes:
            raise CheckpointError(
                f"expected {list(shapes[0])} beside scales {list(scales.shape)}, found {codes}",
                tensor=names.codes,
            )
        if names.bias:
            self.info(names.bias, *BIAS_DTYPES, dims=len(lead) + 1)
        return LayerPlan(
            name=layer,
            n=n,
            k=groups * _GROUP,
            experts=lead[0] if lead else 0,
            scheme=_SCHEME,
            tensors=tuple(name for name in (names.codes, names.scales, names.bias) if name),
            bias=bool(names.bias),
            detail=names,
        )


def rows_interleaved(plan: LayerPlan) -> bool:
    """Whether row 2j of this layer is gate j and row 2j + 1 is up j, as in gpt-oss.

    True for the first projection of experts that are stored as blocks, in either spelling.
    """
    if not isinstance(plan.detail, _Names) or plan.detail.codes.endswith(".weight"):
        return False
    return split_name(plan.name)[1] in _INTERLEAVED


def deinterleave_gate_up(weight: CanonicalWeight) -> CanonicalWeight:
    """Rows 0, 2, 4, ... and then 1, 3, 5, ...: gate above up; the bias alike.

    Args:
        weight: [.., 2 I, K] with gate in even and up in odd rows.

    Raises:
        ConfigError: an odd number of rows, or scales that several rows share.
    """
    if weight.n % 2:
        raise ConfigError("n", weight.n, "an even number of rows, gate and up in turn")
    if weight.scheme.granularity.is_block:
        granularity = str(weight.scheme.granularity)
        raise ConfigError("granularity", granularity, "scales per row, or one per tensor")
    order = torch.arange(weight.n, device=weight.device).view(-1, 2).t().reshape(-1)
    per_row = ["packed"]
    per_row += ["scales", "zeros"] if weight.scheme.granularity.n == 1 else []
    per_row += ["second"] if weight.scheme.second is Second.CHANNEL else []
    changes = {
        field: tensor[..., order, :] for field, tensor in weight.tensors() if field in per_row
    }
    if weight.bias is not None:
        changes["bias"] = weight.bias[..., order]
    return weight.replace(**changes)
