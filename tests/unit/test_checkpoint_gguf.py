"""GGUF files as checkpoints: plain tensors, metadata, what stands beside a layer, split files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import gguf_files
import numpy as np
import pytest
import torch

from humming.checkpoints.base import Source
from humming.checkpoints.gguf import GgufLoader, open_gguf
from humming.checkpoints.store import SafetensorsStore
from humming.errors import CheckpointError, UnsupportedError

RNG = np.random.default_rng(20)
Q8 = gguf_files.random_blocks("Q8_0", (6, 64), RNG)
EXPERTS = gguf_files.random_blocks("MXFP4", (3, 6, 64), RNG)


def write(tmp_path: Path, tensors: dict[str, object], **keys: object) -> Path:
    return gguf_files.write_gguf(tmp_path / "model.gguf", tensors, keys)  # type: ignore[arg-type]


# -- plain tensors -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "float64", "int8", "int16", "int32", "int64"]
)
def test_plain_tensors_come_back_row_major(dtype: str, tmp_path: Path) -> None:
    values = RNG.integers(-100, 100, (2, 3, 5)).astype(dtype)
    path = write(tmp_path, {"odd": np.zeros(3, "int8"), "t.weight": values})
    source, _, plans = gguf_files.opened(path)
    found = source.store.get("t.weight")
    assert source.store.info("t.weight").shape == (2, 3, 5)
    assert found.dtype == getattr(torch, dtype)
    assert np.array_equal(found.numpy(), values)
    assert not plans


def test_bfloat16_keeps_its_bits(tmp_path: Path) -> None:
    values = torch.randn(4, 8).to(torch.bfloat16)
    raw = values.view(torch.uint8).numpy()
    store = open_gguf(write(tmp_path, {"t.weight": ("BF16", raw)})).store
    assert store.info("t.weight").shape == (4, 8)
    assert torch.equal(store.get("t.weight"), values)


def test_a_tensor_is_a_copy_that_may_be_written_to(tmp_path: Path) -> None:
    path = write(tmp_path, {"t": np.ones(4, np.float32)})
    before = path.read_bytes()
    store = open_gguf(path).store
    store.get("t").zero_()
    assert store.get("t").tolist() == [1, 1, 1, 1]
    assert path.read_bytes() == before


def test_store_lists_names_in_file_order(tmp_path: Path) -> None:
    store = open_gguf(write(tmp_path, {n: np.ones(2, np.float32) for n in "cab"})).store
    assert list(store) == ["c", "a", "b"]
    assert "a" in store
    assert "x" not in store
    for ask in (store.get, store.info):
        with pytest.raises(CheckpointError, match="'x': missing from the checkpoint"):
            ask("x")


def test_a_quantized_tensor_is_no_plain_tensor(tmp_path: Path) -> None:
    store = open_gguf(write(tmp_path, {"a.weight": ("Q8_0", Q8)})).store
    with pytest.raises(
        CheckpointError, match=r"'a\.weight': Q8_0 \[6, 64\] is quantized, expected"
    ):
        store.get("a.weight")


# -- layers ------------------------------------------------------------------------------------


def test_plan_reads_no_data_and_names_layers_without_weight(tmp_path: Path) -> None:
    tensors = {
        "token_embd.weight": ("Q8_0", Q8),
        "blk.0.attn_norm.weight": np.ones(64, np.float32),
        "blk.0.ffn_up_exps.weight": ("MXFP4", EXPERTS),
        "matrix": ("Q8_0", Q8),
        "blk.0.ffn_down.weight": np.ones((6, 64), np.float16),
    }
    path = write(tmp_path, tensors)
    _, _, plans = gguf_files.opened(path)
    found = {p.name: (p.experts, p.n, p.k, str(p.scheme), p.tensors) for p in plans.values()}
    assert found == {
        "token_embd": (0, 6, 64, "s8-g32-f16", ("token_embd.weight",)),
        "blk.0.ffn_up_exps": (3, 6, 64, "e2m1-g32-e8m0", ("blk.0.ffn_up_exps.weight",)),
        "matrix": (0, 6, 64, "s8-g32-f16", ("matrix",)),
    }
    assert not any(p.bias or p.act_order or p.activation for p in plans.values())


def test_bias_belongs_to_its_layer(tmp_path: Path) -> None:
    bias, each = np.arange(6, dtype=np.float32), np.arange(18, dtype=np.float16).reshape(3, 6)
    path = write(tmp_path, {
        "q.bias": bias, "q.weight": ("Q8_0", Q8),
        "e.weight": ("MXFP4", EXPERTS), "e.bias": each,
    })  # fmt: skip
    _, loader, plans = gguf_files.opened(path)
    assert plans["q"].tensors == ("q.weight", "q.bias")
    assert plans["q"].bias
    for name, expected in (("q", bias), ("e", each)):
        found = loader.load(plans[name]).bias
        assert found is not None
        assert np.array_equal(found.numpy(), expected)


def test_scale_beside_a_layer_multiplies_it(tmp_path: Path) -> None:
    raw = gguf_files.random_blocks("NVFP4", (3, 6, 64), RNG)
    path = write(tmp_path, {
        "e.weight": ("NVFP4", raw), "e.scale": np.array([2, 0.5, 3], np.float32),
        "e.input_scale": np.array([4, 5, 6], np.float32),
        "m.weight": ("NVFP4", raw[0]), "m.scale": np.array([0.25], np.float32),
        "m.input_scale": np.array([7], np.float32),
        "p.weight": ("NVFP4", raw),
    })  # fmt: skip
    _, loader, plans = gguf_files.opened(path)
    experts, matrix, plain = (loader.load(plans[name]) for name in "emp")
    assert experts.scheme.alias == matrix.scheme.alias == "nvfp4"
    base = plain.dequantize(torch.float64)
    factors = torch.tensor([2, 0.5, 3], dtype=torch.float64).reshape(3, 1, 1)
    assert torch.equal(experts.dequantize(torch.float64), base * factors)
    assert torch.equal(matrix.dequantize(torch.float64), base[0] * 0.25)
    assert experts.input_scale is not None
    assert experts.input_scale.tolist() == [4, 5, 6]
    assert matrix.input_scale is not None
    assert matrix.input_scale.shape == ()


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        ({"q.bias": np.ones(64, np.float32)}, r"'q\.bias': expected shape \[6\], found \[64\]"),
        ({"q.bias": np.ones(6, np.int32)}, r"'q\.bias': expected F32 or F16 or BF16, found I32"),
        ({"q.scale": np.ones(6, np.float32)}, r"'q\.scale': expected shape \[1\], found \[6\]"),
        ({"q.scale": np.ones(1, np.float16)}, r"'q\.scale': expected F32, found F16 \[1\]"),
        (
            {"q.offset": np.ones(1, np.float32)},
            r"'q\.offset': unknown part of .*'q', expected bias",
        ),
        ({"q.weight.scale": np.ones(1, np.float32)}, r"'q\.weight\.scale': unknown part"),
        ({"q": ("Q8_0", Q8)}, r"'q.*': would be a second layer 'q'"),
    ],
)
def test_what_does_not_fit_a_layer_is_refused(
    beside: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, {"q.weight": ("Q8_0", Q8), **beside})
    with pytest.raises(CheckpointError, match=message):
        gguf_files.opened(path)


def test_parts_of_unquantized_layers_are_not_looked_at(tmp_path: Path) -> None:
    ones = np.ones(3, np.float32)
    tensors = {"n.weight": ones, "n.bias": ones, "n.strange": ones, "blk.0.ssm_a": ones}
    assert not gguf_files.opened(write(tmp_path, tensors))[2]


def test_a_layer_of_unsupported_type_leaves_the_rest_readable(tmp_path: Path) -> None:
    raw = np.zeros((6, 2 * 136), np.uint8)
    path = write(tmp_path, {"a.weight": ("IQ4_XS", raw), "b.weight": ("Q8_0", Q8)})
    source, loader, plans = gguf_files.opened(path)
    assert list(plans) == ["b"]
    assert loader.load(plans["b"]).shape == (6, 64)
    assert str(source.store.info("a.weight")) == "IQ4_XS [6, 512]"
    message = r"'a\.weight': IQ4_XS \[6, 512\] is not supported; supported: Q4_0, .*, NVFP4, F32, "
    with pytest.raises(UnsupportedError, match=message):
        source.store.get("a.weight")


def test_loader_wants_a_gguf_file(tmp_path: Path) -> None:
    source = Source(path=tmp_path, store=SafetensorsStore({}), quant_config={})
    with pytest.raises(CheckpointError, match="expected a GGUF file, found SafetensorsStore"):
        GgufLoader(source)


# -- metadata ----------------------------------------------------------------------------------


def test_metadata_is_what_was_written(tmp_path: Path) -> None:
    keys = {
        "a.text": "Größe", "a.yes": True, "a.int": 7, "a.float": 0.5,
        "a.words": ["x", "", "zwölf"], "a.numbers": [1, -2, 3], "a.flags": [True, False],
    }  # fmt: skip
    source = open_gguf(write(tmp_path, {}, **keys))
    assert source.quant_config == {"quant_method": "gguf"}
    assert {"general.architecture": "llama", **keys} == dict(source.model_config)
    assert json.loads(json.dumps(dict(source.model_config)))["a.words"] == ["x", "", "zwölf"]
    assert "a.none" not in source.model_config
    assert repr(source.model_config) == "GgufMetadata(8 keys of model.gguf)"


def test_every_value_type_agrees_with_ggufs_reader(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for kind, value in {
        "uint8": 200, "int8": -3, "uint16": 60000, "int16": -300, "uint32": 1 << 31,
        "int32": -(1 << 30), "uint64": 1 << 63, "int64": -(1 << 62), "float32": 0.1,
        "float64": 0.1, "bool": False, "string": "s", "array": [0.25, 0.5],
    }.items():  # fmt: skip
        getattr(writer, f"add_{kind}")(f"k.{kind}", value)
    writer.add_tensor("t", np.ones((2, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    theirs = gguf.GGUFReader(tmp_path / "m.gguf")
    ours = open_gguf(tmp_path / "m.gguf").model_config
    expected = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert len(expected) == 14
    assert dict(ours) == expected


def test_a_value_is_decoded_only_when_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    pairs = [
        gguf_files.pair("bad", 8, gguf_files.text(b"\xff\xfe")),
        gguf_files.pair("good", 8, gguf_files.text("fine")),
    ]
    path.write_bytes(gguf_files.by_hand(pairs=pairs))
    config = open_gguf(path).model_config
    assert config["good"] == "fine"
    with pytest.raises(CheckpointError, match="value of bad is not UTF-8"):
        config["bad"]


def test_alignment_of_the_file_is_used(tmp_path: Path) -> None:
    tensors = {"a": np.ones(3, np.float32), "b": np.arange(5, dtype=np.float32)}
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_custom_alignment(1024)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert (tmp_path / "m.gguf").stat().st_size >= 2048
    assert open_gguf(tmp_path / "m.gguf").store.get("b").tolist() == [0, 1, 2, 3, 4]


def test_without_the_gguf_package_the_mend_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, {"q.weight": ("Q8_0", Q8)})
    monkeypatch.setitem(sys.modules, "gguf.constants", None)
    with pytest.raises(UnsupportedError, match=r'pip install "humming-core\[gguf\]"'):
        open_gguf(path)


# -- split files -------------------------------------------------------------------------------


def split(tmp_path: Path, names: str = "abc") -> list[Path]:
    """One tensor per part."""
    parts = []
    for number, name in enumerate(names):
        keys = {"split.no": number, "split.count": len(names), "split.tensors.count": len(names)}
        keys |= {"general.name": "whole"} if number == 0 else {}
        path = tmp_path / f"m-{number + 1:05d}-of-{len(names):05d}.gguf"
        array = np.full(2, number, np.float32)
        parts.append(gguf_files.write_gguf(path, {name: array}, keys))
    return parts


@pytest.mark.parametrize("named", [0, 1, 2])
def test_any_part_opens_the_whole_split(named: int, tmp_path: Path) -> None:
    source = open_gguf(split(tmp_path)[named])
    assert list(source.store) == ["a", "b", "c"]
    assert [source.store.get(name)[0].item() for name in "abc"] == [0, 1, 2]
    assert source.model_config["general.name"] == "whole"


def test_a_split_of_one_is_a_file(tmp_path: Path) -> None:
    (path,) = split(tmp_path, "a")
    assert list(open_gguf(path.rename(tmp_path / "any.gguf")).store) == ["a"]


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    parts = split(tmp_path)
    parts[1].unlink()
    with pytest.raises(CheckpointError, match=r"m-00002-of-00003\.gguf: can't be read"):
        open_gguf(parts[0])


def test_a_renamed_part_is_refused(tmp_path: Path) -> None:
    path = split(tmp_path)[0].rename(tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match=r"split into 3, expected a name NAME-00001-of-00003"):
        open_gguf(path)


def test_parts_in_the_wrong_place_are_refused(tmp_path: Path) -> None:
    parts = split(tmp_path)
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(CheckpointError, match=r"00002-of.*are \(2, 3\), expected \(1, 3\)"):
        open_gguf(parts[0])


def test_one_name_in_two_parts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"00003-of-00003.*'a': found in two files"):
        open_gguf(split(tmp_path, "aba")[0])


def test_a_part_with_too_few_tensors_is_refused(tmp_path: Path) -> None:
    parts = split(tmp_path)
    gguf_files.write_gguf(parts[2], {}, {"split.no": 2, "split.count": 3})
    with pytest.raises(CheckpointError, match="3 tensors promised, 2 found"):
        open_gguf(parts[0])


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (11, (-1).to_bytes(8, "little", signed=True), "split.count=-1, expected a count"),
        (8, gguf_files.text("3"), "split.count='3', expected a count"),
        (7, b"\1", "split.count=True, expected a count"),
        (10, (1 << 63).to_bytes(8, "little"), "expected a name NAME-00001-of-9223372036854775808"),
        (10, (99999).to_bytes(8, "little"), "m-00002-of-99999.gguf: can't be read"),
    ],
)
def test_absurd_split_counts_are_refused(
    kind: int, value: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "m-00001-of-99999.gguf"
    pairs = [gguf_files.pair("split.no", 4, bytes(4)), gguf_files.pair("split.count", kind, value)]
    path.write_bytes(gguf_files.by_hand(pairs=pairs))
    with pytest.raises(CheckpointError, match=message):
        open_gguf(path)
