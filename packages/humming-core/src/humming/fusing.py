"""Several weights as one: fused projections (q/k/v, gate/up) and stacked experts.

Nothing is rounded: what can't be joined exactly is refused by name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from humming.blocks import spread
from humming.errors import ConfigError
from humming.formats.scheme import Granularity, Second, WeightScheme, Zero
from humming.formats.table import number_format
from humming.formats.tensors import decode
from humming.weight import CanonicalWeight

__all__ = ["fuse", "stack_experts"]

_LOG = logging.getLogger("humming.fusing")


def fuse(parts: Sequence[CanonicalWeight], names: Sequence[str] = ()) -> CanonicalWeight:
    """Concatenate weights of the same inputs along N: one product instead of several.

    Each part keeps its own numbers. Scales per tensor become scales per channel, and a
    second-level scale per tensor becomes one per channel, unless all parts share it; blocks of
    rows that a part boundary would cut become groups. Static activation scales differ between
    parts of real files though there is one input: the largest is kept, since a smaller one
    would saturate, and this is logged.

    Args:
        parts: weights [N_i, K], or [E, N_i, K] for the same E.
        names: what to call the parts in an error.

    Returns:
        The weight [sum N_i, K].

    Raises:
        ConfigError: the parts differ in codes, granularity, zero points, permutation or inputs.
    """
    names = _checked_names(parts, names)
    if len(parts) == 1:
        return parts[0]
    parts = _same_scheme([_split_offset(part) for part in parts], names)
    first = parts[0]
    scheme = first.scheme
    tensor_scale = scheme.granularity == Granularity(0, 0)
    channel_second = scheme.second is Second.CHANNEL
    return first.replace(
        n=sum(p.n for p in parts),
        packed=torch.cat([p.packed for p in parts], dim=-2),
        scales=first.scales if tensor_scale else torch.cat([p.scales for p in parts], dim=-2),
        zeros=first.zeros
        if tensor_scale or first.zeros is None
        else torch.cat([p.zeros for p in parts if p.zeros is not None], dim=-2),
        second=torch.cat([p.second for p in parts if p.second is not None], dim=-2)
        if channel_second
        else first.second,
        bias=_joined_bias(parts),
        input_scale=_joined_input_scale(parts, names),
    )


def stack_experts(parts: Sequence[CanonicalWeight], names: Sequence[str] = ()) -> CanonicalWeight:
    """Stack one weight per expert into a weight [E, N, K]; each keeps its own scales.

    Args:
        parts: one weight [N, K] per expert, in expert order.
        names: what to call the parts in an error.

    Raises:
        ConfigError: the experts differ in scheme, shape, or in which tensors they have.
    """
    names = _checked_names(parts, names)
    first = parts[0]
    for part, name in zip(parts, names, strict=True):
        if part.experts:
            raise ConfigError(name, "a stack of experts", "a single matrix")
        mine, theirs = dict(part.tensors()), dict(first.tensors())
        for what, a, b in (
            ("scheme", part.scheme, first.scheme),
            ("shape", part.shape, first.shape),
            ("offset", part.offset, first.offset),
            ("activation", part.activation, first.activation),
            ("tensors", sorted(mine), sorted(theirs)),
        ):
            if a != b:
                raise ConfigError(f"{name} {what}", str(a), f"{b}, as {names[0]} has")
    stacked = {
        field: torch.stack([dict(part.tensors())[field] for part in parts])
        for field, _ in first.tensors()
    }
    return first.replace(experts=len(parts), **stacked)


def _checked_names(parts: Sequence[CanonicalWeight], names: Sequence[str]) -> Sequence[str]:
    if not parts:
        raise ConfigError("parts", [], "at least one weight")
    if names and len(names) != len(parts):
        raise ConfigError("names", list(names), f"{len(parts)} names, one per part")
    names = names or [f"part {i}" for i in range(len(parts))]
    first = parts[0]
    for part, name in zip(parts, names, strict=True):
        if (part.k, part.experts) != (first.k, first.experts):
            raise ConfigError(name, list(part.shape), f"K and experts of {names[0]}: {first.shape}")
    return names


def _same_scheme(parts: list[CanonicalWeight], names: Sequence[str]) -> list[CanonicalWeight]:
    """The parts under one scheme, each widened exactly where that is possible."""
    for widen in (_widen_zeros, _widen_second, _widen_tensor_scales, _widen_blocks, _widen_scales):
        parts = widen(parts)
    first = parts[0]
    for part, name in zip(parts, names, strict=True):
        for what, a, b in (
            ("scheme", part.scheme, first.scheme),
            ("activation", part.activation, first.activation),
            ("first scale block", part.offset[1], first.offset[1]),
        ):
            if a != b:
                raise ConfigError(f"{name} {what}", str(a), f"{b}, as {names[0]} has")
        for field in ("permutation", "group_index", "pre_quant_scale"):
            a, b = getattr(part, field), getattr(first, field)
            if (a is None) != (b is None) or (a is not None and not torch.equal(a, b)):
                raise ConfigError(f"{name} {field}", "different", f"that of {names[0]}")
    return parts


Parts = list[CanonicalWeight]


def _convert(
    parts: Parts,
    wanted: Callable[[CanonicalWeight], bool],
    convert: Callable[[CanonicalWeight], CanonicalWeight],
) -> Parts:
    return [convert(p) if wanted(p) else p for p in parts]


def _widen_zeros(parts: Parts) -> Parts:
    """Symmetric beside asymmetric: write the implied midpoint as a zero point."""
    if not any(p.scheme.zero is Zero.INTEGER for p in parts):
        return parts

    def with_midpoint(part: CanonicalWeight) -> CanonicalWeight:
        zeros = torch.full(
            part.scales.shape, part.scheme.midpoint, dtype=torch.uint8, device=part.device
        )
        return part.replace(scheme=replace(part.scheme, zero=Zero.INTEGER), zeros=zeros)

    return _convert(parts, lambda p: p.scheme.midpoint > 0, with_midpoint)


def _widen_second(parts: Parts) -> Parts:
    """Second-level scales: one per channel unless all parts share one per tensor."""
    seconds = [p.second for p in parts]
    if all(s is None for s in seconds):
        return parts
    first = seconds[0]
    shared = all(p.scheme.second is Second.TENSOR for p in parts) and all(
        s is not None and first is not None and torch.equal(s, first) for s in seconds
    )
    if shared:
        return parts

    def per_channel(part: CanonicalWeight) -> CanonicalWeight:
        lead = (part.experts,) if part.experts else ()
        one = torch.ones((*lead, 1, 1), dtype=torch.float32, device=part.device)
        second = (one if part.second is None else part.second).expand(*lead, part.n, 1)
        scheme = replace(part.scheme, second=Second.CHANNEL)
        return part.replace(scheme=scheme, second=second.contiguous())

    return _convert(parts, lambda p: p.scheme.second is not Second.CHANNEL, per_channel)


def _widen_tensor_scales(parts: Parts) -> Parts:
    """Scales per tensor: one per channel unless all parts share it."""
    tensor, channel = Granularity(0, 0), Granularity(1, 0)
    if not any(p.scheme.granularity == tensor for p in parts):
        return parts
    first = parts[0]

    def same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
        return (a is None and b is None) or (
            a is not None and b is not None and a.dtype == b.dtype and torch.equal(a, b)
        )

    if all(
        p.scheme == first.scheme and same(p.scales, first.scales) and same(p.zeros, first.zeros)
        for p in parts
    ):
        return parts
    return _convert(parts, lambda p: p.scheme.granularity == tensor, lambda p: _per_row(p, channel))


def _per_row(part: CanonicalWeight, granularity: Granularity) -> CanonicalWeight:
    """The same numbers with scales (and zeros) written out for every row."""
    bn = part.scheme.granularity.n

    def rows(blocks: torch.Tensor) -> torch.Tensor:
        if bn == 0:
            return blocks.expand(*blocks.shape[:-2], part.n, blocks.shape[-1]).contiguous()
        return spread(blocks, -2, bn, part.n, part.offset[0]).contiguous()

    return part.replace(
        scheme=replace(part.scheme, granularity=granularity),
        scales=rows(part.scales),
        zeros=None if part.zeros is None else rows(part.zeros),
        offset=(0, part.offset[1]),
    )


def _split_offset(part: CanonicalWeight) -> CanonicalWeight:
    """A part that starts inside a block of rows can't be one of several blocks of rows."""
    granularity = part.scheme.granularity
    return _per_row(part, Granularity.group(granularity.k)) if part.offset[0] else part


def _widen_blocks(parts: Parts) -> Parts:
    """Blocks of rows become groups if a boundary falls inside one, or another part has groups."""
    blocks = {p.scheme.granularity for p in parts}
    aligned = all(p.n % max(p.scheme.granularity.n, 1) == 0 for p in parts[:-1])
    if len(blocks) == 1 and aligned:
        return parts
    return _convert(
        parts,
        lambda p: p.scheme.granularity.is_block,
        lambda p: _per_row(p, Granularity.group(p.scheme.granularity.k)),
    )


def _widen_scales(parts: Parts) -> Parts:
    """Scales of several formats become f32, which holds them all, unless zeros forbid it."""
    formats = {p.scheme.scale.name for p in parts}
    if len(formats) == 1:
        return parts
    f32 = number_format("f32")

    def widened(part: CanonicalWeight) -> CanonicalWeight:
        zeros = part.zeros
        if zeros is not None and part.scheme.zero is Zero.FLOAT:
            zeros = zeros.to(torch.float32)
        scheme: WeightScheme = replace(part.scheme, scale=f32)
        return part.replace(
            scheme=scheme, scales=decode(part.scales, part.scheme.scale), zeros=zeros
        )

    return _convert(parts, lambda p: p.scheme.scale != f32, widened)


def _joined_bias(parts: Parts) -> torch.Tensor | None:
    biases = [p.bias for p in parts]
    if all(b is None for b in biases):
        return None
    dtypes = {b.dtype for b in biases if b is not None}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    lead = (parts[0].experts,) if parts[0].experts else ()
    filled = [
        torch.zeros((*lead, p.n), dtype=dtype, device=p.device) if b is None else b.to(dtype)
        for p, b in zip(parts, biases, strict=True)
    ]
    return torch.cat(filled, dim=-1)


def _joined_input_scale(parts: Parts, names: Sequence[str]) -> torch.Tensor | None:
    scales = [p.input_scale for p in parts]
    present = [s for s in scales if s is not None]
    if not present:
        return None
    if len(present) != len(parts):
        raise ConfigError(names[scales.index(None)], "no input_scale", "one, as other parts have")
    if not all(torch.equal(s, present[0]) for s in present):
        _LOG.warning("%s: activation scales differ; using the largest", " + ".join(names))
    return torch.stack(present).amax(dim=0)
