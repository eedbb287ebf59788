"""Every checkpoint that a real tool wrote: opened, multiplied by, shared out, fused and rewritten.

tests/fixtures/*/README.md say which tool wrote what. Values are compared with the tools' own in
the tests of each family; here the whole road is walked, up to QuantLinear.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cli_runner import invoke

import humming
from humming.checkpoints.checkpoint import Checkpoint

FIXTURES = Path(__file__).parents[1] / "fixtures"
CHECKPOINTS = sorted(path.parent for path in FIXTURES.glob("*/*/config.json"))
IDS = [path.relative_to(FIXTURES).as_posix() for path in CHECKPOINTS]

every_checkpoint = pytest.mark.parametrize("path", CHECKPOINTS, ids=IDS)


def product(x: torch.Tensor, weight: humming.CanonicalWeight) -> torch.Tensor:
    """Float64 product with unquantized activations, bias left out."""
    if weight.pre_quant_scale is not None:
        x = x * weight.pre_quant_scale.double()
    return x @ weight.dequantize(torch.float64).mT


def relative(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm().clamp(min=1e-300))


def test_all_families_have_fixtures() -> None:
    families = {humming.load_checkpoint(path).family for path in CHECKPOINTS}
    assert families >= {
        "gptq", "awq", "compressed-tensors", "fp8", "mxfp4", "modelopt", "quark", "auto-round",
        "bitnet",
    }  # fmt: skip


@every_checkpoint
def test_every_layer_multiplies_right(path: Path) -> None:
    result = invoke("run", path, "--m", "1,7,33", "--json")
    assert result.status == 0, result.out + result.err
    assert result.json["layers"]


@every_checkpoint
def test_shards_of_every_layer_add_up(path: Path) -> None:
    checkpoint = humming.load_checkpoint(path)
    for name in checkpoint:
        weight = checkpoint[name]
        x = torch.randn(3, weight.k, dtype=torch.float64)
        whole = product(x, weight)
        for dim, size in (("n", weight.n), ("k", weight.k)):
            world = next((w for w in (4, 3, 2) if size % w == 0), 1)
            parts = [weight.shard(dim, rank, world) for rank in range(world)]
            if dim == "n":
                joined = torch.cat([product(x, part) for part in parts], dim=-1)
            else:
                pieces = x.chunk(world, dim=1)
                joined = sum(
                    (product(a, b) for a, b in zip(pieces, parts, strict=True)),
                    torch.zeros_like(whole),
                )
            assert relative(joined, whole) < 1e-12, (name, dim, world)


@every_checkpoint
def test_layers_stacked_as_experts_multiply_like_the_layers(path: Path) -> None:
    checkpoint = humming.load_checkpoint(path)
    name = next(iter(checkpoint))
    weight = checkpoint[name]
    if weight.experts:
        stack, singles = weight, [weight.expert(e) for e in range(weight.experts)]
    else:
        singles = [weight, weight.replace(scales=weight.scales.flip(0))]
        stack = humming.stack_experts(singles)
    if str(stack.activation) == "e4m3fn-tensor-f32":  # one dynamic scale over all experts
        with pytest.raises(humming.NoBackendError, match="one dynamic activation scale"):
            humming.QuantLinear(stack).prepare(torch.float32)
        return
    x = torch.randn(5, weight.k)
    ids = torch.arange(10).view(5, 2) % (len(singles) + 1) - 1
    together = humming.matmul(x, stack, expert_ids=ids, backend="reference")
    for token in range(5):
        for choice in range(2):
            e = int(ids[token, choice])
            expected = (
                torch.zeros(weight.n)
                if e < 0
                else humming.matmul(x[token], singles[e], backend="reference")
            )
            torch.testing.assert_close(together[token, choice], expected, rtol=1e-5, atol=1e-5)


@every_checkpoint
def test_hummings_own_form_keeps_every_tensor(path: Path, tmp_path: Path) -> None:
    checkpoint = humming.load_checkpoint(path)
    again = humming.load_checkpoint(checkpoint.save(tmp_path / "copy"))
    assert list(again) == list(checkpoint)
    for name in checkpoint:
        before, after = checkpoint[name], again[name]
        assert (after.scheme, after.activation) == (before.scheme, before.activation)
        kept = dict(after.tensors())
        for field, tensor in before.tensors():
            assert torch.equal(kept[field], tensor), (name, field)
        assert len(kept) == len(dict(before.tensors()))


def test_experts_are_stacked_by_name() -> None:
    checkpoint = humming.load_checkpoint(FIXTURES / "modelopt" / "experts_nvfp4")
    assert any(checkpoint.plan(name).experts for name in checkpoint)
    assert isinstance(checkpoint, Checkpoint)
