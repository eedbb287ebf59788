"""Which operand formats hold which codes: exactly, and all that can."""

from __future__ import annotations

import numpy as np
import pytest

from humming.formats.number import NumberFormat
from humming.formats.operands import OPERANDS, operand_exponent, operand_unit
from humming.formats.scheme import WeightScheme, Zero
from humming.formats.table import all_formats, number_format
from humming.validity import multiplicand

CODES = [f for f in all_formats() if f.bits <= 8 and (f.signed or f.is_integer)]
CODES += [number_format(f"e{x}m{y}") for x in (1, 4, 5, 6) for y in (1, 2) if 1 + x + y <= 8]
#: Of the weights that validity accepts, those whose codes no kernel decodes for such activations.
#: To f16: their range is as large as that of f16, so that subtracting biases would overflow.
NOT_DECODED = {("e5m1", "f16"), ("e6m1", "f16"), ("e5m2fnuz", "f16"), ("e5m1", "e5m2")}


def values_of(code: NumberFormat, zero: Zero) -> np.ndarray:
    values = code.decode(np.arange(1 << code.bits, dtype=np.uint8))
    values = values[np.isfinite(values)]
    if zero is Zero.INTEGER:
        return np.arange(-values.max(), values.max() + 1)
    unsigned = code.is_integer and not code.signed
    return values - (1 << (code.bits - 1)) * (unsigned and zero is Zero.NONE)


@pytest.mark.parametrize("target", OPERANDS, ids=str)
@pytest.mark.parametrize("code", CODES, ids=str)
def test_the_operand_has_every_value_times_the_power_of_two(
    code: NumberFormat, target: NumberFormat
) -> None:
    grid = target.decode(np.arange(1 << target.bits, dtype=target.code_dtype))
    for zero in Zero:
        exponent = operand_exponent(code, target, zero)
        if exponent is not None:
            assert np.isin(np.ldexp(values_of(code, zero), -exponent), grid).all()


@pytest.mark.parametrize("code", CODES, ids=str)
def test_what_validity_accepts_is_decoded_but_for_known_cases(code: NumberFormat) -> None:
    zeros = [Zero.NONE, *([Zero.INTEGER] if code.is_integer and not code.signed else [])]
    for activation in OPERANDS:
        if code.bits > activation.bits:
            continue
        for zero in zeros:
            plus = f"+{zero.value}" if zero.value else ""
            scheme = WeightScheme.parse(f"{code}{plus}-g128-f16")
            target = multiplicand(scheme, activation)
            if target is None or target not in OPERANDS:
                continue
            decoded = operand_exponent(code, target, zero) is not None
            assert decoded != ((code.name, target.name) in NOT_DECODED), (scheme, target)


@pytest.mark.parametrize(
    ("code", "target", "zero", "exponent"),
    [
        ("u4", "f16", Zero.INTEGER, 0),
        ("u4", "bf16", Zero.INTEGER, 6),
        ("s8", "bf16", Zero.NONE, 6),
        ("e2m1", "bf16", Zero.NONE, 0),
        ("u4", "s8", Zero.NONE, -4),
        ("u4", "s8", Zero.INTEGER, 0),
        ("u4", "e4m3fn", Zero.NONE, 9),
        ("u5", "e4m3fn", Zero.NONE, 9),
        ("u5", "e4m3fn", Zero.INTEGER, None),
        ("e2m1", "e4m3fn", Zero.NONE, 6),
        ("e2m1", "s8", Zero.NONE, -1),
        ("e2m1", "s4", Zero.NONE, None),
        ("e4m3fn", "e4m3fn", Zero.NONE, 0),
        ("e2m1", "f16", Zero.FLOAT, None),
        ("s4", "f16", Zero.INTEGER, None),
        ("e8m0", "bf16", Zero.NONE, None),
        ("u8", "s4", Zero.NONE, None),
        ("u4", "f32", Zero.NONE, None),
    ],
)
def test_exponents(code: str, target: str, zero: Zero, exponent: int | None) -> None:
    formats = number_format(code), number_format(target)
    assert operand_exponent(*formats, zero) == exponent


def test_a_register_holds_2_4_or_8_operands() -> None:
    assert [operand_unit(target) for target in OPERANDS] == [2, 2, 4, 4, 4, 8]


def test_the_types_of_formats_in_kernels() -> None:
    spelled = {name: number_format(name).cxx for name in ("u4", "s8", "e0m3", "e2m1", "e4m3fn")}
    assert spelled == {
        "u4": "humming::Unsigned<4>",
        "s8": "humming::Signed<8>",
        "e0m3": "humming::Magnitude<3>",
        "e2m1": "humming::Float<2, 1, 1, humming::Specials::kNone>",
        "e4m3fn": "humming::Float<4, 3, 7, humming::Specials::kNanOnly>",
    }
