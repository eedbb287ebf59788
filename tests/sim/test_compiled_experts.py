"""After `humming compile`, QuantMoE over a checkpoint's experts compiles nothing, in any layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cli_runner import invoke, random_weight, save
from moe_cases import hidden_of, router

from humming import Checkpoint, Gating, GemmKind, QuantMoE, fuse, load_checkpoint
from humming.engine import workshop
from humming.errors import UnsupportedError

pytestmark = pytest.mark.compile

FIXTURE = Path(__file__).parents[1] / "fixtures" / "mxfp4" / "gpt_oss"
LAYOUTS = (None, GemmKind.INDEXED, GemmKind.GROUPED_CONTIGUOUS)
EXPERTS = "model.layers.0.mlp.experts"


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is all that this process may take kernels from."""
    out = tmp_path / "kernels"
    monkeypatch.setenv("HUMMING_CACHE_DIR", str(out))
    monkeypatch.setenv("HUMMING_NO_JIT", "1")
    monkeypatch.delenv("HUMMING_CACHE_READONLY", raising=False)
    workshop.cache_clear()
    yield out
    workshop.cache_clear()


def compiled(folder: Path, out: Path, *more: str) -> dict[str, object]:
    result = invoke("compile", folder, "--profile", "nvidia-h100", "--out", out, "--ptx",
                    "--m", "40", "--layer", "*expert*", *more, "--json")  # fmt: skip
    assert result.status == 0, result.out + result.err
    rows = {row["names"][0]: row for row in result.json["layers"]}
    return rows[EXPERTS]


def run(layer: QuantMoE, top_k: int) -> None:
    """Calls of few tokens, and of as many as were compiled for if the layer chooses its layout."""
    for m in (1, 5, 40) if layer.layout is None else (4,):
        ids, weights = router(m, top_k, layer.experts)
        x = hidden_of(m, layer.hidden_size, torch.bfloat16)
        assert layer(x, ids if m % 2 else ids.int(), weights).isfinite().all()


def model(tmp_path: Path, source: dict[str, object]) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in FIXTURE.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((FIXTURE / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | source))
    return folder


def test_gpt_oss(tmp_path: Path, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"model_type": "gpt_oss", "num_experts_per_tok": 2, "swiglu_limit": 6.5,
             "hidden_act": "silu", "torch_dtype": "bfloat16"}  # fmt: skip
    folder = model(tmp_path, facts)
    monkeypatch.setenv("HUMMING_NO_JIT", "0")
    row = compiled(folder, fresh)
    assert row["gating"] == "swiglu_oai(alpha=1.702, limit=6.5, interleaved)"
    monkeypatch.setenv("HUMMING_NO_JIT", "1")
    checkpoint = load_checkpoint(folder)
    weights = [checkpoint[f"{EXPERTS}.{name}_proj"] for name in ("gate_up", "down")]
    gating = Gating.of("swiglu_oai", interleaved=True, limit=6.5)
    for layout in LAYOUTS:
        run(QuantMoE(*weights, gating=gating, device="sim:nvidia-h100", layout=layout), 2)
    other = QuantMoE(*weights, gating="geglu", device="sim:nvidia-h100", layout=LAYOUTS[1])
    with pytest.raises(UnsupportedError, match="_geglu for sm_90a"):
        run(other, 2)


def test_quantized_inputs_of_experts_stored_one_by_one_with_shared_ones(
    tmp_path: Path, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = {"gate_proj": (32, 64), "up_proj": (32, 64), "down_proj": (64, 32)}
    prefixes = [f"{EXPERTS}.{i}" for i in range(4)] + ["model.layers.0.mlp.shared_experts"]
    layers = {
        f"{prefix}.{name}": random_weight("u4-g32-bf16", *shape, seed=i)
        for prefix in prefixes
        for i, (name, shape) in enumerate(shapes.items())
    }
    folder = tmp_path / "model"
    folder.mkdir()
    save(folder / "model.safetensors", layers)
    facts = {"hidden_act": "gelu_pytorch_tanh", "num_experts_per_tok": 3, "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(facts))
    monkeypatch.setenv("HUMMING_NO_JIT", "0")
    row = compiled(folder, fresh, "--activation", "int8")
    assert (row["gating"], row["experts"], row["n"]) == ("geglu_tanh", 4, 64)
    monkeypatch.setenv("HUMMING_NO_JIT", "1")
    gate_up, down, shared = parts(load_checkpoint(folder), prefixes[-1])
    for layout in LAYOUTS:
        layer = QuantMoE(gate_up, down, gating="geglu_tanh", shared=shared, activation="int8",
                         device="sim:nvidia-h100", layout=layout)  # fmt: skip
        run(layer, 3)


def parts(checkpoint: Checkpoint, shared: str) -> tuple[object, ...]:
    gate, up, down = (
        checkpoint.experts(EXPERTS, f"{name}_proj") for name in ("gate", "up", "down")
    )
    beside = checkpoint.fused([f"{shared}.gate_proj", f"{shared}.up_proj"])
    return fuse([gate, up]), down, (beside, checkpoint[f"{shared}.down_proj"])
