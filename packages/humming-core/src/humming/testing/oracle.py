"""The float64 oracle: what a quantized layer should compute, written from the formats alone.

It shares no arithmetic with the backends: codes are unpacked bit by bit with NumPy, decoded by the
tables of :mod:`humming.formats.number`, scaled by index, and multiplied in float64; activations are
quantized in NumPy as :func:`humming.activations.quantize_activation` documents. Slow and plain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from humming.formats.activation import ActivationScheme
from humming.formats.number import NumberFormat
from humming.formats.scheme import Zero
from humming.formats.table import number_format
from humming.weight import CanonicalWeight

__all__ = [
    "Deviation",
    "deviation",
    "expected_activation",
    "expected_products",
    "expected_weight",
    "tolerance",
]

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

#: Largest relative error of a whole result by output format; any one row may have three times it.
_TOLERANCES = {"bf16": 4e-3, "f16": 1e-3, "f32": 1e-5}
WORST_ROW_FACTOR = 3
_CHUNK_ELEMENTS = 1 << 22


def tolerance(output: NumberFormat) -> float:
    """Allowed relative error of a whole result, given exactly the activations that it saw."""
    return _TOLERANCES[output.name]


@dataclass(frozen=True)
class Deviation:
    """How far a result is from the oracle: ``||y - ref|| / ||ref||``, whole and per worst row."""

    whole: float
    worst_row: float

    def within(self, limit: float) -> bool:
        """Whether the whole is within `limit` and each row within three times that; NaN is not."""
        return self.whole <= limit and self.worst_row <= WORST_ROW_FACTOR * limit


def deviation(result: torch.Tensor, expected: Floats) -> Deviation:
    """Compare a result [.., N] with the oracle's.

    A row that should be zero and is counts as exact, one that should be and is not as infinite.
    """
    found = result.detach().to(device="cpu", dtype=torch.float64).numpy().reshape(expected.shape)
    wrong = np.linalg.norm(np.atleast_2d(found - expected), axis=-1)
    size = np.linalg.norm(np.atleast_2d(expected), axis=-1)
    rows = _ratio(wrong, size)
    whole = _ratio(np.linalg.norm(wrong), np.linalg.norm(size))
    return Deviation(float(whole), float(rows.max(initial=0.0)))


def _ratio(wrong: npt.ArrayLike, size: npt.ArrayLike) -> Floats:
    wrong, size = np.asarray(wrong, np.float64), np.asarray(size, np.float64)
    empty = np.where(wrong == 0, 0.0, np.inf)
    return np.where(size == 0, empty, wrong / np.where(size == 0, 1.0, size))


def expected_products(
    inputs: Sequence[torch.Tensor], weight: CanonicalWeight, activation: ActivationScheme
) -> list[Floats]:
    """``quantized(x) @ W.T + bias`` in float64 [M, N] for each x; W is decoded once.

    Args:
        inputs: each [M, K], float16, bfloat16 or float32.
        weight: a single matrix [N, K] (of experts: one of them).
        activation: what the layer turns activations into.
    """
    operands = [expected_activation(x, weight, activation) for x in inputs]
    if weight.permutation is not None:  # stored column j multiplies input permutation[j]
        operands = [operand[:, _array(weight.permutation)] for operand in operands]
    results = [np.zeros((len(operand), weight.n)) for operand in operands]
    for rows, values in _stored_rows(weight):
        for operand, result in zip(operands, results, strict=True):
            result[:, rows] = operand @ values.T
    if weight.bias is not None:
        for result in results:
            result += _floats(weight.bias)
    return results


# -- weights ---------------------------------------------------------------------------------------


def expected_weight(weight: CanonicalWeight) -> Floats:
    """The matrix [N, K] in float64, in the order of the inputs."""
    stored = np.zeros((weight.n, weight.k))
    for rows, values in _stored_rows(weight):
        stored[rows] = values
    if weight.permutation is None:
        return stored
    matrix = np.empty_like(stored)
    matrix[:, _array(weight.permutation)] = stored
    return matrix


def _stored_rows(weight: CanonicalWeight) -> Iterator[tuple[Rows, Floats]]:
    """Some row numbers, and their values in stored column order."""
    step = max(1, _CHUNK_ELEMENTS // max(weight.k, 1))
    for start in range(0, weight.n, step):
        rows = np.arange(start, min(start + step, weight.n))
        yield rows, _values(weight, rows)


def _values(weight: CanonicalWeight, rows: Rows) -> Floats:
    scheme = weight.scheme
    block_n, block_k = scheme.granularity.n, scheme.granularity.k
    stored = np.arange(weight.k)
    # Which scale row and column belongs to each row and stored column.
    r = (rows + weight.offset[0]) // block_n if block_n else np.zeros_like(rows)
    c = (stored + weight.offset[1]) // block_k if block_k else np.zeros_like(stored)
    if weight.group_index is not None:
        c = _array(weight.group_index)
    place = np.ix_(r, c)
    values = scheme.code.decode(_codes(weight, rows))
    scales = _decoded(weight.scales, scheme.scale)[place]
    if scheme.zero is Zero.FLOAT and weight.zeros is not None:
        values = values * scales + _floats(weight.zeros)[place]
    elif scheme.zero is Zero.INTEGER and weight.zeros is not None:
        values = (values - _array(weight.zeros)[place]) * scales
    else:
        unsigned = scheme.code.is_integer and not scheme.code.signed
        values = (values - (2 ** (scheme.code.bits - 1) if unsigned else 0)) * scales
    if weight.second is not None:
        second = _floats(weight.second)
        values = values * (second if len(second) == 1 else second[rows])
    return values


def _codes(weight: CanonicalWeight, rows: Rows) -> npt.NDArray[np.uint8]:
    """Code k of a row is the bits [k * b, (k + 1) * b) of the row, lowest first."""
    bits = weight.scheme.code.bits
    packed = weight.packed.detach().cpu().numpy()[rows]
    stream = np.unpackbits(packed, axis=1, bitorder="little")
    stream = stream[:, : weight.k * bits].reshape(len(rows), weight.k, bits)
    codes = np.zeros(stream.shape[:2], np.uint8)
    for bit in range(bits):
        codes |= stream[:, :, bit] << np.uint8(bit)
    return codes


# -- activations -----------------------------------------------------------------------------------


def expected_activation(
    x: torch.Tensor, weight: CanonicalWeight, activation: ActivationScheme
) -> Floats:
    """The values [M, K] that the multiplication should see, in float64."""
    own = number_format(x.dtype)
    values = _floats(x)
    if weight.pre_quant_scale is not None:  # multiplied and rounded in the activations' own format
        values = _rounded(values * _rounded(_floats(weight.pre_quant_scale), own), own)
    if not activation.is_quantized:
        return _rounded(values, activation.format)
    return _quantized(values.astype(np.float32), activation, weight.input_scale)


def _quantized(x: Singles, scheme: ActivationScheme, input_scale: torch.Tensor | None) -> Floats:
    """Scales in float32 as a layer computes them; codes rounded to nearest even, saturating."""
    assert scheme.scale is not None, "a quantizing scheme has a scale format"
    top = np.float32(scheme.format.max if scheme.format.bits > 1 else 1.0)
    group = scheme.group_size or max(x.shape[1], 1)
    columns = np.arange(x.shape[1]) // group
    outer = scheme.second or ("" if scheme.group_size else scheme.granularity)
    overall = np.ones((1, 1), np.float32)
    if outer:
        reach = top * np.float32(scheme.scale.max) if scheme.second else top
        amax = np.abs(x).max(axis=1 if outer == "token" else None, keepdims=True, initial=0)
        overall = amax / reach
        overall = np.where(overall == 0, np.float32(1), overall).astype(np.float32)
        if scheme.static:
            assert input_scale is not None, "a static scheme has a stored scale"
            overall = _floats(input_scale).reshape(1, 1).astype(np.float32)
    if scheme.group_size:
        padded = np.pad(np.abs(x), ((0, 0), (0, -x.shape[1] % group)))
        amax = padded.reshape(len(x), padded.shape[1] // group, group).max(axis=2, initial=0)
        scales = _stored_scales(amax / (top * overall if scheme.second else top), scheme.scale)
        factor = scales[:, columns]
        second = overall if scheme.second else np.ones((1, 1), np.float32)
    else:
        factor = _stored_scales(overall, scheme.scale)
        second = np.ones((1, 1), np.float32)
    wanted = x / (factor * second)
    limit = top if scheme.format.is_integer else np.float32(np.inf)
    codes = scheme.format.encode(np.clip(wanted, -limit, limit))
    return scheme.format.decode(codes) * factor.astype(np.float64) * second.astype(np.float64)


def _stored_scales(scales: Singles, fmt: NumberFormat) -> Singles:
    """As the scale format holds them: e8m0 rounded up, others to nearest, never to zero."""
    wide = scales.astype(np.float64)
    if fmt.name == "e8m0":
        exponent = np.ceil(np.log2(np.where(wide > 0, wide, 1.0)))
        power: Singles = np.exp2(np.clip(exponent, -127, 127)).astype(np.float32)
        return power
    codes = fmt.encode(wide)
    smallest = {16: 2.0**-14, 32: 2.0**-126}.get(fmt.bits, float(fmt.decode(np.uint8(1))))
    if fmt.name == "bf16":
        smallest = 2.0**-126
    values = fmt.decode(codes)
    return np.where(values == 0, smallest, values).astype(np.float32)


# -- tensors to NumPy ------------------------------------------------------------------------------


def _array(tensor: torch.Tensor) -> npt.NDArray[np.int64]:
    array: npt.NDArray[np.int64] = tensor.detach().cpu().numpy()
    return array


def _floats(tensor: torch.Tensor) -> Floats:
    array: Floats = tensor.detach().to(device="cpu", dtype=torch.float64).numpy()
    return array


def _decoded(stored: torch.Tensor, fmt: NumberFormat) -> Floats:
    return fmt.decode(_array(stored)) if stored.dtype == torch.uint8 else _floats(stored)


def _rounded(values: Floats, fmt: NumberFormat) -> Floats:
    return fmt.decode(fmt.encode(values))
