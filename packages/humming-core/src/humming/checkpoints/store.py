"""Tensors of a checkpoint by name, read from disk only when asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Protocol

import safetensors
import torch

from humming.errors import CheckpointError

__all__ = ["SafetensorsStore", "TensorInfo", "TensorStore", "read_json", "safetensors_files"]

_INDEX = "model.safetensors.index.json"
_MAX_JSON_BYTES = 256 << 20


@dataclass(frozen=True)
class TensorInfo:
    """What a file header says of one tensor.

    Attributes:
        dtype: the safetensors spelling: ``"F16"``, ``"I32"``, ``"F8_E4M3"``, ``"U8"``, ...
        shape: row-major.
    """

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


class TensorStore(Protocol):
    """Read-only tensors by name."""

    def __iter__(self) -> Iterator[str]:
        """Names of all tensors."""
        ...

    def __contains__(self, name: object) -> bool:
        """Whether there is a tensor of that name."""
        ...

    def info(self, name: str) -> TensorInfo:
        """dtype and shape from the header, without reading data."""
        ...

    def get(self, name: str) -> torch.Tensor:
        """The tensor; raises CheckpointError if there is none."""
        ...


class SafetensorsStore:
    """One or more safetensors files, memory-mapped; only headers are read at first."""

    def __init__(self, files: Mapping[Path, frozenset[str] | None]) -> None:
        """Open `files`: path to the names that an index promises in it (None: no index).

        Raises:
            CheckpointError: a damaged file, a name twice, or a promise that a file breaks.
        """
        self._handles: dict[str, Any] = {}
        self._info: dict[str, TensorInfo] = {}
        self.metadata: dict[str, str] = {}
        for path, promised in files.items():
            try:
                handle = safetensors.safe_open(str(path), framework="pt")
                names = set(handle.keys())
            except (OSError, ValueError, safetensors.SafetensorError) as error:
                raise CheckpointError(f"not a whole safetensors file: {error}", path=path) from None
            self.metadata.update(handle.metadata() or {})
            missing = sorted((promised or frozenset()) - names)
            if missing:
                raise CheckpointError("promised by the index, not in the file",
                                      tensor=missing[0], path=path)  # fmt: skip
            for name in sorted(names):
                if name in self._handles:
                    raise CheckpointError("found in two files", tensor=name, path=path)
                self._handles[name] = handle

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __contains__(self, name: object) -> bool:
        return name in self._handles

    def __len__(self) -> int:
        return len(self._handles)

    def info(self, name: str) -> TensorInfo:
        """dtype and shape from the header, without reading data."""
        if name not in self._info:
            view = self._handle(name).get_slice(name)
            self._info[name] = TensorInfo(str(view.get_dtype()), tuple(view.get_shape()))
        return self._info[name]

    def get(self, name: str) -> torch.Tensor:
        """The tensor, memory-mapped where the platform allows."""
        try:
            tensor: torch.Tensor = self._handle(name).get_tensor(name)
        except (OSError, ValueError, safetensors.SafetensorError) as error:
            raise CheckpointError(f"can't be read: {error}", tensor=name) from None
        return tensor

    def _handle(self, name: str) -> Any:
        if name not in self._handles:
            raise CheckpointError("missing from the checkpoint", tensor=name)
        return self._handles[name]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from `path`.

    Raises:
        CheckpointError: not a JSON object, or absurdly large.
    """
    try:
        if not path.is_file():  # a device or a pipe would never end
            raise CheckpointError("not a plain file", path=path)
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise CheckpointError(f"larger than {_MAX_JSON_BYTES >> 20} MiB", path=path)
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"not readable as JSON: {error}", path=path) from None
    if not isinstance(value, dict):
        raise CheckpointError("expected a JSON object", path=path)
    return value


def safetensors_files(directory: Path) -> dict[Path, frozenset[str] | None]:
    """The safetensors files of a Hugging Face directory, with what its index promises of each.

    Raises:
        CheckpointError: there is none, or the index names a file outside the directory.
    """
    index_path = directory / _INDEX
    if index_path.exists():
        weight_map = read_json(index_path).get("weight_map")
        if not isinstance(weight_map, dict) or not all(
            isinstance(v, str) for v in weight_map.values()
        ):
            raise CheckpointError("expected weight_map: {tensor: file}", path=index_path)
        by_file: dict[Path, set[str]] = {}
        for name, file in weight_map.items():
            by_file.setdefault(_inside(directory, file, index_path), set()).add(name)
        return {path: frozenset(names) for path, names in by_file.items()}
    single = directory / "model.safetensors"
    found = [single] if single.exists() else sorted(directory.glob("*.safetensors"))
    if not found:
        raise CheckpointError("no *.safetensors and no GGUF file here", path=directory)
    return {_inside(directory, path.name, directory): None for path in found}


def _inside(directory: Path, file: str, origin: Path) -> Path:
    """`file` as a path in `directory`; a link may lead only there or to a Hugging Face blob."""
    plain = PurePosixPath(file).name == file and PureWindowsPath(file).name == file
    if not plain or file in ("", ".", ".."):
        raise CheckpointError(f"{file!r} is not the plain name of a file", path=origin)
    path = directory / file
    try:
        target, is_file = path.resolve(), path.is_file()
    except (OSError, ValueError) as error:  # a NUL, a lone surrogate, 5000 characters
        raise CheckpointError(f"{file!r} names no file: {error}", path=origin) from None
    # The Hugging Face cache keeps snapshots/<commit>/<file> as links to ../../blobs/<hash>.
    homes = (directory.resolve(), directory.resolve().parent.parent / "blobs")
    if not any(target.is_relative_to(home) for home in homes):
        raise CheckpointError(f"{file!r} links to outside the directory", path=origin)
    if not is_file:
        raise CheckpointError(f"{file!r} is missing", path=origin)
    return path
