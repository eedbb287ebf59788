"""Check the size budget: files, functions and parameter lists that fit on a screen and in a head.

An exception carries its reason where it is made: ``# budget: reason`` on the first line of the file
(``// budget:`` or ``{# budget:`` in headers and templates) or on the line of the ``def``.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("packages", "tests", "tools", "examples", "benchmarks")
SKIPPED_FOLDERS = {"__pycache__", "build", "dist"}

FILE_LINES = {".py": 400, ".cuh": 500, ".h": 500, ".cu": 500, ".j2": 80}
TEST_FILE_LINES = 500
FUNCTION_LINES = 60
PARAMETERS = 6


@dataclass(frozen=True)
class Violation:
    """One thing over its limit, printed as `path:line: what (size > limit)`."""

    path: Path
    line: int
    what: str
    size: int
    limit: int

    def __str__(self) -> str:
        where = self.path.relative_to(ROOT).as_posix()
        return f"{where}:{self.line}: {self.what} ({self.size} > {self.limit})"


def main() -> int:
    """Print every violation and a summary; 1 if there is any violation, else 0."""
    files = list(source_files())
    violations = [violation for path in files for violation in check(path)]
    for violation in violations:
        print(violation)
    print(f"budget: {len(files)} files, {len(violations)} over the limit")
    return 1 if violations else 0


def source_files() -> Iterator[Path]:
    """Every file with a limit, in a stable order; links and hidden folders are not followed."""
    yield ROOT / "noxfile.py"
    for name in FOLDERS:
        for top, folders, files in os.walk(ROOT / name):
            folders[:] = sorted(f for f in folders if f[0] != "." and f not in SKIPPED_FOLDERS)
            paths = [Path(top, file) for file in sorted(files)]
            yield from (path for path in paths if path.suffix in FILE_LINES)


def check(path: Path) -> Iterator[Violation]:
    """What in one file is over its limit and not excused."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    is_test = (ROOT / "tests") in path.parents
    limit = TEST_FILE_LINES if is_test else FILE_LINES[path.suffix]
    if len(lines) > limit and not is_excused(lines[0]):
        yield Violation(path, 1, "lines in file", len(lines), limit)
    if path.suffix == ".py" and not is_test:
        yield from check_functions(path, ast.parse(text, str(path)), lines)


def check_functions(path: Path, tree: ast.AST, lines: list[str]) -> Iterator[Violation]:
    """Functions that are too long or take too much; docstrings count as lines."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if is_excused(lines[node.lineno - 1]):
            continue
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > FUNCTION_LINES:
            yield Violation(path, node.lineno, f"lines in {node.name}()", length, FUNCTION_LINES)
        count = len(parameters(node))
        if count > PARAMETERS:
            yield Violation(path, node.lineno, f"parameters of {node.name}()", count, PARAMETERS)


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Names that a caller has to think about: all of them, less `self` and `cls`."""
    spec = node.args
    arguments = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]
    arguments += [extra for extra in (spec.vararg, spec.kwarg) if extra is not None]
    return [argument.arg for argument in arguments if argument.arg not in ("self", "cls")]


def is_excused(line: str) -> bool:
    """Whether the line gives a reason for going over."""
    _, marker, reason = line.partition(" budget: ")
    return bool(marker and reason.strip())


if __name__ == "__main__":
    sys.exit(main())
