"""Files: damaged ones, index tricks, missing and doubled tensors; only what is asked is read."""

from __future__ import annotations

import json
import os

import pytest
import torch
from humming_files import INDEX, entry, write_directory, write_json, write_raw
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from humming.checkpoints import store as store_module
from humming.checkpoints.store import SafetensorsStore, read_json, safetensors_files
from humming.errors import CheckpointError

A, B = torch.arange(6.0).view(2, 3), torch.arange(4, dtype=torch.int32)


def test_a_store_names_describes_and_reads_tensors(tmp_path):
    folder = write_directory(tmp_path, {"a.safetensors": {"a": A}, "b.safetensors": {"b": B}})
    store = SafetensorsStore(safetensors_files(folder))
    assert sorted(store) == ["a", "b"]
    assert len(store) == 2
    assert "a" in store
    assert "c" not in store
    assert str(store.info("b")) == "I32 [4]"
    assert store.info("a").shape == (2, 3)
    assert torch.equal(store.get("a"), A)
    assert store.metadata == {"format": "pt"}
    with pytest.raises(CheckpointError, match="tensor 'c': missing from the checkpoint"):
        store.get("c")
    with pytest.raises(CheckpointError, match="tensor 'c': missing from the checkpoint"):
        store.info("c")


def test_scalars_and_empty_tensors_are_tensors(tmp_path):
    tensors = {"s": torch.tensor(2.5), "e": torch.zeros(0, 3)}
    store = SafetensorsStore(
        safetensors_files(write_directory(tmp_path, {"model.safetensors": tensors}))
    )
    assert store.info("s").shape == ()
    assert store.get("s") == 2.5
    assert store.get("e").shape == (0, 3)


HEADER = json.dumps({"a": entry("F32", [2, 3], 0, 24)}).encode()


@pytest.mark.parametrize(
    ("header", "data", "length"),
    [
        (HEADER, bytes(23), None),
        (HEADER, b"", None),
        (HEADER, bytes(25), None),
        (HEADER[:-1], bytes(24), None),
        (HEADER, bytes(24), 1 << 62),
        (HEADER, bytes(24), (1 << 64) - 1),
        (HEADER, bytes(24), 0),
        (HEADER, bytes(24), len(HEADER) + 1000),
        (b"", b"", None),
        (b"null", b"", None),
        (b"[]", b"", None),
        (b'{"a":5}', b"", None),
        (b"\xff\xfe{}", b"", None),
        (json.dumps({"a": entry("F32", [2, 3], 8, 24)}).encode(), bytes(24), None),
        (json.dumps({"a": entry("F32", [2, 3], 24, 0)}).encode(), bytes(24), None),
        (json.dumps({"a": entry("F32", [2, 4], 0, 24)}).encode(), bytes(24), None),
        (json.dumps({"a": entry("F32", [-2, -3], 0, 24)}).encode(), bytes(24), None),
        (json.dumps({"a": entry("F32", [1 << 62, 1 << 62], 0, 24)}).encode(), bytes(24), None),
        (json.dumps({"a": entry("Q99", [2, 3], 0, 24)}).encode(), bytes(24), None),
        (json.dumps({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}).encode(),
         bytes(12), None),
        (b'{"a":' + b"[" * 20000 + b"]" * 20000 + b"}", b"", None),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_with_its_path(tmp_path, header, data, length):
    path = write_raw(tmp_path / "model.safetensors", header, data, length)
    with pytest.raises(CheckpointError, match="not a whole safetensors file") as caught:
        SafetensorsStore({path: None})
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 50])
def test_a_truncated_file_is_refused(tmp_path, size):
    path = tmp_path / "model.safetensors"
    save_file({"a": A}, path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        SafetensorsStore({path: None})


def test_a_name_twice_in_one_header_is_refused_or_read_as_one(tmp_path):
    one = json.dumps(entry("F32", [1], 0, 4))
    two = json.dumps(entry("F32", [1], 4, 8))
    path = write_raw(tmp_path / "x.safetensors", f'{{"a":{one},"a":{two}}}'.encode(), bytes(8))
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        SafetensorsStore({path: None})


def test_a_tensor_in_two_files_is_refused_by_name(tmp_path):
    shards = {"a.safetensors": {"a": A, "b": B}, "b.safetensors": {"b": B, "c": A}}
    with pytest.raises(CheckpointError, match=r"b\.safetensors: tensor 'b': found in two files"):
        SafetensorsStore(safetensors_files(write_directory(tmp_path, shards)))


def test_a_promise_of_the_index_that_a_file_breaks_is_refused_by_name(tmp_path):
    folder = write_directory(
        tmp_path,
        {"a.safetensors": {"a": A}},
        weight_map={"a": "a.safetensors", "z": "a.safetensors"},
    )
    with pytest.raises(CheckpointError, match="tensor 'z': promised by the index, not in the file"):
        SafetensorsStore(safetensors_files(folder))


@pytest.mark.parametrize(
    "file",
    [
        "../out.safetensors",
        "/etc/passwd",
        "sub/model.safetensors",
        "..",
        ".",
        "",
        "a\\b.safetensors",
        "..\\out.safetensors",
        "C:\\out.safetensors",
        "C:out.safetensors",
        "\\\\host\\share\\x",
        "./model.safetensors",
        "model.safetensors/",
    ],
)
def test_an_index_may_name_plain_files_only(tmp_path, file):
    save_file({"a": A}, tmp_path / "out.safetensors")
    folder = write_directory(
        tmp_path / "model", {"model.safetensors": {"a": A}}, weight_map={"a": file}
    )
    with pytest.raises(CheckpointError, match="is not the plain name of a file"):
        safetensors_files(folder)


@pytest.mark.parametrize("file", ["a\0b.safetensors", "\ud800.safetensors", "x" * 5000])
def test_names_that_no_file_can_have_are_refused(tmp_path, file):
    folder = write_directory(tmp_path, {"model.safetensors": {"a": A}}, weight_map={"a": file})
    with pytest.raises(CheckpointError, match=r"names no file|is missing"):
        safetensors_files(folder)


def test_a_file_that_is_missing_or_a_directory_is_refused(tmp_path):
    folder = write_directory(tmp_path, {"model.safetensors": {"a": A}}, weight_map={"a": "gone"})
    with pytest.raises(CheckpointError, match="'gone' is missing"):
        safetensors_files(folder)
    (tmp_path / "gone").mkdir()
    with pytest.raises(CheckpointError, match="'gone' is missing"):
        safetensors_files(folder)


@pytest.mark.parametrize("indexed", [True, False])
def test_a_link_out_of_the_directory_is_refused(tmp_path, indexed):
    save_file({"a": A}, tmp_path / "secret.safetensors")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to("../secret.safetensors")
    if indexed:
        write_json(folder / INDEX, {"weight_map": {"a": "model.safetensors"}})
    with pytest.raises(CheckpointError, match="links to outside the directory"):
        safetensors_files(folder)


@pytest.mark.parametrize("indexed", [True, False])
def test_links_of_the_hugging_face_cache_are_followed(tmp_path, indexed):
    blobs, snapshot = (
        tmp_path / "models--x" / "blobs",
        tmp_path / "models--x" / "snapshots" / "c0ffee",
    )
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    save_file({"a": A}, blobs / "123abc")
    (snapshot / "model.safetensors").symlink_to("../../blobs/123abc")
    if indexed:
        write_json(snapshot / INDEX, {"weight_map": {"a": "model.safetensors"}})
    assert torch.equal(SafetensorsStore(safetensors_files(snapshot)).get("a"), A)


def test_without_an_index_one_file_or_all_files_count(tmp_path):
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors and no GGUF file here"):
        safetensors_files(tmp_path)
    save_file({"a": A}, tmp_path / "y.safetensors")
    save_file({"b": A}, tmp_path / "x.safetensors")
    assert [p.name for p in safetensors_files(tmp_path)] == ["x.safetensors", "y.safetensors"]
    save_file({"c": A}, tmp_path / "model.safetensors")
    assert [p.name for p in safetensors_files(tmp_path)] == ["model.safetensors"]


@pytest.mark.parametrize(
    "index", [[], {}, {"weight_map": None}, {"weight_map": []}, {"weight_map": {"a": 1}}, 5, "x"]
)
def test_an_index_of_another_form_is_refused(tmp_path, index):
    folder = write_directory(tmp_path, {"model.safetensors": {"a": A}})
    write_json(folder / INDEX, index)
    with pytest.raises(CheckpointError, match=r"expected weight_map|expected a JSON object"):
        safetensors_files(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not readable as JSON"),
        (b"{", "not readable as JSON"),
        (b"\xff\xfe", "not readable as JSON"),
        (b'{"a": ' + b"[" * 200000, "not readable as JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not readable as JSON"),
        (b"[1]", "expected a JSON object"),
    ],
)
def test_json_that_is_none_is_refused(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(CheckpointError, match=message):
        read_json(path)


def test_json_that_never_ends_or_is_absurdly_large_is_refused(tmp_path, monkeypatch):
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    with pytest.raises(CheckpointError, match="not a plain file"):
        read_json(pipe)
    with pytest.raises(CheckpointError, match="not a plain file"):
        read_json(tmp_path / "gone.json")
    monkeypatch.setattr(store_module, "_MAX_JSON_BYTES", 1 << 20)
    large = tmp_path / "large.json"
    large.write_text(" " * ((1 << 20) + 1))
    with pytest.raises(CheckpointError, match="larger than 1 MiB"):
        read_json(large)


WHOLE = HEADER + bytes(24)


@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=4), st.integers(0, 200))
def test_any_mutated_file_is_read_or_refused(tmp_path_factory, place, patch, keep):
    path = tmp_path_factory.mktemp("mutated") / "model.safetensors"
    write_raw(path, HEADER, bytes(24))
    data = bytearray(path.read_bytes())
    data[8 + place : 8 + place + len(patch)] = patch
    path.write_bytes(bytes(data[: 20 + keep]))
    try:
        store = SafetensorsStore({path: None})
        for name in store:
            store.info(name)
            store.get(name)
    except CheckpointError:
        pass
