"""Which operand formats hold a weight's codes, and up to which power of two: what kernels decode.

Twin of ``include/humming/decode/decoder.cuh``.
"""

from __future__ import annotations

from humming.formats.number import Kind, NumberFormat, Specials
from humming.formats.scheme import Zero
from humming.formats.table import number_format

__all__ = ["OPERANDS", "operand_exponent", "operand_unit"]

#: What kernels multiply.
OPERANDS = tuple(map(number_format, ("f16", "bf16", "e4m3fn", "e5m2", "s8", "s4")))


#: Integers become bf16 by way of its smallest numbers, multiples of 2^-133, times at most 2^127.
_BF16_STEP = 6


def operand_unit(target: NumberFormat) -> int:
    """Numbers of this format in one 32-bit register."""
    return 32 // target.bits


def operand_exponent(code: NumberFormat, target: NumberFormat, zero: Zero) -> int | None:
    """e such that each (code - zero point) is a number of `target` times ``2^e``.

    Kernels decode to that number, and multiply by ``2^e`` where they apply scales. With
    :attr:`Zero.FLOAT` the code itself is meant; without zero points unsigned codes are offset by
    ``2^(bits - 1)``.

    Returns:
        None if kernels don't decode this: `target` lacks some value, or it is none of
        :data:`OPERANDS`.
    """
    if target not in OPERANDS:
        return None
    if code.bits > min(target.bits, 8) or not (code.signed or code.is_integer):
        return None
    if (zero is not Zero.NONE and not code.is_integer) or (zero is Zero.INTEGER and code.signed):
        return None
    rule = _from_integer if code.is_integer else _from_float
    return rule(code, target, zero)


def _from_integer(code: NumberFormat, target: NumberFormat, zero: Zero) -> int | None:
    if target.bits == 16:
        return _BF16_STEP if target.name == "bf16" else 0
    centred = code.signed or zero is Zero.NONE
    if target.is_integer:
        unused = target.bits - code.bits
        if centred:
            return -unused
        return 0 if unused else None
    largest = 1 << (code.bits - 1) if centred else (1 << code.bits) - 1
    return _step(target) if largest <= 2 << target.mantissa else None


def _from_float(code: NumberFormat, target: NumberFormat, zero: Zero) -> int | None:
    """The zero point is none, as :func:`operand_exponent` has checked."""
    magnitude = code.kind is Kind.MAGNITUDE
    if target.bits == 16:
        narrow = magnitude or code.exponent < target.exponent
        return 0 if narrow or code.name == "e5m2" else None
    if target.is_integer:
        even = magnitude or code.exponent == 1  # the magnitude is the code without its sign
        fits = even or (code.exponent == 2 and code.mantissa <= 4 and target.bits == 8)
        step = 0 if magnitude else 1 - code.bias - code.mantissa
        return step if fits and code.specials is Specials.NONE else None
    if code == target:
        return 0
    if magnitude:
        return _step(target) if code.mantissa <= target.mantissa + 1 else None
    # Where the largest exponent is as large, e4m3fn has but one code that is no number.
    most = target.exponent - int(target.specials is Specials.IEEE)
    wider = code.exponent > most or code.mantissa > target.mantissa
    same = (code.exponent, code.mantissa) == (target.exponent, target.mantissa)
    if wider or same or code.specials is not Specials.NONE:
        return None
    return target.bias - code.bias


def _step(target: NumberFormat) -> int:
    """Exponent of the smallest positive number, negated: codes from 0 on are its multiples."""
    return target.bias - 1 + target.mantissa
