"""ModelOpt's quantization config: its algorithms, and which one applies to a layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from humming.checkpoints.base import matches
from humming.errors import CheckpointError

__all__ = ["ALGORITHMS", "Algorithm", "LayerRule", "ModelOptConfig"]


@dataclass(frozen=True)
class Algorithm:
    """One ``quant_algo``.

    Attributes:
        code: number format of the codes.
        granularity: "tensor", "channel", "group" or "block".
        group: inputs per scale if the config does not say; 0: as many as the scales show.
        scale: format of the scales, or "" for whichever float format the file has.
        second: whether ``weight_scale_2`` multiplies every value.
        activation: ActivationScheme text; ``{g}`` stands for the group size; "" for none.
        optional_input_scale: whether a missing ``input_scale`` means dynamic activations.
    """

    code: str
    granularity: str
    group: int = 0
    scale: str = ""
    second: bool = False
    activation: str = ""
    optional_input_scale: bool = False


_FP8_STATIC = "e4m3fn-tensor-f32-static"
_NVFP4 = "e2m1-g{g}-e4m3fn-tensor-static"

#: Spellings in files are of either case. W4A8_NVFP4_FP8 stores weight_scale_2 = amax / 448 where
#: the others store amax / 2688; its block scales are larger by as much, so the formula is one.
ALGORITHMS: dict[str, Algorithm] = {
    "FP8": Algorithm("e4m3fn", "tensor", scale="f32", activation=_FP8_STATIC),
    "FP8_PER_CHANNEL_PER_TOKEN": Algorithm(
        "e4m3fn", "channel", scale="f32", activation="e4m3fn-token-f32"
    ),
    "FP8_PB_WO": Algorithm("e4m3fn", "block", scale="f32"),
    "W8A16": Algorithm("s8", "channel"),
    "W8A8_SQ_PER_CHANNEL": Algorithm("s8", "channel", activation="s8-tensor-f32-static"),
    "W4A16_AWQ": Algorithm("s4", "group"),
    # The weight_scale_2 of W4A8_AWQ is no factor of the weight: engines divide by it before they
    # round int4 * weight_scale to e4m3.
    "W4A8_AWQ": Algorithm("s4", "group", activation=_FP8_STATIC),
    "NVFP4": Algorithm("e2m1", "group", 16, "e4m3fn", True, _NVFP4),
    "NVFP4_AWQ": Algorithm("e2m1", "group", 16, "e4m3fn", True, _NVFP4),
    "W4A16_NVFP4": Algorithm("e2m1", "group", 16, "e4m3fn", True),
    "W4A8_NVFP4_FP8": Algorithm("e2m1", "group", 32, "e4m3fn", True, _FP8_STATIC),
    "W4A8_MXFP4_FP8": Algorithm(
        "e2m1", "group", 32, "e8m0", activation=_FP8_STATIC, optional_input_scale=True
    ),
    "MXFP8": Algorithm("e4m3fn", "group", 32, "e8m0", activation="e4m3fn-g{g}-e8m0"),
}

#: Algorithms that are known and can't be read, with the reason.
_REFUSED = {
    "NVFP4_SVD": "its layers add a low-rank product (svdquant_lora_a, svdquant_lora_b)",
    "MXFP4": "its files do not say whether activations are quantized",
}
_MIXED = "MIXED_PRECISION"


@dataclass(frozen=True)
class LayerRule:
    """What the config says of one layer.

    Attributes:
        name: of the algorithm, upper case.
        algorithm: its row.
        group: inputs per scale; 0 if there are no groups, or the config does not say.
        activation: ActivationScheme text, "" for none; not static if the config says dynamic.
    """

    name: str
    algorithm: Algorithm
    group: int
    activation: str


class ModelOptConfig:
    """The ``quantization`` object of hf_quant_config.json, or its twin in config.json."""

    def __init__(self, config: Mapping[str, Any], path: object) -> None:
        """Read `config`.

        Raises:
            CheckpointError: a key has the wrong type, or ``quant_algo`` is unknown.
        """
        self._path = path
        self._groups = self._config_groups(config)
        inner = config.get("quantization", config)
        if not isinstance(inner, dict):
            raise self._error("quantization", inner, "an object")
        if "quant_algo" not in inner:
            raise self._error("quant_algo", None, "the name of an algorithm")
        self._common: Mapping[str, Any] = inner
        self.excluded = tuple(self._strings(inner))
        self.layers: Mapping[str, Mapping[str, Any]] = {}
        self._algo = self._algo_name(inner)
        if self._algo == _MIXED:
            self.layers = self._quantized_layers(inner)
        elif self._algo:
            self._row(self._algo)

    def rule(self, layer: str) -> LayerRule | None:
        """What applies to a layer; None: it is not quantized.

        Raises:
            CheckpointError: an unknown algorithm or a malformed group size.
        """
        if self.exclusion(layer) is not None or not self._algo:
            return None
        settings = self._common
        if self._algo == _MIXED:
            entry = self._entry(layer)
            if entry is None:
                return None
            settings = self.layers[entry]
        name = self._algo_name(settings)
        if not name:
            return None
        row = self._row(name)
        if settings.get("has_zero_point"):
            raise self._error("has_zero_point", True, f"false: {name} stores no zero points")
        weights, inputs = self._group_of(layer)
        given = settings.get("group_size") or weights.get("group_size")
        group = self._group_size(given, row.group) if row.granularity == "group" else 0
        activation = row.activation.format(g=group)
        if inputs.get("dynamic") is True:
            activation = activation.removesuffix("-static")
        return LayerRule(name, row, group, activation)

    def exclusion(self, layer: str) -> str | None:
        """The entry of the exclude list that covers a layer."""
        return next((e for e in self.excluded if matches(layer, e)), None)

    def unused_entries(self, layers: Iterable[str]) -> list[str]:
        """Entries of ``quantized_layers`` that say something of none of `layers`."""
        used = {self._entry(layer) for layer in layers}
        return [
            name
            for name, settings in self.layers.items()
            if name not in used and self._algo_name(settings)
        ]

    def _entry(self, layer: str) -> str | None:
        """Key of ``quantized_layers`` for a layer: itself, its nearest parent, or a pattern."""
        for name in _parents(layer):
            if name in self.layers:
                return name
        return next((e for e in self.layers if "*" in e and matches(layer, e)), None)

    def _row(self, name: str) -> Algorithm:
        if name in _REFUSED:
            raise CheckpointError(
                f"quant_algo {name} can't be read: {_REFUSED[name]}", path=self._path
            )
        if name not in ALGORITHMS:
            known = ", ".join([*ALGORITHMS, _MIXED])
            raise self._error("quant_algo", name, f"one of {known}")
        return ALGORITHMS[name]

    def _algo_name(self, settings: Mapping[str, Any]) -> str:
        value = settings.get("quant_algo")
        if value is not None and not isinstance(value, str):
            raise self._error("quant_algo", value, "a string")
        return (value or "").upper()

    def _group_size(self, value: object, default: int) -> int:
        if value is None or value == 0:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._error("group_size", value, "a positive integer")
        return value

    def _quantized_layers(self, inner: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        layers = inner.get("quantized_layers")
        if not isinstance(layers, dict) or not layers:
            raise self._error(
                "quantized_layers", layers, f"an object, since quant_algo is {_MIXED}"
            )
        for name, settings in layers.items():
            if not isinstance(settings, dict) or "quant_algo" not in settings:
                raise self._error(f"quantized_layers.{name}", settings, "an object with quant_algo")
            algo = self._algo_name(settings)
            if algo:
                self._row(algo)
        return layers

    def _strings(self, inner: Mapping[str, Any]) -> Iterator[str]:
        for key in ("exclude_modules", "ignore"):
            entries = inner.get(key) or []
            if not isinstance(entries, list) or not all(isinstance(e, str) for e in entries):
                raise self._error(key, entries, "a list of strings")
            yield from entries

    def _config_groups(self, config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        groups = config.get("config_groups") or {}
        if not isinstance(groups, dict) or not all(isinstance(g, dict) for g in groups.values()):
            raise self._error("config_groups", groups, "an object of objects")
        return list(groups.values())

    def _group_of(self, layer: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """``weights`` and ``input_activations`` of the config group of a layer, {} if none."""
        for group in self._groups:
            targets = group.get("targets") or []
            if "Linear" in targets or any(name in targets for name in _parents(layer)):
                return group.get("weights") or {}, group.get("input_activations") or {}
        return {}, {}

    def _error(self, key: str, value: object, expected: str) -> CheckpointError:
        return CheckpointError(
            f"ModelOpt config: {key}={value!r}, expected {expected}", path=self._path
        )


def _parents(layer: str) -> Iterator[str]:
    """The name of a layer and of all modules around it, innermost first."""
    while layer:
        yield layer
        layer = layer.rpartition(".")[0]
