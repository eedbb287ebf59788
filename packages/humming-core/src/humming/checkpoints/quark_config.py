"""Quark's quantization config: the specs of tensors, and which apply to a layer."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from humming.checkpoints.base import matches
from humming.errors import CheckpointError

__all__ = ["CODES", "LayerSpec", "QuarkConfig", "TensorSpec"]

#: Quark's dtype of codes to the number format.
CODES = {
    "fp4": "e2m1",
    "fp6_e2m3": "e2m3",
    "fp6_e3m2": "e3m2",
    "fp8_e4m3": "e4m3fn",
    "fp8_e5m2": "e5m2",
    "int2": "s2",
    "int3": "s3",
    "int4": "s4",
    "int8": "s8",
    "uint4": "u4",
    "uint8": "u8",
}
_UNQUANTIZED = ("float16", "bfloat16")
_QSCHEMES = ("per_tensor", "per_channel", "per_group", "per_block")
#: Formats that scale_format names; "" or float32: whatever float the file has.
_SCALE_FORMATS = ("", "float32", "e8m0", "e5m3")
_PACK_METHODS = ("reorder", "order")


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """How one tensor, or the scales of one, is quantized.

    Attributes:
        where: its place in the config, for messages.
        dtype: of the codes, as Quark spells it.
        qscheme: per_tensor, per_channel, per_group or per_block.
        axis: the channel or group axis; None if it has none.
        group: inputs per scale (per_group), else 0.
        block: rows and columns per scale (per_block), else (0, 0).
        symmetric: False if zero points mean something.
        dynamic: whether scales are computed per call.
        scale_format: "", "float32", "e8m0" or "e5m3".
        scales: whether this is about the scales of the spec before.
        mx: whether exponents and codes share a tensor (the old dtype "mx").
    """

    where: str
    dtype: str
    qscheme: str
    axis: int | None
    group: int
    block: tuple[int, int]
    symmetric: bool
    dynamic: bool
    scale_format: str
    scales: bool
    mx: bool


@dataclass(frozen=True)
class LayerSpec:
    """What the config says of one layer: specs of its weight (one, or two stages) and inputs."""

    weight: tuple[TensorSpec, ...]
    inputs: tuple[TensorSpec, ...]


class QuarkConfig:
    """``quantization_config`` of a Quark export."""

    def __init__(self, config: Mapping[str, Any], path: object) -> None:
        """Read `config`.

        Raises:
            CheckpointError: a key has the wrong type, or the export is not real-quantized.
        """
        self._path = path
        self._config = config
        export = self._object(config, "export")
        weights = export.get("weight_format")
        if weights not in (None, "real_quantized"):
            raise self._error("export.weight_format", weights, "real_quantized")
        self._pack_method = export.get("pack_method")
        #: Written since Quark 0.9; that version and later store scales transposed.
        self.version = str(config.get("version") or "")
        self._common = self._object(config, "global_quant_config")
        self._by_name = self._object(config, "layer_quant_config")
        self._by_type = self._object(config, "layer_type_quant_config")
        self._cache = [*self._object(config, "kv_cache_quant_config")]
        self._cache += self._strings(export, "kv_cache_group")
        self._excluded = self._strings(config, "exclude")
        mode = config.get("quant_mode")
        if mode not in (None, "eager_mode"):
            raise self._error("quant_mode", mode, "eager_mode")

    def exclusion(self, layer: str) -> str | None:
        """The entry of the exclude list that covers a layer."""
        return next((entry for entry in self._excluded if _means(entry, layer)), None)

    def layer(self, layer: str) -> LayerSpec | None:
        """What applies to a layer: its own entry, that of its type, or the common one.

        Returns:
            None if the layer is excluded or its weight is not quantized.

        Raises:
            CheckpointError: something in the specs of the layer is unknown.
        """
        if self.exclusion(layer) is not None:
            return None
        where, raw = "global_quant_config", self._common
        if "Linear" in self._by_type:
            where, raw = "layer_type_quant_config.Linear", self._by_type["Linear"]
        for pattern, value in self._by_name.items():
            if _means(pattern, layer):
                where, raw = f"layer_quant_config.{pattern}", value
                break
        if not isinstance(raw, dict):
            raise self._error(where, raw, "an object")
        if raw.get("bias"):
            raise self._error(f"{where}.bias", raw["bias"], "null: quantized biases can't be read")
        # What k_proj and v_proj put out is quantized for the cache, which is not our concern.
        if raw.get("output_tensors") and not any(_means(p, layer) for p in self._cache):
            raise self._error(
                f"{where}.output_tensors", raw["output_tensors"],
                "null, but for layers in kv_cache_group: quantized outputs can't be read",
            )  # fmt: skip
        weight = self._specs(raw.get("weight"), f"{where}.weight")
        inputs = self._specs(raw.get("input_tensors"), f"{where}.input_tensors")
        return LayerSpec(weight, inputs) if weight else None

    def reordered(self) -> bool:
        """Whether 4-bit codes of a word are in AWQ's order rather than the natural one."""
        if self._pack_method not in _PACK_METHODS:
            raise self._error("export.pack_method", self._pack_method, " or ".join(_PACK_METHODS))
        return bool(self._pack_method == "reorder")

    # -- specs --------------------------------------------------------------------------------

    def _specs(self, raw: object, where: str) -> tuple[TensorSpec, ...]:
        stages = raw if isinstance(raw, list) else [raw] if raw else []
        if len(stages) > 2:
            raise self._error(where, f"{len(stages)} stages", "one or two")
        only = stages[0] if len(stages) == 1 else None
        if isinstance(only, dict) and only.get("dtype") in _UNQUANTIZED:
            return ()
        names = [where] if len(stages) == 1 else [f"{where}[{i}]" for i in range(len(stages))]
        return tuple(self._spec(s, name) for s, name in zip(stages, names, strict=True))

    def _spec(self, raw: object, where: str) -> TensorSpec:
        if not isinstance(raw, dict):
            raise self._error(where, raw, "an object")
        mx = raw.get("dtype") == "mx"
        dtype = raw.get("mx_element_dtype") if mx else raw.get("dtype")
        scales = bool(raw.get("is_scale_quant"))
        known = [*CODES, "fp8_e5m3"] if scales else list(CODES)
        if dtype not in known:
            raise self._error(f"{where}.dtype", dtype, f"one of {', '.join(known)}")
        qscheme = raw.get("qscheme") or ("per_group" if mx else None)
        if qscheme not in _QSCHEMES:
            raise self._error(f"{where}.qscheme", qscheme, f"one of {', '.join(_QSCHEMES)}")
        scale_format = raw.get("scale_format") or ""
        if scale_format not in _SCALE_FORMATS:
            formats = ", ".join(_SCALE_FORMATS[1:])
            raise self._error(f"{where}.scale_format", scale_format, f"null or one of {formats}")
        if raw.get("zero_point_type") not in (None, "int32"):
            raise self._error(f"{where}.zero_point_type", raw["zero_point_type"], "int32")
        # "axis" and "dynamic" are the spellings of the first exports.
        return TensorSpec(
            where=where,
            dtype=dtype,
            qscheme=qscheme,
            axis=raw.get("ch_axis", raw.get("axis")),
            group=self._positive(raw.get("group_size"), f"{where}.group_size")
            if qscheme == "per_group"
            else 0,
            block=self._block(raw.get("block_size"), f"{where}.block_size")
            if qscheme == "per_block"
            else (0, 0),
            symmetric=raw.get("symmetric") is not False,
            dynamic=bool(raw.get("is_dynamic", raw.get("dynamic"))),
            scale_format=scale_format,
            scales=scales,
            mx=mx,
        )

    def _positive(self, value: object, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._error(where, value, "a positive integer")
        return value

    def _block(self, value: object, where: str) -> tuple[int, int]:
        if not isinstance(value, list) or len(value) != 2:
            raise self._error(where, value, "two positive integers")
        return self._positive(value[0], where), self._positive(value[1], where)

    def _object(self, owner: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = owner.get(key) or {}
        if not isinstance(value, dict):
            raise self._error(key, value, "an object")
        return value

    def _strings(self, owner: Mapping[str, Any], key: str) -> list[str]:
        value = owner.get(key) or []
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise self._error(key, value, "a list of strings")
        return value

    def _error(self, key: str, value: object, expected: str) -> CheckpointError:
        return CheckpointError(
            f"Quark config: {key}={value!r}, expected {expected}", path=self._path
        )


def _means(pattern: str, layer: str) -> bool:
    """Quark matches whole names with fnmatch; nothing is implied about what lies below."""
    if pattern.startswith("re:"):
        return matches(layer, pattern)
    return fnmatch.fnmatchcase(layer, pattern)
