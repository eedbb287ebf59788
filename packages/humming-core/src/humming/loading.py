"""load_checkpoint(): find out what a path holds and hand it to the loader of its family."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from humming import plugins
from humming.checkpoints.base import Source
from humming.checkpoints.checkpoint import Checkpoint
from humming.checkpoints.gguf import open_gguf
from humming.checkpoints.store import SafetensorsStore, read_json, safetensors_files
from humming.errors import CheckpointError

__all__ = ["load_checkpoint"]

#: Files that hold a quantization config beside or instead of config.json, in order, and the
#: quant_method that they mean where they do not say it themselves.
_SIDE_FILES = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
    "quantization_config.json": "",
}
#: Keys that only one family uses, for a config that names no quant_method.
_TELLING_KEYS = {"w_bit": "awq", "quant_algo": "modelopt"}


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Open a checkpoint: a Hugging Face directory, a safetensors file or a GGUF file.

    Only headers and configs are read. The result maps names of quantized layers to
    :class:`CanonicalWeight`, and reads a layer when it is asked for.

    Raises:
        CheckpointError: the files are damaged, disagree with each other or with the config,
            or no installed loader knows the family.
    """
    path = Path(path)
    source = _open(path)
    method = str(source.quant_config.get("quant_method", "")).lower()
    if not source.quant_config:
        return Checkpoint(source, None, "unquantized")
    loaders = plugins.loaders()
    if method not in loaders:
        known = ", ".join(sorted(loaders))
        raise CheckpointError(f"quant_method {method!r} is none of {known}", path=path)
    return Checkpoint(source, loaders[method](source), method)


def _open(path: Path) -> Source:
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"))
        if ggufs and not any(path.glob("*.safetensors")):
            if len(ggufs) > 1:
                names = ", ".join(p.name for p in ggufs)
                raise CheckpointError(f"several GGUF files, name one: {names}", path=path)
            return open_gguf(ggufs[0])
        return _source(path, path, SafetensorsStore(safetensors_files(path)))
    if not path.is_file():
        raise CheckpointError("no such file or directory", path=path)
    with path.open("rb") as file:
        if file.read(4) == b"GGUF":
            return open_gguf(path)
    return _source(path, path.parent, SafetensorsStore({path: None}))


def _source(path: Path, folder: Path, store: SafetensorsStore) -> Source:
    model_config = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    quant_config: Any = _take_quant_config(model_config)
    if "humming" in store.metadata:
        quant_config = _parsed(store.metadata["humming"], path)
    method = quant_config.get("quant_method") if isinstance(quant_config, dict) else None
    for file, default in _SIDE_FILES.items():
        side = folder / file
        # ModelOpt's own file says more than its twin in config.json (per-layer mixes).
        better = method is not None and file == "hf_quant_config.json" and method == default
        if (quant_config and not better) or not side.exists():
            continue
        quant_config = {"quant_method": default, **read_json(side)}
    if quant_config is not None and not isinstance(quant_config, dict):
        raise CheckpointError("quantization_config is no JSON object", path=folder)
    if quant_config and "quant_method" not in quant_config:
        telling = [method for key, method in _TELLING_KEYS.items() if key in quant_config]
        quant_config = {"quant_method": telling[0] if telling else "", **quant_config}
    return Source(
        path=path,
        store=store,
        quant_config=quant_config or {},
        model_config=model_config,
        metadata=store.metadata,
    )


def _take_quant_config(model_config: dict[str, Any]) -> Any:
    """Remove the quantization config from a config.json and return it; None if there is none.

    Multi-modal models may keep it under the config of their language model.
    """
    for holder in (model_config, model_config.get("text_config")):
        if isinstance(holder, dict):
            for key in ("quantization_config", "compression_config"):
                found = holder.pop(key, None)
                if found:
                    return found
    return None


def _parsed(text: str, path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"humming metadata is no JSON: {error}", path=path) from None
    if not isinstance(value, dict):
        raise CheckpointError("humming metadata is no JSON object", path=path)
    return value
