"""Slow, scalar, float64 opinions on number formats and weights, written from their descriptions.

Nothing here calls the code that it judges: values are computed from a format's name, bits are
picked out of bytes one by one, and weights are multiplied out element by element.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
import torch

from humming.formats.activation import ActivationScheme
from humming.formats.number import NumberFormat
from humming.formats.scheme import Second, WeightScheme, Zero
from humming.weight import CanonicalWeight

#: Formats whose codes are not all finite, by what is special about them.
_ONES_ARE_NAN = {"e3m4", "e4m3fn", "e8m0", "e5m3"}
_IEEE = {"e5m2"}
_UNSIGNED_FLOATS = {"e8m0", "e5m3"}
_TORCH = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


@cache
def value(name: str, code: int) -> float:
    """What one code of the format called `name` is worth."""
    if name == "f16":
        return struct.unpack("<e", struct.pack("<H", code))[0]
    if name == "bf16":
        return struct.unpack("<f", struct.pack("<I", code << 16))[0]
    if name == "f32":
        return struct.unpack("<f", struct.pack("<I", code))[0]
    integer = re.fullmatch(r"([su])([1-8])", name)
    if integer:
        bits = int(integer[2])
        return float(code - (1 << bits) if integer[1] == "s" and code >> (bits - 1) else code)
    match = re.match(r"e([0-9])m([0-9])(fnuz)?", name)
    assert match, name
    exponent_bits, mantissa_bits, fnuz = int(match[1]), int(match[2]), bool(match[3])
    sign = 0 if name in _UNSIGNED_FLOATS else code >> (exponent_bits + mantissa_bits)
    body = code & ((1 << (exponent_bits + mantissa_bits)) - 1)
    if fnuz and sign and not body:
        return math.nan
    if exponent_bits == 0:
        return -float(body) if sign else float(body)
    exponent, mantissa = body >> mantissa_bits, body & ((1 << mantissa_bits) - 1)
    ones = body == (1 << (exponent_bits + mantissa_bits)) - 1
    if name in _ONES_ARE_NAN and ones:
        return math.nan
    if name in _IEEE and exponent == (1 << exponent_bits) - 1:
        return math.nan if mantissa else (-math.inf if sign else math.inf)
    bias = (1 << (exponent_bits - 1)) - 1 + fnuz
    if exponent or not mantissa_bits:
        magnitude = (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)
    else:
        magnitude = mantissa / (1 << mantissa_bits) * 2.0 ** (1 - bias)
    return -magnitude if sign else magnitude


def all_values(fmt: NumberFormat) -> list[float]:
    """Value of every code of a format of at most 16 bits."""
    return [value(fmt.name, code) for code in range(1 << fmt.bits)]


def nearest_codes(fmt: NumberFormat, x: float) -> set[int]:
    """Codes that may stand for a finite x: the nearest value, ties to the even code.

    Without mantissa bits (e8m0) the greater of two equally near ones.
    """
    finite = [(c, v) for c, v in enumerate(all_values(fmt)) if math.isfinite(v)]
    distance = min(abs(v - x) for _, v in finite)
    tied = [(c, v) for c, v in finite if abs(v - x) == distance]
    if len({v for _, v in tied}) > 1 and fmt.name == "e8m0":
        tied = [max(tied)]
    elif len({v for _, v in tied}) > 1:
        # The even one of two neighbours, counted in magnitude: the sign bit is no part of it.
        mask = (1 << (fmt.bits - 1)) - 1 if fmt.signed and not fmt.is_integer else -1
        tied = [(c, v) for c, v in tied if (c & mask) % 2 == 0]
    if len(tied) > 1:  # +0 and -0
        tied = [(c, v) for c, v in tied if math.copysign(1, v) == math.copysign(1, x)]
    return {c for c, _ in tied}


def write_bits(codes: Iterable[int], bits: int) -> bytes:
    """One little-endian bit stream, padded to whole bytes."""
    stream = 0
    count = 0
    for code in codes:
        stream |= code << (count * bits)
        count += 1
    return stream.to_bytes((count * bits + 7) // 8, "little")


def read_bits(data: bytes, bits: int, count: int) -> list[int]:
    """Inverse of :func:`write_bits`."""
    stream = int.from_bytes(data, "little")
    return [(stream >> (i * bits)) & ((1 << bits) - 1) for i in range(count)]


def pack_rows(codes: np.ndarray, bits: int) -> torch.Tensor:
    """uint8 codes [.., K] as a packed tensor."""
    flat = codes.reshape(-1, codes.shape[-1])
    rows = [list(write_bits((int(c) for c in row), bits)) for row in flat]
    packed = np.array(rows, dtype=np.uint8).reshape(*codes.shape[:-1], -1)
    return torch.from_numpy(packed)


# -- weights ----------------------------------------------------------------------------------


def stored(fmt: NumberFormat, shape: Sequence[int], rng: np.random.Generator) -> torch.Tensor:
    """Positive numbers in storage form, distinct as far as the format has different ones."""
    count = math.prod(shape)
    if fmt.name in _TORCH:
        steps = rng.permutation(count) + rng.random()
        numbers = 2.0**-7 * (1 + steps / (count + 1)) * 2.0 ** rng.integers(-3, 3, count)
        return torch.from_numpy(numbers).to(_TORCH[fmt.name]).reshape(*shape)
    # e8m0: a few binades, so that sums of products stay meaningful in float32.
    low, high = (118, 132) if fmt.name == "e8m0" else (1, 1 << 6)
    codes = np.concatenate([rng.permutation(np.arange(low, high)) for _ in range(count)])[:count]
    return torch.from_numpy(codes.astype(np.uint8)).reshape(*shape)


def random_weight(
    scheme: str | WeightScheme,
    n: int,
    k: int,
    experts: int = 0,
    *,
    seed: int = 0,
    act_order: bool = False,
    offset: tuple[int, int] = (0, 0),
    bias: torch.dtype | None = None,
    activation: str | None = None,
) -> CanonicalWeight:
    """A weight with random finite codes, distinct scales, and zero points incl. both extremes."""
    scheme = WeightScheme.parse(scheme)
    rng = np.random.default_rng(seed)
    lead = (experts,) if experts else ()
    blocks = (*lead, *_blocks(scheme, n, k, offset))
    finite = [c for c, v in enumerate(all_values(scheme.code)) if math.isfinite(v)]
    zeros = None
    if scheme.zero is Zero.INTEGER:
        numbers = rng.integers(0, 1 << scheme.code.bits, blocks).astype(np.uint8)
        if numbers.size > 1:
            numbers.flat[:2] = 0, (1 << scheme.code.bits) - 1
        zeros = torch.from_numpy(numbers)
    elif scheme.zero is Zero.FLOAT:
        zeros = torch.from_numpy(rng.normal(0, 0.1, blocks)).to(_TORCH[scheme.scale.name])
    second = None
    if scheme.second is not Second.NONE:
        rows = n if scheme.second is Second.CHANNEL else 1
        second = torch.from_numpy(2.0 ** rng.uniform(-3, 3, (*lead, rows, 1))).to(torch.float32)
    order = None
    if act_order:
        rows = [rng.permutation(k) for _ in range(max(experts, 1))]
        order = torch.from_numpy(np.stack(rows).astype(np.int32)).reshape(*lead, k)
    asked = None if activation is None else ActivationScheme.parse(activation)
    stored_scale = torch.full(lead, 0.05) if asked is not None and asked.static else None
    return CanonicalWeight(
        scheme=scheme,
        n=n,
        k=k,
        experts=experts,
        packed=pack_rows(rng.choice(finite, (*lead, n, k)), scheme.code.bits),
        scales=stored(scheme.scale, blocks, rng),
        zeros=zeros,
        second=second,
        permutation=order,
        offset=offset,
        bias=None if bias is None else 0.01 * torch.arange(n).expand(*lead, n).to(bias),
        activation=asked,
        input_scale=stored_scale,
    )


def _blocks(scheme: WeightScheme, n: int, k: int, offset: tuple[int, int]) -> tuple[int, int]:
    text = str(scheme.granularity)
    if text == "tensor":
        return 1, 1
    if text == "channel":
        return n, 1
    if text.startswith("g"):
        return n, math.ceil((k + offset[1]) / int(text[1:]))
    bn, bk = (int(part) for part in text[1:].split("x"))
    return math.ceil((n + offset[0]) / bn), math.ceil((k + offset[1]) / bk)


def _number(fmt: NumberFormat, item: float | int) -> float:
    return float(item) if fmt.name in _TORCH else value(fmt.name, int(item))


def dequantized(weight: CanonicalWeight) -> np.ndarray:
    """float64 [.., N, K], element by element."""
    if weight.experts:
        return np.stack([dequantized(_expert(weight, e)) for e in range(weight.experts)])
    scheme = weight.scheme
    bits = scheme.code.bits
    packed = weight.packed.cpu().numpy()
    scales = weight.scales.cpu().tolist()
    zeros = None if weight.zeros is None else weight.zeros.cpu().tolist()
    seconds = None if weight.second is None else weight.second.cpu().tolist()
    order = range(weight.k) if weight.permutation is None else weight.permutation.tolist()
    out = np.full((weight.n, weight.k), np.nan)
    for row in range(weight.n):
        codes = read_bits(bytes(packed[row]), bits, weight.k)
        for column, code in enumerate(codes):
            r, c = _block_of(weight, row, column)
            number = value(scheme.code.name, code)
            scale = _number(scheme.scale, scales[r][c])
            if scheme.zero is Zero.INTEGER:
                number = (number - zeros[r][c]) * scale
            elif scheme.zero is Zero.FLOAT:
                number = number * scale + zeros[r][c]
            elif scheme.code.name[0] == "u":
                number = (number - (1 << (bits - 1))) * scale
            else:
                number = number * scale
            if seconds is not None:
                number *= seconds[row if len(seconds) > 1 else 0][0]
            out[row, order[column]] = number
    return out


def _expert(weight: CanonicalWeight, index: int) -> CanonicalWeight:
    return weight.replace(experts=0, **{name: t[index] for name, t in weight.tensors()})


def _block_of(weight: CanonicalWeight, row: int, column: int) -> tuple[int, int]:
    text = str(weight.scheme.granularity)
    if text == "tensor":
        return 0, 0
    if text == "channel":
        return row, 0
    if weight.group_index is not None:
        return row, int(weight.group_index[column])
    if text.startswith("g"):
        return row, (column + weight.offset[1]) // int(text[1:])
    bn, bk = (int(part) for part in text[1:].split("x"))
    return (row + weight.offset[0]) // bn, (column + weight.offset[1]) // bk


# -- products ---------------------------------------------------------------------------------


def relative_errors(found: torch.Tensor, wanted: torch.Tensor | np.ndarray) -> tuple[float, float]:
    """(over everything, of the worst row): ||found - wanted|| / ||wanted|| in float64."""
    wanted = torch.as_tensor(wanted, dtype=torch.float64)
    difference = found.to(torch.float64) - wanted
    whole = float(difference.norm() / wanted.norm())
    norms = wanted.flatten(0, -2).norm(dim=1)
    rows = difference.flatten(0, -2).norm(dim=1)[norms > 0] / norms[norms > 0]
    return whole, float(rows.max())


def realistic_activations(m: int, k: int, seed: int = 1) -> torch.Tensor:
    """float32 [M, K] as rule 5 of the black-box cases says: normal, 1 % of channels times 50."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (m, k))
    x[:, rng.random(k) < 0.01] *= 50
    return torch.from_numpy(x).to(torch.float32)


def realistic_weights(n: int, k: int, seed: int = 2) -> torch.Tensor:
    """float32 [N, K]: N(0, 0.02^2) with a factor 2^U(-3, 3) per row."""
    rng = np.random.default_rng(seed)
    w = rng.normal(0, 0.02, (n, k)) * 2.0 ** rng.uniform(-3, 3, (n, 1))
    return torch.from_numpy(w).to(torch.float32)
