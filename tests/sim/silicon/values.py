"""Input values: edges first, then numbers of a generator that never changes between versions."""

from __future__ import annotations

import numpy as np

from silicon.case import Array

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def noise(seed: int, count: int, width: int = 64) -> Array:
    """`count` random unsigned integers of `width` bits (splitmix64)."""
    with np.errstate(over="ignore"):
        state = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed) * np.uint64(1_000_003)
        state = state * _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return (state >> np.uint64(64 - width)).astype(f"uint{max(width, 8)}")


def small_integers(seed: int, count: int, low: int, high: int) -> Array:
    """`count` integers from low to high inclusive, as int64."""
    return (noise(seed, count) % np.uint64(high - low + 1)).astype(np.int64) + low


def integer_edges(width: int) -> Array:
    """The corners of a two's complement type, and a few patterns."""
    top = 1 << (width - 1)
    values = [0, 1, 2, 7, width - 1, width, top - 1, top, top + 1, 2 * top - 1, 2 * top - 2]
    values += [0x5A5A5A5A5A5A5A5A % (2 * top)]
    return np.array(values, f"uint{width}")


def float_edges(exponent: int, mantissa: int) -> Array:
    """Zeros, denormals, powers of two, neighbours of one, the ends, infinities and NaNs."""
    width = exponent + mantissa + 1
    inf = ((1 << exponent) - 1) << mantissa
    one = ((1 << (exponent - 1)) - 1) << mantissa
    half = 1 << (mantissa - 1)
    positive = [0, 1, half, (1 << mantissa) - 1, 1 << mantissa, one - 1, one, one + 1]
    positive += [one + (1 << mantissa) - 1, one + half + 1, one + (3 << mantissa)]
    positive += [inf - 1, inf, inf | half, inf | 1]
    sign = 1 << (width - 1)
    return np.array([p for v in positive for p in (v, v | sign)], f"uint{width}")


def near_one(seed: int, count: int, exponent: int, mantissa: int, spread: int) -> Array:
    """Random signs and mantissas with exponents at most `spread` from that of one."""
    width = exponent + mantissa + 1
    fraction = noise(seed, count) & np.uint64((1 << mantissa) - 1)
    bias = (1 << (exponent - 1)) - 1
    power = small_integers(seed + 1, count, bias - spread, bias + spread).astype(np.uint64)
    sign = noise(seed + 2, count, 1).astype(np.uint64)
    bits = (sign << np.uint64(width - 1)) | (power << np.uint64(mantissa)) | fraction
    return bits.astype(f"uint{width}")


def grid_of(edges: Array, operands: int, count: int, rest: list[Array]) -> list[Array]:
    """`operands` arrays of `count`: combinations of edges first (at most half), then `rest`."""
    grids = [g.ravel() for g in np.meshgrid(*[edges] * operands, indexing="ij")]
    total = len(grids[0])
    room = min(total, count // 2)
    picked = (np.arange(room) * total) // room
    return [
        np.concatenate([g[picked], r[: count - room]]) for g, r in zip(grids, rest, strict=True)
    ]


def integers(seed: int, operands: int, width: int, count: int = 256) -> list[Array]:
    """Operand arrays of an integer instruction."""
    rest = [noise(seed + 17 * i, count, width) for i in range(operands)]
    return grid_of(integer_edges(width), operands, count, rest)


def floats(seed: int, operands: int, exponent: int, mantissa: int, count: int = 512) -> list[Array]:
    """Operand arrays of a floating-point instruction: edges, near one, any bits."""
    width = exponent + mantissa + 1
    spread = min(mantissa + 2, (1 << (exponent - 1)) - 2)
    rest = []
    for i in range(operands):
        close = near_one(seed + 31 * i, count, exponent, mantissa, spread)
        any_bits = noise(seed + 31 * i + 7, count, width)
        rest.append(np.where(np.arange(count) % 3 == 0, any_bits, close).astype(close.dtype))
    return grid_of(float_edges(exponent, mantissa), operands, count, rest)
