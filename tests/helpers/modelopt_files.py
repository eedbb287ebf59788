"""ModelOpt layers written from the description of their format, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from core_oracle import value

Layer = tuple[dict[str, torch.Tensor], np.ndarray]
E4M3_FINITE = np.array([c for c in range(256) if c not in (0x7F, 0xFF)], dtype=np.uint8)


def quantization(algo: str | None, **more: Any) -> dict[str, Any]:
    """hf_quant_config.json."""
    inner = {"quant_algo": algo, "kv_cache_quant_algo": None, **more}
    return {"producer": {"name": "modelopt", "version": "0.47.0"}, "quantization": inner}


def float32(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float32)


def bytes_of(codes: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """uint8 codes as a tensor of an 8-bit dtype."""
    return torch.from_numpy(np.ascontiguousarray(codes, dtype=np.uint8)).view(dtype)


def values(name: str, codes: np.ndarray) -> np.ndarray:
    """float64 values of codes of the format called `name`."""
    table = np.array([value(name, code) for code in range(int(codes.max(initial=0)) + 1)])
    return table[codes]


def column_pairs(codes: np.ndarray) -> np.ndarray:
    """FP4 bytes: the even column in the low nibble."""
    out = np.zeros((*codes.shape[:-1], codes.shape[-1] // 2), dtype=np.uint8)
    for column in range(codes.shape[-1]):
        out[..., column // 2] |= codes[..., column] << (4 * (column % 2))
    return out


def row_pairs(integers: np.ndarray) -> np.ndarray:
    """int4 bytes: the even row in the low nibble, two's complement."""
    out = np.zeros((integers.shape[0] // 2, integers.shape[1]), dtype=np.uint8)
    for row in range(integers.shape[0]):
        out[row // 2] |= ((integers[row] & 15) << (4 * (row % 2))).astype(np.uint8)
    return out


def nvfp4(
    name: str,
    n: int,
    k: int,
    rng: np.random.Generator,
    *,
    group: int = 16,
    second: float = 0.003,
    input_scale: float | None = 0.01,
) -> Layer:
    """An NVFP4 layer and what it is worth."""
    codes = rng.integers(0, 16, (n, k), dtype=np.uint8)
    scales = rng.integers(1, 0x7F, (n, k // group), dtype=np.uint8)
    tensors = {
        f"{name}.weight": torch.from_numpy(column_pairs(codes)),
        f"{name}.weight_scale": bytes_of(scales, torch.float8_e4m3fn),
        f"{name}.weight_scale_2": float32(second),
    }
    if input_scale is not None:
        tensors[f"{name}.input_scale"] = float32(input_scale)
    spread = np.repeat(values("e4m3fn", scales), group, axis=1)
    return tensors, values("e2m1", codes) * spread * float(np.float32(second))


def fp8(name: str, n: int, k: int, rng: np.random.Generator, *, scale: float = 0.02) -> Layer:
    """A layer of FP8 codes under one scale, with a static activation scale."""
    codes = rng.choice(E4M3_FINITE, (n, k))
    tensors = {
        f"{name}.weight": bytes_of(codes, torch.float8_e4m3fn),
        f"{name}.weight_scale": float32(scale),
        f"{name}.input_scale": float32(scale / 3),
    }
    return tensors, values("e4m3fn", codes) * float(np.float32(scale))


def awq(name: str, n: int, k: int, rng: np.random.Generator, *, group: int = 32) -> Layer:
    """An int4 layer with bf16 scales and a smoothing factor; -8 and 7 are among its codes."""
    integers = rng.integers(-8, 8, (n, k))
    integers[0, 0], integers[-1, -1] = -8, 7
    scales = torch.from_numpy(rng.uniform(0.01, 0.1, (n, k // group))).to(torch.bfloat16)
    tensors = {
        f"{name}.weight": torch.from_numpy(row_pairs(integers)),
        f"{name}.weight_scale": scales,
        f"{name}.pre_quant_scale": torch.from_numpy(rng.uniform(0.95, 1.05, k)).to(torch.bfloat16),
    }
    return tensors, integers * np.repeat(scales.to(torch.float64).numpy(), group, axis=1)
