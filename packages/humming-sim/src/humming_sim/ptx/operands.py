"""Operand text to operands (PTX ISA 9.0, 4.5 constants and 6 instruction operands)."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from humming_sim.errors import PtxError
from humming_sim.ptx.model import (
    Address,
    Group,
    Immediate,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
)

__all__ = ["parse_operand", "split_operands"]

_INTEGER = re.compile(r"([+-]?)(0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9]\d*)U?$")
_FLOAT_BITS = re.compile(r"([+-]?)0([fFdD])([0-9a-fA-F]+)$")
_DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?$")
_OFFSET = re.compile(r"^(.*?[\w\]>$])\s*([+-])\s*(-?(?:0[xX][0-9a-fA-F]+|\d+))$", re.S)
_NAME = re.compile(r"[%$\w][\w$.:]*$")

_OPEN, _CLOSE = "{[(", "}])"


def split_operands(text: str) -> list[str]:
    """Split at the commas that are outside of every bracket."""
    if not any(bracket in text for bracket in _OPEN):
        return [part.strip() for part in text.split(",")] if text.strip() else []
    parts, depth, start = [], 0, 0
    for position, char in enumerate(text):
        if char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def parse_operand(text: str, lookup: Callable[[str], Register | None]) -> Operand:
    """The operand that `text` spells; `lookup` gives the register of a name, or None.

    Raises:
        PtxError: if it is no operand.
    """
    text = text.strip()
    if text.startswith("{") and text.endswith("}"):
        return Group(tuple(parse_operand(part, lookup) for part in split_operands(text[1:-1])))
    if text.startswith("[") and text.endswith("]"):
        return _parse_address(text[1:-1], lookup)
    if "|" in text:
        first, second = text.split("|", 1)
        return Pair(parse_operand(first, lookup), parse_operand(second, lookup))
    if text == "_":
        return Sink()
    if text.startswith("!"):
        register = lookup(text[1:].strip())
        if register is None:
            raise PtxError(f"{text} negates what is no register")
        return Register(register.index, register.type, register.name, negated=True)
    return _parse_scalar(text, lookup)


def _parse_scalar(text: str, lookup: Callable[[str], Register | None]) -> Operand:
    register = lookup(text)
    if register is not None:
        return register
    if match := _INTEGER.match(text):
        digits = match[2]
        octal = len(digits) > 1 and digits[0] == "0" and digits.isdigit()
        value = int(digits, 8) if octal else int(digits, 0)
        return Immediate(-value if match[1] == "-" else value)
    if match := _FLOAT_BITS.match(text):
        bits, width = int(match[3], 16), 32 if match[2] in "fF" else 64
        if match[1] == "-":
            bits ^= 1 << (width - 1)
        return Immediate(bits, f"f{width}")
    if _DECIMAL.match(text):
        return Immediate(int.from_bytes(struct.pack("<d", float(text)), "little"), "f64")
    if text == "WARP_SZ":
        return Immediate(32)
    if text.startswith("%") and _NAME.match(text):
        return Special(text)
    if match := _OFFSET.match(text):
        base = _parse_scalar(match[1].strip(), lookup)
        if isinstance(base, Symbol):
            return Symbol(base.name, _signed(match[2], match[3]))
    if _NAME.match(text):
        return Symbol(text)
    raise PtxError(f"{text!r} is no operand")


def _parse_address(text: str, lookup: Callable[[str], Register | None]) -> Address:
    parts = split_operands(text)
    if not parts:
        raise PtxError("an address is empty")
    extras = tuple(parse_operand(part, lookup) for part in parts[1:])
    if match := _OFFSET.match(parts[0]):
        base = parse_operand(match[1], lookup)
        return Address(base, _signed(match[2], match[3]), extras)
    return Address(parse_operand(parts[0], lookup), 0, extras)


def _signed(sign: str, digits: str) -> int:
    value = int(digits, 0)
    return -value if sign == "-" else value
