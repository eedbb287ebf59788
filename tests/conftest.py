"""Markers' home is pyproject.toml; here: the path of tests/helpers and how hypothesis runs."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import hypothesis
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "helpers"))

# The same examples on every run and no database beside the sources; `--hypothesis-profile
# search` looks further.
hypothesis.settings.register_profile(
    "repeatable", deadline=None, derandomize=True, database=None, max_examples=50
)
hypothesis.settings.register_profile("search", deadline=None, database=None, max_examples=2000)
hypothesis.settings.load_profile("repeatable")

# One process per core runs tests; threads on top of that only wait for each other.
torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Collect garbage seldom, and not among modules and tests, which stay.

    The simulator makes so many objects that collecting them took a third of the time of its tests,
    though hardly any are garbage: a launch frees what it made itself.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """torch's random numbers are the same in every run and in any order of the tests."""
    torch.manual_seed(0)
