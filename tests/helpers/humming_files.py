"""Small checkpoints on disk: tensors, an index, a config; and bytes of damaged files."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

INDEX = "model.safetensors.index.json"


def write_directory(
    folder: Path,
    shards: Mapping[str, Mapping[str, torch.Tensor]],
    config: Mapping[str, Any] | None = None,
    weight_map: Mapping[str, Any] | None = None,
) -> Path:
    """A Hugging Face directory: file name to tensors; an index unless there is just one file."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {}
    for file, tensors in shards.items():
        save_file(dict(tensors), folder / file, metadata={"format": "pt"})
        found.update(dict.fromkeys(tensors, file))
    if weight_map is not None or list(shards) != ["model.safetensors"]:
        write_json(folder / INDEX, {"weight_map": found if weight_map is None else weight_map})
    if config is not None:
        write_json(folder / "config.json", config)
    return folder


def write_json(path: Path, value: Any) -> Path:
    """`value` as JSON."""
    path.write_text(json.dumps(value))
    return path


def write_raw(path: Path, header: bytes, data: bytes = b"", length: int | None = None) -> Path:
    """A safetensors file with any header, telling any header length."""
    size = len(header) if length is None else length
    path.write_bytes(struct.pack("<Q", size) + header + data)
    return path


def entry(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, Any]:
    """One tensor of a safetensors header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}
