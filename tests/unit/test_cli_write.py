"""`humming quantize` and `humming convert`: what they write, what they leave, what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from cli_runner import invoke, random_weight, save, save_float_model
from gguf_files import random_blocks, write_gguf
from numpy.random import default_rng
from safetensors.torch import load_file, save_file

from humming.loading import load_checkpoint
from humming.quantizing import quantize
from humming.weight import CanonicalWeight

LINEAR = [f"model.layers.{i}.{p}" for i in range(2)
          for p in ("self_attn.q_proj", "mlp.gate_proj", "mlp.down_proj")]  # fmt: skip


def equal(a: CanonicalWeight, b: CanonicalWeight) -> bool:
    mine, theirs = dict(a.tensors()), dict(b.tensors())
    return (
        (a.scheme, a.shape, a.offset, a.activation) == (b.scheme, b.shape, b.offset, b.activation)
        and mine.keys() == theirs.keys()
        and all(torch.equal(mine[field], theirs[field]) for field in mine)
    )


def test_linear_layers_are_quantized_with_their_biases(tmp_path: Path) -> None:
    tensors = save_float_model(tmp_path / "in")
    result = invoke("quantize", tmp_path / "in", tmp_path / "out", "--scheme", "u4+z-g32-f16")
    assert (result.status, result.err) == (0, "")
    written = load_checkpoint(tmp_path / "out")
    assert sorted(written) == sorted(LINEAR)
    for name in LINEAR:
        wanted = quantize(
            tensors[f"{name}.weight"], "u4+z-g32-f16", bias=tensors.get(f"{name}.bias")
        )
        assert equal(written[name], wanted)
    assert written["model.layers.0.self_attn.q_proj"].bias is not None


def test_everything_else_is_copied_and_listed(tmp_path: Path) -> None:
    tensors = save_float_model(tmp_path / "in")
    result = invoke("quantize", tmp_path / "in", tmp_path / "out", "--scheme", "int4-g32", "--json")
    data = result.json
    assert set(data) == {"input", "output", "layers", "copied_tensors", "copied_files"}
    claimed = {f"{name}.{suffix}" for name in LINEAR for suffix in ("weight", "bias")}
    assert sorted(data["copied_tensors"]) == sorted(set(tensors) - claimed)
    written = load_checkpoint(tmp_path / "out")
    for name in data["copied_tensors"]:
        assert torch.equal(written.tensor(name), tensors[name])
    assert data["copied_files"] == ["tokenizer.json"]
    assert (tmp_path / "out" / "tokenizer.json").read_text() == '{"a": 1}'
    text = invoke("quantize", tmp_path / "in", tmp_path / "o2", "--scheme", "int4-g32").out
    assert "model.layers.{0,1}.mlp.gate.weight  (2)" in text
    assert "lm_head.weight" in text


def test_the_model_s_config_is_kept(tmp_path: Path) -> None:
    save_float_model(tmp_path / "in", {"hidden_size": 64})
    invoke("quantize", tmp_path / "in", tmp_path / "out", "--scheme", "int4-g32")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["hidden_size"] == 64
    assert config["quantization_config"]["quant_method"] == "humming"


def test_the_result_runs(tmp_path: Path) -> None:
    save_float_model(tmp_path / "in")
    invoke("quantize", tmp_path / "in", tmp_path / "out.safetensors", "--scheme", "nvfp4")
    result = invoke("run", tmp_path / "out.safetensors", "--m", "3")
    assert result.status == 0
    assert "6 of 6 layers are within tolerance" in result.out


def quantized(tmp_path: Path, *options: str) -> set[str]:
    result = invoke(
        "quantize", tmp_path / "in", tmp_path / "out", "--scheme", "int4-g32", "--json", *options
    )
    assert result.status == 0, result.err
    return {row["name"] for row in result.json["layers"]}


def test_include_names_the_layers_instead_of_the_usual_ones(tmp_path: Path) -> None:
    save_float_model(tmp_path / "in")
    found = quantized(tmp_path, "--include", "lm_head", "--include", "*.1.mlp.*_proj")
    assert found == {"lm_head", "model.layers.1.mlp.gate_proj", "model.layers.1.mlp.down_proj"}


def test_exclude_leaves_layers_alone(tmp_path: Path) -> None:
    save_float_model(tmp_path / "in")
    found = quantized(tmp_path, "--exclude", "model.layers.0.*", "--exclude", "*down_proj")
    assert found == {"model.layers.1.self_attn.q_proj", "model.layers.1.mlp.gate_proj"}


@pytest.mark.parametrize("option", ["--include", "--exclude"])
def test_a_glob_that_matches_nothing_is_a_usage_error(tmp_path: Path, option: str) -> None:
    save_float_model(tmp_path / "in")
    result = invoke(
        "quantize", tmp_path / "in", tmp_path / "out", "--scheme", "int4-g32", option, "*.proj"
    )
    assert result.status == 2
    assert "'*.proj' matches no layer" in result.err
    assert not (tmp_path / "out").exists()


def test_clip_mse_reaches_a_smaller_error(tmp_path: Path) -> None:
    tensors = save_float_model(tmp_path / "in")
    errors = []
    for clip in ("max", "mse"):
        out = tmp_path / clip
        invoke("quantize", tmp_path / "in", out, "--scheme", "int3-channel", "--clip", clip)
        name = LINEAR[1]
        exact = tensors[f"{name}.weight"].double()
        found = load_checkpoint(out)[name].dequantize(torch.float64)
        errors.append(float((found - exact).square().sum()))
    assert errors[1] < 0.95 * errors[0]


def test_progress_is_shown_on_a_terminal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_float_model(tmp_path / "in")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    result = invoke(
        "quantize", tmp_path / "in", tmp_path / "a", "--scheme", "int4-g32", terminal_errors=True
    )
    assert result.status == 0
    assert "model.layers.1.self_attn.q_proj" in result.err
    piped = invoke("quantize", tmp_path / "in", tmp_path / "b", "--scheme", "int4-g32")
    assert piped.err == ""
    assert piped.out.replace("/b:", "/a:") == result.out


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["quantize", "convert"])
def test_nothing_is_overwritten(tmp_path: Path, command: str) -> None:
    save_float_model(tmp_path / "in")
    target = tmp_path / "out.safetensors"
    target.write_text("precious")
    options = ["--scheme", "int4-g32"] if command == "quantize" else []
    result = invoke(command, tmp_path / "in", target, *options)
    assert result.status == 2
    assert "out.safetensors exists already" in result.err
    assert target.read_text() == "precious"


def test_quantized_input_is_refused_with_the_command_that_helps(tmp_path: Path) -> None:
    path = save(tmp_path / "m.safetensors", {"a": random_weight("nvfp4", 16, 32)})
    result = invoke("quantize", path, tmp_path / "out", "--scheme", "int4-g32")
    assert result.status == 1
    assert "quantized already: 1 layer, humming" in result.err
    assert "humming convert" in result.err


def test_projections_stored_the_other_way_round_are_refused(tmp_path: Path) -> None:
    save_float_model(tmp_path / "in", {"model_type": "gpt2"})
    result = invoke("quantize", tmp_path / "in", tmp_path / "out", "--scheme", "int4-g32")
    assert result.status == 1
    assert "a gpt2 model stores its projections as [K, N]" in result.err


def test_nan_is_refused_by_the_layer_s_name(tmp_path: Path) -> None:
    bad = torch.ones(4, 32)
    bad[2, 3] = torch.nan
    save_file({"a.weight": torch.ones(4, 32), "b.weight": bad}, tmp_path / "in.safetensors")
    result = invoke(
        "quantize", tmp_path / "in.safetensors", tmp_path / "out", "--scheme", "int4-g32"
    )
    assert result.status == 1
    assert "layer 'b': weight='NaN or Inf'" in result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.safetensors"]


def test_a_file_without_matrices_is_refused(tmp_path: Path) -> None:
    save_file({"norm.weight": torch.ones(4)}, tmp_path / "in.safetensors")
    result = invoke(
        "quantize", tmp_path / "in.safetensors", tmp_path / "out", "--scheme", "int4-g32"
    )
    assert result.status == 1
    assert "no float matrix" in result.err


def test_convert_refuses_what_is_not_quantized(tmp_path: Path) -> None:
    save_float_model(tmp_path / "in")
    result = invoke("convert", tmp_path / "in", tmp_path / "out")
    assert result.status == 1
    assert "`humming quantize` does that" in result.err


# -- convert ---------------------------------------------------------------------------------------


@pytest.fixture
def gguf_model(tmp_path: Path) -> Path:
    rng = default_rng(0)
    kinds = {"blk.0.attn_q": "Q4_1", "blk.0.ffn_up": "Q6_K", "blk.1.ffn_up": "Q8_0"}
    tensors: dict[str, object] = {
        f"{name}.weight": (kind, random_blocks(kind, (24, 256), rng))
        for name, kind in kinds.items()
    }
    tensors["blk.0.attn_norm.weight"] = rng.normal(size=256).astype("float32")
    return write_gguf(tmp_path / "m.gguf", tensors)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", ["out", "out.safetensors"])
def test_convert_keeps_every_number(gguf_model: Path, tmp_path: Path, target: str) -> None:
    result = invoke("convert", gguf_model, tmp_path / target, "--json")
    assert result.status == 0, result.err
    assert result.json["copied_tensors"] == ["blk.0.attn_norm.weight"]
    source, written = load_checkpoint(gguf_model), load_checkpoint(tmp_path / target)
    assert written.family == "humming"
    assert sorted(written) == sorted(source)
    assert all(equal(written[name], source[name]) for name in source)
    name = "blk.0.attn_norm.weight"
    assert torch.equal(written.tensor(name), source.tensor(name))


def test_convert_writes_plain_safetensors(gguf_model: Path, tmp_path: Path) -> None:
    invoke("convert", gguf_model, tmp_path / "out.safetensors")
    assert "blk.0.attn_q.weight_packed" in load_file(tmp_path / "out.safetensors")


def test_convert_refuses_types_without_a_standard_form(tmp_path: Path) -> None:
    rng = default_rng(0)
    tensors = {
        "blk.0.a.weight": ("Q4_0", random_blocks("Q4_0", (32, 64), rng)),
        "blk.0.b.weight": ("IQ4_XS", rng.integers(0, 256, (32, 136), dtype="uint8")),
    }
    path = write_gguf(tmp_path / "m.gguf", tensors)
    result = invoke("convert", path, tmp_path / "out")
    assert result.status == 1
    assert "blk.0.b is IQ4_XS" in result.err
    assert not (tmp_path / "out").exists()


def test_descriptions_of_the_old_quantization_are_not_copied(tmp_path: Path) -> None:
    save(tmp_path / "in", {"a": random_weight("nvfp4", 16, 32)})
    for file in ("quantize_config.json", "hf_quant_config.json", "tokenizer.json", "pickle.bin"):
        (tmp_path / "in" / file).write_text("{}")
    result = invoke("convert", tmp_path / "in", tmp_path / "out", "--json")
    assert result.json["copied_files"] == ["tokenizer.json"]
    assert not (tmp_path / "out" / "quantize_config.json").exists()
