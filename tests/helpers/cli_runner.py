"""Running `humming` in this process, and small checkpoints to run it on."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from humming.__main__ import main
from humming.checkpoints.humming_form import save_checkpoint
from humming.quantizing import quantize
from humming.weight import CanonicalWeight


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def invoke(*argv: object, terminal_errors: bool = False) -> Result:
    """`humming ARGV...` with both streams in a pipe, or standard error on a terminal."""
    out, err = io.StringIO(), Terminal() if terminal_errors else io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([str(word) for word in argv])
    return Result(status, out.getvalue(), err.getvalue())


def random_weight(scheme: str, *shape: int, seed: int = 0, bias: bool = False) -> CanonicalWeight:
    """A quantized weight [N, K] or [E, N, K] whose rows differ in size."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.exp2(torch.rand(*shape[:-1], 1, generator=generator) * 6 - 3)
    dense = torch.randn(*shape, generator=generator) * 0.02 * sizes
    extra = torch.randn(*shape[:-1], generator=generator) if bias else None
    return quantize(dense, scheme, bias=extra)


def save(path: Path, layers: Mapping[str, CanonicalWeight], **rest: torch.Tensor) -> Path:
    """Write humming's form; keywords are further tensors, __ standing for a dot."""
    named = {name.replace("__", "."): tensor for name, tensor in rest.items()}
    return save_checkpoint(path, layers, named)


def save_float_model(folder: Path, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A tiny float model in a Hugging Face directory; returns its tensors."""
    generator = torch.Generator().manual_seed(1)

    def randn(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * 0.1).to(torch.bfloat16)

    tensors = {
        "model.embed_tokens.weight": randn(40, 64),
        "model.norm.weight": randn(64),
        "lm_head.weight": randn(40, 64),
        "model.rotary.inv_freq": randn(8),
    }
    for i in range(2):
        layer = f"model.layers.{i}"
        tensors |= {
            f"{layer}.input_layernorm.weight": randn(64),
            f"{layer}.self_attn.q_proj.weight": randn(64, 64),
            f"{layer}.self_attn.q_proj.bias": randn(64),
            f"{layer}.mlp.gate.weight": randn(4, 64),
            f"{layer}.mlp.gate_proj.weight": randn(96, 64),
            f"{layer}.mlp.down_proj.weight": randn(64, 96),
        }
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model = {"model_type": "llama", "torch_dtype": "bfloat16", **(config or {})}
    (folder / "config.json").write_text(json.dumps(model))
    (folder / "tokenizer.json").write_text('{"a": 1}')
    return tensors
