"""AWQ checkpoints, as AutoAWQ, GPTQModel and AutoRound write them.

A layer [N, K] in groups of g inputs is, in the two layouts that are read here::

              gemm                      gemv
    qweight   int32 [K, N * b / 32]     int32 [N, K * b / 32]
    qzeros    int32 [K / g, N * b / 32] int32 [N, Z], K / g zero points and padding
    scales    float [K / g, N]          float [N, Z * 32 / b], K / g scales and padding

gemm packs along N, and in each eight outputs puts 0, 2, 4, 6, 1, 3, 5, 7 from the low end up, in
zero points as in codes; gemv packs along the inputs in plain order. A zero point is stored as it
is: value = (code - zero) * scale. Without zero points it is 2^(b-1).

AWQ proper has 4 bits. AutoRound packs 5, 6 and 7 likewise, as a bit stream of reordered codes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from humming.checkpoints.base import CheckpointLoader, LayerPlan, matches
from humming.checkpoints.gptq import FLOAT_SCALES, check_bias, integer_scheme
from humming.checkpoints.overrides import Settings
from humming.checkpoints.scales import finite_scales, scale_format
from humming.checkpoints.store import TensorInfo
from humming.checkpoints.words import AWQ_ORDER, dense_words, unpack_words
from humming.errors import CheckpointError
from humming.packing import pack
from humming.weight import CanonicalWeight

__all__ = ["AwqFormat", "AwqLoader", "load_layer", "plan_layer"]

_SUFFIXES = ("qweight", "qzeros", "scales", "bias")
#: Position in the word of each of eight outputs: the inverse of AWQ_ORDER.
_FIELD_OF = tuple(sorted(range(8), key=AWQ_ORDER.__getitem__))


@dataclass(frozen=True, kw_only=True)
class AwqFormat:
    """How the tensors of one layer are to be read.

    Attributes:
        bits: width of a code.
        group_size: inputs per scale, 0 for one scale per output.
        zero_point: whether zero points differ from 2^(bits - 1).
        gemv: which of the two layouts.
    """

    bits: int = 4
    group_size: int
    zero_point: bool
    gemv: bool = False


class AwqLoader(CheckpointLoader):
    """``quant_method: awq``; every layer that has a ``qweight``."""

    quant_methods = ("awq",)

    def plan(self) -> list[LayerPlan]:
        """All quantized layers."""
        settings = Settings(self.config, self.source.path)
        fmt = _format(settings)
        excluded = settings.names("modules_to_not_convert")
        plans = []
        for name in self.layers_with("qweight"):
            entry = next((entry for entry in excluded if matches(name, entry)), None)
            if entry is not None:
                raise CheckpointError(
                    f"modules_to_not_convert has {entry!r}, but the layer is quantized in the file",
                    tensor=f"{name}.qweight",
                )
            plans.append(plan_layer(self, name, fmt))
        return plans

    def load(self, plan: LayerPlan) -> CanonicalWeight:
        """Read one layer."""
        return load_layer(self, plan)


def _format(settings: Settings) -> AwqFormat:
    # quant_config.json, the old side file, has names of its own for two settings.
    bits, group = (
        new if settings.values.get(new) is not None else old
        for new, old in (("bits", "w_bit"), ("group_size", "q_group_size"))
    )
    settings.refuse("rotation", why="activations would have to be rotated too")
    settings.choice(bits, (4,))
    labels = {
        settings.get(key, str).lower()
        for key in ("version", "format", "checkpoint_format")
        if settings.values.get(key) is not None
    }
    label = labels.pop() if labels else "gemm"
    if labels or label not in ("gemm", "gemv"):
        found = " and ".join(sorted({label, *labels}))
        raise CheckpointError(
            f"quantization config: version {found} is not supported, expected gemm or gemv",
            path=settings.path,
        )
    return AwqFormat(
        group_size=settings.group_size(group),
        zero_point=settings.get("zero_point", bool, True),
        gemv=label == "gemv",
    )


def plan_layer(loader: CheckpointLoader, name: str, fmt: AwqFormat) -> LayerPlan:
    """Plan one layer from the headers of its tensors.

    Raises:
        CheckpointError: a tensor is missing, or has another shape than the format asks for.
    """
    qweight = loader.info(f"{name}.qweight", "I32", dims=2)
    scales = loader.info(f"{name}.scales", dims=2)
    scale = scale_format(f"{name}.scales", scales, *FLOAT_SCALES)
    if fmt.gemv:
        n, k = qweight.shape[0], qweight.shape[1] * 32 // fmt.bits
    else:
        n, k = scales.shape[1], qweight.shape[0]
        _check_shape(f"{name}.qweight", qweight, (k, dense_words(n, fmt.bits)))
    group = fmt.group_size or max(k, 1)
    if n % 8 or k % group:
        raise CheckpointError(
            f"found N={n}, K={k}; expected N in eights and K in groups of {group}",
            tensor=f"{name}.qweight",
        )
    zeros = f"{name}.qzeros"
    present = zeros in loader.store
    if fmt.zero_point and not present:
        raise CheckpointError("missing, but zero_point is true", tensor=zeros)
    groups = k // group
    if fmt.gemv:
        per_word = 32 // fmt.bits
        width = scales.shape[1] // per_word
        if width < -(-groups // per_word):
            raise CheckpointError(
                f"expected [{n}, {groups} and padding], found {scales}", tensor=f"{name}.scales"
            )
        shapes = (n, width * per_word), (n, width)
    else:
        shapes = (groups, n), (groups, dense_words(n, fmt.bits))
    _check_shape(f"{name}.scales", scales, shapes[0])
    if present:
        _check_shape(zeros, loader.info(zeros, "I32"), shapes[1])
    return LayerPlan(
        name=name,
        n=n,
        k=k,
        scheme=integer_scheme(fmt.bits, fmt.group_size, scale, zeros=fmt.zero_point),
        tensors=loader.present(name, *_SUFFIXES),
        bias=check_bias(loader, name, n),
        detail=fmt,
    )


def _check_shape(tensor: str, found: TensorInfo, shape: tuple[int, int]) -> None:
    if found.shape != shape:
        raise CheckpointError(f"expected {list(shape)}, found {found}", tensor=tensor)


def load_layer(loader: CheckpointLoader, plan: LayerPlan) -> CanonicalWeight:
    """Read a layer that :func:`plan_layer` planned.

    Raises:
        CheckpointError: ``zero_point`` is false, but other zero points than 2^(b-1) are stored.
    """
    fmt: AwqFormat = plan.detail
    name = f"{plan.name}.scales"
    scales = finite_scales(name, loader.tensor(name), plan.scheme.scale)
    groups = plan.k // (fmt.group_size or max(plan.k, 1))
    if fmt.gemv:
        codes = unpack_words(loader.tensor(f"{plan.name}.qweight"), fmt.bits, plan.k)
        scales = scales[:, :groups]
    else:
        codes = _unpack_outputs(loader, f"{plan.name}.qweight", plan)
        scales = scales.t()
    return CanonicalWeight(
        scheme=plan.scheme,
        n=plan.n,
        k=plan.k,
        packed=pack(codes, fmt.bits),
        scales=scales.contiguous(),
        zeros=_zero_points(loader, plan, groups),
        bias=loader.tensor(f"{plan.name}.bias") if plan.bias else None,
    )


def _unpack_outputs(loader: CheckpointLoader, tensor: str, plan: LayerPlan) -> torch.Tensor:
    """uint8 [N, rows] of words that hold the outputs of each row in AWQ's order."""
    stored = unpack_words(loader.tensor(tensor), plan.detail.bits, plan.n)
    ordered: torch.Tensor = stored.unflatten(-1, (-1, 8))[..., list(_FIELD_OF)].flatten(-2)
    return ordered.t().contiguous()


def _zero_points(loader: CheckpointLoader, plan: LayerPlan, groups: int) -> torch.Tensor | None:
    """uint8 [N, K / g], or None for a layer without."""
    tensor = f"{plan.name}.qzeros"
    if tensor not in plan.tensors:
        return None
    fmt: AwqFormat = plan.detail
    if fmt.gemv:
        words = loader.tensor(tensor)
        zeros = unpack_words(words, fmt.bits, words.shape[1] * 32 // fmt.bits)[:, :groups]
    else:
        zeros = _unpack_outputs(loader, tensor, plan)
    if fmt.zero_point:
        return zeros.contiguous()
    middle = 1 << (fmt.bits - 1)
    if bool((zeros != middle).any()):
        raise CheckpointError(
            f"zero_point is false, so every zero point is {middle}, but {int(zeros.min())} to "
            f"{int(zeros.max())} are stored",
            tensor=tensor,
        )
    return None
