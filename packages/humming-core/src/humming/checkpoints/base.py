"""What a checkpoint loader is, and what it works on."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from humming.checkpoints.store import TensorInfo, TensorStore
from humming.errors import CheckpointError
from humming.formats.activation import ActivationScheme
from humming.formats.scheme import WeightScheme
from humming.weight import CanonicalWeight

__all__ = ["CheckpointLoader", "LayerPlan", "Source", "matches", "split_name"]


@dataclass(frozen=True, kw_only=True)
class Source:
    """An opened checkpoint before anyone has interpreted it.

    Attributes:
        path: what the user named.
        store: its tensors.
        quant_config: the quantization config, wherever it was found ({} if there is none).
        model_config: the rest of config.json ({} if there is none).
        metadata: free-form strings from the file headers.
    """

    path: Path
    store: TensorStore
    quant_config: Mapping[str, Any] = field(default_factory=dict)
    model_config: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """One quantized layer as headers and config describe it; nothing has been read yet.

    Attributes:
        name: the layer's name in the checkpoint, without a tensor suffix.
        n: output features.
        k: input features.
        experts: E for a stacked tensor of experts, else 0.
        scheme: what the weight will be.
        activation: what the checkpoint wants of activations; None: nothing.
        tensors: names of all tensors that belong to the layer, each once.
        bias: whether there is one.
        act_order: whether columns are permuted.
        detail: what the loader needs to remember; never shown.
    """

    name: str
    n: int
    k: int
    experts: int = 0
    scheme: WeightScheme
    activation: ActivationScheme | None = None
    tensors: tuple[str, ...]
    bias: bool = False
    act_order: bool = False
    detail: Any = None


class CheckpointLoader(ABC):
    """Reads one family of checkpoints; found through its `quant_methods`.

    A loader makes :meth:`plan` from names, headers and config alone, and reads tensors only in
    :meth:`load`. It names every tensor it understands in a plan: what is left over and looks
    like part of a quantized layer is an error, raised by :class:`Checkpoint`.
    """

    #: The ``quant_method`` strings of this family, lower case.
    quant_methods: ClassVar[tuple[str, ...]]

    def __init__(self, source: Source) -> None:
        self.source = source
        self.store = source.store
        self.config = source.quant_config

    @abstractmethod
    def plan(self) -> Iterable[LayerPlan]:
        """All quantized layers; raises CheckpointError for what does not add up."""

    @abstractmethod
    def load(self, plan: LayerPlan) -> CanonicalWeight:
        """Read one layer; raises CheckpointError, naming the tensor."""

    # -- helpers for subclasses -------------------------------------------------------------

    def layers_with(self, suffix: str) -> list[str]:
        """Names of all layers that have a tensor ``<layer>.<suffix>``, in file order."""
        end = f".{suffix}"
        return [name[: -len(end)] for name in self.store if name.endswith(end)]

    def present(self, layer: str, *suffixes: str) -> tuple[str, ...]:
        """Those of ``<layer>.<suffix>`` that exist."""
        names = (f"{layer}.{suffix}" for suffix in suffixes)
        return tuple(name for name in names if name in self.store)

    def info(self, name: str, *dtypes: str, dims: int | None = None) -> TensorInfo:
        """Header of a tensor that must exist, with one of `dtypes` and `dims` dimensions."""
        if name not in self.store:
            raise CheckpointError("missing from the checkpoint", tensor=name)
        info = self.store.info(name)
        if dtypes and info.dtype not in dtypes:
            raise CheckpointError(f"expected {' or '.join(dtypes)}, found {info}", tensor=name)
        if dims is not None and len(info.shape) != dims:
            raise CheckpointError(f"expected {dims} dimensions, found {info}", tensor=name)
        return info

    def tensor(self, name: str, *shapes: tuple[int, ...]) -> torch.Tensor:
        """Read a tensor whose shape must be one of `shapes` (any, if none is given)."""
        found = self.info(name).shape
        if shapes and found not in shapes:
            wanted = " or ".join(str(list(shape)) for shape in shapes)
            raise CheckpointError(f"expected shape {wanted}, found {list(found)}", tensor=name)
        return self.store.get(name)

    def setting(self, key: str, kind: type | tuple[type, ...], *default: Any) -> Any:
        """``config[key]`` of type `kind`; the default if absent or null, else an error."""
        value = self.config.get(key)
        if value is None and default:
            return default[0]
        wrong_bool = isinstance(value, bool) and bool not in (
            kind if isinstance(kind, tuple) else (kind,)
        )
        if wrong_bool or not isinstance(value, kind):
            names = kind.__name__ if isinstance(kind, type) else "/".join(k.__name__ for k in kind)
            raise CheckpointError(
                f"quantization config: {key}={value!r}, expected {names}", path=self.source.path
            )
        return value


def split_name(tensor: str) -> tuple[str, str]:
    """``("model.layers.0.mlp.up_proj", "weight")`` of a dotted tensor name."""
    layer, _, suffix = tensor.rpartition(".")
    return layer, suffix


def matches(name: str, pattern: str) -> bool:
    """Whether a layer name is meant by one entry of a skip or target list.

    An entry is ``re:`` and a regular expression (matched from the start of the name, as
    compressed-tensors does), a glob with ``*``, or a dotted name. A dotted name means every
    module whose path has these components in a row (``lm_head``, ``mlp.gate``, ``layers.1``),
    so it covers what lies below it. It is never a substring: ``layers.1`` is not in
    ``layers.10``, nor ``gate`` in ``gate_proj``.

    Raises:
        CheckpointError: an invalid regular expression.
    """
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], name) is not None
        except re.error as error:
            raise CheckpointError(f"pattern {pattern!r}: {error}") from None
    if "*" in pattern:
        body = ".*".join(re.escape(part) for part in pattern.split("*"))
        return re.fullmatch(rf"{body}(\..*)?", name) is not None
    parts, wanted = name.split("."), pattern.strip(".").split(".")
    spans = range(len(parts) - len(wanted) + 1)
    return any(parts[i : i + len(wanted)] == wanted for i in spans)
