"""The check of the GEMM tests sees each kind of fault: a layer with one fault in it does not pass.

The layer is the reference backend's, over a weight (or rows) with the fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from gemm_data import Call, call_of, finite_codes, weight_of
from gemm_matrix import SOURCES, Case, all_cases, combinations
from gemm_oracle import Reference, check, complaints, limit, measure, poisoned

import humming
from humming.configs import GemmKind
from humming.packing import pack
from humming.weight import CanonicalWeight

CASE = Case(source="sm80", weight="u4+z-g64-bf16", n=200, k=1104, bias=True)


def with_codes(weight: CanonicalWeight, change: Callable[[torch.Tensor], None]) -> CanonicalWeight:
    codes = weight.codes().clone()
    change(codes)
    return weight.replace(packed=pack(codes, weight.scheme.code.bits))


def swap_columns(codes: torch.Tensor) -> None:
    codes[:, [600, 601]] = codes[:, [601, 600]]


def swap_rows(codes: torch.Tensor) -> None:
    codes[[8, 16]] = codes[[16, 8]]


def drop_last_columns(codes: torch.Tensor) -> None:
    codes[:, 1096:] = 0


def off_by_one_in_a_row(codes: torch.Tensor) -> None:
    codes[77] ^= 1


def rolled(name: str, dim: int) -> Callable[[CanonicalWeight], CanonicalWeight]:
    return lambda weight: weight.replace(**{name: dict(weight.tensors())[name].roll(1, dim)})


FAULTS: dict[str, Callable[[CanonicalWeight], CanonicalWeight]] = {
    "columns swapped": lambda w: with_codes(w, swap_columns),
    "rows swapped": lambda w: with_codes(w, swap_rows),
    "tail of K lost": lambda w: with_codes(w, drop_last_columns),
    "codes of a row off by one": lambda w: with_codes(w, off_by_one_in_a_row),
    "scales of the next group": rolled("scales", 1),
    "scales of the next row": rolled("scales", 0),
    "zero points of the next group": rolled("zeros", 1),
    "zero points of the next row": rolled("zeros", 0),
    "no bias": lambda w: w.replace(bias=None),
    "bias of the next row": rolled("bias", 0),
}


def result_of(weight: CanonicalWeight, call: Call) -> torch.Tensor:
    with poisoned():
        return humming.QuantLinear(weight, backend="reference")(call.x, **call.routing)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_weight_is_seen(fault: str, dtype: str) -> None:
    case = replace(CASE, dtype=dtype)
    weight = weight_of(case, "cpu")
    for m in (1, 16):
        call = call_of(case, weight, m, "cpu")
        reference = Reference(weight, case.activations)
        expected, terms = reference(call.x), reference.terms(call.x)
        check(result_of(weight, call), expected, limit(dtype), terms=terms)
        with pytest.raises(AssertionError, match="error"):
            check(result_of(FAULTS[fault](weight), call), expected, limit(dtype), terms=terms)


@pytest.mark.parametrize("kind", [kind for kind in GemmKind if kind is not GemmKind.DENSE])
def test_rows_of_the_wrong_expert_and_rows_of_nobody_are_seen(kind: GemmKind) -> None:
    case = replace(CASE, kind=kind)
    weight = weight_of(case, "cpu")
    call = call_of(case, weight, 33, "cpu")
    expected = Reference(weight, case.activations)(call.x, **call.routing)
    right = result_of(weight, call)
    check(right, expected, limit("bf16"))
    rotated = {name: tensor.roll(1, 0) for name, tensor in weight.tensors()}
    wrong = result_of(weight.replace(**rotated), call)
    with pytest.raises(AssertionError, match="error"):
        check(wrong, expected, limit("bf16"))
    nobody = (expected == 0).all(dim=-1)
    assert nobody.any()
    right[nobody.nonzero()[-1].split(1)] = 1e-30
    with pytest.raises(AssertionError, match="1 rows that belong to nobody"):
        check(right, expected, limit("bf16"))


def test_what_nobody_wrote_is_seen() -> None:
    expected = torch.randn(9, 40, dtype=torch.float64)
    with poisoned():
        result = torch.empty(9, 40)
    result[:, :39] = expected[:, :39]
    found = complaints(["x"], [measure(result, expected)], 1e-2)
    assert "error nan" in found[0]
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_result_that_is_all_zero_where_it_should_not_be_is_seen() -> None:
    expected = torch.randn(9, 40, dtype=torch.float64)
    assert complaints(["x"], [measure(torch.zeros(9, 40), expected)], 1e-2)
    assert not complaints(["x"], [measure(torch.zeros(3, 40), expected[:3] * 0)], 1e-2)


# -- the matrix itself -----------------------------------------------------------------------------


def test_names_of_cases_are_unique_and_data_are_made_of_every_code() -> None:
    every = all_cases()
    assert len(every) == len({str(case) for case in every})
    for case in combinations("sm80")[::17]:
        weight = weight_of(case, "cpu")
        weight.check_values()
        found = set(weight.codes().unique().tolist())
        wanted = set(finite_codes(case.scheme.code, "cpu").tolist())
        assert len(found) >= 0.9 * len(wanted), case
        assert found <= wanted
        assert weight.dequantize(torch.float64).isfinite().all()


def test_devices_of_one_source_have_the_same_matrix() -> None:
    """SM86 and SM87 run SM80's code; their profiles must list the same formats."""
    own = combinations("sm80")
    for profile in ("family-sm86", "family-sm87", "family-sm80", "nvidia-a10"):
        assert all(replace(case, source=profile).why_not() is None for case in own), profile
    for profile in ("family-sm75", "nvidia-t4"):
        for case in combinations("sm75"):
            assert replace(case, source=profile).why_not() is None
    assert set(SOURCES) == {"sm75", "sm80", "sm89"}
