"""Sizes in settings, and the environment of programs that humming starts."""

from __future__ import annotations

import pytest

from humming import settings
from humming.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("0", 0), ("1024", 1024), ("500MB", 500_000_000), ("2GiB", 2 << 30), (" 1.5 KiB ", 1536),
     ("3k", 3072), ("1m", 1 << 20), ("2tb", 2 * 10**12), ("7B", 7), ("none", None), ("NONE", None)],
)  # fmt: skip
def test_a_size_has_a_unit_or_none(
    monkeypatch: pytest.MonkeyPatch, text: str, nbytes: int | None
) -> None:
    monkeypatch.setenv("HUMMING_CACHE_LIMIT", text)
    assert settings.size("HUMMING_CACHE_LIMIT") == nbytes


@pytest.mark.parametrize("text", ["", "-1", "GiB", "2 gigabytes", "1e9", "2ib"])
def test_anything_else_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("HUMMING_CACHE_LIMIT", text)
    with pytest.raises(ConfigError, match=r"HUMMING_CACHE_LIMIT=.*a size such as"):
        settings.size("HUMMING_CACHE_LIMIT")


def test_the_default_is_two_gibibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HUMMING_CACHE_LIMIT", raising=False)
    assert settings.size("HUMMING_CACHE_LIMIT") == 2 << 30


def test_a_childs_environment_lacks_what_it_shall_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEN", "1")
    monkeypatch.setenv("HIDDEN", "1")
    found = settings.child_environment(without=("HIDDEN", "NEVER_THERE"))
    assert found["SEEN"] == "1"
    assert "HIDDEN" not in found
