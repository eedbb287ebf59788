"""One GGUF file: its header walked within bounds, its metadata and tensors read on demand.

The `gguf` package names the tensor types and the sizes of their blocks. Its reader is not used:
it keeps several arrays per string of the vocabulary, which takes seconds even for a small model,
and an absurd array length makes it walk past the end of the file for ever.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from humming.errors import CheckpointError, UnsupportedError

__all__ = ["GgufFile", "GgufMetadata", "GgufTensor"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
# Far above any model, far below what would take minutes to walk.
_MAX_TENSORS = 1 << 20
_MAX_KEYS = 1 << 16
_MAX_ITEMS = 1 << 24
_MAX_NAME = (1 << 16) - 1
_MAX_DIMS = 4

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
#: Value type number to the struct code of a scalar.
_SCALARS = {
    number: struct.Struct(f"<{code}")
    for number, code in {
        0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
    }.items()
}  # fmt: skip


@dataclass(frozen=True)
class GgufTensor:
    """One entry of the tensor list, checked against the size of the file.

    Attributes:
        type: ggml's name of the storage type: ``"F32"``, ``"Q4_1"``, ``"IQ4_XS"``, ...
        shape: row-major, the reverse of how the file lists it.
        start: first byte of the data in the file.
        row_bytes: bytes of one row, that is of ``shape[-1]`` elements.
        rows: product of all dimensions but the last.
    """

    type: str
    shape: tuple[int, ...]
    start: int
    row_bytes: int
    rows: int

    @property
    def stop(self) -> int:
        """First byte after the data."""
        return self.start + self.rows * self.row_bytes


class GgufMetadata(Mapping[str, Any]):
    """The key-value pairs of a file; a value is decoded when it is first asked for.

    Integers, floats, booleans and strings become Python's own, arrays become lists.
    """

    def __init__(self, data: mmap.mmap, path: Path, places: Mapping[str, tuple[int, int]]) -> None:
        """Keep where each value is: key to (value type, offset)."""
        self._data, self._path, self._places = data, path, places
        self._values: dict[str, Any] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return f"GgufMetadata({len(self)} keys of {self._path.name})"

    def __getitem__(self, key: str) -> Any:
        """The value of `key`.

        Raises:
            CheckpointError: a string in it is not UTF-8.
        """
        if key not in self._values:
            kind, offset = self._places[key]
            cursor = _Cursor(self._data, self._path, offset, f"value of {key}")
            self._values[key] = cursor.value(kind)
        return self._values[key]


class GgufFile:
    """A memory-mapped GGUF file whose header has been checked; no data has been read.

    Attributes:
        path: of the file.
        metadata: its key-value pairs.
        tensors: its tensor entries by name, in file order.
    """

    def __init__(self, path: Path) -> None:
        """Map `path` and walk its header.

        Raises:
            CheckpointError: not a whole, well-formed little-endian GGUF file of version 2 or 3.
            UnsupportedError: the `gguf` package is not installed.
        """
        self.path = path
        blocks = _block_sizes()
        try:
            with path.open("rb") as file:
                if file.seek(0, 2) < len(_MAGIC):
                    raise CheckpointError("too short for a GGUF file", path=path)
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(f"can't be read: {error}", path=path) from None
        cursor = _Cursor(self._data, path, 0, "header")
        tensor_count, key_count = _counts(cursor)
        self.metadata = GgufMetadata(self._data, path, _walk_keys(cursor, key_count))
        entries = _walk_tensors(cursor, tensor_count)
        alignment = self._alignment()
        base = -(-cursor.offset // alignment) * alignment
        self.tensors: dict[str, GgufTensor] = {}
        for name, entry in entries.items():
            if entry.offset % alignment:
                problem = f"offset {entry.offset}, expected a multiple of {alignment}"
                raise cursor.fail(problem, tensor=name)
            self.tensors[name] = _place(name, entry, blocks, base, cursor)
        self._check_apart()

    def rows(self, name: str) -> npt.NDArray[np.uint8]:
        """Bytes [rows, row_bytes] of a tensor in its storage type, a read-only view of the map."""
        tensor = self.tensors[name]
        count = tensor.rows * tensor.row_bytes
        flat = np.frombuffer(self._data, np.uint8, count, tensor.start)
        return flat.reshape(tensor.rows, tensor.row_bytes)

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            problem = f"general.alignment={alignment!r}, expected a power of two"
            raise CheckpointError(problem, path=self.path)
        return alignment

    def _check_apart(self) -> None:
        stop, previous = 0, ""
        for name, tensor in sorted(self.tensors.items(), key=lambda item: item[1].start):
            if tensor.start < stop:
                problem = f"its data overlaps that of {previous!r}"
                raise CheckpointError(problem, tensor=name, path=self.path)
            stop, previous = tensor.stop, name


@dataclass(frozen=True)
class _Entry:
    """A tensor entry as the file has it: dimensions fastest first, offset from the data's start."""

    dims: tuple[int, ...]
    type: int
    offset: int


class _Cursor:
    """Reads values one after another and never past the end of the file."""

    def __init__(self, data: mmap.mmap, path: Path, offset: int, place: str) -> None:
        self.data, self.path, self.offset = data, path, offset
        self.place = place  # what is being read, for messages

    def fail(self, problem: str, tensor: str | None = None) -> CheckpointError:
        """The error to raise, with the file's name."""
        return CheckpointError(problem, tensor=tensor, path=self.path)

    def take(self, count: int) -> int:
        """Step over `count` bytes; returns where they start."""
        start = self.offset
        if start + count > len(self.data):
            found = f"needs {start + count} bytes, the file has {len(self.data)}"
            raise self.fail(f"{self.place} {found}: truncated or damaged")
        self.offset += count
        return start

    def number(self, layout: struct.Struct) -> Any:
        """One scalar."""
        return layout.unpack_from(self.data, self.take(layout.size))[0]

    def string(self, limit: int | None = None) -> str:
        """One UTF-8 string of at most `limit` bytes."""
        length = self.number(_U64)
        if limit is not None and length > limit:
            raise self.fail(f"{self.place} has a name of {length} bytes, expected at most {limit}")
        start = self.take(length)
        try:
            return self.data[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise self.fail(f"{self.place} is not UTF-8: {error.reason}") from None

    def skip(self, kind: int) -> None:
        """Step over one value."""
        if kind == _STRING:
            self.take(self.number(_U64))
        elif kind == _ARRAY:
            item, count = self.array()
            if item in _SCALARS:
                self.take(count * _SCALARS[item].size)
            else:
                self._skip_strings(count)
        else:
            self.take(self.scalar(kind).size)

    def value(self, kind: int) -> Any:
        """One value; an array as a list."""
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.number(self.scalar(kind))
        item, count = self.array()
        if item == _STRING:
            return [self.string() for _ in range(count)]
        code, size = self.scalar(item).format[1:], self.scalar(item).size
        return list(struct.unpack_from(f"<{count}{code}", self.data, self.take(count * size)))

    def scalar(self, kind: int) -> struct.Struct:
        """How to read a scalar of value type `kind`."""
        if kind not in _SCALARS:
            raise self.fail(f"{self.place} has value type {kind}, expected 0 to 12")
        return _SCALARS[kind]

    def array(self) -> tuple[int, int]:
        """Item type and length at the start of an array."""
        item, count = self.number(_U32), self.number(_U64)
        if item == _ARRAY:
            raise self.fail(f"{self.place} is an array of arrays, which is not supported")
        if item != _STRING:
            self.scalar(item)
        if count > _MAX_ITEMS:
            raise self.fail(f"{self.place} is an array of {count}, expected at most {_MAX_ITEMS}")
        return item, count

    def _skip_strings(self, count: int) -> None:
        data, offset, end = self.data, self.offset, len(self.data) - _U64.size
        for _ in range(count):
            if offset > end:
                break
            offset += _U64.size + _U64.unpack_from(data, offset)[0]
        else:
            self.take(offset - self.offset)
            return
        self.take(offset + _U64.size - self.offset)  # fails, and says how


def _counts(cursor: _Cursor) -> tuple[int, int]:
    """Check magic and version; numbers of tensors and of keys."""
    magic = cursor.data[: len(_MAGIC)]
    cursor.take(len(_MAGIC))
    if magic != _MAGIC:
        raise cursor.fail(f"starts with {magic!r}, expected {_MAGIC!r}")
    version = cursor.number(_U32)
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        found = f"big-endian version {swapped}" if swapped in _VERSIONS else f"version {version}"
        raise cursor.fail(f"GGUF {found}, expected little-endian version 2 or 3")
    tensors, keys = cursor.number(_U64), cursor.number(_U64)
    for what, count, limit in (("tensors", tensors, _MAX_TENSORS), ("keys", keys, _MAX_KEYS)):
        if count > limit:
            raise cursor.fail(f"header promises {count} {what}, expected at most {limit}")
    return tensors, keys


def _walk_keys(cursor: _Cursor, count: int) -> dict[str, tuple[int, int]]:
    """Key to (value type, offset of the value)."""
    places: dict[str, tuple[int, int]] = {}
    for number in range(count):
        cursor.place = f"key {number + 1} of {count}"
        key = cursor.string(_MAX_NAME)
        cursor.place = f"value of {key}"
        if key in places:
            raise cursor.fail(f"key {key!r} is there twice")
        kind = cursor.number(_U32)
        places[key] = (kind, cursor.offset)
        cursor.skip(kind)
    return places


def _walk_tensors(cursor: _Cursor, count: int) -> dict[str, _Entry]:
    """Entries by name, as they stand."""
    entries: dict[str, _Entry] = {}
    for number in range(count):
        cursor.place = f"entry {number + 1} of {count} tensors"
        name = cursor.string(_MAX_NAME)
        dims = cursor.number(_U32)
        if dims > _MAX_DIMS:
            raise cursor.fail(f"{dims} dimensions, expected at most {_MAX_DIMS}", tensor=name)
        if name in entries:
            raise cursor.fail("is there twice", tensor=name)
        sizes = tuple(cursor.number(_U64) for _ in range(dims))
        entries[name] = _Entry(sizes, cursor.number(_U32), cursor.number(_U64))
    return entries


def _place(
    name: str, entry: _Entry, blocks: dict[int, tuple[str, int, int]], base: int, cursor: _Cursor
) -> GgufTensor:
    """Check one entry against its type and the file; Python's integers can't overflow."""
    if entry.type not in blocks:
        problem = f"type {entry.type}, which the installed gguf package does not know"
        raise cursor.fail(f"{problem}; damaged, or `pip install -U gguf`", tensor=name)
    type_name, block, block_bytes = blocks[entry.type]
    columns = entry.dims[0] if entry.dims else 1
    if 0 in entry.dims or columns % block:
        expected = f"positive sizes, the first a multiple of {block}"
        problem = f"{type_name} with sizes {list(entry.dims)}, expected {expected}"
        raise cursor.fail(problem, tensor=name)
    tensor = GgufTensor(
        type=type_name,
        shape=tuple(reversed(entry.dims)),
        start=base + entry.offset,
        row_bytes=columns // block * block_bytes,
        rows=math.prod(entry.dims[1:]),
    )
    if tensor.stop > len(cursor.data):
        found = f"needs bytes {tensor.start} to {tensor.stop}, the file has {len(cursor.data)}"
        raise cursor.fail(f"{found}: truncated or damaged", tensor=name)
    return tensor


def _block_sizes() -> dict[int, tuple[str, int, int]]:
    """Type number to its name, elements per block and bytes per block."""
    try:
        from gguf.constants import GGML_QUANT_SIZES
    except ImportError as error:
        problem = 'reading GGUF files needs the gguf package: pip install "humming-core[gguf]"'
        raise UnsupportedError(f"{problem} ({error})") from None
    return {int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}
