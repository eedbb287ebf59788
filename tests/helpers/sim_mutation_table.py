"""Writes docs/simulator-mutations.md: `python tests/helpers/sim_mutation_table.py`.

Needs humming_sim to be importable, as the tests do.
"""

from __future__ import annotations

from pathlib import Path

from sim_mutations import NOTHING, RESULT, Mutation, Outcome, load, outcome

PAGE = Path(__file__).resolve().parents[2] / "docs" / "simulator-mutations.md"

_HEAD = """\
# Seeded faults

<!-- Written by tests/helpers/sim_mutation_table.py, checked by tests/sim/test_mutations.py. -->

Does the simulator find the faults that kernels really have? Each row is one fault put into one of
the test kernels (`tests/sim/kernels`), and what found it: a check of the simulator, by its name, or
a result that differs from float64 in a run without findings. Some faults show as soon as all
threads run together; those of timing need a run in random order, of which a few are made.
The edits themselves are in `tests/sim/mutations`.
"""


def row(mutation: Mutation, result: Outcome) -> str:
    """The table's row of one mutation."""
    found = {RESULT: "wrong result", NOTHING: "**not found**"}.get(
        result.found, f"`{result.found}`"
    )
    when = "together" if result.seed is None else "random order"
    if result.found == NOTHING:
        when = ""
    return f"| {mutation.name} | `{mutation.variant}` | {mutation.what} | {found} | {when} |"


def page(results: list[tuple[Mutation, Outcome]]) -> str:
    """The whole page."""
    caught = sum(result.found != NOTHING for _, result in results)
    lines = [
        _HEAD,
        f"{caught} of {len(results)} are found.\n",
        "| fault | kernel | what happens | found by | run |",
        "|---|---|---|---|---|",
        *(row(mutation, result) for mutation, result in results),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run every mutation and write the page."""
    PAGE.write_text(page([(row_, outcome(row_)) for row_ in load()]), encoding="utf-8")


if __name__ == "__main__":
    main()
