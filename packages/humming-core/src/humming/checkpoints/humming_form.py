"""humming's own checkpoint form: the standard form written down as safetensors.

A layer is its tensors ``LAYER.FIELD`` (:data:`_FIELDS`) and one entry of a table
``{LAYER: {scheme, n, k, ...}}``. The table lies in ``quantization_config.layers`` of config.json
or, for a single file, as JSON in the file's metadata under "humming".
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file

from humming.checkpoints.base import CheckpointLoader, LayerPlan
from humming.errors import CheckpointError, ConfigError
from humming.formats.activation import ActivationScheme
from humming.formats.scheme import Second, WeightScheme, Zero
from humming.weight import CanonicalWeight

__all__ = ["FORM_VERSION", "HummingLoader", "save_checkpoint"]

FORM_VERSION = 1
_SHARD_BYTES = 4 << 30
_MAX_SIZE = 1 << 48

#: Field of CanonicalWeight to tensor suffix.
_FIELDS = {
    "packed": "weight_packed",
    "scales": "weight_scale",
    "zeros": "weight_zero_point",
    "second": "weight_scale_2",
    "bias": "bias",
    "permutation": "weight_permutation",
    "group_index": "weight_group_index",
    "pre_quant_scale": "pre_quant_scale",
    "input_scale": "input_scale",
}


class HummingLoader(CheckpointLoader):
    """Reads what :func:`save_checkpoint` writes."""

    quant_methods: ClassVar[tuple[str, ...]] = ("humming",)

    def plan(self) -> Iterable[LayerPlan]:
        """One plan per entry of the table."""
        version = self.setting("version", int)
        if version != FORM_VERSION:
            raise CheckpointError(
                f"humming form version {version}; this humming reads {FORM_VERSION}",
                path=self.source.path,
            )
        for name, entry in self.setting("layers", dict).items():
            yield self._plan(name, entry)

    def _plan(self, name: str, entry: Any) -> LayerPlan:
        known = {"scheme", "n", "k", "experts", "offset", "activation"}
        if not isinstance(entry, dict) or not {"scheme", "n", "k"} <= set(entry) <= known:
            raise CheckpointError(
                f"layer {name!r}: entry {entry!r}, expected keys scheme, n, k"
                f" and maybe experts, offset, activation",
                path=self.source.path,
            )
        offset = entry.get("offset", [0, 0])
        sizes = [entry["n"], entry["k"], entry.get("experts", 0)]
        sizes += offset if isinstance(offset, list) else [offset]
        if len(sizes) != 5 or not all(type(s) is int and 0 <= s < _MAX_SIZE for s in sizes):
            raise CheckpointError(
                f"layer {name!r}: sizes {sizes}, expected n, k, experts, offset as counts",
                path=self.source.path,
            )
        try:
            scheme = WeightScheme.parse(str(entry["scheme"]))
            asked = entry.get("activation")
            activation = None if asked is None else ActivationScheme.parse(str(asked))
        except ConfigError as error:
            raise CheckpointError(f"layer {name!r}: {error}", path=self.source.path) from error
        needed = ["packed", "scales"]
        needed += ["zeros"] * (scheme.zero is not Zero.NONE)
        needed += ["second"] * (scheme.second is not Second.NONE)
        present = {field for field, suffix in _FIELDS.items() if f"{name}.{suffix}" in self.store}
        return LayerPlan(
            name=name,
            n=sizes[0],
            k=sizes[1],
            experts=sizes[2],
            scheme=scheme,
            activation=activation,
            tensors=tuple(f"{name}.{_FIELDS[f]}" for f in _FIELDS if f in present | set(needed)),
            bias="bias" in present,
            act_order="permutation" in present,
            detail=(sizes[3], sizes[4]),
        )

    def load(self, plan: LayerPlan) -> CanonicalWeight:
        """Read the layer; CanonicalWeight itself checks shapes and dtypes."""
        suffixes = {suffix: field for field, suffix in _FIELDS.items()}
        tensors = {
            suffixes[name[len(plan.name) + 1 :]]: self.store.get(name) for name in plan.tensors
        }
        return CanonicalWeight(
            scheme=plan.scheme,
            n=plan.n,
            k=plan.k,
            experts=plan.experts,
            offset=plan.detail,
            activation=plan.activation,
            **tensors,
        )


def save_checkpoint(
    path: Path,
    layers: Mapping[str, CanonicalWeight],
    rest: Mapping[str, torch.Tensor],
    *,
    model_config: Mapping[str, Any] | None = None,
) -> Path:
    """Write layers, and other tensors as they are, in humming's form.

    Args:
        path: a new file ``*.safetensors``, or a new directory (sharded, with config.json).
        layers: name to weight; read one at a time, a shard is in memory at most.
        rest: full name to tensor.
        model_config: what else config.json should hold.

    Raises:
        CheckpointError: `path` exists, or two tensors would have one name.
    """
    if path.exists():
        raise CheckpointError("exists already; nothing was written", path=path)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        if path.suffix == ".safetensors":
            table: dict[str, Any] = {}
            tensors = dict(_named_tensors(layers, rest, table, path))
            written = scratch / path.name
            save_file(tensors, written, metadata={"humming": json.dumps(_config(table))})
            os.replace(written, path)
        else:
            _save_directory(scratch, layers, rest, model_config or {}, path)
            scratch.chmod(0o755)
            os.replace(scratch, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return path


def _config(table: Mapping[str, Any]) -> dict[str, Any]:
    return {"quant_method": "humming", "version": FORM_VERSION, "layers": dict(table)}


def _save_directory(
    folder: Path,
    layers: Mapping[str, CanonicalWeight],
    rest: Mapping[str, torch.Tensor],
    model_config: Mapping[str, Any],
    target: Path,
) -> None:
    table: dict[str, Any] = {}
    weight_map: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(_shards(_named_tensors(layers, rest, table, target)), 1):
        file = f"model-{number:05}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(shard, file))
        total += sum(_nbytes(t) for t in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    config = {k: v for k, v in model_config.items() if k != "quantization_config"}
    config["quantization_config"] = _config(table)
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def _named_tensors(
    layers: Mapping[str, CanonicalWeight],
    rest: Mapping[str, torch.Tensor],
    table: dict[str, Any],
    target: Path,
) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of everything; fills `table` on the way."""
    names: set[str] = set()
    for layer, weight in layers.items():
        table[layer] = _entry(weight)
        for field, tensor in weight.tensors():
            names.add(f"{layer}.{_FIELDS[field]}")
            # A copy: safetensors refuses tensors that share memory, as shards of one weight do.
            yield f"{layer}.{_FIELDS[field]}", tensor.detach().cpu().contiguous().clone()
    for name, tensor in rest.items():
        if name in names:
            raise CheckpointError("would be written twice", tensor=name, path=target)
        yield name, tensor.detach().cpu().contiguous().clone()


def _entry(weight: CanonicalWeight) -> dict[str, Any]:
    entry: dict[str, Any] = {"scheme": str(weight.scheme), "n": weight.n, "k": weight.k}
    if weight.experts:
        entry["experts"] = weight.experts
    if weight.offset != (0, 0):
        entry["offset"] = list(weight.offset)
    if weight.activation is not None:
        entry["activation"] = str(weight.activation)
    return entry


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _shards(
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> Iterator[dict[str, torch.Tensor]]:
    shard: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in tensors:
        if shard and size + _nbytes(tensor) > _SHARD_BYTES:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += _nbytes(tensor)
    yield shard
