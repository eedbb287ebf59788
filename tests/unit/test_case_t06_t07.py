"""Cases T06 and T07: second-level scales of fused parts, and of two conventions."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import modelopt_files as mo
import numpy as np
import pytest
import torch
from memory_checkpoint import memory_loader
from safetensors.torch import save_file

from humming.checkpoints.base import Source
from humming.checkpoints.checkpoint import Checkpoint
from humming.checkpoints.compressed_tensors import CompressedTensorsLoader
from humming.checkpoints.modelopt import ModelOptLoader
from humming.checkpoints.store import SafetensorsStore, safetensors_files
from humming.errors import CheckpointError
from humming.fusing import fuse, stack_experts

I = H = 512  # noqa: E741 - the names of the case
E = 4
#: algorithm → group size and whether activations have a stored scale.
ALGORITHMS = {"W4A16_NVFP4": (16, False), "NVFP4": (16, True), "W4A8_NVFP4_FP8": (32, True)}
RATIOS = [(1.0, 10.0), (10.0, 1.0), (1.0, 1.0)]


class Written:
    """NVFP4 layers in one checkpoint, and what each is worth."""

    def __init__(self, algo: str) -> None:
        self.algo = algo
        self.tensors: dict[str, torch.Tensor] = {}
        self.expected: dict[str, np.ndarray] = {}
        self._rng = np.random.default_rng(6)

    def add(self, name: str, n: int, second: float, input_scale: float = 0.01) -> None:
        group, has_input = ALGORITHMS[self.algo]
        layer, self.expected[name] = mo.nvfp4(
            name, n, H, self._rng, group=group, second=second,
            input_scale=input_scale if has_input else None,
        )  # fmt: skip
        self.tensors |= layer

    def checkpoint(self) -> Checkpoint:
        loader = memory_loader(ModelOptLoader, self.tensors, mo.quantization(self.algo))
        return Checkpoint(loader.source, loader, "modelopt")


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_t06_gate_and_up_keep_their_own_second_scale(
    algo: str, ratio: tuple[float, float], caplog: pytest.LogCaptureFixture
) -> None:
    written = Written(algo)
    for name, factor, scale in zip(("gate_proj", "up_proj"), ratio, (0.01, 0.02), strict=True):
        written.add(f"mlp.{name}", I, 3e-4 * factor, scale)
    with caplog.at_level(logging.WARNING, "humming.fusing"):
        weight = written.checkpoint().fused(["mlp.gate_proj", "mlp.up_proj"])
    found = weight.dequantize(torch.float64).numpy()
    for half, name in ((found[:I], "mlp.gate_proj"), (found[I:], "mlp.up_proj")):
        assert np.array_equal(half, written.expected[name])
    one_scale = "e4m3fn-tensor" if ratio[0] == ratio[1] else "e4m3fn-channel"
    assert str(weight.scheme).endswith(one_scale)
    if ALGORITHMS[algo][1]:
        assert weight.input_scale == np.float32(0.02)
        assert "activation scales differ" in caplog.text


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_t06_q_k_and_v_keep_their_own_second_scale(algo: str) -> None:
    written = Written(algo)
    sizes = {"q_proj": 512, "k_proj": 128, "v_proj": 128}
    for factor, (name, n) in zip((1, 3, 9), sizes.items(), strict=True):
        written.add(name, n, 1e-4 * factor)
    checkpoint = written.checkpoint()
    weight = fuse([checkpoint[name] for name in sizes], list(sizes))
    expected = np.concatenate([written.expected[name] for name in sizes])
    assert weight.shape == (768, H)
    assert np.array_equal(weight.dequantize(torch.float64).numpy(), expected)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_t06_experts_keep_their_own_scales_in_both_halves(
    algo: str, ratio: tuple[float, float]
) -> None:
    rows = I // 8  # per half: what is tested lies in the scales
    written = Written(algo)
    for e in range(E):
        for name, factor in zip(("gate_proj", "up_proj"), ratio, strict=True):
            scale = 0.01 * (e + 1) * factor
            written.add(f"mlp.experts.{e}.{name}", rows, 3e-4 * factor * 2.0**e, scale)
    checkpoint = written.checkpoint()
    halves = [checkpoint.experts("mlp.experts", name) for name in ("gate_proj", "up_proj")]
    weight = fuse(halves)
    found = weight.dequantize(torch.float64).numpy()
    for e in range(E):
        for half, name in ((found[e, :rows], "gate_proj"), (found[e, rows:], "up_proj")):
            assert np.array_equal(half, written.expected[f"mlp.experts.{e}.{name}"])
    if ALGORITHMS[algo][1]:  # per expert: the larger of its two halves
        wanted = [np.float32(0.01 * (e + 1) * factor) for e in range(E) for factor in ratio]
        pairs = np.array(wanted).reshape(E, 2).max(axis=1)
        assert weight.input_scale is not None
        assert np.array_equal(weight.input_scale.numpy(), pairs)


def test_t06_halves_may_lie_in_different_files(tmp_path: Path) -> None:
    """Report R106: w1 and w3 of one expert in two safetensors files."""
    written = Written("NVFP4")
    for factor, name in ((1.0, "experts.0.w1"), (10.0, "experts.0.w3")):
        written.add(name, 64, 1e-3 * factor)
    halves = [{n: t for n, t in written.tensors.items() if w in n} for w in ("w1", "w3")]
    # Also the scales of w3 lie apart from its codes.
    halves[0]["experts.0.w3.weight_scale_2"] = halves[1].pop("experts.0.w3.weight_scale_2")
    index = {}
    for number, tensors in enumerate(halves):
        save_file(tensors, tmp_path / f"model-{number}.safetensors")
        index |= dict.fromkeys(tensors, f"model-{number}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    store = SafetensorsStore(safetensors_files(tmp_path))
    source = Source(path=tmp_path, store=store, quant_config=mo.quantization("NVFP4"))
    checkpoint = Checkpoint(source, ModelOptLoader(source), "modelopt")
    parts = [stack_experts([checkpoint[f"experts.0.{w}"]]) for w in ("w1", "w3")]
    expected = np.concatenate([written.expected[f"experts.0.{w}"] for w in ("w1", "w3")])
    assert np.array_equal(fuse(parts).dequantize(torch.float64).numpy()[0], expected)


def test_t06_a_missing_part_is_an_error_not_a_copy() -> None:
    """Report R107: v_proj without tensors of its own."""
    written = Written("NVFP4")
    written.add("q_proj", 64, 1e-3)
    written.add("k_proj", 32, 1e-3)
    with pytest.raises(KeyError, match="'v_proj' is not in this checkpoint"):
        written.checkpoint().fused(["q_proj", "k_proj", "v_proj"])
    written.tensors["v_proj.weight"] = torch.zeros(32, H, dtype=torch.bfloat16)
    with pytest.raises(CheckpointError, match="v_proj is unquantized, the rest"):
        written.checkpoint().fused(["q_proj", "k_proj", "v_proj"])


def conventions(second: float) -> Sequence[torch.Tensor]:
    """One NVFP4 weight [256, 512] read through ModelOpt and through compressed-tensors, f32."""
    name, n, k = "model.layers.0.mlp.up_proj", 256, 512
    tensors, _ = mo.nvfp4(name, n, k, np.random.default_rng(7), second=second, input_scale=None)
    scales = tensors[f"{name}.weight_scale"].view(torch.uint8)
    scales[0], scales[1], scales[2] = 0x01, 0x7E, 0x00  # 2^-9, 448 and 0
    divisor = torch.reciprocal(tensors[f"{name}.weight_scale_2"]).reshape(1)
    packed = {
        f"{name}.weight_packed": tensors[f"{name}.weight"],
        f"{name}.weight_scale": tensors[f"{name}.weight_scale"],
        f"{name}.weight_global_scale": divisor,
    }
    weights = {
        "num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group",
        "group_size": 16, "dynamic": False,
    }  # fmt: skip
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    config = {
        "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
        "quantization_status": "compressed", "ignore": [], "config_groups": {"group_0": group},
    }  # fmt: skip
    loaders = (
        memory_loader(ModelOptLoader, tensors, mo.quantization("W4A16_NVFP4")),
        memory_loader(CompressedTensorsLoader, packed, config),
    )
    return [loader.load(next(iter(loader.plan()))).dequantize() for loader in loaders]


@pytest.mark.parametrize("second", [2.0**-12, 3.1e-4, 1.0])
def test_t07_a_multiplier_and_its_reciprocal_as_divisor_agree(second: float) -> None:
    multiplied, divided = conventions(second)
    difference = (multiplied.view(torch.int32) - divided.view(torch.int32)).abs()
    assert int(difference.max()) <= 1  # units in the last place: signs and zeros agree too
    assert not multiplied[2].any()
    assert float(multiplied[1].abs().max()) > 448 * second  # and not its inverse
    x = torch.randn(8, 512, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    one, other = x @ multiplied.double().t(), x @ divided.double().t()
    assert float((one - other).norm() / one.norm()) <= 1e-6
