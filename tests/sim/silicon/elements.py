"""Matrix elements: seeded codes of a format, packed in registers, and what they stand for."""

from __future__ import annotations

import numpy as np

from silicon.case import Array
from silicon.values import noise, small_integers

WIDTHS = {"f16": 16, "bf16": 16, "tf32": 32, "f64": 64, "e4m3": 8, "e5m2": 8}
WIDTHS |= {"s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1}
# Exponent and mantissa bits.
FLOATS = {"f16": (5, 10), "bf16": (8, 7), "tf32": (8, 10), "f64": (11, 52)}
FLOATS |= {"e4m3": (4, 3), "e5m2": (5, 2), "f32": (8, 23)}
# Each kind's exponents about that of one, which keep every sum finite even in f16; "every" has
# all of a small format's, subnormals and many zeros, "special" moderate ones, infinities and
# NaNs, and "raw" f32 numbers where TF32 is expected: their last 13 bits don't count.
SPREADS = {"moderate": 2, "wide": 12, "cancel": 5, "every": 60, "special": 2, "raw": 2}


def exponent_limit(format: str, kind: str) -> int:
    """The spread of a kind, as far as the format reaches."""
    if format in ("f16", "e5m2"):
        return min(SPREADS[kind], 5 if kind == "wide" else 4)
    return min(SPREADS[kind], 5 if format == "e4m3" else 99)


def codes(format: str, kind: str, seed: int, count: int) -> Array:
    """`count` codes as uint64. Integer types have one kind: every code."""
    width = WIDTHS.get(format, 32)
    if format not in FLOATS:
        return noise(seed, count, width).astype(np.uint64) & np.uint64((1 << width) - 1)
    exponent, mantissa = FLOATS[format]
    bias = (1 << (exponent - 1)) - 1
    sign = noise(seed + 2, count, 1).astype(np.uint64)
    if kind == "integers":
        return encode(small_integers(seed, count, -4, 4).astype(np.float64), format)
    if kind in ("every", "low") and exponent < 8:
        return _every(format, seed, count, kind == "low")
    spread = exponent_limit(format, kind)
    fraction = noise(seed, count) & np.uint64((1 << mantissa) - 1)
    power = small_integers(seed + 1, count, -spread, spread)
    if kind == "cancel":
        power = np.where(power > 0, spread, -spread)
        fraction = np.where(noise(seed + 3, count) % 4 == 0, fraction, 0)
    biased = (power + bias).astype(np.uint64)
    bits = sign << np.uint64(exponent + mantissa) | biased << np.uint64(mantissa) | fraction
    if kind == "every":
        bits[noise(seed + 4, count) % 3 == 0] = 0
    if kind == "special":
        top = np.uint64((1 << (exponent + mantissa)) - 1)
        places = noise(seed + 5, count) % 90 == 0
        bits[places] = top  # a NaN, in e4m3 too
        if format != "e4m3":
            infinite = noise(seed + 6, count) % 60 == 0
            bits[infinite] = sign[infinite] << np.uint64(exponent + mantissa) | (
                np.uint64(((1 << exponent) - 1) << mantissa)
            )
    if format == "tf32":
        bits = bits << np.uint64(13)
        if kind == "raw":
            bits |= noise(seed + 7, count) & np.uint64(0x1FFF)
    return bits


def smallest_normal(format: str) -> float:
    """The smallest normal number."""
    return 2.0 ** (2 - (1 << (FLOATS[format][0] - 1)))


def magnitudes(values: Array, format: str) -> Array:
    """Sizes as an adder that does not normalise sees them: subnormals like the smallest normal."""
    return np.where(values == 0, 0.0, np.maximum(np.abs(values), smallest_normal(format)))


def _every(format: str, seed: int, count: int, low: bool) -> Array:
    """Finite codes of a 5- or 4-bit exponent: a third any (`low`: below 16), zeros, tiny ones."""
    exponent, mantissa = FLOATS[format]
    sign = noise(seed + 2, count, 1).astype(np.uint64) << np.uint64(exponent + mantissa)
    end = (1 << (exponent + mantissa)) - (1 if format == "e4m3" else 1 << mantissa)
    if low:
        end = (1 << (exponent - 1)) + 3 << mantissa
    bits = noise(seed, count) % np.uint64(end)
    choice = noise(seed + 4, count) % 3
    bits = np.where(choice == 0, 0, np.where(choice == 1, bits % np.uint64(3 << mantissa), bits))
    return sign | bits.astype(np.uint64)


def encode(values: Array, format: str) -> Array:
    """Codes of numbers that the format holds exactly."""
    exponent, mantissa = FLOATS[format]
    fraction, power = np.frexp(np.abs(values))
    bias = (1 << (exponent - 1)) - 1
    scaled = (fraction * 2 - 1) * 2.0**mantissa
    bits = (power - 1 + bias).astype(np.uint64) << np.uint64(mantissa) | scaled.astype(np.uint64)
    bits = np.where(values == 0, np.uint64(0), bits)
    bits |= (values < 0).astype(np.uint64) << np.uint64(exponent + mantissa)
    return bits << np.uint64(13) if format == "tf32" else bits


def decode(bits: Array, format: str) -> Array:
    """float64 numbers behind codes."""
    bits = bits.astype(np.uint64)
    if format not in FLOATS:
        width = WIDTHS[format]
        numbers = bits.astype(np.int64)
        top = 1 << (width - 1)
        return np.where((format[0] == "s") & (numbers >= top), numbers - 2 * top, numbers)
    if format == "tf32":
        bits = bits >> np.uint64(13)
    exponent, mantissa = FLOATS[format]
    fraction = (bits & np.uint64((1 << mantissa) - 1)).astype(np.float64) / 2.0**mantissa
    power = (bits >> np.uint64(mantissa) & np.uint64((1 << exponent) - 1)).astype(np.int64)
    bias = (1 << (exponent - 1)) - 1
    with np.errstate(over="ignore"):  # f64's NaNs, which follow
        normal = np.ldexp(1 + fraction, (power - bias).astype(np.int32))
    small = np.ldexp(fraction, 1 - bias)
    negative = (bits >> np.uint64(exponent + mantissa)) & np.uint64(1) != 0
    magnitude = np.where(power > 0, normal, small)
    if format == "e4m3":
        magnitude[(power == 15) & (fraction == 0.875)] = np.nan
    else:
        last = power == (1 << exponent) - 1
        magnitude[last] = np.where(fraction[last] == 0, np.inf, np.nan)
    return np.where(negative, -magnitude, magnitude)


def pack(values: Array, width: int) -> Array:
    """Joins codes [..., count] of `width` bits into 32- or 64-bit registers, low bits first."""
    if width == 64:
        return values.astype(np.uint64)
    per = 32 // width
    grouped = values.reshape(*values.shape[:-1], -1, per).astype(np.uint64)
    shifts = np.arange(per, dtype=np.uint64) * np.uint64(width)
    return np.bitwise_or.reduce(grouped << shifts, axis=-1).astype(np.uint32)


def unpack(registers: Array, width: int) -> Array:
    """The codes [..., registers * per] of packed registers."""
    if width == 64:
        return registers
    per = 32 // width
    shifts = np.arange(per, dtype=np.uint64) * np.uint64(width)
    fields = registers[..., None].astype(np.uint64) >> shifts & np.uint64((1 << width) - 1)
    return fields.reshape(*registers.shape[:-1], -1)
