"""`humming inspect`: everything from headers, repeated layers in one row, refusals with reasons."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import cli_runner
import pytest
import torch
from cli_runner import invoke, random_weight, save
from gguf_files import random_blocks, write_gguf
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from safetensors.torch import save_file

import humming.cli.inspect
from humming.backend import Backend
from humming.checkpoints.store import SafetensorsStore
from humming.cli.layers import fold
from humming.configs import ComputeConfig, LayerConfig
from humming.formats.activation import ActivationScheme
from humming.reference import ReferenceBackend
from humming.weight import CanonicalWeight


@pytest.fixture
def model(tmp_path: Path) -> Path:
    layers = {}
    for i in range(3):
        layers[f"model.layers.{i}.mlp.up_proj"] = random_weight("nvfp4", 64, 96, seed=i)
        layers[f"model.layers.{i}.mlp.down_proj"] = random_weight("u4+z-g32-f16", 96, 64, seed=i)
    layers["model.layers.3.mlp.up_proj"] = random_weight("nvfp4", 64, 96, bias=True)
    layers["model.layers.3.experts"] = random_weight("mxfp4", 4, 64, 64)
    return save(
        tmp_path / "model.safetensors",
        layers,
        model__embed__weight=torch.zeros(10, 96, dtype=torch.bfloat16),
        model__norm__weight=torch.zeros(96),
    )


def test_no_tensor_is_read(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object, name: str) -> torch.Tensor:
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(SafetensorsStore, "get", refuse)
    assert invoke("inspect", model, "--all").status == 0


def test_each_layer_is_described(model: Path) -> None:
    result = invoke("inspect", model, "--json")
    assert result.status == 0
    data = result.json
    assert set(data) == {
        "path", "family", "device", "layers", "unquantized", "unreadable", "totals"
    }  # fmt: skip
    assert data["family"] == "humming"
    assert data["device"]["profile"] == "host-cpu"
    rows = {row["name"]: row for row in data["layers"]}
    assert len(rows) == 8
    up = rows["model.layers.0.mlp.up_proj"]
    # 4 bits, a byte per 16, and 32 bits for the whole.
    bits = 4 + 8 / 16 + 32 / (64 * 96)
    assert up.pop("bits_per_weight") == pytest.approx(bits)
    assert up.pop("bytes") == round(bits * 64 * 96 / 8)
    assert up == {
        "name": "model.layers.0.mlp.up_proj",
        "scheme": "e2m1-g16-e4m3fn-tensor",
        "alias": "nvfp4",
        "n": 64,
        "k": 96,
        "experts": 0,
        "bias": False,
        "act_order": False,
        "asked_activation": None,
        "activation": "bf16",
        "backend": "reference",
        "problem": None,
        "refusals": up["refusals"],
    }
    assert rows["model.layers.3.mlp.up_proj"]["bias"] is True
    assert rows["model.layers.3.experts"]["experts"] == 4
    assert rows["model.layers.3.experts"]["bytes"] == 4 * 64 * 64 * 4.25 / 8


def test_totals_are_the_sums(model: Path) -> None:
    data = invoke("inspect", model, "--json").json
    totals = data["totals"]
    assert totals["layers"] == 8
    assert totals["weights"] == 4 * 64 * 96 + 3 * 96 * 64 + 4 * 64 * 64
    assert totals["bytes"] == sum(row["bytes"] for row in data["layers"])
    assert totals["bits_per_weight"] == pytest.approx(8 * totals["bytes"] / totals["weights"])
    assert (totals["unquantized"], totals["unquantized_bytes"]) == (1, 10 * 96 * 2)


def test_unquantized_matrices_are_listed_as_such(model: Path) -> None:
    assert invoke("inspect", model, "--json").json["unquantized"] == [
        {"name": "model.embed", "dtype": "BF16", "shape": [10, 96], "bytes": 1920}
    ]
    text = invoke("inspect", model).out
    assert re.search(r"model\.embed +1 +BF16 +\[10, 96\] +1\.9 KiB", text)


def test_repeated_layers_are_one_row(model: Path) -> None:
    lines = invoke("inspect", model).out.splitlines()
    row = next(line for line in lines if line.startswith("model.layers.{0..2}.mlp.up_proj "))
    assert re.search(r"up_proj +3 +e2m1-g16-e4m3fn-tensor \(nvfp4\) +\[64, 96\]", row)
    # Layer 3 has a bias: another row, and nothing is counted twice.
    assert any(re.match(r"model\.layers\.3\.mlp\.up_proj +1 .* bias ", line) for line in lines)
    assert not any("layers.1.mlp" in line for line in lines)


def test_act_order_is_shown_and_keeps_layers_apart(tmp_path: Path) -> None:
    plain = random_weight("u4-g32-f16", 16, 64)
    shuffled = plain.replace(permutation=torch.arange(63, -1, -1, dtype=torch.int32))
    path = save(tmp_path / "m.safetensors", {"l.0.a": plain, "l.1.a": shuffled, "l.2.a": plain})
    text = invoke("inspect", path).out
    assert re.search(r"^l\.\{0,2\}\.a +2 ", text, re.MULTILINE)
    assert re.search(r"^l\.1\.a +1 .* act-order ", text, re.MULTILINE)
    rows = invoke("inspect", path, "--json").json["layers"]
    assert [row["act_order"] for row in rows] == [False, True, False]


def test_all_has_a_row_for_each_layer(model: Path) -> None:
    text = invoke("inspect", model, "--all").out
    names = [f"model.layers.{i}.mlp.{p}" for i in range(3) for p in ("up_proj", "down_proj")]
    assert all(f"\n{name} " in text for name in names)


def test_a_glob_chooses_layers(model: Path) -> None:
    data = invoke("inspect", model, "--json", "--layer", "*.1.*", "--layer", "*experts").json
    assert [row["name"] for row in data["layers"]] == [
        "model.layers.1.mlp.up_proj", "model.layers.1.mlp.down_proj", "model.layers.3.experts"
    ]  # fmt: skip


def test_a_glob_that_matches_nothing_is_a_usage_error(model: Path) -> None:
    result = invoke("inspect", model, "--layer", "*.mlp.*", "--layer", "*.nothing")
    assert (result.status, result.out) == (2, "")
    assert "'*.nothing' matches no layer" in result.err


def test_a_named_profile_plans_for_absent_hardware(model: Path) -> None:
    data = invoke("inspect", model, "--json", "--profile", "nvidia-t4").json
    assert data["device"] == {"name": "NVIDIA T4", "profile": "nvidia-t4"}
    # A T4 has no bf16.
    assert {row["activation"] for row in data["layers"]} == {"f16"}


def test_an_unknown_profile_is_a_usage_error(model: Path) -> None:
    result = invoke("inspect", model, "--profile", "nvidia-t5")
    assert result.status == 2
    assert "nvidia-t4" in result.err


def asking(weight: CanonicalWeight, activation: str) -> CanonicalWeight:
    return weight.replace(activation=ActivationScheme.parse(activation))


def test_what_the_checkpoint_asks_for_and_what_it_gets_are_both_shown(tmp_path: Path) -> None:
    layer = asking(random_weight("fp8-channel", 64, 64), "fp8")
    path = save(tmp_path / "m.safetensors", {"a": layer})
    for profile, gets in (("nvidia-h100", "e4m3fn-token-f32"), ("nvidia-a100", "bf16")):
        row = invoke("inspect", path, "--json", "--profile", profile).json["layers"][0]
        assert row["asked_activation"] == "e4m3fn-token-f32"
        assert row["activation"] == gets


def test_the_model_s_own_dtype_is_used_where_the_device_has_it(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    save(folder, {"a": random_weight("int4-g32", 64, 64)})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "float16"}))
    for profile in ("host-cpu", "nvidia-h100"):
        row = invoke("inspect", folder, "--json", "--profile", profile).json["layers"][0]
        assert row["activation"] == "f16"


class Picky(Backend):
    name = "picky"

    @classmethod
    def refuse_device(cls, profile: object) -> str | None:
        return None

    def refuse(self, layer: LayerConfig, compute: ComputeConfig) -> str | None:
        return f"k={layer.k} is not 96" if layer.k != 96 else None


def test_backends_that_refuse_are_listed_with_reasons(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from humming import plugins

    found = plugins.InstalledBackend(Picky, "picky-humming", "0.3")
    both = {"picky": found, **plugins.backends()}
    monkeypatch.setattr(plugins, "backends", lambda: both)
    result = invoke("inspect", model)
    assert result.status == 0
    assert re.search(r"picky +picky-humming 0\.3 +4 +k=64 is not 96", result.out)
    rows = {row["name"]: row for row in invoke("inspect", model, "--json").json["layers"]}
    assert rows["model.layers.0.mlp.up_proj"]["backend"] == "picky"
    down = rows["model.layers.0.mlp.down_proj"]
    assert down["backend"] == "reference"
    assert {
        "backend": "picky", "distribution": "picky-humming 0.3", "reason": "k=64 is not 96"
    } in down["refusals"]  # fmt: skip


def test_a_layer_that_nothing_runs_is_a_problem_with_its_reason(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReferenceBackend, "refuse", lambda *_: "on strike")
    result = invoke("inspect", model, "--layer", "*down_proj")
    assert result.status == 1
    assert "nothing runs model.layers.{0..2}.mlp.down_proj (3 layers)" in result.out
    row = invoke("inspect", model, "--layer", "*down_proj", "--json").json["layers"][0]
    assert row["backend"] is None
    assert "on strike" in row["problem"]


def test_an_activation_that_may_not_be_replaced_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUMMING_ALLOW_FALLBACK", "0")
    layer = asking(random_weight("fp8-channel", 64, 64), "fp8")
    path = save(tmp_path / "m.safetensors", {"a": layer})
    result = invoke("inspect", path, "--profile", "nvidia-a100")
    assert result.status == 1
    assert "nothing runs a (1 layer): NVIDIA A100" in result.out


def test_a_float_checkpoint_is_shown_as_unquantized(tmp_path: Path) -> None:
    cli_runner.save_float_model(tmp_path / "m")
    result = invoke("inspect", tmp_path / "m")
    assert result.status == 0
    assert "unquantized, quantized: 0 layers" in result.out
    assert "model.layers.{0,1}.mlp.gate_proj" in result.out


def test_gguf_types_without_a_standard_form_are_a_problem(tmp_path: Path) -> None:
    good = random_blocks("Q4_0", (32, 64), default_rng(0))
    codes = default_rng(0).integers(0, 256, (32, 136), dtype="uint8")  # 256 weights in 136 bytes
    path = write_gguf(
        tmp_path / "m.gguf",
        {"blk.0.a.weight": ("Q4_0", good), "blk.0.b.weight": ("IQ4_XS", codes)},
    )
    result = invoke("inspect", path)
    assert result.status == 1
    assert "can't be read: blk.0.b (1 layer): IQ4_XS" in result.out
    data = invoke("inspect", path, "--json").json
    assert data["unreadable"] == [{"name": "blk.0.b", "type": "IQ4_XS"}]
    assert data["unquantized"] == []


def test_a_damaged_file_is_an_error_that_names_it(model: Path) -> None:
    whole = model.read_bytes()
    model.write_bytes(whole[: len(whole) // 2])
    result = invoke("inspect", model)
    assert (result.status, result.out) == (1, "")
    assert str(model) in result.err


def test_a_checkpoint_without_its_config_is_refused(tmp_path: Path) -> None:
    save_file({"a.qweight": torch.zeros(4, 4, dtype=torch.int32)}, tmp_path / "m.safetensors")
    result = invoke("inspect", tmp_path / "m.safetensors")
    assert result.status == 1
    assert "a.qweight" in result.err


def test_kinds_of_layers_are_judged_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = []
    real = humming.cli.inspect.verdicts
    monkeypatch.setattr(
        humming.cli.inspect, "verdicts", lambda *args: judged.append(args) or real(*args)
    )
    invoke("inspect", model)
    assert len(judged) == 4


# -- folding ---------------------------------------------------------------------------------------


def unfolded(name: str) -> list[str]:
    """Every name that a folded one means."""
    choices = []
    for part in name.split(".") if ".." not in name else re.split(r"(?<!\.)\.(?!\.)", name):
        values: list[str] = []
        for item in part.strip("{}").split(",") if part.startswith("{") else [part]:
            first, dots, last = item.partition("..")
            values += [str(i) for i in range(int(first), int(last) + 1)] if dots else [item]
        choices.append(values)
    return [".".join(parts) for parts in itertools.product(*choices)]


NAMES = st.builds(
    "{}.{}.{}".format, st.sampled_from(["a", "b"]), st.integers(0, 6),
    st.one_of(st.sampled_from(["x", "y"]), st.integers(0, 4).map("experts.{}.up".format)),
)  # fmt: skip


@given(st.dictionaries(NAMES, st.sampled_from(["s", "t"])))
def test_folded_names_mean_exactly_the_layers(facts: dict[str, str]) -> None:
    rows = fold(list(facts.items()))
    found = [(name, value) for folded, _, value in rows for name in unfolded(folded)]
    assert sorted(found) == sorted(facts.items())
    assert sum(count for _, count, _ in rows) == len(facts)


def test_layers_and_experts_fold_into_one_row() -> None:
    names = [f"layers.{i}.experts.{e}.up" for i in range(12) for e in range(8)]
    assert fold([(name, None) for name in names]) == [
        ("layers.{0..11}.experts.{0..7}.up", 96, None)
    ]


def test_gaps_in_a_run_are_spelled_out() -> None:
    names = [f"layers.{i}.up" for i in (0, 1, 3, 5, 6, 7, 10)]
    assert fold([(name, 1) for name in names]) == [("layers.{0,1,3,5..7,10}.up", 7, 1)]


def test_numbers_are_sorted_as_numbers() -> None:
    names = [f"blk.{i}.up" for i in (10, 2, 1, 0, 9)]
    assert fold([(name, 1) for name in names]) == [("blk.{0..2,9,10}.up", 5, 1)]


def test_leading_zeros_keep_names_apart() -> None:
    assert fold([("a.1", 0), ("a.01", 0)]) == [("a.1", 1, 0), ("a.01", 1, 0)]
