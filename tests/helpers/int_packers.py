"""GPTQ and AWQ packings written from their description, one element at a time, in Python integers.

Slow on purpose: nothing here is shared with the code under test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

#: Widths of the planes of a planar code, low plane first.
PLANES = {2: [2], 3: [2, 1], 4: [4], 5: [4, 1], 6: [4, 2], 7: [4, 2, 1], 8: [8]}
AWQ_PLACES = [0, 2, 4, 6, 1, 3, 5, 7]


def words_of(number: int, count: int) -> list[int]:
    """The low `count` 32-bit words of a number."""
    return [(number >> (32 * i)) & 0xFFFFFFFF for i in range(count)]


def stream(values: Sequence[int], bits: int) -> list[int]:
    """Values as one little-endian bit stream."""
    number = sum(int(value) << (bits * i) for i, value in enumerate(values))
    return words_of(number, -(-len(values) * bits // 32))


def planar(values: Sequence[int], bits: int) -> list[int]:
    """Values in planes, 32 at a time."""
    words: list[int] = []
    for start in range(0, len(values), 32):
        low = 0
        for width in PLANES[bits]:
            plane = [(int(v) >> low) & ((1 << width) - 1) for v in values[start : start + 32]]
            words += stream(plane, width)
            low += width
    return words


def awq(values: Sequence[int], bits: int = 4) -> list[int]:
    """Values in AWQ's order within each eight, as a bit stream."""
    ordered = [values[c + place] for c in range(0, len(values), 8) for place in AWQ_PLACES]
    return stream(ordered, bits)


def int32(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Rows of unsigned words as an int32 tensor."""
    return torch.from_numpy(np.array(rows, dtype=np.uint32).view(np.int32))


@dataclass
class IntLayer:
    """A random layer: codes [N, K], scales and zeros [N, G], group of each input [K]."""

    codes: np.ndarray[Any, Any]
    scales: torch.Tensor
    zeros: np.ndarray[Any, Any]
    groups: np.ndarray[Any, Any]
    bits: int
    bias: torch.Tensor | None = None
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def values(self) -> torch.Tensor:
        """(code - zero) * scale in float64, in the order of the inputs."""
        n, k = self.codes.shape
        scales = self.scales.to(torch.float64).numpy()
        out = np.empty((n, k))
        for row in range(n):
            for column in range(k):
                g = self.groups[column]
                out[row, column] = (
                    int(self.codes[row, column]) - int(self.zeros[row, g])
                ) * scales[row, g]
        return torch.from_numpy(out)


def random_layer(
    n: int,
    k: int,
    group: int,
    bits: int,
    *,
    sym: bool = False,
    dtype: torch.dtype = torch.float16,
    seed: int = 0,
    lowest_zero: int = 0,
) -> IntLayer:
    """Random codes, scales that differ by group, zero points with both extremes among them."""
    rng = np.random.default_rng([seed, n, k, bits])
    count = -(-k // group) if group > 0 else 1
    top = (1 << bits) - 1
    zeros = rng.integers(lowest_zero, top + 1, (n, count))
    zeros[0, 0], zeros[-1, -1] = lowest_zero, top
    if sym:
        zeros[:] = 1 << (bits - 1)
    codes = rng.integers(0, top + 1, (n, k))
    codes[0, :2], codes[-1, -2:] = (0, top), (top, 0)
    scales = torch.from_numpy(rng.uniform(0.01, 3.0, (n, count))).to(dtype)
    groups = np.arange(k) // (group if group > 0 else max(k, 1))
    bias = torch.from_numpy(rng.normal(size=n)).to(dtype)
    return IntLayer(codes, scales, zeros, groups, bits, bias)


def gptq_tensors(
    layer: IntLayer,
    name: str = "layer",
    *,
    offset: int = 0,
    is_planar: bool = False,
    g_idx: bool = True,
    qzeros: bool = True,
    bias: bool = True,
) -> dict[str, torch.Tensor]:
    """GPTQ tensors of a layer; `offset` is subtracted from each zero point, modulo its field."""
    pack = planar if is_planar else stream
    columns = [pack(row, layer.bits) for row in layer.codes]
    mask = (1 << layer.bits) - 1
    tensors = {
        f"{name}.qweight": int32(columns).t().contiguous(),
        f"{name}.scales": layer.scales.t().contiguous(),
    }
    if qzeros:
        stored = (layer.zeros.T - offset) & mask
        tensors[f"{name}.qzeros"] = int32([pack(row, layer.bits) for row in stored])
    if g_idx:
        tensors[f"{name}.g_idx"] = torch.from_numpy(layer.groups.astype(np.int32))
    if bias and layer.bias is not None:
        tensors[f"{name}.bias"] = layer.bias
    return tensors


def awq_tensors(
    layer: IntLayer, name: str = "layer", *, qzeros: bool = True
) -> dict[str, torch.Tensor]:
    """AWQ tensors, gemm layout."""
    tensors = {
        f"{name}.qweight": int32([awq(row, layer.bits) for row in layer.codes.T]),
        f"{name}.scales": layer.scales.t().contiguous(),
    }
    if qzeros:
        tensors[f"{name}.qzeros"] = int32([awq(row, layer.bits) for row in layer.zeros.T])
    if layer.bias is not None:
        tensors[f"{name}.bias"] = layer.bias
    return tensors
