"""Reading one planned compressed-tensors layer into the standard form."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from humming.checkpoints.base import CheckpointLoader, LayerPlan
from humming.checkpoints.ct_args import QuantArgs
from humming.checkpoints.scales import finite_scalar, finite_scales
from humming.checkpoints.words import unpack_words, words_as_bytes
from humming.errors import CheckpointError
from humming.formats.scheme import Second, Zero
from humming.packing import pack, packed_bytes, unpack
from humming.weight import CanonicalWeight

__all__ = ["CtDetail", "read_layer"]


@dataclass(frozen=True, kw_only=True)
class CtDetail:
    """What a plan remembers for :func:`read_layer`.

    Attributes:
        args: of the weights.
        codes: name of the tensor with the codes.
        words: packing of the codes, "" if they are not in words.
        zero_words: packing of the zero points, "" if they are not in words.
    """

    args: QuantArgs
    codes: str
    words: str
    zero_words: str


def read_layer(loader: CheckpointLoader, plan: LayerPlan) -> CanonicalWeight:
    """The layer that `plan` describes.

    Raises:
        CheckpointError: data that contradicts the plan, naming the tensor.
    """
    detail: CtDetail = plan.detail
    layer, scheme = plan.name, plan.scheme
    lead = (plan.experts,) if plan.experts else ()
    name = f"{layer}.weight_scale"
    scales = finite_scales(name, loader.tensor(name), scheme.scale)
    blocks = (*lead, *scheme.granularity.scale_shape(plan.n, plan.k))
    permutation, group_index = _act_order(loader, plan)
    packed = _packed(loader, plan, permutation)
    second = None
    if scheme.second is not Second.NONE:
        second = _scalar(loader, f"{layer}.weight_global_scale", invert=True).reshape(1, 1)
    return CanonicalWeight(
        scheme=scheme,
        n=plan.n,
        k=plan.k,
        experts=plan.experts,
        packed=packed,
        # A scale per tensor is stored once, also for a stack of experts.
        scales=scales.expand(blocks).contiguous() if scales.numel() == 1 else scales,
        zeros=_zeros(loader, plan, detail, blocks),
        second=second,
        bias=loader.tensor(f"{layer}.bias") if plan.bias else None,
        permutation=permutation,
        group_index=group_index,
        activation=plan.activation,
        input_scale=_input_scale(loader, plan),
    )


def _scalar(loader: CheckpointLoader, name: str, *, invert: bool = False) -> torch.Tensor:
    return finite_scalar(name, loader.tensor(name), invert=invert)


def _packed(
    loader: CheckpointLoader, plan: LayerPlan, permutation: torch.Tensor | None
) -> torch.Tensor:
    detail: CtDetail = plan.detail
    stored, bits = loader.tensor(detail.codes), plan.scheme.code.bits
    if detail.words == "dense" and permutation is None:
        return words_as_bytes(stored)[..., : packed_bytes(plan.k, bits)]
    if detail.words:
        codes = unpack_words(stored, bits, plan.k, detail.words)
    elif stored.dtype == torch.uint8 and permutation is None:
        return stored  # FP4 and FP6 codes are packed as in the standard form
    elif stored.dtype == torch.uint8:
        codes = unpack(stored, bits, plan.k)
    else:
        codes = _single_codes(detail.codes, stored, plan)
    if permutation is not None:
        codes = codes[..., permutation.long()]
    return pack(codes, bits)


def _single_codes(name: str, stored: torch.Tensor, plan: LayerPlan) -> torch.Tensor:
    """Codes that the file keeps one in a byte: e4m3, int8, or narrower integers in int8."""
    code = plan.scheme.code
    if code.signed:
        return stored.view(torch.uint8)
    return _offset(name, stored, code.bits)


def _offset(name: str, stored: torch.Tensor, bits: int) -> torch.Tensor:
    """int8 numbers of `bits` bits as unsigned codes, 2^(bits - 1) added."""
    half = 1 << (bits - 1)
    low, high = (int(edge) for edge in torch.aminmax(stored)) if stored.numel() else (0, 0)
    if low < -half or high >= half:
        raise CheckpointError(
            f"values from {low} to {high}, expected {bits} bits: {-half} to {half - 1}", tensor=name
        )
    return (stored.to(torch.int16) + half).to(torch.uint8)


def _zeros(
    loader: CheckpointLoader, plan: LayerPlan, detail: CtDetail, blocks: tuple[int, ...]
) -> torch.Tensor | None:
    """Unsigned zero points [.., R, C]; None for a symmetric layer, whose file may hold zeros."""
    name = f"{plan.name}.weight_zero_point"
    if name not in plan.tensors:
        return None
    stored, bits = loader.tensor(name), detail.args.bits
    symmetric = plan.scheme.zero is Zero.NONE
    if symmetric and not detail.zero_words:
        if bool((stored.to(torch.float32) != 0).any()):
            raise CheckpointError("not all 0, but the config says symmetric", tensor=name)
        return None
    if detail.zero_words:
        expected = (*blocks[:-2], stored.shape[-2], blocks[-1])
        words = loader.tensor(name, expected).transpose(-1, -2).contiguous()
        zeros = unpack_words(words, bits, plan.n, detail.zero_words).transpose(-1, -2).contiguous()
    else:
        single = ((1,), ()) if detail.args.strategy == "tensor" else ()
        zeros = _offset(name, loader.tensor(name, blocks, *single), bits).expand(blocks)
    if not symmetric:
        return zeros
    if bool((zeros != 1 << (bits - 1)).any()):
        raise CheckpointError("not all 0, but the config says symmetric", tensor=name)
    return None


def _act_order(
    loader: CheckpointLoader, plan: LayerPlan
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Permutation and group index, each None where the plain order ``k // g`` holds."""
    name = f"{plan.name}.weight_g_idx"
    if name not in plan.tensors:
        return None, None
    index = loader.tensor(name).to(torch.int64)
    if bool((index == -1).any()):  # the tool's mark of an index that was never set
        return None, None
    group = plan.scheme.granularity.k
    columns = plan.scheme.granularity.scale_shape(plan.n, plan.k)[1]
    low, high = int(index.min()), int(index.max())
    if low < 0 or high >= columns:
        raise CheckpointError(
            f"groups from {low} to {high}, expected 0 to {columns - 1}", tensor=name
        )
    # Stable, so that columns of one group keep their order.
    groups, order = torch.sort(index, stable=True)
    position = torch.arange(plan.k)
    permutation = None if torch.equal(order, position) else order.to(torch.int32)
    regular = torch.equal(groups, position // group)
    return permutation, None if regular else groups.to(torch.int32)


def _input_scale(loader: CheckpointLoader, plan: LayerPlan) -> torch.Tensor | None:
    if plan.activation is None or not plan.activation.static:
        return None
    zero = f"{plan.name}.input_zero_point"
    if zero in plan.tensors and bool((loader.tensor(zero).to(torch.float32) != 0).any()):
        raise CheckpointError("not 0, but the config says symmetric", tensor=zero)
    divisor = bool(plan.activation.second)
    suffix = "input_global_scale" if divisor else "input_scale"
    value = _scalar(loader, f"{plan.name}.{suffix}", invert=divisor)
    return value.expand(plan.experts).clone() if plan.experts else value
