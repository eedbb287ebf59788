"""Activations for the quantizing kernel, what it must make of them, and the kernel's source."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

import humming
from humming.activations import quantize_rows
from humming.backend import KernelSpec
from humming.formats.activation import ActivationScheme
from humming.formats.tensors import decode, scale_reach
from humming.jit import HeaderRoots, Program, Renderer, compile_program
from humming.jit.program import Kind
from humming.quantizer import row_sizes

CORE = Path(humming.__file__).parent
HEADERS = HeaderRoots({"humming": CORE / "include" / "humming"})
RENDERER = Renderer({"humming": CORE / "templates"})

#: Scale of static schemes; what is beyond it saturates.
STORED = 0.0371
POISON = 0xA5
GUARD = 64


def program(spec: KernelSpec, kind: Kind) -> Program:
    source = RENDERER.render(spec.template, spec.context)
    headers = HEADERS.closure(source, spec.name)
    return Program(name=spec.name, source=source, arch=spec.arch, headers=headers, kind=kind)


@cache
def ptx_of(program: Program) -> str:
    """Compiled once: many lengths of rows, and many options, have the same kernel."""
    return compile_program(program).data.decode()


def stored_of(scheme: ActivationScheme, rows: int = 1) -> torch.Tensor | None:
    """A scale for all rows, or one for each."""
    if not scheme.static:
        return None
    return torch.tensor([STORED]) * torch.arange(1, rows + 1)


def reach(scheme: ActivationScheme) -> float:
    """The largest number under the stored scale."""
    assert scheme.scale is not None
    return STORED * scheme.format.max * (scale_reach(scheme.scale) if scheme.second else 1)


def sample(scheme: ActivationScheme, dtype: torch.dtype, k: int, seed: int = 0) -> torch.Tensor:
    """Rows of all sorts, T15's among them, and numbers on and beside ties [11, k]."""
    rng = torch.Generator().manual_seed(seed)
    size = reach(scheme) / 3 if scheme.static else 1.7
    x = torch.randn(11, k, generator=rng) * size
    x *= torch.exp(torch.randn(11, 1, generator=rng))
    x[1] = 0.0
    x[2] = -0.0
    x[3] = 0.0
    x[3, k // 2] = 6e4
    x[4, k // 3] = torch.nan
    x[5, k - 1] = -torch.inf
    x[6] *= 2.0**-22  # subnormal in f16
    x[7, ::3] *= 1e3
    x[8, : k // 2] = 0.0
    x[8, k // 4] = -0.0
    x[9] = on_ties(x[9:10], scheme, rng)
    if dtype == torch.float32:
        x[0] *= 2.0**100
        x[6] *= 2.0**-108  # subnormal in f32
        x[10] = beside_ties(x[10:11], scheme, rng)
    return x.to(dtype)


def midpoints(scheme: ActivationScheme) -> torch.Tensor:
    """Half way between neighbouring codes, of either sign."""
    codes = torch.arange(1 << scheme.format.bits, dtype=torch.uint8)
    grid = decode(codes, scheme.format, torch.float64)
    grid = grid[grid.isfinite()].abs().unique()
    grid = grid[grid <= scheme.format.max]
    middle = (grid[1:] + grid[:-1]) / 2
    return torch.cat([middle, -middle]).float()


def on_ties(x: torch.Tensor, scheme: ActivationScheme, rng: torch.Generator) -> torch.Tensor:
    """Ties under scales that are powers of two."""
    pool = torch.cat([midpoints(scheme), torch.tensor([scheme.format.max])])
    found = pool[torch.randint(len(pool), x.shape[1:], generator=rng)]
    found[:: max(scheme.group_size, 8)] = scheme.format.max
    return found


def beside_ties(x: torch.Tensor, scheme: ActivationScheme, rng: torch.Generator) -> torch.Tensor:
    """f32 numbers within two last places of a tie under the scales that `x` leads to."""
    x = x.clone()
    every = scheme.group_size or x.shape[1]
    x[:, ::every] = x.abs().max() * 1.25
    first = quantize_rows(x, scheme, stored_of(scheme))
    assert scheme.scale is not None
    divisor = decode(first.scales, scheme.scale).expand(1, -1)
    divisor = divisor.repeat_interleave(every, dim=1)[:, : x.shape[1]]
    if first.second is not None:
        divisor = divisor * first.second
    pool = midpoints(scheme)
    wanted = pool[torch.randint(len(pool), x.shape, generator=rng)] * divisor
    steps = torch.randint(-2, 3, x.shape, generator=rng, dtype=torch.int32)
    wanted = (wanted.view(torch.int32) + steps).view(torch.float32)
    wanted[:, ::every] = x[:, ::every]
    return wanted[0]


def below(peaks: torch.Tensor, group: int, binades: int) -> torch.Tensor:
    """Rows of whole groups: each begins with the row's peak, of 16 bits, and has numbers of either
    sign that are no larger; a row has all of those down to `binades` binades below its peak."""
    ints = peaks.abs().view(torch.int16).int()
    count = binades << (10 if peaks.dtype == torch.float16 else 7)
    places = torch.arange(-(-2 * count // (group - 1)) * (group - 1))
    # Below a small peak there are fewer: those are there again.
    found = (ints[:, None] - places // 2).clamp(min=0) | (places % 2 << 15)
    found = found.unflatten(1, (-1, group - 1))
    first = ints[:, None, None].expand(-1, found.shape[1], 1)
    return torch.cat([first, found], dim=2).flatten(1).to(torch.int16).view(peaks.dtype)


@dataclass(frozen=True)
class Quantized:
    """What a kernel writes: bytes [rows, code_bytes], f32 [rows], f32 [rows, groups] or nothing."""

    codes: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.float32]
    groups: npt.NDArray[np.float32]

    @classmethod
    def poisoned(cls, scheme: ActivationScheme, rows: int, k: int) -> Quantized:
        """Outputs with a guard behind each, full of poison."""
        sizes = row_sizes(scheme, k)
        floats = (np.full(4 * (n + GUARD), POISON, np.uint8) for n in (rows, rows * sizes.groups))
        scales, groups = (values.view(np.float32) for values in floats)
        codes = np.full(rows * sizes.code_bytes + GUARD, POISON, np.uint8)
        return cls(codes, scales, groups)

    @classmethod
    def expected(
        cls, x: torch.Tensor, scheme: ActivationScheme, stored: torch.Tensor | None
    ) -> Quantized:
        """The reference."""
        found = quantize_rows(x, scheme, stored)
        assert scheme.scale is not None
        rows, k = x.shape
        sizes = row_sizes(scheme, k)
        codes = np.zeros((rows, sizes.code_bytes), np.uint8)
        values = found.codes.numpy()
        if scheme.format.bits > 4:
            codes[:, :k] = values
        else:
            codes[:, : math.ceil(k / 2)] = values[:, 0::2]
            codes[:, : k // 2] |= values[:, 1::2] << 4
        scales = decode(found.scales, scheme.scale)
        factor = torch.ones(1, 1) if found.second is None else found.second
        factor = (factor if scheme.group_size else scales).expand(rows, 1).clone()
        factor[x.isnan().any(dim=1)] = torch.nan
        groups = scales.numpy() if scheme.group_size else np.zeros((rows, 0), np.float32)
        return cls(codes, factor[:, 0].numpy(), groups)

    def check(self, reference: Quantized) -> None:
        """It is the reference bit for bit, NaN for NaN, and nothing else was written."""
        pairs = zip(vars(self).values(), vars(reference).values(), strict=True)
        for name, (written, wanted) in zip(vars(self), pairs, strict=True):
            size = wanted.size
            assert len(written) == size + GUARD
            assert (written[size:].view(np.uint8) == POISON).all(), name
            found = written[:size].reshape(wanted.shape)
            if wanted.dtype == np.float32:
                nan = np.isnan(wanted)
                assert (np.isnan(found) == nan).all(), name
                found, wanted = np.where(nan, 0, found), np.where(nan, 0, wanted)
                found, wanted = found.view(np.uint32), wanted.view(np.uint32)
            wrong = np.argwhere(found != wanted)
            assert not len(wrong), f"{name} at {wrong[:5].tolist()} of {wanted.shape}"
