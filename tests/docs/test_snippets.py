"""Every ```python block of the documentation runs as it stands.

The blocks of one page run in order and share their names, as a reader's session would, in a folder
that holds a real checkpoint under the name `model.gguf`. A block that can't run says why, on the
line before it: <!-- not run: reason -->
"""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "packages/*/README.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)
FENCE = re.compile(
    r"(?P<excuse><!-- not run: \S[^\n]*-->\n+)?^```python\n(?P<code>.*?)^```$", re.M | re.S
)


def snippets(page):
    """Code of a page's blocks, each moved down to its own line so that tracebacks point at it."""
    text = page.read_text(encoding="utf-8")
    return [
        "\n" * text.count("\n", 0, match.start("code")) + match["code"]
        for match in FENCE.finditer(text)
        if not match["excuse"]
    ]


@pytest.fixture
def reading_room(tmp_path, monkeypatch):
    """A scratch folder with `model.gguf` in it."""
    find = runpy.run_path(str(ROOT / "examples" / "demo.py"))["model_files"]
    (tmp_path / "model.gguf").symlink_to(find()[0])
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if snippets(p)], ids=lambda p: p.relative_to(ROOT).as_posix()
)
def test_page_runs_top_to_bottom(page, reading_room):
    names = {"__name__": "__main__"}
    for code in snippets(page):
        exec(compile(code, str(page), "exec"), names)
