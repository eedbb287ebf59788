"""compressed-tensors, FP8 and MXFP4 files with one tensor lost, retyped, reshaped or added."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_checkpoint import fixture_loader, memory_loader

from humming.checkpoints.base import CheckpointLoader
from humming.checkpoints.compressed_tensors import CompressedTensorsLoader
from humming.checkpoints.fp8 import Fp8Loader
from humming.checkpoints.mxfp4 import Mxfp4Loader
from humming.errors import CheckpointError, ConfigError

FILES: list[tuple[type[CheckpointLoader], str]] = [
    (CompressedTensorsLoader, "compressed_tensors/packed_act_order"),
    (CompressedTensorsLoader, "compressed_tensors/packed_stack"),
    (CompressedTensorsLoader, "compressed_tensors/int_quantized"),
    (CompressedTensorsLoader, "compressed_tensors/mixed"),
    (CompressedTensorsLoader, "compressed_tensors/mxfp6"),
    (Fp8Loader, "fp8/block"),
    (Fp8Loader, "fp8/deepseek_v4"),
    (Fp8Loader, "fp8/tensor_static"),
    (Mxfp4Loader, "mxfp4/gpt_oss"),
]
DTYPES = [
    torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu,
]  # fmt: skip
SUFFIXES = [
    "weight", "weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "bias",
    "input_scale", "weight_global_scale", "weight_scale_inv", "scale", "weight_shape",
]  # fmt: skip


def shapes(shape: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    """Transposed, flat, with a size more or less, without a dimension, empty."""
    changed = [tuple(reversed(shape)), (*shape, 1), shape[1:], shape[:-1], (0,), ()]
    for dim in range(len(shape)):
        for size in (0, 1, shape[dim] - 1, shape[dim] + 1, 2 * shape[dim]):
            changed.append((*shape[:dim], max(size, 0), *shape[dim + 1 :]))
    return st.sampled_from(sorted(set(changed) - {shape}))


def damage(data: st.DataObject, tensors: dict[str, torch.Tensor]) -> None:
    name = data.draw(st.sampled_from(sorted(tensors)))
    how = data.draw(st.sampled_from(["drop", "retype", "reshape", "fill", "add"]))
    tensor = tensors[name]
    if how == "drop":
        del tensors[name]
    elif how == "retype":
        dtype = data.draw(st.sampled_from(DTYPES))
        tensors[name] = torch.ones(tensor.shape).to(dtype)
    elif how == "reshape":
        shape = data.draw(shapes(tuple(tensor.shape)))
        tensors[name] = torch.ones(shape).to(tensor.dtype)
    elif how == "fill":
        fill = data.draw(st.sampled_from([0, 1, 127, 255]))
        raw = torch.full((tensor.numel() * tensor.element_size(),), fill, dtype=torch.uint8)
        tensors[name] = raw.view(tensor.dtype).view(tensor.shape)
    else:
        layer = name.rpartition(".")[0]
        tensors[f"{layer}.{data.draw(st.sampled_from(SUFFIXES))}"] = tensor


@pytest.mark.parametrize(("kind", "folder"), FILES, ids=[folder for _, folder in FILES])
@settings(max_examples=60)
@given(data=st.data())
def test_a_damaged_file_loads_or_raises_a_typed_error(
    data: st.DataObject, kind: type[CheckpointLoader], folder: str
) -> None:
    source = fixture_loader(kind, folder)
    tensors = {name: source.store.get(name) for name in source.store}
    damage(data, tensors)
    config: dict[str, Any] = dict(source.config)
    loader = memory_loader(kind, tensors, config, dict(source.source.model_config))
    try:
        plans = list(loader.plan())
    except CheckpointError:
        return
    for plan in plans:
        assert set(plan.tensors) <= set(tensors)
        try:
            weight = loader.load(plan)
        except (CheckpointError, ConfigError):  # Checkpoint turns the second into the first
            continue
        assert weight.dequantize().shape[-2:] == (plan.n, plan.k)
