"""Weights, activations and routing for the cases of gemm_matrix: data that hide no fault.

Weights are made of random codes, scales and zero points, not quantized, so that every code occurs
and no two blocks share a scale. Rows differ by factors of 2^-3 to 2^3, and the rows of a wide
float format have different largest exponents, so that small codes count too. Every other row of
activations has channels that are 50 times as large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from gemm_matrix import EXPERTS, TOP_K, Case

from humming.configs import GemmKind
from humming.formats.number import NumberFormat
from humming.formats.scheme import Second, WeightScheme, Zero
from humming.formats.tensors import TORCH_FLOATS, decode, encode, encode_scale
from humming.packing import pack
from humming.weight import CanonicalWeight

#: Root mean square of a weight's values, before the factors of rows; larger under narrow scales.
_SIZE = 0.02
_OUTLIERS, _EVERY = 50.0, 100


@dataclass(frozen=True)
class Call:
    """One call of a layer: activations and, with experts, which rows have which.

    Attributes:
        x: activations as the layer takes them.
        routing: keyword arguments of the layer.
    """

    x: torch.Tensor
    routing: dict[str, torch.Tensor]


# -- weights -----------------------------------------------------------------------------------


def weight_of(case: Case, device: str) -> CanonicalWeight:
    """The weight of a case, cut as it says."""
    generator = torch.Generator(device).manual_seed(case.seed)
    weight = random_weight(
        case.scheme, case.n, case.k, generator, experts=case.experts, device=device
    )
    lead = (case.experts,) if case.experts else ()
    extra: dict[str, object] = {}
    if case.bias:
        dtype = (torch.float32, torch.float16, torch.bfloat16)[case.seed % 3]
        bias = 0.01 * torch.arange(case.n, device=device).expand(*lead, case.n)
        extra["bias"] = (bias + _expert_numbers(lead, device)).to(dtype)
    if case.act_order:
        noise = torch.rand(*lead, case.k, generator=generator, device=device)
        extra["permutation"] = noise.argsort(dim=-1).to(torch.int32)
    if case.smooth:
        smooth = torch.rand(*lead, case.k, generator=generator, device=device) + 0.5
        extra["pre_quant_scale"] = smooth.to(TORCH_FLOATS[case.dtype])
    if case.activations.static:
        largest = case.activations.format.max
        extra["input_scale"] = (4.0 + _expert_numbers(lead, device).flatten()) / largest
        if not lead:
            extra["input_scale"] = torch.tensor(4.0 / largest, device=device)
    weight = weight.replace(**extra)
    return cut(weight, case.cut)


def cut(weight: CanonicalWeight, text: str) -> CanonicalWeight:
    """A tensor-parallel part, "k1of3": the second of three along K."""
    if not text:
        return weight
    rank, world = text[1:].split("of")
    return weight.shard(text[0], int(rank), int(world))


def _expert_numbers(lead: tuple[int, ...], device: str) -> torch.Tensor:
    """0, 1, 2, ... per expert, to be added to something [.., N]."""
    return torch.arange(lead[0], device=device)[:, None] if lead else torch.zeros(1, device=device)


def random_weight(  # budget: sizes and where
    scheme: WeightScheme | str,
    n: int,
    k: int,
    generator: torch.Generator,
    *,
    experts: int = 0,
    device: str = "cpu",
) -> CanonicalWeight:
    """A weight of random codes, scales and zero points; no code is NaN or Inf."""
    scheme = WeightScheme.parse(scheme)
    parts = [_random_matrix(scheme, n, k, generator, device) for _ in range(max(experts, 1))]
    tensors = {
        name: torch.stack([part[name] for part in parts]) if experts else parts[0][name]
        for name in parts[0]
    }
    return CanonicalWeight(scheme=scheme, n=n, k=k, experts=experts, **tensors)


def _random_matrix(
    scheme: WeightScheme, n: int, k: int, generator: torch.Generator, device: str
) -> dict[str, torch.Tensor]:
    def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
        noise = torch.rand(*shape, generator=generator, device=device, dtype=torch.float64)
        return low + (high - low) * noise

    bits = scheme.code.bits
    codes = _random_codes(scheme, n, k, generator, device)
    tensors = {"packed": pack(codes, bits)}
    rows, columns = scheme.granularity.scale_shape(n, k)
    factors = torch.exp2(uniform(rows, 1, low=-3, high=3) + uniform(rows, columns, low=-1, high=1))
    second = torch.ones(1, 1, dtype=torch.float32, device=device)
    if scheme.second is not Second.NONE:
        shape = n if scheme.second is Second.CHANNEL else 1
        second = torch.exp2(uniform(shape, 1, low=-6, high=-4)).to(torch.float32)
        tensors["second"] = second
    wide = scheme.scale.bits >= 16 or scheme.scale.name == "e8m0"
    size = _SIZE / float(second.mean()) if wide else 1.0
    scales = size * factors / _block_sizes(codes, scheme)
    tensors["scales"] = encode_scale(scales, scheme.scale)
    if scheme.zero is Zero.INTEGER:
        zeros = torch.randint(0, 1 << bits, (rows, columns), generator=generator, device=device)
        zeros.view(-1)[0], zeros.view(-1)[-1] = 0, (1 << bits) - 1
        tensors["zeros"] = zeros.to(torch.uint8)
    elif scheme.zero is Zero.FLOAT:
        steps = uniform(rows, columns, low=scheme.code.min - 0.5, high=scheme.code.max + 0.5)
        tensors["zeros"] = encode(-steps * decode(tensors["scales"], scheme.scale, torch.float64),
                                  scheme.scale)  # fmt: skip
    return tensors


@cache
def finite_codes(code: NumberFormat, device: str) -> torch.Tensor:
    """Every code that is a number, by rising magnitude; uint8."""
    every = torch.arange(1 << code.bits, dtype=torch.uint8)
    values = decode(every, code, torch.float64)
    keep = values.isfinite()
    return every[keep][values[keep].abs().argsort(stable=True)].to(device)


def _random_codes(
    scheme: WeightScheme, n: int, k: int, generator: torch.Generator, device: str
) -> torch.Tensor:
    allowed = finite_codes(scheme.code, device)
    count = torch.full((n, 1), len(allowed), device=device)
    if scheme.code.exponent >= 4 and scheme.granularity.n == 1:
        # Rows of ever smaller numbers: all codes in the first, those of small magnitude in others.
        part = torch.arange(n, device=device)[:, None] % 4
        count = torch.div(count * (4 - part), 4, rounding_mode="floor")
    noise = torch.rand(n, k, generator=generator, device=device, dtype=torch.float64)
    return allowed[(noise * count).long()]


def _block_sizes(codes: torch.Tensor, scheme: WeightScheme) -> torch.Tensor:
    """What a scale of 1 would make of each row of blocks: [R, 1]."""
    values = decode(codes, scheme.code, torch.float64) - scheme.midpoint
    if scheme.zero is not Zero.NONE:
        return torch.full((1, 1), float(1 << scheme.code.bits) / 2.5, device=codes.device)
    if scheme.granularity.n != 1:
        return values.square().mean().sqrt().reshape(1, 1)
    return values.square().mean(dim=1, keepdim=True).sqrt()


# -- activations and routing -------------------------------------------------------------------


def call_of(case: Case, weight: CanonicalWeight, m: int, device: str) -> Call:
    """Activations and routing of one call with `m` tokens (of all experts, or per expert)."""
    generator = torch.Generator(device).manual_seed(case.seed + m)
    dtype = TORCH_FLOATS[case.dtype]
    outliers = 1.0 if case.activations.format.bits == 4 or case.accumulate else _OUTLIERS
    lead = (EXPERTS, m) if case.kind is GemmKind.GROUPED_MASKED else (m,)
    x = random_activations((*lead, weight.k), generator, dtype, device, outliers)
    return Call(x, _ROUTING[case.kind](m, generator, device))


def random_activations(
    shape: Sequence[int],
    generator: torch.Generator,
    dtype: torch.dtype,
    device: str,
    outliers: float = _OUTLIERS,
) -> torch.Tensor:
    """N(0, 1), in every other row with a few large channels, between guard rows of NaN.

    The first row has none: beside large channels one wrong column would be lost in the tolerance.
    """
    count, k = math.prod(shape[:-1]), shape[-1]
    rows = torch.randn(count, k, generator=generator, device=device)
    large = torch.randperm(k, generator=generator, device=device)[: -(-k // _EVERY)]
    factors = torch.ones(2, k, device=device)
    factors[1, large] = outliers
    rows *= factors[torch.arange(count, device=device) % 2]
    guarded = torch.full((count + 32, k), torch.nan, dtype=dtype, device=device)
    guarded[16 : 16 + count] = rows.to(dtype)
    return guarded[16 : 16 + count].view(*shape)


def _id_type(m: int) -> torch.dtype:
    return torch.int64 if m % 2 else torch.int32


def _no_routing(m: int, generator: torch.Generator, device: str) -> dict[str, torch.Tensor]:
    return {}


def _indexed(m: int, generator: torch.Generator, device: str) -> dict[str, torch.Tensor]:
    """Some choices skipped, one token without any, the last expert without tokens."""
    ids = torch.randint(-1, EXPERTS - 1, (m, TOP_K), generator=generator, device=device)
    if m > 1:
        ids[m // 2] = -1
    return {"expert_ids": ids.to(_id_type(m))}


def _contiguous(m: int, generator: torch.Generator, device: str) -> dict[str, torch.Tensor]:
    """One expert without rows, and some rows behind the last."""
    cuts = torch.randint(0, m + 1, (EXPERTS,), generator=generator, device=device).sort()[0]
    cuts[1] = cuts[0]
    if m == 1:
        cuts[2:] = 1
    offsets = torch.cat([torch.zeros(1, dtype=cuts.dtype, device=device), cuts])
    return {"expert_offsets": offsets.to(_id_type(m))}


def _masked(m: int, generator: torch.Generator, device: str) -> dict[str, torch.Tensor]:
    """One expert full, one without rows."""
    counts = torch.randint(0, m + 1, (EXPERTS,), generator=generator, device=device)
    counts[0], counts[2] = m, 0
    return {"expert_counts": counts.to(_id_type(m))}


_ROUTING = {
    GemmKind.DENSE: _no_routing,
    GemmKind.INDEXED: _indexed,
    GemmKind.GROUPED_CONTIGUOUS: _contiguous,
    GemmKind.GROUPED_MASKED: _masked,
}
