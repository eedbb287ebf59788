"""Checkpoint: a lazy mapping from layer names to CanonicalWeights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from humming.checkpoints.base import CheckpointLoader, LayerPlan, Source, split_name
from humming.checkpoints.humming_form import save_checkpoint
from humming.checkpoints.store import TensorInfo
from humming.errors import CheckpointError, ConfigError, UnsupportedError
from humming.fusing import fuse, stack_experts
from humming.weight import CanonicalWeight

__all__ = ["Checkpoint"]

#: Last name components that only tensors of quantized layers have, in any family. One that no
#: plan claims means that config and data disagree: an error, never a silent skip.
_QUANTIZED_SUFFIXES = frozenset(
    "qweight qzeros scales g_idx weight_packed weight_shape weight_scale weight_scale_inv "
    "weight_scale_2 scale_weight weight_zero_point weight_global_scale weight_g_idx input_scale "
    "scale_input input_global_scale activation_scale qscale_weight qscale_act pre_quant_scale "
    "weight_blocks weight_scales blocks".split()
)
#: The same where they are joined to a parameter's name: ``w1_weight_scale``, ``down_proj_blocks``.
_JOINED_SUFFIXES = tuple(f"_{suffix}" for suffix in sorted(_QUANTIZED_SUFFIXES))
#: Scales that belong to attention and its cache, not to a matrix product.
_CACHE_SUFFIXES = frozenset(
    "k_scale v_scale q_scale prob_scale kv_scale k_zero_point v_zero_point k_global_scale "
    "v_global_scale output_scale output_zero_point".split()
)
_FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
_EXPERT = re.compile(
    r"(?P<prefix>(?:.*\.)?experts)\.(?P<index>0|[1-9][0-9]{0,8})\.(?P<projection>.+)"
)


class Checkpoint(Mapping[str, CanonicalWeight]):
    """What :func:`humming.load_checkpoint` returns.

    ``checkpoint[name]`` reads one quantized layer; nothing else is read. Iteration, ``len`` and
    :meth:`plan` use headers only.

    Attributes:
        path: what was opened.
        family: name of the loader, ``"gptq"``.
        quant_config: the quantization config as found.
        model_config: config.json without it, or GGUF metadata.
        unquantized: name to header of every matrix that the checkpoint leaves unquantized, or
            that a GGUF file holds in a type that humming can't read.
    """

    def __init__(self, source: Source, loader: CheckpointLoader | None, family: str) -> None:
        self.path: Path = source.path
        self.family = family
        self.quant_config: Mapping[str, Any] = source.quant_config
        self.model_config: Mapping[str, Any] = source.model_config
        self._store = source.store
        self._loader = loader
        self._plans: dict[str, LayerPlan] = {}
        claimed: set[str] = set()
        for plan in loader.plan() if loader is not None else ():
            if plan.name in self._plans:
                raise CheckpointError(f"layer {plan.name!r} is described twice", path=self.path)
            for tensor in plan.tensors:
                if tensor not in self._store:
                    raise CheckpointError(
                        f"missing; layer {plan.name!r} needs it", tensor=tensor, path=self.path
                    )
            self._plans[plan.name] = plan
            claimed.update(plan.tensors)
        self._rest = {name: self._store.info(name) for name in self._store if name not in claimed}
        self._refuse_leftovers()
        self.unquantized: Mapping[str, TensorInfo] = {
            split_name(name)[0]: info
            for name, info in self._rest.items()
            if split_name(name)[1] == "weight" and len(info.shape) >= 2
        }

    def _refuse_leftovers(self) -> None:
        for name, info in self._rest.items():
            layer, suffix = split_name(name)
            if suffix in _CACHE_SUFFIXES:
                continue
            if _looks_quantized(suffix, info) and self.family != "gguf":
                about = f"the {self.family} config does not say that {layer!r} is quantized"
                if self._loader is None:
                    about = "there is no quantization config"
                elif layer in self._plans:
                    about = f"layer {layer!r} ({self._plans[layer].scheme}) has no use for it"
                raise CheckpointError(
                    f"{info} looks like part of a quantized layer, but {about}",
                    tensor=name,
                    path=self.path,
                )

    def __iter__(self) -> Iterator[str]:
        return iter(self._plans)

    def __len__(self) -> int:
        return len(self._plans)

    def __contains__(self, name: object) -> bool:
        return name in self._plans

    def plan(self, name: str) -> LayerPlan:
        """What headers and config say of a layer; reads nothing.

        Raises:
            KeyError: no quantized layer has that name; says whether it is left unquantized.
            UnsupportedError: it is quantized to a type that humming can't read.
        """
        if name in self._plans:
            return self._plans[name]
        info = self.unquantized.get(name)
        if info is not None and info.dtype not in _FLOATS:
            raise UnsupportedError(f"{name!r} is stored as {info.dtype}, which humming can't read")
        kind = "not in this checkpoint" if info is None else "left unquantized"
        raise KeyError(f"{name!r} is {kind}: {self.path}")

    def __getitem__(self, name: str) -> CanonicalWeight:
        """Read one layer.

        Raises:
            KeyError: no quantized layer has that name.
            CheckpointError: its tensors do not hold what headers and config promise.
        """
        plan = self.plan(name)
        assert self._loader is not None, "only a loader makes plans"
        try:
            weight = self._loader.load(plan)
            weight.check_values()
        except ConfigError as error:  # CanonicalWeight's own checks, in terms of the file
            raise CheckpointError(f"layer {name!r}: {error}", path=self.path) from error
        found = (weight.scheme, weight.n, weight.k, weight.experts, weight.bias is not None)
        promised = (plan.scheme, plan.n, plan.k, plan.experts, plan.bias)
        if found != promised:
            raise CheckpointError(
                f"layer {name!r} was planned as {_described(promised)}, "
                f"read as {_described(found)}",
                path=self.path,
            )
        return weight

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor of the checkpoint as it is stored, by its full name."""
        return self._store.get(name)

    def tensor_names(self) -> tuple[str, ...]:
        """Names of all tensors that belong to no quantized layer."""
        return tuple(self._rest)

    def fused(self, names: Sequence[str]) -> CanonicalWeight:
        """Read layers that share their input as one weight; see :func:`humming.fuse`.

        Raises:
            CheckpointError: only some of them are quantized.
        """
        plain = [name for name in names if name in self.unquantized]
        if plain and len(plain) < len(names):
            raise CheckpointError(
                f"{', '.join(plain)} is unquantized, the rest of {', '.join(names)} is not; "
                f"they can't be one weight",
                path=self.path,
            )
        return fuse([self[name] for name in names], names)

    def expert_groups(self) -> dict[tuple[str, str], list[str]]:
        """Layers named ``PREFIX.experts.INDEX.PROJECTION``, by (PREFIX.experts, PROJECTION).

        Raises:
            CheckpointError: an index is missing.
        """
        groups: dict[tuple[str, str], dict[int, str]] = {}
        for name in self._plans:
            match = _EXPERT.fullmatch(name)
            if match:
                key = (match["prefix"], match["projection"])
                groups.setdefault(key, {})[int(match["index"])] = name
        for (prefix, projection), members in groups.items():
            for index in range(len(members)):
                if index not in members:
                    raise CheckpointError(
                        f"{prefix}.{index}.{projection} is missing; experts up to "
                        f"{max(members)} are there",
                        path=self.path,
                    )
        return {key: [members[i] for i in sorted(members)] for key, members in groups.items()}

    def experts(self, prefix: str, projection: str) -> CanonicalWeight:
        """Read ``PREFIX.0.PROJECTION``, ``PREFIX.1.PROJECTION``, ... as one weight [E, N, K].

        Raises:
            KeyError: there are no such experts.
            CheckpointError: an index is missing.
        """
        names = self.expert_groups().get((prefix, projection))
        if names is None:
            raise KeyError(f"no quantized {prefix}.INDEX.{projection} in {self.path}")
        return stack_experts([self[name] for name in names], names)

    def save(self, path: str | Path) -> Path:
        """Write everything in humming's own form, which loads as it is; returns `path`.

        Args:
            path: a new ``.safetensors`` file, or a new directory. Appears whole or not at all.

        Raises:
            CheckpointError: `path` exists, or a layer can't be read.
        """
        rest = {name: self.tensor(name) for name in self._rest}
        return save_checkpoint(Path(path), self, rest, model_config=self.model_config)


def _looks_quantized(suffix: str, info: TensorInfo) -> bool:
    """Whether a tensor that no plan claims is codes or scales of a quantized layer.

    Not so in GGUF, where a type that humming can't read makes its layer unreadable, no more.
    """
    if suffix in _QUANTIZED_SUFFIXES or suffix.endswith(_JOINED_SUFFIXES):
        return True
    coded = info.dtype not in _FLOATS and len(info.shape) >= 2
    return coded and (suffix == "weight" or info.dtype.startswith(("F4", "F6", "F8")))


def _described(facts: tuple[Any, ...]) -> str:
    scheme, n, k, experts, bias = facts
    lead = f"{experts} x " if experts else ""
    return f"{scheme} {lead}[{n}, {k}]{' with bias' if bias else ''}"
