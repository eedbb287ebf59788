"""Checkpoints that exist in memory only: tensors by name and a config, as a loader gets them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from humming.checkpoints.base import CheckpointLoader, Source
from humming.checkpoints.store import SafetensorsStore, TensorInfo
from humming.errors import CheckpointError

FIXTURES = Path(__file__).parent.parent / "fixtures"
LoaderType = TypeVar("LoaderType", bound=CheckpointLoader)
_DTYPES = {
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
}
if hasattr(torch, "float4_e2m1fn_x2"):  # since torch 2.8
    _DTYPES[torch.float4_e2m1fn_x2] = "F4"


class MemoryStore:
    """A TensorStore over a dict; remembers which tensors were read."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors = dict(tensors)
        self.read: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def info(self, name: str) -> TensorInfo:
        tensor = self.tensors[name]
        shape = tuple(tensor.shape)
        if _DTYPES[tensor.dtype] == "F4":  # a header counts codes, torch pairs of them
            shape = (*shape[:-1], 2 * shape[-1])
        return TensorInfo(_DTYPES[tensor.dtype], shape)

    def get(self, name: str) -> torch.Tensor:
        if name not in self.tensors:
            raise CheckpointError("missing from the checkpoint", tensor=name)
        self.read.append(name)
        return self.tensors[name]


def memory_loader(
    kind: type[LoaderType],
    tensors: Mapping[str, torch.Tensor],
    config: Mapping[str, Any],
    model_config: Mapping[str, Any] | None = None,
) -> LoaderType:
    """A loader of class `kind` over tensors and a quantization config."""
    source = Source(
        path=Path("somewhere"),
        store=MemoryStore(tensors),
        quant_config=config,
        model_config=model_config or {},
    )
    return kind(source)


def fixture_loader(kind: type[LoaderType], folder: str) -> LoaderType:
    """A loader over ``tests/fixtures/FOLDER``."""
    path = FIXTURES / folder
    config = json.loads((path / "config.json").read_text())
    quant_config = config.pop("quantization_config")
    store = SafetensorsStore({path / "model.safetensors": None})
    return kind(Source(path=path, store=store, quant_config=quant_config, model_config=config))


def fixture_expected(folder: str) -> dict[str, torch.Tensor]:
    """The weights that the real tool reads from a fixture, by tensor name."""
    store = SafetensorsStore({FIXTURES / folder / "expected.safetensors": None})
    return {name: store.get(name) for name in store}
