"""No mutated config or file header gets anything but a typed error out of any loader."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import humming

FIXTURES = Path(__file__).parents[1] / "fixtures"
CHECKPOINTS = sorted(path.parent for path in FIXTURES.glob("*/*/config.json"))
IDS = [path.relative_to(FIXTURES).as_posix() for path in CHECKPOINTS]

every_checkpoint = pytest.mark.parametrize("path", CHECKPOINTS, ids=IDS)
quietly = settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

#: What a config value may turn into: other types, other sizes, other spellings.
STRANGE: list[Any] = [
    None, True, False, 0, 1, -1, 3, 7, 32, 2**31, 2**70, -0.5, 1e308, "", "x", "int", "group",
    "re:(", "*", [], [None], [[1]], {}, {"a": {}}, [2, 128], "128x128", ["Linear"], "NVFP4",
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values inside a JSON document."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*path, key))


def mutate(data: st.DataObject, document: Any) -> None:
    if not document:
        return
    *parents, last = data.draw(st.sampled_from(sorted(places(document), key=str)))
    holder = document
    for key in parents:
        holder = holder[key]
    what = data.draw(st.sampled_from(["change", "drop"]))
    if what == "drop" and isinstance(holder, dict):
        del holder[last]
    else:
        holder[last] = copy.deepcopy(data.draw(st.sampled_from(STRANGE)))


def open_and_read(path: Path) -> None:
    """Read everything; a HummingError is the only thing that may come out."""
    try:
        checkpoint = humming.load_checkpoint(path)
        for name in checkpoint:
            checkpoint[name].dequantize()
        checkpoint.expert_groups()
    except humming.HummingError:
        return


@every_checkpoint
@quietly
@given(data=st.data())
def test_mutated_configs_are_read_or_refused(path: Path, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / "changed"
        shutil.copytree(path, changed)
        configs = sorted(changed.glob("*config*.json"))
        config = data.draw(st.sampled_from(configs))
        document = json.loads(config.read_text())
        for _ in range(data.draw(st.integers(1, 3))):
            mutate(data, document)
        config.write_text(json.dumps(document))
        open_and_read(changed)


@every_checkpoint
@quietly
@given(data=st.data())
def test_mutated_headers_are_read_or_refused(path: Path, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / "changed"
        shutil.copytree(path, changed)
        file = data.draw(st.sampled_from(sorted(changed.glob("*.safetensors"))))
        content = bytearray(file.read_bytes())
        length = int.from_bytes(content[:8], "little")
        position = data.draw(st.integers(0, min(length + 8, len(content)) - 1))
        content[position] = data.draw(st.integers(0, 255))
        if data.draw(st.booleans()):
            del content[data.draw(st.integers(8, len(content))) :]
        file.write_bytes(content)
        open_and_read(changed)
