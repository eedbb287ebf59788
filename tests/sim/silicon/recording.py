"""Recorded outputs: one .npz file a family, each case's bytes compressed with lzma."""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from silicon.case import Bytes, Case

FOLDER = Path(__file__).parent / "recorded"
RERECORD = "record it again: on a GPU, in tests/sim, python -m silicon.record"
PLAIN, PLANES, STEPS = 0, 1, 2
# A small dictionary: most of the time of a short output would go into clearing a large one.
LZMA = [{"id": lzma.FILTER_LZMA1, "preset": 9, "dict_size": 1 << 20}]


class NotRecorded(Exception):
    """A case without a recording, or one that has changed since."""


@dataclass(frozen=True)
class Recording:
    """What a GPU gave for one case."""

    digest: str
    data: Bytes


def _filtered(case: Case, data: Bytes, how: int) -> bytes:
    """Each output's bytes by significance (PLANES), of differences between neighbours (STEPS)."""
    if how == PLAIN:
        return data.tobytes()
    parts, offset = [], 0
    for output in case.outputs:
        size = output.count * np.dtype(output.dtype).itemsize
        values = data[offset : offset + size].copy().view(output.dtype)
        if how == STEPS:
            values = np.diff(values, prepend=values.dtype.type(0))
        parts.append(values.view(np.uint8).reshape(output.count, -1).T.tobytes())
        offset += size
    return b"".join(parts)


def packed_as(case: Case, data: Bytes, how: int) -> Bytes:
    """One compressed form, its kind first."""
    raw = _filtered(case, data, how)
    blob = bytes([how]) + lzma.compress(raw, lzma.FORMAT_ALONE, filters=LZMA)
    return np.frombuffer(blob, np.uint8)


def pack(case: Case, data: Bytes) -> Bytes:
    """The smallest of the three compressed forms."""
    return min((packed_as(case, data, how) for how in (PLAIN, PLANES, STEPS)), key=len)


def unpack(case: Case, packed: Bytes) -> Bytes:
    """The inverse of `pack`."""
    how = int(packed[0])
    data = np.frombuffer(lzma.decompress(packed[1:].tobytes(), lzma.FORMAT_ALONE), np.uint8)
    if how == PLAIN:
        return data
    parts, offset = [], 0
    for output in case.outputs:
        width = np.dtype(output.dtype).itemsize
        size = output.count * width
        planes = data[offset : offset + size].reshape(width, output.count).T
        values = np.ascontiguousarray(planes).view(output.dtype).reshape(-1)
        if how == STEPS:
            values = np.cumsum(values, dtype=values.dtype)
        parts.append(values.view(np.uint8))
        offset += size
    return np.concatenate(parts)


def write(family: str, cases: Mapping[str, tuple[Case, Bytes]], about: Mapping[str, Any]) -> int:
    """Writes a family's file; returns its size in bytes."""
    FOLDER.mkdir(exist_ok=True)
    digests = {name: case.digest() for name, (case, _) in cases.items()}
    note = json.dumps({**about, "digests": digests})
    arrays = {name.split("/", 1)[1]: pack(case, data) for name, (case, data) in cases.items()}
    path = FOLDER / f"{family}.npz"
    np.savez_compressed(path, **{"about json": np.array(note)}, **arrays)  # type: ignore[arg-type]
    return path.stat().st_size


@cache
def _file(family: str) -> tuple[dict[str, Any], dict[str, Bytes]]:
    path = FOLDER / f"{family}.npz"
    if not path.exists():
        return {"digests": {}}, {}
    with np.load(path) as arrays:
        about = json.loads(str(arrays["about json"]))
        return about, {name: arrays[name] for name in arrays.files if name != "about json"}


def about(family: str) -> dict[str, Any]:
    """Device, driver and date of a family's recording."""
    return _file(family)[0]


def is_recorded(family: str, case: Case) -> bool:
    """Whether there is a recording of this very case."""
    return bool(_file(family)[0]["digests"].get(case.name) == case.digest())


def recorded(family: str, case: Case) -> Bytes:
    """The recorded output bytes of a case.

    Raises:
        NotRecorded: if there are none, or the case has changed since.
    """
    notes, arrays = _file(family)
    digest = notes["digests"].get(case.name)
    if digest is None:
        raise NotRecorded(f"{case.name} has no recording; {RERECORD}")
    if digest != case.digest():
        raise NotRecorded(f"{case.name} has changed since it was recorded; {RERECORD}")
    return unpack(case, arrays[case.name.split("/", 1)[1]])
