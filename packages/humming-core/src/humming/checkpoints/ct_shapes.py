"""Sizes and packings of a compressed-tensors layer, from headers (and ``weight_shape``)."""

from __future__ import annotations

from collections.abc import Iterable

from humming.checkpoints.base import CheckpointLoader
from humming.checkpoints.ct_args import QuantArgs
from humming.checkpoints.ct_groups import FileFormat
from humming.checkpoints.ct_schemes import granularity
from humming.checkpoints.scales import BIAS_DTYPES, scale_format
from humming.checkpoints.words import dense_words, padded_words
from humming.errors import CheckpointError
from humming.formats.number import NumberFormat

__all__ = ["check_headers", "layer_shape", "scale_of", "word_layout"]

#: First version that writes words as one bit stream; before it, 32 // bits codes per word.
_DENSE_SINCE = (0, 18)
#: Tensors that hold one number.
_SCALARS = ("weight_global_scale", "input_scale", "input_global_scale")


def layer_shape(
    loader: CheckpointLoader, layer: str, args: QuantArgs, file: FileFormat
) -> tuple[int, int, int]:
    """Experts (0: a single matrix), N and K.

    Raises:
        CheckpointError: codes are missing, or of another dtype or shape than the format's.
    """
    name = f"{layer}.{file.suffix}"
    dtypes = file.dtypes
    if len(dtypes) > 1:  # naive-quantized holds either kind
        dtypes = ("F8_E4M3",) if args.is_float else ("I8",)
    info = loader.info(name, *dtypes)
    # Of the tool's writers only those of integers and FP8 take stacks of experts.
    dims = (2,) if dtypes == ("U8",) else (2, 3)
    if len(info.shape) not in dims:
        expected = " or ".join(map(str, dims))
        raise CheckpointError(f"expected {expected} dimensions, found {info}", tensor=name)
    if dtypes == ("I32",):
        return _stated_shape(loader, layer, info.shape[:-1])
    *lead, n, width = info.shape
    if dtypes == ("U8",):
        if width * 8 % args.bits:
            raise CheckpointError(
                f"rows of {width} bytes, expected whole codes of {args.bits} bits", tensor=name
            )
        width = width * 8 // args.bits
    return lead[0] if lead else 0, n, width


def _stated_shape(
    loader: CheckpointLoader, layer: str, rows: tuple[int, ...]
) -> tuple[int, int, int]:
    """What ``weight_shape`` says; the words alone leave K open."""
    name = f"{layer}.weight_shape"
    loader.info(name, "I64", "I32", dims=1)
    shape = [int(size) for size in loader.tensor(name, (len(rows) + 1,)).tolist()]
    if tuple(shape[:-1]) != rows or shape[-1] < 1:
        raise CheckpointError(f"says {shape}; weight_packed has rows {list(rows)}", tensor=name)
    return rows[0] if len(rows) > 1 else 0, rows[-1], shape[-1]


def word_layout(
    loader: CheckpointLoader, name: str, args: QuantArgs, codes: int, version: tuple[int, ...]
) -> str:
    """ "dense" or "padded" packing of int32 words, by their number.

    Args:
        loader: has the tensor.
        name: of the tensor: weights are packed along the last dimension, zero points along the
            one before.
        args: of the weights.
        codes: how many the words hold, K or N.
        version: of the writer, which decides where both packings take as many words.

    Raises:
        CheckpointError: the number fits neither, or the version is needed and unknown.
    """
    info = loader.info(name, "I32")
    dim, along = (-2, "N") if name.endswith("zero_point") else (-1, "K")
    if len(info.shape) < 2:
        raise CheckpointError(f"expected 2 dimensions, found {info}", tensor=name)
    found, bits = info.shape[dim], args.bits
    dense, padded = dense_words(codes, bits), padded_words(codes, bits)
    if found not in (dense, padded):
        raise CheckpointError(
            f"{info} has {found} words along {along}; {along}={codes} codes of {bits} bits take "
            f"{dense} (dense) or {padded} (padded)",
            tensor=name,
        )
    same_bytes = 32 % bits == 0 or codes <= 32 // bits
    if dense != padded or same_bytes:
        return "dense" if found == dense else "padded"
    if not version:
        raise CheckpointError(
            f"{found} words hold {along}={codes} codes of {bits} bits dense or padded; only the "
            f"config's version could tell, and there is none",
            tensor=name,
        )
    return "dense" if version >= _DENSE_SINCE else "padded"


def scale_of(
    loader: CheckpointLoader,
    layer: str,
    args: QuantArgs,
    file: FileFormat,
    size: tuple[int, int, int],
) -> NumberFormat:
    """Format of the scales, whose shape is checked against `size` (experts, N, K).

    Raises:
        CheckpointError: missing, of a dtype the format does not have, or of another shape.
    """
    name = f"{layer}.weight_scale"
    info = loader.info(name)
    fmt = scale_format(name, info, *file.scales)
    experts, n, k = size
    blocks = granularity(args).scale_shape(n, k)
    shapes = [(*((experts,) if experts else ()), *blocks)]
    if args.strategy == "tensor":
        shapes += [(1,), ()]
    if info.shape not in shapes:
        how = f"groups of {args.group} along K={k}" if args.group else f"strategy {args.strategy!r}"
        raise CheckpointError(
            f"expected shape {list(shapes[0])} for N={n}, K={k} and {how}, found {info}",
            tensor=name,
        )
    return fmt


def check_headers(
    loader: CheckpointLoader, layer: str, suffixes: Iterable[str], size: tuple[int, int, int]
) -> None:
    """Presence of all `suffixes`, and dtype and shape of those that the above did not look at.

    Args:
        loader: has the tensors.
        layer: whose they are.
        suffixes: of the tensors that the layer needs.
        size: experts (0: a single matrix), N and K.

    Raises:
        CheckpointError: missing, or of another dtype or shape.
    """
    experts, n, k = size
    one: tuple[tuple[int, ...], ...] = ((1,), (), (1, 1))
    expected: dict[str, tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]] = {
        "bias": (BIAS_DTYPES, ((experts, n) if experts else (n,),)),
        "weight_g_idx": (("I32", "I64"), ((k,),)),
        **dict.fromkeys(_SCALARS, (BIAS_DTYPES, one)),
    }
    for suffix in suffixes:
        name = f"{layer}.{suffix}"
        dtypes, shapes = expected.get(suffix, ((), ()))
        info = loader.info(name, *dtypes)
        if shapes and info.shape not in shapes:
            raise CheckpointError(f"expected shape {list(shapes[0])}, found {info}", tensor=name)
