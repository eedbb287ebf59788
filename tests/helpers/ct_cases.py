"""compressed-tensors files written element by element from the description of the format."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def dense(codes: np.ndarray, bits: int) -> torch.Tensor:
    """[.., K] codes as one little-endian bit stream per row, in int32 words [.., W]."""
    planes = (codes[..., None] >> np.arange(bits)) & 1
    stream = planes.reshape(*codes.shape[:-1], -1).astype(np.uint8)
    gap = -stream.shape[-1] % 32
    stream = np.pad(stream, [(0, 0)] * (stream.ndim - 1) + [(0, gap)])
    packed = np.packbits(stream, axis=-1, bitorder="little")
    return torch.from_numpy(np.ascontiguousarray(packed).view("<i4").copy())


def padded(codes: np.ndarray, bits: int) -> torch.Tensor:
    """[.., K] codes, 32 // bits in each word, its top bits unused."""
    per_word = 32 // bits
    gap = -codes.shape[-1] % per_word
    whole = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, gap)]).astype(np.uint64)
    fields = whole.reshape(*codes.shape[:-1], -1, per_word) << np.uint64(bits) * np.arange(
        per_word, dtype=np.uint64
    )
    words = fields.sum(axis=-1).astype(np.uint32)
    return torch.from_numpy(words.view(np.int32).copy())


PACKINGS = {"dense": dense, "padded": padded}


def ct_config(weights: dict[str, Any], form: str = "pack-quantized", **more: Any) -> dict[str, Any]:
    """A config with one group that targets Linear."""
    group = {"targets": ["Linear"], "weights": weights}
    if "input_activations" in more:
        group["input_activations"] = more.pop("input_activations")
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        **more,
    }


def int_args(bits: int, group: int = 0, **more: Any) -> dict[str, Any]:
    """Arguments of integer weights, in groups or per channel."""
    strategy = {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    return {"num_bits": bits, "type": "int", **strategy, **more}


def packed_layer(
    rng: np.random.Generator,
    size: tuple[int, int, int],
    group: int,
    *,
    asym: bool = False,
    packing: str = "dense",
    name: str = "layers.0.up",
) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """A pack-quantized layer and its weights in float64.

    Args:
        rng: for codes, distinct scales and zero points (0 and 2^bits - 1 among them).
        size: bits, N, K.
        group: 0: per channel.
        asym: with zero points.
        packing: of the words.
        name: of the layer.
    """
    bits, n, k = size
    columns = -(-k // group) if group else 1
    codes = rng.integers(0, 1 << bits, (n, k))
    scales = torch.from_numpy(rng.uniform(0.01, 1.0, (n, columns))).to(torch.bfloat16)
    zeros = np.full((n, columns), 1 << (bits - 1))
    if asym:
        zeros = rng.integers(0, 1 << bits, (n, columns))
        zeros[0, 0], zeros[-1, -1] = 0, (1 << bits) - 1
    write = PACKINGS[packing]
    tensors = {
        f"{name}.weight_packed": write(codes, bits),
        f"{name}.weight_shape": torch.tensor([n, k]),
        f"{name}.weight_scale": scales,
    }
    if asym:
        tensors[f"{name}.weight_zero_point"] = write(zeros.T, bits).T.contiguous()
    index = np.arange(k) // (group or k)
    plain = (codes - zeros[:, index]) * scales.to(torch.float64).numpy()[:, index]
    return tensors, plain
