"""Whether two runs of a case agree, and the first place where they don't."""

from __future__ import annotations

from typing import Any

import numpy as np

from silicon.case import Array, Bytes, Case, Exact, Output, SameNumber, Within
from silicon.elements import FLOATS

FLOAT_TYPES: dict[str, type[np.floating[Any]]] = {
    "f16": np.float16,
    "bf16": np.float32,
    "f32": np.float32,
    "f64": np.float64,
}


def numbers(bits: Array, format: str) -> Array:
    """float64 numbers of a format, infinities and NaNs too."""
    if format == "bf16":
        bits = bits.astype(np.uint32) << np.uint32(16)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return bits.view(FLOAT_TYPES[format]).astype(np.float64)


def bounded(values: Array, format: str) -> Array:
    """Numbers with infinities, and what lies beyond, as the first power of two that overflows."""
    if format == "f64":
        return values
    end = 2.0 ** (1 << (FLOATS[format][0] - 1))
    return np.clip(values, -end, end)


def is_nan(bits: Array, format: str) -> Array:
    """Which bits are NaNs."""
    exponent, mantissa = FLOATS[format]
    top = np.array(((1 << exponent) - 1) << mantissa, bits.dtype)
    return (bits & np.array((1 << (exponent + mantissa)) - 1, bits.dtype)) > top


def _same_number(first: Array, second: Array, format: str) -> Array:
    if format.endswith("x2"):
        halves = _same_number(first.view(np.uint16), second.view(np.uint16), format[:-2])
        return np.asarray(halves.reshape(-1, 2).all(axis=1))
    return (first == second) | (is_nan(first, format) & is_nan(second, format))


def _within(bits: Array, check: Within, reference: Array, allowed: Array) -> Array:
    values = bounded(numbers(bits, check.format), check.format)
    with np.errstate(invalid="ignore"):
        error = np.abs(values - reference)
    return np.isfinite(reference) & (error <= allowed)


def agreement(output: Output, expected: Array, got: Array) -> Array:
    """Elementwise: do two results of an output agree?"""
    check = output.check
    if isinstance(check, Exact):
        return np.asarray(expected == got)
    if isinstance(check, SameNumber):
        return _same_number(expected, got, check.format)
    reference, allowed = check.bounds()
    reference = bounded(reference, check.format)
    near = _within(expected, check, reference, allowed) & _within(got, check, reference, allowed)
    other = ~np.isfinite(reference) & _same_number(expected, got, check.format)
    return near | other


def _show(output: Output, bits: Array, index: int) -> str:
    digits = 2 * np.dtype(output.dtype).itemsize
    text = f"0x{int(bits[index]):0{digits}x}"
    if isinstance(output.check, Within):
        text += f" ({numbers(bits, output.check.format)[index]!r})"
    return text


def disagreement(output: Output, expected: Array, got: Array) -> str:
    """The first element that disagrees, in words; empty if all agree."""
    wrong = np.flatnonzero(~agreement(output, expected, got))
    if not len(wrong):
        return ""
    first = int(wrong[0])
    text = (
        f"{output.label}: {len(wrong)} of {output.count} differ, first at {first}: "
        f"recorded {_show(output, expected, first)}, got {_show(output, got, first)}"
    )
    if isinstance(output.check, Within):
        reference, allowed = output.check.bounds()
        text += f", exact {reference[first]!r} +- {allowed[first]!r}"
    return text


def disagreements(case: Case, expected: Bytes, got: Bytes) -> list[str]:
    """One line for each output in which two runs of a case disagree."""
    lines, offset = [], 0
    for output in case.outputs:
        size = output.count * np.dtype(output.dtype).itemsize
        pair = [data[offset : offset + size].copy().view(output.dtype) for data in (expected, got)]
        lines.append(disagreement(output, *pair))
        offset += size
    return [line for line in lines if line]
