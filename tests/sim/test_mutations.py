"""Seeded faults in the test kernels are found (docs/simulator-mutations.md is their table)."""

from __future__ import annotations

import pytest
from sim_gemm_variants import VARIANTS
from sim_mutation_table import PAGE, row
from sim_mutations import NOTHING, RESULT, Mutation, load, outcome

from humming_sim import CHECKS

MUTATIONS = load()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.variant}: {m.name}")
def test_a_seeded_fault_is_found_as_its_row_says(mutation: Mutation) -> None:
    result = outcome(mutation)
    assert result.found in mutation.caught_by, result.message
    assert row(mutation, result) in PAGE.read_text(encoding="utf-8").splitlines()


def test_at_least_28_of_30_faults_are_expected_to_be_found() -> None:
    missed = [mutation.name for mutation in MUTATIONS if NOTHING in mutation.caught_by]
    assert len(MUTATIONS) >= 36
    assert len(missed) / len(MUTATIONS) <= 2 / 30, missed


def test_every_fault_is_named_once_and_expects_what_exists() -> None:
    names = [(mutation.variant, mutation.name) for mutation in MUTATIONS]
    assert len(set(names)) == len(names)
    for mutation in MUTATIONS:
        assert mutation.caught_by
        assert set(mutation.caught_by) <= {*CHECKS, RESULT, NOTHING}, mutation.name


def test_the_page_has_a_row_for_each_fault_and_no_other() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.count("|") > 4]
    assert len(rows) == 2 + len(MUTATIONS)


def test_every_kernel_has_seeded_faults() -> None:
    problem = MUTATIONS[0].problem
    sources = {VARIANTS[mutation.variant](problem).program.source for mutation in MUTATIONS}
    assert sources == {VARIANTS[name](problem).program.source for name in VARIANTS}
