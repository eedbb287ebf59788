"""Which config group of compressed-tensors a layer belongs to, and how its files are laid out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from humming.checkpoints.ct_args import QuantArgs, checked_keys, config_error
from humming.errors import CheckpointError

__all__ = ["FORMATS", "CtConfig", "FileFormat", "Group"]

_GROUP_KEYS = frozenset(["targets", "weights", "input_activations", "output_activations", "format"])


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """Where one compression format keeps codes and scales.

    Attributes:
        codes: which codes it holds, as :attr:`QuantArgs.code` spells them.
        suffix: of the tensor with the codes.
        dtypes: safetensors dtypes of that tensor.
        scales: formats that the scales may have.
        group: the only group size it is defined for, 0 if any granularity will do.
    """

    codes: tuple[str, ...]
    suffix: str
    dtypes: tuple[str, ...]
    scales: tuple[str, ...] = ("f16", "bf16", "f32")
    group: int = 0


_INTS = tuple(f"int{bits}" for bits in range(1, 9))
FORMATS: Mapping[str, FileFormat] = {
    "pack-quantized": FileFormat(codes=_INTS, suffix="weight_packed", dtypes=("I32",)),
    "int-quantized": FileFormat(codes=_INTS, suffix="weight", dtypes=("I8",)),
    "float-quantized": FileFormat(codes=("float8",), suffix="weight", dtypes=("F8_E4M3",)),
    "naive-quantized": FileFormat(
        codes=(*_INTS, "float8"), suffix="weight", dtypes=("I8", "F8_E4M3")
    ),
    "nvfp4-pack-quantized": FileFormat(
        codes=("float4",), suffix="weight_packed", dtypes=("U8",), scales=("e4m3fn",), group=16
    ),
    "mxfp4-pack-quantized": FileFormat(
        codes=("float4",), suffix="weight_packed", dtypes=("U8",), scales=("e8m0",), group=32
    ),
    "mxfp6-pack-quantized": FileFormat(
        codes=("float6",), suffix="weight_packed", dtypes=("U8",), scales=("e8m0",), group=32
    ),
    "mxfp8-quantized": FileFormat(
        codes=("float8",), suffix="weight", dtypes=("F8_E4M3",), scales=("e8m0",), group=32
    ),
}
#: Nothing is compressed: weights are floats, to be rounded by whoever runs them.
_UNCOMPRESSED = ("dense", "fakequant")
_LEGACY = ("marlin-24", "sparse-bitmask", "sparse-24-bitmask")


@dataclass(frozen=True, kw_only=True)
class Group:
    """One config group.

    Attributes:
        name: its key in the config.
        targets: exact layer names, ``re:`` patterns and class names.
        weights: None if the group leaves weights alone.
        inputs: None if activations stay as they are.
        format: key of :data:`FORMATS`; "" if nothing is compressed.
    """

    name: str
    targets: tuple[str, ...]
    weights: QuantArgs | None
    inputs: QuantArgs | None
    format: str


@dataclass(frozen=True, kw_only=True)
class CtConfig:
    """The whole config.

    Attributes:
        groups: that have weights, in file order.
        ignore: like targets: what is left unquantized though a target names it.
        version: of compressed-tensors that wrote the file, () if unknown.
    """

    groups: tuple[Group, ...]
    ignore: tuple[str, ...]
    version: tuple[int, ...]

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> CtConfig:
        """Read the config.

        Raises:
            CheckpointError: malformed, or something that this loader would have to ignore.
        """
        overall = config.get("format") or "fakequant"
        _check_format(overall, "format", "mixed-precision")
        _refuse_transforms(config)
        raw = config.get("config_groups") or {}
        if not isinstance(raw, Mapping):
            raise config_error("config_groups", f"{raw!r}, expected an object")
        groups = tuple(
            group
            for name, value in raw.items()
            if (group := _group(str(name), value, overall)).weights is not None
        )
        seen: dict[str, str] = {}
        for group in groups:
            for target in group.targets:
                if target in seen:
                    where = f"config_groups.{group.name}.targets"
                    raise config_error(where, f"{target!r} is also a target of {seen[target]}")
                seen[target] = group.name
        ignore = _strings(config.get("ignore") or [], "ignore")
        return cls(groups=groups, ignore=ignore, version=_version(config.get("version")))

    def ignored_by(self, layer: str) -> str | None:
        """The entry of the ignore list that names this layer, if one does.

        Class names can't be decided from a file; the layers they spare have no scales.
        """
        if layer in self._ignored_names:
            return layer
        return next((p for p in self._ignored_patterns if _fits(p, layer)), None)

    def group_of(self, layer: str) -> Group | None:
        """The group whose targets name a layer, None if no group does.

        As in compressed-tensors an exact name wins over a pattern, and a pattern (in
        alphabetical order) over a class name.

        Raises:
            CheckpointError: it depends on a class name that a file does not tell.
        """
        by_target = self._by_target
        if layer in by_target:
            return by_target[layer]
        for pattern in self._patterns:
            if _fits(pattern, layer):
                return by_target[pattern]
        if "Embedding" in by_target and _looks_like_embedding(layer):
            return by_target["Embedding"]
        classes = {target: by_target[target] for target in self._classes}
        classes.pop("Embedding", None)
        for linear in ("Linear", "LinearBase"):
            # Subclasses of Linear that some other group names are the one ambiguity.
            if linear in classes and all(g is classes[linear] for g in classes.values()):
                return classes[linear]
        groups = {id(group): group for group in classes.values()}
        if len(groups) > 1:
            raise CheckpointError(
                f"layer {layer!r}: a file does not tell which of the classes "
                f"{', '.join(sorted(classes))} it is; config groups need layer names"
            )
        return next(iter(groups.values()), None)

    # Configs list thousands of names for thousands of layers: these are made once.

    @cached_property
    def _by_target(self) -> dict[str, Group]:
        return {target: group for group in self.groups for target in group.targets}

    @cached_property
    def _patterns(self) -> list[str]:
        return sorted(target for target in self._by_target if target.startswith("re:"))

    @cached_property
    def _classes(self) -> list[str]:
        return [target for target in self._by_target if target[:1].isupper()]

    @cached_property
    def _ignored_names(self) -> frozenset[str]:
        return frozenset(self.ignore)

    @cached_property
    def _ignored_patterns(self) -> list[str]:
        return [entry for entry in self.ignore if entry.startswith("re:")]

    def exact_targets(self) -> Iterable[tuple[str, Group]]:
        """(target, group) of the targets that are spelled like layer names."""
        for group in self.groups:
            for target in group.targets:
                if not target.startswith("re:") and not target[:1].isupper():
                    yield target, group


def _fits(pattern: str, layer: str) -> bool:
    """Whether ``re:PATTERN`` matches from the start of the name, as the tool has it."""
    try:
        return re.match(pattern[3:], layer) is not None
    except re.error as error:
        raise config_error(f"pattern {pattern!r}", str(error)) from None


def _looks_like_embedding(layer: str) -> bool:
    last = layer.rpartition(".")[2].lower()
    return "embed" in last or last == "wte"


def _group(name: str, value: Any, overall: str) -> Group:
    where = f"config_groups.{name}"
    if isinstance(value, list):
        raise config_error(where, "a preset by name; files hold the settings themselves")
    entry = checked_keys(value, where, _GROUP_KEYS)
    chosen = entry.get("format", overall)
    _check_format(chosen, f"{where}.format")
    weights = inputs = None
    if "weights" in entry:
        weights = QuantArgs.parse(entry["weights"], f"{where}.weights")
    if weights is not None and "output_activations" in entry:
        raise config_error(f"{where}.output_activations", "quantized outputs are not supported")
    if weights is not None and "input_activations" in entry:
        inputs = QuantArgs.parse(entry["input_activations"], f"{where}.input_activations")
    if weights is not None and chosen == "mixed-precision":
        raise config_error(f"{where}.format", "missing, and the overall format is mixed-precision")
    if weights is not None and chosen not in _UNCOMPRESSED:
        _check_codes(weights, chosen)
    return Group(
        name=name,
        targets=_strings(entry.get("targets", []), f"{where}.targets"),
        weights=weights,
        inputs=inputs,
        format="" if chosen in _UNCOMPRESSED else chosen,
    )


def _check_format(value: Any, where: str, *also: str) -> None:
    if value in _LEGACY:
        raise config_error(where, f"{value!r} is a legacy sparse format, which is not supported")
    if value not in (*FORMATS, *_UNCOMPRESSED, *also) and value != "mixed-precision":
        allowed = ", ".join((*FORMATS, *_UNCOMPRESSED, "mixed-precision"))
        raise config_error(where, f"{value!r}, expected one of {allowed}")


def _check_codes(args: QuantArgs, name: str) -> None:
    file = FORMATS[name]
    if args.code not in file.codes:
        codes = ", ".join(file.codes)
        raise config_error(args.where, f"{args.code} in format {name!r}, which holds {codes}")
    if file.group and args.group != file.group:
        found = args.group or args.strategy
        raise config_error(
            f"{args.where}.group_size", f"{found} in format {name!r}, expected {file.group}"
        )
    if args.dynamic:
        raise config_error(f"{args.where}.dynamic", "weights are stored, not dynamic")
    if args.strategy == "token":
        raise config_error(f"{args.where}.strategy", "'token' is for activations")
    if args.is_float and not args.symmetric:
        raise config_error(f"{args.where}.symmetric", "false with float codes is not supported")
    if args.strategy == "tensor_group" and args.code != "float4":
        raise config_error(f"{args.where}.strategy", "'tensor_group' is for float4 weights")


def _refuse_transforms(config: Mapping[str, Any]) -> None:
    sparsity = config.get("sparsity_config") or {}
    if not isinstance(sparsity, Mapping) or sparsity.get("format", "dense") != "dense":
        found = sparsity.get("format") if isinstance(sparsity, Mapping) else sparsity
        raise config_error("sparsity_config", f"{found!r}: sparse weights are not supported")
    transforms = config.get("transform_config") or {}
    if not isinstance(transforms, Mapping) or transforms.get("config_groups"):
        raise config_error("transform_config", "transformed activations are not supported")


def _strings(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise config_error(where, f"{value!r}, expected a list of names")
    return tuple(value)


def _version(value: Any) -> tuple[int, ...]:
    """``(0, 18, 0)`` of ``"0.18.0.a2"``; () of anything else."""
    match = re.match(r"[0-9]+(\.[0-9]+)*", value) if isinstance(value, str) else None
    return tuple(int(part) for part in match[0].split(".")) if match else ()
