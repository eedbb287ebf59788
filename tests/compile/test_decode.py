"""Every code of every format becomes exactly the operand that it should, or does not compile."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from decode_cases import ALL_CASES, CASES, Case, families, program, ptx_of, run

from humming.errors import CompileError
from humming.jit import compile_program

pytestmark = pytest.mark.compile


def differences(case: Case, ptx: str) -> str:
    """What is wrong with a decoder, or nothing; -0 and +0 differ where the operand has both."""
    decoded = run(case, ptx)
    if decoded.exponent != case.exponent:
        return f"{case}: the exponent is {decoded.exponent}, not {case.exponent}"
    got, values = np.ldexp(decoded.numbers, decoded.exponent), decoded.values
    signs = np.signbit(got) != np.signbit(values)
    wrong = (got != values) & ~(np.isnan(got) & np.isnan(values))
    if case.target.is_float:
        wrong |= signs & ~np.isnan(values)
    if not wrong.any():
        return ""
    lane, place = (int(i) for i in np.argwhere(wrong)[0])
    found = f"{got[lane, place]} instead of {values[lane, place]}"
    return f"{case}: {wrong.sum()} wrong, the first in lane {lane} at {place}: {found}"


@pytest.mark.parametrize("family", families())
def test_every_code_becomes_its_value_to_the_bit(family: str) -> None:
    cases = families()[family]
    ptx = ptx_of(cases)
    assert [found for case in cases if (found := differences(case, ptx))] == []


# ------------------------------------------------------------------------------- what it costs

#: PTX instructions per register. Addresses and the zero point take some more, but fewer than one
#: for each.
COSTS = {
    "u4-f16": 2.25,
    "u4+z-f16": 2.25,
    "u4-bf16": 2.25,
    "u3-f16": 37 / 16,
    "u3-bf16": 40 / 16,
    "u8-f16": 2.5,
    "u8-bf16": 2.5,
    "u4-s8": 1.5,
    "u4-s4": 1.0,
    "s8-s8": 0.0,
    "u4-e4m3fn": 4.5,  # 5.5 for a machine: a multiplication is not counted
    "e2m1-f16": 3.75,
    "e2m1-bf16": 3.0,
    "e2m1-e4m3fn": 4.0,  # 3.5 for a machine, for which two units are masked at once
    "e4m3fn-f16": 6.5,
    "e4m3fn-bf16": 7.5,
    "e5m2-f16": 1.5,
}
ADDRESSES = 15
_NOT_DECODING = re.compile(r"(ld|st|mov|cvta|ret|mul|add\.s64)\b")
_OPCODE = re.compile(r"^\s+([a-z][\w.]*)\s.*;$", re.MULTILINE)


@pytest.mark.parametrize("name", COSTS)
def test_a_unit_takes_no_more_instructions_than_it_needs(name: str) -> None:
    (case,) = (case for case in CASES if str(case) == name)
    body = ptx_of([case]).partition("\n{\n")[2]
    opcodes = [code for code in _OPCODE.findall(body) if not _NOT_DECODING.match(code)]
    needed = COSTS[name] * case.units
    assert case.units > ADDRESSES
    assert needed <= len(opcodes) <= needed + ADDRESSES, Counter(opcodes)


# ----------------------------------------------------------------------- what does not compile

#: A case for each sentence that refuses one.
SENTENCES = {
    "e5m1-f16": "multiply it as bf16",
    "u8-s8": None,
    "u8+z-s8": "codes as wide as the operand don't fit it",
    "u6-e4m3fn": "does not have every value",
    "u4-e5m2": None,
    "u4+z-e5m2": "does not have every value",
    "e3m2-s8": "s8 does not have every value",
    "e2m1-s4": "no integer of 4 bits has every value",
    "e3m4-e4m3fn": "does not have every value",
    "e4m3fn-e5m2": "does not have every value",
    "e0m5-e4m3fn": "does not have every value",
}


@pytest.mark.parametrize(("name", "sentence"), SENTENCES.items())
def test_what_would_not_be_exact_does_not_compile(
    name: str, sentence: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the source of what fails is kept
    (case,) = (case for case in ALL_CASES if str(case) == name)
    assert (case.exponent is None) == (sentence is not None)
    if sentence is None:
        assert ptx_of([case])
        return
    with pytest.raises(CompileError, match=sentence):
        ptx_of([case])


# ------------------------------------------------------------------------------- for real targets


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_90a"])
def test_decoders_assemble_without_spills(arch: str) -> None:
    names = ["u4+z-f16", "u5-f16", "e2m1-f16", "e4m3fn-f16", "u4-s8", "u4-s4", "e2m1-s8"]
    names += ["u4-bf16", "u8-bf16", "e2m1-bf16", "e4m3fn-bf16"] * (arch != "sm_75")
    names += ["u4-e4m3fn", "e2m1-e4m3fn"] * (arch >= "sm_89")
    cases = [case for case in CASES if str(case) in names]
    assert len(cases) == len(names)
    binary = compile_program(program("decode", cases, arch, "cubin"))
    assert [usage.kernel for usage in binary.usage if usage.spill_stores or usage.stack] == []
    assert len(binary.usage) == len(names)
