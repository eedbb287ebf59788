"""humming's own checkpoint form: what is written is what is read, whole or not at all."""

from __future__ import annotations

import copy
import json

import core_oracle as oracle
import numpy as np
import pytest
import torch
from humming_files import INDEX, write_json
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from humming import load_checkpoint, save_checkpoint
from humming.checkpoints import humming_form
from humming.errors import CheckpointError, HummingError


def layers() -> dict:
    """One layer of every kind that the standard form has."""
    made = {
        "plain": oracle.random_weight("u4-g8-f16", 7, 21),
        "zeros": oracle.random_weight("u3+z-g8-bf16", 7, 21, bias=torch.bfloat16),
        "float_zeros": oracle.random_weight("s5+zf-g8-f32", 7, 21),
        "nvfp4": oracle.random_weight("nvfp4", 8, 32, activation="nvfp4"),
        "blocks": oracle.random_weight("e4m3fn-b3x8-f32", 7, 21, activation="fp8-block"),
        "mx": oracle.random_weight("mxfp4", 8, 64),
        "second": oracle.random_weight("s4-g8-e8m0-channel", 7, 24),
        "act_order": oracle.random_weight("u4+z-g8-f16", 7, 24, act_order=True),
        "m.experts": oracle.random_weight("u2+z-g8-f16", 7, 21, 3, activation="fp8-static"),
    }
    made["scaled"] = made["plain"].replace(pre_quant_scale=torch.linspace(0.5, 2, 21))
    # Cuts share memory with the whole, keep an offset, or index their groups.
    made["cut.n"] = made["blocks"].rows(2, 6)
    made["cut.k"] = made["blocks"].columns(3, 15)
    made["cut.act_order"] = made["act_order"].shard("k", 1, 3)
    return made


REST = {"embed.weight": torch.randn(5, 3), "norm.weight": torch.ones(3, dtype=torch.bfloat16)}


def assert_same(found, wanted) -> None:
    assert found.scheme == wanted.scheme
    assert (found.shape, found.offset) == (wanted.shape, wanted.offset)
    assert found.activation == wanted.activation
    mine, theirs = dict(found.tensors()), dict(wanted.tensors())
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert tensor.dtype == theirs[name].dtype
        assert torch.equal(tensor, theirs[name])
    assert np.array_equal(oracle.dequantized(found), oracle.dequantized(wanted))


def everything_below(folder) -> list[str]:
    return sorted(p.name for p in folder.rglob("*"))


@pytest.mark.parametrize("target", ["model.safetensors", "directory"])
def test_what_is_saved_is_what_is_loaded(tmp_path, target):
    wanted = layers()
    path = save_checkpoint(tmp_path / target, wanted, REST, model_config={"model_type": "x"})
    assert path == tmp_path / target
    checkpoint = load_checkpoint(path)
    assert checkpoint.family == "humming"
    assert sorted(checkpoint) == sorted(wanted)
    for name, weight in wanted.items():
        assert_same(checkpoint[name], weight)
        plan = checkpoint.plan(name)
        assert plan.act_order == (weight.permutation is not None)
        assert plan.activation == weight.activation
    assert sorted(checkpoint.tensor_names()) == sorted(REST)
    for name, tensor in REST.items():
        assert torch.equal(checkpoint.tensor(name), tensor)
    assert list(checkpoint.unquantized) == ["embed"]
    assert checkpoint.model_config == ({"model_type": "x"} if target == "directory" else {})


@pytest.mark.parametrize("limit", [1, 300, 1 << 30])
def test_a_directory_is_cut_into_shards_that_an_index_lists(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(humming_form, "_SHARD_BYTES", limit)
    wanted = layers()
    folder = save_checkpoint(tmp_path / "m", wanted, REST)
    index = json.loads((folder / INDEX).read_text())
    files = sorted(p.name for p in folder.glob("*.safetensors"))
    assert sorted(set(index["weight_map"].values())) == files
    sizes = [sum(t.nbytes for t in load_file(folder / f).values()) for f in files]
    assert index["metadata"]["total_size"] == sum(sizes)
    assert (len(files) == 1) == (limit == 1 << 30)
    if limit == 300:
        assert all(
            s <= 300 or len(load_file(folder / f)) == 1 for s, f in zip(sizes, files, strict=True)
        )
    checkpoint = load_checkpoint(folder)
    for name, weight in wanted.items():
        assert_same(checkpoint[name], weight)


def test_a_loaded_checkpoint_saves_to_the_same_again(tmp_path):
    first = save_checkpoint(tmp_path / "a", layers(), REST, model_config={"x": 1})
    second = load_checkpoint(first).save(tmp_path / "b")
    third = load_checkpoint(second).save(tmp_path / "deep" / "er" / "c.safetensors")
    for name, weight in layers().items():
        assert_same(load_checkpoint(third)[name], weight)
    assert json.loads((second / "config.json").read_text())["x"] == 1


def test_nothing_quantized_is_a_checkpoint_too(tmp_path):
    checkpoint = load_checkpoint(save_checkpoint(tmp_path / "m", {}, {}))
    assert len(checkpoint) == 0
    assert (
        load_checkpoint(save_checkpoint(tmp_path / "n.safetensors", {}, REST)).family == "humming"
    )


@pytest.mark.parametrize("target", ["model.safetensors", "directory"])
def test_an_existing_target_is_refused_and_left_as_it_is(tmp_path, target):
    path = tmp_path / target
    if target == "directory":
        path.mkdir()
    else:
        path.write_text("precious")
    with pytest.raises(CheckpointError, match="exists already; nothing was written"):
        save_checkpoint(path, layers(), REST)
    assert everything_below(tmp_path) == [target]


class Failing(dict):
    """Layers of which the last can't be read."""

    def items(self):
        yield from super().items()
        raise CheckpointError("can't be read", tensor="last")


@pytest.mark.parametrize("target", ["model.safetensors", "directory"])
def test_a_failure_on_the_way_leaves_nothing_behind(tmp_path, target, monkeypatch):
    monkeypatch.setattr(humming_form, "_SHARD_BYTES", 1)
    with pytest.raises(CheckpointError, match="can't be read"):
        save_checkpoint(tmp_path / target, Failing(layers()), REST)
    assert everything_below(tmp_path) == []


@pytest.mark.parametrize("target", ["model.safetensors", "directory"])
def test_two_tensors_of_one_name_are_refused_and_nothing_is_written(tmp_path, target):
    with pytest.raises(
        CheckpointError, match=r"tensor 'plain\.weight_scale': would be written twice"
    ):
        save_checkpoint(tmp_path / target, layers(), {"plain.weight_scale": torch.ones(1)})
    assert everything_below(tmp_path) == []


# -- damaged tables ----------------------------------------------------------------------------


def saved(tmp_path, change):
    """A directory whose config was changed by `change`."""
    folder = save_checkpoint(tmp_path / "m", {"a": layers()["zeros"]}, {})
    config = json.loads((folder / "config.json").read_text())
    change(config["quantization_config"])
    write_json(folder / "config.json", config)
    return folder


def of_layer(**changes):
    return lambda table: table["layers"]["a"].update(changes)


def without(key):
    return lambda table: table["layers"]["a"].pop(key)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update(version=2), "humming form version 2; this humming reads 1"),
        (lambda t: t.update(version="1"), "version='1', expected int"),
        (lambda t: t.update(version=True), "version=True, expected int"),
        (lambda t: t.pop("version"), "version=None, expected int"),
        (lambda t: t.update(layers=[]), r"layers=\[\], expected dict"),
        (lambda t: t["layers"].update(a=5), "layer 'a': entry 5, expected keys scheme, n, k"),
        (without("n"), "expected keys scheme, n, k"),
        (without("scheme"), "expected keys scheme, n, k"),
        (of_layer(surprise=1), "expected keys scheme, n, k"),
        (of_layer(n="7"), "expected n, k, experts, offset as counts"),
        (of_layer(n=-7), "expected n, k, experts, offset as counts"),
        (of_layer(n=True), "expected n, k, experts, offset as counts"),
        (of_layer(n=7.0), "expected n, k, experts, offset as counts"),
        (of_layer(n=1 << 60), "expected n, k, experts, offset as counts"),
        (of_layer(offset=5), "expected n, k, experts, offset as counts"),
        (of_layer(offset=None), "expected n, k, experts, offset as counts"),
        (of_layer(offset=[1]), "expected n, k, experts, offset as counts"),
        (of_layer(offset=[0, 0, 0]), "expected n, k, experts, offset as counts"),
        (of_layer(offset={"a": 1, "b": 2}), "expected n, k, experts, offset as counts"),
        (of_layer(experts=None), "expected n, k, experts, offset as counts"),
        (of_layer(scheme="u4"), r"layer 'a': scheme='u4': expected CODE"),
        (of_layer(scheme=None), "layer 'a': scheme='none': expected CODE"),
        (of_layer(activation="f99"), "layer 'a': format='f99'"),
        (of_layer(scheme="nvfp4"), r"tensor 'a\.weight_scale_2': missing; layer 'a' needs it"),
        (lambda t: t["layers"].update(b={"scheme": "fp8", "n": 1, "k": 1}),
         r"tensor 'b\.weight_packed': missing; layer 'b' needs it"),
        (lambda t: t["layers"].clear(), "config does not say that 'a' is quantized"),
    ],
)  # fmt: skip
def test_a_damaged_table_is_refused_before_anything_is_read(tmp_path, change, message):
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(saved(tmp_path, change))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 8}, r"layer 'a': packed='torch\.uint8 \[7, 8\]': expected torch\.uint8 \[8, 8\]"),
        ({"k": 16}, r"layer 'a': .*\[7, 8\]"),
        ({"k": 1 << 40}, "layer 'a': packed="),
        ({"experts": 2}, r"layer 'a': .*\[2, 7, 8\]"),
        ({"scheme": "u3+z-g16-bf16"}, r"layer 'a': scales=.*\[7, 2\]"),
        ({"scheme": "u3+z-g8-f16"}, "layer 'a': scales="),
        ({"scheme": "u3-g8-bf16"}, "layer 'a': zeros='present': expected None"),
        ({"offset": [0, 4]}, r"layer 'a': scales=.*\[7, 4\]"),
        ({"offset": [0, 9]}, "layer 'a': offset=.* a place inside a block"),
    ],
)
def test_a_table_that_disagrees_with_the_tensors_names_the_layer(tmp_path, changes, message):
    checkpoint = load_checkpoint(saved(tmp_path, of_layer(**changes)))
    with pytest.raises(CheckpointError, match=message):
        checkpoint["a"]


@pytest.mark.parametrize(
    ("layer", "suffix", "tensor", "message"),
    [
        ("act_order", "weight_permutation", torch.zeros(24, dtype=torch.int32), "each of 24 once"),
        (
            "act_order",
            "weight_permutation",
            torch.full((24,), 1 << 30, dtype=torch.int32),
            "each of",
        ),
        ("act_order", "weight_zero_point", torch.full((7, 3), 99, dtype=torch.uint8), "0 to 15"),
        ("cut.act_order", "weight_group_index", torch.full((8,), 3, dtype=torch.int32), "0 to 2"),
        ("plain", "bias", torch.ones(21), r"bias=.*\[7\]"),
        ("nvfp4", "input_scale", torch.ones(2), r"input_scale=.*\[\]"),
    ],
)
def test_data_out_of_range_is_refused_when_the_layer_is_read(
    tmp_path, layer, suffix, tensor, message
):
    folder = save_checkpoint(tmp_path / "m", layers(), {})
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    tensors[f"{layer}.{suffix}"] = tensor
    save_file(tensors, file)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"][f"{layer}.{suffix}"] = file.name
    write_json(folder / INDEX, index)
    with pytest.raises(CheckpointError, match=f"layer {layer!r}: .*{message}"):
        load_checkpoint(folder)[layer]


@pytest.mark.parametrize("text", ["", "{", "[]", "5", '"x"', "[" * 100000])
def test_a_single_file_with_broken_metadata_is_refused(tmp_path, text):
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.ones(1)}, path, metadata={"humming": text})
    with pytest.raises(CheckpointError, match="humming metadata is no JSON"):
        load_checkpoint(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1 << 80) | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=4,
)
ENTRY_KEYS = st.sampled_from(["scheme", "n", "k", "experts", "offset", "activation"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = save_checkpoint(tmp_path_factory.mktemp("form") / "m", layers(), REST)
    return folder, json.loads((folder / "config.json").read_text())


@given(name=st.sampled_from(sorted(layers())), key=ENTRY_KEYS, value=JSON)
def test_any_changed_entry_is_read_or_refused_with_a_typed_error(whole, name, key, value):
    folder, config = whole
    changed = copy.deepcopy(config)
    changed["quantization_config"]["layers"][name][key] = value
    write_json(folder / "config.json", changed)
    try:
        load_checkpoint(folder)[name]
    except HummingError:
        pass
    finally:
        write_json(folder / "config.json", config)
