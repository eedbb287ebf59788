"""`humming compile`: what it makes is what layers on such a device would compile, all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cli_runner import invoke, random_weight, save
from fake_engine import fake
from fake_kernels import FakeBackend

from humming import load_checkpoint
from humming.backend import KernelSpec
from humming.configs import ComputeConfig, GemmKind
from humming.engine import Planner, Workshop, needed_kernels
from humming.engine.aligning import align_specs
from humming.jit import Cache, KernelLibrary
from humming.layer import prepare
from humming.selection import find_profile

pytestmark = [pytest.mark.compile, pytest.mark.usefixtures("fake")]
__all__ = ["fake"]

BACKEND = ("--backend", "fake")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    layers = {
        **{f"layers.{i}.up": random_weight("u4-g32-f16", 32, 64, seed=i) for i in range(3)},
        "layers.0.down": random_weight("u4-g32-f16", 64, 32),
        "layers.0.experts": random_weight("mxfp4", 3, 32, 64),
    }
    return save(tmp_path / "model.safetensors", layers)


def compiled(model: Path, out: Path, *more: str, profile: str = "nvidia-a100"):
    return invoke("compile", model, "--profile", profile, "--out", out, *BACKEND, *more, "--json")


def test_everything_is_there_and_nothing_is_left_to_compile(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "kernels"
    result = compiled(model, out, "--dtype", "f16", "--top-k", "2", "--m", "64")
    assert result.status == 0, result.err
    data = result.json
    assert data["kernels"] == 2 + 2 + 1 + 2  # dense, indexed, unpacking, sorting
    rows = {row["names"][0]: row for row in data["layers"]}
    assert rows["layers.0.up"]["names"] == [f"layers.{i}.up" for i in range(3)]
    assert [rows[f"layers.0.{name}"]["kernels"] for name in ("up", "down", "experts")] == [3, 3, 5]
    assert sum(row["new"] for row in data["layers"]) == data["kernels"]
    monkeypatch.setenv("HUMMING_NO_JIT", "1")
    workshop = Workshop(KernelLibrary(Cache(None, [out])))
    for name, weight in load_checkpoint(model).items():
        gemm = GemmKind.INDEXED if weight.experts else GemmKind.DENSE
        specs = device_specs(weight, gemm)
        assert workshop.library.get_many([workshop.program(s, "cubin") for s in specs]), name


def device_specs(weight: object, gemm: GemmKind) -> list[KernelSpec]:
    """What a layer asks for on the device, found apart from the command."""
    backend = FakeBackend(find_profile(profile="nvidia-a100"))
    config = prepare(weight, torch.float16, backend="fake", device="sim:nvidia-a100").layer  # type: ignore[arg-type]
    planner = Planner(backend, config, ComputeConfig(gemm=gemm))
    specs = [planner.spec(tuning) for tuning in planner.tunings([1, 3, 9, 64], 2)]
    specs += align_specs(specs) if gemm is GemmKind.INDEXED else []
    repack = backend.repack(weight, config)  # type: ignore[arg-type]
    assert repack is not None
    return [*specs, repack.kernel]


def test_kinds_of_routing_can_be_named(model: Path, tmp_path: Path) -> None:
    kinds = ("--gemm", "grouped_masked", "--gemm", "grouped_contiguous")
    result = compiled(model, tmp_path / "a", "--layer", "*experts", "--m", "8", *kinds)
    assert result.status == 0, result.err
    assert result.json["kernels"] == 2 * 2 + 1
    again = compiled(model, tmp_path / "a", "--layer", "*experts", "--m", "8", *kinds)
    assert again.json["kernels"] == 2 * 2 + 1


def test_config_json_says_how_many_experts_a_token_has(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save(folder / "model.safetensors", {"experts": random_weight("mxfp4", 3, 32, 64)})
    (folder / "config.json").write_text('{"num_experts_per_tok": 4, "torch_dtype": "float16"}')
    from humming.cli.expert_layers import top_k_of

    assert top_k_of(load_checkpoint(folder)) == 4


def test_people_get_a_table(model: Path, tmp_path: Path) -> None:
    result = invoke("compile", model, "--profile", "nvidia-a100", "--out", tmp_path / "a",
                    "--layer", "*up", "--m", "8", *BACKEND)  # fmt: skip
    assert result.status == 0
    head, row = (line.split() for line in result.out.splitlines()[2:4])
    assert head == ["layer", "count", "weight", "shape", "activation", "backend", "kernels",
                    "new", "seconds"]  # fmt: skip
    assert row[:2] == ["layers.{0..2}.up", "3"]
    assert "3 kernels in" in result.out.splitlines()[-1]


def test_layers_without_kernels_are_named_and_fail(model: Path, tmp_path: Path) -> None:
    result = invoke("compile", model, "--profile", "nvidia-a100", "--out", tmp_path / "a",
                    "--backend", "reference")  # fmt: skip
    assert result.status == 1
    assert "no kernels: layers.0.up (3 layers): reference, which would compute" in result.out
    assert invoke("compile", model, "--profile", "nobody", "--out", tmp_path / "a").status == 2
    assert invoke("compile", model, "--profile", "nvidia-a100").status == 2
    wrong = invoke("compile", model, "--profile", "nvidia-a100", "--out", tmp_path, "--dtype", "s8")
    assert wrong.status == 2


def test_a_folder_that_keeps_nothing_is_an_error(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cache, "store", lambda *args: None)
    result = invoke("compile", model, "--profile", "nvidia-a100", "--out", tmp_path / "a",
                    "--layer", "*up", "--m", "1", *BACKEND)  # fmt: skip
    assert result.status == 1
    assert "holds 0 of 2 kernels: it can't be written" in result.err


def test_what_is_needed_holds_for_all_sizes(model: Path) -> None:
    weight = load_checkpoint(model)["layers.0.up"]
    backend = FakeBackend(find_profile(profile="nvidia-a100"))
    config = prepare(weight, torch.float16, backend="fake", device="sim:nvidia-a100").layer
    names = [spec.name for spec in needed_kernels(backend, weight, config, ComputeConfig())]
    assert names[-1] == "fake.unpack"
    assert set(names[:-1]) == {f"fake.gemm.dense.f16_f16_{splits}" for splits in (1, 2)}
