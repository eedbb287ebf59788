"""AMD Quark checkpoints: integers, FP8, FP4 and FP6, in one or two stages.

==================== ========================================================================
tensor of a layer    meaning
==================== ========================================================================
weight               codes, see :mod:`humming.checkpoints.quark_pack`
weight_scale         per tensor, channel, group or block; a multiplier
weight_zero_point    value = (code - zero) * scale; written, as zeros, for symmetric integers too
weight_scale_2       scale of the scales, or of the second stage
input_scale          of static activations
input_scale_2        scale of the scales of activations
==================== ========================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from humming.checkpoints.base import CheckpointLoader, LayerPlan
from humming.checkpoints.quark_config import CODES, LayerSpec, QuarkConfig, TensorSpec
from humming.checkpoints.quark_inputs import activation_scheme
from humming.checkpoints.quark_pack import STORED, narrow_codes, nibbles, split_mx
from humming.checkpoints.quark_shapes import Layout, granularity, layout, zero_shapes
from humming.checkpoints.scales import BIAS_DTYPES, finite_scales, scale_format
from humming.checkpoints.store import TensorInfo
from humming.errors import CheckpointError
from humming.formats.activation import ActivationScheme
from humming.formats.number import NumberFormat
from humming.formats.scheme import Second, WeightScheme, Zero
from humming.formats.table import number_format
from humming.packing import pack, unpack
from humming.weight import CanonicalWeight

__all__ = ["QuarkLoader"]

_FLOATS = ("F32", "BF16", "F16")
#: What the tensors of a layer are called; of two spellings a file may use one.
_SPELLINGS = {
    "weight_scale": ("weight_scale", "weight_scale_inv", "weight_quantizer.scale"),
    "weight_zero_point": ("weight_zero_point", "weight_quantizer.zero_point"),
    "weight_scale_2": ("weight_scale_2",),
    "weight_zero_point_2": ("weight_zero_point_2",),
    "input_scale": ("input_scale", "input_quantizer.scale"),
    "input_zero_point": ("input_zero_point", "input_quantizer.zero_point"),
    "input_scale_2": ("input_scale_2",),
}
#: Present where inputs are transformed before they are quantized.
_TRANSFORMS = ("input_rotation", "input_prescale")
_SCALE_CODES = {"fp8_e4m3": "F8_E4M3", "fp8_e5m2": "F8_E5M2", "fp8_e5m3": "U8"}
_SCALE_FORMATS = {"fp8_e4m3": "e4m3fn", "fp8_e5m2": "e5m2", "fp8_e5m3": "e5m3"}


@dataclass(frozen=True)
class _Detail:
    """How a layer is stored.

    Attributes:
        spec: of the codes.
        way: orientation.
        reordered: whether fields of 4-bit words are in AWQ's order.
        scales, zeros, second: names of tensors, "" for none.
        input_scale, input_zero: likewise.
    """

    spec: TensorSpec
    way: Layout
    reordered: bool
    scales: str
    zeros: str
    second: str
    input_scale: str = ""
    input_zero: str = ""


class QuarkLoader(CheckpointLoader):
    """Reads real-quantized exports of Quark 0.6 to 0.13."""

    quant_methods: ClassVar[tuple[str, ...]] = ("quark",)

    def plan(self) -> Iterable[LayerPlan]:
        """All layers that have codes or scales; raises CheckpointError for what is amiss."""
        config = QuarkConfig(self.config, self.source.path)
        return [self._plan(config, layer) for layer in self._layers()]

    def _layers(self) -> dict[str, None]:
        """Layers that any tensor proves quantized, in file order."""
        ends = [f".{spelling}" for names in _SPELLINGS.values() for spelling in names]
        layers: dict[str, None] = {}
        for name in self.store:
            found = [end for end in ends if name.endswith(end)]
            if name.endswith(".weight") and self.store.info(name).dtype in STORED.values():
                found = [".weight"]
            if found:
                layers.setdefault(name.removesuffix(found[0]))
        return layers

    def _find(self, layer: str, role: str) -> str:
        """Name of the layer's tensor in this role, "" if there is none."""
        found = self.present(layer, *_SPELLINGS[role])
        if len(found) > 1:
            raise CheckpointError(f"and {found[1]!r} mean the same; expected one", tensor=found[0])
        return found[0] if found else ""

    def _need(self, layer: str, role: str, why: str) -> str:
        name = self._find(layer, role)
        if not name:
            raise CheckpointError(f"missing; {why}", tensor=f"{layer}.{role}")
        return name

    def _plan(self, config: QuarkConfig, layer: str) -> LayerPlan:
        spec = config.layer(layer)
        names = [name for role in _SPELLINGS if (name := self._find(layer, role))]
        if spec is None:
            entry = config.exclusion(layer)
            reason = f"the config excludes it ({entry!r})" if entry else "the config has no spec"
            raise CheckpointError(
                f"belongs to a quantized layer, but {reason}",
                tensor=(names or [f"{layer}.weight"])[0],
                path=self.source.path,
            )
        for name in self.present(layer, *_TRANSFORMS):
            raise CheckpointError("inputs that are transformed can't be read", tensor=name)
        detail, scheme = self._weight(config, layer, spec)
        activation = activation_scheme(spec.inputs)
        if activation is not None and activation.static:
            role = "input_scale_2" if activation.second else "input_scale"
            self._need(layer, role, "the config says that activations are static")
        detail = self._with_inputs(layer, detail, activation)
        bias = f"{layer}.bias"
        used = [f"{layer}.weight", detail.scales, detail.zeros, detail.second]
        used += [detail.input_scale, detail.input_zero, bias if bias in self.store else ""]
        tensors = tuple(dict.fromkeys(name for name in used if name))
        for name in names:
            if name not in tensors:
                raise CheckpointError(f"present, but {spec.weight[0].where} has no use for it",
                                      tensor=name)  # fmt: skip
        if bias in self.store:
            self._shape(bias, self.info(bias, *BIAS_DTYPES), [(detail.way.n,)])
        return LayerPlan(
            name=layer,
            n=detail.way.n,
            k=detail.way.k,
            scheme=scheme,
            activation=activation,
            tensors=tensors,
            bias=bias in self.store,
            detail=detail,
        )

    # -- headers ------------------------------------------------------------------------------

    def _weight(
        self, config: QuarkConfig, layer: str, spec: LayerSpec
    ) -> tuple[_Detail, WeightScheme]:
        """Names, orientation and scheme of the weight."""
        for stage in spec.weight:
            if stage.dynamic:
                raise CheckpointError(f"Quark config: {stage.where} is dynamic, expected static")
        first, last = spec.weight[0], spec.weight[-1]
        progressive = len(spec.weight) == 2 and not last.scales
        codes = last if progressive else first
        if codes.scales:
            raise CheckpointError(f"Quark config: {codes.where} is about scales, expected codes")
        weight = f"{layer}.weight"
        info = self.info(weight, "U8" if codes.mx else STORED[codes.dtype], dims=2)
        scales = second = zeros = ""
        if codes.mx:
            scales, scales_info = weight, self._mx_scales(codes, weight, info)
            fmt = number_format("e8m0")
        else:
            end = "_2" if progressive else ""
            scales = self._need(layer, f"weight_scale{end}", f"{codes.where} is quantized")
            zeros = self._find(layer, f"weight_zero_point{end}")
            scales_info = self.info(scales)
            fmt = self._scale_format(codes, last if last.scales else None, scales, scales_info)
        way = layout(codes, (weight, info), (scales, scales_info), config.version)
        kind = Second.NONE
        if len(spec.weight) == 2:
            role = "weight_scale" if progressive else "weight_scale_2"
            second = self._need(layer, role, f"{last.where} is quantized")
            kind = self._second(first if progressive else last, second, way.n)
        code, zero = self._zero(codes, f"{layer}.weight_zero_point", zeros, way)
        scheme = WeightScheme(
            code=code, granularity=granularity(codes), scale=fmt, zero=zero, second=kind
        )
        reordered = config.reordered() if STORED[codes.dtype] == "I32" and code.bits == 4 else False
        return _Detail(codes, way, reordered, scales, zeros, second), scheme

    def _mx_scales(self, codes: TensorSpec, name: str, info: TensorInfo) -> TensorInfo:
        if codes.dtype != "fp4" or codes.group != 32:
            raise CheckpointError(
                f"Quark config: {codes.where} is mx of {codes.dtype} per {codes.group}, "
                f"expected fp4 per 32",
                tensor=name,
            )
        return TensorInfo("U8", (info.shape[0], info.shape[1] // 17))

    def _scale_format(
        self, codes: TensorSpec, scales: TensorSpec | None, name: str, info: TensorInfo
    ) -> NumberFormat:
        if scales is not None:
            if scales.dtype not in _SCALE_FORMATS:
                known = ", ".join(_SCALE_FORMATS)
                raise CheckpointError(
                    f"Quark config: {scales.where}.dtype={scales.dtype!r}, expected one of {known}"
                )
            self.info(name, _SCALE_CODES[scales.dtype])
            return number_format(_SCALE_FORMATS[scales.dtype])
        if codes.scale_format == "e8m0":
            return scale_format(name, info, "e8m0")
        if codes.scale_format == "e5m3":
            self.info(name, "U8")
            return number_format("e5m3")
        return scale_format(name, info, "f32", "bf16", "f16")

    def _second(self, spec: TensorSpec, name: str, n: int) -> Second:
        """Granularity of the outer scale: of all scales, or of the first stage."""
        channel = spec.qscheme == "per_channel" and spec.axis == 0 and not spec.scales
        integer = number_format(CODES.get(spec.dtype, "e5m3")).is_integer
        if (spec.qscheme != "per_tensor" and not channel) or integer or not spec.symmetric:
            raise CheckpointError(
                f"Quark config: {spec.where} is {spec.qscheme} {spec.dtype}, expected a symmetric "
                f"float per tensor{'' if spec.scales else ' or per channel'}"
            )
        shapes: list[tuple[int, ...]] = [(n,), (n, 1)] if channel else [(), (1,)]
        self._shape(name, self.info(name, *_FLOATS), shapes)
        return Second.CHANNEL if channel else Second.TENSOR

    def _zero(
        self, codes: TensorSpec, expected: str, name: str, way: Layout
    ) -> tuple[NumberFormat, Zero]:
        """Format of the codes as humming keeps them, and whether zero points count."""
        code = number_format(CODES[codes.dtype])
        if not code.is_integer:
            return code, Zero.NONE
        counts = not codes.symmetric or not code.signed
        if counts and not name:
            raise CheckpointError(f"missing; {codes.where} has zero points", tensor=expected)
        if name:
            allowed = ("I32",) if codes.qscheme == "per_tensor" else ()
            info = self.info(name, STORED[codes.dtype], *allowed)
            self._shape(name, info, zero_shapes(codes, way))
        # Signed codes with zero points: both move up by half the range.
        return (number_format(f"u{code.bits}"), Zero.INTEGER) if counts else (code, Zero.NONE)

    def _with_inputs(
        self, layer: str, detail: _Detail, activation: ActivationScheme | None
    ) -> _Detail:
        scale = zero = ""
        if activation is not None and activation.static:
            scale = self._find(layer, "input_scale_2" if activation.second else "input_scale")
            self._shape(scale, self.info(scale, *_FLOATS), [(), (1,)])
            zero = self._find(layer, "input_zero_point")
        return replace(detail, input_scale=scale, input_zero=zero)

    def _shape(self, name: str, info: TensorInfo, shapes: list[tuple[int, ...]]) -> None:
        if info.shape not in shapes:
            wanted = " or ".join(str(list(shape)) for shape in shapes)
            raise CheckpointError(f"expected shape {wanted}, found {info}", tensor=name)

    # -- data ---------------------------------------------------------------------------------

    def load(self, plan: LayerPlan) -> CanonicalWeight:
        """Read one layer; raises CheckpointError, naming the tensor."""
        detail: _Detail = plan.detail
        scheme, spec = plan.scheme, detail.spec
        shape = scheme.granularity.scale_shape(plan.n, plan.k)
        if spec.mx:
            packed, scales = split_mx(detail.scales, self.store.get(detail.scales))
        else:
            packed = self._packed(plan.name, detail, scheme)
            scales = self.store.get(detail.scales)
        if detail.way.scales_transposed and scales.dim() == 2:
            scales = scales.t()
        scales = _bytes(scales).reshape(shape).contiguous()
        zeros = self._zeros(detail, scheme)
        return CanonicalWeight(
            scheme=scheme,
            n=plan.n,
            k=plan.k,
            packed=packed,
            scales=finite_scales(detail.scales, scales, scheme.scale),
            zeros=None if zeros is None else zeros.reshape(shape).contiguous(),
            second=self._floats(detail.second, (-1, 1)) if detail.second else None,
            bias=self.store.get(f"{plan.name}.bias") if plan.bias else None,
            activation=plan.activation,
            input_scale=self._input_scale(detail),
        )

    def _packed(self, layer: str, detail: _Detail, scheme: WeightScheme) -> torch.Tensor:
        name = f"{layer}.weight"
        stored, dtype, bits = self.store.get(name), detail.spec.dtype, scheme.code.bits
        flip = (1 << (bits - 1)) if _flips(dtype, scheme) else 0
        if STORED[dtype] == "U8" and bits < 8 and not flip:
            return stored  # a bit stream along K, as in the standard form
        if STORED[dtype] == "U8" and bits < 8:
            codes = unpack(stored, bits, detail.way.k)
        elif bits == 4:
            way = detail.way
            codes = nibbles(stored, way.n if way.codes_transposed else way.k, detail.reordered)
        elif dtype == "int2":
            codes = narrow_codes(name, stored, 2, signed=True)
        else:
            codes = _bytes(stored)
        if detail.way.codes_transposed:
            codes = codes.t()
        return pack((codes ^ flip if flip else codes).contiguous(), bits)

    def _zeros(self, detail: _Detail, scheme: WeightScheme) -> torch.Tensor | None:
        """Zero points in the order of the scales, or None; symmetric ones must be 0."""
        name, spec, way = detail.zeros, detail.spec, detail.way
        if not name:
            return None
        bits, stored = scheme.code.bits, self.store.get(name)
        signed = not spec.dtype.startswith("u")
        if spec.qscheme == "per_tensor" or spec.dtype == "int2":
            zeros = narrow_codes(name, stored, bits, signed)
        elif spec.dtype == "int3":
            zeros = unpack(stored, 3, stored.shape[-1] * 8 // 3)
        elif bits == 4:
            zeros = nibbles(stored, way.n, detail.reordered)
        else:
            zeros = stored.view(torch.uint8)
        if scheme.zero is Zero.NONE:
            if zeros.numel() and int(zeros.max()):
                raise CheckpointError(f"not all 0, though {spec.where} is symmetric", tensor=name)
            return None
        if _flips(spec.dtype, scheme):
            zeros = zeros ^ (1 << (bits - 1))
        along_n = zeros.dim() == 2 and spec.dtype != "int3"
        return zeros.t() if along_n and (bits == 4 or way.scales_transposed) else zeros

    def _input_scale(self, detail: _Detail) -> torch.Tensor | None:
        if not detail.input_scale:
            return None
        if detail.input_zero and int(self.store.get(detail.input_zero).abs().max()):
            raise CheckpointError("not 0; only symmetric activations", tensor=detail.input_zero)
        return self._floats(detail.input_scale, ())

    def _floats(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        value = self.store.get(name).to(torch.float32)
        return finite_scales(name, value, number_format("f32")).reshape(shape)


def _flips(dtype: str, scheme: WeightScheme) -> bool:
    """Whether two's complement codes become unsigned ones beside their zero points."""
    return scheme.zero is Zero.INTEGER and not dtype.startswith("u")


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """8-bit tensors as uint8, others as they are."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
