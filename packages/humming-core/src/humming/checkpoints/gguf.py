"""GGUF: a file of llama.cpp, or the parts of a split one, opened as a checkpoint.

A tensor ``blk.0.attn_q.weight`` of a storage type in
:data:`~humming.checkpoints.gguf_blocks.BLOCK_TYPES` is the layer ``blk.0.attn_q``, as a quantized
``token_embd.weight`` is the layer ``token_embd``. Tensors beside it:

``bias``         [N], [E, N] with experts
``scale``        [1], [E]: multiplies the product, so it is a second-level scale
``input_scale``  [1], [E]: what NVFP4 activations would be divided by; ggml itself ignores it

Storage types outside that table (IQ4_XS and the like) are in the store, by name and shape; only
reading one is refused. Rows stand as the file has them: in files of the ``llama`` architecture
the rows of attn_q and attn_k are ordered for rotary embeddings of neighbouring pairs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from humming.checkpoints.base import CheckpointLoader, LayerPlan, Source
from humming.checkpoints.gguf_blocks import BLOCK_TYPES
from humming.checkpoints.gguf_file import GgufFile
from humming.checkpoints.store import TensorInfo
from humming.errors import CheckpointError, UnsupportedError
from humming.formats.scheme import Second, WeightScheme
from humming.packing import pack
from humming.weight import CanonicalWeight

__all__ = ["GgufLoader", "GgufStore", "open_gguf"]

#: Storage types that are numbers as they stand.
_PLAIN = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}
_FLOATS = ("F32", "F16", "BF16")
_BESIDE = ("bias", "scale", "input_scale")
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_CODES_AT_ONCE = 1 << 22  # bounds what decoding needs beyond its result


class GgufStore:
    """The tensors of one or more GGUF files; ``info().dtype`` is ggml's name of the type."""

    def __init__(self, files: Sequence[GgufFile]) -> None:
        """Join `files`.

        Raises:
            CheckpointError: a name in two of them.
        """
        self._homes: dict[str, GgufFile] = {}
        for file in files:
            for name in file.tensors:
                if name in self._homes:
                    raise CheckpointError("found in two files", tensor=name, path=file.path)
                self._homes[name] = file

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __contains__(self, name: object) -> bool:
        return name in self._homes

    def __len__(self) -> int:
        return len(self._homes)

    def info(self, name: str) -> TensorInfo:
        """Type and shape of a tensor, row-major, without reading data."""
        tensor = self._home(name).tensors[name]
        return TensorInfo(tensor.type, tensor.shape)

    def get(self, name: str) -> torch.Tensor:
        """A copy of a tensor that is not quantized.

        Raises:
            CheckpointError: there is none of that name, or it is part of a quantized layer.
            UnsupportedError: its storage type has no standard form.
        """
        info = self.info(name)
        if info.dtype not in _PLAIN:
            raise self._refusal(name)
        flat = torch.from_numpy(self.rows(name).reshape(-1).copy())
        return flat.view(_PLAIN[info.dtype]).reshape(info.shape)

    def rows(self, name: str) -> npt.NDArray[np.uint8]:
        """Bytes [rows, bytes per row] as stored: a read-only view of the file."""
        return self._home(name).rows(name)

    def _home(self, name: str) -> GgufFile:
        if name not in self._homes:
            raise CheckpointError("missing from the checkpoint", tensor=name)
        return self._homes[name]

    def _refusal(self, name: str) -> CheckpointError | UnsupportedError:
        info = self.info(name)
        if info.dtype in BLOCK_TYPES:
            return CheckpointError(f"{info} is quantized, expected plain numbers", tensor=name)
        known = ", ".join((*BLOCK_TYPES, *_PLAIN))
        return UnsupportedError(f"tensor {name!r}: {info} is not supported; supported: {known}")


class GgufLoader(CheckpointLoader):
    """Block-quantized matrices, and stacks of them, of a GGUF file."""

    quant_methods: ClassVar[tuple[str, ...]] = ("gguf",)

    def __init__(self, source: Source) -> None:
        """Take a source that :func:`open_gguf` made.

        Raises:
            CheckpointError: the tensors lie in another kind of file.
        """
        super().__init__(source)
        if not isinstance(source.store, GgufStore):
            found = type(source.store).__name__
            raise CheckpointError(f"expected a GGUF file, found {found}", path=source.path)
        self.gguf = source.store

    def plan(self) -> Iterable[LayerPlan]:
        """Every matrix or stack of matrices of a supported block type.

        Raises:
            CheckpointError: something beside a matrix has an unknown name or a wrong shape.
        """
        plans: dict[str, LayerPlan] = {}
        beside = self._beside()
        for name in self.gguf:
            info = self.gguf.info(name)
            if info.dtype not in BLOCK_TYPES or len(info.shape) not in (2, 3):
                continue
            layer = name.removesuffix(".weight")
            if layer in plans:
                raise CheckpointError(f"would be a second layer {layer!r}", tensor=name)
            plans[layer] = self._plan(name, info, beside.get(layer, ()))
        return plans.values()

    def load(self, plan: LayerPlan) -> CanonicalWeight:
        """Read one layer."""
        name, *others = plan.tensors
        lead = (plan.experts,) if plan.experts else ()
        matrices = self._decode(name, plan)
        parts: dict[str, Any] = {
            part: tensor.reshape(*lead, plan.n, -1) for part, tensor in matrices.items()
        }
        for other in others:
            tensor = self.gguf.get(other)
            match other.rpartition(".")[2]:
                case "scale":
                    parts["second"] = tensor.reshape(*lead, 1, 1)
                case "input_scale":
                    parts["input_scale"] = tensor.reshape(lead)
                case _:
                    parts["bias"] = tensor
        return CanonicalWeight(
            scheme=plan.scheme, n=plan.n, k=plan.k, experts=plan.experts, **parts
        )

    def _beside(self) -> dict[str, list[str]]:
        """Layer name to the tensors that stand beside ``<layer>.weight``."""
        found: dict[str, list[str]] = {}
        for name in self.gguf:
            layer, _, suffix = name.rpartition(".")
            if suffix != "weight":
                found.setdefault(layer.removesuffix(".weight"), []).append(name)
        return found

    def _plan(self, name: str, info: TensorInfo, beside: Sequence[str]) -> LayerPlan:
        *lead, n, k = info.shape
        experts = lead[0] if lead else 0
        layer = name.removesuffix(".weight")
        each = (experts or 1,)  # a number for the layer, or one per expert
        shapes = {"bias": (*lead, n), "scale": each, "input_scale": each}
        found = []
        for other in beside:
            part = other.removeprefix(f"{layer}.")
            if part not in _BESIDE:
                expected = ", ".join(_BESIDE)
                problem = f"unknown part of quantized layer {layer!r}, expected {expected}"
                raise CheckpointError(problem, tensor=other)
            here = self.info(other, *(_FLOATS if part == "bias" else ("F32",)))
            if here.shape != shapes[part]:
                problem = f"expected shape {list(shapes[part])}, found {list(here.shape)}"
                raise CheckpointError(problem, tensor=other)
            found.append(part)
        return LayerPlan(
            name=layer,
            n=n,
            k=k,
            experts=experts,
            scheme=_scheme(info.dtype, "scale" in found),
            tensors=(name, *beside),
            bias="bias" in found,
        )

    def _decode(self, name: str, plan: LayerPlan) -> dict[str, torch.Tensor]:
        """packed [rows, ..], scales and zeros [rows, C] of all rows, a few rows at a time."""
        block = BLOCK_TYPES[self.gguf.info(name).dtype]
        rows = self.gguf.rows(name)
        step = max(1, _CODES_AT_ONCE // plan.k)
        pieces: dict[str, list[torch.Tensor]] = {"packed": [], "scales": [], "zeros": []}
        for start in range(0, len(rows), step):
            raw = torch.from_numpy(rows[start : start + step].copy())
            try:
                parts = block.decode(raw.reshape(len(raw), -1, block.nbytes))
            except CheckpointError as error:
                raise CheckpointError(str(error), tensor=name, path=self.source.path) from None
            pieces["packed"].append(pack(parts.codes.flatten(-2), plan.scheme.code.bits))
            pieces["scales"].append(parts.scales.flatten(-2))
            if parts.zeros is not None:
                pieces["zeros"].append(parts.zeros.flatten(-2))
        return {part: torch.cat(found) for part, found in pieces.items() if found}


def _scheme(type_name: str, scaled: bool) -> WeightScheme:
    scheme = BLOCK_TYPES[type_name].scheme
    return WeightScheme.parse(f"{scheme}-{Second.TENSOR.value}") if scaled else scheme


def open_gguf(path: Path | str) -> Source:
    """Open a GGUF file, or all parts of a split one if `path` names any of them.

    Returns:
        A source whose `model_config` is the file's key-value metadata, decoded key by key.

    Raises:
        CheckpointError: a file is not whole and well-formed, or a part is missing.
        UnsupportedError: the `gguf` package is not installed.
    """
    named = Path(path)
    files = _parts(GgufFile(named))
    return Source(
        path=named,
        store=GgufStore(files),
        quant_config={"quant_method": "gguf"},
        model_config=files[0].metadata,
    )


def _parts(file: GgufFile) -> list[GgufFile]:
    """The file itself, or all files of its split, the first first."""
    count = file.metadata.get("split.count", 0)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise CheckpointError(f"split.count={count!r}, expected a count", path=file.path)
    if count < 2:
        return [file]
    match = _PART.fullmatch(file.path.name)
    if not match or int(match["count"]) != count:
        problem = f"part of a split into {count}, expected a name NAME-00001-of-{count:05d}.gguf"
        raise CheckpointError(problem, path=file.path)
    files = []
    for number in range(count):
        path = file.path.with_name(f"{match['stem']}-{number + 1:05d}-of-{count:05d}.gguf")
        part = file if path == file.path else GgufFile(path)
        found = (part.metadata.get("split.no"), part.metadata.get("split.count"))
        if found != (number, count):
            raise CheckpointError(
                f"split.no and split.count are {found}, expected {(number, count)}", path=path
            )
        files.append(part)
    total = sum(len(part.tensors) for part in files)
    promised = files[0].metadata.get("split.tensors.count", total)
    if total != promised:
        raise CheckpointError(f"{promised} tensors promised, {total} found", path=files[0].path)
    return files
