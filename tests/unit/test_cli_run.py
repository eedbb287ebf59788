"""`humming run`: what is right passes, what is wrong in any way fails and is named."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runner import invoke, random_weight, save, save_float_model
from gguf_files import random_blocks, write_gguf
from numpy.random import default_rng
from safetensors.torch import save_file

from humming.cli.trial import Job, _cases
from humming.errors import LaunchError
from humming.formats.activation import ActivationScheme
from humming.reference import ReferenceBackend


@pytest.fixture
def model(tmp_path: Path) -> Path:
    dense = random_weight("u4+z-g32-f16", 48, 96, bias=True)
    shuffle = torch.randperm(96, generator=torch.Generator().manual_seed(0)).to(torch.int32)
    asks = ActivationScheme.parse("e4m3fn-tensor-f32-static")
    layers = {
        "a.dense": dense,
        "a.act_order": dense.replace(permutation=shuffle),
        "a.scaled": dense.replace(pre_quant_scale=torch.linspace(0.5, 2, 96)),
        "b.static": random_weight("fp8", 64, 64).replace(
            activation=asks, input_scale=torch.tensor(0.3)
        ),
        "b.nvfp4": random_weight("nvfp4", 64, 64),
        "c.experts": random_weight("mxfp4", 3, 32, 64, bias=True),
    }
    return save(tmp_path / "model.safetensors", layers)


def test_right_results_pass(model: Path) -> None:
    result = invoke("run", model, "--m", "1,7", "--json")
    assert result.status == 0
    data = result.json
    assert set(data) == {"path", "family", "device", "m", "layers", "unreadable", "passed"}
    assert data["passed"] is True
    assert data["m"] == [1, 7]
    rows = {row["name"]: row for row in data["layers"]}
    assert len(rows) == 6
    for row in rows.values():
        assert (row["status"], row["reason"], row["backend"]) == ("ok", None, "reference")
        assert (row["output"], row["tolerance"]) == ("bf16", 4e-3)
        assert [trial["m"] for trial in row["trials"]] == [1, 7]
        for trial in row["trials"]:
            # Rounding to bf16 alone is off by some 1.7e-3: less would be suspicious.
            assert 5e-4 < trial["error"] <= 4e-3
            assert trial["error"] <= trial["worst_row"] * 1.001
            assert trial["ms"] > 0
    assert rows["b.static"]["activation"] == "e4m3fn-tensor-f32-static"
    assert rows["c.experts"]["experts"] == 3


def test_every_layer_has_a_row_for_people(model: Path) -> None:
    result = invoke("run", model, "--m", "2")
    assert result.status == 0
    assert result.err == ""
    assert re.search(r"^layer +weight +shape +activation +backend +error +worst row +ms, m=2$",
                     result.out, re.MULTILINE)  # fmt: skip
    row = r"^c\.experts +e2m1-g32-e8m0 \(mxfp4\) +3 x \[32, 64\] +bf16 +reference +\S+e-03 .* ok$"
    assert re.search(row, result.out, re.MULTILINE)
    assert "6 of 6 layers are within tolerance" in result.out


@pytest.mark.parametrize("activation", ["bf16", "f16", "f32", "fp8", "mxfp8", "e5m2-tensor-f32"])
def test_activations_can_be_chosen(model: Path, activation: str) -> None:
    options = ("--m", "9", "--layer", "b.*", "--activation", activation)
    data = invoke("run", model, *options, "--json").json
    assert data["passed"] is True
    unquantized = activation in ("bf16", "f16", "f32")
    for row in data["layers"]:
        assert row["activation"] == str(ActivationScheme.parse(activation))
        assert row["output"] == (activation if unquantized else "bf16")
        assert row["tolerance"] == {"bf16": 4e-3, "f16": 1e-3, "f32": 1e-5}[row["output"]]


def test_the_numbers_are_the_same_whichever_layers_are_run(model: Path) -> None:
    def errors(*options: str) -> list[float]:
        rows = invoke("run", model, "--m", "3", "--json", *options).json["layers"]
        return [trial["error"] for r in rows if r["name"] == "b.nvfp4" for trial in r["trials"]]

    assert errors() == errors("--layer", "b.nvfp4")


def test_inputs_have_outlier_channels() -> None:
    weight = random_weight("fp8-channel", 8, 1000)
    job = Job(sizes=[64], dtype=torch.float32)
    (case,) = _cases(weight, job)
    spread = case.x.std(dim=0)
    assert int((spread > 20).sum()) == 10
    assert float(spread.sort().values[:990].mean()) == pytest.approx(1, abs=0.05)


# -- what is wrong ---------------------------------------------------------------------------------


def spoil(monkeypatch: pytest.MonkeyPatch, change: Callable[[torch.Tensor], object]) -> None:
    """Let the reference backend return changed results."""
    real = ReferenceBackend.prepare

    def prepare(self: ReferenceBackend, *args: Any) -> Callable[..., torch.Tensor]:
        right = real(self, *args)

        def wrong(*args: Any, **kwargs: Any) -> torch.Tensor:
            result = right(*args, **kwargs)
            change(result)
            return result

        return wrong

    monkeypatch.setattr(ReferenceBackend, "prepare", prepare)


def test_results_that_are_all_slightly_off_fail(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, lambda y: y.mul_(1.01))
    result = invoke("run", model, "--m", "5")
    assert result.status == 1
    assert "0 of 6 layers are within tolerance" in result.out
    assert len(re.findall(r"WRONG$", result.out, re.MULTILINE)) == 6
    assert re.search(
        r"wrong: a\.dense \(1 layer\): beyond 4e-03 .* at m=5: (1\.0\de-02|9\.\d\de-03)", result.out
    )


def test_one_bad_row_fails_though_the_whole_is_within_the_limit(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, lambda y: y[3].mul_(1.03))
    data = invoke("run", model, "--m", "1000", "--layer", "b.nvfp4", "--json").json
    (row,) = data["layers"]
    assert row["trials"][0]["error"] <= 4e-3
    assert row["trials"][0]["worst_row"] > 1.2e-2
    assert row["status"] == "wrong"
    assert data["passed"] is False


def test_nan_fails_and_is_null_in_json(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, lambda y: y[-1].fill_(torch.nan))
    result = invoke("run", model, "--m", "1,4", "--layer", "a.dense", "--json")
    assert result.status == 1
    (row,) = result.json["layers"]
    assert row["status"] == "wrong"
    assert [trial["error"] for trial in row["trials"]] == [None, None]
    text = invoke("run", model, "--m", "4", "--layer", "a.dense").out
    assert re.search(r"a\.dense .* nan .*WRONG", text)


def test_a_wrong_expert_fails(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, lambda y: y.copy_(y.flip(0)))
    data = invoke("run", model, "--m", "16", "--layer", "c.experts", "--json").json
    assert data["layers"][0]["status"] == "wrong"


def test_a_refusal_fails_with_its_reason_and_others_go_on(model: Path) -> None:
    result = invoke("run", model, "--m", "1", "--layer", "b.*", "--layer", "a.dense",
                    "--activation", "int4")  # fmt: skip
    assert result.status == 1
    assert re.search(r"^b\.nvfp4 .* - .* REFUSED$", result.out, re.MULTILINE)
    assert "refused: b.static (1 layer): host CPU can't multiply s4-token-f32" in result.out
    rows = invoke("run", model, "--m", "1", "--activation", "int4", "--json").json["layers"]
    assert {row["name"]: row["status"] for row in rows}["b.static"] == "refused"
    assert all(row["trials"] == [] for row in rows if row["status"] == "refused")


def test_a_layer_that_cannot_be_read_fails_and_others_go_on(tmp_path: Path) -> None:
    good = random_weight("fp8-channel", 16, 32)
    path = save(tmp_path / "m.safetensors", {"good": good, "bad": good})
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    tensors["bad.weight_scale"] = torch.ones(15, 1)
    save_file(tensors, tmp_path / "damaged.safetensors", metadata=metadata)
    result = invoke("run", tmp_path / "damaged.safetensors", "--m", "1", "--json")
    assert result.status == 1
    rows = {row["name"]: row for row in result.json["layers"]}
    assert rows["good"]["status"] == "ok"
    assert rows["bad"]["status"] == "unreadable"
    assert "layer 'bad'" in rows["bad"]["reason"]


def test_a_failing_launch_is_an_outcome(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(_: torch.Tensor) -> None:
        raise LaunchError("gemm", "[1, 1, 1]", "CUDA_ERROR_ILLEGAL_ADDRESS")

    spoil(monkeypatch, change)
    result = invoke("run", model, "--m", "1", "--layer", "a.dense", "--json")
    assert result.status == 1
    (row,) = result.json["layers"]
    assert row["status"] == "failed"
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in row["reason"]
    assert row["backend"] == "reference"


def test_matrices_without_a_standard_form_are_not_forgotten(tmp_path: Path) -> None:
    good = random_blocks("Q4_0", (32, 64), default_rng(0))
    codes = default_rng(0).integers(0, 256, (32, 136), dtype="uint8")
    path = write_gguf(
        tmp_path / "m.gguf",
        {"blk.0.a.weight": ("Q4_0", good), "blk.0.b.weight": ("IQ4_XS", codes)},
    )
    result = invoke("run", path, "--m", "1")
    assert result.status == 1
    assert "1 of 2 layers are within tolerance" in result.out
    assert "can't be read: blk.0.b" in result.out
    assert invoke("run", path, "--m", "1", "--layer", "blk.0.a").status == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--backend", "nobody"), "there is no backend 'nobody'"),
        (("--device", "cuda:99"), "device='cuda:99'"),
        (("--device", "moon"), "device='moon'"),
        (("--layer", "z.*"), "'z.*' matches no layer"),
    ],
)
def test_names_of_nothing_are_usage_errors(
    model: Path, options: tuple[str, str], message: str
) -> None:
    result = invoke("run", model, *options)
    assert (result.status, result.out) == (2, "")
    assert message in result.err


def test_a_float_checkpoint_is_refused_with_the_command_that_helps(tmp_path: Path) -> None:
    save_float_model(tmp_path / "m")
    result = invoke("run", tmp_path / "m")
    assert result.status == 1
    assert "nothing in it is quantized; `humming quantize` does that" in result.err
