"""route(), quantize_input() and `humming compile` for experts on a real device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from cli_runner import invoke, random_weight, save
from moe_cases import hidden_of, router

import humming
from humming import GemmKind, QuantMoE, combining, load_checkpoint, quantize_input
from humming.engine import workshop
from humming.selection import find_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    # What torch says of the mode that no_waiting() turns on.
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
]

LAYOUTS = (GemmKind.INDEXED, GemmKind.GROUPED_CONTIGUOUS, GemmKind.GROUPED_MASKED)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Any wait for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("m", "top_k", "experts"), [(1, 1, 1), (77, 4, 32), (4096, 8, 256)])
def test_routes_are_those_of_torch(layout: GemmKind, m: int, top_k: int, experts: int) -> None:
    ids = torch.randint(-1, experts + 2, (m, top_k), generator=torch.Generator().manual_seed(m))
    room = m * top_k if m < 100 else m
    capacity = room if layout is GemmKind.GROUPED_MASKED else None
    wanted = combining.route(ids, experts, layout, capacity=capacity)
    for given in (ids.cuda(), ids.int().cuda()):
        humming.route(given, experts, layout, capacity=capacity)
        with no_waiting():
            found = humming.route(given, experts, layout, capacity=capacity)
        for name in ("table", "sources", "places"):
            assert torch.equal(getattr(found, name).cpu(), getattr(wanted, name)), name


@pytest.mark.parametrize(
    "text",
    ["e4m3fn-token-f32", "e5m2-token-f32", "s8-token-f32", "s4-token-f32", "e3m4-token-f32",
     "e2m1-g16-e4m3fn-token", "e0m3-g16-e4m3fn-token", "e2m1-g32-e8m0", "fp8-block"],
)  # fmt: skip
def test_codes_are_those_of_torch(text: str) -> None:
    x, rows = hidden_of(65, 4096, torch.bfloat16), torch.randint(-1, 66, (90,))
    on_device = x.cuda()
    for options in ({}, {"hadamard": 128}, {"rows": rows}):
        wanted = quantize_input(x, text, **options)
        there = {name: v.cuda() if name == "rows" else v for name, v in options.items()}
        quantize_input(on_device, text, **there)  # compiles, and makes tables of scales
        with no_waiting():
            found = quantize_input(on_device, text, **there)
        for name in ("codes", "scales", "second"):
            mine, theirs = getattr(found, name), getattr(wanted, name)
            assert (mine is None) == (theirs is None)
            assert mine is None or torch.equal(mine.cpu(), theirs), name


def test_pieces_are_captured() -> None:
    x, (ids, _) = hidden_of(33, 512, torch.bfloat16).cuda(), router(33, 4, 8, device="cuda")

    def pieces() -> tuple[torch.Tensor, ...]:
        routes = humming.route(ids, 8)
        found = quantize_input(x, "int8", rows=routes.sources)
        return routes.sources, found.codes, found.scales

    wanted, graph = pieces(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = pieces()
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, wanted, strict=True))


def test_nothing_is_compiled_after_humming_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = {
        "experts.gate_up_proj": random_weight("u4-g32-bf16", 8, 256, 128),
        "experts.down_proj": random_weight("u4-g32-bf16", 8, 128, 128),
    }
    path, out = save(tmp_path / "model.safetensors", layers), tmp_path / "kernels"
    profile = find_device("cuda").profile.name
    result = invoke("compile", path, "--profile", profile, "--out", out, "--dtype", "bf16",
                    "--top-k", "2", "--m", "512")  # fmt: skip
    assert result.status == 0, result.out
    monkeypatch.setenv("HUMMING_CACHE_DIR", str(out))
    monkeypatch.setenv("HUMMING_NO_JIT", "1")
    monkeypatch.delenv("HUMMING_CACHE_READONLY", raising=False)
    workshop.cache_clear()
    try:
        gate_up, down = (weight.to("cuda") for weight in load_checkpoint(path).values())
        for layout in (None, *LAYOUTS[:2]):
            layer = QuantMoE(gate_up, down, layout=layout)
            for m in (1, 5, 40, 512):
                ids, weights = router(m, 2, 8, device="cuda")
                x = hidden_of(m, 128, torch.bfloat16, device="cuda")
                for choice in (ids, ids.int()):
                    assert bool(layer(x, choice, weights).isfinite().all())
    finally:
        workshop.cache_clear()
