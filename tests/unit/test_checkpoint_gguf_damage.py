"""Damaged and hostile GGUF files: a typed error that says what is wrong, fast and lean."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from pathlib import Path

import gguf_files
import numpy as np
import pytest
from gguf_files import by_hand, entry, pair, text
from hypothesis import given, settings
from hypothesis import strategies as st

from humming.checkpoints.gguf import open_gguf
from humming.errors import CheckpointError, HummingError

F32, Q8_0 = 0, 8
HUGE = (1 << 63) + 32
U32, STRING, ARRAY = 4, 8, 9


def array(item: int, count: int, data: bytes = b"") -> bytes:
    return struct.pack("<IQ", item, count) + data


def version(number: int, order: str = "<") -> bytes:
    return b"GGUF" + struct.pack(f"{order}I", number)


CASES = {
    "empty": (b"", "too short for a GGUF file"),
    "magic": (b"GGML" + bytes(40), "starts with b'GGML', expected b'GGUF'"),
    "version 1": (by_hand(start=version(1)), "GGUF version 1, expected little-endian version 2"),
    "version 4": (by_hand(start=version(4)), "GGUF version 4, expected"),
    "big-endian": (by_hand(start=version(3, ">")), "big-endian version 3, expected little"),
    "no counts": (version(3), "header needs 16 bytes, the file has 8: truncated"),
    "tensor count": (by_hand(counts=(HUGE, 0)), f"promises {HUGE} tensors, expected at most"),
    "key count": (by_hand(counts=(0, HUGE)), f"promises {HUGE} keys, expected at most"),
    "missing tensors": (by_hand(counts=(9, 0)), "of 9 tensors"),
    "missing keys": (by_hand(counts=(0, 9)), "key 1 of 9|value of "),
    "key length": (by_hand(pairs=[struct.pack("<Q", HUGE)]), "name of .* bytes, expected at most"),
    "key bytes": (by_hand(pairs=[pair(b"\xff", U32, bytes(4))]), "key 1 of 1 is not UTF-8"),
    "key twice": (by_hand(pairs=[pair("k", U32, bytes(4))] * 2), "key 'k' is there twice"),
    "value type": (by_hand(pairs=[pair("k", 13, bytes(4))]), "value of k has value type 13"),
    "string length": (
        by_hand(pairs=[pair("k", STRING, struct.pack("<Q", HUGE))]),
        "value of k needs .* bytes, the file has",
    ),
    "array length": (
        by_hand(pairs=[pair("k", ARRAY, array(0, HUGE))]),
        "value of k is an array of .*, expected at most",
    ),
    "array of numbers past the end": (
        by_hand(pairs=[pair("k", ARRAY, array(U32, 1 << 20))]),
        "value of k needs .* bytes, the file has",
    ),
    "array of strings past the end": (
        by_hand(pairs=[pair("k", ARRAY, array(STRING, 1 << 24, text("a")))]),
        "value of k needs .* bytes, the file has",
    ),
    "long string in an array": (
        by_hand(pairs=[pair("k", ARRAY, array(STRING, 1, struct.pack("<Q", HUGE)))]),
        "value of k needs .* bytes, the file has",
    ),
    "array of arrays": (
        by_hand(pairs=[pair("k", ARRAY, array(ARRAY, 1, array(U32, 0)))]),
        "value of k is an array of arrays",
    ),
    "array of nothing": (
        by_hand(pairs=[pair("k", ARRAY, array(99, 0))]),
        "value of k has value type 99",
    ),
    "alignment 0": (
        by_hand(pairs=[pair("general.alignment", U32, bytes(4))]),
        "general.alignment=0, expected a power of two",
    ),
    "alignment 24": (
        by_hand(pairs=[pair("general.alignment", U32, struct.pack("<I", 24))]),
        "general.alignment=24, expected",
    ),
    "alignment text": (
        by_hand(pairs=[pair("general.alignment", STRING, text("32"))]),
        "general.alignment='32', expected",
    ),
    "name twice": (by_hand([entry("t", [1], F32)] * 2, data=bytes(64)), "'t': is there twice"),
    "name bytes": (by_hand([entry(b"\xff", [1], F32)], data=bytes(4)), "entry 1 of 1 .* is not"),
    "dimensions": (by_hand([entry("t", [1] * 5, F32)], data=bytes(4)), "'t': 5 dimensions"),
    "dimension count": (
        by_hand([text("t") + struct.pack("<I", 0xFFFFFFFF)]),
        "'t': 4294967295 dimensions, expected at most 4",
    ),
    "size 0": (by_hand([entry("t", [0, 3], F32)]), r"'t': F32 with sizes \[0, 3\], expected pos"),
    "part of a block": (
        by_hand([entry("t", [33], Q8_0)], data=bytes(99)),
        r"'t': Q8_0 with sizes \[33\], expected positive sizes, the first a multiple of 32",
    ),
    "size overflow": (
        by_hand([entry("t", [1 << 32, 1 << 32], F32)], data=bytes(64)),
        f"'t': needs bytes 96 to {96 + (4 << 64)}, the file has 160: truncated",
    ),
    "unknown type": (
        by_hand([entry("t", [32], 4711)], data=bytes(64)),
        "'t': type 4711, which the installed gguf package does not know",
    ),
    "offset": (by_hand([entry("t", [1], F32, 8)], data=bytes(64)), "'t': offset 8, expected a"),
    "offset outside": (
        by_hand([entry("t", [1], F32, HUGE)], data=bytes(64)),
        "'t': needs bytes .* the file has 128",
    ),
    "one byte short": (
        by_hand([entry("t", [9], F32)], data=bytes(35)),
        "'t': needs bytes 64 to 100, the file has 99: truncated",
    ),
    "overlap": (
        by_hand([entry("t", [9], F32), entry("u", [9], F32, 32)], data=bytes(99)),
        "'u': its data overlaps that of 't'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_damage_is_named(case: str, tmp_path: Path) -> None:
    data, message = CASES[case]
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=message) as error:
        open_gguf(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(error.value).startswith(str(path))
    assert peak < 8 << 20


def test_what_the_cases_are_made_of_is_a_good_file(tmp_path: Path) -> None:
    pairs = [pair("k", ARRAY, array(STRING, 2, text("a") + text("bc"))), pair("n", U32, bytes(4))]
    entries = [entry("t", [9], F32), entry("u", [], F32, 64)]
    path = tmp_path / "good.gguf"
    for number in (2, 3):
        start = version(number)
        path.write_bytes(by_hand(entries, pairs, np.arange(17, dtype="<f4").tobytes(), start))
        source = open_gguf(path)
        assert dict(source.model_config) == {"k": ["a", "bc"], "n": 0}
        assert source.store.get("t").tolist() == list(range(9))
        assert source.store.get("u").item() == 16


def test_no_such_file_and_no_file_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(CheckpointError, match="can't be read"):
            open_gguf(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    rng = np.random.default_rng(4)
    keys = {
        "general.name": "fuzz", "a.b": 3, "list": [1, 2, 3], "tokens": ["a", "bb", "ccc"],
        "split.count": 1, "yes": True, "real": 0.5,
    }  # fmt: skip
    tensors = {
        kind: (kind, gguf_files.random_blocks(kind, (2, 256), rng))
        for kind in gguf_files.F16_FIELDS
    }
    path = tmp_path_factory.mktemp("whole") / "whole.gguf"
    bias = {"Q4_0.bias": np.ones(2, np.float32), "NVFP4.scale": np.ones(1, np.float32)}
    return gguf_files.write_gguf(path, {**tensors, **bias}, keys).read_bytes()


def use_all(path: Path) -> None:
    """Everything a caller may do with a file."""
    source, loader, plans = gguf_files.opened(path)
    dict(source.model_config)
    for plan in plans.values():
        loader.load(plan)
    for name in source.store:
        source.store.info(name)


def header_size(data: bytes) -> int:
    return data.index(b"NVFP4.scale") + 64


def test_a_file_cut_anywhere_is_refused(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole)
    use_all(path)
    end = len(whole.rstrip(b"\0"))  # what follows is padding
    for size in [*range(0, header_size(whole), 3), *range(header_size(whole), end, 97)]:
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            open_gguf(path)


@settings(max_examples=400)
@given(data=st.data())
def test_any_mutation_is_read_or_refused(
    data: st.DataObject, whole: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "mutated.gguf"
    size = header_size(whole)
    mutated = bytearray(whole)
    value = st.sampled_from([0, 1, 4, 8, 9, 0x7F, 0x80, 0xFE, 0xFF]) | st.integers(0, 255)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, size - 8))
        width = data.draw(st.sampled_from([1, 1, 2, 4, 8]))
        mutated[place : place + width] = bytes(data.draw(value) for _ in range(width))
    if data.draw(st.booleans()):  # as if a field were lost or doubled
        place = data.draw(st.integers(4, size))
        mutated[place : place + data.draw(st.integers(0, 9))] = b""
    path.write_bytes(mutated)
    with contextlib.suppress(HummingError):
        use_all(path)
