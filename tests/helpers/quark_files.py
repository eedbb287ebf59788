"""Quark layers written from the description of their format, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from core_oracle import pack_rows

AWQ = (0, 2, 4, 6, 1, 3, 5, 7)


def spec(dtype: str, qscheme: str, **more: Any) -> dict[str, Any]:
    """A tensor spec as Quark 0.13 writes it."""
    axis = {"per_channel": 0, "per_group": -1}.get(qscheme)
    return {
        "dtype": dtype, "qscheme": qscheme, "ch_axis": axis, "group_size": None, "block_size": None,
        "is_dynamic": False, "symmetric": True, "scale_format": None, "mx_element_dtype": None,
        "zero_point_type": "int32", "is_scale_quant": False, **more,
    }  # fmt: skip


def config(weight: Any, inputs: Any = None, **more: Any) -> dict[str, Any]:
    """A quantization_config; `more` goes over its top level, `pack` into its export section."""
    export = {"weight_format": "real_quantized", "pack_method": more.pop("pack", "reorder")}
    common = {"weight": weight, "input_tensors": inputs, "output_tensors": None, "bias": None}
    return {
        "quant_method": "quark", "quant_mode": "eager_mode", "version": "0.13",
        "global_quant_config": common, "layer_quant_config": {}, "layer_type_quant_config": {},
        "kv_cache_quant_config": {}, "exclude": ["lm_head"],
        "export": {**export, "kv_cache_group": []}, **more,
    }  # fmt: skip


def words(integers: np.ndarray, order: bool) -> torch.Tensor:
    """4-bit words along the last axis, padded with zeros; field i holds column AWQ[i] or i."""
    *lead, count = integers.shape
    out = np.zeros((*lead, -(-count // 8)), dtype=np.uint32)
    for word in range(out.shape[-1]):
        for field in range(8):
            column = 8 * word + (AWQ[field] if order else field)
            if column < count:
                nibble = (integers[..., column] & 15).astype(np.uint32)
                out[..., word] |= nibble << np.uint32(4 * field)
    return torch.from_numpy(out.view(np.int32))


def stream(integers: np.ndarray, bits: int) -> torch.Tensor:
    """A little-endian bit stream along the last axis, two's complement."""
    return pack_rows((integers & ((1 << bits) - 1)).astype(np.uint8), bits)


def float32(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.uniform(0.01, 1, shape).astype(np.float32))


def spread(blocks: np.ndarray, n: int, k: int) -> np.ndarray:
    """Blocks [R, C] over [N, K]: R and C divide N and K."""
    rows, columns = blocks.shape
    return np.repeat(np.repeat(blocks, n // rows, axis=0), k // columns, axis=1)
