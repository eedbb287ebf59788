"""Which way round Quark stored a weight and its scales: N and K from two headers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from humming.checkpoints.quark_config import CODES, TensorSpec
from humming.checkpoints.quark_pack import MX_BLOCK, STORED, stream_columns
from humming.checkpoints.store import TensorInfo
from humming.errors import CheckpointError
from humming.formats.scheme import Granularity
from humming.formats.table import number_format

__all__ = ["Layout", "granularity", "layout", "scale_shapes", "zero_shapes"]

_WORDS = ("int4", "uint4")
_BYTES = ("int8", "uint8")


@dataclass(frozen=True)
class Layout:
    """One way to read a weight.

    Attributes:
        n: output features.
        k: input features.
        codes_transposed: whether codes are stored [K, N].
        scales_transposed: whether scales are stored [K/g, N].
    """

    n: int
    k: int
    codes_transposed: bool
    scales_transposed: bool


def granularity(spec: TensorSpec) -> Granularity:
    """Weights under one scale.

    Raises:
        CheckpointError: channels are inputs, or groups run along N.
    """
    axes = {"per_channel": (0,), "per_group": (1, -1)}.get(spec.qscheme)
    if axes is not None and spec.axis not in axes:
        expected = " or ".join(map(str, axes))
        raise CheckpointError(
            f"Quark config: {spec.where}.ch_axis={spec.axis!r}, expected {expected}"
        )
    if spec.qscheme == "per_group":
        return Granularity.group(spec.group)
    if spec.qscheme == "per_block":
        return Granularity.block(*spec.block)
    return Granularity(1, 0) if spec.qscheme == "per_channel" else Granularity(0, 0)


def layout(
    spec: TensorSpec, codes: tuple[str, TensorInfo], scales: tuple[str, TensorInfo], version: str
) -> Layout:
    """The one way to read codes and scales that agrees with both headers.

    Quark before 0.7 did not transpose scales, nor 8-bit codes; before 0.13 not those of int3.

    Args:
        spec: of the codes.
        codes: name and header of the codes.
        scales: name and header of the scales.
        version: of Quark; "" before 0.9.

    Raises:
        CheckpointError: no way agrees, or two do and the version does not tell which.
    """
    name, info = codes
    ways = [*_ways(spec, name, info, scales[1])]
    fits = [way for way in ways if scales[1].shape in scale_shapes(spec, way)]
    if len(fits) == 2 and version and spec.dtype != "int3":
        fits = [way for way in fits if way.scales_transposed]
    if len(fits) > 1:
        raise CheckpointError(
            f"{scales[1]} may be [K/g, N] or [N, K/g], since both are equal, and no version "
            f"of Quark is given that tells which",
            tensor=scales[0],
        )
    if not fits:
        shapes = {str(list(shape)) for way in ways for shape in scale_shapes(spec, way)}
        raise CheckpointError(
            f"expected {spec.qscheme} scales {' or '.join(sorted(shapes)) or '(none fit)'} for "
            f"codes {info}, found {scales[1]}",
            tensor=scales[0],
        )
    return fits[0]


def _ways(spec: TensorSpec, name: str, info: TensorInfo, scales: TensorInfo) -> Iterator[Layout]:
    rows, columns = info.shape
    grouped = spec.qscheme == "per_group"
    bits = number_format(CODES[spec.dtype]).bits
    if spec.mx:
        if columns % MX_BLOCK[1]:
            raise CheckpointError(f"expected rows of 17-byte blocks, found {info}", tensor=name)
        yield Layout(rows, columns // MX_BLOCK[1] * MX_BLOCK[0], False, False)
    elif spec.dtype in _WORDS and not grouped:
        yield Layout(rows, 8 * columns, False, False)
    elif spec.dtype in _WORDS:
        # The last word may be part padding: N is what the scales say, if that fits.
        for transposed in (True, False):
            n = scales.shape[-1 if transposed else 0] if len(scales.shape) == 2 else 8 * columns
            fits = 8 * (columns - 1) < n <= 8 * columns
            yield Layout(n if fits else 8 * columns, rows, True, transposed)
    elif spec.dtype in _BYTES and grouped:
        yield Layout(columns, rows, True, True)
        yield Layout(rows, columns, False, False)
    elif STORED[spec.dtype] == "U8" and bits < 8:
        k = stream_columns(name, info, bits)
        yield Layout(rows, k, False, False)
        if spec.dtype == "int3" and grouped:
            yield Layout(rows, k, False, True)
    elif spec.dtype == "int2" and grouped:
        yield Layout(columns, rows, True, True)
    else:
        yield Layout(rows, columns, False, False)


def scale_shapes(spec: TensorSpec, way: Layout) -> list[tuple[int, ...]]:
    """Shapes that the scales may have in the file, read this way."""
    rows, columns = granularity(spec).scale_shape(way.n, way.k)
    if spec.qscheme == "per_tensor":
        return [(), (1,)]
    if spec.qscheme == "per_channel":
        return [(way.n,), (way.n, 1)]
    if spec.qscheme == "per_group" and way.k % spec.group:
        return []
    return [(columns, rows) if way.scales_transposed else (rows, columns)]


def zero_shapes(spec: TensorSpec, way: Layout) -> list[tuple[int, ...]]:
    """Shapes that the zero points may have in the file, read this way."""
    if spec.qscheme == "per_tensor":
        return [(), (1,)]
    n = -(-way.n // 8) if spec.dtype in _WORDS else way.n
    if spec.qscheme == "per_channel":
        return [(way.n * 3 // 8,) if spec.dtype == "int3" else (n,)]
    columns = way.k // max(spec.group, 1)
    if spec.dtype == "int3":
        return [(way.n, columns * 3 // 8)]
    if spec.dtype in _WORDS or way.scales_transposed:
        return [(columns, n)]
    return [(n, columns)]
